"""Counting the floating-point operations of a grug forward pass, product by product.

One multiply-add is two operations; norms, activations and the search for thresholds are not counted. A token pays for
the experts it visits, not for those there are, so utilisation is that of the work the model needs.

References:
    Chowdhery et al., PaLM, arXiv:2204.02311, appendix B.
"""

from levanter.flops import check_convention
from levanter.grug.model import GrugMoeConfig


def flops_per_token(c: GrugMoeConfig, context_length: int, *, convention: str = "full") -> float:
    """Forward FLOPs per token; a training step is three times that.

    Args:
        c: Config.
        context_length: Tokens of a sequence; sliding layers are charged for their window.
        convention: ``full`` counts every score of attention, ``causal`` half of them.

    Returns:
        The sum over layers of projections ``2 D C (2H + 2G)``, scores ``(4 H C + 3 H) keys``, head gate ``2 D H``,
        two gated norms of ``4 D R``, router ``2 D E``, ``K`` experts of ``6 D I``, shared expert ``6 D S``; two more
        gated norms and the head ``2 D V``.

    Raises:
        ConfigError: an unknown convention.

    Example:
        >>> dense = GrugMoeConfig(num_layers=1, num_experts_per_tok=4)
        >>> twice = GrugMoeConfig(num_layers=1, num_experts_per_tok=8)
        >>> flops_per_token(twice, 64) - flops_per_token(dense, 64) == 4 * 6 * dense.hidden_dim * dense.expert_dim
        True
    """
    check_convention(convention)
    d, h = c.hidden_dim, c.num_heads
    gated_norm = 4 * d * c.gate_rank
    projections = 2 * d * c.head_dim * 2 * (h + c.num_kv_heads) + 2 * d * h
    experts = 6 * d * c.expert_dim * c.num_experts_per_tok + 2 * d * c.num_experts + 6 * d * c.shared_dim
    whole = [c.is_full(layer) for layer in range(c.num_layers)]
    keys = sum(context_length if full else min(context_length, c.sliding_window) for full in whole)
    scores = (4 * h * c.head_dim + 3 * h) * keys / (2 if convention == "causal" else 1)
    layers = c.num_layers * (projections + experts + 2 * gated_norm)
    return float(layers + scores + 2 * gated_norm + 2 * d * c.vocab_size)


def num_parameters(c: GrugMoeConfig) -> int:
    """Number of trained parameters; router biases are state and do not count.

    Example:
        >>> round(num_parameters(GrugMoeConfig(hidden_dim=2560, num_layers=26, num_heads=20, num_kv_heads=5,
        ...     num_experts=256, expert_dim=1280, shared_dim=2560)) / 1e9)
        67
    """
    d, h, e = c.hidden_dim, c.num_heads, c.num_experts
    gated_norm = d + 2 * d * c.gate_rank
    attention = 2 * d * c.head_dim * (h + c.num_kv_heads) + d * h
    mlp = d * e + 3 * e * d * c.expert_dim + 3 * d * c.shared_dim
    return c.num_layers * (attention + mlp + 2 * gated_norm) + 2 * gated_norm + 2 * c.vocab_size * d
