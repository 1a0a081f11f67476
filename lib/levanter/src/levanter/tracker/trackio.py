"""Trackio as a tracker: a local dashboard with wandb's verbs; the extra ``trackio`` brings it."""

import importlib
from dataclasses import dataclass

from levanter.errors import MissingExtraError
from levanter.tracker.background import BackgroundTracker
from levanter.tracker.tracker import Tracker, TrackerConfig


@TrackerConfig.register_subclass("trackio")
@dataclass(frozen=True)
class TrackioConfig(TrackerConfig):
    """Fields are trackio's own ``init`` arguments.

    Attributes:
        project: Project name.
        name: Display name; None uses the run id.
        space_id: Hugging Face space to sync to; None stays local.
        dataset_id: Hub data set for persistence.
        resume: Trackio's resume policy.
        background: Send on a thread.
    """

    project: str = "levanter"
    name: str | None = None
    space_id: str | None = None
    dataset_id: str | None = None
    resume: str = "allow"
    background: bool = True

    def init(self, run_id: str, log_dir: str) -> Tracker:
        """Start the trackio run.

        Raises:
            MissingExtraError: trackio is not installed.
        """
        try:
            adapter = importlib.import_module("levanter._adapters.trackio_tracker")
        except ModuleNotFoundError as error:
            raise MissingExtraError("the trackio tracker", "trackio") from error
        tracker = adapter.TrackioTracker(self, run_id)
        return BackgroundTracker(tracker) if self.background else tracker
