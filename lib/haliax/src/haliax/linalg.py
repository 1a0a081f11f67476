"""Linear algebra by name: which axes are rows and columns is said, everything else is batched.

Every function is the one of `jax.numpy.linalg` (or `jax.scipy.linalg`), vectorised over all axes that it is not given.
Results have the batched axes first, in storage order.
"""

from typing import Any

import jax.numpy as jnp

from haliax._array.lift import reduced
from haliax._array.named import require_named
from haliax._axis.types import AxisSelection, AxisSelector, names_of
from haliax._ops.nmap import nmap
from haliax.core import NamedArray
from haliax.errors import AxisSpecError, show

__all__ = ["cholesky", "det", "eigh", "eigvalsh", "inv", "lstsq", "norm", "pinv", "qr", "slogdet", "solve", "svd"]


def _name(axis: AxisSelector) -> str:
    return names_of(axis)[0]


def _square(operation: str, a: NamedArray, row: AxisSelector, col: AxisSelector) -> tuple[str, str]:
    require_named(operation, a)
    first, second = a.resolve_axis((row, col))
    if first.size != second.size:
        raise AxisSpecError(f"{operation}: the matrix over {show((first, second))} is not square.")
    return first.name, second.name


def norm(a: NamedArray, axis: AxisSelection | None = None, ord: Any = None) -> NamedArray:  # noqa: A002
    """Return the norm over one axis (vectors), two (matrices) or, with None, all of them.

    Args:
        a: Array.
        axis: Axes that go away.
        ord: As in `jax.numpy.linalg.norm`; None is the root of the sum of squares.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: More than two axes with ``ord``.

    Example:
        >>> import haliax as hax
        >>> norm(hax.named([[3.0, 4.0], [0.0, 1.0]], "a b"), "b").tolist()
        [5.0, 1.0]
    """
    require_named("norm", a)
    count = a.ndim if axis is None else len(names_of(axis))
    if ord is None and count != 1:
        return reduced("norm", lambda x, axis: jnp.sqrt(jnp.sum(jnp.abs(x) ** 2, axis=axis)), a, axis)
    if count > 2:
        raise AxisSpecError(f"norm: ord={ord} over {count} axes; expected one or two. Flatten the others first.")

    def positional(x: Any, axis: Any) -> Any:
        return jnp.linalg.norm(x, ord, axis if axis is None or len(axis) != 1 else axis[0])

    return reduced("norm", positional, a, axis)


def det(a: NamedArray, row: AxisSelector, col: AxisSelector) -> NamedArray:
    """Return the determinant of each matrix over ``row`` and ``col``.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.

    Example:
        >>> import haliax as hax
        >>> det(hax.named([[2.0, 0.0], [0.0, 3.0]], "i j"), "i", "j").item()
        6.0
    """
    return nmap(jnp.linalg.det, [_square("det", a, row, col)])(a)


def slogdet(a: NamedArray, row: AxisSelector, col: AxisSelector) -> tuple[NamedArray, NamedArray]:
    """Return the sign of the determinant and the logarithm of its absolute value.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.
    """
    return nmap(lambda x: tuple(jnp.linalg.slogdet(x)), [_square("slogdet", a, row, col)], [(), ()])(a)


def inv(a: NamedArray, row: AxisSelector, col: AxisSelector) -> NamedArray:
    """Return the inverse of each matrix. It maps back, so its rows are ``col`` and its columns ``row``.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.

    Example:
        >>> import haliax as hax
        >>> inv(hax.named([[2.0, 0.0], [0.0, 4.0]], "i j"), "i", "j").names
        ('j', 'i')
    """
    first, second = _square("inv", a, row, col)
    return nmap(jnp.linalg.inv, [(first, second)], (second, first))(a)


def pinv(a: NamedArray, row: AxisSelector, col: AxisSelector) -> NamedArray:
    """Return the Moore-Penrose inverse of each matrix, with axes ``col``, ``row``.

    Raises:
        AxisNotFoundError: An axis is absent.
    """
    return nmap(jnp.linalg.pinv, [(_name(row), _name(col))], (_name(col), _name(row)))(a)


