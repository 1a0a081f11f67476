"""Is everything that a step reads and writes where the step will run? Asked before anything is submitted.

Reading a data set across regions is slow and billed by the byte, and nobody notices until the bill. So a run is
refused when a step that *will run* touches a bucket that is known to lie in another region than the machine (or the
regions that its resources ask for). Steps that are served are not looked at. What is not known is not refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rigging.filesystem.prefix import marin_region
from rigging.filesystem.regions import regions_match
from rigging.filesystem.transfer_budget import bucket_region
from rigging.resources import ANY_REGION

from marin.execution.graph import StepGraph
from marin.execution.step_spec import StepSpec


@dataclass(frozen=True)
class RegionConflict:
    """One path that lies in another region than the step that touches it.

    Attributes:
        step: ``name@version``.
        path: The path.
        region: Where it lies.
        wanted: Regions in which the step may run.
    """

    step: str
    path: str
    region: str
    wanted: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON object for events."""
        return {"step": self.step, "path": self.path, "region": self.region, "wanted": list(self.wanted)}

    def line(self) -> str:
        """One line for people."""
        return f"{self.step} runs in {' or '.join(self.wanted)} and touches {self.path}, which lies in {self.region}"


def region_conflicts(graph: StepGraph, steps: Iterable[StepSpec]) -> list[RegionConflict]:
    """Paths that lie in other regions than the steps that touch them.

    Args:
        graph: The checked graph.
        steps: Those that will run.
    Returns:
        One entry a step and path.
    """
    here = marin_region()
    conflicts = []
    for spec in steps:
        wanted = _regions(spec) or ((here,) if here is not None else ())
        paths = [graph.paths[spec], *(graph.paths[dep] for dep in graph.deps[spec])]
        if spec.source is not None:
            paths.append(spec.source)
        conflicts += [
            RegionConflict(spec.label, path, region, tuple(wanted))
            for path in dict.fromkeys(paths)
            if wanted and (region := bucket_region(path)) is not None and not _fits(region, wanted)
        ]
    return conflicts


def _regions(spec: StepSpec) -> Sequence[str]:
    resources = getattr(spec.body, "resources", None) or spec.resources
    regions = tuple(resources.regions or ()) if resources is not None else ()
    return () if ANY_REGION in regions else regions


def _fits(region: str, wanted: Sequence[str]) -> bool:
    return any(regions_match(region, other) for other in wanted)
