"""Identity of a recipe: one canonical text for a config, hashed; and the difference of two such texts, field by field.

A fingerprint is only useful when equal recipes always agree and different ones never do. So the encoding is *typed and
injective*: a dataclass carries its class name, a tuple is not a list, ``1`` is not ``1.0`` is not ``True`` is not
``"1"``. It does not depend on the process, the hash seed, the order of a dict or the members of a set, and there is
**no fallback**: a value without a canonical form (a function, an open file, an object with the default repr, ``nan``)
is refused with the path of the field that holds it. Tagged values are JSON objects with one ``"$..."`` key; a plain
mapping whose keys could be mistaken for a tag is itself encoded with one.

The text is stored beside the output (``fingerprint_payload``), so that a later run can say *what* changed.
"""

import base64
import dataclasses
import datetime as dt
import enum
import hashlib
import json
import math
import os
import pathlib
import sys
import types
from collections.abc import Mapping
from typing import Any

from marin.errors import UnfingerprintableError

FINGERPRINT_DIGITS = 32
"""Hex digits kept of the SHA-256: 128 bits."""

DISPLAY_DIGITS = 8
"""Hex digits shown to people."""


def canonical_payload(config: Any, *, step: str = "<config>") -> str:
    """The canonical text of a config.

    Args:
        config: Dataclasses, mappings, lists, tuples, sets, enums, dates, paths, bytes, dtypes, arrays, classes and
            plain JSON values, nested in any way.
        step: Name to put in the error.
    Returns:
        JSON with sorted keys and no blanks.
    Raises:
        UnfingerprintableError: A value has no canonical form; names the step and the field.
    Example:
        >>> canonical_payload({"b": (1, 2.0), "a": {3}})
        '{"a":{"$set":[3]},"b":{"$tuple":[1,2.0]}}'
    """
    return _dumps(_encode(config, "", step))


def fingerprint_of(payload: str) -> str:
    """Fingerprint of a payload: the first 128 bits of its SHA-256, in hex.

    Example:
        >>> fingerprint_of("{}")
        '44136fa355b3678a1146ad16f7e8649e'
    """
    return hashlib.sha256(payload.encode("utf-8")).hexdigest()[:FINGERPRINT_DIGITS]


def describe_drift(old_payload: str, new_payload: str) -> list[str]:
    """Which fields differ between two payloads, one line each, in field order.

    Args:
        old_payload: The text stored when the output was made.
        new_payload: The text of the recipe at hand.
    Returns:
        Lines such as ``optimizer.learning_rate: 0.001 -> 0.002``; empty when the payloads agree.
    Example:
        >>> describe_drift(canonical_payload({"lr": 1, "n": [1]}), canonical_payload({"lr": 2, "n": [1, 2]}))
        ['lr: 1 -> 2', 'n[1]: (absent) -> 2']
    """
    try:
        old, new = json.loads(old_payload), json.loads(new_payload)
    except ValueError:
        return [] if old_payload == new_payload else [f"payload: {old_payload[:80]} -> {new_payload[:80]}"]
    lines: list[str] = []
    _diff(old, new, "", lines)
    # A step's payload is {"config", "deps"}; people know the fields of their config, not the envelope.
    if isinstance(new, dict) and new.keys() == {"config", "deps"}:
        return _without_envelope(lines)
    return lines


def _without_envelope(lines: list[str]) -> list[str]:
    """Drop ``config.``, and changes of ``deps`` that a field of the config shows already."""
    fields = [line.removeprefix("config.") for line in lines if not line.startswith("deps[")]
    shown = {line.partition(": ")[2] for line in fields}
    return fields + [line for line in lines if line.startswith("deps[") and line.partition(": ")[2] not in shown]


def type_name(cls: type) -> str:
    """A class's full name as it enters identity: ``module.Qualname``.

    A class of a script that is being run is named as if the script had been imported, so that ``python x.py``,
    ``marin run x.py`` and ``import x`` agree.
    """
    module = cls.__module__
    if module == "__main__":
        module = script_module_name(getattr(sys.modules.get("__main__"), "__file__", None) or "__main__")
    return f"{module}.{cls.__qualname__}"


def script_module_name(path: str) -> str:
    """Dotted name under which a file would be imported: its stem, below every parent that is a package.

    Example:
        >>> script_module_name("/nowhere/train.py")
        'train'
    """
    folder, file = os.path.split(os.path.abspath(path))
    parts = [os.path.splitext(file)[0]]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.append(name)
    return ".".join(reversed(parts))


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _encode(value: Any, path: str, step: str) -> Any:
    """Recursion over the value; ``path`` is the field at hand, for errors."""
    kind = type(value)
    if value is None or kind in (bool, int):
        return value
    if kind is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise UnfingerprintableError(step, path, "str", "holds lone surrogates") from None
        return value
    if kind is float:
        if not math.isfinite(value):
            raise UnfingerprintableError(step, path, "float", f"is {value}, which has no canonical form")
        return value
    if kind is dict:
        return _encode_mapping(value, path, step)
    if kind is list:
        return [_encode(item, f"{path}[{i}]", step) for i, item in enumerate(value)]
    if isinstance(value, enum.Enum):
        return {"$enum": type_name(kind), "value": _encode(value.value, path, step)}
    if refusal := getattr(kind, "__not_config__", None):
        raise UnfingerprintableError(step, path, kind.__qualname__, refusal)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, path, step)
    if isinstance(value, tuple):
        return _encode_tuple(value, path, step)
    if kind in (set, frozenset):
        members = sorted((_encode(item, f"{path}{{}}", step) for item in value), key=_dumps)
        return {"$set" if kind is set else "$frozenset": members}
    return _encode_leaf(value, path, step)


