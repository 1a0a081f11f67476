"""Multi-layer perceptron."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx

from haliax._array.named import NamedArray
from haliax._axis.types import Axis, AxisSpec
from haliax.jax_utils import maybe_rng_split
from haliax.nn.activations import relu
from haliax.nn.dot_general import DotGeneralOp
from haliax.nn.linear import Linear

DEFAULT_WIDTH_NAME = "mlp"


class MLP(eqx.Module):
    """Linear layers with an activation in between.

    Attributes:
        activation: Applied after every layer but the last.
        layers: The layers.

    Example:
        >>> import haliax as hax
        >>> import jax
        >>> E, O = hax.make_axes(e=3, o=4)
        >>> mlp = MLP.init(E, O, width=8, depth=2, key=jax.random.key(0))
        >>> mlp(hax.ones(E)).shape, len(mlp.layers)
        ({'o': 4}, 3)
    """

    activation: Callable[..., Any] = eqx.field(static=True)
    layers: Sequence[Linear]

    @staticmethod
    def init(
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        depth: int,
        activation: Callable[..., Any] = relu,
        *,
        out_first: bool = True,
        use_bias: bool = True,
        use_final_bias: bool = True,
        key: Any,
        dot_general: DotGeneralOp | None = None,
        init_scale: float = 1.0,
    ) -> "MLP":
        """Return a perceptron with ``depth`` hidden layers.

        Args:
            Input: Input axes.
            Output: Output axes.
            width: Axis of the hidden layers, or its size; names alternate so that neighbours differ.
            depth: Number of hidden layers, ``>= 0``.
            activation: Elementwise function.
            out_first: As in `Linear.init`.
            use_bias: Bias in hidden layers.
            use_final_bias: Bias in the last layer.
            key: Random key.
            dot_general: As in `Linear.init`.
            init_scale: As in `Linear.init`.
        """
        Width = width if isinstance(width, Axis) else Axis(DEFAULT_WIDTH_NAME, width)
        hidden = [Width if i % 2 == 0 else Width.alias(Width.name + "2") for i in range(depth)]
        ends: list[Any] = [Input, *hidden, Output]
        keys = maybe_rng_split(key, depth + 1)
        layers = [
            Linear.init(
                ends[i],
                ends[i + 1],
                key=keys[i],
                use_bias=use_final_bias if i == depth else use_bias,
                out_first=out_first,
                dot_general=dot_general,
                init_scale=init_scale,
            )
            for i in range(depth + 1)
        ]
        return MLP(activation, layers)

    @property
    def In(self) -> AxisSpec:
        """Input axes."""
        return self.layers[0].In

    @property
    def Out(self) -> AxisSpec:
        """Output axes."""
        return self.layers[-1].Out

    def __call__(self, x: NamedArray, *, key: Any = None) -> NamedArray:
        """Apply the layers; other axes of ``x`` are batch axes."""
        keys = maybe_rng_split(key, len(self.layers))
        for layer, k in zip(self.layers[:-1], keys, strict=False):
            x = self.activation(layer(x, key=k))
        return self.layers[-1](x, key=keys[-1])
