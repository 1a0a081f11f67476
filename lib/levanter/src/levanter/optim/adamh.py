r"""AdamH: Adam's direction, applied as a rotation of fixed norm.

    d_t = m_hat_t / (sqrt(v_hat_t) + eps)          (Adam, arXiv:1412.6980)
    p_t = hyperball(p_{t-1}, d_t, eta)             (:mod:`levanter.optim.hyperball`)

for the weight of every linear layer, the head included. Embeddings, norms and biases take Adam at ``adam_lr`` without
decay. There is no weight decay: the norm of a matrix is what it was at initialisation, for ever.

| field | default |
|---|---|
| beta1, beta2, epsilon | 0.9, 0.95, 1e-8 |
| adam_lr | 6e-4 |
| max_grad_norm, clip_scope | 1.0, global |

Rule of thumb: ``eta ~ sqrt(eta_adamw lambda)``.

References:
    Hyperball optimization, arXiv:2606.16899. Scaling over model size: :mod:`levanter.optim.completed_adamh`.
"""

from dataclasses import dataclass
from typing import Any

import optax

from levanter.optim.composition import check_fractions, check_positive, grouped
from levanter.optim.config import OptimizerConfig
from levanter.optim.hyperball import hyperball
from levanter.optim.matrices import Kind


@OptimizerConfig.register_subclass("adamH")
@dataclass(frozen=True)
class AdamHConfig(OptimizerConfig):
    """AdamH with Adam for what is no matrix; see the module for the formula.

    Attributes:
        weight_decay: Unused: norms are fixed.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        adam_lr: Peak rate of Adam.
        max_grad_norm: Norm clip of the gradient; None switches it off.
        clip_scope: ``global`` or ``group``.
        adam_modules: Matrices that Adam should take too: a regular expression or substrings of their names.

    Example:
        >>> AdamHConfig(learning_rate=6e-3).build(100) is not None
        True
    """

    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    adam_lr: float = 6e-4
    max_grad_norm: float | None = 1.0
    clip_scope: str = "global"
    adam_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions("adamH", beta1=self.beta1, beta2=self.beta2)
        check_positive("adamH", epsilon=self.epsilon, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build AdamH; ``learning_rate`` and ``adam_lr`` are injected."""

        def groups(learning_rate: Any, adam_lr: Any) -> dict[str, list[optax.GradientTransformation]]:
            adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
            return {"adamh": [adam, hyperball(learning_rate)], "adam": [adam, optax.scale_by_learning_rate(adam_lr)]}

        return grouped(
            self,
            num_train_steps,
            groups,
            lambda kind: "adamh" if kind in (Kind.MATRIX, Kind.HEAD) else "adam",
            adam_lr=self.adam_lr,
            max_grad_norm=self.max_grad_norm,
            clip_scope=self.clip_scope,
            adam_modules=self.adam_modules,
        )
