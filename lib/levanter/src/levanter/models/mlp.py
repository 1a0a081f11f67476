r"""The part of a block after attention, as a component that a block spec plugs in.

A block asks two things of it: :meth:`MlpSpec.init` makes the parameters, and calling the result maps ``[B, P, E]`` to
``[B, P, E]`` and a dictionary of auxiliary values (empty for dense MLPs; router losses and statistics for mixtures of
experts). The stack collects those values with a leading layer axis; no loss is ever added behind the caller's back.

    gated:  down(act(gate x) * up x)
    plain:  down(act(up x))

References:
    SwiGLU: Shazeer, arXiv:2002.05202, section 2.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from levanter.layers.activations import activation, xielu
from levanter.layers.linear import InitSpec, apply_linear
from levanter.sharding import constrain

MlpAux = dict[str, jax.Array]
XIELU_INIT = 0.8


class MlpSpec(Protocol):
    """What a block spec's ``mlp`` must be: a frozen, hashable description."""

    def init(self, Embed: Axis, init: InitSpec, *, key: jax.Array) -> Any:
        """Fresh parameters: a module with ``__call__(x[B, P, E]) -> (y[B, P, E], MlpAux)``."""
        ...

    def num_params(self, hidden_dim: int) -> int:
        """Number of parameters beside a residual stream of that size."""
        ...

    def flops_per_token(self, hidden_dim: int) -> float:
        """Forward FLOPs per token; one multiply-add is two."""
        ...


@dataclass(frozen=True)
class GatedMlpSpec:
    """``down(act(gate x) * up x)``.

    Attributes:
        Mlp: Inner axis.
        activation: Name of the gate's activation.
        use_bias: Biases in all three maps.

    Example:
        >>> GatedMlpSpec(Axis("mlp", 8)).num_params(4)
        96
    """

    Mlp: Axis
    activation: str = "silu"
    use_bias: bool = False

    def __post_init__(self) -> None:
        activation(self.activation)

    def init(self, Embed: Axis, init: InitSpec, *, key: jax.Array) -> "GatedMlp":
        """Fresh parameters."""
        kg, ku, kd = jax.random.split(key, 3)
        return GatedMlp(
            init.linear(Embed, self.Mlp, key=kg, use_bias=self.use_bias),
            init.linear(Embed, self.Mlp, key=ku, use_bias=self.use_bias),
            init.linear(self.Mlp, Embed, key=kd, use_bias=self.use_bias, residual=True),
            self,
        )

    def num_params(self, hidden_dim: int) -> int:
        """Three matrices and their biases."""
        return 3 * hidden_dim * self.Mlp.size + (2 * self.Mlp.size + hidden_dim if self.use_bias else 0)

    def flops_per_token(self, hidden_dim: int) -> float:
        """Three matrix products."""
        return 6.0 * hidden_dim * self.Mlp.size


class GatedMlp(eqx.Module):
    """Parameters of a gated MLP."""

    gate_proj: hnn.Linear
    up_proj: hnn.Linear
    down_proj: hnn.Linear
    spec: GatedMlpSpec = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, MlpAux]:
        """Apply to ``[B, P, E]``."""
        gate = activation(self.spec.activation)(apply_linear(self.gate_proj, x))
        hidden = constrain(gate * apply_linear(self.up_proj, x), "batch", "position", "mlp")
        return apply_linear(self.down_proj, hidden), {}


@dataclass(frozen=True)
class PlainMlpSpec:
    """``down(act(up x))``; activation ``xielu`` has two learned scalars.

    Attributes:
        Mlp: Inner axis.
        activation: A name of :data:`levanter.layers.activations.ACTIVATIONS`, or ``xielu``.
        use_bias: Biases in both maps.

    Example:
        >>> PlainMlpSpec(Axis("mlp", 8), "gelu_new", use_bias=True).num_params(4)
        76
    """

    Mlp: Axis
    activation: str = "gelu_new"
    use_bias: bool = True

    def __post_init__(self) -> None:
        if self.activation != "xielu":
            activation(self.activation)

    def init(self, Embed: Axis, init: InitSpec, *, key: jax.Array) -> "PlainMlp":
        """Fresh parameters."""
        ku, kd = jax.random.split(key)
        alpha = NamedArray(jnp.log(jnp.expm1(jnp.float32(XIELU_INIT))), ()) if self.activation == "xielu" else None
        negative = NamedArray(jnp.log(jnp.expm1(jnp.float32(XIELU_INIT - 0.5))), ()) if alpha is not None else None
        return PlainMlp(
            init.linear(Embed, self.Mlp, key=ku, use_bias=self.use_bias),
            init.linear(self.Mlp, Embed, key=kd, use_bias=self.use_bias, residual=True),
            alpha,
            negative,
            self,
        )

    def num_params(self, hidden_dim: int) -> int:
        """Two matrices, their biases, and xIELU's scalars."""
        biases = self.Mlp.size + hidden_dim if self.use_bias else 0
        return 2 * hidden_dim * self.Mlp.size + biases + (2 if self.activation == "xielu" else 0)

    def flops_per_token(self, hidden_dim: int) -> float:
        """Two matrix products."""
        return 4.0 * hidden_dim * self.Mlp.size


class PlainMlp(eqx.Module):
    """Parameters of a two-matrix MLP.

    Attributes:
        up_proj: Embed to mlp.
        down_proj: Mlp to embed.
        alpha_p: xIELU's positive curvature, a scalar before the softplus; None for other activations.
        alpha_n: The negative one.
        spec: Description.
    """

    up_proj: hnn.Linear
    down_proj: hnn.Linear
    alpha_p: NamedArray | None
    alpha_n: NamedArray | None
    spec: PlainMlpSpec = eqx.field(static=True)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, MlpAux]:
        """Apply to ``[B, P, E]``."""
        hidden = apply_linear(self.up_proj, x)
        if self.alpha_p is not None and self.alpha_n is not None:
            hidden = xielu(hidden, self.alpha_p.array, self.alpha_n.array)
        else:
            hidden = activation(self.spec.activation)(hidden)
        return apply_linear(self.down_proj, constrain(hidden, "batch", "position", "mlp")), {}
