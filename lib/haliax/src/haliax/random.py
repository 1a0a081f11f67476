"""Random arrays by name: ``f(key, shape, ...)`` for every sampler of `jax.random`.

Bits equal those of `jax.random` with the positional shape. Parameters may be scalars or NamedArrays that broadcast to
the shape.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jrandom
from jax.sharding import PartitionSpec

from haliax._array.named import intern_names, position, raw, require_named, wrap
from haliax._array.sharding import (
    auto_sharded,
    current_thread_local_mapping,
    pspec_for_names,
    resolve_mesh,
    validate_spec,
)
from haliax._axis.types import Axis, AxisSelection, AxisSelector, AxisSpec, names_of, sized_axes
from haliax._ops.broadcast import aligned_to, broadcast_to
from haliax.core import NamedArray
from haliax.errors import AxisSpecError, format_axes


def _draw(operation: str, sampler: Callable[..., Any], shape: AxisSpec, *parameters: Any) -> NamedArray:
    axes = sized_axes(shape, operation)
    names = intern_names(tuple(a.name for a in axes))
    positional = [
        aligned_to(broadcast_to(p, axes), names) if isinstance(p, NamedArray) and p.names else raw(p)
        for p in parameters
    ]
    return auto_sharded(wrap(sampler(tuple(a.size for a in axes), *positional), names))


def uniform(key: Any, shape: AxisSpec, dtype: Any = float, minval: Any = 0.0, maxval: Any = 1.0) -> NamedArray:
    """Uniform on [minval, maxval).

    Example:
        >>> import jax
        >>> uniform(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("uniform", lambda s, lo, hi: jrandom.uniform(key, s, dtype, lo, hi), shape, minval, maxval)


def normal(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Standard normal.

    Example:
        >>> import jax
        >>> normal(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("normal", lambda s: jrandom.normal(key, s, dtype), shape)


def truncated_normal(
    key: Any, shape: AxisSpec, lower: Any, upper: Any, dtype: Any = float, *, per_shard: bool = False
) -> NamedArray:
    """Standard normal restricted to [lower, upper].

    Args:
        key: Random key.
        shape: Axes of the result.
        lower: Lower bound, in standard deviations.
        upper: Upper bound.
        dtype: Element type.
        per_shard: Let each device draw its own block, with a key of its own, instead of sharding one large draw: what
            huge parameters need, at the price that the numbers depend on mesh and axis mapping. Both must be in force,
            and the bounds scalars; without a mapped axis it makes no difference.

    Raises:
        ShardingError: ``per_shard`` and an axis does not divide over its devices.
        AxisSpecError: ``per_shard`` with NamedArrays as bounds.

    Example:
        >>> import jax
        >>> x = truncated_normal(jax.random.key(0), Axis("x", 100), -2, 2)
        >>> bool((abs(x) <= 2).all())
        True
    """
    if per_shard:
        return _truncated_normal_per_shard(key, sized_axes(shape, "truncated_normal"), lower, upper, dtype)
    return _draw(
        "truncated_normal", lambda s, lo, hi: jrandom.truncated_normal(key, lo, hi, s, dtype), shape, lower, upper
    )


def _truncated_normal_per_shard(key: Any, axes: tuple[Axis, ...], lower: Any, upper: Any, dtype: Any) -> NamedArray:
    if any(isinstance(bound, NamedArray) and bound.names for bound in (lower, upper)):
        raise AxisSpecError("truncated_normal: per_shard with a NamedArray as bound; expected scalars.")
    lower, upper = raw(lower), raw(upper)
    names, mesh = tuple(a.name for a in axes), resolve_mesh()
    spec = pspec_for_names(names, current_thread_local_mapping())
    mapped = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    if mesh is None or mesh.empty or not any(mapped):
        return truncated_normal(key, axes, lower, upper, dtype)
    sizes = tuple(a.size for a in axes)
    validate_spec(names, sizes, spec, mesh)
    local = tuple(n // math.prod(mesh.shape[p] for p in ps) for n, ps in zip(sizes, mapped, strict=True))

    def block(key: Any) -> Any:
        for physical in (p for ps in mapped for p in ps):
            key = jrandom.fold_in(key, jax.lax.axis_index(physical))
        return jrandom.truncated_normal(key, lower, upper, local, dtype)

    draw = jax.shard_map(block, mesh=mesh, in_specs=PartitionSpec(), out_specs=spec, check_vma=False)
    return wrap(draw(key), intern_names(names))


def bernoulli(key: Any, shape: AxisSpec, p: Any = 0.5) -> NamedArray:
    """True with probability ``p``.

    Example:
        >>> import jax
        >>> bernoulli(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 0.3).shape
        {'a': 2, 'b': 3}
    """
    return _draw("bernoulli", lambda s, q: jrandom.bernoulli(key, q, s), shape, p)


def randint(key: Any, shape: AxisSpec, minval: Any, maxval: Any, dtype: Any = int) -> NamedArray:
    """Integers in [minval, maxval).

    Example:
        >>> import jax
        >>> x = randint(jax.random.key(0), Axis("x", 5), 0, 10)
        >>> bool(((x >= 0) & (x < 10)).all())
        True
    """
    return _draw("randint", lambda s, lo, hi: jrandom.randint(key, s, lo, hi, dtype), shape, minval, maxval)


def poisson(key: Any, shape: AxisSpec, lam: Any, dtype: Any = int) -> NamedArray:
    """Poisson with rate ``lam``.

    Example:
        >>> import jax
        >>> poisson(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 4.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("poisson", lambda s, rate: jrandom.poisson(key, rate, s, dtype), shape, lam)


def exponential(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Exponential with rate 1.

    Example:
        >>> import jax
        >>> exponential(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("exponential", lambda s: jrandom.exponential(key, s, dtype), shape)


def gamma(key: Any, shape: AxisSpec, a: Any, dtype: Any = float) -> NamedArray:
    """Gamma with shape ``a`` and scale 1.

    Example:
        >>> import jax
        >>> gamma(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 2.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("gamma", lambda s, x: jrandom.gamma(key, x, s, dtype), shape, a)


def loggamma(key: Any, shape: AxisSpec, a: Any, dtype: Any = float) -> NamedArray:
    """Logarithm of a gamma variate.

    Example:
        >>> import jax
        >>> loggamma(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 2.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("loggamma", lambda s, x: jrandom.loggamma(key, x, s, dtype), shape, a)


def beta(key: Any, shape: AxisSpec, a: Any, b: Any, dtype: Any = float) -> NamedArray:
    """Beta with parameters ``a`` and ``b``.

    Example:
        >>> import jax
        >>> beta(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 2.0, 3.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("beta", lambda s, x, y: jrandom.beta(key, x, y, s, dtype), shape, a, b)


def laplace(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Laplace with location 0 and scale 1.

    Example:
        >>> import jax
        >>> laplace(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("laplace", lambda s: jrandom.laplace(key, s, dtype), shape)


def cauchy(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Cauchy with location 0 and scale 1.

    Example:
        >>> import jax
        >>> cauchy(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("cauchy", lambda s: jrandom.cauchy(key, s, dtype), shape)


def logistic(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Logistic with location 0 and scale 1.

    Example:
        >>> import jax
        >>> logistic(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("logistic", lambda s: jrandom.logistic(key, s, dtype), shape)


def gumbel(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Gumbel with location 0 and scale 1.

    Example:
        >>> import jax
        >>> gumbel(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("gumbel", lambda s: jrandom.gumbel(key, s, dtype), shape)


def rademacher(key: Any, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """-1 or 1 with equal probability.

    Example:
        >>> import jax
        >>> rademacher(jax.random.key(0), Axis("x", 2)).shape
        {'x': 2}
    """
    return _draw("rademacher", lambda s: jrandom.rademacher(key, s, dtype), shape)


def t(key: Any, shape: AxisSpec, df: Any, dtype: Any = float) -> NamedArray:
    """Student's t with ``df`` degrees of freedom.

    Example:
        >>> import jax
        >>> t(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 3.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("t", lambda s, d: jrandom.t(key, d, s, dtype), shape, df)


def weibull_min(key: Any, shape: AxisSpec, scale: Any, concentration: Any, dtype: Any = float) -> NamedArray:
    """Weibull (minimum) with scale and concentration.

    Example:
        >>> import jax
        >>> weibull_min(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 1.0, 2.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("weibull_min", lambda s, x, c: jrandom.weibull_min(key, x, c, s, dtype), shape, scale, concentration)


def pareto(key: Any, shape: AxisSpec, b: Any, dtype: Any = float) -> NamedArray:
    """Pareto with shape ``b``.

    Example:
        >>> import jax
        >>> pareto(jax.random.key(0), (Axis("a", 2), Axis("b", 3)), 2.0).shape
        {'a': 2, 'b': 3}
    """
    return _draw("pareto", lambda s, x: jrandom.pareto(key, x, s, dtype), shape, b)


def ball(key: Any, shape: AxisSpec, D: Axis, p: float = 2.0, dtype: Any = float) -> NamedArray:
    """Uniform in the unit p-ball of dimension ``D``, which is the last axis of the result.

    Example:
        >>> import jax
        >>> ball(jax.random.key(0), Axis("x", 2), Axis("d", 3)).shape
        {'x': 2, 'd': 3}
    """
    axes = sized_axes(shape, "ball")
    x = jrandom.ball(key, D.size, p, tuple(a.size for a in axes), dtype)
    return auto_sharded(NamedArray(x, (*axes, D)))


def choice(
    key: Any, shape: AxisSpec, a: NamedArray, axis: AxisSelector, replace: bool = True, p: Any = None
) -> NamedArray:
    """Pick elements of ``a`` along ``axis``: the result has the axes ``shape`` and the other axes of ``a``.

    Args:
        key: Random key.
        shape: How many to draw.
        a: Array to draw from.
        axis: Axis to draw along.
        replace: Draw with replacement.
        p: Probabilities along ``axis`` (1-D).

    Raises:
        AxisSpecError: ``p`` is not along ``axis``.

    Example:
        >>> import jax
        >>> import haliax as hax
        >>> choice(jax.random.key(0), Axis("pick", 2), hax.arange({"item": 5, "c": 3}), "item").shape
        {'pick': 2, 'c': 3}
    """
    require_named("choice", a)
    axes = sized_axes(shape, "choice")
    index = position("choice", a, axis)
    if isinstance(p, NamedArray) and p.names != (a.names[index],):
        raise AxisSpecError(f"choice: p has axes {format_axes(p.names)}; expected just {a.names[index]!r}.")
    rest = a.names[:index] + a.names[index + 1 :]
    x = jnp.moveaxis(a.array, index, 0)
    out = jrandom.choice(key, x, tuple(s.size for s in axes), replace, raw(p), axis=0)
    return auto_sharded(NamedArray(out, (*(s.name for s in axes), *rest)))


def categorical(key: Any, logits: NamedArray, axis: AxisSelector, shape: AxisSpec | None = None) -> NamedArray:
    """Draw indices along ``axis`` with probabilities softmax(logits).

    Args:
        key: Random key.
        logits: Unnormalised log-probabilities.
        axis: Axis of the categories.
        shape: Axes of the result; default those of ``logits`` without ``axis``.

    Raises:
        AxisSpecError: ``axis`` is in ``shape``, or ``shape`` lacks an axis of ``logits``.

    Example:
        >>> import jax
        >>> import haliax as hax
        >>> categorical(jax.random.key(0), hax.zeros({"batch": 2, "vocab": 5}), "vocab").shape
        {'batch': 2}
    """
    require_named("categorical", logits, "logits")
    index = position("categorical", logits, axis)
    name = logits.names[index]
    rest = tuple(a for a in logits.axes if a.name != name)
    axes = rest if shape is None else sized_axes(shape, "categorical")
    if name in names_of(axes):
        raise AxisSpecError(f"categorical: axis {name!r} is in shape {format_axes(names_of(axes))}; it is drawn over.")
    category = logits.axes[index]
    wide = broadcast_to(logits, (*axes, category))
    x = jnp.moveaxis(wide.array, wide.names.index(name), -1)
    order = tuple(n for n in wide.names if n != name)
    out = NamedArray(jrandom.categorical(key, x, axis=-1), order)
    return auto_sharded(out.rearrange(tuple(a.name for a in axes)))


def permutation(key: Any, x: NamedArray, axis: AxisSelector, independent: bool = False) -> NamedArray:
    """Shuffle along ``axis``; ``independent`` shuffles every row in its own way.

    Example:
        >>> import jax
        >>> import haliax as hax
        >>> permutation(jax.random.key(0), hax.arange(Axis("x", 4)), "x").sum().item()
        6
    """
    require_named("permutation", x)
    return wrap(jrandom.permutation(key, x.array, position("permutation", x, axis), independent=independent), x.names)


def multivariate_normal(
    key: Any, shape: AxisSpec, mean: NamedArray, cov: Any, axis: AxisSelector, dtype: Any = None
) -> NamedArray:
    """Normal with mean along ``axis`` and a raw covariance matrix; ``axis`` comes last in the result.

    Example:
        >>> import jax
        >>> import haliax as hax
        >>> mean, cov = hax.zeros(Axis("d", 2)), jax.numpy.eye(2)
        >>> multivariate_normal(jax.random.key(0), Axis("x", 3), mean, cov, "d").shape
        {'x': 3, 'd': 2}
    """
    axes = sized_axes(shape, "multivariate_normal")
    x = jrandom.multivariate_normal(key, mean.array, raw(cov), tuple(a.size for a in axes), dtype)
    return auto_sharded(NamedArray(x, (*axes, *names_of(axis))))


def generate_sharded(fn: Callable[..., NamedArray], axis: AxisSelection | None = None) -> Callable[..., NamedArray]:
    """Return ``fn`` whose result is placed by the axis mapping in force; samplers here do that by themselves."""

    def wrapped(*args: Any, **kwargs: Any) -> NamedArray:
        return auto_sharded(fn(*args, **kwargs))

    return wrapped
