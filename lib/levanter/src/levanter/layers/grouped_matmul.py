r"""One product per group of rows, for groups of any size, on backends without a grouped kernel.

``jax.lax.ragged_dot`` is a fused kernel on accelerators. On CPU it is lowered to one masked product per group, which
costs as many times the arithmetic as there are groups. Here rows lie in blocks that belong to one group each, and a
loop multiplies every block by the matrix of its group: the arithmetic of the true sizes, plus at most a block a group.

Blocks beyond ``num_used`` are skipped at run time and give zeros, so a buffer for the worst case costs memory only.

Shape suffixes: N blocks, B rows of a block, I fan-in, O fan-out, G groups.

References:
    Gale et al., MegaBlocks, arXiv:2211.15841, section 3.
"""

import jax
import jax.numpy as jnp
import numpy as np


@jax.custom_vjp
def grouped_matmul(x_NBI: jax.Array, group_N: jax.Array, num_used: jax.Array, w_GIO: jax.Array) -> jax.Array:
    """``x[n] @ w[group[n]]`` for ``n < num_used``, zeros after that.

    Args:
        x_NBI: Rows in blocks.
        group_N: Group of each block, int32.
        num_used: Blocks in use, int32 scalar; may be traced.
        w_GIO: One matrix a group.

    Returns:
        ``[N, B, O]`` in the dtype of ``x``.

    Example:
        >>> x, w = jnp.ones((2, 1, 2)), jnp.arange(8.0).reshape(2, 2, 2)
        >>> grouped_matmul(x, jnp.array([1, 0]), jnp.int32(2), w).tolist()
        [[[10.0, 12.0]], [[2.0, 4.0]]]
    """
    blocks, rows, _ = x_NBI.shape
    out_NBO = jnp.zeros((blocks, rows, w_GIO.shape[-1]), x_NBI.dtype)

    def body(n: jax.Array, out: jax.Array) -> jax.Array:
        return out.at[n].set((x_NBI[n] @ w_GIO[group_N[n]]).astype(out.dtype))

    return jax.lax.fori_loop(0, num_used, body, out_NBO)


def _forward(x_NBI: jax.Array, group_N: jax.Array, num_used: jax.Array, w_GIO: jax.Array) -> tuple:
    return grouped_matmul(x_NBI, group_N, num_used, w_GIO), (x_NBI, group_N, num_used, w_GIO)


def _backward(saved: tuple, dy_NBO: jax.Array) -> tuple:
    x_NBI, group_N, num_used, w_GIO = saved
    start = (jnp.zeros_like(x_NBI), jnp.zeros_like(w_GIO))

    def body(n: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dx, dw = carry
        group, dy = group_N[n], dy_NBO[n]
        dx = dx.at[n].set((dy @ w_GIO[group].T).astype(dx.dtype))
        return dx, dw.at[group].add((x_NBI[n].T @ dy).astype(dw.dtype))

    dx, dw = jax.lax.fori_loop(0, num_used, body, start)
    return dx, _no_gradient(group_N), _no_gradient(num_used), dw


def _no_gradient(x: jax.Array) -> np.ndarray:
    return np.zeros(x.shape, jax.dtypes.float0)


grouped_matmul.defvjp(_forward, _backward)
