"""What a person wants to know of a run: how far it is, how fast, how uneven, and afterwards where the time went."""

import logging
import statistics
import sys
from dataclasses import dataclass, field

from rigging.progress import Progress, format_quantity
from rigging.timing import Clock

from zephyr._task import TaskReport, TaskSpec
from zephyr.coordinator import Skewed, WorkerBeat
from zephyr.counters import CounterValues
from zephyr.physical import Plan, Stage

logger = logging.getLogger(__name__)

_FLOWS = ("records_in", "records_out", "bytes_in", "bytes_out")


@dataclass
class StageStats:
    """What one stage did.

    Args:
        index: Its number.
        name: Its operations.
        tasks: Number of tasks.
        proven: Tasks that were proven complete and not run.
        seconds: From its start to its end, or to now.
        attempts: Attempts handed out.
        dropped: Attempts that failed, were lost, or came second.
        durations: Seconds of each accepted attempt, by shard.
        flows: records_in, records_out, bytes_in, bytes_out of accepted attempts.
        shuffle_bytes: Bytes of the runs that went to later stages.
        items_out: Items collected for later stages or as results.
        quarantined: Records put aside.
        cut: Pieces of each shuffle target that was far larger than its siblings, by shard; 1 where it was one key.
        largest_target: Bytes of the largest of these over the median target.
        piece_seconds: Seconds of each accepted piece.
    """

    index: int
    name: str
    tasks: int
    proven: int = 0
    seconds: float = 0.0
    attempts: int = 0
    dropped: int = 0
    durations: dict[int, float] = field(default_factory=dict)
    flows: dict[str, float] = field(default_factory=dict)
    shuffle_bytes: int = 0
    items_out: int = 0
    quarantined: int = 0
    cut: dict[int, int] = field(default_factory=dict)
    largest_target: float = 0.0
    piece_seconds: list[float] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Tasks that are complete."""
        return self.proven + len(self.durations)

    @property
    def skew(self) -> float:
        """Longest task over the median one; 1.0 while there is none.

        Example:
            >>> StageStats(0, "map", 3, durations={0: 1.0, 1: 1.0, 2: 4.0}).skew
            4.0
        """
        if not self.durations:
            return 1.0
        times = [*self.durations.values(), *self.piece_seconds]
        return max(times) / max(statistics.median(times), 1e-9)

    def summary(self) -> dict[str, object]:
        """Plain values, for JSON."""
        times = [*self.durations.values(), *self.piece_seconds]
        return {
            "index": self.index,
            "name": self.name,
            "tasks": self.tasks,
            "proven": self.proven,
            "seconds": round(self.seconds, 3),
            "attempts": self.attempts,
            "dropped": self.dropped,
            "task_seconds_median": round(statistics.median(times), 4) if times else None,
            "task_seconds_max": round(max(times), 4) if times else None,
            "skew": round(self.skew, 2),
            "targets_cut": {str(shard): pieces for shard, pieces in self.cut.items() if pieces > 1},
            "targets_of_one_key": [shard for shard, pieces in self.cut.items() if pieces == 1],
            "largest_target": round(self.largest_target, 2),
            **{name: int(self.flows.get(name, 0)) for name in _FLOWS},
            "shuffle_bytes": self.shuffle_bytes,
            "items_out": self.items_out,
            "quarantined": self.quarantined,
        }


class Monitor:
    """Keeps the books of a run and shows its progress.

    Args:
        plan: What runs.
        name: Shown first.
        clock: Source of monotonic time.
    """

    def __init__(self, plan: Plan, *, name: str, clock: Clock) -> None:
        self.plan = plan
        self.name = name
        self.clock = clock
        self.stages: list[StageStats] = []
        self.progress: Progress | None = None
        self._began = 0.0
        self._assigned: dict[str, float] = {}
        self._live: dict[str, CounterValues] = {}

    def began(self, stage: Stage, done: int, now: float) -> None:
        """A stage starts; the one before is over."""
        self.ended(now)
        self._began = now
        self._live.clear()
        self.stages.append(StageStats(stage.index, stage.name, stage.num_tasks, proven=done))
        title = f"{self.name + ': ' if self.name else ''}{stage.name}"
        self.progress = Progress(stage.num_tasks, unit="shards", description=title, clock=self.clock)
        self.progress.__enter__()
        if done:
            self.progress.advance(done)

    def skewed(self, found: Skewed) -> None:
        """A target of the present stage is far larger than its siblings."""
        stage = self.stages[-1]
        stage.cut[found.shard] = found.pieces
        times = found.size_bytes / max(found.median_bytes, 1)
        stage.largest_target = max(stage.largest_target, times)
        size = f"{format_quantity(found.size_bytes)}B, {times:.1f} times the median target"
        if found.pieces == 1:
            message = "stage %r, shard %d is skewed: %s, nearly all of it one key; one worker reduces it"
            logger.warning(message, stage.name, found.shard, size)
        else:
            largest = f"{format_quantity(found.largest_bytes)}B"
            message = "stage %r, shard %d is cut into %d pieces: %s; largest piece about %s"
            logger.info(message, stage.name, found.shard, found.pieces, size, largest)

    def assigned(self, worker: str, spec: TaskSpec, now: float) -> None:
        """An attempt goes to a worker."""
        self._assigned[spec.label] = now
        self.stages[-1].attempts += 1

    def live(self, beat: WorkerBeat) -> None:
        """An attempt that is running has counted this much."""
        if beat.label in self._assigned:
            self._live[beat.label] = beat.live

    def dropped(self, spec: TaskSpec) -> None:
        """An attempt failed, was lost, or came second."""
        self._live.pop(spec.label, None)
        self._assigned.pop(spec.label, None)
        for stage in self.stages:
            stage.dropped += stage.index == spec.stage

    def accepted(self, spec: TaskSpec, report: TaskReport, now: float) -> None:
        """An attempt won."""
        self._live.pop(spec.label, None)
        stage = self.stages[-1]
        seconds = now - self._assigned.pop(spec.label, now)
        if spec.piece:
            stage.piece_seconds.append(seconds)
        else:
            stage.durations[spec.shard] = seconds
        for name in _FLOWS:
            if (seen := report.counters.get(f"zephyr/{name}")) is not None:
                stage.flows[name] = stage.flows.get(name, 0) + seen.value
        stage.shuffle_bytes += sum(part.size_bytes for run in report.runs for part in run.parts)
        stage.items_out += 0 if spec.piece else sum(ref.num_rows for ref in report.blocks)
        stage.quarantined += report.quarantined
        stage.seconds = now - self._began
        if self.progress is not None:
            self.progress.advance(0 if spec.piece else 1, **self.fields(now))

    def show(self, now: float) -> None:
        """Redraw, with what running attempts have done so far."""
        if self.progress is not None:
            self.stages[-1].seconds = now - self._began
            self.progress.advance(0, **self.fields(now))

    def fields(self, now: float) -> dict[str, object]:
        """Rates of the present stage: records and input bytes per second, skew, and what went wrong."""
        stage = self.stages[-1]
        elapsed = max(now - self._began, 1e-9)
        out: dict[str, object] = {}
        for name, unit in (("records_in", "rec/s"), ("bytes_in", "B/s")):
            live = sum(values[f"zephyr/{name}"][1] for values in self._live.values() if f"zephyr/{name}" in values)
            if total := stage.flows.get(name, 0) + live:
                if name == "records_in":
                    out["records"] = format_quantity(total)
                out[unit] = format_quantity(total / elapsed)
        if len(stage.durations) <= 1000 and stage.skew >= 2:
            out["skew"] = f"{stage.skew:.1f}"
        if stage.cut:
            if pieces := sum(number for number in stage.cut.values() if number > 1):
                out["cut"] = f"{len(stage.piece_seconds)}/{pieces} pieces"
            if whole := [shard for shard, number in stage.cut.items() if number == 1]:
                out["one_key"] = f"shard {whole[0]}" + (f" and {len(whole) - 1} more" if len(whole) > 1 else "")
            out["largest_target"] = f"{stage.largest_target:.1f}x"
        if stage.dropped:
            out["dropped"] = stage.dropped
        if stage.quarantined:
            out["quarantined"] = stage.quarantined
        return out

    def ended(self, now: float) -> None:
        """The present stage is over, well or not."""
        if self.progress is not None:
            self.stages[-1].seconds = now - self._began
            self.progress.__exit__(*sys.exc_info())
            self.progress = None
