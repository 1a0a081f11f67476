"""Result fields to JSON and back, guided by the annotations of the artifact class.

Only what survives the trip unchanged is accepted: JSON values, tuples, enums, nested dataclasses and optional forms
of these.
"""

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from marin.errors import ArtifactFieldError


def to_json(value: Any, *, owner: str, field: str) -> Any:
    """Plain JSON form of a result value.

    Raises:
        ArtifactFieldError: The value is not made of JSON values, tuples, enums and dataclasses.
    """
    if isinstance(value, enum.Enum):
        return to_json(value.value, owner=owner, field=field)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            # JSON has no such number; the text form is read back by ``from_json`` for fields annotated as float.
            return repr(value)
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: to_json(getattr(value, item.name), owner=owner, field=f"{field}.{item.name}")
            for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ArtifactFieldError(owner, field, "a mapping has keys that are not strings")
        return {key: to_json(item, owner=owner, field=f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, owner=owner, field=f"{field}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return to_json(value.item(), owner=owner, field=field)
    raise ArtifactFieldError(owner, field, f"a value of type {type(value).__qualname__} cannot be stored as JSON")


def from_json(annotation: Any, value: Any, *, owner: str, field: str) -> Any:
    """Rebuild a result value from its JSON form and the annotation of its field.

    Raises:
        ArtifactFieldError: The stored value does not fit the annotation.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any or isinstance(annotation, str | typing.TypeVar):
        return value
    if origin in (typing.Union, types.UnionType):
        return _from_union(arguments, value, owner, field)
    if origin in (list, Sequence):
        return [from_json(arguments[0], item, owner=owner, field=f"{field}[{i}]") for i, item in enumerate(value)]
    if origin is tuple:
        return _from_tuple(arguments, value, owner, field)
    if origin in (dict, Mapping):
        return {key: from_json(arguments[1], item, owner=owner, field=f"{field}.{key}") for key, item in value.items()}
    if isinstance(annotation, type):
        return _from_class(annotation, value, owner, field)
    return value


def _from_union(options: tuple[Any, ...], value: Any, owner: str, field: str) -> Any:
    if value is None and type(None) in options:
        return None
    problems: list[str] = []
    for option in options:
        if option is type(None):
            continue
        try:
            return from_json(option, value, owner=owner, field=field)
        except ArtifactFieldError as error:
            problems.append(error.reason)
    raise ArtifactFieldError(owner, field, "; ".join(problems) or f"value {value!r} does not fit")


def _from_tuple(arguments: tuple[Any, ...], value: Any, owner: str, field: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ArtifactFieldError(owner, field, f"expected a list, found {type(value).__name__}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise ArtifactFieldError(owner, field, f"expected {len(arguments)} items, found {len(value)}")
    pairs = zip(arguments, value, strict=True)
    return tuple(from_json(option, item, owner=owner, field=f"{field}[{i}]") for i, (option, item) in enumerate(pairs))


def _from_class(annotation: type, value: Any, owner: str, field: str) -> Any:
    if issubclass(annotation, enum.Enum):
        try:
            return annotation(value)
        except ValueError as error:
            raise ArtifactFieldError(owner, field, str(error)) from None
    if dataclasses.is_dataclass(annotation):
        if not isinstance(value, dict):
            raise ArtifactFieldError(owner, field, f"expected an object, found {type(value).__name__}")
        return dataclass_from_json(annotation, value, owner=owner, field=field)
    if annotation is float and value in ("nan", "inf", "-inf"):
        return float(value)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if annotation is tuple and isinstance(value, list):
        return tuple(value)
    plain = annotation in (bool, int, float, str, list, dict)
    if plain and type(value) is not annotation:
        raise ArtifactFieldError(owner, field, f"expected {annotation.__name__}, found {value!r}")
    return value


def dataclass_from_json(cls: type, values: Mapping[str, Any], *, owner: str, field: str = "", **extra: Any) -> Any:
    """Build a dataclass from a JSON object; keys that the class does not declare are ignored.

    Args:
        cls: The dataclass.
        values: Stored values by field name.
        owner: Name for errors.
        field: Path of the enclosing field, for errors.
        extra: Values that are set as they are.
    Raises:
        ArtifactFieldError: A field without a default is missing, or a value does not fit.
    """
    hints = typing.get_type_hints(cls)
    arguments = dict(extra)
    for item in dataclasses.fields(cls):
        path = f"{field}.{item.name}" if field else item.name
        if item.name in arguments or not item.init:
            continue
        if item.name in values:
            arguments[item.name] = from_json(hints[item.name], values[item.name], owner=owner, field=path)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ArtifactFieldError(owner, path, "the record does not hold it")
    return cls(**arguments)
