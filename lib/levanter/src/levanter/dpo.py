r"""Direct preference optimisation: fit the policy to pairs of a preferred and a rejected answer.

    log p(y | x)  = sum over the tokens of y of the log-likelihood
    delta         = log p(chosen) - log p(rejected)
    loss          = mean softplus(-beta (delta_policy - delta_reference))
    reward(y)     = beta (log p_policy(y) - log p_reference(y))

The reference never changes and neither does the data, so its log-probabilities are numbers of the example, computed
once before training (:func:`attach_reference`). During training there is one model in memory, one forward pass for both
answers together, and nothing of the reference in checkpoints. Where policy and reference start equal the first loss is
``ln 2``.

SimPO needs no reference: average log-likelihood a token, and a margin,

    loss = mean softplus(-(beta (a(chosen) - a(rejected)) - gamma))

References:
    Rafailov et al., Direct preference optimization, arXiv:2305.18290, eq. 7.
    Meng et al., SimPO, arXiv:2405.14734, eq. 6.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray

from levanter.data.text.examples import LmExample
from levanter.errors import ConfigError
from levanter.metrics import Metric, Reduction
from levanter.models.lm_model import LmHeadModel
from levanter.models.loss import next_token_nll
from levanter.tree_paths import tree_digest


class DpoExample(eqx.Module):
    """A pair of answers to one prompt, or a batch of pairs.

    Attributes:
        chosen: Prompt and preferred answer; ``loss_weight`` is 1 on the predictions of the answer's tokens.
        rejected: The same prompt and the other answer.
        reference_chosen: Reference log-probability of the preferred answer in nats, float32; None before
            :func:`attach_reference`.
        reference_rejected: That of the other.
    """

    chosen: LmExample
    rejected: LmExample
    reference_chosen: NamedArray | None = None
    reference_rejected: NamedArray | None = None


def sequence_log_probs(model: LmHeadModel, example: LmExample) -> jax.Array:
    """Log-probability of the weighted tokens of each sequence.

    Args:
        model: Any language model.
        example: Axes ``(batch, position)`` or ``(position)``.

    Returns:
        ``[batch]`` or a scalar, float32, in nats; ``-sum(weight * nll)``. Router losses never enter.
    """
    nll = next_token_nll(model, example).array
    return -jnp.sum(nll * example.loss_weight.array.astype(jnp.float32), axis=-1)


def dpo_terms(
    policy: tuple[jax.Array, jax.Array], reference: tuple[jax.Array, jax.Array], beta: float
) -> dict[str, jax.Array]:
    """Loss and diagnostics of each pair.

    Args:
        policy: Log-probabilities of chosen and rejected under the policy.
        reference: The same under the reference.
        beta: Strength of the pull towards the reference, above 0.

    Returns:
        Arrays of the inputs' shape: ``dpo_loss``, ``dpo_margin_policy``, ``dpo_margin_ref``, ``dpo_accuracy`` (1 where
        the chosen reward is larger), ``dpo_chosen_reward``, ``dpo_rejected_reward``; log-probabilities in nats.

    Example:
        >>> terms = dpo_terms((jnp.float32(-3.0), jnp.float32(-4.0)), (jnp.float32(-3.0), jnp.float32(-4.0)), 0.1)
        >>> round(float(terms["dpo_loss"]), 4)
        0.6931
    """
    (chosen, rejected), (ref_chosen, ref_rejected) = policy, reference
    margin_policy, margin_ref = chosen - rejected, ref_chosen - ref_rejected
    rewards = beta * (chosen - ref_chosen), beta * (rejected - ref_rejected)
    return {
        "dpo_loss": jax.nn.softplus(-beta * (margin_policy - margin_ref)),
        "dpo_margin_policy": margin_policy,
        "dpo_margin_ref": margin_ref,
        "dpo_accuracy": (rewards[0] > rewards[1]).astype(jnp.float32),
        "dpo_chosen_reward": rewards[0],
        "dpo_rejected_reward": rewards[1],
    }


def dpo_loss(model: LmHeadModel, batch: DpoExample, *, beta: float = 0.1) -> tuple[Metric, dict[str, Metric]]:
    """Loss of a batch of pairs, as the trainer takes it: a mean over pairs, and metrics by name.

    Raises:
        ConfigError: ``beta`` is not above 0, or the batch carries no reference.
    """
    check_beta(beta)
    if batch.reference_chosen is None or batch.reference_rejected is None:
        raise ConfigError(
            "this batch has no reference log-probabilities; call attach_reference(examples, model) before training.",
            key="reference",
        )
    chosen, rejected = _both_log_probs(model, batch)
    reference = batch.reference_chosen.array, batch.reference_rejected.array
    return _reduce(dpo_terms((chosen, rejected), reference, beta), "dpo_loss")


def simpo_loss(
    model: LmHeadModel, batch: DpoExample, *, beta: float = 2.0, gamma_beta_ratio: float = 0.5
) -> tuple[Metric, dict[str, Metric]]:
    """Reference-free loss on average log-likelihoods a token.

    Args:
        model: The policy.
        batch: Pairs; references are not read.
        beta: Scale of the difference.
        gamma_beta_ratio: Margin as a fraction of ``beta``.
    """
    check_beta(beta)
    chosen, rejected = _both_log_probs(model, batch)
    lengths = [jnp.maximum(jnp.sum(e.loss_weight.array, axis=-1), 1.0) for e in (batch.chosen, batch.rejected)]
    margin = chosen / lengths[0] - rejected / lengths[1]
    terms = {
        "simpo_loss": jax.nn.softplus(-beta * (margin - gamma_beta_ratio)),
        "simpo_margin": margin,
        "simpo_accuracy": (margin > 0).astype(jnp.float32),
    }
    return _reduce(terms, "simpo_loss")


def check_beta(beta: float) -> float:
    """Return a usable ``beta``.

    Raises:
        ConfigError: not above 0.
    """
    if not beta > 0:
        raise ConfigError(f"beta={beta}; expected beta > 0: at 0 the loss is ln 2 whatever the policy.", key="beta")
    return beta


def attach_reference(
    examples: Sequence[DpoExample], model: LmHeadModel, *, batch_size: int = 8, cache_dir: str | None = None
) -> list[DpoExample]:
    """Give every pair its log-probabilities under the reference.

    Args:
        examples: Single pairs, all of one length.
        model: The reference, in the dtype to compute in.
        batch_size: Pairs at a time.
        cache_dir: Folder that keeps the numbers, in a file named by the SHA-256 of data and reference; None keeps none.

    Returns:
        New pairs; the inputs are unchanged.
    """
    path = None if cache_dir is None else os.path.join(cache_dir, f"reference-{_identity(examples, model)}.npz")
    if path is not None and os.path.exists(path):
        with np.load(path) as stored:
            return _with_reference(examples, stored["chosen"], stored["rejected"])
    run = jax.jit(_both_log_probs)
    parts = []
    for start in range(0, len(examples), batch_size):
        # The last batch is padded by repetition, so that one program serves all.
        group = [examples[min(i, len(examples) - 1)] for i in range(start, start + batch_size)]
        parts.append(jax.device_get(run(model, stack_pairs(group))))
    chosen, rejected = (np.concatenate([p[side] for p in parts])[: len(examples)] for side in (0, 1))
    if path is not None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp.npz"
        np.savez(temporary, chosen=chosen, rejected=rejected)
        os.replace(temporary, path)
    return _with_reference(examples, chosen, rejected)


def stack_pairs(examples: Sequence[DpoExample]) -> DpoExample:
    """A batch from single pairs, axis ``batch`` first."""
    Batch = Axis("batch", len(examples))

    def stack(*leaves: NamedArray) -> NamedArray:
        return NamedArray(np.stack([np.asarray(leaf.array) for leaf in leaves]), (Batch, *leaves[0].axes))

    return jax.tree.map(stack, *examples, is_leaf=lambda node: isinstance(node, NamedArray))


def _both_log_probs(model: LmHeadModel, batch: DpoExample) -> tuple[jax.Array, jax.Array]:
    """Chosen and rejected in one forward pass of twice the batch."""
    Batch, Pos = batch.chosen.tokens.axes
    axes = (Batch.resize(2 * Batch.size), Pos)

    def joined(field: str) -> NamedArray:
        parts = [getattr(part, field).array for part in (batch.chosen, batch.rejected)]
        return NamedArray(jnp.concatenate(parts), axes)

    # Pairs are padded on the right and not packed, so the plain causal mask keeps answers from seeing padding.
    both = LmExample(joined("tokens"), joined("loss_weight"), None)
    scores = sequence_log_probs(model, both)
    return scores[: Batch.size], scores[Batch.size :]


def _reduce(terms: dict[str, jax.Array], loss: str) -> tuple[Metric, dict[str, Metric]]:
    count = jnp.float32(terms[loss].shape[0])
    metrics = {
        name: Metric(jax.lax.stop_gradient(jnp.sum(value)), count, Reduction.MEAN) for name, value in terms.items()
    }
    return Metric(jnp.sum(terms[loss]), count, Reduction.MEAN), metrics


def _with_reference(examples: Sequence[DpoExample], chosen: np.ndarray, rejected: np.ndarray) -> list[DpoExample]:
    scalars = zip(examples, chosen.astype(np.float32), rejected.astype(np.float32), strict=True)
    return [DpoExample(e.chosen, e.rejected, NamedArray(c, ()), NamedArray(r, ())) for e, c, r in scalars]


def _identity(examples: Sequence[DpoExample], model: Any) -> str:
    digest = hashlib.sha256(tree_digest(model).encode())
    for example in examples:
        for part in (example.chosen, example.rejected):
            digest.update(np.asarray(part.tokens.array).tobytes())
            digest.update(np.asarray(part.loss_weight.array).tobytes())
    return digest.hexdigest()
