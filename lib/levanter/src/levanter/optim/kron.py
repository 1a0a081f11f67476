r"""PSGD Kron: whiten the momentum by a Kronecker-factored preconditioner that is fitted by its own descent.

For a block ``G`` (the bias-corrected momentum), upper triangular factors ``Q_L``, ``Q_R`` and a Gaussian probe ``V``:

    A = Q_L G Q_R^T,   B = Q_L^{-T} V Q_R^{-1}
    Q_L <- Q_L - lr / ||A A^T + B B^T|| triu(A A^T - B B^T) Q_L
    Q_R <- Q_R - lr / ||A^T A + B^T B|| triu(A^T A - B^T B) Q_R
    u   =  Q_L^T Q_L G Q_R^T Q_R,   divided by max(1, rms(u) / 1.1) per block
    p_t =  p_{t-1} - eta (u + lambda p_{t-1})

The factors are refreshed with probability 1 for the first 500 steps, then ``exp(-0.001 n)`` down to 0.05, by a counter
instead of a coin, so that equal runs do equal work. Every 100 refreshes the two factors are balanced to equal largest
entry. A vector, or a side over ``max_size_triangular``, has a diagonal factor (the same formula, elementwise).

| field | default |
|---|---|
| beta1 | 0.9 |
| precond_lr, precond_init | 0.1, 1.0 |
| update_prob_max, update_prob_min, update_prob_decay, update_prob_flat_start | 1.0, 0.05, 0.001, 500 |
| block_size, max_size_triangular | 256, 25000 |
| update_rms_clip | 1.1 |
| max_grad_norm | 1.0 |

``||.||`` is the lower bound of the spectral norm that PSGD uses: two power steps from the row of largest norm.

References:
    Li, Preconditioned stochastic gradient descent, arXiv:1512.04202; Kronecker whitening: Pooladzandi and Li,
    Curvature-informed SGD via general purpose Lie-group preconditioners, arXiv:2402.04553, section 3.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from haliax import NamedArray

from levanter.errors import ConfigError
from levanter.optim.blocks import BlockGrid, block_grid
from levanter.optim.composition import check_fractions, check_positive, single_group, transformation
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import MatrixView, map_arrays, matrix_views, wide_dtype
from levanter.tree_paths import is_named, named_leaves, raw_array

_SIDES = ("left", "right")
TINY = 1e-30


class KronState(NamedTuple):
    """``mu``: momentum, structure of the parameters. ``factors[name][side]``: Q, triangular ``[N, n, n]`` or diagonal
    ``[N, n]``. ``due``: refreshes owed, in ``[0, 1)`` plus the step's probability. ``refreshes``: done so far."""

    count: jax.Array
    key: jax.Array
    due: jax.Array
    refreshes: jax.Array
    mu: Any
    factors: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class KronConstants:
    """What fixes Kron's arithmetic; the fields of :class:`KronConfig`."""

    b1: float = 0.9
    precond_lr: float = 0.1
    precond_init: float = 1.0
    prob_max: float = 1.0
    prob_min: float = 0.05
    prob_decay: float = 0.001
    prob_flat_start: int = 500
    block_size: int | None = 256
    max_triangular: int = 25_000
    rms_clip: float = 1.1
    balance_every: int = 100
    seed: int = 0

    def probability(self, step: jax.Array) -> jax.Array:
        """Refreshes per step at 0-based ``step``."""
        decayed = self.prob_max * jnp.exp(-self.prob_decay * (step - self.prob_flat_start).astype(jnp.float32))
        return jnp.clip(decayed, self.prob_min, self.prob_max)

    def grids(self, params: Any) -> dict[str, BlockGrid]:
        """The blocks of every array; vectors are one row of one block."""
        grids = {n: block_grid(v, self.block_size) for n, v in matrix_views(params, tables=True).items()}

        def vector(name: str, leaf: Any) -> None:
            if name not in grids:
                raw = raw_array(leaf)
                names = tuple(axis.name for axis in leaf.axes) if is_named(leaf) else (None,) * raw.ndim
                view = MatrixView(raw.shape, names, tuple(range(raw.ndim - 1)), (), tuple(range(raw.ndim))[-1:])
                grids[name] = block_grid(view, None)

        map_arrays(vector, params)
        return grids

    def is_triangular(self, grid: BlockGrid, side: str) -> bool:
        """Whether a side gets a triangular factor rather than a diagonal one."""
        size = grid.sizes[_SIDES.index(side)]
        return bool(grid.view.rows) and 1 < size <= self.max_triangular


