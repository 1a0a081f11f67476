"""Find configuration files by name: the user's own first, then the project's.

A name such as ``staging`` is looked for as ``staging.yaml`` or ``staging.yml``; the first folder that has it wins, so a
user can override what a project ships without editing it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rigging import _env
from rigging._adapters.toml_file import parse_toml
from rigging._adapters.yaml_file import load_yaml
from rigging.errors import ConfigError, ConfigNotFoundError

_SUFFIXES: Final = (".yaml", ".yml")


def find_project_root(start: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the nearest folder upwards whose ``pyproject.toml`` declares a uv workspace; None without one.

    Args:
        start: Where to begin; default the current directory.

    Example:
        >>> import pathlib, tempfile
        >>> root = pathlib.Path(tempfile.mkdtemp()).resolve()
        >>> _ = (root / "pyproject.toml").write_text("[tool.uv.workspace]\\nmembers = []")
        >>> (root / "a/b").mkdir(parents=True); find_project_root(root / "a/b") == root
        True
    """
    here = Path(start if start is not None else os.getcwd()).resolve()
    for folder in (here, *here.parents):
        try:
            declared = parse_toml((folder / "pyproject.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if "workspace" in declared.get("tool", {}).get("uv", {}):
            return folder
    return None


def cluster_folders(start: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return where cluster configurations are looked for: the user's folder, then ``config`` of the project."""
    folders = [Path(_env.config_home()) / "marin" / "clusters"]
    root = find_project_root(start)
    return [*folders, root / "config"] if root is not None else folders


def find_configs(folders: Sequence[str | os.PathLike[str]], name: str | None = None) -> dict[str, Path]:
    """Return configuration files by their name without extension; the first folder wins.

    Args:
        folders: Where to look, strongest first; a folder that does not exist holds nothing.
        name: Only this one.

    Example:
        >>> import pathlib, tempfile
        >>> mine, theirs = pathlib.Path(tempfile.mkdtemp()), pathlib.Path(tempfile.mkdtemp())
        >>> _ = [(folder / "a.yaml").write_text("{}") for folder in (mine, theirs)], (theirs / "b.yml").write_text("")
        >>> {stem: path.parent == mine for stem, path in find_configs([mine, theirs]).items()}
        {'a': True, 'b': False}
    """
    found: dict[str, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.suffix in _SUFFIXES and path.is_file() and (name is None or path.stem == name):
                found.setdefault(path.stem, path)
    return found


def resolve_cluster_config(name: str, folders: Sequence[str | os.PathLike[str]] | None = None) -> Path:
    """Return the file of a cluster configuration.

    Args:
        name: A name, or the path of a file.
        folders: Where to look for a name; default ``cluster_folders()``.
    Raises:
        ConfigNotFoundError: It is nowhere; says where was looked and what there is.

    Example:
        >>> resolve_cluster_config("labb", folders=[])
        Traceback (most recent call last):
            ...
        rigging.errors.ConfigNotFoundError: no such configuration: ...
    """
    if "/" in name or name.endswith(_SUFFIXES):
        path = Path(name).expanduser()
        if not path.is_file():
            raise ConfigNotFoundError(name, [str(path.parent)], sorted(find_configs([path.parent])))
        return path
    searched = cluster_folders() if folders is None else list(folders)
    found = find_configs(searched)
    if name not in found:
        raise ConfigNotFoundError(name, [str(folder) for folder in searched], sorted(found))
    return found[name]


def list_cluster_configs(folders: Sequence[str | os.PathLike[str]] | None = None) -> dict[str, Path]:
    """Return every cluster configuration by name."""
    return find_configs(cluster_folders() if folders is None else folders)


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: Not YAML, or not a mapping.
        OSError: The file cannot be read.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "lab.yaml")
        >>> with open(path, "w") as stream:
        ...     _ = stream.write("data: {root: /store}")
        >>> load_config(path)
        {'data': {'root': '/store'}}
    """
    document = load_yaml(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(os.fspath(path), f"it holds a {type(document).__name__}", "a mapping")
    return document
