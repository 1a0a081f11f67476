"""What a metrics back-end must do, and how several of them act as one.

A tracker receives scalars by step, once per step, in growing order. Three verbs go beyond plain logging because resumed
runs must not lie: ``flush`` makes everything logged so far durable (called before a checkpoint is committed),
``resume_at(step)`` forgets everything logged at or after a step (called after a checkpoint is restored), and
``finish`` closes the stream.
"""

import abc
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draccus import PluginRegistry

from levanter.errors import TrackerError

logger = logging.getLogger(__name__)


class Tracker(abc.ABC):
    """One metrics back-end.

    Attributes:
        name: Short name of the back-end.
    """

    name: str = "tracker"

    @abc.abstractmethod
    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Record scalars for a 0-based step; steps never go backwards.

        Raises:
            TrackerError: ``step`` is smaller than one already logged.
        """

    @abc.abstractmethod
    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Record values that describe the whole run; later calls overwrite earlier ones key by key."""

    @abc.abstractmethod
    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Record the run's configuration."""

    @abc.abstractmethod
    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Keep a copy of a file with the run."""

    def flush(self) -> None:
        """Make everything logged so far durable; the default has nothing to do."""
        return None

    def resume_at(self, step: int) -> None:
        """Forget everything logged at or after ``step``; the default has nothing to forget."""
        return None

    def finish(self) -> None:
        """Close the stream; later calls are errors of the caller."""
        return None


@dataclass(frozen=True)
class TrackerConfig(PluginRegistry, discover_packages_path="levanter.tracker"):
    """Configuration of one tracker; ``type`` selects the back-end."""

    @classmethod
    def default_choice_name(cls) -> str | None:
        """The tracker used when no ``type:`` is given: local files."""
        return "json_file"

    def init(self, run_id: str, log_dir: str) -> Tracker:
        """Open the back-end.

        Args:
            run_id: Id of the run.
            log_dir: Folder that a tracker may write under when it has no place of its own.
        """
        raise NotImplementedError(type(self).__name__)


class CompositeTracker(Tracker):
    """Several trackers behind one; every call goes to each in order."""

    name = "composite"

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = tuple(trackers)

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Log to every tracker."""
        for tracker in self.trackers:
            tracker.log(metrics, step=step, commit=commit)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Summarise to every tracker."""
        for tracker in self.trackers:
            tracker.log_summary(metrics)

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Record the configuration in every tracker."""
        for tracker in self.trackers:
            tracker.log_hyperparameters(hparams)

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Keep the file in every tracker."""
        for tracker in self.trackers:
            tracker.log_artifact(path, name=name, type=type)

    def flush(self) -> None:
        """Flush every tracker."""
        for tracker in self.trackers:
            tracker.flush()

    def resume_at(self, step: int) -> None:
        """Rewind every tracker."""
        for tracker in self.trackers:
            tracker.resume_at(step)

    def finish(self) -> None:
        """Finish every tracker, then raise the first failure, so that one bad back-end cannot keep others open."""
        failures: list[Exception] = []
        for tracker in self.trackers:
            try:
                tracker.finish()
            except Exception as error:
                logger.exception("tracker %s failed to finish", tracker.name)
                failures.append(error)
        if failures:
            raise TrackerError(f"cannot finish {len(failures)} tracker(s): first={failures[0]!r}.") from failures[0]


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Turn JAX and NumPy scalars into Python numbers, histograms into their statistics; keep strings and None."""
    result: dict[str, Any] = {}
    for key, value in metrics.items():
        if hasattr(value, "to_scalars"):
            result.update({f"{key}/{name}": v for name, v in value.to_scalars().items()})
        elif isinstance(value, bool | int | float | str) or value is None:
            result[key] = value
        elif hasattr(value, "item"):
            result[key] = value.item()
        else:
            result[key] = str(value)
    return result
