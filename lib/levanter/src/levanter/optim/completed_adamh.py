r"""CompletedAdamH: AdamH's four constants for any batch and any length of run, from one tuned reference.

With batch ``B`` in sequences, ``T`` tokens in the whole run, reference ``(B0, T0)`` and ``rho = (B / T) / (B0 / T0)``:

    eta     = min(eta0 sqrt(B / B0) (T0 / T)^0.3, 0.01)       rate of the matrices
    adam_lr = min(a0 sqrt(rho), 0.01)                          rate of embeddings and vectors
    eps     = eps0 / sqrt(rho)
    beta2   = clip(beta2_0 ^ (B / B0), low, high)

| field | dense | mixture of experts |
|---|---|---|
| B0, T0 | 64, 2.5e9 | 32, 1.4e9 |
| eta0, a0 | 0.00630, 0.000656 | 0.003701, 0.002356 |
| eps0 | 1.85e-8 | 1e-15 |
| beta1, beta2_0, clip of beta2 | 0.9, 0.9999, [0.9, 0.9999] | 0.9062, 0.999, [0.95, 0.9999] |
| max_grad_norm | 0.1 | 1.0 |
| schedule | warm-up 0.1, linear decay over 0.2, to 0 | the same |

The model's width does not enter: rotations of fixed norm have the same optimum at every width.

References:
    Delphi suite, the public Marin project, 2026. Batch and horizon scaling of Adam: Malladi et al., arXiv:2205.10287;
    Bergsma et al., Power lines, arXiv:2505.13738.
"""

import math
from dataclasses import dataclass

from levanter.errors import ConfigError
from levanter.optim.adamh import AdamHConfig

RATE_CAP = 0.01
HORIZON_EXPONENT = 0.3


@dataclass(frozen=True)
class CompletedAdamH:
    """A tuned reference run and the rule that carries it to others.

    Attributes:
        batch_size: Reference batch in sequences.
        tokens: Reference tokens.
        learning_rate: Reference rate of the matrices.
        adam_lr: Reference rate of embeddings and vectors.
        epsilon: Reference epsilon.
        beta1: Decay of the first moment, not scaled.
        beta2: Reference decay of the second moment.
        beta2_range: Clip of the scaled one.
        max_grad_norm: Global-norm clip, not scaled.
    """

    batch_size: int = 64
    tokens: float = 2.5e9
    learning_rate: float = 0.00630
    adam_lr: float = 0.000656
    epsilon: float = 1.85e-8
    beta1: float = 0.9
    beta2: float = 0.9999
    beta2_range: tuple[float, float] = (0.9, 0.9999)
    max_grad_norm: float = 0.1

    def config(self, batch_size: int, tokens: float) -> AdamHConfig:
        """AdamH for a run of ``tokens`` tokens in batches of ``batch_size`` sequences.

        Raises:
            ConfigError: either is not above 0.

        Example:
            >>> scaled = DENSE.config(batch_size=64, tokens=40_283 * 64 * 4096)
            >>> round(scaled.learning_rate, 6), round(scaled.adam_lr, 7)
            (0.004089, 0.0003192)
        """
        if batch_size <= 0 or tokens <= 0:
            raise ConfigError(
                f"batch_size={batch_size}, tokens={tokens}; expected both > 0. tokens counts the whole run.",
                key="optimizer",
            )
        ratio = batch_size / self.batch_size
        rho = ratio * self.tokens / tokens
        rate = self.learning_rate * math.sqrt(ratio) * (self.tokens / tokens) ** HORIZON_EXPONENT
        low, high = self.beta2_range
        return AdamHConfig(
            learning_rate=min(rate, RATE_CAP),
            adam_lr=min(self.adam_lr * math.sqrt(rho), RATE_CAP),
            epsilon=self.epsilon / math.sqrt(rho),
            beta1=self.beta1,
            beta2=min(max(self.beta2**ratio, low), high),
            max_grad_norm=self.max_grad_norm,
            warmup=0.1,
            decay=0.2,
            min_lr_ratio=0.0,
            lr_schedule="linear",
        )


DENSE = CompletedAdamH()
MIXTURE_OF_EXPERTS = CompletedAdamH(
    batch_size=32,
    tokens=1.4e9,
    learning_rate=0.003701,
    adam_lr=0.002356,
    epsilon=1e-15,
    beta1=0.9062,
    beta2=0.999,
    beta2_range=(0.95, 0.9999),
    max_grad_norm=1.0,
)