def solve(a: NamedArray, b: NamedArray, row: AxisSelector, col: AxisSelector) -> NamedArray:
    """Return the ``x`` with ``dot(a, x, axis=col) == b``.

    Args:
        a: Square matrices over ``row`` and ``col``.
        b: Right-hand sides along ``row``; all other axes are batched by name.
        row: Axis that ``a`` and ``b`` share.
        col: Axis of the result.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.

    Example:
        >>> import haliax as hax
        >>> a, b = hax.named([[2.0, 0.0], [0.0, 4.0]], "i j"), hax.named([2.0, 2.0], "i")
        >>> solve(a, b, "i", "j").tolist()
        [1.0, 0.5]
    """
    first, second = _square("solve", a, row, col)
    return nmap(jnp.linalg.solve, [(first, second), (first,)], (second,))(a, b)


def lstsq(a: NamedArray, b: NamedArray, row: AxisSelector, col: AxisSelector) -> NamedArray:
    """Return the ``x`` along ``col`` that minimises the norm of ``dot(a, x, axis=col) - b`` over ``row``.

    Raises:
        AxisNotFoundError: An axis is absent.
    """
    first, second = _name(row), _name(col)
    return nmap(lambda m, y: jnp.linalg.lstsq(m, y)[0], [(first, second), (first,)], (second,))(a, b)


def cholesky(a: NamedArray, row: AxisSelector, col: AxisSelector, *, upper: bool = False) -> NamedArray:
    """Return the Cholesky factor of each Hermitian positive-definite matrix: lower triangular over ``row``, ``col``.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.

    Example:
        >>> import haliax as hax
        >>> cholesky(hax.named([[4.0, 2.0], [2.0, 2.0]], "i j"), "i", "j").tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    names = _square("cholesky", a, row, col)
    return nmap(lambda x: jnp.linalg.cholesky(x, upper=upper), [names], names)(a)


def eigh(a: NamedArray, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector) -> tuple[NamedArray, NamedArray]:
    """Return eigenvalues (along ``new_axis``, ascending) and eigenvectors (over ``row``, ``new_axis``).

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.

    Example:
        >>> import haliax as hax
        >>> values, vectors = eigh(hax.named([[2.0, 0.0], [0.0, 1.0]], "i j"), "i", "j", "eig")
        >>> values.tolist(), vectors.names
        ([1.0, 2.0], ('i', 'eig'))
    """
    first, second = _square("eigh", a, row, col)
    new = _name(new_axis)
    return nmap(lambda x: tuple(jnp.linalg.eigh(x)), [(first, second)], [(new,), (first, new)])(a)


def eigvalsh(a: NamedArray, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector) -> NamedArray:
    """Return the eigenvalues of each Hermitian matrix along ``new_axis``, ascending.

    Raises:
        AxisNotFoundError: An axis is absent.
        AxisSpecError: The matrix is not square.
    """
    return nmap(jnp.linalg.eigvalsh, [_square("eigvalsh", a, row, col)], (_name(new_axis),))(a)


def svd(
    a: NamedArray, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector
) -> tuple[NamedArray, NamedArray, NamedArray]:
    """Return the thin singular value decomposition ``u`` (row, new), ``s`` (new, descending), ``vh`` (new, col).

    ``dot(u * s, vh, axis=new_axis)`` is ``a`` again.

    Raises:
        AxisNotFoundError: An axis is absent.

    Example:
        >>> import haliax as hax
        >>> u, s, vh = svd(hax.ones({"i": 3, "j": 2}), "i", "j", "k")
        >>> u.names, s.names, vh.names
        (('i', 'k'), ('k',), ('k', 'j'))
    """
    first, second, new = _name(row), _name(col), _name(new_axis)
    outs = [(first, new), (new,), (new, second)]
    return nmap(lambda x: tuple(jnp.linalg.svd(x, full_matrices=False)), [(first, second)], outs)(a)


def qr(a: NamedArray, row: AxisSelector, col: AxisSelector, new_axis: AxisSelector) -> tuple[NamedArray, NamedArray]:
    """Return the reduced QR decomposition ``q`` (row, new) and ``r`` (new, col).

    Raises:
        AxisNotFoundError: An axis is absent.
    """
    first, second, new = _name(row), _name(col), _name(new_axis)
    return nmap(lambda x: tuple(jnp.linalg.qr(x)), [(first, second)], [(first, new), (new, second)])(a)
