r"""Bits per byte: how well a model predicts text, whatever its tokenizer.

Every document is tokenised, cut into windows, and each token but the first of the document is predicted once from what
stands before it in its window. The summed surprise in nats over ``ln 2`` times the document's UTF-8 bytes is the
number of bits the model needs per byte; tokenizers that make longer tokens get no credit for it.

Windows overlap by ``stride`` tokens of context whose loss was already counted. A document's first token is predicted
from
the beginning-of-sequence token when the tokenizer has one, else it costs ``log2 V`` bits, so that nothing is free.

References:
    Gao et al., The Pile, arXiv:2101.00027, section 3.1.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray

from levanter.errors import EvaluationError
from levanter.layers.attention_mask import POSITION, AttentionMask
from levanter.models.lm_model import LmHeadModel
from levanter.models.loss import next_token_nll


class Encoder(Protocol):
    """The part of a tokenizer that measuring needs."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ...


@dataclass(frozen=True)
class BitsPerByte:
    """A measurement.

    Attributes:
        bpb: Bits per UTF-8 byte.
        nats: Summed negative log-likelihood.
        tokens: Tokens predicted.
        bytes: UTF-8 bytes of the documents.
        documents: Documents.
    """

    bpb: float
    nats: float
    tokens: int
    bytes: int
    documents: int


@dataclass(frozen=True)
class Window:
    """A piece of a document.

    Attributes:
        ids: Token ids, at most ``seq_len``.
        first: Index in ``ids`` of the first token whose loss counts (predicted from the ones before it).
    """

    ids: np.ndarray
    first: int


class _Batch(eqx.Module):
    tokens: NamedArray
    attn_mask: AttentionMask
    loss_weight: NamedArray


def bits_per_byte(
    model: LmHeadModel,
    documents: Iterable[str],
    tokenizer: Encoder,
    *,
    seq_len: int,
    batch_size: int,
    stride: int | None = None,
) -> BitsPerByte:
    """Measure a model on documents.

    Args:
        model: Any language model.
        documents: Texts; empty ones are skipped.
        tokenizer: Its tokenizer.
        seq_len: Tokens in a window.
        batch_size: Windows at a time.
        stride: Context tokens repeated from the previous window; None means ``seq_len // 4``.

    Returns:
        Totals and bits per byte.

    Raises:
        EvaluationError: no documents, a window too small, or an id outside the vocabulary.
    """
    stride = seq_len // 4 if stride is None else stride
    if seq_len < 2 or not 0 < stride + 1 < seq_len or batch_size < 1:
        raise EvaluationError(
            f"cannot measure: seq_len={seq_len}, stride={stride}, batch_size={batch_size}; expected "
            "seq_len >= 2, 0 <= stride < seq_len - 1, batch_size >= 1."
        )
    bos = getattr(tokenizer, "bos_token_id", None)
    totals = {"bytes": 0, "documents": 0, "tokens": 0, "free": 0}

    def windows() -> Iterator[Window]:
        for text in documents:
            size = len(text.encode("utf-8"))
            if not size:
                continue
            ids = list(tokenizer.encode(text))
            totals["bytes"] += size
            totals["documents"] += 1
            totals["tokens"] += len(ids)
            if bos is None:
                totals["free"] += 1
            yield from cut_windows(ids, seq_len, stride, bos)

    nats = _score(model, windows(), seq_len, batch_size)
    if not totals["documents"]:
        raise EvaluationError("cannot measure: documents=0; expected at least one text that is not empty.")
    nats += totals["free"] * math.log(model.Vocab.size)
    bpb = nats / (math.log(2) * totals["bytes"])
    return BitsPerByte(bpb, nats, totals["tokens"], totals["bytes"], totals["documents"])


def cut_windows(ids: list[int], seq_len: int, stride: int, bos: int | None) -> Iterator[Window]:
    """Cut a document so that each token's loss counts in exactly one window.

    Example:
        >>> [(w.ids.tolist(), w.first) for w in cut_windows([1, 2, 3, 4, 5], 4, 1, bos=0)]
        [([0, 1, 2, 3], 1), ([2, 3, 4, 5], 2)]
    """
    whole = np.asarray(([] if bos is None else [bos]) + ids, np.int32)
    start, counted = 0, 1
    while counted < len(whole):
        end = min(start + seq_len, len(whole))
        yield Window(whole[start:end], counted - start)
        counted = end
        start = end - stride - 1


def _score(model: LmHeadModel, windows: Iterator[Window], seq_len: int, batch_size: int) -> float:
    """Summed loss over windows, in nats, added up in float64."""
    vocab = model.Vocab.size
    total = 0.0
    run = _compiled_nll()
    batch: list[Window] = []

    def flush() -> float:
        tokens = np.zeros((batch_size, seq_len), np.int32)
        counts = np.zeros((batch_size, seq_len), bool)
        for row, window in enumerate(batch):
            tokens[row, : len(window.ids)] = window.ids
            counts[row, window.first - 1 : len(window.ids) - 1] = True
        losses = np.asarray(jax.device_get(run(model, tokens)), np.float64)
        return float(np.sum(losses[counts]))

    for window in windows:
        if window.ids.size and (window.ids.max() >= vocab or window.ids.min() < 0):
            raise EvaluationError(
                f"cannot measure: id={int(window.ids.max())}, vocab_size={vocab}; expected ids inside the vocabulary. "
                "Use the tokenizer the model was trained with."
            )
        batch.append(window)
        if len(batch) == batch_size:
            total += flush()
            batch = []
    if batch:
        total += flush()
    return total


def _compiled_nll() -> Any:
    @eqx.filter_jit
    def nll(model: LmHeadModel, tokens: jax.Array) -> jax.Array:
        batch, length = tokens.shape
        axes = (Axis("batch", batch), Axis(POSITION, length))
        ids = NamedArray(jnp.asarray(tokens), axes)
        weight = NamedArray(jnp.ones(tokens.shape, jnp.float32), axes)
        return next_token_nll(model, _Batch(ids, AttentionMask.causal(), weight)).array

    return nll
