"""The unit a language model trains on: tokens, what each prediction weighs, and who may attend to whom.

``loss_weight[i]`` weighs the prediction of token ``i + 1``. It is 0 at the last position, where the next token is
:data:`ignored <causal_loss_weight>`, and at the last position of a document: the first token of the next one cannot be
predicted from a document that has nothing to do with it.
"""

from typing import Any

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
import numpy as np

from levanter.layers.attention_mask import AttentionMask


class LmExample(eqx.Module):
    """One sequence, or a batch of them when a batch axis was added.

    Attributes:
        tokens: Token ids, int32, axes ``{Pos}``.
        loss_weight: Weight of the prediction made at each position, float32, axes ``{Pos}``.
        attn_mask: Causal, with segment ids when documents must not see each other.
    """

    tokens: hax.NamedArray
    loss_weight: hax.NamedArray
    attn_mask: AttentionMask | None = None

    @staticmethod
    def causal(
        tokens: hax.NamedArray,
        *,
        loss_weight: hax.NamedArray | None = None,
        ignore_id: int | None = None,
        eos_id: int | None = None,
        segment_ids: hax.NamedArray | None = None,
        train_on_document_starts: bool = False,
    ) -> "LmExample":
        """An example for next-token prediction.

        Args:
            tokens: Token ids; the position axis is the last one.
            loss_weight: Multiplied with the weights that follow from the rules; all ones when ``None``.
            ignore_id: Predictions of this token weigh nothing.
            eos_id: Token that ends a document: tokens after it do not attend to tokens up to it.
            segment_ids: Document of every token, for packed sequences; wins over ``eos_id``.
            train_on_document_starts: Keep the weight of predicting the first token of the next document.
        Example:
            >>> Pos = hax.Axis("position", 4)
            >>> example = LmExample.causal(hax.named(np.array([5, 6, 0, 7]), (Pos,)), eos_id=0)
            >>> example.loss_weight.array.tolist()
            [1.0, 1.0, 0.0, 0.0]
        """
        array = tokens.array
        segments = None if segment_ids is None else segment_ids.array
        if segments is None and eos_id is not None:
            segments = segments_from_eos(array, eos_id)
        weight = causal_loss_weight(
            array,
            ignore_id=ignore_id,
            segments=None if train_on_document_starts else segments,
            loss_weight=None if loss_weight is None else loss_weight.array,
        )
        return build_example(array, weight, segments, tokens.axes)


def build_example(tokens: Any, loss_weight: Any, segments: Any, axes: tuple[hax.Axis, ...]) -> LmExample:
    """Name the arrays of an example.

    Args:
        tokens: Ids, shape of ``axes``.
        loss_weight: float32, shape of ``axes``.
        segments: int32 of the shape of ``axes``, or ``None`` for one document.
        axes: The last one is the position axis.
    """
    mask = AttentionMask.causal()
    if segments is not None:
        mask = mask.with_segment_ids(hax.NamedArray(segments, axes))
    return LmExample(hax.NamedArray(tokens, axes), hax.NamedArray(loss_weight, axes), mask)


def segments_from_eos(tokens: Any, eos_id: int) -> Any:
    """Number the documents of concatenated text: a document begins after every ``eos_id``.

    Args:
        tokens: Ids, position last. Numpy in gives numpy out, JAX in gives JAX out.
    Returns:
        int32 of the same shape; the first position is always document 0.
    Example:
        >>> segments_from_eos(np.array([9, 0, 8, 0, 0, 7]), 0).tolist()
        [0, 0, 1, 1, 2, 3]
    """
    if isinstance(tokens, np.ndarray):
        segments = np.zeros(tokens.shape, dtype=np.int32)
        np.cumsum(tokens[..., :-1] == eos_id, axis=-1, dtype=np.int32, out=segments[..., 1:])
        return segments
    ends = (tokens == eos_id).astype(jnp.int32)
    before = jnp.concatenate([jnp.zeros_like(ends[..., :1]), ends[..., :-1]], axis=-1)
    return jnp.cumsum(before, axis=-1, dtype=jnp.int32)


def causal_loss_weight(
    tokens: Any, *, ignore_id: int | None = None, segments: Any = None, loss_weight: Any = None
) -> Any:
    """Weights of next-token predictions, float32.

    Args:
        tokens: Ids, position last.
        ignore_id: Predictions of this token weigh nothing.
        segments: Predictions across a change of segment weigh nothing.
        loss_weight: Multiplied in.
    Returns:
        float32 of the shape of ``tokens``; the last position is 0.
    """
    in_numpy = isinstance(tokens, np.ndarray)
    predicts: Any = np.ones(tokens.shape, bool) if in_numpy else jnp.ones(tokens.shape, bool)
    counted: Any = True
    if ignore_id is not None:
        counted = tokens[..., 1:] != ignore_id
    if segments is not None:
        counted = counted & (segments[..., 1:] == segments[..., :-1])
    if in_numpy:
        predicts[..., :-1] = counted
        predicts[..., -1] = False
    else:
        predicts = predicts.at[..., :-1].set(counted).at[..., -1].set(False)
    weight = predicts.astype(np.float32)
    return weight if loss_weight is None else (weight * loss_weight).astype(np.float32)
