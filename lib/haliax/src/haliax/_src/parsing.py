"""Former path of the parsers."""

from haliax._ops.parsing import Expression, parse_einsum, parse_rearrangement

__all__ = ["Expression", "parse_einsum", "parse_rearrangement"]
