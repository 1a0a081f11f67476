"""Former path of `haliax.einsum`."""

from haliax._ops.einsum import einsum

__all__ = ["einsum"]
