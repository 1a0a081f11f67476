r"""The orthogonal factor of a matrix by matrix products alone: Newton–Schulz iterations.

For ``X = U S V^T`` the limit is ``U V^T``. With ``||X||_F <= 1`` each step applies an odd polynomial to the singular
values, ``s -> a s + b s^3 + c s^5``, written so that only products are needed:

    A = X X^T;    X <- a X + (b A + c A^2) X        (X has at most as many rows as columns)

The coefficient lists trade accuracy near 1 against the speed at which small singular values grow; a list shorter than
the number of steps is cycled.

Two forms give the same result. The direct form costs ``2 k m^2 n + k m^3`` multiply-adds for ``k`` steps. The Gram form
iterates on the small matrix alone (``A_{k+1} = P A P``, ``Q_{k+1} = P Q`` with ``P = a I + b A + c A^2``) and
touches the wide one twice, ``2 m^2 n + O(k m^3)``. Rounding of ``A`` in the directions of tiny singular values grows by
``a^2`` a step, so the wide matrix is formed anew before the product of all ``a^2`` could lift it above 5 %; bfloat16
always takes the direct form.

A stack of matrices is spread over all devices, each working on whole matrices, which needs one redistribution before
and one after instead of collectives inside every product.

Shape suffixes: S stack, M rows, N columns.

References:
    Bernstein and Newhouse, Old optimizer, new norm, arXiv:2409.20325, appendix A.
    Jordan et al., Muon, 2024, https://kellerjordan.github.io/posts/muon/ (``simple``).
    Amsel et al., The polar express, arXiv:2505.16932 (``polar_express``).
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from levanter.errors import ConfigError
from levanter.optim.matrices import widen
from levanter.sharding import current_mesh

Coefficients = Sequence[tuple[float, float, float]]
COEFFICIENTS: dict[str, Coefficients] = {
    "simple": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.875, -1.25, 0.375),
    ),
    "aol": (
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ),
}
FORMS = ("auto", "direct", "gram")
# Measured on CPU: below this ratio of columns to rows the small products of the Gram form cost more than they save.
GRAM_RATIO = 2.0
# 5 % over the unit roundoff of float32, the relative error a Gram matrix starts with.
MAX_GROWTH = 0.05 / 6e-8


def check_coefficients(name: str, *, steps: int) -> None:
    """Refuse an unknown list or a number of steps under 1.

    Raises:
        ConfigError: names the value and the choices.
    """
    if name not in COEFFICIENTS:
        known = ", ".join(sorted(COEFFICIENTS))
        raise ConfigError(f"coefficient_type={name!r}; expected one of {known}.", key="optimizer.coefficient_type")
    if steps < 1:
        raise ConfigError(f"backend_steps={steps}; expected at least 1.", key="optimizer.backend_steps")


def newton_schulz(
    x: jax.Array, *, steps: int = 5, eps: float = 1e-8, coefficients: str = "quintic", form: str = "auto"
) -> jax.Array:
    """Orthogonalise every matrix of a stack.

    Args:
        x: ``[S..., M, N]``, any floating dtype; computed in that dtype.
        steps: Iterations.
        eps: Added to the Frobenius norm, so that a zero matrix stays zero.
        coefficients: Key of ``COEFFICIENTS``.
        form: ``direct``, ``gram`` or ``auto`` (gram for float32 matrices at least twice as wide as high).

    Returns:
        Same shape and dtype; singular values near 1 (between 0.7 and 1.2 for the published lists).

    Raises:
        ConfigError: unknown list or form, or no step.

    Example:
        >>> x = jnp.diag(jnp.array([3.0, 0.5]))
        >>> jnp.round(jnp.linalg.svd(newton_schulz(x, steps=8, coefficients="polar_express"))[1], 2).tolist()
        [1.0, 1.0]
    """
    check_coefficients(coefficients, steps=steps)
    if form not in FORMS:
        raise ConfigError(f"form={form!r}; expected one of {', '.join(FORMS)}.", key="optimizer")
    table = COEFFICIENTS[coefficients]
    schedule = [table[i % len(table)] for i in range(steps)]
    rows, columns = x.shape[-2:]
    stacked, count = _spread(x.reshape(-1, rows, columns))
    tall = rows > columns
    x_SMN = jnp.swapaxes(stacked, -1, -2) if tall else stacked
    norm = jnp.sqrt(jnp.sum(jnp.square(widen(x_SMN)), axis=(-2, -1), keepdims=True))
    x_SMN = (x_SMN / (norm + eps)).astype(x.dtype)
    wide = x_SMN.shape[-1] >= GRAM_RATIO * x_SMN.shape[-2] and x.dtype.itemsize >= 4
    run = _gram if form == "gram" or (form == "auto" and wide) else _direct
    out = run(x_SMN, schedule)
    return (jnp.swapaxes(out, -1, -2) if tall else out)[:count].reshape(x.shape)


def _direct(x_SMN: jax.Array, schedule: Coefficients) -> jax.Array:
    for a, b, c in schedule:
        gram = x_SMN @ jnp.swapaxes(x_SMN, -1, -2)
        x_SMN = a * x_SMN + (b * gram + c * (gram @ gram)) @ x_SMN
    return x_SMN


def _gram(x_SMN: jax.Array, schedule: Coefficients) -> jax.Array:
    for segment in _segments(schedule):
        x_SMN = _gram_segment(x_SMN, segment)
    return x_SMN


def _segments(schedule: Coefficients) -> list[list[tuple[float, float, float]]]:
    """Cut a schedule so that no segment amplifies rounding of the Gram matrix beyond the limit."""
    segments: list[list[tuple[float, float, float]]] = [[]]
    growth = 1.0
    for step in schedule:
        growth *= step[0] ** 2
        if segments[-1] and growth > MAX_GROWTH:
            segments.append([])
            growth = step[0] ** 2
        segments[-1].append(step)
    return segments


def _gram_segment(x_SMN: jax.Array, schedule: Coefficients) -> jax.Array:
    gram = x_SMN @ jnp.swapaxes(x_SMN, -1, -2)
    identity = jnp.eye(gram.shape[-1], dtype=x_SMN.dtype)
    total = identity
    for index, (a, b, c) in enumerate(schedule):
        step = a * identity + b * gram + c * (gram @ gram)
        total = step if index == 0 else step @ total
        if index + 1 < len(schedule):
            gram = step @ gram @ step
    return total @ x_SMN


def _spread(x_SMN: jax.Array) -> tuple[jax.Array, int]:
    """Lay the stack out over all devices, padded with zero matrices, which stay zero; returns the true count."""
    count = x_SMN.shape[0]
    mesh = current_mesh()
    if mesh is None or mesh.size == 1 or count == 1:
        return x_SMN, count
    padding = -count % mesh.size
    # Padding a short stack would make one device do what several share; below half a matrix each, leave it to XLA.
    if padding and 2 * count < mesh.size:
        return x_SMN, count
    padded = jnp.pad(x_SMN, ((0, padding), (0, 0), (0, 0)))
    axes = tuple(name for name in mesh.axis_names if mesh.shape[name] > 1)
    return jax.lax.with_sharding_constraint(padded, NamedSharding(mesh, PartitionSpec(axes))), count


def update_scale(fan_in: int, fan_out: int, *, kimi: bool) -> float:
    """Factor on an orthogonal update: ``sqrt(max(1, out / in))``, or Kimi's ``0.2 sqrt(max(out, in))``.

    The first keeps the operator norm of the layer's change independent of its shape; the second gives the update
    AdamW's usual root mean square, so that AdamW's learning rate carries over.

    References:
        Liu et al., Muon is scalable for LLM training, arXiv:2502.16982, section 2.2.

    Example:
        >>> update_scale(4, 16, kimi=False), update_scale(25, 4, kimi=True)
        (2.0, 1.0)
    """
    return 0.2 * math.sqrt(max(fan_out, fan_in)) if kimi else math.sqrt(max(1.0, fan_out / fan_in))
