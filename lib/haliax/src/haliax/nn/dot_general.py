"""The interface of replacements for `jax.lax.dot_general`."""

from typing import Any, Protocol, runtime_checkable

import jax


@runtime_checkable
class DotGeneralOp(Protocol):
    """A drop-in for `jax.lax.dot_general`; may be a module with state (quantisation)."""

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Contract ``lhs`` with ``rhs``; see `jax.lax.dot_general`."""
        ...


class DefaultDotGeneralOp:
    """`jax.lax.dot_general` itself."""

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Contract ``lhs`` with ``rhs``; see `jax.lax.dot_general`."""
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, **kwargs)

    @staticmethod
    def default() -> DotGeneralOp:
        """Return the plain one."""
        return _DEFAULT

    def __repr__(self) -> str:
        return "DefaultDotGeneralOp()"


_DEFAULT: DotGeneralOp = DefaultDotGeneralOp()

# Attached afterwards: a protocol asks implementations only for what its body names.
setattr(DotGeneralOp, "default", staticmethod(lambda: _DEFAULT))  # noqa: B010
