r"""Muon: momentum, orthogonalised, for matrices; AdamW for everything else.

    b_t = mu b_{t-1} + g_t             x_t = mu b_t + g_t   (nesterov; else x_t = b_t)
    u_t = NS(x_t) s                    s = sqrt(max(1, out / in))  or  0.2 sqrt(max(out, in))  (use_kimi_scaling)
    p_t = p_{t-1} - eta (u_t + lambda p_{t-1})

NS is :func:`levanter.optim.newton_schulz.newton_schulz`. Embeddings, head, norms and biases take AdamW at ``adam_lr``.

| field | default |
|---|---|
| momentum, nesterov | 0.95, true |
| backend_steps, coefficient_type | 5, quintic |
| muon_epsilon | 1e-8 |
| weight_decay | 0 |
| adam_lr, beta1, beta2, epsilon | 6e-4, 0.9, 0.95, 1e-8 |
| adam_weight_decay | the value of weight_decay |
| max_grad_norm, clip_scope | 1.0, global |

Layers stacked for scanning are one batch of matrices; on a mesh every device orthogonalises whole matrices of its own.

References:
    Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024,
    https://kellerjordan.github.io/posts/muon/. Scaling: Liu et al., arXiv:2502.16982, section 2.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax

from levanter.optim.composition import Transform, check_fractions, check_positive, decay_and_rate, grouped
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import Kind, MatrixView, map_matrices, matrix_views
from levanter.optim.newton_schulz import check_coefficients, newton_schulz, update_scale


def orthogonalise(
    *, steps: int, eps: float, coefficients: str, scaling: str | None, dtype: str | None = None
) -> optax.GradientTransformation:
    """Replace every matrix by its orthogonal factor times a shape-dependent scale.

    Args:
        steps: Newton–Schulz iterations.
        eps: Added to the Frobenius norm.
        coefficients: Coefficient list.
        scaling: ``shape``, ``kimi``, or None for no scale.
        dtype: Dtype of the iterations; None keeps the update's.
    """

    def apply(view: MatrixView, x: jax.Array) -> jax.Array:
        matrices = view.matrices(x)
        work = matrices if dtype is None else matrices.astype(dtype)
        out = newton_schulz(work, steps=steps, eps=eps, coefficients=coefficients).astype(x.dtype)
        scale = 1.0 if scaling is None else update_scale(view.fan_in, view.fan_out, kimi=scaling == "kimi")
        return view.restore(out * scale)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return map_matrices(apply, matrix_views(updates), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@dataclass(frozen=True)
class OrthogonalMomentumConfig(OptimizerConfig):
    """What the optimizers share that orthogonalise the momentum of matrices and leave the rest to Adam.

    Attributes:
        weight_decay: Decay of the matrices, where the optimizer has it.
        momentum: Momentum of the matrices.
        nesterov: Look one step ahead.
        backend_steps: Newton–Schulz iterations.
        muon_epsilon: Added to the Frobenius norm.
        coefficient_type: Newton–Schulz coefficients: simple, quintic, polar_express or aol.
        newton_schulz_dtype: Dtype of the iterations; None keeps the parameters'.
        adam_lr: Peak rate of Adam.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        epsilon: Added to the root of Adam's second moment.
        max_grad_norm: Norm clip of the gradient; None switches it off.
        clip_scope: ``global`` or ``group``.
        adam_modules: Matrices that Adam should take too: a regular expression or substrings of their names.
    """

    weight_decay: float = 0.0
    momentum: float = 0.95
    nesterov: bool = True
    backend_steps: int = 5
    muon_epsilon: float = 1e-8
    coefficient_type: str = "quintic"
    newton_schulz_dtype: str | None = None
    adam_lr: float = 6e-4
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    clip_scope: str = "global"
    adam_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coefficients(self.coefficient_type, steps=self.backend_steps)
        name = type(self).__name__
        check_fractions(name, momentum=self.momentum, beta1=self.beta1, beta2=self.beta2)
        check_positive(name, muon_epsilon=self.muon_epsilon, max_grad_norm=self.max_grad_norm)

    def direction(self, scaling: str | None) -> list[Transform]:
        """Momentum, then the orthogonal factor times the scale of that name; see :func:`orthogonalise`."""
        orthogonal = orthogonalise(
            steps=self.backend_steps,
            eps=self.muon_epsilon,
            coefficients=self.coefficient_type,
            scaling=scaling,
            dtype=self.newton_schulz_dtype,
        )
        return [optax.trace(self.momentum, nesterov=self.nesterov), orthogonal]

    def adam(self) -> Transform:
        """Adam's direction for everything else."""
        return optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)

    def by_kind(
        self,
        num_train_steps: int,
        groups: Callable[[Any, Any], Mapping[str, list[Transform]]],
        names: Mapping[Kind, str],
    ) -> Transform:
        """:func:`~levanter.optim.composition.grouped` with this configuration's clip and second rate.

        Args:
            num_train_steps: Steps in the run.
            groups: ``groups(learning_rate, adam_lr)`` gives each group's transforms, rates included.
            names: Group of a kind of parameter; ``adam`` for those that are not there.
        """
        return grouped(
            self,
            num_train_steps,
            groups,
            lambda kind: names.get(kind, "adam"),
            adam_lr=self.adam_lr,
            max_grad_norm=self.max_grad_norm,
            clip_scope=self.clip_scope,
            adam_modules=self.adam_modules,
        )


@OptimizerConfig.register_subclass("muon")
@dataclass(frozen=True)
class MuonConfig(OrthogonalMomentumConfig):
    """Muon with AdamW for what is no matrix; see the module for the formula.

    Attributes:
        use_kimi_scaling: Scale updates to AdamW's root mean square.
        adam_weight_decay: Decay under AdamW; None takes ``weight_decay``.

    Example:
        >>> MuonConfig(learning_rate=2e-2).build(100) is not None
        True
    """

    use_kimi_scaling: bool = False
    adam_weight_decay: float | None = None

    def build(self, num_train_steps: int) -> Transform:
        """Build Muon; ``learning_rate`` and ``adam_lr`` are injected."""
        adam_decay = self.weight_decay if self.adam_weight_decay is None else self.adam_weight_decay
        scaling = "kimi" if self.use_kimi_scaling else "shape"

        def groups(learning_rate: Any, adam_lr: Any) -> dict[str, list[Transform]]:
            return {
                "muon": [*self.direction(scaling), *decay_and_rate(self, learning_rate, self.weight_decay)],
                "adam": [self.adam(), *decay_and_rate(self, adam_lr, adam_decay)],
            }

        return self.by_kind(num_train_steps, groups, {Kind.MATRIX: "muon"})


@OptimizerConfig.register_subclass("grug_muon")
@dataclass(frozen=True)
class GrugMuonConfig(MuonConfig):
    """Muon for models of raw arrays in ``(fan_in, fan_out)`` layout, iterated in bfloat16.

    Raw arrays are recognised by rank (two, or stacks of two) whatever their names, so a renamed expert stack cannot
    silently fall back to AdamW. Embeddings, ``lm_head``, ``output_proj`` and the router take AdamW.

    Example:
        >>> GrugMuonConfig().newton_schulz_dtype
        'bfloat16'
    """

    newton_schulz_dtype: str | None = "bfloat16"
    adam_modules: list[str] | str | None = r"router|attn_gate"
