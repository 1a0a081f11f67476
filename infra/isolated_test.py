"""Test one package in an environment that holds only its wheel and what it declares.

The workspace environment hides two mistakes: an import of something that is not declared, and a file that is in the
tree but not in the wheel. And distributions of our names exist on the public index, so an environment that looks right
may have been filled from there. So: build the wheels of the package and of the siblings it declares, install them by
path into an empty environment, compare every installed file of every ``marin-*`` distribution with the wheel it should
come from, copy the tests out of the tree, and run them there.

Third-party versions are those of ``uv.lock``, so that the run repeats. Only the standard library is used here.
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from infra.workspace import (
    ROOT,
    SIBLING_PREFIX,
    Package,
    WorkspaceError,
    find_uv,
    import_names,
    load_workspace,
    normalise,
    sibling_closure,
)

WHEELS = ROOT / "dist" / "wheels"
NATIVE_WHEELS = ROOT / "rust" / "wheels"
COPIED = ("tests", "benchmarks", "README.md", "pyproject.toml")
EXIT_NO_TESTS = 5


class IsolationError(RuntimeError):
    """The isolated run could not be set up, or it is not isolated."""


@dataclass
class Outcome:
    """What one package's run gave; the ``--json`` output is a list of these."""

    package: str
    python: str = ""
    wheels: dict[str, str] = field(default_factory=dict)
    distributions: int = 0
    files_compared: int = 0
    exit_code: int = -1
    seconds: dict[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether the proof held and pytest passed."""
        return self.exit_code == 0 and not self.problem


def clean_environment(first_on_path: Path | None = None) -> dict[str, str]:
    """The caller's environment without what would leak the workspace into the run."""
    environment = dict(os.environ)
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    parts = [part for part in environment.get("PATH", "").split(os.pathsep) if part and ROOT not in Path(part).parents]
    if first_on_path is not None:
        parts.insert(0, str(first_on_path))
    environment["PATH"] = os.pathsep.join(parts)
    return environment


def run(command: Sequence[str | Path], *, cwd: Path, what: str, extra: Mapping[str, str] | None = None) -> str:
    """Run a command, return its stdout; its stderr becomes the error message.

    Raises:
        IsolationError: The command failed.
    """
    words = [str(word) for word in command]
    environment = clean_environment() | dict(extra or {})
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise IsolationError(f"{what} failed: exit_code={done.returncode}; expected 0. Its last words:\n{tail}")
    return done.stdout


def build_wheel(uv: str, package: Package) -> Path:
    """Build the wheel of one package into ``dist/wheels``; older wheels of it are replaced."""
    with tempfile.TemporaryDirectory(prefix="marin-wheel-") as scratch:
        run(
            [uv, "build", "--quiet", "--python", sys.executable, "--wheel", "--out-dir", scratch, package.path],
            cwd=ROOT,
            what=f"building the wheel of {package.distribution}",
        )
        (built,) = Path(scratch).glob("*.whl")
        WHEELS.mkdir(parents=True, exist_ok=True)
        for old in WHEELS.glob(f"{package.distribution.replace('-', '_')}-*.whl"):
            if old.name != built.name:
                old.unlink()
        staged = WHEELS / f".{built.name}.{os.getpid()}"
        shutil.copyfile(built, staged)
        target = WHEELS / built.name
        staged.replace(target)
    return target


def native_wheel(distribution: str) -> Path:
    """The prebuilt wheel of a native distribution for this machine.

    Raises:
        IsolationError: There is none under ``rust/wheels``.
    """
    machine = platform.machine().lower()
    names = sorted(NATIVE_WHEELS.glob(f"{distribution.replace('-', '_')}-*.whl"))
    fitting = [path for path in names if sys.platform[:5] in path.name and machine in path.name]
    if not fitting:
        raise IsolationError(
            f"no prebuilt wheel for this machine: distribution={distribution}, machine={sys.platform} {machine}; "
            f"expected one of rust/wheels={[p.name for p in names]}. Build it with `scripts/rust_mode.py build`."
        )
    return fitting[-1]


def collect_wheels(
    uv: str, needed: Iterable[str], packages: Mapping[str, Package], built: dict[str, Path]
) -> dict[str, Path]:
    """Distribution name to wheel file for everything in ``needed``; ``built`` remembers wheels between packages."""
    by_distribution = {package.distribution: package for package in packages.values()}
    for name in needed:
        if name not in built:
            member = by_distribution.get(name)
            built[name] = build_wheel(uv, member) if member is not None else native_wheel(name)
    return {name: built[name] for name in needed}


def locked_versions(uv: str) -> str:
    """Third-party versions of the lock as a constraints file.

    The workspace's own distributions are left out: they come from wheels.
    """
    command = [uv, "export", "--quiet", "--frozen", "--all-packages", "--all-groups", "--extra", "cpu"]
    command += ["--no-hashes", "--no-emit-workspace", "--no-annotate", "--no-header"]
    exported = run(command, cwd=ROOT, what="exporting uv.lock")
    lines = [line for line in exported.splitlines() if re.match(r"^[A-Za-z0-9]", line) and "==" in line]
    return "\n".join(line for line in lines if not line.startswith(SIBLING_PREFIX)) + "\n"


def prove_origin(
    site: Path, wheels: Mapping[str, Path], forbidden: Iterable[str], *, direct: bool = True
) -> tuple[int, list[str]]:
    """Compare what is installed with the wheels it should have come from, byte for byte.

    Args:
        site: The environment's site-packages folder.
        wheels: Distribution name to the wheel that was built here.
        forbidden: Distribution names that may not be there at all (import names of ours that an index also serves).
        direct: Whether each must also say that it was installed from that very path.
    Returns:
        Number of files compared, and one sentence for each violation.
    """
    problems: list[str] = []
    compared = 0
    installed = {normalise(d.metadata["Name"]): d for d in importlib.metadata.distributions(path=[str(site)])}
    for name in sorted(set(installed) & set(forbidden)):
        problems.append(
            f"{name} {installed[name].version} is installed: it is not ours and would shadow one of our packages"
        )
    for name in sorted(n for n in installed if n.startswith(SIBLING_PREFIX)):
        if name not in wheels:
            problems.append(
                f"{name} {installed[name].version} is installed: no declared requirement of ours asks for it"
            )
            continue
        origin = json.loads(installed[name].read_text("direct_url.json") or "{}").get("url", "the index")
        if direct and origin != wheels[name].as_uri():
            problems.append(f"{name} {installed[name].version} came from {origin}; expected {wheels[name].as_uri()}")
            continue
        with zipfile.ZipFile(wheels[name]) as archive:
            for member in archive.namelist():
                inside = PurePosixPath(member)
                if member.endswith("/") or inside.name == "RECORD" or ".data" in inside.parts[0]:
                    continue
                compared += 1
                on_disk = site / member
                if not on_disk.is_file() or on_disk.read_bytes() != archive.read(member):
                    problems.append(f"{name}: installed {member} differs from the wheel {wheels[name].name}")
    problems.extend(f"{name} is not installed" for name in sorted(set(wheels) - set(installed)))
    return compared, problems


def write_pytest_config(folder: Path) -> Path:
    """The root's pytest settings as an ini file, with the copied tests as the only test path."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    settings["testpaths"] = ["tests"]
    lines = ["[pytest]"]
    for key, value in settings.items():
        text = "\n    ".join(["", *map(str, value)]) if isinstance(value, list) else str(value)
        lines.append(f"{key} = {text}")
    path = folder / "pytest.ini"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def copy_tests(package: Package, folder: Path) -> None:
    """Copy what tests may read (tests, benchmarks, README, pyproject), never ``src``."""
    for name in COPIED:
        source = package.path / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        elif source.is_file():
            shutil.copyfile(source, folder / name)


def install(
    uv: str, scratch: Path, package: Package, packages: Mapping[str, Package], wheels: Mapping[str, Path]
) -> Path:
    """Make the environment and install the wheels by path and the package's ``test`` group; returns site-packages."""
    closure = sibling_closure(package, packages, groups=("test",))
    requirements = []
    for name, path in wheels.items():
        extras = f"[{','.join(sorted(closure[name]))}]" if closure[name] else ""
        requirements.append(f"{name}{extras} @ {path.as_uri()}")
    requirements.extend(r.text for r in package.groups["test"] if not r.is_sibling)
    (scratch / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    (scratch / "constraints.txt").write_text(locked_versions(uv), encoding="utf-8")
    environment = scratch / "venv"
    run(
        [uv, "venv", "--quiet", "--python", sys.executable, environment],
        cwd=scratch,
        what="making an empty environment",
    )
    command = [uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python"]
    command += ["-r", scratch / "requirements.txt", "-c", scratch / "constraints.txt"]
    run(command, cwd=scratch, what=f"installing {package.distribution} alone")
    (site,) = environment.glob("lib/python*/site-packages")
    return site


def run_pytest(scratch: Path, package: Package, arguments: Sequence[str], stdout: int | None) -> int:
    """Run the copied tests with the environment's own interpreter; returns pytest's exit code."""
    folder = scratch / "run"
    folder.mkdir()
    copy_tests(package, folder)
    config = write_pytest_config(folder)
    binaries = scratch / "venv" / "bin"
    workers = ["-n", os.environ.get("MARIN_TEST_WORKERS", "2"), "--dist=worksteal"] if "-n" not in arguments else []
    command = [
        str(binaries / "python"),
        "-m",
        "pytest",
        "-c",
        str(config),
        "--rootdir",
        str(folder),
        *workers,
        *arguments,
    ]
    return subprocess.run(command, cwd=folder, env=clean_environment(binaries), check=False, stdout=stdout).returncode


def check_alone(
    package: Package,
    packages: Mapping[str, Package],
    uv: str,
    arguments: Sequence[str],
    built: dict[str, Path],
    *,
    keep: bool,
    quiet: bool,
) -> Outcome:
    """Build, install, prove and test one package."""
    outcome = Outcome(package.folder, python=platform.python_version())
    scratch = Path(tempfile.mkdtemp(prefix=f"marin-alone-{package.folder}-"))
    try:
        started = time.monotonic()
        needed = sibling_closure(package, packages, groups=("test",))
        wheels = collect_wheels(uv, needed, packages, built)
        outcome.wheels = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.values()}
        outcome.seconds["build"] = time.monotonic() - started
        started = time.monotonic()
        site = install(uv, scratch, package, packages, wheels)
        outcome.distributions = len(list(site.glob("*.dist-info")))
        outcome.files_compared, problems = prove_origin(site, wheels, import_names(packages))
        outcome.seconds["install"] = time.monotonic() - started
        if problems:
            raise IsolationError("the environment is not made of our own wheels:\n  " + "\n  ".join(problems))
        started = time.monotonic()
        outcome.exit_code = run_pytest(scratch, package, arguments, subprocess.DEVNULL if quiet else None)
        outcome.seconds["test"] = time.monotonic() - started
        if outcome.exit_code == EXIT_NO_TESTS:
            outcome.problem = "no test was run"
    except IsolationError as error:
        outcome.problem = str(error)
    finally:
        if keep:
            print(f"kept: {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def summary(outcome: Outcome) -> str:
    """One line a package: verdict, what was proved, where the time went."""
    times = " ".join(f"{name} {value:.1f}s" for name, value in outcome.seconds.items())
    proof = (
        f"{len(outcome.wheels)} own wheels, {outcome.files_compared} files equal, {outcome.distributions} distributions"
    )
    verdict = "ok" if outcome.ok else f"FAILED ({outcome.problem or f'pytest exit {outcome.exit_code}'})"
    return f"alone {outcome.package}: {verdict}; {proof}; {times}"


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Command line of the tool."""
    parser = argparse.ArgumentParser(
        prog="scripts/test PACKAGE",
        description="Test packages alone, from their wheels.",
        epilog="Arguments after -- go to pytest.",
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="folders of lib/, for example rigging")
    parser.add_argument("--all", action="store_true", help="every package, dependencies first")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder and print where it is")
    parser.add_argument("--json", action="store_true", help="print one JSON list on stdout; pytest's output is dropped")
    return parser.parse_args(list(arguments))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the process exit code (0 passed, 1 a package failed, 2 wrong use)."""
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    options = parse_arguments(words[:cut])
    try:
        packages, uv = load_workspace(), find_uv()
    except WorkspaceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    unknown = sorted(set(options.packages) - set(packages))
    chosen = list(packages) if options.all else options.packages
    if unknown or not chosen:
        what = f"unknown packages: {unknown}" if unknown else "no package named"
        print(f"error: {what}; expected some of {sorted(packages)}.\n\nhint: --all takes every one.", file=sys.stderr)
        return 2
    built: dict[str, Path] = {}
    outcomes = []
    (ROOT / "dist").mkdir(exist_ok=True)
    with (ROOT / "dist" / ".alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in chosen:
            outcome = check_alone(
                packages[name], packages, uv, words[cut + 1 :], built, keep=options.keep, quiet=options.json
            )
            outcomes.append(outcome)
            print(summary(outcome), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps([asdict(outcome) | {"ok": outcome.ok} for outcome in outcomes], indent=2, sort_keys=True))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
