"""Speed, utilisation and where the time went, under the names dashboards expect.

    throughput/{examples_per_second, tokens_per_second, duration, total_tokens, total_gflops, gflops_per_second, mfu,
                hook_time, loading_time}
    goodput/{step, compile, checkpoint, restore, hook, loading, other}_seconds, goodput/productive_fraction

No second is booked twice: the goodput seconds add up to the time since the trainer was made. Productive are those in
which a step ran; ``other`` is start-up and whatever nobody booked.

``mfu`` is a percentage of the hardware's peak; on CPU the peak is a calibrated matrix product.
"""

import statistics
from collections import defaultdict, deque
from dataclasses import dataclass, field

from rigging.timing import Clock, SystemClock

from levanter.flops import device_peak_flops

WINDOW = 500


@dataclass(frozen=True)
class WorkPerExample:
    """What one example costs.

    Attributes:
        tokens: Tokens in it, or None when examples are not text.
        flops: Training FLOPs, or None when unknown.
        convention: How attention was counted.
    """

    tokens: int | None = None
    flops: float | None = None
    convention: str = "full"


@dataclass
class ThroughputMeter:
    """Turns durations into metrics.

    Attributes:
        work: Cost of an example.
        num_devices: Devices in the run.
        total_examples: Examples seen, resumed ones included.
        clock: Source of time.
    """

    work: WorkPerExample
    num_devices: int = 1
    total_examples: int = 0
    clock: Clock = field(default_factory=SystemClock)
    _mfus: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _peak: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    def spend(self, what: str, seconds: float) -> None:
        """Book wall-clock seconds under ``goodput/<what>_seconds``."""
        self._spent[what] += max(0.0, seconds)

    def goodput(self) -> dict[str, float]:
        """Where the time since the start went, in seconds, and the fraction that was productive.

        Example:
            >>> from rigging.timing import ManualClock
            >>> clock = ManualClock()
            >>> meter = ThroughputMeter(WorkPerExample(), clock=clock)
            >>> clock.advance(10.0)
            >>> meter.spend("step", 6.0)
            >>> meter.goodput()
            {'goodput/step_seconds': 6.0, 'goodput/other_seconds': 4.0, 'goodput/productive_fraction': 0.6}
        """
        total = self.clock.monotonic() - self._began
        result = {f"goodput/{name}_seconds": seconds for name, seconds in sorted(self._spent.items())}
        result["goodput/other_seconds"] = max(0.0, total - sum(self._spent.values()))
        result["goodput/productive_fraction"] = self._spent["step"] / total if total > 0 else 0.0
        return result

    def step(self, examples: int, duration: float, *, loading: float, hooks: float) -> dict[str, float]:
        """Metrics of one step."""
        self.total_examples += examples
        duration = max(duration, 1e-9)
        metrics = {
            "throughput/duration": duration,
            "throughput/loading_time": loading,
            "throughput/hook_time": hooks,
            "throughput/examples_per_second": examples / duration,
        }
        if self.work.tokens:
            metrics["throughput/tokens_per_second"] = examples * self.work.tokens / duration
            metrics["throughput/total_tokens"] = self.total_examples * self.work.tokens
        if self.work.flops:
            rate = examples * self.work.flops / duration
            metrics["throughput/total_gflops"] = self.total_examples * self.work.flops / 1e9
            metrics["throughput/gflops_per_second"] = rate / 1e9
            peak = self.peak[1] * self.num_devices
            if peak:
                metrics["throughput/mfu"] = 100.0 * rate / peak
                self._mfus.append(metrics["throughput/mfu"])
        return metrics

    @property
    def peak(self) -> tuple[str, float]:
        """Device kind and peak FLOP/s of one device."""
        if self._peak is None:
            self._peak = device_peak_flops()
        return self._peak

    def describe(self) -> dict[str, float | str]:
        """What is known before the first step."""
        if not self.work.flops:
            return {}
        kind, peak = self.peak
        return {
            "throughput/device_kind": kind,
            "throughput/theoretical_flops_per_device": peak,
            "throughput/theoretical_flops": peak * self.num_devices,
            "throughput/flops_per_example": self.work.flops,
            "throughput/flops_convention": self.work.convention,
        }

    def summary(self) -> dict[str, float]:
        """Percentiles of utilisation over the last 500 steps, and the time budget."""
        result = self.goodput()
        if self._mfus:
            ordered = sorted(self._mfus)

            def at(fraction: float) -> float:
                return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]

            result |= {
                "throughput/p10_mfu": at(0.1),
                "throughput/p50_mfu": at(0.5),
                "throughput/p90_mfu": at(0.9),
                "throughput/mean_mfu": statistics.fmean(ordered),
                "throughput/stddev_mfu": statistics.pstdev(ordered),
                "throughput/mfu_sample_count": float(len(ordered)),
            }
        return result
