"""Configuration: frozen dataclasses, filled from YAML files and dotted command-line overrides.

The problem: one experiment is described in three places at once (defaults in code, a YAML file, a few overrides typed
by hand), and a typo in any of them must not train for a week before anyone notices. The idea: the dataclass is the
schema. Files are merged left to right, overrides last, the merged mapping is decoded by draccus, and a key that no
field has is an error that names the nearest field.

Entry points are written as::

    @levanter.config.main()
    def main(config: TrainLmConfig) -> None: ...

Invariants: decoding never reads the network; ``encode(decode(x))`` decodes to an equal config; ``!include`` is relative
to the file that holds it.
"""

import argparse
import dataclasses
import difflib
import enum
import functools
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import draccus
import fsspec
import yaml
from draccus.choice_types import CHOICE_TYPE_KEY
from draccus.utils import DraccusException, ParsingError, is_choice_type

from levanter._env import config_dir_from_environment
from levanter.errors import ConfigError, ConfigFileError, LevanterError, UnknownKeyError

CONFIG_FLAGS = ("--config_path", "--config", "--configs")
EXIT_BAD_CONFIG = 2
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)")
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}


def load_config[T](config_class: type[T], paths: Sequence[str] = (), overrides: Sequence[str] = ()) -> T:
    """Build a config from files and dotted overrides.

    Args:
        config_class: Root dataclass.
        paths: YAML files, fsspec URLs, or names under ``LEVANTER_CONFIG_DIR``; later ones win key by key.
        overrides: Command-line words such as ``["--trainer.seed", "3", "--model.type=llama"]``.

    Returns:
        The decoded dataclass.

    Raises:
        ConfigFileError: a file is missing or is not a YAML mapping.
        UnknownKeyError: a key that no field has.
        ConfigError: a value that does not fit its field.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Demo:
        ...     steps: int = 1
        >>> load_config(Demo, overrides=["--steps", "3"]).steps
        3
    """
    merged: dict[str, Any] = {}
    for path in paths:
        merged = merge_mappings(merged, read_yaml(path))
    return decode(config_class, merge_mappings(merged, parse_overrides(overrides)))


def decode[T](config_class: type[T], raw: Mapping[str, Any]) -> T:
    """Decode a plain mapping into ``config_class``; see :func:`load_config` for the errors."""
    raw = _translate(config_class, raw, ())
    _check_keys(config_class, raw, ())
    try:
        return draccus.decode(config_class, dict(raw))
    except DraccusException as error:
        raise _config_error(error) from error


def encode(config: Any) -> dict[str, Any]:
    """Encode a config dataclass as plain YAML values; the inverse of :func:`decode`."""
    return _plain(draccus.encode(config))


def dump_yaml(config: Any) -> str:
    """Render a config as YAML text with the fields in declaration order."""
    return yaml.safe_dump(encode(config), sort_keys=False, default_flow_style=False)


