#!/usr/bin/env python3
"""Switch the native (Rust) packages between prebuilt wheels and source builds, and keep the wheels honest.

A fresh machine needs no Rust: the repository carries each native package as a wheel for Linux x86-64 under
rust/wheels/. The manifest beside the wheels ties each one to a hash of the sources it was built from, so a stale wheel
is an error that any machine can detect, with or without cargo.

    scripts/rust_mode.py dev        build from source at `uv sync` (needs cargo)
    scripts/rust_mode.py user       use the prebuilt wheels (alias: prebuilt); the state to commit
    scripts/rust_mode.py status     which mode pyproject.toml, uv.lock and the environment are in; --check fails unless
                                    all are in user mode
    scripts/rust_mode.py verify     fail when a wheel is stale, damaged, or not the one that is locked
    scripts/rust_mode.py build      rebuild wheels, manifest and uv.lock (needs cargo, maturin, ziglang, uv)

examples:
    scripts/rust_mode.py dev && uv sync          work on the kernels; uv rebuilds what changed
    scripts/rust_mode.py build && uv sync        done: make the wheel, go back to it
    scripts/rust_mode.py verify --json           what CI runs

exit status: 0 fine, 1 a check or a build failed, 2 wrong usage.

The source hash covers the manifests, sources and type stubs of the crates involved, the shared part of rust/Cargo.toml
and the reachable part of rust/Cargo.lock; benchmarks and prose do not enter. Needs only the Python standard library.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BEGIN = "# ### BEGIN RUST-DEV SOURCES ###"
END = "# ### END RUST-DEV SOURCES ###"
LINUX_X86 = "sys_platform == 'linux' and platform_machine == 'x86_64'"
NOT_LINUX_X86 = "sys_platform != 'linux' or platform_machine != 'x86_64'"
TARGET = "x86_64-unknown-linux-gnu (glibc 2.17)"
SOURCE_DATE_EPOCH = "315532800"  # 1980-01-01, the first date a zip archive can hold
WHEELS = "rust/wheels"
MANIFEST = f"{WHEELS}/manifest.json"


class RustModeError(Exception):
    """A check or a build failed; the message says what to do."""


@dataclass(frozen=True)
class Native:
    """A native package: a maturin project and the kernel crates it links."""

    distribution: str
    module: str
    project: str
    crates: tuple[str, ...]


NATIVES = (Native("marin-dupekit-native", "dupekit_native", "lib/dupekit/rust", ("rust/dupekit",)),)


def sha256(data: bytes) -> str:
    """Hex digest of bytes."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """JSON bytes that depend on the value alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# ---------------------------------------------------------------------------------------------------------------------
# What a wheel is made from


def lock_closure(lock: dict[str, list[dict[str, object]]], root: str) -> list[dict[str, object]]:
    """The packages of a Cargo.lock that `root` reaches, sorted."""
    by_name: dict[str, list[dict[str, object]]] = {}
    for package in lock["package"]:
        by_name.setdefault(str(package["name"]), []).append(package)
    reached: dict[tuple[str, str], dict[str, object]] = {}
    waiting = list(by_name.get(root, []))
    while waiting:
        package = waiting.pop()
        key = (str(package["name"]), str(package["version"]))
        if key in reached:
            continue
        reached[key] = package
        dependencies = package.get("dependencies", [])
        assert isinstance(dependencies, list)
        for entry in dependencies:  # "name", or "name version" where the lock has several
            name, _, version = str(entry).partition(" ")
            version = version.partition(" ")[0]
            waiting += [p for p in by_name.get(name, []) if not version or p["version"] == version]
    return [reached[key] for key in sorted(reached)]


