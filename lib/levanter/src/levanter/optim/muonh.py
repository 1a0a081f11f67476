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

from levanter.optim.composition import Transform
from levanter.optim.config import OptimizerConfig
from levanter.optim.hyperball import hyperball
from levanter.optim.matrices import Kind
from levanter.optim.muon import OrthogonalMomentumConfig


@OptimizerConfig.register_subclass("muonH")
@dataclass(frozen=True)
class MuonHConfig(OrthogonalMomentumConfig):
    """MuonH; see the module for the formula. ``weight_decay`` is unused: norms are fixed.

    Example:
        >>> MuonHConfig(learning_rate=6e-3).build(100) is not None
        True
    """

    def build(self, num_train_steps: int) -> Transform:
        """Build MuonH; ``learning_rate`` and ``adam_lr`` are injected."""

        def groups(learning_rate: Any, adam_lr: Any) -> dict[str, list[Transform]]:
            return {
                "muonh": [*self.direction(None), hyperball(learning_rate)],
                "adamh": [self.adam(), hyperball(learning_rate)],
                "adam": [self.adam(), optax.scale_by_learning_rate(adam_lr)],
            }

        return self.by_kind(num_train_steps, groups, {Kind.MATRIX: "muonh", Kind.HEAD: "adamh"})
