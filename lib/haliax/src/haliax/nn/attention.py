"""Attention over named axes, and the masks and biases that go with it.

Masks are boolean NamedArrays, True where attention is allowed; they need only the axes they depend on.
"""

import math
from typing import Any

import jax.numpy as jnp
import jax.random as jrandom

from haliax._array.named import NamedArray, intern_names, require_named, wrap
from haliax._axis.types import Axis, AxisSelection, AxisSelector, axis_size, names_of
from haliax._ops.creation import arange
from haliax._ops.dot import dot
from haliax._ops.loops import vmap
from haliax._ops.select import where
from haliax.errors import AxisCollisionError
from haliax.nn.normalization import softmax

_MASK_VALUE = -1e9


def dot_product_attention_weights(
    Key: AxisSelection,
    KPos: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    mask: NamedArray | None = None,
    bias: NamedArray | None = None,
    attention_dtype: Any = None,
    precision: Any = None,
    scaling_factor: float | None = None,
) -> NamedArray:
    """Return softmax over ``KPos`` of ``query . key / sqrt(size(Key))``.

    Args:
        Key: Axis of the head's vectors, contracted.
        KPos: Axis of the keys' positions.
        query: Queries, with ``Key``.
        key: Keys, with ``Key`` and ``KPos``.
        mask: True where attention is allowed.
        bias: Added to the scores before the mask.
        attention_dtype: Element type for scores and softmax; the result has the query's dtype.
        precision: As in `jax.lax.dot_general`.
        scaling_factor: Factor on the scores, instead of ``1 / sqrt(size(Key))``.

    Returns:
        Weights that sum to 1 over ``KPos``.

    Example:
        >>> import haliax as hax
        >>> K, D = hax.Axis("k", 3), hax.Axis("d", 4)
        >>> weights = dot_product_attention_weights(D, K, hax.ones({"q": 2, "d": 4}), hax.ones((K, D)))
        >>> weights.sum("k").tolist()
        [1.0, 1.0]

    References:
        Vaswani et al., arXiv:1706.03762, section 3.2.1.
    """
    require_named("dot_product_attention_weights", query, "query")
    dtype = query.dtype
    scale = (
        1 / math.sqrt(axis_size(query.resolve_axis(tuple(names_of(Key))))) if scaling_factor is None else scaling_factor
    )
    query = query * scale
    if attention_dtype is not None:
        query, key = query.astype(attention_dtype), key.astype(attention_dtype)
    scores = dot(query, key, axis=Key, precision=precision, strict=True)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = where(mask, scores, _MASK_VALUE)
    return softmax(scores, axis=KPos).astype(dtype)


def dot_product_attention(
    KPos: AxisSelection,
    Key: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    mask: NamedArray | None = None,
    bias: NamedArray | None = None,
    attention_dtype: Any = None,
    precision: Any = None,
    scaling_factor: float | None = None,
) -> NamedArray:
    """Return the values averaged over ``KPos`` with the weights of `dot_product_attention_weights`.

    Args:
        KPos: Axis of the keys' positions, absent from ``query``.
        Key: Axis of the head's vectors.
        query: Queries, with ``Key``.
        key: Keys, with ``Key`` and ``KPos``.
        value: Values, with ``KPos``.
        mask: True where attention is allowed.
        bias: Added to the scores before the mask.
        attention_dtype: Element type for scores and softmax.
        precision: As in `jax.lax.dot_general`.
        scaling_factor: Factor on the scores, instead of ``1 / sqrt(size(Key))``.

    Raises:
        AxisCollisionError: ``KPos`` is an axis of ``query`` (rename it in key, value and mask).

    Example:
        >>> import haliax as hax
        >>> q, kv = hax.ones({"q": 2, "d": 4}), hax.ones({"k": 3, "d": 4})
        >>> dot_product_attention("k", "d", q, kv, kv).shape
        {'q': 2, 'd': 4}

    References:
        Vaswani et al., arXiv:1706.03762, section 3.2.1.
    """
    require_named("dot_product_attention", query, "query")
    clash = [n for n in names_of(KPos) if n in query.names]
    if clash:
        raise AxisCollisionError("dot_product_attention: KPos must not be an axis of the query", clash, query.axes)
    weights = dot_product_attention_weights(
        Key,
        KPos,
        query,
        key,
        mask=mask,
        bias=bias,
        attention_dtype=attention_dtype,
        precision=precision,
        scaling_factor=scaling_factor,
    )
    return dot(weights, value, axis=KPos, strict=True)


def mask_to_bias(mask: NamedArray, mask_value: float = _MASK_VALUE) -> NamedArray:
    """Return a bias that is 0 where the mask is True and ``mask_value`` elsewhere.

    Example:
        >>> import haliax as hax
        >>> mask_to_bias(hax.named([True, False], "k")).tolist()
        [0.0, -1000000000.0]
    """
    return where(mask, 0.0, mask_value)