def _encode_dataclass(value: Any, path: str, step: str) -> Any:
    fields = {
        field.name: _encode(getattr(value, field.name), f"{path}.{field.name}" if path else field.name, step)
        for field in dataclasses.fields(value)
    }
    return {"$dataclass": type_name(type(value)), "fields": fields}


def _encode_tuple(value: tuple[Any, ...], path: str, step: str) -> Any:
    items = [_encode(item, f"{path}[{i}]", step) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"$tuple": items}
    return {"$namedtuple": type_name(type(value)), "items": items}


def _encode_mapping(value: Mapping[Any, Any], path: str, step: str) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {
            _encode(key, path, step): _encode(item, f"{path}.{key}" if path else key, step)
            for key, item in value.items()
        }
    pairs = [
        [_encode(key, f"{path}<key>", step), _encode(item, f"{path}[{key!r}]", step)] for key, item in value.items()
    ]
    return {"$map": sorted(pairs, key=_dumps)}


def _encode_leaf(value: Any, path: str, step: str) -> Any:
    """Values that carry a tag and hold no further config."""
    if isinstance(value, pathlib.PurePath):
        return {"$path": value.as_posix()}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return {f"${type(value).__name__}": value.isoformat()}
    if isinstance(value, dt.timedelta):
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, types.MappingProxyType):
        return _encode_mapping(value, path, step)
    if isinstance(value, type):
        return {"$type": type_name(value)}
    if isinstance(value, range):
        return {"$range": [value.start, value.stop, value.step]}
    if isinstance(value, complex):
        return {"$complex": [_encode(value.real, path, step), _encode(value.imag, path, step)]}
    return _encode_numeric(value, path, step)


def _encode_numeric(value: Any, path: str, step: str) -> Any:
    """Array-library values, recognised by their shape of attributes so that no array library is imported."""
    module = type(value).__module__.partition(".")[0]
    dtype = getattr(value, "dtype", None)
    if dtype is not None and getattr(value, "shape", None) is not None and hasattr(value, "tolist"):
        if value.shape == () and module == "numpy" and type(value).__name__ != "ndarray":
            return {"$scalar": str(dtype), "value": _encode(value.item(), path, step)}
        return {"$array": str(dtype), "shape": list(value.shape), "items": _encode(value.tolist(), path, step)}
    if module == "numpy" and hasattr(value, "itemsize") and hasattr(value, "kind"):
        return {"$dtype": str(value)}
    reason = "is a function" if callable(value) else "has no canonical form"
    raise UnfingerprintableError(step, path, f"{type(value).__module__}.{type(value).__qualname__}", reason)


_ABSENT = object()


def _children(value: Any) -> dict[str, Any] | None:
    """The parts of an encoded value by the name a person would use, or None for a leaf."""
    if isinstance(value, list):
        return {f"[{i}]": item for i, item in enumerate(value)}
    if not isinstance(value, dict):
        return None
    if "$dataclass" in value:
        return {f".{name}": item for name, item in value["fields"].items()}
    if "$tuple" in value:
        return {f"[{i}]": item for i, item in enumerate(value["$tuple"])}
    if "$map" in value:
        return {f"[{_dumps(key)}]": item for key, item in value["$map"]}
    if any(key.startswith("$") for key in value):
        return None
    return {f".{name}": item for name, item in value.items()}


def _tag(value: Any) -> Any:
    if isinstance(value, list):
        return "list"
    if isinstance(value, dict):
        tag = next((key for key in value if key.startswith("$")), "dict")
        return (tag, value[tag]) if tag in ("$dataclass", "$namedtuple") else tag
    return None


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    if isinstance(value, dict) and "$dataclass" in value:
        text = f"{value['$dataclass'].rpartition('.')[2]}({_dumps(value['fields'])})"
    elif isinstance(value, dict) and "$enum" in value:
        text = f"{value['$enum'].rpartition('.')[2]}({_dumps(value['value'])})"
    elif isinstance(value, dict) and "$tuple" in value:
        text = "tuple" + _dumps(value["$tuple"])
    elif isinstance(value, str):
        text = repr(value)
    else:
        text = _dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _diff(old: Any, new: Any, path: str, lines: list[str]) -> None:
    # ``==`` would take 1, 1.0 and True for one another; the texts do not.
    if old is not _ABSENT and new is not _ABSENT and _dumps(old) == _dumps(new):
        return
    old_parts, new_parts = _children(old), _children(new)
    if old_parts is None or new_parts is None or _tag(old) != _tag(new):
        lines.append(f"{path.lstrip('.') or 'config'}: {_show(old)} -> {_show(new)}")
        return
    for name in [*old_parts, *(name for name in new_parts if name not in old_parts)]:
        _diff(old_parts.get(name, _ABSENT), new_parts.get(name, _ABSENT), path + name, lines)
