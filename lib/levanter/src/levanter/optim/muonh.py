r"""MuonH: Muon's direction, applied as a rotation of fixed norm.

    b_t = mu b_{t-1} + g_t,   d_t = NS(mu b_t + g_t),   p_t = hyperball(p_{t-1}, d_t, eta)

for the matrices, without the out/in scale, which the projection would remove again. The head takes AdamH at the same
rate; embeddings and vectors take Adam at ``adam_lr``.

| field | default |
|---|---|
| momentum, nesterov, backend_steps, coefficient_type, muon_epsilon | as Muon: 0.95, true, 5, quintic, 1e-8 |
| beta1, beta2, epsilon, adam_lr | as AdamH: 0.9, 0.95, 1e-8, 6e-4 |
| max_grad_norm, clip_scope | 1.0, global |

References:
    Hyperball optimization, arXiv:2606.16899; :mod:`levanter.optim.muon`, :mod:`levanter.optim.hyperball`.
"""

from dataclasses import dataclass
from typing import Any

import optax

from levanter.optim.composition import check_fractions, check_positive, grouped
from levanter.optim.config import OptimizerConfig
from levanter.optim.hyperball import hyperball
from levanter.optim.matrices import Kind
from levanter.optim.muon import orthogonalise
from levanter.optim.newton_schulz import check_coefficients

_GROUPS = {Kind.MATRIX: "muonh", Kind.HEAD: "adamh"}


@OptimizerConfig.register_subclass("muonH")
@dataclass(frozen=True)
class MuonHConfig(OptimizerConfig):
    """MuonH; see the module for the formula.

    Attributes:
        weight_decay: Unused: norms are fixed.
        momentum: Momentum of the matrices.
        nesterov: Look one step ahead.
        backend_steps: Newton–Schulz iterations.
        muon_epsilon: Added to the Frobenius norm.
        coefficient_type: Newton–Schulz coefficients: simple, quintic, polar_express or aol.
        newton_schulz_dtype: Dtype of the iterations; None keeps the parameters'.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        epsilon: Added to the root of Adam's second moment.
        adam_lr: Peak rate of Adam.
        max_grad_norm: Norm clip of the gradient; None switches it off.
        clip_scope: ``global`` or ``group``.
        adam_modules: Matrices that Adam should take too: a regular expression or substrings of their names.

    Example:
        >>> MuonHConfig(learning_rate=6e-3).build(100) is not None
        True
    """

    weight_decay: float = 0.0
    momentum: float = 0.95
    nesterov: bool = True
    backend_steps: int = 5
    muon_epsilon: float = 1e-8
    coefficient_type: str = "quintic"
    newton_schulz_dtype: str | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    adam_lr: float = 6e-4
    max_grad_norm: float | None = 1.0
    clip_scope: str = "global"
    adam_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coefficients(self.coefficient_type, steps=self.backend_steps)
        check_fractions("muonH", momentum=self.momentum, beta1=self.beta1, beta2=self.beta2)
        check_positive("muonH", muon_epsilon=self.muon_epsilon, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build MuonH; ``learning_rate`` and ``adam_lr`` are injected."""

        def groups(learning_rate: Any, adam_lr: Any) -> dict[str, list[optax.GradientTransformation]]:
            adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
            orthogonal = orthogonalise(
                steps=self.backend_steps,
                eps=self.muon_epsilon,
                coefficients=self.coefficient_type,
                scaling=None,
                dtype=self.newton_schulz_dtype,
            )
            momentum = optax.trace(self.momentum, nesterov=self.nesterov)
            return {
                "muonh": [momentum, orthogonal, hyperball(learning_rate)],
                "adamh": [adam, hyperball(learning_rate)],
                "adam": [adam, optax.scale_by_learning_rate(adam_lr)],
            }

        return grouped(
            self,
            num_train_steps,
            groups,
            lambda kind: _GROUPS.get(kind, "adam"),
            adam_lr=self.adam_lr,
            max_grad_norm=self.max_grad_norm,
            clip_scope=self.clip_scope,
            adam_modules=self.adam_modules,
        )