def source_files(root: Path, native: Native) -> list[Path]:
    """The files that enter a build, sorted by path."""
    found: set[Path] = set()
    for folder in (native.project, *native.crates):
        base = root / folder
        for pattern in ("Cargo.toml", "build.rs", "pyproject.toml", "*.pyi", "src/**/*"):
            found.update(path for path in base.glob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def source_hash(root: Path, native: Native) -> str:
    """SHA-256 over everything in the repository that determines a native package's wheel."""
    lines = []
    for path in source_files(root, native):
        data = path.read_bytes().replace(b"\r\n", b"\n")
        lines.append(f"{path.relative_to(root).as_posix()}\0{sha256(data)}\n")
    workspace = tomllib.loads((root / "rust/Cargo.toml").read_text(encoding="utf-8"))
    workspace.get("workspace", {}).pop("members", None)  # another package's crate does not change this wheel
    lines.append(f"rust/Cargo.toml\0{sha256(canonical(workspace))}\n")
    crate = tomllib.loads((root / native.project / "Cargo.toml").read_text(encoding="utf-8"))["package"]["name"]
    lock = tomllib.loads((root / "rust/Cargo.lock").read_text(encoding="utf-8"))
    lines.append(f"rust/Cargo.lock\0{sha256(canonical(lock_closure(lock, crate)))}\n")
    return sha256("".join(lines).encode())


# ---------------------------------------------------------------------------------------------------------------------
# pyproject.toml, uv.lock, manifest, environment


def read_manifest(root: Path) -> dict[str, dict[str, str]]:
    """The manifest's entries by distribution."""
    path = root / MANIFEST
    if not path.exists():
        raise RustModeError(
            f"no manifest: path={MANIFEST}; expected one entry a wheel. Run scripts/rust_mode.py build."
        )
    return json.loads(path.read_text(encoding="utf-8"))["wheels"]


def entry_of(manifest: dict[str, dict[str, str]], native: Native) -> dict[str, str]:
    """A package's manifest entry."""
    if native.distribution not in manifest:
        raise RustModeError(f"no wheel recorded: name={native.distribution}. Run scripts/rust_mode.py build.")
    return manifest[native.distribution]


def sources_block(root: Path, mode: str) -> str:
    """The lines between the markers for a mode."""
    if mode == "dev":
        lines = ["# Written by scripts/rust_mode.py dev. Go back with `scripts/rust_mode.py user` before you commit."]
        lines += [f'{native.distribution} = {{ path = "{native.project}" }}' for native in NATIVES]
        return "\n".join(lines)
    manifest = read_manifest(root)
    lines = ["# Written by scripts/rust_mode.py; `scripts/rust_mode.py dev` builds from source instead."]
    for native in NATIVES:
        file = entry_of(manifest, native)["file"]
        lines += [
            f"{native.distribution} = [",
            f'    {{ path = "{WHEELS}/{file}", marker = "{LINUX_X86}" }},',
            f'    {{ path = "{native.project}", marker = "{NOT_LINUX_X86}" }},',
            "]",
        ]
    return "\n".join(lines)


def split_pyproject(root: Path) -> tuple[str, str, str]:
    """The root pyproject.toml as text before, inside and after the markers."""
    path = root / "pyproject.toml"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise RustModeError(
            f"markers missing in pyproject.toml: expected one {BEGIN!r} before one {END!r}. Restore them."
        )
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside.strip("\n"), after


def set_mode(root: Path, mode: str) -> bool:
    """Write a mode's sources; returns whether anything changed."""
    before, inside, after = split_pyproject(root)
    block = sources_block(root, mode)
    if inside == block:
        return False
    path = root / "pyproject.toml"
    temporary = path.with_name(f"pyproject.toml.{os.getpid()}.tmp")
    temporary.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}", encoding="utf-8")
    shutil.copymode(path, temporary)
    temporary.replace(path)
    return True


def pyproject_mode(root: Path) -> str:
    """`user`, `dev`, or `other` when the block is neither."""
    _, inside, _ = split_pyproject(root)
    for mode in ("dev", "user"):
        try:
            if inside == sources_block(root, mode):
                return mode
        except RustModeError:
            continue
    return "other"


def locked_wheels(root: Path, native: Native) -> dict[str, str]:
    """Wheel file names that uv.lock holds for a package, with their SHA-256."""
    path = root / "uv.lock"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    header = "[[package]]\n"
    wheels: dict[str, str] = {}
    # The whole lock takes half a second to parse; one package's part takes none.
    for part in text.split(header)[1:]:
        if part.startswith(f'name = "{native.distribution}"\n'):
            for wheel in tomllib.loads(header + part)["package"][0].get("wheels", []):
                wheels[wheel.get("filename", "")] = wheel.get("hash", "").removeprefix("sha256:")
    return wheels


def native_library(names: list[str], module: str) -> str | None:
    """The extension module's name among archive members or paths."""
    pattern = re.compile(rf"(^|/){module}/{module}\.abi3\.so$")
    return next((name for name in names if pattern.search(name)), None)


def installed_state(root: Path, native: Native) -> str:
    """Whether the project environment's module is the prebuilt one: `user`, `other build` or `not installed`."""
    environment = Path(os.environ.get("UV_PROJECT_ENVIRONMENT", root / ".venv"))
    paths = [path.as_posix() for path in environment.glob(f"lib/python*/site-packages/{native.module}/*.so")]
    library = native_library(paths, native.module)
    if library is None:
        return "not installed"
    entry = read_manifest(root).get(native.distribution, {})
    wheel = root / WHEELS / entry.get("file", "")
    if not wheel.is_file():
        return "other build"
    with zipfile.ZipFile(wheel) as archive:
        member = native_library(archive.namelist(), native.module)
        same = member is not None and archive.read(member) == Path(library).read_bytes()
    return "user" if same else "other build"


