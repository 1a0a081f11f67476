"""Looking for trouble: defects in modules, and where the pieces of arrays live."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from haliax._array.checks import PromotionWarning, warn_on_promotion
from haliax._axis.types import AxisSpec, sized_axes
from haliax._ops.loops import is_arrayish, is_named
from haliax.core import NamedArray
from haliax.errors import ModuleProblems, format_axes

__all__ = [
    "ModuleProblems",
    "PromotionWarning",
    "describe_sharding",
    "diagnose_common_issues",
    "explain_shardings",
    "visualize_named_sharding",
    "visualize_shardings",
    "warn_on_promotion",
]


def diagnose_common_issues(module: Any) -> None:
    """Check a module for arrays that occur twice and for arrays in static fields.

    Raises:
        ModuleProblems: Something was found; the message gives the paths.

    Example:
        >>> import haliax as hax
        >>> shared = hax.ones(hax.Axis("a", 2))
        >>> try:
        ...     diagnose_common_issues({"x": shared, "y": shared})
        ... except ModuleProblems as problems:
        ...     print(problems.reused_arrays)
        ...
        (('float32{a: 2}', ["['x']", "['y']"]),)
    """
    by_identity: dict[int, tuple[str, list[str]]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(module, is_leaf=is_named)[0]:
        array = leaf.array if isinstance(leaf, NamedArray) else leaf
        if isinstance(array, jax.Array):
            what = _describe(leaf)
            by_identity.setdefault(id(array), (what, []))[1].append(jax.tree_util.keystr(path))
    reused = [(what, paths) for what, paths in by_identity.values() if len(paths) > 1]
    static = _static_arrays(module, "")
    if reused or static:
        raise ModuleProblems(reused, static)


def _describe(leaf: Any) -> str:
    if isinstance(leaf, NamedArray):
        return f"{leaf.dtype}{format_axes(leaf.names, leaf.array.shape)}"
    return f"{leaf.dtype}{tuple(leaf.shape)}"


def _static_arrays(node: Any, path: str) -> list[str]:
    out: list[str] = []
    if isinstance(node, eqx.Module):
        for f in dataclasses.fields(node):
            value = getattr(node, f.name, None)
            here = f"{path}.{f.name}"
            if f.metadata.get("static", False):
                leaves = jax.tree_util.tree_leaves(value)
                if any(is_arrayish(leaf) and not isinstance(leaf, np.generic) for leaf in leaves):
                    out.append(here)
            else:
                out.extend(_static_arrays(value, here))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            out.extend(_static_arrays(value, f"{path}[{i}]"))
    elif isinstance(node, dict):
        for key, value in node.items():
            out.extend(_static_arrays(value, f"{path}[{key!r}]"))
    return out


def describe_sharding(axes: AxisSpec, sharding: Any) -> str:
    """Return one line such as ``batch(8)->data embed(4)->unsharded``.

    Example:
        >>> from jax.sharding import PartitionSpec
        >>> sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data"))
        >>> import haliax as hax
        >>> describe_sharding(hax.make_axes(batch=8, embed=4), sharding)
        'batch(8)->data embed(4)->unsharded'
    """
    spec = list(getattr(sharding, "spec", ()) or ())
    parts = []
    for i, axis in enumerate(sized_axes(axes)):
        entry = spec[i] if i < len(spec) else None
        parts.append(
            f"{axis}->{'unsharded' if entry is None else entry if isinstance(entry, str) else '+'.join(entry)}"
        )
    return " ".join(parts)


def visualize_named_sharding(axes: AxisSpec, sharding: Any) -> None:
    """Print which mesh axis each named axis is spread over."""
    print(describe_sharding(axes, sharding))


def visualize_shardings(tree: Any) -> None:
    """Print the sharding of every array of a tree, one line per path."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_named)[0]:
        array = leaf.array if isinstance(leaf, NamedArray) else leaf
        if not hasattr(array, "sharding"):
            continue
        name = jax.tree_util.keystr(path) or "array"
        if isinstance(leaf, NamedArray):
            print(f"{name}: {describe_sharding(leaf.axes, array.sharding)}")
        else:
            print(f"{name}: {tuple(array.shape)} {array.sharding}")


def explain_shardings(tree: Any, mapping: Any, mesh: Any) -> str:
    """Return a table of the NamedArrays of a tree: sizes, placement, bytes per device, padding needed.

    Args:
        tree: Any pytree; arrays may be ShapeDtypeStructs.
        mapping: Axis name to mesh axis.
        mesh: Mesh.

    Example:
        >>> import haliax as hax
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> print(explain_shardings({"w": hax.ones({"a": 2, "b": 3})}, {"a": "data"}, mesh))
        ['w']  a(2)->data b(3)->-  24 B/device
        total 24 B/device
    """
    lines = []
    total = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_named)[0]:
        if not isinstance(leaf, NamedArray) or leaf.array is None:
            continue
        count, notes = int(np.dtype(leaf.dtype).itemsize), []
        for axis in leaf.axes:
            entry = mapping.get(axis.name)
            devices = 1
            for physical in (entry,) if isinstance(entry, str) else entry or ():
                devices *= mesh.shape[physical]
            count *= -(-axis.size // devices)
            if axis.size % devices:
                notes.append(f"{axis} does not divide over {devices}: pad to {-(-axis.size // devices) * devices}")
        total += count
        placed = " ".join(f"{a}->{mapping.get(a.name) or '-'}" for a in leaf.axes)
        note = "; ".join(notes)
        lines.append(f"{jax.tree_util.keystr(path)}  {placed}  {count:,} B/device  {note}".rstrip())
    return "\n".join([*lines, f"total {total:,} B/device"])
