r"""Linear layer, softmax and cross-entropy in one, without ever holding the logits of a whole batch.

The logits are the largest array of a small model's training step and are used once. Walking over *rows* (tokens) in
chunks, each chunk's logits exist only while its loss and its gradients are computed: in the forward pass of a
differentiated call, ``dx`` and ``dW`` are formed at once and scaled by the cotangent later. That is three matrix
products instead of the four a rematerialised loss needs, and the peak is ``chunk * V`` instead of ``N * V``.

For row ``n`` with label ``y``: ``lse = log sum_v exp z_v``; ``loss = w (lse - z_y + lambda lse^2)``;
``dz = w ((1 + 2 lambda lse) softmax(z) - onehot(y))``, times ``1 - (z/c)^2`` under a soft cap ``c``.

Shape suffixes: N rows, E embed, V vocabulary.

References:
    z-loss: Chowdhery et al., PaLM, arXiv:2204.02311, section 5.
    Chunked loss with gradients in the forward pass: Hsu et al., Liger Kernel, arXiv:2410.10989, section 3.2.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

CHUNK_LOGITS_BYTES = 4 << 20


class CrossEntropySpec(NamedTuple):
    """Static settings.

    Attributes:
        vocab_first: The head is ``[V, E]`` (tied embedding) instead of ``[E, V]``.
        logsumexp_weight: z-loss weight per squared nat.
        soft_cap: ``cap * tanh(z / cap)`` on the logits when set.
        chunk: Rows at a time; None keeps a chunk's float32 logits near 4 MiB.
    """

    vocab_first: bool = False
    logsumexp_weight: float = 0.0
    soft_cap: float | None = None
    chunk: int | None = None


def cross_entropy_sum(
    x: jax.Array, head: jax.Array, labels: jax.Array, weight: jax.Array, spec: CrossEntropySpec
) -> tuple[jax.Array, jax.Array]:
    """Weighted sum of the loss over rows, differentiable in ``x`` and ``head``.

    Args:
        x: Activations ``[N, E]``.
        head: ``[E, V]``, or ``[V, E]`` with ``vocab_first``.
        labels: Int32 ``[N]`` in ``[0, V)``.
        weight: Float32 ``[N]``; rows of weight 0 count for nothing.
        spec: Static settings.

    Returns:
        ``(total, nll)``: the weighted sum with the z-loss, and without it; float32 scalars in nats. ``nll`` carries no
        gradient.

    Example:
        >>> x, head, labels = jnp.zeros((2, 3)), jnp.zeros((3, 4)), jnp.array([0, 1])
        >>> total, _ = cross_entropy_sum(x, head, labels, jnp.ones(2), CrossEntropySpec())
        >>> round(float(total) / 2, 4)
        1.3863
    """
    return _loss_sum(x, head, labels, weight, spec)


def token_losses(
    x: jax.Array, head: jax.Array, labels: jax.Array, spec: CrossEntropySpec
) -> tuple[jax.Array, jax.Array]:
    """Loss of each row, without weights.

    Args:
        x: Activations ``[N, E]``.
        head: As in :func:`cross_entropy_sum`.
        labels: Int32 ``[N]``.
        spec: Static settings.

    Returns:
        ``(loss, lse)``, float32 ``[N]``, in nats; ``loss`` includes the z-loss. Differentiable; the backward pass
        recomputes one chunk of logits at a time.
    """
    xs, ys, _, rows = _chunks(x, labels, jnp.ones(labels.shape, jnp.float32), _chunk_rows(x, head, spec))

    @jax.checkpoint
    def one(args: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        z = _logits(args[0], head, spec)
        lse = jax.nn.logsumexp(z, axis=-1)
        picked = jnp.take_along_axis(z, args[1][:, None], axis=-1)[:, 0]
        return lse - picked + spec.logsumexp_weight * jnp.square(lse), lse

    loss, lse = jax.lax.map(one, (xs, ys))
    return loss.reshape(-1)[:rows], lse.reshape(-1)[:rows]


def reference_cross_entropy(
    x: jax.Array, head: jax.Array, labels: jax.Array, weight: jax.Array, spec: CrossEntropySpec
) -> jax.Array:
    """The same total from whole logits; for tests and for reading."""
    z = _logits(x, head, spec)
    lse = jax.nn.logsumexp(z, axis=-1)
    picked = jnp.take_along_axis(z, labels[:, None], axis=-1)[:, 0]
    return jnp.sum(weight * (lse - picked + spec.logsumexp_weight * jnp.square(lse)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _loss_sum(
    x: jax.Array, head: jax.Array, labels: jax.Array, weight: jax.Array, spec: CrossEntropySpec
) -> tuple[jax.Array, jax.Array]:
    xs, ys, ws, _ = _chunks(x, labels, weight, _chunk_rows(x, head, spec))

    def step(carry: tuple, args: tuple) -> tuple[tuple, None]:
        x_chunk, labels, weight = args
        loss, nll, _ = _chunk_loss(x_chunk, labels, weight, head, spec)
        return (carry[0] + loss, carry[1] + nll), None

    zero = jnp.zeros((), jnp.float32)
    (total, nll), _ = jax.lax.scan(step, (zero, zero), (xs, ys, ws))
    return total, nll


def _loss_fwd(
    x: jax.Array, head: jax.Array, labels: jax.Array, weight: jax.Array, spec: CrossEntropySpec
) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    xs, ys, ws, rows = _chunks(x, labels, weight, _chunk_rows(x, head, spec))
    contract = 0 if spec.vocab_first else 1

    def step(carry: tuple, args: tuple) -> tuple[tuple, jax.Array]:
        total, nll, d_head = carry
        x_chunk, chunk_labels, chunk_weight = args
        loss, plain, dz = _chunk_loss(x_chunk, chunk_labels, chunk_weight, head, spec)
        dz = dz.astype(x.dtype)
        dx = jax.lax.dot_general(dz, head, (((1,), (contract,)), ((), ())))
        pair = (dz, x_chunk) if spec.vocab_first else (x_chunk, dz)
        dw = jax.lax.dot_general(*pair, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        return (total + loss, nll + plain, d_head + dw), dx

    zero = jnp.zeros((), jnp.float32)
    if xs.shape[0] == 1:
        (total, nll, d_head), dx = step((zero, zero, 0.0), (xs[0], ys[0], ws[0]))
    else:
        start = (zero, zero, jnp.zeros(head.shape, jnp.float32))
        (total, nll, d_head), dx = jax.lax.scan(step, start, (xs, ys, ws))
    dx = dx.reshape(-1, x.shape[1])[:rows]
    return (total, nll), (dx, d_head.astype(head.dtype))


def _loss_bwd(spec: CrossEntropySpec, saved: tuple, cotangents: tuple) -> tuple:
    dx, d_head = saved
    scale = cotangents[0]
    return dx * scale.astype(dx.dtype), d_head * scale.astype(d_head.dtype), None, None


_loss_sum.defvjp(_loss_fwd, _loss_bwd)


def _chunk_loss(
    x: jax.Array, labels: jax.Array, weight: jax.Array, head: jax.Array, spec: CrossEntropySpec
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Loss sums of one chunk, and the gradient of its logits."""
    z = _logits(x, head, spec)
    top = jnp.max(z, axis=-1, keepdims=True)
    e = jnp.exp(z - top)
    norm = jnp.sum(e, axis=-1, keepdims=True)
    lse = (top + jnp.log(norm))[:, 0]
    hit = labels[:, None] == jnp.arange(z.shape[-1])[None, :]
    picked = jnp.sum(jnp.where(hit, z, 0.0), axis=-1)
    nll = jnp.sum(weight * (lse - picked))
    loss = nll + spec.logsumexp_weight * jnp.sum(weight * jnp.square(lse))
    pull = weight * (1.0 + 2.0 * spec.logsumexp_weight * lse) / norm[:, 0]
    dz = e * pull[:, None] - jnp.where(hit, weight[:, None], 0.0)
    if spec.soft_cap is not None:
        dz = dz * (1.0 - jnp.square(z / spec.soft_cap))
    return loss, nll, dz


