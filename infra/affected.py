"""Which packages a change can break: those it touches and everything that stands on them.

A developer should not wait for eleven suites after editing one file; CI runs them all anyway. Files are mapped to
packages by folder, then the set is closed over dependants (extras and test groups count, because tests use them). Files
of the house itself (lock, root pyproject, ``infra/``, ``scripts/``) affect everything; prose affects only the
repository's own tests.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from infra.workspace import ROOT, Package, load_workspace

EVERYTHING = ("pyproject.toml", "uv.lock", "infra/", "scripts/", ".ci/")
REPOSITORY = "tests"


def changed_files(root: Path, base: str, head: str | None) -> list[str]:
    """Files that differ between the merge base of ``base`` and ``head``; without ``head``, the working tree counts.

    Raises:
        subprocess.CalledProcessError: git does not know a revision.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return [name for name in done.stdout.split("\0") if name]

    if head is not None:
        return sorted(set(git("diff", "--name-only", "-z", f"{base}...{head}")))
    return sorted({*git("diff", "--name-only", "-z", base), *git("ls-files", "-z", "--others", "--exclude-standard")})


def dependants(packages: Mapping[str, Package]) -> dict[str, set[str]]:
    """Folder name to the folders of the packages that name it, in any section of their pyproject."""
    folders = {package.distribution: folder for folder, package in packages.items()}
    table: dict[str, set[str]] = {folder: set() for folder in packages}
    for folder, package in packages.items():
        for requirement in package.requirements(extras=package.extras, groups=package.groups):
            below = folders.get(requirement.name)
            if below is not None and below != folder:
                table[below].add(folder)
    return table


def affected(files: Iterable[str], packages: Mapping[str, Package]) -> list[str]:
    """Folders of the affected packages in dependency order; ``tests`` stands for the repository's own tests.

    Args:
        files: Paths relative to the repository's root.
        packages: The workspace, dependencies first.
    """
    touched: set[str] = set()
    repository = False
    for name in files:
        parts = name.split("/")
        if name.startswith(EVERYTHING):
            return [*packages, REPOSITORY]
        repository = True
        owner = parts[1] if parts[0] in ("lib", "rust") and len(parts) > 2 else None
        if owner in packages:
            touched.add(owner)
    above = dependants(packages)
    queue = list(touched)
    while queue:
        for folder in above[queue.pop()] - touched:
            touched.add(folder)
            queue.append(folder)
    return [*(folder for folder in packages if folder in touched), *([REPOSITORY] if repository else [])]


def pytest_folders(names: Iterable[str]) -> list[str]:
    """Folders that pytest should be given for ``names``."""
    return [REPOSITORY if name == REPOSITORY else f"lib/{name}/tests" for name in names]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the process exit code (0, or 2 for an unknown revision)."""
    parser = argparse.ArgumentParser(prog="python -m infra.affected", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="HEAD", help="revision to compare with (default HEAD: uncommitted changes)")
    parser.add_argument("--head", help="revision that has the change (default: the working tree)")
    parser.add_argument("--paths", action="store_true", help="print the test folders instead of the package names")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args(argv)
    try:
        files = changed_files(ROOT, options.base, options.head)
    except subprocess.CalledProcessError as error:
        print(
            f"error: git: {error.stderr.strip()}\n\nhint: give revisions that `git rev-parse` knows.", file=sys.stderr
        )
        return 2
    names = affected(files, load_workspace())
    names = pytest_folders(names) if options.paths else names
    print(json.dumps(names) if options.json else "\n".join(names))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
