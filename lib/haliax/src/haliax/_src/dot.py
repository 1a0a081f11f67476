"""Former path of `haliax.dot`."""

from haliax._ops.dot import dot

__all__ = ["dot"]
