"""Checks on tracked files: names of machines and mirrors, size, leftovers, package metadata, shell syntax.

All look only at what git tracks, so that build outputs and a developer's own files never matter.
"""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from infra.workspace import Package

LARGE_BYTES = 500_000
LARGE_ALLOWED = ("uv.lock", "rust/wheels/", "rust/Cargo.lock")
LICENCE = "Apache-2.0"

# A machine path: an absolute path into a home or work folder. Written so that this file does not match itself.
_MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:root|work|home/[a-z]+|Users/[A-Za-z]+)/|file:" + r"///tmp")
_INDEX_SETTING = re.compile(
    r"^\s*(?:extra[-_])?(?:index|find)[-_](?:url|links)\b|--(?:extra-)?index-url|--find-"
    + r"links|\bUV_(?:DEFAULT_)?INDEX\b",
    re.M,
)
_URL_HOST = re.compile(r"https?://([A-Za-z0-9.-]+)")
_MARKERS = re.compile(r"^(?:<<<<<<< |>>>>>>> |\|\|\|\|\|\|\| )", re.M)
# Each lock file may name these hosts and no others.
LOCK_HOSTS = {
    "uv.lock": {"pypi.org", "files.pythonhosted.org"},
    "Cargo.lock": {"github.com"},
    "package-lock.json": {"registry.npmjs.org"},
}
CARGO_INDEX = "registry+https://github.com/rust-lang/crates.io-index"


def tracked_files(root: Path) -> list[Path]:
    """Files that git tracks and that are there, sorted."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(
        path for name in listed.split("\0") if name and (path := root / name).is_file() and not path.is_symlink()
    )


def _texts(root: Path) -> Iterator[tuple[str, str]]:
    for path in tracked_files(root):
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        yield path.relative_to(root).as_posix(), data.decode("utf-8", errors="replace")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def lock_problems(name: str, text: str) -> list[str]:
    """Hosts in a lock file that are not the public default index of its kind.

    >>> lock_problems("uv.lock", 'url = "https://mirror.example/simple"')
    ['uv.lock: names host mirror.example; expected only files.pythonhosted.org, pypi.org']
    """
    kind = name.rsplit("/", 1)[-1]
    allowed = LOCK_HOSTS.get(kind)
    if allowed is None:
        return []
    strangers = sorted(set(_URL_HOST.findall(text)) - allowed)
    found = [f"{name}: names host {host}; expected only {', '.join(sorted(allowed))}" for host in strangers]
    if kind == "Cargo.lock":
        sources = set(re.findall(r'^source = "([^"]+)"', text, re.M)) - {CARGO_INDEX}
        found += [f"{name}: source {source}; expected {CARGO_INDEX}" for source in sorted(sources)]
    return found


def foreign_names(root: Path) -> list[str]:
    """Machine paths, index settings and unknown lock hosts in tracked files."""
    found: list[str] = []
    for name, text in _texts(root):
        found.extend(lock_problems(name, text))
        if name.rsplit("/", 1)[-1] in LOCK_HOSTS:
            continue
        for what, pattern in (("machine path", _MACHINE_PATH), ("package index setting", _INDEX_SETTING)):
            if name == "infra/hygiene.py":
                continue
            found.extend(
                f"{name}:{_line(text, m.start())}: {what}: {m.group(0).strip()!r}; expected none"
                for m in pattern.finditer(text)
            )
    return found


def _parse_problem(name: str, text: str) -> str | None:
    try:
        if name.endswith(".toml"):
            tomllib.loads(text)
        elif name.endswith(".json"):
            json.loads(text)
        elif name.endswith((".yml", ".yaml")) and name != "mkdocs.yml":
            list(yaml.safe_load_all(text))
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
        return f"{name}: does not parse: {str(error).splitlines()[0]}"
    return None


def file_problems(root: Path, *, fix: bool = False) -> list[str]:
    """Big files, merge markers, blanks at line ends, missing final newline, files that do not parse."""
    found: list[str] = []
    for path in tracked_files(root):
        name = path.relative_to(root).as_posix()
        size = path.stat().st_size
        if size > LARGE_BYTES and not name.startswith(LARGE_ALLOWED):
            found.append(f"{name}: {size} bytes; expected at most {LARGE_BYTES}. Data does not belong in git.")
    for name, text in _texts(root):
        if name.startswith("LICENSE"):
            continue
        tidy = "\n".join(line.rstrip(" \t") for line in text.split("\n")).rstrip("\n") + "\n" if text.strip() else ""
        blanks = name.endswith((".py", ".rs", ".toml", ".md", ".yml", ".yaml", ".sh")) or "/" not in name
        if blanks and text != tidy:
            if fix:
                (root / name).write_text(tidy, encoding="utf-8")
            else:
                found.append(
                    f"{name}: blanks at a line end, or not one newline at the end; `scripts/lint --fix` repairs it"
                )
        found.extend(f"{name}:{_line(text, m.start())}: merge marker" for m in _MARKERS.finditer(text))
        problem = _parse_problem(name, text)
        if problem:
            found.append(problem)
    return found


def package_problems(root: Path, packages: Mapping[str, Package]) -> list[str]:
    """What each package has to have: py.typed, licence, README, tests, a documentation page."""
    found: list[str] = []
    if "Apache License" not in (root / "LICENSE").read_text(encoding="utf-8"):
        found.append("LICENSE: expected the text of the Apache License")
    for folder, package in packages.items():
        document = tomllib.loads((package.path / "pyproject.toml").read_text(encoding="utf-8"))
        project = document["project"]
        if not (package.path / "src" / package.import_name / "py.typed").is_file():
            found.append(f"lib/{folder}: no py.typed in {package.import_name}")
        if project.get("license") != LICENCE:
            found.append(f"lib/{folder}: license={project.get('license')!r}; expected {LICENCE!r}")
        if "Typing :: Typed" not in project.get("classifiers", ()):
            found.append(f"lib/{folder}: classifier 'Typing :: Typed' is missing")
        if "test" not in document.get("dependency-groups", {}):
            found.append(f"lib/{folder}: no dependency group `test`")
        if not any((package.path / "tests").glob("test_*.py")) and not any((package.path / "tests").rglob("test_*.py")):
            found.append(f"lib/{folder}: no tests")
        readme = package.path / "README.md"
        if not readme.is_file() or len(readme.read_text(encoding="utf-8").splitlines()) > 120:
            found.append(f"lib/{folder}: README.md is missing or longer than 120 lines")
        if not (root / "docs" / "packages" / f"{folder}.md").is_file():
            found.append(f"docs/packages/{folder}.md is missing")
    return found


def shell_problems(root: Path) -> list[str]:
    """Shell scripts that do not parse, or that should be executable and are not."""
    found: list[str] = []
    for path in tracked_files(root):
        name = path.relative_to(root).as_posix()
        with path.open("rb") as stream:
            first = stream.readline(80)
        if not (first.startswith(b"#!") and b"sh" in first) and not name.endswith(".sh"):
            continue
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            found.append(f"{name}: {done.stderr.strip().splitlines()[0]}")
        if first.startswith(b"#!") and not os.access(path, os.X_OK):
            found.append(f"{name}: starts with #! but is not executable")
    return found
