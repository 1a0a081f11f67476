"""Former path of `haliax.rearrange`."""

from haliax._ops.rearrange import einops_rearrange, rearrange

__all__ = ["einops_rearrange", "rearrange"]
