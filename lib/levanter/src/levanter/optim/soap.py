r"""SOAP: Adam in the slowly moving eigenbasis of Shampoo's preconditioner.

For a block ``G`` (at most ``block_size`` on a side) with bases ``Q_L``, ``Q_R``:

    step 1    L = (1 - b) G G^T,  R = (1 - b) G^T G,  Q_L, Q_R = their eigenvectors; no update
    step t    M = beta1 M + (1 - beta1) G
              G' = Q_L^T G Q_R,   V = beta2 V + (1 - beta2) G'^2
              U = Q_L ( (Q_L^T M Q_R) / (1 - beta1^{t-1}) / (sqrt(V / (1 - beta2^{t-1})) + eps) ) Q_R^T
              L = b L + (1 - b) G G^T,  R likewise         (b = shampoo_beta)
              every ``precondition_frequency`` steps: sort the columns of Q by diag(Q^T L Q), falling, and V along;
              Q = qr(L Q)                                  (one step of power iteration)
    p_t = p_{t-1} - eta (U + lambda p_{t-1})

Arrays that are no matrix (norms, biases) take Adam with the same constants.

| field | default |
|---|---|
| beta1, beta2, shampoo_beta | 0.95, 0.95, 0.95 |
| epsilon | 1e-8 |
| precondition_frequency | 10 |
| block_size, max_precond_dim | 256, 10000 |
| max_grad_norm | 1.0 |

A side longer than ``max_precond_dim`` after blocking keeps its own basis (only possible with ``block_size: null``).

References:
    Vyas et al., SOAP: improving and stabilizing Shampoo using Adam, arXiv:2409.11321, algorithm 3.
    Blocking: Anil et al., Scalable second order optimization, arXiv:2002.09018, section 3.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from levanter.errors import ConfigError
from levanter.optim.blocks import BlockGrid, block_grid
from levanter.optim.composition import check_fractions, check_positive, single_group, transformation
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import map_arrays, matrix_views, wide_dtype
from levanter.tree_paths import is_named, raw_array


class SoapState(NamedTuple):
    """Moments and bases: ``mu`` has the parameters' structure; the rest is by leaf name.

    ``nu[name]``: second moment, in the eigenbasis for matrices. ``factors[name]``: the averages L and R.
    ``bases[name]``: Q_L and Q_R. A side that is not preconditioned is absent.
    """

    count: jax.Array
    mu: Any
    nu: dict[str, Any]
    factors: dict[str, dict[str, Any]]
    bases: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SoapConstants:
    """What fixes SOAP's arithmetic; the fields of :class:`SoapConfig`."""

    b1: float = 0.95
    b2: float = 0.95
    shampoo_beta: float = 0.95
    eps: float = 1e-8
    frequency: int = 10
    block_size: int | None = 256
    max_dim: int = 10_000

    def grids(self, params: Any) -> dict[str, BlockGrid]:
        """The blocks of every matrix."""
        return {n: block_grid(v, self.block_size) for n, v in matrix_views(params, tables=True).items()}

    def sides(self, grid: BlockGrid) -> list[tuple[str, int]]:
        """The sides that are preconditioned, with their sizes."""
        return [(side, n) for side, n in zip(("left", "right"), grid.sizes, strict=True) if n <= self.max_dim]


def scale_by_soap(constants: SoapConstants) -> optax.GradientTransformation:
    """SOAP's direction ``U``; state in float32 or wider except ``mu``, which has the parameters' dtype."""

    def init(params: Any) -> SoapState:
        grids = constants.grids(params)
        nu, factors, bases = {}, {}, {}

        def visit(name: str, leaf: Any) -> None:
            if name not in grids:
                nu[name] = optax.tree.zeros_like(leaf)
                return
            grid = grids[name]
            dtype = wide_dtype(raw_array(leaf).dtype)
            nu[name] = grid.name(jnp.zeros((grid.num_blocks, *grid.sizes), dtype))
            squares = {side: jnp.zeros((grid.num_blocks, n, n), dtype) for side, n in constants.sides(grid)}
            factors[name] = {side: grid.name(value) for side, value in squares.items()}
            bases[name] = {side: grid.name(value) for side, value in squares.items()}

        map_arrays(visit, params)
        return SoapState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), nu, factors, bases)

    def update(grads: Any, state: SoapState, params: Any = None) -> tuple[Any, SoapState]:
        grids = constants.grids(grads)
        seen = state.count
        mu = optax.tree.update_moment(grads, state.mu, constants.b1, 1)
        # The first step only builds the bases: its gradient enters neither moment.
        mu = jax.tree.map(lambda new, old: jnp.where(seen == 0, old, new), mu, state.mu)
        nu, factors, bases = {}, {}, {}

        def step(name: str, grad: Any, moment: Any) -> Any:
            if name not in grids:
                second = constants.b2 * raw_array(state.nu[name]) + (1 - constants.b2) * raw_array(grad) ** 2
                second = jnp.where(seen == 0, raw_array(state.nu[name]), second)
                nu[name] = _like(state.nu[name], second)
                return _like(grad, _adam(raw_array(moment), second, seen, constants))
            grid = grids[name]
            old = _Block.read(state, name)
            new, blocks = _step_matrix(grid.split(raw_array(grad)), grid.split(raw_array(moment)), old, seen, constants)
            nu[name] = grid.name(new.nu)
            factors[name] = {side: grid.name(value) for side, value in new.factors.items()}
            bases[name] = {side: grid.name(value) for side, value in new.bases.items()}
            return _like(grad, grid.join(blocks).astype(raw_array(grad).dtype))

        updates = map_arrays(step, grads, mu)
        return updates, SoapState(jnp.asarray(optax.safe_increment(seen)), mu, nu, factors, bases)

    return transformation(init, update)


