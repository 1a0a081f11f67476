"""Every static check of the repository behind one command, one line a check.

``scripts/lint`` runs all of them, ``--only NAME`` some, ``--fix`` repairs what can be repaired without thinking
(format, import order, trailing blanks). A check is a function that returns sentences; no sentence means it passed.
Checks that need a tool the machine lacks (cargo) say so and pass: the machines of CI have it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra import declared, hygiene
from infra.workspace import ROOT, find_uv, load_workspace

Check = Callable[[bool], list[str]]


class Unavailable(RuntimeError):
    """The check needs a tool that this machine does not have."""


@dataclass(frozen=True)
class Verdict:
    """What one check found."""

    name: str
    state: str
    seconds: float
    findings: tuple[str, ...]


def tool(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> list[str]:
    """Run a command in the repository; its output is the finding when it fails."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    return done.stdout.strip().splitlines() or [f"{command[0]} failed: exit_code={done.returncode}"]


def binary(name: str) -> str:
    """Path of a tool of the environment this process runs in."""
    return str(Path(sys.executable).parent / name)


def check_format(fix: bool) -> list[str]:
    """Source text is formatted."""
    return tool(binary("ruff"), "format", *([] if fix else ["--check", "--output-format=concise"]), ".")


def check_ruff(fix: bool) -> list[str]:
    """Lint rules of the root pyproject hold."""
    return tool(binary("ruff"), "check", "--quiet", "--output-format=concise", *(["--fix"] if fix else []), ".")


def check_types(_fix: bool) -> list[str]:
    """The type checker is content with every package, the experiments and these tools."""
    return tool(binary("pyrefly"), "check", "--color", "never", "--summary=none", "--min-severity", "error")


def check_layers(_fix: bool) -> list[str]:
    """Packages and rooms import only what their layer allows, and no cycle exists."""
    return tool(binary("lint-imports"), "--no-logo", "--no-cache", environment={"NO_COLOR": "1", "COLUMNS": "120"})


def check_declared(_fix: bool) -> list[str]:
    """Every import is declared, every hard dependency is imported."""
    return declared.findings(load_workspace())


def check_lock(_fix: bool) -> list[str]:
    """``uv.lock`` is what the pyproject files resolve to."""
    return tool(find_uv(), "lock", "--check", "--quiet")


def check_overrides(fix: bool) -> list[str]:
    """Overrides and constraints are rendered from their table, none expired, each one matters."""
    return tool(sys.executable, "-m", "infra.render_overrides", *([] if fix else ["--check"]))


def check_wheels(_fix: bool) -> list[str]:
    """The prebuilt native wheels belong to the Rust sources beside them."""
    return tool(sys.executable, "scripts/rust_mode.py", "verify")


def _cargo(*command: str) -> list[str]:
    if shutil.which("cargo") is None:
        raise Unavailable("cargo is not on PATH; CI has it")
    if tool("cargo", command[0], "--version"):
        raise Unavailable(f"cargo {command[0]} is not installed; CI has it")
    # The binding crates of lib/ are members of that workspace; pyo3 asks an interpreter what it builds for.
    return tool("cargo", *command, cwd=ROOT / "rust", environment={"PYO3_PYTHON": sys.executable})


def check_rustfmt(fix: bool) -> list[str]:
    """Rust sources are formatted."""
    return _cargo("fmt", "--all", *([] if fix else ["--check"]))


def check_clippy(_fix: bool) -> list[str]:
    """Clippy has nothing to say about the Rust sources."""
    return _cargo("clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings")


def check_hosts(_fix: bool) -> list[str]:
    """No tracked file names a mirror or a path of somebody's machine; locks name the public indexes only."""
    return hygiene.foreign_names(ROOT)


def check_files(fix: bool) -> list[str]:
    """No merge marker, big file, trailing blank or missing end of line; TOML, JSON and YAML parse."""
    return hygiene.file_problems(ROOT, fix=fix)


def check_packages(_fix: bool) -> list[str]:
    """Each package is typed, licensed, described, and has tests."""
    return hygiene.package_problems(ROOT, load_workspace())


def check_shell(_fix: bool) -> list[str]:
    """Shell scripts parse and are executable."""
    return hygiene.shell_problems(ROOT)


CHECKS: dict[str, Check] = {
    "format": check_format,
    "ruff": check_ruff,
    "types": check_types,
    "layers": check_layers,
    "declared": check_declared,
    "lock": check_lock,
    "overrides": check_overrides,
    "wheels": check_wheels,
    "hosts": check_hosts,
    "files": check_files,
    "packages": check_packages,
    "shell": check_shell,
    "rustfmt": check_rustfmt,
    "clippy": check_clippy,
}


def run_check(name: str, fix: bool) -> Verdict:
    """Run one check and time it."""
    started = time.monotonic()
    try:
        findings = CHECKS[name](fix)
        state = "FAIL" if findings else "ok"
    except Unavailable as reason:
        findings, state = [str(reason)], "skipped"
    return Verdict(name, state, time.monotonic() - started, tuple(findings))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the process exit code (0 clean, 1 findings)."""
    parser = argparse.ArgumentParser(prog="scripts/lint", description="Static checks of the repository.")
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired mechanically, then check")
    parser.add_argument(
        "--only", action="append", choices=list(CHECKS), metavar="NAME", help=f"one of {', '.join(CHECKS)}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list on stdout")
    options = parser.parse_args(argv)
    verdicts = []
    for name in options.only or CHECKS:
        verdict = run_check(name, options.fix)
        verdicts.append(verdict)
        if not options.json:
            note = f"  ({verdict.findings[0]})" if verdict.state == "skipped" else ""
            print(f"{verdict.state:8}{name:12}{verdict.seconds:6.1f}s{note}", flush=True)
            if verdict.state == "FAIL":
                print("\n".join(f"    {line}" for line in verdict.findings), flush=True)
    if options.json:
        print(json.dumps([verdict.__dict__ | {"findings": list(verdict.findings)} for verdict in verdicts], indent=2))
    failed = [verdict.name for verdict in verdicts if verdict.state == "FAIL"]
    if failed:
        print(f"\nlint: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
