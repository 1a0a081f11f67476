"""The default tracker: plain files in the run's folder, no account, no server.

    <output_path>/metrics.jsonl       one JSON object a line: {"step": 3, "train/loss": 2.1, ...}; only values that
                                      equal runs reproduce, so two equal runs leave equal bytes
    <output_path>/logs/timing.jsonl   the same, for wall-clock values (throughput, load times)
    <output_path>/logs/hparams.json   configuration, local paths included
    <output_path>/logs/summary.json   whole-run values
    <output_path>/artifacts/          files given to log_artifact

Invariants: a line is written whole or not at all (a torn last line is dropped on resume); steps never go backwards;
after
``resume_at(n)`` no line has ``step >= n``, so a killed and resumed run leaves the file an undisturbed run leaves.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from rigging.filesystem.atomic import write_text_atomic

from levanter.errors import TrackerError
from levanter.tracker.tracker import Tracker, TrackerConfig, scalars

WALL_CLOCK_PREFIXES = ("throughput/", "eval/timing/", "timing/", "goodput/")


class JsonFileTracker(Tracker):
    """Append metrics to ``metrics.jsonl`` in a local folder.

    Example:
        >>> import pathlib, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> tracker = JsonFileTracker(folder)
        >>> tracker.log({"train/loss": 2.5}, step=0)
        >>> tracker.finish()
        >>> pathlib.Path(folder, "metrics.jsonl").read_text()
        '{"step": 0, "train/loss": 2.5}\\n'
    """

    name = "json_file"

    def __init__(self, output_path: str) -> None:
        self.output_path = output_path
        self.metrics_path = os.path.join(output_path, "metrics.jsonl")
        self.timing_path = os.path.join(output_path, "logs", "timing.jsonl")
        os.makedirs(os.path.dirname(self.timing_path), exist_ok=True)
        self._last_step = max(_last_step(self.metrics_path), _last_step(self.timing_path))
        self._streams: dict[str, IO[str]] = {}
        self._summary: dict[str, Any] = _read_object(self._path("logs/summary.json"))
        self._hparams: dict[str, Any] = {}

    def log(self, metrics: Mapping[str, Any], *, step: int, commit: bool = True) -> None:
        """Append one line per stream; see :class:`Tracker`."""
        if step < self._last_step:
            raise TrackerError(
                f"cannot log backwards: step={step}, last_step={self._last_step}, path={self.metrics_path}; "
                "expected a growing step. Call resume_at(step) after restoring a checkpoint."
            )
        self._last_step = step
        values = scalars(metrics)
        timing = {k: v for k, v in values.items() if k.startswith(WALL_CLOCK_PREFIXES)}
        steady = {k: v for k, v in values.items() if k not in timing}
        for path, part in ((self.metrics_path, steady), (self.timing_path, timing)):
            if part:
                self._stream(path).write(_line({"step": step, **part}))

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Merge into ``logs/summary.json``, written at the next flush."""
        self._summary.update(scalars(metrics))

    def log_hyperparameters(self, hparams: Mapping[str, Any]) -> None:
        """Write ``logs/hparams.json``."""
        self._hparams.update(hparams)
        write_text_atomic(self._path("logs/hparams.json"), _pretty(self._hparams))

    def log_artifact(self, path: str, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Copy the file into ``artifacts/``."""
        target = os.path.join(self._path("artifacts"), name or os.path.basename(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.abspath(path) != os.path.abspath(target):
            shutil.copyfile(path, target)

    def flush(self) -> None:
        """Write buffered lines and the summary to disk and fsync them."""
        for stream in self._streams.values():
            stream.flush()
            os.fsync(stream.fileno())
        if self._summary:
            write_text_atomic(self._path("logs/summary.json"), _pretty(self._summary))

    def resume_at(self, step: int) -> None:
        """Drop lines at or after ``step`` and any torn last line; the files are replaced atomically."""
        self._close()
        for path in (self.metrics_path, self.timing_path):
            if os.path.exists(path):
                kept = [record for record in _read_lines(path) if record["step"] < step]
                write_text_atomic(path, "".join(_line(record) for record in kept))
        self._last_step = min(self._last_step, step - 1)

    def finish(self) -> None:
        """Flush and close."""
        self.flush()
        self._close()

    def _path(self, name: str) -> str:
        return os.path.join(self.output_path, name)

    def _stream(self, path: str) -> IO[str]:
        if path not in self._streams:
            self._streams[path] = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by finish
        return self._streams[path]

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


@TrackerConfig.register_subclass("json_file")
@dataclass(frozen=True)
class JsonFileConfig(TrackerConfig):
    """Local files.

    Attributes:
        output_path: Folder; None puts it under the trainer's log folder.
    """

    output_path: str | None = None

    def init(self, run_id: str, log_dir: str) -> JsonFileTracker:
        """Open the files under ``output_path`` or ``<log_dir>/<run_id>``."""
        return JsonFileTracker(self.output_path or os.path.join(log_dir, run_id))


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True) + "\n"


def _pretty(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True, indent=2, default=str) + "\n"


def _read_lines(path: str) -> list[dict[str, Any]]:
    """Parse every whole line; a torn last line (no newline, or not JSON) is dropped."""
    with open(path, encoding="utf-8") as stream:
        lines = stream.read().split("\n")[:-1]
    records = []
    for index, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if index != len(lines) - 1:
                raise TrackerError(f"cannot read metrics: path={path}, line={index + 1}; expected JSON.") from error
    return records


def _read_object(path: str) -> dict[str, Any]:
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def _last_step(path: str) -> int:
    records = _read_lines(path) if os.path.exists(path) else []
    return records[-1]["step"] if records else -1
