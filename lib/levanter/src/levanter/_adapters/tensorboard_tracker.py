"""TensorBoard's event writer behind the tracker interface."""

import json
from collections.abc import Mapping
from typing import Any

from tensorboardX import SummaryWriter

from levanter.tracker.tracker import Tracker, scalars


class TensorboardTracker(Tracker):
    """One event file; see :class:`levanter.tracker.tensorboard.TensorboardConfig`."""

    name = "tensorboard"

    def __init__(self, logdir: str, flush_secs: int) -> None:
        self._writer = SummaryWriter(logdir=logdir, flush_secs=flush_secs)

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Write scalars; strings become text."""
        for key, value in scalars(metrics).items():
            if isinstance(value, bool | int | float):
                self._writer.add_scalar(key, value, step)
            elif value is not None:
                self._writer.add_text(key, str(value), step)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Write whole-run values at step 0."""
        self._writer.add_text("summary", json.dumps(scalars(metrics), sort_keys=True), 0)

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Write the configuration as text."""
        self._writer.add_text("hparams", json.dumps(hparams, sort_keys=True, default=str), 0)

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Write the path; event files hold no files."""
        self._writer.add_text(f"artifact/{name or path}", path, 0)

    def flush(self) -> None:
        """Write buffered events."""
        self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        self._writer.close()
