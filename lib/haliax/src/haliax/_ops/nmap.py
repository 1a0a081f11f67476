"""`nmap`: lift any positional function over named axes.

The whole of jnp.linalg, a Pallas kernel or a colleague's function works on positional arrays. `nmap` says which named
axes it means, vectorises it over all others, and names the result.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from haliax._array.named import NamedArray, intern_names, require_named, wrap
from haliax._array.plan import check_same_sizes, permute_to
from haliax._axis.types import names_of, reject_duplicates
from haliax.errors import AxisNotFoundError, AxisSpecError, format_axes


def _terms(spec: Any) -> tuple[str, ...]:
    return tuple(spec.split()) if isinstance(spec, str) else names_of(spec)


def nmap(
    fn: Callable[..., Any], in_axes: str | Sequence[Any], out_axes: Any = (), *, order: Sequence[str] | None = None
) -> Callable[..., Any]:
    """Lift a positional function: give it some axes by position, and vectorise over the rest.

    Args:
        fn: Function of raw arrays, one per argument.
        in_axes: Per argument the axes that ``fn`` sees, in order: ``"row col"`` or a sequence of names. A single str
            serves all arguments.
        out_axes: Names of the dimensions of the result (a list of such for several results).
        order: Order of the vectorised axes in the result; order of appearance unless given.

    Returns:
        A function of NamedArrays. Results have the vectorised axes first.

    Raises:
        AxisNotFoundError: An argument lacks an axis that ``fn`` needs.
        AxisSizeMismatchError: A vectorised axis has two sizes.

    Example:
        >>> import jax.numpy as jnp, haliax as hax
        >>> a = hax.eye(hax.Axis("i", 2), hax.Axis("j", 2)).broadcast_axis(hax.Axis("batch", 3))
        >>> nmap(jnp.linalg.inv, "i j", "j i")(a).shape
        {'batch': 3, 'j': 2, 'i': 2}
    """
    shared = _terms(in_axes) if isinstance(in_axes, str) else None
    per_argument = None if shared is not None else [_terms(t) for t in in_axes]
    several = isinstance(out_axes, list)
    outs = [_terms(o) for o in out_axes] if several else [_terms(out_axes)]

    def lifted(*arrays: NamedArray) -> Any:
        terms = [shared] * len(arrays) if per_argument is None else per_argument
        if len(terms) != len(arrays):
            raise AxisSpecError(f"nmap: {len(arrays)} arguments, but in_axes describes {len(terms)}.")
        batch, raws = _prepare(arrays, terms, order)
        mapped = fn
        for name in reversed(batch):
            dims = [0 if name in a.names else None for a in arrays]
            mapped = jax.vmap(mapped, in_axes=tuple(dims))
        result = mapped(*raws)
        results = list(result) if several else [result]
        if len(results) != len(outs):
            raise AxisSpecError(f"nmap: the function returned {len(results)} results, out_axes names {len(outs)}.")
        named = [_name(x, (*batch, *o)) for x, o in zip(results, outs, strict=True)]
        return tuple(named) if several else named[0]

    return lifted


def _prepare(arrays: Sequence[NamedArray], terms: Sequence[Any], order: Any) -> tuple[tuple[str, ...], list[Any]]:
    batch: list[str] = []
    for i, (a, term) in enumerate(zip(arrays, terms, strict=True)):
        require_named("nmap", a, f"argument {i}")
        missing = [n for n in term if n not in a.names]
        if missing:
            raise AxisNotFoundError(f"nmap (argument {i})", missing, a.axes)
        batch.extend(n for n in a.names if n not in term and n not in batch)
    if order is not None:
        if set(order) != set(batch):
            raise AxisSpecError(f"nmap: order {list(order)}; expected a permutation of {batch}.")
        batch = list(order)
    rests = [
        tuple((n, s) for n, s in zip(a.names, a.array.shape, strict=True) if n not in t)
        for a, t in zip(arrays, terms, strict=True)
    ]
    check_same_sizes(
        "nmap",
        tuple(f"argument {i}" for i in range(len(arrays))),
        tuple((tuple(n for n, _ in r), tuple(s for _, s in r)) for r in rests),
    )
    raws = [
        permute_to(a, (*(n for n in batch if n in a.names and n not in t), *t))
        for a, t in zip(arrays, terms, strict=True)
    ]
    return tuple(batch), raws


def _name(x: Any, names: tuple[str, ...]) -> NamedArray:
    reject_duplicates("nmap", names, names)
    if x.ndim != len(names):
        raise AxisSpecError(f"nmap: the result has {x.ndim} dimensions, but {format_axes(names)} were named.")
    return wrap(x, intern_names(names))


def untag(x: NamedArray, *names: str) -> Any:
    """Return the raw array of ``x`` with its axes in the order ``names`` (all of them).

    Raises:
        AxisSpecError: The names are no permutation of the axes.

    Example:
        >>> import haliax as hax
        >>> untag(hax.ones({"a": 2, "b": 3}), "b", "a").shape
        (3, 2)
    """
    require_named("untag", x, "x")
    if set(names) != set(x.names) or len(names) != x.ndim:
        raise AxisSpecError(f"untag: {list(names)}; expected a permutation of {format_axes(x.names)}.")
    return permute_to(x, names)