def scale_by_kron(constants: KronConstants) -> optax.GradientTransformation:
    """Kron's direction ``u``; factors in float32 or wider."""

    def init(params: Any) -> KronState:
        factors = {}
        dtypes = {name: wide_dtype(raw_array(leaf).dtype) for name, leaf in named_leaves(params)}
        for name, grid in constants.grids(params).items():
            factors[name] = {}
            for side, size in zip(_SIDES, grid.sizes, strict=True):
                start = jnp.eye(size) if constants.is_triangular(grid, side) else jnp.ones((size,))
                whole = jnp.broadcast_to(start * constants.precond_init, (grid.num_blocks, *start.shape))
                factors[name][side] = grid.name(whole.astype(dtypes[name]))
        zero = jnp.zeros((), jnp.int32)
        key = jax.random.PRNGKey(constants.seed)
        return KronState(zero, key, jnp.zeros((), jnp.float32), zero, optax.tree.zeros_like(params), factors)

    def update(grads: Any, state: KronState, params: Any = None) -> tuple[Any, KronState]:
        grids = constants.grids(grads)
        count = jnp.asarray(optax.safe_increment(state.count))
        mu = optax.tree.update_moment(grads, state.mu, constants.b1, 1)
        mu_hat = optax.tree.bias_correction(mu, constants.b1, count)
        owed = state.due + constants.probability(state.count)
        refresh = owed >= 1
        key, probe_key = jax.random.split(state.key)
        balance = refresh & ((state.refreshes + 1) % constants.balance_every == 0)
        blocks: dict[str, jax.Array] = {}
        map_arrays(lambda name, moment: blocks.update({name: grids[name].split(raw_array(moment))}), mu_hat)
        old = {name: {side: raw_array(q) for side, q in sides.items()} for name, sides in state.factors.items()}

        def refresh_all(q: dict[str, dict[str, jax.Array]]) -> dict[str, dict[str, jax.Array]]:
            keys = dict(zip(blocks, jax.random.split(probe_key, len(blocks)), strict=True))
            return {n: _refresh(g, q[n], keys[n], constants.precond_lr, balance) for n, g in blocks.items()}

        new = jax.lax.cond(refresh, refresh_all, lambda q: q, old)
        factors = {n: {side: grids[n].name(q) for side, q in sides.items()} for n, sides in new.items()}

        def step(name: str, moment: Any) -> Any:
            clipped = _clip_rms(_precondition(blocks[name], new[name]), constants.rms_clip)
            value = grids[name].join(clipped).astype(raw_array(moment).dtype)
            return NamedArray(value, moment.axes) if is_named(moment) else value

        updates = map_arrays(step, mu_hat)
        due = jnp.where(refresh, owed - 1, owed)
        return updates, KronState(count, key, due, state.refreshes + refresh.astype(jnp.int32), mu, factors)

    return transformation(init, update)


def _left(q: jax.Array, x: jax.Array, *, transpose: bool = False) -> jax.Array:
    """``Q x`` or ``Q^T x``; ``q`` is ``[..., m, m]`` or the diagonal ``[..., m]``."""
    if q.ndim < x.ndim:
        return q[..., :, None] * x
    return (jnp.swapaxes(q, -1, -2) if transpose else q) @ x


def _right(q: jax.Array, x: jax.Array, *, transpose: bool = False) -> jax.Array:
    """``x Q`` or ``x Q^T``."""
    return jnp.swapaxes(_left(q, jnp.swapaxes(x, -1, -2), transpose=not transpose), -1, -2)


def _precondition(g: jax.Array, q: dict[str, jax.Array]) -> jax.Array:
    half = _left(q["left"], _left(q["left"], g), transpose=True)
    return _right(q["right"], _right(q["right"], half, transpose=True))


def _refresh(
    g: jax.Array, q: dict[str, jax.Array], key: jax.Array, rate: float, balance: jax.Array
) -> dict[str, jax.Array]:
    a = _right(q["right"], _left(q["left"], g), transpose=True)
    probe = jax.random.normal(key, g.shape, g.dtype)
    b = _solve_right(q["right"], _solve_left_transposed(q["left"], probe))
    new = {"left": _descend(q["left"], a, b, rate)}
    new["right"] = _descend(q["right"], jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2), rate)
    return _balance(new, balance)


def _solve_left_transposed(q: jax.Array, x: jax.Array) -> jax.Array:
    """``Q^{-T} x``, from ``x^T Q^{-1}``: on CPU the solve from the right is five times as fast."""
    return jnp.swapaxes(_solve_right(q, jnp.swapaxes(x, -1, -2)), -1, -2)


def _solve_right(q: jax.Array, x: jax.Array) -> jax.Array:
    """``x Q^{-1}``."""
    if q.ndim < x.ndim:
        return x / q[..., None, :]
    return jax.lax.linalg.triangular_solve(q, x, left_side=False, lower=False)


