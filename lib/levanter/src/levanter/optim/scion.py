r"""Scion: steepest descent under a norm chosen per layer: the operator norm for matrices, the max norm elsewhere.

    b_t = mu b_{t-1} + (1 - mu) g_t
    matrices:   u_t = NS(b_t) sqrt(max(1, out / in))                 at rate eta
    the rest:   u_t = sign(a_t),  a_t = beta1 a_{t-1} + (1 - beta1) g_t   at rate eta * signum_ratio
    p_t = p_{t-1} - rate (u_t + lambda p_{t-1})

| field | default |
|---|---|
| momentum, backend_steps, coefficient_type | 0.95, 10, simple |
| scion_epsilon | 1e-8 |
| beta1, signum_ratio | 0.9, 0.25 |
| max_grad_norm, clip_scope | 1.0, global |

One state array per parameter; no second moment anywhere. Embeddings and the head belong to the rest.

References:
    Pethick et al., Training deep learning models with norm-constrained LMOs, arXiv:2502.07529, algorithm 1, table 2.
"""

from dataclasses import dataclass
from typing import Any

import optax

from levanter.optim.composition import check_fractions, check_positive, decay_and_rate, grouped
from levanter.optim.config import OptimizerConfig
from levanter.optim.matrices import Kind
from levanter.optim.muon import orthogonalise
from levanter.optim.newton_schulz import check_coefficients


@OptimizerConfig.register_subclass("scion")
@dataclass(frozen=True)
class ScionConfig(OptimizerConfig):
    """Scion; see the module for the formula.

    Attributes:
        momentum: Decay of the average gradient of matrices.
        backend_steps: Newton–Schulz iterations.
        coefficient_type: Newton–Schulz coefficients: simple, quintic, polar_express or aol.
        scion_epsilon: Added to the Frobenius norm.
        beta1: Decay of the average gradient of the rest.
        signum_ratio: Rate of the rest as a fraction of ``learning_rate``.
        max_grad_norm: Norm clip of the gradient; None switches it off.
        clip_scope: ``global`` or ``group``.
        adam_modules: Matrices that take the sign update too: a regular expression or substrings of their names.

    Example:
        >>> ScionConfig(learning_rate=1e-2).build(100) is not None
        True
    """

    momentum: float = 0.95
    backend_steps: int = 10
    coefficient_type: str = "simple"
    scion_epsilon: float = 1e-8
    beta1: float = 0.9
    signum_ratio: float = 0.25
    max_grad_norm: float | None = 1.0
    clip_scope: str = "global"
    adam_modules: list[str] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_coefficients(self.coefficient_type, steps=self.backend_steps)
        check_fractions("scion", momentum=self.momentum, beta1=self.beta1)
        check_positive("scion", signum_ratio=self.signum_ratio, max_grad_norm=self.max_grad_norm)

    def build(self, num_train_steps: int) -> optax.GradientTransformation:
        """Build Scion; the rate of the sign updates is logged as ``adam_lr``."""

        def groups(learning_rate: Any, adam_lr: Any) -> dict[str, list[optax.GradientTransformation]]:
            orthogonal = orthogonalise(
                steps=self.backend_steps,
                eps=self.scion_epsilon,
                coefficients=self.coefficient_type,
                scaling="shape",
            )
            average = optax.ema(self.momentum, debias=False)
            signs = [optax.ema(self.beta1, debias=False), optax.scale_by_sign()]
            return {
                "scion": [average, orthogonal, *decay_and_rate(self, learning_rate, self.weight_decay)],
                "signum": [*signs, *decay_and_rate(self, adam_lr, self.weight_decay)],
            }

        return grouped(
            self,
            num_train_steps,
            groups,
            lambda kind: "scion" if kind is Kind.MATRIX else "signum",
            adam_lr=self.learning_rate * self.signum_ratio,
            max_grad_norm=self.max_grad_norm,
            clip_scope=self.clip_scope,
            adam_modules=self.adam_modules,
        )
