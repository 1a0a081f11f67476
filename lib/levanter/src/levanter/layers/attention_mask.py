"""Attention masks as small symbolic values.

A materialised mask is quadratic in the sequence; the rules behind it are a few numbers. An :class:`AttentionMask` is
the *conjunction* of its rules, and any rectangular block of it can be materialised on demand, which is all a blockwise
kernel ever asks for.

Rules for query position ``i`` and key position ``j``: causal ``j <= i + offset``, lifted for the keys of a prefix
``j < prefix``; sliding window of ``W`` keys, self included, ``0 <= i - j < W``; lookback ``i - j < W``, the window that
says nothing of the future; bidirectional window ``|i - j| <= R``; equal segment ids; and an explicit boolean array.

Invariant: ``(a & b).materialize(...) == a.materialize(...) & b.materialize(...)``.

References:
    Sliding window: Jiang et al., Mistral 7B, arXiv:2310.06825, section 2 (same count as Hugging Face's).
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from haliax import NamedArray

from levanter.errors import MaskError

POSITION = "position"
KEY_POSITION = "key_position"


@jax.tree_util.register_static
class FixedOffset(int):
    """An int that is part of a pytree's structure, so that it stays an int in a compiled program.

    A plain int in an argument of ``jax.jit`` is traced. The mask would then be computed from a run-time value, kernels
    that need to know it is causal could not, and rows of the softmax could not be known to be non-empty.

    Example:
        >>> jax.tree.leaves(FixedOffset(0)), FixedOffset(3) + 1
        ([], 4)
    """


def _fixed(offset: Any) -> Any:
    return FixedOffset(offset) if type(offset) is int else offset


class AttentionMask(eqx.Module):
    """A conjunction of attention rules.

    Attributes:
        is_causal: Keys after the query are hidden.
        causal_offset: Added to the query position in the causal rule; an int, which is part of the compiled program, or
            an int32 scalar array.
        explicit_mask: Boolean NamedArray over a subset of ``{batch, heads, position, key_position}``.
        segment_ids: Integer NamedArrays for queries (axis ``position``) and keys (axis ``position`` or
            ``key_position``); only equal ids attend.
        sliding_window: Number of keys a query sees, itself included; implies causality.
        bidirectional_window: Largest distance between query and key.
        lookback: Keys a query sees backwards, itself included; an int, or an int32 scalar array when layers of one
            scanned stack differ. What a model adds for its own windows.
        prefix: Number of leading keys that the causal rule does not hide; an int, or an int32 array with one entry
            per example.

    Example:
        >>> AttentionMask.causal().with_sliding_window(2).block(0, 3, 0, 3)[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    is_causal: bool = eqx.field(static=True, default=False)
    causal_offset: Any = eqx.field(converter=_fixed, default=0)
    explicit_mask: NamedArray | None = None
    segment_ids: tuple[NamedArray, NamedArray] | None = None
    sliding_window: int | None = eqx.field(static=True, default=None)
    bidirectional_window: int | None = eqx.field(static=True, default=None)
    lookback: Any = None
    prefix: Any = None

    def __check_init__(self) -> None:
        for name, least in (("sliding_window", 1), ("bidirectional_window", 0), ("lookback", 1), ("prefix", 0)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise MaskError(
                    f"bad window: {name}={value}; expected a number of keys >= {least}, or None for no such rule."
                )
        if self.prefix is not None and not self.is_causal:
            raise MaskError("bad mask: prefix is set and is_causal=False; expected a causal mask. Use prefix_lm().")

    @staticmethod
    def causal(*, offset: Any = 0, sliding_window: int | None = None) -> "AttentionMask":
        """Hide keys after ``query + offset``."""
        return AttentionMask(is_causal=True, causal_offset=offset, sliding_window=sliding_window)

    @staticmethod
    def prefix_lm(prefix: Any) -> "AttentionMask":
        """Causal, but every query sees the first ``prefix`` keys.

        Args:
            prefix: Length of the prefix: an int, or an int32 array ``[batch]``.

        Example:
            >>> AttentionMask.prefix_lm(2).block(0, 3, 0, 3)[0, 0].astype(int).tolist()
            [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
        """
        return AttentionMask(is_causal=True, prefix=prefix)

    @staticmethod
    def explicit(mask: NamedArray) -> "AttentionMask":
        """Attend where ``mask`` is true."""
        return AttentionMask(explicit_mask=mask)

    def with_segment_ids(self, segment_ids: NamedArray, kv_segment_ids: NamedArray | None = None) -> "AttentionMask":
        """Add the rule that segments do not see each other.

        Raises:
            MaskError: segments are already set.
        """
        if self.segment_ids is not None:
            raise MaskError("cannot combine masks: both have segment ids; expected one set. Merge the ids first.")
        pair = (segment_ids, segment_ids if kv_segment_ids is None else kv_segment_ids)
        return dataclasses.replace(self, segment_ids=pair)

    def with_sliding_window(self, window: int | None) -> "AttentionMask":
        """Add a sliding window; of two windows the smaller counts."""
        return self & AttentionMask(sliding_window=window)

    def with_lookback(self, window: Any) -> "AttentionMask":
        """Add a window that only looks back; of two the smaller counts, None adds nothing."""
        return self & AttentionMask(lookback=window)

    def __and__(self, other: "AttentionMask") -> "AttentionMask":
        """Conjunction of the rules of both.

        Raises:
            MaskError: two sets of segment ids, or two different causal offsets.
        """
        if self.segment_ids is not None and other.segment_ids is not None:
            raise MaskError("cannot combine masks: both have segment ids; expected one set. Merge the ids first.")
        if self.is_causal and other.is_causal and not _same_offset(self.causal_offset, other.causal_offset):
            raise MaskError(
                f"cannot combine masks: causal_offset={self.causal_offset} and {other.causal_offset}; expected one."
            )
        return AttentionMask(
            is_causal=self.is_causal or other.is_causal,
            causal_offset=self.causal_offset if self.is_causal else other.causal_offset,
            explicit_mask=_and_named(self.explicit_mask, other.explicit_mask),
            segment_ids=self.segment_ids if self.segment_ids is not None else other.segment_ids,
            sliding_window=_smaller(self.sliding_window, other.sliding_window),
            bidirectional_window=_smaller(self.bidirectional_window, other.bidirectional_window),
            lookback=_smaller(self.lookback, other.lookback),
            prefix=_common_prefix(self, other),
        )

    def __or__(self, other: "AttentionMask") -> "AttentionMask":
        """Disjunction is not representable without losing causality.

        Raises:
            MaskError: always.
        """
        raise MaskError("cannot take the union of masks; expected a conjunction. Materialise both and use explicit().")

    def block(self, q_start: Any, q_len: int, k_start: Any, k_len: int) -> jax.Array | None:
        """Materialise a block of the mask.

        Args:
            q_start: First query position, int or int32 scalar.
            q_len: Number of queries.
            k_start: First key position.
            k_len: Number of keys.

        Returns:
            Boolean array broadcastable to ``[batch, heads, q_len, k_len]``, or None when everything attends.
        """
        distance = (q_start + jnp.arange(q_len))[:, None] - (k_start + jnp.arange(k_len))[None, :]
        rules: list[jax.Array] = []
        if self.is_causal:
            rules.append(self._causal_block(distance, k_start + jnp.arange(k_len)))
        if self.sliding_window is not None:
            rules.append(((distance >= 0) & (distance < self.sliding_window))[None, None])
        if self.lookback is not None:
            rules.append((distance < self.lookback)[None, None])
        if self.bidirectional_window is not None:
            rules.append((jnp.abs(distance) <= self.bidirectional_window)[None, None])
        if self.segment_ids is not None:
            q = _slice_last(positional_ids(self.segment_ids[0]), q_start, q_len)
            k = _slice_last(positional_ids(self.segment_ids[1]), k_start, k_len)
            rules.append((q[:, :, None] == k[:, None, :])[:, None])
        if self.explicit_mask is not None:
            rules.append(_explicit_block(self.explicit_mask, q_start, q_len, k_start, k_len))
        if not rules:
            return None
        result = rules[0]
        for rule in rules[1:]:
            result = result & rule
        return result

    def check_fits(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Insist that arrays in the mask have the sizes of the attention they are applied to.

        Args:
            batch: Examples.
            heads: Query heads.
            queries: Query positions.
            keys: Key positions.

        Raises:
            MaskError: an axis has another size; the message shows both and the remedy.

        Example:
            >>> AttentionMask.causal().check_fits(1, 1, 4, 4)
        """
        sizes = {POSITION: queries, KEY_POSITION: keys, "heads": heads}
        if self.explicit_mask is not None:
            _check_axes("explicit mask", self.explicit_mask, sizes, batch)
        if self.segment_ids is not None:
            own, other = self.segment_ids
            _check_axes("segment ids of queries", own, {POSITION: queries, KEY_POSITION: queries}, batch)
            _check_axes("segment ids of keys", other, {POSITION: keys, KEY_POSITION: keys}, batch)
        shape = getattr(self.prefix, "shape", ())
        if shape not in ((), (1,), (batch,)):
            raise MaskError(f"mask does not fit: prefix has shape {shape}, batch={batch}; expected one length each.")

    def materialize(self, num_queries: int, num_keys: int) -> jax.Array | None:
        """The whole mask; see :meth:`block`."""
        return self.block(0, num_queries, 0, num_keys)

    def key_range(self, q_start: Any, q_len: int, num_keys: int) -> tuple[Any, Any]:
        """Bounds ``[lo, hi)`` outside which no query of the block sees a key; blockwise kernels skip the rest."""
        lo: Any = 0
        hi: Any = num_keys
        if self.is_causal:
            hi = jnp.minimum(hi, q_start + q_len + self.causal_offset)
        if self.prefix is not None:
            hi = jnp.minimum(jnp.maximum(hi, jnp.max(jnp.asarray(self.prefix))), num_keys)
        if self.lookback is not None:
            lo = jnp.maximum(lo, q_start - self.lookback + 1)
        if self.sliding_window is not None:
            lo = jnp.maximum(lo, q_start - self.sliding_window + 1)
            hi = jnp.minimum(hi, q_start + q_len)
        if self.bidirectional_window is not None:
            lo = jnp.maximum(lo, q_start - self.bidirectional_window)
            hi = jnp.minimum(hi, q_start + q_len + self.bidirectional_window)
        return lo, jnp.maximum(hi, 0)

    def _causal_block(self, distance: jax.Array, keys: jax.Array) -> jax.Array:
        """The causal rule, lifted for the prefix: ``[batch or 1, 1, q, k]``."""
        causal = (distance + self.causal_offset >= 0)[None, None]
        if self.prefix is None:
            return causal
        prefix = jnp.asarray(self.prefix).reshape(-1, 1, 1, 1)
        return causal | (keys[None, None, None, :] < prefix)


def _check_axes(what: str, array: NamedArray, sizes: dict[str, int], batch: int) -> None:
    for axis in array.axes:
        expected = (sizes[axis.name],) if axis.name in sizes else (batch, 1)
        if axis.size not in expected:
            raise MaskError(
                f"mask does not fit: {what} has {axis.name}={axis.size}; expected {axis.name}={expected[0]} as in the "
                "queries and keys. Make the mask for this sequence, or cut both alike."
            )


def _same_offset(left: Any, right: Any) -> bool:
    return left is right or (isinstance(left, int) and isinstance(right, int) and left == right)


def _smaller(left: Any, right: Any) -> Any:
    known = [value for value in (left, right) if value is not None]
    if all(isinstance(value, int) for value in known):
        return min(known) if known else None
    return known[0] if len(known) == 1 else jnp.minimum(*known)


def _common_prefix(left: AttentionMask, right: AttentionMask) -> Any:
    """The prefix that both causal rules leave open; a causal rule without one leaves nothing open."""
    causal = [mask.prefix for mask in (left, right) if mask.is_causal]
    return None if not causal or any(prefix is None for prefix in causal) else _smaller(causal[0], causal[-1])


def _and_named(left: NamedArray | None, right: NamedArray | None) -> NamedArray | None:
    if left is None or right is None:
        return left if right is None else right
    return left & right


def positional_ids(ids: NamedArray) -> jax.Array:
    """``[batch or 1, position]`` from ids with or without a batch axis."""
    array = ids.array
    names = [axis.name for axis in ids.axes]
    position = next((i for i, name in enumerate(names) if name in (POSITION, KEY_POSITION)), None)
    if position is None or array.ndim > 2:
        raise MaskError(f"bad segment ids: axes={names}; expected at most a batch axis and {POSITION!r}.")
    array = jnp.moveaxis(array, position, -1)
    return array if array.ndim == 2 else array[None]


def _explicit_block(mask: NamedArray, q_start: Any, q_len: int, k_start: Any, k_len: int) -> jax.Array:
    names = [axis.name for axis in mask.axes]
    if POSITION not in names or KEY_POSITION not in names or mask.array.ndim > 4:
        raise MaskError(f"bad explicit mask: axes={names}; expected {POSITION!r} and {KEY_POSITION!r} among them.")
    array = jnp.moveaxis(mask.array, (names.index(POSITION), names.index(KEY_POSITION)), (-2, -1))
    others = [name for name in names if name not in (POSITION, KEY_POSITION)]
    if len(others) == 2 and others[0] == "heads":
        array = jnp.swapaxes(array, 0, 1)
    if len(others) == 1:
        array = array[None] if others[0] == "heads" else array[:, None]
    if not others:
        array = array[None, None]
    array = jax.lax.dynamic_slice_in_dim(array, q_start, q_len, axis=2)
    return jax.lax.dynamic_slice_in_dim(array, k_start, k_len, axis=3)


def _slice_last(array: jax.Array, start: Any, length: int) -> jax.Array:
    if isinstance(start, int) and start == 0 and length == array.shape[-1]:
        return array
    return jax.lax.dynamic_slice_in_dim(array, start, length, axis=-1)