def combine_masks_and(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Return where both masks allow; None allows everything.

    Example:
        >>> import haliax as hax
        >>> a, b = hax.named([True, False], "k"), hax.named([True, True], "k")
        >>> combine_masks_and(a, b).tolist(), combine_masks_and(None, b).tolist()
        ([True, False], [True, True])
    """
    if mask1 is None or mask2 is None:
        return mask2 if mask1 is None else mask1
    return mask1 & mask2.broadcast_axis(mask1.axes)


def combine_masks_or(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Return where either mask allows; None is no mask, and the other decides.

    Example:
        >>> import haliax as hax
        >>> a, b = hax.named([True, False], "k"), hax.named([False, False], "k")
        >>> combine_masks_or(a, b).tolist()
        [True, False]
    """
    if mask1 is None or mask2 is None:
        return mask2 if mask1 is None else mask1
    return mask1 | mask2.broadcast_axis(mask1.axes)


def causal_mask(QPos: Axis, KPos: Axis, q_start: Any = 0, k_start: Any = 0) -> NamedArray:
    """Return a mask that allows keys at or before the query.

    Args:
        QPos: Axis of the queries' positions.
        KPos: Axis of the keys' positions.
        q_start: Absolute position of the first query; a NamedArray adds its axes in front.
        k_start: Likewise for keys.

    Raises:
        AxisCollisionError: The two axes have one name.

    Example:
        >>> causal_mask(Axis("q", 2), Axis("k", 2)).tolist()
        [[True, False], [True, True]]
    """
    for start, other, is_query in ((q_start, k_start, True), (k_start, q_start, False)):
        if isinstance(start, NamedArray) and start.names:

            def one(s: Any, other: Any = other, is_query: bool = is_query) -> NamedArray:
                return causal_mask(QPos, KPos, s, other) if is_query else causal_mask(QPos, KPos, other, s)

            return vmap(one, start.axes)(start)
    queries, keys = arange(QPos, start=q_start), arange(KPos, start=k_start)
    if QPos.name == KPos.name:
        raise AxisCollisionError("causal_mask: QPos and KPos need different names", [KPos.name], (QPos, KPos))
    return wrap(queries.array[:, None] >= keys.array, intern_names((QPos.name, KPos.name)))


def prefix_lm_mask(QSeqLen: Axis, KSeqLen: Axis, prefix_len: int, q_start: int = 0, k_start: int = 0) -> NamedArray:
    """Return a causal mask in which everything may also attend to the first ``prefix_len`` positions.

    Example:
        >>> import haliax as hax
        >>> prefix_lm_mask(hax.Axis("q", 2), hax.Axis("k", 3), 2).tolist()
        [[True, True, False], [True, True, False]]

    References:
        Raffel et al., T5, arXiv:1910.10683, section 3.2.1.
    """
    prefix = arange(KSeqLen, start=k_start) < prefix_len
    return causal_mask(QSeqLen, KSeqLen, q_start, k_start) | prefix


def forgetful_causal_mask(KPos: Axis, mask_prob: float, sample_prob: bool = True, *, key: Any) -> NamedArray:
    """Return a random mask over keys that hides each with some probability; the first key is never hidden.

    Args:
        KPos: Axis of the keys' positions.
        mask_prob: Probability of hiding; with ``sample_prob`` its upper bound.
        sample_prob: Draw the probability uniformly from [0, mask_prob).
        key: Random key.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> forgetful_causal_mask(hax.Axis("k", 8), 0.0, sample_prob=False, key=jax.random.key(0)).all().item()
        True

    References:
        Liu et al., Forgetful causal masking, arXiv:2210.13432.
    """
    key_prob, key_mask = jrandom.split(key)
    probability = jrandom.uniform(key_prob, (), minval=0.0, maxval=mask_prob) if sample_prob else mask_prob
    keep = jrandom.bernoulli(key_mask, 1 - probability, (KPos.size,))
    return wrap(keep.at[0].set(True) if KPos.size else keep, (KPos.name,))


def _alibi_slopes(heads: int) -> list[float]:
    def powers(n: int) -> list[float]:
        first = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [first ** (i + 1) for i in range(n)]

    if math.log2(heads).is_integer():
        return powers(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return powers(closest) + powers(2 * closest)[0::2][: heads - closest]


def alibi_attention_bias(Heads: Axis, KPos: AxisSelector, bias_max: float = 8, dtype: Any = jnp.float32) -> NamedArray:
    """Return a bias that falls linearly with distance: axes (Heads, KPos), slopes as in Hugging Face's BLOOM.

    Args:
        Heads: Axis of the heads.
        KPos: Axis of the keys' positions.
        bias_max: Exponent of the steepest slope; 8 is the paper's.
        dtype: Element type.

    Raises:
        TypeError: ``KPos`` has no size.

    Example:
        >>> import haliax as hax
        >>> alibi_attention_bias(hax.Axis("heads", 4), hax.Axis("k", 3)).shape
        {'heads': 4, 'k': 3}

    References:
        Press, Smith and Lewis, arXiv:2108.12409, section 3.
    """
    slopes = jnp.asarray(_alibi_slopes(Heads.size), jnp.float32) ** (bias_max / 8)
    distance = arange(KPos) if isinstance(KPos, Axis) else None
    if distance is None:
        raise TypeError(f"alibi_attention_bias: KPos={KPos!r}; expected a sized Axis.")
    out = slopes[:, None] * distance.array[None, :].astype(jnp.float32)
    return wrap(out.astype(dtype), (Heads.name, distance.names[0]))
