r"""Steps that keep the norm of a matrix: the hyperball projection.

For a matrix ``p`` with direction ``d`` and rate ``eta``:

    p' = p - eta d ||p|| / max(||d||, 1e-10)        p+ = p' ||p|| / ||p'||

The update ``p+ - p`` is formed without ``p'``: with ``s = eta ||p|| / max(||d||, 1e-10)``,

    ||p'||^2 = ||p||^2 - 2 s <p, d> + s^2 ||d||^2,   r = ||p|| / max(||p'||, 1e-10),   update = (r - 1) p - r s d

Norms are Frobenius norms of each matrix of a stack. The rate is the tangent of the angle that a step turns the weights
by, whatever their scale, so weight decay has nothing left to do. A matrix of zeros stays zero: matrices that start at
zero belong to Adam (``adam_modules``).

References:
    Hyperball optimization, arXiv:2606.16899; rule of thumb ``eta ~ sqrt(eta_adam lambda)``: the angle per step at which
    AdamW settles, Kosson et al., Rotational equilibrium, arXiv:2305.17212, section 3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from levanter.optim.matrices import MatrixView, map_matrices, matrix_views, widen

FLOOR = 1e-10


def hyperball(learning_rate: Any) -> optax.GradientTransformation:
    """Turn directions into norm-preserving updates; the rate is included, so this ends a chain.

    Args:
        learning_rate: Angle per step in radians (its tangent), a number or a traced scalar.
    """

    def apply(view: MatrixView, d: jax.Array, p: jax.Array) -> jax.Array:
        d_wide, p_wide = widen(d), widen(p)
        norm_p, norm_d = view.norm(p_wide), view.norm(d_wide)
        s = learning_rate * norm_p / jnp.maximum(norm_d, FLOOR)
        square = jnp.square(norm_p) - 2 * s * view.sum(p_wide * d_wide) + jnp.square(s * norm_d)
        r = norm_p / jnp.maximum(jnp.sqrt(jnp.maximum(square, 0.0)), FLOOR)
        return ((r - 1) * p_wide - r * s * d_wide).astype(d.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("hyperball: params=None; expected the parameters. Call update(grads, state, params).")
        return map_matrices(apply, matrix_views(updates), updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