def _logits(x: jax.Array, head: jax.Array, spec: CrossEntropySpec) -> jax.Array:
    contract = 1 if spec.vocab_first else 0
    z = jax.lax.dot_general(x, head, (((1,), (contract,)), ((), ())), preferred_element_type=jnp.float32)
    return z if spec.soft_cap is None else spec.soft_cap * jnp.tanh(z / spec.soft_cap)


def _chunk_rows(x: jax.Array, head: jax.Array, spec: CrossEntropySpec) -> int:
    rows = x.shape[0]
    if spec.chunk is not None:
        return min(spec.chunk, rows)
    vocab = head.shape[0 if spec.vocab_first else 1]
    count = max(1, round(rows * vocab * 4 / CHUNK_LOGITS_BYTES))
    return -(-rows // count)


def _chunks(
    x: jax.Array, labels: jax.Array, weight: jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array, jax.Array, int]:
    """Reshape to ``[n, chunk, ...]``, padding the last chunk with rows of weight 0."""
    rows = x.shape[0]
    pad = -rows % chunk
    if pad:
        x = jnp.pad(x, ((0, pad), (0, 0)))
        labels, weight = jnp.pad(labels, (0, pad)), jnp.pad(weight, (0, pad))
    return x.reshape(-1, chunk, x.shape[1]), labels.reshape(-1, chunk), weight.reshape(-1, chunk), rows