# ---------------------------------------------------------------------------------------------------------------------
# Commands


def status(root: Path) -> dict[str, object]:
    """The state of pyproject.toml, uv.lock and the environment, with warnings where they disagree."""
    mode = pyproject_mode(root)
    report: dict[str, object] = {"mode": mode}
    warnings = []
    if mode == "other":
        warnings.append("the block in pyproject.toml matches neither mode; run scripts/rust_mode.py user (or dev)")
    for native in NATIVES:
        lock = "user" if locked_wheels(root, native) else "dev"
        installed = installed_state(root, native)
        report[native.distribution] = {"lock": lock, "installed": installed}
        if mode != "other" and lock != mode:
            warnings.append(f"mixed state: pyproject.toml is in {mode} mode, uv.lock in {lock} mode; run uv lock")
        if mode == "user" and installed == "other build":
            warnings.append(f"{native.distribution}: the installed module is not the prebuilt one; run uv sync")
        if mode == "dev" and installed == "user":
            warnings.append(f"{native.distribution}: the installed module is the prebuilt one; run uv sync")
    report["warnings"] = warnings
    return report


def verify(root: Path) -> dict[str, object]:
    """Check every wheel against its manifest entry, its sources, pyproject.toml and uv.lock."""
    problems: list[str] = []
    checked: dict[str, str] = {}
    manifest = read_manifest(root)
    for native in NATIVES:
        entry = entry_of(manifest, native)
        wheel = root / WHEELS / entry["file"]
        name = native.distribution
        if not wheel.is_file():
            problems.append(f"{name}: wheel missing: path={WHEELS}/{entry['file']}")
        elif sha256(wheel.read_bytes()) != entry["sha256"]:
            problems.append(f"{name}: wheel differs from its manifest entry: path={WHEELS}/{entry['file']}")
        if source_hash(root, native) != entry["source_tree_sha256"]:
            problems.append(f"{name}: wheel is stale: its sources have changed since it was built")
        if locked_wheels(root, native).get(entry["file"]) != entry["sha256"]:
            problems.append(f"{name}: uv.lock does not hold this wheel")
        checked[name] = entry["file"]
    extra = {path.name for path in (root / WHEELS).glob("*.whl")} - set(checked.values())
    problems += [f"wheel without a manifest entry: path={WHEELS}/{name}" for name in sorted(extra)]
    if pyproject_mode(root) != "user":
        problems.append("pyproject.toml is not in user mode; run scripts/rust_mode.py user")
    return {"checked": checked, "problems": problems}


def tool(name: str, hint: str) -> str:
    """Path of a program that a build needs."""
    found = shutil.which(name)
    if found is None:
        raise RustModeError(f"cannot build: program={name} not found. {hint}")
    return found