class _Block(NamedTuple):
    nu: jax.Array
    factors: dict[str, jax.Array]
    bases: dict[str, jax.Array]

    @staticmethod
    def read(state: SoapState, name: str) -> "_Block":
        sides = [{side: raw_array(x) for side, x in group[name].items()} for group in (state.factors, state.bases)]
        return _Block(raw_array(state.nu[name]), *sides)


def _step_matrix(
    g: jax.Array, m: jax.Array, old: _Block, seen: jax.Array, constants: SoapConstants
) -> tuple[_Block, jax.Array]:
    """One step over blocks ``[N, BI, BO]``; returns the new state and the direction."""
    turned = _rotate(g, old.bases, into=True)
    nu = jnp.where(seen == 0, old.nu, constants.b2 * old.nu + (1 - constants.b2) * jnp.square(turned))
    scaled = _adam(_rotate(m, old.bases, into=True), nu, seen, constants)
    direction = _rotate(scaled, old.bases, into=False)
    outer = {"left": lambda: g @ jnp.swapaxes(g, -1, -2), "right": lambda: jnp.swapaxes(g, -1, -2) @ g}
    beta = constants.shampoo_beta
    factors = {side: beta * value + (1 - beta) * outer[side]() for side, value in old.factors.items()}

    def first(nu: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return nu, {side: jnp.linalg.eigh(value)[1][..., ::-1] for side, value in factors.items()}

    def refresh(nu: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        bases = {}
        for side, value in factors.items():
            basis = old.bases[side]
            order = jnp.argsort(-jnp.einsum("...ij,...ik,...kj->...j", basis, value, basis), axis=-1)
            basis = jnp.take_along_axis(basis, order[..., None, :], axis=-1)
            nu = jnp.take_along_axis(nu, order[..., :, None] if side == "left" else order[..., None, :], _AXIS[side])
            bases[side] = jnp.linalg.qr(value @ basis)[0]
        return nu, bases

    due = jnp.where(seen == 0, 0, jnp.where(seen % constants.frequency == 0, 1, 2))
    nu, bases = jax.lax.switch(due, [first, refresh, lambda nu: (nu, old.bases)], nu)
    return _Block(nu, factors, bases), direction


_AXIS = {"left": -2, "right": -1}


def _rotate(x: jax.Array, bases: dict[str, jax.Array], *, into: bool) -> jax.Array:
    if "left" in bases:
        left = bases["left"]
        x = (jnp.swapaxes(left, -1, -2) if into else left) @ x
    if "right" in bases:
        right = bases["right"]
        x = x @ (right if into else jnp.swapaxes(right, -1, -2))
    return x


def _adam(m: jax.Array, v: jax.Array, seen: jax.Array, constants: SoapConstants) -> jax.Array:
    t = jnp.maximum(seen, 1)
    direction = (m / (1 - constants.b1**t)) / (jnp.sqrt(v / (1 - constants.b2**t)) + constants.eps)
    return jnp.where(seen == 0, 0.0, direction)


def _like(leaf: Any, value: jax.Array) -> Any:
    return type(leaf)(value, leaf.axes) if is_named(leaf) else value


@OptimizerConfig.register_subclass("soap")
@dataclass(frozen=True)
class SoapConfig(OptimizerConfig):
    """SOAP; see the module for the formula.

    Attributes:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        shampoo_beta: Decay of the factors L and R.
        epsilon: Added to the root of the second moment.
        precondition_frequency: Steps between refreshes of the bases.
        block_size: Longest side of a block; None for whole matrices.
        max_precond_dim: Longest side that gets a basis.
        max_grad_norm: Global-norm clip of the gradient; None switches it off.

    Example:
        >>> SoapConfig(learning_rate=3e-3).build(100) is not None
        True
    """

    beta1: float = 0.95
    beta2: float = 0.95
    shampoo_beta: float = 0.95
    epsilon: float = 1e-8
    precondition_frequency: int = 10
    block_size: int | None = 256
    max_precond_dim: int = 10_000
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("soap", beta1=self.beta1, beta2=self.beta2, shampoo_beta=self.shampoo_beta)
        check_positive("soap", epsilon=self.epsilon, block_size=self.block_size, max_grad_norm=self.max_grad_norm)
        if self.precondition_frequency < 1:
            raise ConfigError(
                f"precondition_frequency={self.precondition_frequency}; expected at least 1 step.",
                key="optimizer.precondition_frequency",
            )

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build SOAP with an injected learning rate."""
        constants = SoapConstants(
            b1=self.beta1,
            b2=self.beta2,
            shampoo_beta=self.shampoo_beta,
            eps=self.epsilon,
            frequency=self.precondition_frequency,
            block_size=self.block_size,
            max_dim=self.max_precond_dim,
        )
        return single_group(self, num_train_steps, scale_by_soap(constants), max_grad_norm=self.max_grad_norm)