def main(*, args: Sequence[str] | None = None) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Turn ``fn(config)`` into a command: parse ``--config_path`` and overrides into the annotated dataclass.

    Called with a config instance, the wrapped function runs directly. A configuration error prints the message and a
    ``hint:`` line on stderr and exits with code 2.
    """

    def wrap(fn: Callable[[Any], Any]) -> Callable[..., Any]:
        config_class = next(iter(typing.get_type_hints(fn).values()))

        @functools.wraps(fn)
        def run(config: Any = None) -> Any:
            if config is not None:
                return fn(config)
            words = list(sys.argv[1:] if args is None else args)
            if "--help" in words or "-h" in words:
                print_help(config_class)
                return None
            try:
                parsed = parse_command_line(config_class, words)
            except LevanterError as error:
                fail_with_hint(error, EXIT_BAD_CONFIG)
            return fn(parsed)

        return run

    return wrap


def parse_command_line[T](config_class: type[T], words: Sequence[str]) -> T:
    """Decode command-line words, ``--config_path FILE...`` among them, into ``config_class``."""
    paths: list[str] = []
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        flag, eq, value = word.partition("=")
        if flag not in CONFIG_FLAGS:
            rest.append(word)
            continue
        if eq:
            paths.append(value)
        while not eq and words and not words[0].startswith("--"):
            paths.append(words.pop(0))
    return load_config(config_class, paths, rest)


def print_help(config_class: type) -> None:
    """Print every option of ``config_class`` on stdout."""
    parser = argparse.ArgumentParser(usage="%(prog)s [--config_path FILE ...] [--dotted.key VALUE ...]")
    parser.add_argument("--config_path", nargs="+", help="YAML files, merged left to right (also --config, --configs)")
    for key, (type_name, default) in sorted(describe_fields(config_class).items()):
        parser.add_argument(f"--{key}", metavar=type_name, help=f"default: {default}".replace("%", "%%"))
    parser.print_help()


def describe_fields(config_class: type, prefix: str = "") -> dict[str, tuple[str, str]]:
    """Map each dotted key of a config class to its type name and default, nested dataclasses opened."""
    rows: dict[str, tuple[str, str]] = {}
    hints = typing.get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        key, hint = prefix + field.name, hints[field.name]
        nested = _dataclass_in(hint)
        if nested is not None and not is_choice_type(nested):
            rows.update(describe_fields(nested, key + "."))
            continue
        if nested is not None:
            rows[f"{key}.{CHOICE_TYPE_KEY}"] = (nested.__name__, str(nested.default_choice_name()))
        default = field.default if field.default is not dataclasses.MISSING else "(built by the class)"
        rows[key] = (getattr(hint, "__name__", str(hint)), str(default))
    return rows


def fail_with_hint(error: LevanterError, code: int) -> typing.NoReturn:
    """Print ``error`` on stderr with its advice on a ``hint:`` line, then exit with ``code``."""
    text = str(error)
    head, sep, advice = text.rpartition(". ") if ". " in text else (text, "", "")
    print(f"error: {head}{sep.strip() and '.'}", file=sys.stderr)
    print(file=sys.stderr)
    print(f"hint: {advice or 'see docs/packages/levanter.md'}", file=sys.stderr)
    raise SystemExit(code)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Turn ``--a.b value`` and ``--a.b=value`` words into a nested mapping of YAML values.

    Raises:
        ConfigError: a word that is not an option, or an option without a value.

    Example:
        >>> parse_overrides(["--a.b", "1", "--c=[x, y]"])
        {'a': {'b': 1}, 'c': ['x', 'y']}
    """
    result: dict[str, Any] = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"cannot read the word {word!r}; expected --dotted.key VALUE.")
        key, eq, value = word[2:].partition("=")
        if not eq:
            if not words or words[0].startswith("--"):
                raise ConfigError("the option has no value; expected --dotted.key VALUE. Add the value.", key=key)
            value = words.pop(0)
        node: Any = _yaml_value(value)
        for part in reversed(key.split(".")):
            node = {part: node}
        result = merge_mappings(result, node)
    return result


