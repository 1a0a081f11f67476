"""Neural network layers and functions over named axes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_EXPORTS: dict[str, str] = {
    "ArrayStacked": "haliax.nn.array_stacked:ArrayStacked",
    "BlockFoldable": "haliax.nn.scan:BlockFoldable",
    "BlockSeq": "haliax.nn.scan:BlockSeq",
    "Conv": "haliax.nn.conv:Conv",
    "ConvTranspose": "haliax.nn.conv:ConvTranspose",
    "DefaultDotGeneralOp": "haliax.nn.dot_general:DefaultDotGeneralOp",
    "DotGeneralOp": "haliax.nn.dot_general:DotGeneralOp",
    "Dropout": "haliax.nn.dropout:Dropout",
    "DropoutKeyError": "haliax.nn.dropout:DropoutKeyError",
    "Embedding": "haliax.nn.embedding:Embedding",
    "LayerNorm": "haliax.nn.normalization:LayerNorm",
    "LayerNormBase": "haliax.nn.normalization:LayerNormBase",
    "Layers": "haliax.nn.scan:Layers",
    "Linear": "haliax.nn.linear:Linear",
    "MLP": "haliax.nn.mlp:MLP",
    "MoELinear": "haliax.nn.linear:MoELinear",
    "ReparamEnabled": "haliax.nn.mup:ReparamEnabled",
    "RmsNorm": "haliax.nn.normalization:RmsNorm",
    "ScanCheckpointPolicy": "haliax.hof:ScanCheckpointPolicy",
    "Stacked": "haliax.nn.scan:Stacked",
    "StorageOrderDotGeneral": "haliax.nn.storage_order:StorageOrderDotGeneral",
    "alibi_attention_bias": "haliax.nn.attention:alibi_attention_bias",
    "binary_cross_entropy_loss": "haliax.nn.loss:binary_cross_entropy_loss",
    "causal_mask": "haliax.nn.attention:causal_mask",
    "celu": "haliax.nn.activations:celu",
    "combine_masks_and": "haliax.nn.attention:combine_masks_and",
    "combine_masks_or": "haliax.nn.attention:combine_masks_or",
    "cross_entropy_loss": "haliax.nn.loss:cross_entropy_loss",
    "cross_entropy_loss_and_log_normalizers": "haliax.nn.loss:cross_entropy_loss_and_log_normalizers",
    "dot_product_attention": "haliax.nn.attention:dot_product_attention",
    "dot_product_attention_weights": "haliax.nn.attention:dot_product_attention_weights",
    "elu": "haliax.nn.activations:elu",
    "forgetful_causal_mask": "haliax.nn.attention:forgetful_causal_mask",
    "gelu": "haliax.nn.activations:gelu",
    "glu": "haliax.nn.activations:glu",
    "hard_sigmoid": "haliax.nn.activations:hard_sigmoid",
    "hard_silu": "haliax.nn.activations:hard_silu",
    "hard_swish": "haliax.nn.activations:hard_swish",
    "hard_tanh": "haliax.nn.activations:hard_tanh",
    "leaky_relu": "haliax.nn.activations:leaky_relu",
    "log_sigmoid": "haliax.nn.activations:log_sigmoid",
    "log_softmax": "haliax.nn.normalization:log_softmax",
    "logsumexp": "haliax.nn.normalization:logsumexp",
    "mask_to_bias": "haliax.nn.attention:mask_to_bias",
    "max_pool": "haliax.nn.pool:max_pool",
    "mean_pool": "haliax.nn.pool:mean_pool",
    "min_pool": "haliax.nn.pool:min_pool",
    "perplexity": "haliax.nn.loss:perplexity",
    "prefix_lm_mask": "haliax.nn.attention:prefix_lm_mask",
    "quick_gelu": "haliax.nn.activations:quick_gelu",
    "reduce_loss": "haliax.nn.loss:reduce_loss",
    "relu": "haliax.nn.activations:relu",
    "relu6": "haliax.nn.activations:relu6",
    "relu_squared": "haliax.nn.activations:relu_squared",
    "selu": "haliax.nn.activations:selu",
    "sigmoid": "haliax.nn.activations:sigmoid",
    "silu": "haliax.nn.activations:silu",
    "soft_sign": "haliax.nn.activations:soft_sign",
    "softmax": "haliax.nn.normalization:softmax",
    "softplus": "haliax.nn.activations:softplus",
    "standardize": "haliax.nn.normalization:standardize",
    "swish": "haliax.nn.activations:swish",
}
_SUBMODULES = frozenset(
    {
        "activations",
        "array_stacked",
        "attention",
        "conv",
        "dropout",
        "embedding",
        "linear",
        "loss",
        "mlp",
        "mup",
        "normalization",
        "one_hot",
        "pool",
        "ragged_dot",
        "scan",
    }
)

__all__ = [
    "ArrayStacked",
    "BlockFoldable",
    "BlockSeq",
    "Conv",
    "ConvTranspose",
    "DefaultDotGeneralOp",
    "DotGeneralOp",
    "Dropout",
    "DropoutKeyError",
    "Embedding",
    "LayerNorm",
    "LayerNormBase",
    "Layers",
    "Linear",
    "MLP",
    "MoELinear",
    "ReparamEnabled",
    "RmsNorm",
    "ScanCheckpointPolicy",
    "Stacked",
    "StorageOrderDotGeneral",
    "activations",
    "alibi_attention_bias",
    "array_stacked",
    "attention",
    "binary_cross_entropy_loss",
    "causal_mask",
    "celu",
    "combine_masks_and",
    "combine_masks_or",
    "conv",
    "cross_entropy_loss",
    "cross_entropy_loss_and_log_normalizers",
    "dot_product_attention",
    "dot_product_attention_weights",
    "dropout",
    "elu",
    "embedding",
    "forgetful_causal_mask",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "loss",
    "mask_to_bias",
    "max_pool",
    "mean_pool",
    "min_pool",
    "mlp",
    "mup",
    "normalization",
    "one_hot",
    "perplexity",
    "pool",
    "prefix_lm_mask",
    "quick_gelu",
    "ragged_dot",
    "reduce_loss",
    "relu",
    "relu6",
    "relu_squared",
    "scan",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"haliax.nn.{name}")
    if name in _EXPORTS:
        module, _, attribute = _EXPORTS[name].partition(":")
        value = getattr(import_module(module), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'haliax.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