def output_of(*command: str) -> str:
    """Standard output of a short command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def staged_sources(root: Path) -> Generator[Path]:
    """A copy of the cargo workspace under a path that is the same for every checkout.

    Cargo mixes the absolute path of a crate outside the workspace folder into symbol names, which order the code; from
    one path, equal sources give equal bytes wherever the checkout lies.
    """
    stage = Path(tempfile.gettempdir()) / "marin-native-build"
    workspace = tomllib.loads((root / "rust/Cargo.toml").read_text(encoding="utf-8"))["workspace"]
    with open(f"{stage}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time may use the path
        shutil.rmtree(stage, ignore_errors=True)
        try:
            for member in workspace["members"]:
                folder = os.path.normpath(f"rust/{member}")
                ignored = shutil.ignore_patterns("target", "__pycache__", "*.so")
                shutil.copytree(root / folder, stage / folder, ignore=ignored)
            for file in ("Cargo.toml", "Cargo.lock"):
                shutil.copy2(root / "rust" / file, stage / "rust" / file)
            yield stage
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def run_maturin(root: Path, native: Native, out: str) -> list[str]:
    """Build a wheel into `out`; returns the arguments that shaped it."""
    maturin = tool("maturin", "Run `uv sync --group rust` and put the environment's bin folder first on PATH.")
    arguments = ["build", "--release", "--locked", "--zig", "--compatibility", "manylinux2014"]
    cargo_home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    with staged_sources(root) as stage:
        remap = {f"{cargo_home}/registry/src": "registry", str(stage): "marin"}
        flags = [f"--remap-path-prefix={old}={new}" for old, new in remap.items()]
        environment = {"CARGO_TARGET_DIR": str(root / "rust/target"), **os.environ}
        environment |= {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags)}
        environment.pop("RUSTFLAGS", None)
        jobs = ["-j", environment["CARGO_BUILD_JOBS"]] if "CARGO_BUILD_JOBS" in environment else []
        command = [maturin, *arguments, *jobs, "-m", str(stage / native.project / "Cargo.toml"), "-o", out]
        ran = subprocess.run(command, env=environment, stdout=sys.stderr)
    if ran.returncode:
        raise RustModeError(f"maturin failed: name={native.distribution}, exit status={ran.returncode}; see above.")
    return ["maturin", *arguments, "-m", f"{native.project}/Cargo.toml"]


def toolchain() -> str:
    """Versions of the programs that make a wheel."""
    hint = "Run `uv sync --group rust` and put the environment's bin folder first on PATH."
    rustc, maturin, zig = tool("rustc", "Install Rust from https://rustup.rs."), tool("maturin", hint), "python-zig"
    versions = [output_of(rustc, "--version"), output_of(maturin, "--version"), output_of(tool(zig, hint), "version")]
    return "; ".join([*versions[:2], f"zig {versions[2]}"])


def build_wheel(root: Path, native: Native) -> dict[str, str]:
    """Build one wheel into rust/wheels and return its manifest entry."""
    before, tools = source_hash(root, native), toolchain()
    with tempfile.TemporaryDirectory() as out:
        built_with = run_maturin(root, native, out)
        (built,) = Path(out).glob("*.whl")
        if source_hash(root, native) != before:
            raise RustModeError(f"sources changed during the build: name={native.distribution}. Build again.")
        # The build tag names a wheel by its bytes, so that no cache or lock takes one for another.
        digest = sha256(built.read_bytes())
        name, version, rest = built.name.split("-", 2)
        file = f"{name}-{version}-0{digest[:12]}-{rest}"
        destination = root / WHEELS
        destination.mkdir(parents=True, exist_ok=True)
        for old in destination.glob(f"{name}-*.whl"):
            old.unlink()
        shutil.copyfile(built, destination / file)
    return {
        "file": file,
        "sha256": digest,
        "source_tree_sha256": before,
        "toolchain": tools,
        "target": TARGET,
        "built_with": " ".join(built_with),
    }


def build(root: Path) -> dict[str, object]:
    """Rebuild every wheel, the manifest, the sources block and the lock."""
    uv = tool("uv", "Install it with `pip install uv`.")
    wheels = {native.distribution: build_wheel(root, native) for native in NATIVES}
    (root / MANIFEST).write_text(json.dumps({"wheels": wheels}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    set_mode(root, "user")
    names = [argument for native in NATIVES for argument in ("--refresh-package", native.distribution)]
    if subprocess.run([uv, "lock", "-q", *names], cwd=root, stdout=sys.stderr).returncode:
        raise RustModeError("uv lock failed; see above. The wheel and its manifest are written; lock, then verify.")
    return {"built": {name: entry["file"] for name, entry in wheels.items()}, **verify(root)}


def render(command: str, report: dict[str, object], as_json: bool) -> None:
    """Print a report for people or programs."""
    if as_json:
        print(json.dumps({"command": command, **report}, indent=2, sort_keys=True))
        return
    for key, value in report.items():
        if key in ("problems", "warnings"):
            continue
        if isinstance(value, dict):
            for name, detail in value.items():
                print(f"{key} {name}: {detail}")
        else:
            print(f"{key}: {value}")
    for kind in ("problems", "warnings"):
        entries = report.get(kind, [])
        assert isinstance(entries, list)
        for entry in entries:
            print(f"{kind[:-1]}: {entry}", file=sys.stderr)


def run(command: str, root: Path, check: bool) -> tuple[dict[str, object], int]:
    """Carry out a command; returns its report and exit status."""
    if command in ("dev", "user"):
        changed = set_mode(root, command)
        return {"mode": command, "changed": changed, "next": "uv sync" if changed else "nothing to do"}, 0
    if command == "status":
        report = status(root)
        return report, int(check and bool(report["mode"] != "user" or report["warnings"]))
    report = verify(root) if command == "verify" else build(root)
    return report, int(bool(report["problems"]))


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command",
        choices=["dev", "user", "prebuilt", "status", "verify", "build"],
        metavar="COMMAND",
        help="dev, user (or prebuilt), status, verify or build",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--check", action="store_true", help="with status: fail unless everything is in user mode")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="repository root")
    options = parser.parse_args(arguments)
    if options.check and options.command != "status":
        parser.error("--check goes with status")
    command = "user" if options.command == "prebuilt" else options.command
    try:
        report, code = run(command, options.root.resolve(), options.check)
    except (RustModeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        print("\nhint: scripts/rust_mode.py --help explains the modes", file=sys.stderr)
        return 1
    render(command, report, options.json)
    return code


if __name__ == "__main__":
    sys.exit(main())