def merge_mappings(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings; ``over`` wins, except that a changed ``type:`` drops the old choice's fields."""
    if CHOICE_TYPE_KEY in over and base.get(CHOICE_TYPE_KEY) not in (None, over[CHOICE_TYPE_KEY]):
        return dict(over)
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge_mappings(old, value) if both else value
    return merged


def read_yaml(path: str) -> dict[str, Any]:
    """Read one YAML mapping, following ``!include other.yaml`` relative to the including file."""
    found = _find_config(path)
    try:
        fs, plain = fsspec.core.url_to_fs(found)
        text = fs.cat_file(plain).decode("utf-8")
        value = yaml.load(text, Loader=_loader_for(found))
    except (OSError, yaml.YAMLError, ValueError, ImportError) as error:
        raise ConfigFileError(path, str(error).replace("\n", " ")) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigFileError(path, f"top level is a {type(value).__name__}")
    return value


def parse_duration(value: Any) -> timedelta:
    """Parse ``15m``, ``1h30m``, ``45s``, or a number of seconds.

    Example:
        >>> parse_duration("1h30m").total_seconds()
        5400.0
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float):
        return timedelta(seconds=value)
    text = str(value).strip()
    parts = _DURATION.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text.replace(" ", ""):
        raise ConfigError(f"cannot read the duration {value!r}; expected forms like 15m, 1h30m or seconds.")
    return timedelta(**{_UNITS[unit]: float(number) for number, unit in parts})


def format_duration(value: timedelta) -> str:
    """Render a duration as seconds, ``90s``; the inverse of :func:`parse_duration`."""
    return f"{value.total_seconds():g}s"


def register_codec(cls: type, decoder: Callable[..., Any], encoder: Callable[..., Any]) -> None:
    """Teach draccus a type: ``decoder(raw, path)`` and ``encoder(value, declared_type)``."""
    for registry, fn in ((draccus.decode, decoder), (draccus.encode, encoder)):
        typing.cast(Any, registry).register(cls, fn)


def _find_config(path: str) -> str:
    """Resolve a path, a path without extension, or a name under the config folder."""
    if "://" in path:
        return path
    roots = [""] + ([config_dir_from_environment() or ""] if config_dir_from_environment() else [])
    for root in roots:
        for suffix in ("", ".yaml", ".yml"):
            candidate = os.path.join(root, path) + suffix
            if os.path.isfile(candidate):
                return candidate
    return path


def _loader_for(path: str) -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        pass

    def include(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
        return read_yaml(os.path.join(os.path.dirname(path), str(loader.construct_scalar(typing.cast(Any, node)))))

    Loader.add_constructor("!include", include)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader


# YAML 1.1 reads 1e-3 as a string because it lacks a dot; every training config has learning rates written that way.
_FLOAT = re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


def _plain(value: Any) -> Any:
    """Containers and scalars that YAML and JSON know; string enums become strings."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _yaml_value(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_loader_for("."))
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read the value {text!r}: {error}.") from error


def register_translation(cls: type, translate: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let published configurations use keys that a class had once: ``translate(raw)`` gives today's keys.

    It runs before keys are checked, on a copy of the mapping that fills ``cls``.
    """
    _TRANSLATIONS[cls] = translate


_TRANSLATIONS: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def _translate(config_class: Any, raw: Any, path: tuple[str, ...]) -> Any:
    """Apply the registered translations to every mapping below ``raw``."""
    target = _dataclass_in(config_class)
    if target is None or not isinstance(raw, Mapping) or is_choice_type(target):
        return raw
    result = dict(raw)
    if target in _TRANSLATIONS:
        result = _TRANSLATIONS[target](result)
    hints = typing.get_type_hints(target)
    return {
        key: _translate(hints[key], value, (*path, str(key))) if key in hints else value
        for key, value in result.items()
    }


def _check_keys(config_class: Any, raw: Any, path: tuple[str, ...]) -> None:
    """Walk a raw mapping beside its dataclass and raise on the first key that no field has."""
    target = _dataclass_in(config_class)
    if target is None or not isinstance(raw, Mapping):
        return
    if is_choice_type(target):
        target = _chosen(target, raw, path)
    hints = typing.get_type_hints(target)
    known = [field.name for field in dataclasses.fields(target)]
    for key, value in raw.items():
        if key == CHOICE_TYPE_KEY and key not in known:
            continue
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            raise UnknownKeyError(
                ".".join((*path, str(key))),
                known=known,
                nearest=nearest[0] if nearest else None,
                owner=target.__name__,
            )
        _check_value(hints[key], value, (*path, key))


def _check_value(hint: Any, value: Any, path: tuple[str, ...]) -> None:
    args = typing.get_args(hint)
    if isinstance(value, Mapping) and typing.get_origin(hint) in (dict, Mapping) and len(args) == 2:
        for name, item in value.items():
            _check_keys(args[1], item, (*path, str(name)))
    elif isinstance(value, Mapping) and not any(typing.get_origin(a) in (dict, Mapping) for a in args):
        _check_keys(hint, value, path)
    elif isinstance(value, list) and args:
        for index, item in enumerate(value):
            _check_keys(args[0], item, (*path, str(index)))


def _chosen(registry: Any, raw: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the class that ``type:`` selects."""
    try:
        registry.get_choice_name(registry)
    except ValueError:
        pass
    else:
        return registry
    name = raw.get(CHOICE_TYPE_KEY, registry.default_choice_name())
    choices = registry.get_known_choices()
    if name not in choices:
        close = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=0.4)
        advice = f"Did you mean {close[0]!r}?" if close else "Add a `type:` key."
        raise ConfigError(
            f"unknown {registry.__name__} type={name!r}; expected one of {', '.join(sorted(choices))}. {advice}",
            key=".".join((*path, CHOICE_TYPE_KEY)),
        )
    return registry.get_choice_class(name)


def _dataclass_in(hint: Any) -> Any:
    """The dataclass or choice registry inside ``X``, ``X | None`` or ``Annotated[X, ...]``; None if there is none."""
    if isinstance(hint, type):
        return hint if dataclasses.is_dataclass(hint) or is_choice_type(hint) else None
    candidates = [_dataclass_in(arg) for arg in typing.get_args(hint) if arg is not type(None)]
    found = [c for c in candidates if c is not None]
    return found[0] if len(candidates) == 1 and found else None


def _config_error(error: DraccusException) -> ConfigError:
    """Translate draccus's error, whose root cause may sit two exceptions deep, into ours."""
    cause: BaseException = error
    while isinstance(cause, ParsingError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, ConfigError):
        return cause
    key = ".".join(getattr(error, "key_path", ()))
    message = getattr(error, "message", str(error))
    detail = "" if cause is error else f" ({cause})"
    return ConfigError(f"{message}{detail}; expected a value of the field's type. Fix the value.", key=key)


register_codec(timedelta, lambda raw, path: parse_duration(raw), lambda value, declared=None: format_duration(value))
