"""Functions with their own calling conventions."""

from haliax._ops.select import top_k

__all__ = [
    "top_k",
]
