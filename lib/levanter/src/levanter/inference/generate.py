r"""Sampling from a decoder, one token at a time, with a key/value cache.

The prompt runs once through the model (prefill) and leaves the keys and values of every layer in a cache; each further
token runs alone against it. Both are compiled once per cache size, whatever the prompt's length, because the prompt is
padded and the cache's unused tail is masked.

Shape suffixes: L layers, B batch, G key/value heads, S cache positions, D head size.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray

from levanter.errors import EvaluationError
from levanter.layers.attention_mask import KEY_POSITION, POSITION, AttentionMask
from levanter.models.block import Block
from levanter.models.decoder import DecoderLMHeadModel
from levanter.models.lm_model import LmHeadModel

Cache = tuple[jax.Array, jax.Array]
PAD_TO = 64


def generate(
    model: LmHeadModel,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    key: jax.Array | None = None,
    stop_ids: Sequence[int] = (),
) -> list[int]:
    """Continue a prompt.

    Args:
        model: A decoder.
        prompt_ids: At least one id.
        max_new_tokens: Tokens to add, at most.
        temperature: Divides the logits; 0 takes the most likely token (the lowest id among equals).
        top_k: Sample among the k most likely only.
        key: PRNG key; required above temperature 0.
        stop_ids: End after producing one of these (it is kept).

    Returns:
        The new ids, without the prompt. Equal arguments give equal ids.

    Raises:
        EvaluationError: an empty prompt, ids outside the vocabulary, more tokens than the model's context, no key, or a
            model that is no decoder.
    """
    model = _check(model, prompt_ids, max_new_tokens, temperature, key)
    vocab = model.Vocab.size
    length = len(prompt_ids)
    padded = -(-length // PAD_TO) * PAD_TO
    size = -(-(length + max_new_tokens) // PAD_TO) * PAD_TO
    ids = np.zeros((1, padded), np.int32)
    ids[0, :length] = prompt_ids
    size = max(size, padded)
    logits, cache = _prefill(model, jnp.asarray(ids), jnp.int32(length), size)
    k = min(top_k or vocab, vocab)
    key = jax.random.PRNGKey(0) if key is None else key
    produced: list[int] = []
    for index in range(max_new_tokens):
        token = _sample(logits, jax.random.fold_in(key, index), jnp.float32(temperature), k)
        produced.append(int(token))
        if produced[-1] in stop_ids or index == max_new_tokens - 1:
            break
        logits, cache = _decode(model, token, jnp.int32(length + index), cache)
    return produced


@functools.partial(jax.jit, static_argnums=(3,))
def _prefill(model: DecoderLMHeadModel, ids: jax.Array, length: jax.Array, size: int) -> tuple[jax.Array, Cache]:
    """Run the prompt; return the logits after its last token ``[V]`` and the cache ``[L, B, G, S, D]``."""
    xs, inputs = model.transformer.layer_inputs(jnp.arange(ids.shape[1]))
    pad = ((0, 0), (0, 0), (0, size - ids.shape[1]), (0, 0))

    def layer(block: Block, x: jax.Array, item: Any) -> tuple[jax.Array, Cache]:
        given = inputs(item, AttentionMask.causal())
        q, k, v = block.self_attn.project(block.before_attention(x), given)
        attended = block.self_attn.output(block.self_attn.attend(q, k, v, given.mask))
        return block.after_attention(x, attended)[0], (jnp.pad(k, pad), jnp.pad(v, pad))

    x, cache = model.transformer.layers.scan(layer, model.embeddings(ids), xs)
    last = jax.lax.dynamic_slice_in_dim(x, length - 1, 1, axis=1)
    return model.logits(model.transformer.norm(last)[0, 0]).astype(jnp.float32), cache


@functools.partial(jax.jit, donate_argnums=(3,))
def _decode(model: DecoderLMHeadModel, token: jax.Array, position: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """Run one token at ``position``; return its logits ``[V]`` and the cache with its key and value added."""
    xs, inputs = model.transformer.layer_inputs(position[None])
    size = cache[0].shape[3]

    def layer(block: Block, x: jax.Array, item: Any) -> tuple[jax.Array, Cache]:
        own, keys, values = item
        given = inputs(own, None)
        q, k, v = block.self_attn.project(block.before_attention(x), given)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k, position, axis=2)
        values = jax.lax.dynamic_update_slice_in_dim(values, v, position, axis=2)
        attended = block.self_attn.attend(q, keys, values, _cache_mask(given.mask, size, position))
        return block.after_attention(x, block.self_attn.output(attended))[0], (keys, values)

    embedded = model.embeddings(token[None, None], position[None])
    x, cache = model.transformer.layers.scan(layer, embedded, (xs, *cache))
    return model.logits(model.transformer.norm(x)[0, 0]).astype(jnp.float32), cache


@functools.partial(jax.jit, static_argnums=(3,))
def _sample(logits: jax.Array, key: jax.Array, temperature: jax.Array, top_k: int) -> jax.Array:
    values, ids = jax.lax.top_k(logits, top_k)
    drawn = jax.random.categorical(key, values / jnp.maximum(temperature, 1e-6))
    return ids[jnp.where(temperature == 0, 0, drawn)]


def _cache_mask(mask: AttentionMask | None, size: int, position: jax.Array) -> AttentionMask:
    """What the single query at ``position`` sees of the cache; ``mask`` holds the layer's window."""
    distance = position - jnp.arange(size)
    window = None if mask is None else mask.lookback
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    return AttentionMask.explicit(NamedArray(seen[None], (Axis(POSITION, 1), Axis(KEY_POSITION, size))))


def _check(
    model: LmHeadModel, prompt: Sequence[int], new: int, temperature: float, key: jax.Array | None
) -> DecoderLMHeadModel:
    if not isinstance(model, DecoderLMHeadModel):
        raise EvaluationError(
            f"cannot generate: model={type(model).__name__}; expected a decoder with a key/value cache. Call the model "
            "for its logits instead."
        )
    vocab, context = model.Vocab.size, model.config.max_seq_len
    if not prompt or min(prompt) < 0 or max(prompt) >= vocab:
        raise EvaluationError(
            f"cannot generate: prompt has {len(prompt)} ids; expected at least one, each in [0, {vocab})."
        )
    if new < 0 or len(prompt) + new > context:
        raise EvaluationError(
            f"cannot generate: prompt={len(prompt)}, max_new_tokens={new}, context={context}; expected the sum inside "
            "the context. Ask for fewer tokens."
        )
    if temperature < 0 or (temperature > 0 and key is None):
        raise EvaluationError(
            f"cannot generate: temperature={temperature}, key={key}; expected temperature >= 0, and a key above 0."
        )
    return model
