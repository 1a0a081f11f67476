"""What defines a training run: shape, optimiser, data order, length. Plain data, no jax.

The problem: a trainer has two hundred knobs and an experiment has ten decisions. The idea: only decisions enter a
recipe, and with it the fingerprint; how often to save or log is plumbing that the training step owns.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelShape:
    """Shape of a Llama.

    Attributes:
        hidden_dim: Width of the residual stream.
        intermediate_dim: Width of the gated MLP.
        num_layers: Blocks.
        num_heads: Query heads; they divide ``hidden_dim``.
        num_kv_heads: Key and value heads; they divide ``num_heads``.
        seq_len: Positions in one training sequence.
        tie_word_embeddings: Share the embedding with the output head.
        init_std: Standard deviation of the initial weights.
    """

    hidden_dim: int = 128
    intermediate_dim: int = 352
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 4
    seq_len: int = 256
    tie_word_embeddings: bool = True
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.hidden_dim % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"bad model shape: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}, "
                f"num_kv_heads={self.num_kv_heads}; expected num_heads to divide hidden_dim and num_kv_heads to divide "
                "num_heads."
            )


@dataclass(frozen=True)
class AdamWRecipe:
    """AdamW with linear warm-up and a decay to a fraction of the peak.

    Attributes:
        learning_rate: Peak rate.
        weight_decay: Decoupled decay.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        warmup: Fraction of the steps.
        min_lr_ratio: Final rate over peak rate.
        max_grad_norm: Global-norm clip; None leaves gradients alone.
        schedule: Shape of the decay, ``cosine`` or ``linear``.
    """

    learning_rate: float = 5e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    warmup: float = 0.05
    min_lr_ratio: float = 0.0
    max_grad_norm: float | None = 1.0
    schedule: str = "linear"


@dataclass(frozen=True)
class LmRecipe:
    """One language-model training run.

    Attributes:
        model: Shape.
        optimizer: Optimiser and schedule.
        batch_size: Sequences in one step.
        num_steps: Optimiser steps.
        seed: Root of initialisation and data order.
        z_loss_weight: Penalty on the squared log-partition function, per squared nat.
        max_loss_ratio: A loss this many times above the lowest so far counts as bad.
        max_bad_steps: Bad steps in a row after which the run counts as diverged.
    """

    model: ModelShape = field(default_factory=ModelShape)
    optimizer: AdamWRecipe = field(default_factory=AdamWRecipe)
    batch_size: int = 4
    num_steps: int = 300
    seed: int = 0
    z_loss_weight: float = 0.0
    max_loss_ratio: float = 2.0
    max_bad_steps: int = 3


@dataclass(frozen=True)
class TrainLmConfig:
    """One training step: a recipe and where its inputs and outputs lie.

    Attributes:
        output_path: Folder that receives ``checkpoints/`` and ``logs/``.
        scratch_path: Folder that survives a killed attempt; checkpoints are written there while training.
        cache_path: Folder of a token cache with ``train`` and ``validation`` splits.
        tokenizer_path: Folder of ``tokenizer.json``.
        recipe: What defines the run.
    """

    output_path: str
    scratch_path: str
    cache_path: str
    tokenizer_path: str
    recipe: LmRecipe


@dataclass(frozen=True)
class ExportConfig:
    """What to export in Hugging Face layout.

    Attributes:
        output_path: Folder that receives config.json, safetensors and the tokeniser.
        checkpoint_path: Folder of a ``LevanterCheckpoint``.
        tokenizer_path: Folder of ``tokenizer.json``.
        model: Shape of the model.
    """

    output_path: str
    checkpoint_path: str
    tokenizer_path: str
    model: ModelShape