def _descend(q: jax.Array, a: jax.Array, b: jax.Array, rate: float) -> jax.Array:
    if q.ndim < a.ndim:
        square_a, square_b = jnp.sum(jnp.square(a), axis=-1), jnp.sum(jnp.square(b), axis=-1)
        scale = jnp.max(square_a + square_b, axis=-1, keepdims=True)
        return q - rate / jnp.maximum(scale, TINY) * (square_a - square_b) * q
    square_a, square_b = a @ jnp.swapaxes(a, -1, -2), b @ jnp.swapaxes(b, -1, -2)
    scale = _norm_bound(square_a + square_b)[..., None, None]
    return q - rate / jnp.maximum(scale, TINY) * jnp.triu(square_a - square_b) @ q


def _norm_bound(x: jax.Array) -> jax.Array:
    """Lower bound of the spectral norm of symmetric ``[..., n, n]``: two power steps from the row of largest norm."""
    largest = jnp.maximum(jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True), TINY)
    x = x / largest
    row = jnp.argmax(jnp.sum(jnp.square(x), axis=-1), axis=-1)
    start = jnp.take_along_axis(x, row[..., None, None], axis=-2) @ x
    start = start / jnp.maximum(jnp.linalg.norm(start, axis=-1, keepdims=True), TINY)
    return jnp.linalg.norm(start @ x, axis=-1)[..., 0] * largest[..., 0, 0]


def _balance(q: dict[str, jax.Array], due: jax.Array) -> dict[str, jax.Array]:
    """Give both factors of a block the same largest entry; their Kronecker product stays."""

    def peak(x: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(x), axis=tuple(range(1, x.ndim)))

    def widen(factor: jax.Array, x: jax.Array) -> jax.Array:
        return factor.reshape(-1, *[1] * (x.ndim - 1))

    left, right = q["left"], q["right"]
    factor = jnp.where(due, jnp.sqrt(peak(right) / peak(left)), 1.0)
    return {"left": left * widen(factor, left), "right": right / widen(factor, right)}


def _clip_rms(u: jax.Array, limit: float) -> jax.Array:
    rms = jnp.sqrt(jnp.mean(jnp.square(u), axis=(-2, -1), keepdims=True))
    return u / jnp.maximum(1.0, rms / limit)


@OptimizerConfig.register_subclass("kron")
@dataclass(frozen=True)
class KronConfig(OptimizerConfig):
    """PSGD Kron; see the module for the formula.

    Attributes:
        beta1: Decay of the momentum.
        precond_lr: Rate of the factors.
        precond_init: Factors start as this multiple of the identity.
        update_prob_max: Refreshes per step at the start.
        update_prob_min: Refreshes per step at the end.
        update_prob_decay: Exponential decay of the refresh rate per step.
        update_prob_flat_start: Steps before the decay.
        block_size: Longest side of a block; None for whole matrices.
        max_size_triangular: Longest side with a triangular factor.
        update_rms_clip: Largest root mean square of a block's update.
        balance_every: Refreshes between balancings.
        seed: Seed of the probes.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> KronConfig(learning_rate=3e-4).build(100) is not None
        True
    """

    beta1: float = 0.9
    precond_lr: float = 0.1
    precond_init: float = 1.0
    update_prob_max: float = 1.0
    update_prob_min: float = 0.05
    update_prob_decay: float = 0.001
    update_prob_flat_start: int = 500
    block_size: int | None = 256
    max_size_triangular: int = 25_000
    update_rms_clip: float = 1.1
    balance_every: int = 100
    seed: int = 0
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("kron", beta1=self.beta1)
        check_positive("kron", precond_lr=self.precond_lr, precond_init=self.precond_init, block_size=self.block_size)
        check_positive("kron", update_rms_clip=self.update_rms_clip, balance_every=self.balance_every)
        if not 0 < self.update_prob_min <= self.update_prob_max <= 1:
            raise ConfigError(
                f"update_prob_min={self.update_prob_min}, update_prob_max={self.update_prob_max}; expected "
                "0 < min <= max <= 1 refreshes per step.",
                key="optimizer.update_prob_max",
            )

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build Kron with an injected learning rate."""
        constants = KronConstants(
            b1=self.beta1,
            precond_lr=self.precond_lr,
            precond_init=self.precond_init,
            prob_max=self.update_prob_max,
            prob_min=self.update_prob_min,
            prob_decay=self.update_prob_decay,
            prob_flat_start=self.update_prob_flat_start,
            block_size=self.block_size,
            max_triangular=self.max_size_triangular,
            rms_clip=self.update_rms_clip,
            balance_every=self.balance_every,
            seed=self.seed,
        )
        return single_group(self, num_train_steps, scale_by_kron(constants), max_grad_norm=self.max_grad_norm)
