"""Graphs of steps: order, cycles and collisions, without recursion and without I/O.

A chain of thousands of steps must not meet Python's recursion limit, and a stack of diamonds must not be walked once
per path, so every walk here is a loop over an explicit stack that visits each node once.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from marin.errors import StepCollisionError, StepCycleError
from marin.execution.step_spec import StepSpec

Node = TypeVar("Node")


def post_order[Node](
    roots: Iterable[Node], children: Callable[[Node], Sequence[Node]], label: Callable[[Node], str]
) -> list[Node]:
    """Every node reachable from the roots, each once, inputs before what reads them.

    Args:
        roots: Where to start, in order.
        children: Inputs of a node.
        label: Name of a node, for errors.
    Returns:
        Nodes in dependency order; ties keep the order of roots and of inputs.
    Raises:
        StepCycleError: Names the circle.
    Example:
        >>> post_order(["c"], lambda n: {"c": ["a", "b"], "b": ["a"]}.get(n, []), str)
        ['a', 'b', 'c']
    """
    order: list[Node] = []
    done: set[Node] = set()
    active: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = []
    for root in roots:
        stack.append((root, False))
        while stack:
            node, leaving = stack.pop()
            if leaving:
                del active[node]
                done.add(node)
                order.append(node)
                continue
            if node in done:
                continue
            if node in active:
                names = [label(item) for item in active]
                raise StepCycleError([*names[names.index(label(node)) :], label(node)])
            active[node] = None
            stack.append((node, True))
            for child in reversed(children(node)):
                if child in active:
                    names = [label(item) for item in active]
                    raise StepCycleError([*names[names.index(label(child)) :], label(child)])
                if child not in done:
                    stack.append((child, False))
    return order


@dataclass(frozen=True)
class StepGraph:
    """A checked graph: unique output paths, no circles.

    Attributes:
        steps: Each step once, inputs first.
        terminals: The steps that were asked for, without repeats.
        paths: Output path of each step under ``prefix``.
        deps: Inputs of each step, after equal steps were merged.
    """

    steps: tuple[StepSpec, ...]
    terminals: tuple[StepSpec, ...]
    paths: dict[StepSpec, str]
    deps: dict[StepSpec, tuple[StepSpec, ...]]
    canonical: dict[StepSpec, StepSpec]

    def dependents(self) -> dict[StepSpec, list[StepSpec]]:
        """Steps that read each step."""
        found: dict[StepSpec, list[StepSpec]] = {step: [] for step in self.steps}
        for step, inputs in self.deps.items():
            for dep in inputs:
                found[dep].append(step)
        return found


def plan_graph(terminals: Sequence[StepSpec], prefix: str) -> StepGraph:
    """Order the steps that the terminals need and check that they do not get in one another's way.

    Two handles with one address and one recipe are the same step and are merged; two recipes at one address are
    refused.

    Args:
        terminals: Steps that are wanted.
        prefix: Root of the store.
    Raises:
        StepCycleError: The steps depend on one another in a circle.
        StepCollisionError: Two recipes at one address, or one step's output inside another's.
    """
    # A hand-made StepSpec may sit in its own deps list, so identities are computed only after the walk proved it
    # acyclic.
    ordered = post_order(terminals, lambda step: tuple(step.deps), lambda step: step.name)
    by_path: dict[str, StepSpec] = {}
    canonical: dict[StepSpec, StepSpec] = {}
    paths: dict[StepSpec, str] = {}
    for step in ordered:
        path = step.path(prefix)
        first = by_path.setdefault(path, step)
        if first is not step and first.fingerprint != step.fingerprint:
            raise StepCollisionError(step.label, first.label, path, "two different recipes share one output path")
        canonical[step] = first
        paths[first] = path
    _check_nesting(by_path)
    unique = tuple(by_path.values())
    deps = {step: tuple(dict.fromkeys(canonical[dep] for dep in step.deps)) for step in unique}
    wanted = tuple(dict.fromkeys(canonical[step] for step in terminals))
    return StepGraph(unique, wanted, paths, deps, canonical)


def _check_nesting(by_path: dict[str, StepSpec]) -> None:
    for path, step in by_path.items():
        parent = os.path.dirname(path)
        while parent and parent != os.path.dirname(parent):
            if other := by_path.get(parent):
                raise StepCollisionError(step.label, other.label, path, "one step's output lies inside another's")
            parent = os.path.dirname(parent)
