"""Activation functions, elementwise over named arrays."""

from typing import Any

import jax
import jax.nn as jnn

from haliax._array.lift import lift_unary
from haliax._array.named import NamedArray, position, require_named, wrap
from haliax._axis.types import AxisSelector
from haliax.errors import AxisSpecError

relu = lift_unary(jnn.relu)
relu6 = lift_unary(jnn.relu6)
sigmoid = lift_unary(jnn.sigmoid)
softplus = lift_unary(jnn.softplus)
soft_sign = lift_unary(jnn.soft_sign)
silu = lift_unary(jnn.silu)
swish = lift_unary(jnn.swish)
log_sigmoid = lift_unary(jnn.log_sigmoid)
leaky_relu = lift_unary(jnn.leaky_relu)
hard_sigmoid = lift_unary(jnn.hard_sigmoid)
hard_silu = lift_unary(jnn.hard_silu)
hard_swish = lift_unary(jnn.hard_swish)
hard_tanh = lift_unary(jnn.hard_tanh)
elu = lift_unary(jnn.elu)
celu = lift_unary(jnn.celu)
selu = lift_unary(jnn.selu)


def gelu(a: Any, approximate: bool = True) -> Any:
    """Gaussian error linear unit; the tanh approximation unless ``approximate=False``.

    Example:
        >>> import haliax as hax
        >>> gelu(hax.named([0.0, 1.0], "a")).round(3).tolist()
        [0.0, 0.8410000205039978]

    References:
        Hendrycks and Gimpel, arXiv:1606.08415.
    """
    return wrap(jnn.gelu(a.array, approximate), a.names) if isinstance(a, NamedArray) else jnn.gelu(a, approximate)


def quick_gelu(a: Any) -> Any:
    """Return ``a * sigmoid(1.702 a)``, the cheap approximation of gelu.

    Example:
        >>> import haliax as hax
        >>> quick_gelu(hax.named([0.0], "a")).tolist()
        [0.0]

    References:
        Hendrycks and Gimpel, arXiv:1606.08415, section 2.
    """
    return a * sigmoid(1.702 * a)


def relu_squared(a: Any) -> Any:
    """Return ``relu(a) ** 2``.

    Example:
        >>> import haliax as hax
        >>> relu_squared(hax.named([-1.0, 3.0], "a")).tolist()
        [0.0, 9.0]

    References:
        So et al., Primer, arXiv:2109.08668, section 3.2.
    """
    x = a.array if isinstance(a, NamedArray) else a
    out = jax.numpy.square(jnn.relu(x))
    return wrap(out, a.names) if isinstance(a, NamedArray) else out


def glu(x: NamedArray, axis: AxisSelector) -> NamedArray:
    """Gated linear unit: the first half of ``axis`` times the sigmoid of the second half.

    Raises:
        AxisSpecError: The size of ``axis`` is odd.

    Example:
        >>> import haliax as hax
        >>> glu(hax.ones({"a": 2, "e": 4}), "e").shape
        {'a': 2, 'e': 2}

    References:
        Dauphin et al., arXiv:1612.08083, section 2.
    """
    require_named("glu", x)
    index = position("glu", x, axis)
    if x.array.shape[index] % 2:
        raise AxisSpecError(f"glu: axis {x.names[index]!r} has size {x.array.shape[index]}; expected an even size.")
    return wrap(jnn.glu(x.array, axis=index), x.names)
