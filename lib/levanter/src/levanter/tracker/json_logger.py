"""A tracker that writes one JSON object a log record, for machines whose logs are collected anyway."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levanter.tracker.tracker import Tracker, TrackerConfig, scalars


class JsonLoggerTracker(Tracker):
    """Send every call to a :mod:`logging` logger as a JSON line.

    Example:
        >>> JsonLoggerTracker(logging.getLogger("metrics"), logging.INFO).log({"loss": 1.0}, step=0)
    """

    name = "json_logger"

    def __init__(self, target: logging.Logger, level: int) -> None:
        self._target = target
        self._level = level

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Emit ``{"event": "log", "step": ..., "metrics": {...}}``."""
        self._emit({"event": "log", "step": step, "metrics": scalars(metrics)})

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Emit ``{"event": "summary", ...}``."""
        self._emit({"event": "summary", "metrics": scalars(metrics)})

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Emit ``{"event": "hparams", ...}``."""
        self._emit({"event": "hparams", "hparams": dict(hparams)})

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Emit ``{"event": "artifact", ...}``; the file stays where it is."""
        self._emit({"event": "artifact", "path": path, "name": name, "type": type})

    def finish(self) -> None:
        """Emit ``{"event": "finish"}``."""
        self._emit({"event": "finish"})

    def _emit(self, record: Mapping[str, Any]) -> None:
        self._target.log(self._level, "%s", json.dumps(record, sort_keys=True, default=str))


@TrackerConfig.register_subclass("json_logger")
@dataclass(frozen=True)
class JsonLoggerConfig(TrackerConfig):
    """Log JSON lines.

    Attributes:
        logger_name: Logger to use.
        level: Level name.
    """

    logger_name: str = "levanter.metrics"
    level: str = "INFO"

    def init(self, run_id: str, log_dir: str) -> JsonLoggerTracker:
        """Open the logger."""
        return JsonLoggerTracker(logging.getLogger(self.logger_name), logging.getLevelNamesMapping()[self.level])
