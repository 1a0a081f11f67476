r"""A mixture of experts as the MLP of a block: :class:`MoeMlpSpec` is what a block spec's ``mlp`` may be.

    z = W_r x,   p = softmax(z),   S = top-k(p),   y = sum_{s in S} w_s down_s(act(gate_s x) * up_s x)  (+ shared(x))

The auxiliary values of a layer are ``load_balancing_loss`` and ``router_z_loss``, already times their coefficients,
``routing_entropy`` and ``expert_load``. :func:`router_losses` turns those of a whole model into one loss and metrics:
``train/load_balancing_loss``, ``train/router_z_loss``, ``moe/layer{i}/routing_entropy`` and
``moe/layer{i}/expert{j}_load``.
They are added to the loss in training only: evaluation, bits per byte and preference log-probabilities never see them.

References:
    Jiang et al., Mixtral of experts, arXiv:2401.04088, section 2.1; Qwen3 technical report, arXiv:2505.09388.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.layers.activations import activation
from levanter.layers.expert_parallel import sharded_moe_mlp
from levanter.layers.linear import InitSpec, apply_linear
from levanter.layers.moe import (
    ExpertWeights,
    check_top_k,
    load_balancing_loss,
    pick_implementation,
    route_top_k,
    router_z_loss,
    routing_statistics,
)
from levanter.metrics import Metric, Reduction
from levanter.models.mlp import GatedMlp, GatedMlpSpec, MlpAux

LOSSES = ("load_balancing_loss", "router_z_loss")


@dataclass(frozen=True)
class MoeMlpSpec:
    """A routed MLP.

    Attributes:
        Experts: Experts.
        Mlp: Width of an expert.
        experts_per_token: Experts that a token visits.
        activation: Gate's activation.
        normalise: Rescale a token's combine weights to sum 1.
        shared_dim: Width of a dense expert that every token visits; 0 for none.
        load_balancing_coef: Weight of the load-balancing loss.
        z_loss_coef: Weight of the router z-loss.
        implementation: Kernel: auto, ragged or blocked.

    Example:
        >>> MoeMlpSpec(Axis("experts", 4), Axis("mlp", 8), 2).num_params(4)
        400
    """

    Experts: Axis
    Mlp: Axis
    experts_per_token: int
    activation: str = "silu"
    normalise: bool = True
    shared_dim: int = 0
    load_balancing_coef: float = 0.0
    z_loss_coef: float = 0.0
    implementation: str = "auto"

    def __post_init__(self) -> None:
        activation(self.activation)
        pick_implementation(self.implementation)
        check_top_k(self.Experts.size, self.experts_per_token)

    @property
    def shared(self) -> GatedMlpSpec | None:
        """The dense expert, or None."""
        return GatedMlpSpec(Axis("mlp", self.shared_dim), self.activation) if self.shared_dim else None

    def init(self, Embed: Axis, init: InitSpec, *, key: jax.Array) -> "MoeMlp":
        """Fresh parameters; every expert gets its own key."""
        kr, kg, ku, kd, ks = jax.random.split(key, 5)
        shared = self.shared

        def experts(In: Axis, Out: Axis, key: jax.Array, *, residual: bool = False) -> hnn.MoELinear:
            scale = init.scale(In.size, residual=residual)
            return hnn.MoELinear.init(self.Experts, In, Out, key=key, use_bias=False, init_scale=scale)

        return MoeMlp(
            init.linear(Embed, self.Experts, key=kr, use_bias=False),
            experts(Embed, self.Mlp, kg),
            experts(Embed, self.Mlp, ku),
            experts(self.Mlp, Embed, kd, residual=True),
            None if shared is None else shared.init(Embed, init, key=ks),
            self,
        )

    def num_params(self, hidden_dim: int) -> int:
        """Router, experts and shared expert."""
        shared = self.shared
        routed = self.Experts.size * (hidden_dim + 3 * hidden_dim * self.Mlp.size)
        return routed + (0 if shared is None else shared.num_params(hidden_dim))

    def flops_per_token(self, hidden_dim: int) -> float:
        """The chosen experts' three products, the router, the shared expert."""
        shared = self.shared
        routed = 6.0 * hidden_dim * self.Mlp.size * self.experts_per_token + 2.0 * hidden_dim * self.Experts.size
        return routed + (0.0 if shared is None else shared.flops_per_token(hidden_dim))


class MoeMlp(eqx.Module):
    """Parameters of a routed MLP.

    Attributes:
        router: Embed to experts.
        gate_proj: (experts, embed, mlp).
        up_proj: (experts, embed, mlp).
        down_proj: (experts, mlp, embed).
        shared_expert: Dense expert, or None.
        spec: Description.
    """

    router: hnn.Linear
    gate_proj: hnn.MoELinear
    up_proj: hnn.MoELinear
    down_proj: hnn.MoELinear
    shared_expert: GatedMlp | None
    spec: MoeMlpSpec = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, MlpAux]:
        """Apply to ``[B, P, E]``."""
        spec, batch = self.spec, x.shape[0]
        tokens = x.reshape(-1, x.shape[-1])
        routing = route_top_k(apply_linear(self.router, tokens), spec.experts_per_token, normalise=spec.normalise)
        weights = ExpertWeights(*(_raw(layer.weight) for layer in (self.gate_proj, self.up_proj, self.down_proj)))
        out, _ = sharded_moe_mlp(
            tokens,
            routing.selected_TK,
            routing.weights_TK,
            weights,
            batch=batch,
            activation=spec.activation,
            implementation=spec.implementation,
        )
        out = out.reshape(x.shape)
        if self.shared_expert is not None:
            out = out + self.shared_expert(x)[0]
        aux = {
            "load_balancing_loss": spec.load_balancing_coef * load_balancing_loss(routing),
            "router_z_loss": spec.z_loss_coef * router_z_loss(routing),
            **routing_statistics(routing),
        }
        return out, aux


def router_losses(aux: Mapping[str, jax.Array], mass: jax.Array) -> tuple[jax.Array, dict[str, Metric]]:
    """One loss and the metrics of a model's routers.

    Args:
        aux: What the stack collected, layer axis first; empty for dense models.
        mass: Weight of the batch, so that metrics average rightly over micro-batches.

    Returns:
        ``(loss, metrics)``: the mean over layers of each loss, added up, float32 scalar; metrics by name.

    Example:
        >>> router_losses({}, jnp.float32(1))[0].item()
        0.0
    """
    total, metrics = jnp.zeros((), jnp.float32), {}
    for name in LOSSES:
        if name in aux:
            mean = jnp.mean(aux[name])
            total = total + mean
            metrics[name] = _mean(mean, mass)
    for layer, entropy in enumerate(aux.get("routing_entropy", ())):
        metrics[f"moe/layer{layer}/routing_entropy"] = _mean(entropy, mass)
    for layer, load in enumerate(aux.get("expert_load", ())):
        for expert in range(load.shape[0]):
            metrics[f"moe/layer{layer}/expert{expert}_load"] = _mean(load[expert], mass)
    return total, metrics


def _mean(value: jax.Array, mass: jax.Array) -> Metric:
    return Metric(jax.lax.stop_gradient(value) * mass, mass, Reduction.MEAN)


def _raw(weight: NamedArray) -> jax.Array:
    return weight.array
