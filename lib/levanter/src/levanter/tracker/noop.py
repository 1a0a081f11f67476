"""A tracker that keeps nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levanter.tracker.tracker import Tracker, TrackerConfig


class NoopTracker(Tracker):
    """Drop everything; the tracker to choose when another system records the run."""

    name = "noop"

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Drop the metrics."""

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Drop the summary."""

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Drop the configuration."""

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Leave the file where it is."""


@TrackerConfig.register_subclass("noop")
@dataclass(frozen=True)
class NoopConfig(TrackerConfig):
    """Keep nothing."""

    def init(self, run_id: str, log_dir: str) -> NoopTracker:
        """Make the tracker."""
        return NoopTracker()
