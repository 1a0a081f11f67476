"""Values and exceptions as bytes.

Values travel by cloudpickle, so lambdas, closures and functions of ``__main__`` work. A module that the child cannot
import (a script, a test file) travels by value as well.

Exceptions are harder: pickle calls the class again with ``args``, which fails for every class whose ``__init__`` takes
something else, and one such exception must not take the transport down. So an exception is packed as class, ``args``
and ``__dict__`` and revived without ``__init__``; what cannot travel at all is replaced by a stand-in with its type
and text. The remote traceback always comes along as a note.
"""

import functools
import importlib.machinery
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

import cloudpickle

from fray.errors import RemoteError, SerializationError

_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
_NATIVE_REDUCERS: Final = frozenset({BaseException.__reduce__, OSError.__reduce__, ImportError.__reduce__})


def dumps(value: Any, what: str) -> bytes:
    """Return ``value`` as bytes.

    Raises:
        SerializationError: It cannot be pickled; ``what`` names it in the message.
    """
    try:
        return cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling runs arbitrary code: __reduce__ may raise anything
        raise SerializationError(what, f"{type(error).__name__}: {error}") from error


def dumps_call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return a method call as bytes; calls with plain arguments take the fast path."""
    if not kwargs and all(type(arg) in _PLAIN for arg in args):
        return pickle.dumps((method, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
    return dumps((method, args, kwargs), f"the arguments of {method}")


def dumps_value(value: Any, what: str) -> bytes:
    """Return a result as bytes; plain values take the fast path."""
    if type(value) in _PLAIN:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return dumps(value, what)


def loads(data: bytes) -> Any:
    """Return the value of ``data``; raises whatever unpickling raises."""
    return pickle.loads(data)


def through_pickle(value: Any, what: str) -> Any:
    """Return a copy of ``value`` made by pickling, as another process would see it.

    Raises:
        SerializationError: It cannot be pickled.
    """
    return loads(dumps(value, what))


def ship_by_value_if_needed(obj: Callable[..., Any] | type) -> None:
    """Make sure that the code of ``obj`` arrives even if its module cannot be imported in the child."""
    inner = obj
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__module__", None) or getattr(type(inner), "__module__", None)
    module = sys.modules.get(name or "")
    if module is not None and name != "__main__" and not _is_importable(module):
        cloudpickle.register_pickle_by_value(module)


@functools.cache
def _is_importable(module: ModuleType) -> bool:
    """Tell whether a fresh interpreter with our ``sys.path`` would find this very module."""
    path = None
    spec = None
    parts = module.__name__.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:depth]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    file = getattr(module, "__file__", None)
    return spec is not None and (file is None or spec.origin == file)


def _find_spec(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None


@dataclass(frozen=True, slots=True)
class PackedError:
    """An exception on its way: revivable bytes if there are any, and text in any case."""

    type_name: str
    text: str
    traceback_text: str
    payload: bytes | None


def pack_error(error: BaseException) -> bytes:
    """Return ``error`` as bytes; never fails, whatever the exception holds."""
    packed = PackedError(
        type_name=f"{type(error).__module__}.{type(error).__qualname__}",
        text=_text_of(error),
        traceback_text="".join(traceback.format_exception(error)),
        payload=_payload_of(error),
    )
    return pickle.dumps(packed, protocol=pickle.HIGHEST_PROTOCOL)


def unpack_error(data: bytes) -> tuple[BaseException, str]:
    """Return the revived exception (or its stand-in), with the remote traceback as a note, and that traceback."""
    packed: PackedError = pickle.loads(data)
    error: BaseException | None = None
    if packed.payload is not None:
        try:
            error = _revive(pickle.loads(packed.payload))
        except Exception:  # reviving runs the user's code in another environment: anything may go wrong
            error = None
    if error is None:
        error = RemoteError(packed.type_name, packed.text, packed.traceback_text)
    error.add_note("remote traceback:\n" + packed.traceback_text.rstrip())
    return error, packed.traceback_text


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as inner:  # a broken __str__ must not hide the failure itself
        return f"<{type(inner).__name__} in __str__>"


def _payload_of(error: BaseException) -> bytes | None:
    ship_by_value_if_needed(type(error))
    if type(error).__reduce__ not in _NATIVE_REDUCERS:
        return _try_dumps(("whole", error))
    reduced = error.__reduce__()
    args = reduced[1] if isinstance(reduced, tuple) else error.args
    state = {key: value for key, value in error.__dict__.items() if key != "__notes__"}
    data = _try_dumps(("parts", type(error), args, state))
    if data is None:
        kept = {key: value for key, value in state.items() if _try_dumps(value) is not None}
        plain = tuple(arg if _try_dumps(arg) is not None else repr(arg) for arg in args)
        data = _try_dumps(("parts", type(error), plain, kept))
    return data


def _try_dumps(value: Any) -> bytes | None:
    try:
        return cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:  # see dumps
        return None


def _revive(parts: tuple[Any, ...]) -> BaseException | None:
    if parts[0] == "whole":
        return parts[1] if isinstance(parts[1], BaseException) else None
    _, cls, args, state = parts
    if isinstance(cls.__init__, FunctionType):
        # A Python __init__ may want anything; the object's state is all we need.
        error = cls.__new__(cls)
        error.args = args
    else:
        error = cls(*args)  # built-in classes keep their fields in C, and only their own __init__ fills those
    error.__dict__.update(state)
    return error
