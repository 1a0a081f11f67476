"""TensorBoard event files as a tracker; the extra ``tensorboard`` brings the writer."""

import importlib
import os
from dataclasses import dataclass

from levanter.errors import MissingExtraError
from levanter.tracker.tracker import Tracker, TrackerConfig


@TrackerConfig.register_subclass("tensorboard")
@dataclass(frozen=True)
class TensorboardConfig(TrackerConfig):
    """Event files.

    Attributes:
        logdir: Folder; the run id is appended.
        flush_secs: Seconds between flushes.
    """

    logdir: str = "tblogs"
    flush_secs: int = 120

    def init(self, run_id: str, log_dir: str) -> Tracker:
        """Open the event file.

        Raises:
            MissingExtraError: the writer is not installed.
        """
        try:
            adapter = importlib.import_module("levanter._adapters.tensorboard_tracker")
        except ModuleNotFoundError as error:
            raise MissingExtraError("the tensorboard tracker", "tensorboard") from error
        return adapter.TensorboardTracker(os.path.join(self.logdir, run_id), self.flush_secs)
