"""The trackio client behind the tracker interface."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trackio

from levanter.tracker.tracker import Tracker, scalars

if TYPE_CHECKING:
    from levanter.tracker.trackio import TrackioConfig


class TrackioTracker(Tracker):
    """One trackio run; see :class:`levanter.tracker.trackio.TrackioConfig`.

    Every call goes to the run object: trackio's module functions know the run only on the thread that opened it.
    """

    name = "trackio"

    def __init__(self, config: "TrackioConfig", run_id: str) -> None:
        self._run = trackio.init(
            project=config.project,
            name=config.name or run_id,
            space_id=config.space_id,
            dataset_id=config.dataset_id,
            resume=config.resume,
        )

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Send scalars."""
        self._run.log(scalars(metrics), step=step)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Send whole-run values under ``summary/``."""
        self._run.log({f"summary/{key}": value for key, value in scalars(metrics).items()})

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Record the configuration."""
        self._run.config.update(dict(hparams))

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Record the path."""
        self._run.log({f"artifact/{name or path}": path})

    def finish(self) -> None:
        """Close the run."""
        self._run.finish()
