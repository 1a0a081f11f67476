"""Neural network layers and functions over named axes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# ruff: noqa: F401
if TYPE_CHECKING:
    from haliax.hof import (
        ScanCheckpointPolicy,
    )
    from haliax.nn import (
        activations,
        array_stacked,
        attention,
        conv,
        dropout,
        embedding,
        linear,
        loss,
        mlp,
        mup,
        normalization,
        one_hot,
        pool,
        ragged_dot,
        scan,
    )
    from haliax.nn.activations import (
        celu,
        elu,
        gelu,
        glu,
        hard_sigmoid,
        hard_silu,
        hard_swish,
        hard_tanh,
        leaky_relu,
        log_sigmoid,
        quick_gelu,
        relu,
        relu6,
        relu_squared,
        selu,
        sigmoid,
        silu,
        soft_sign,
        softplus,
        swish,
    )
    from haliax.nn.array_stacked import (
        ArrayStacked,
    )
    from haliax.nn.attention import (
        alibi_attention_bias,
        causal_mask,
        combine_masks_and,
        combine_masks_or,
        dot_product_attention,
        dot_product_attention_weights,
        forgetful_causal_mask,
        mask_to_bias,
        prefix_lm_mask,
    )
    from haliax.nn.conv import (
        Conv,
        ConvTranspose,
    )
    from haliax.nn.dot_general import (
        DefaultDotGeneralOp,
        DotGeneralOp,
    )
    from haliax.nn.dropout import (
        Dropout,
        DropoutKeyError,
    )
    from haliax.nn.embedding import (
        Embedding,
    )
    from haliax.nn.linear import (
        Linear,
        MoELinear,
    )
    from haliax.nn.loss import (
        binary_cross_entropy_loss,
        cross_entropy_loss,
        cross_entropy_loss_and_log_normalizers,
        perplexity,
        reduce_loss,
    )
    from haliax.nn.mlp import (
        MLP,
    )
    from haliax.nn.mup import (
        ReparamEnabled,
    )
    from haliax.nn.normalization import (
        LayerNorm,
        LayerNormBase,
        RmsNorm,
        log_softmax,
        logsumexp,
        softmax,
        standardize,
    )
    from haliax.nn.pool import (
        max_pool,
        mean_pool,
        min_pool,
    )
    from haliax.nn.scan import (
        BlockFoldable,
        BlockSeq,
        Layers,
        Stacked,
    )
    from haliax.nn.storage_order import (
        StorageOrderDotGeneral,
    )

_EXPORTS = {
    "haliax.hof": """
        ScanCheckpointPolicy
    """,
    "haliax.nn.activations": """
        celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid quick_gelu relu
        relu6 relu_squared selu sigmoid silu soft_sign softplus swish
    """,
    "haliax.nn.array_stacked": """
        ArrayStacked
    """,
    "haliax.nn.attention": """
        alibi_attention_bias causal_mask combine_masks_and combine_masks_or dot_product_attention
        dot_product_attention_weights forgetful_causal_mask mask_to_bias prefix_lm_mask
    """,
    "haliax.nn.conv": """
        Conv ConvTranspose
    """,
    "haliax.nn.dot_general": """
        DefaultDotGeneralOp DotGeneralOp
    """,
    "haliax.nn.dropout": """
        Dropout DropoutKeyError
    """,
    "haliax.nn.embedding": """
        Embedding
    """,
    "haliax.nn.linear": """
        Linear MoELinear
    """,
    "haliax.nn.loss": """
        binary_cross_entropy_loss cross_entropy_loss cross_entropy_loss_and_log_normalizers perplexity
        reduce_loss
    """,
    "haliax.nn.mlp": """
        MLP
    """,
    "haliax.nn.mup": """
        ReparamEnabled
    """,
    "haliax.nn.normalization": """
        LayerNorm LayerNormBase RmsNorm log_softmax logsumexp softmax standardize
    """,
    "haliax.nn.pool": """
        max_pool mean_pool min_pool
    """,
    "haliax.nn.scan": """
        BlockFoldable BlockSeq Layers Stacked
    """,
    "haliax.nn.storage_order": """
        StorageOrderDotGeneral
    """,
}
_SUBMODULES = frozenset(
    """
    activations array_stacked attention conv dropout embedding linear loss mlp mup normalization one_hot
    pool ragged_dot scan
    """.split()
)
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = sorted([*_HOME, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"haliax.nn.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'haliax.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
