"""Build what a release would publish, offline, and prove it: plan, build, verify.

``build`` works on a copy of each package in which siblings are pinned to the exact version of this release, builds
sdist and wheel twice and refuses when the two differ, adds the prebuilt native wheels, and writes beside them a simple
index (PEP 503, ``file://``), a manifest with the hash of every file, and a bill of materials (CycloneDX). ``verify``
hashes everything again, installs each package alone from that index into an empty environment and imports it.
Publishing is then a copy of the folder; nothing here talks to an account.
"""

import argparse
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.isolated_test import IsolationError, import_names, prove_origin, run
from infra.workspace import ROOT, Package, WorkspaceError, find_uv, load_workspace, normalise, sibling_closure

OUT = ROOT / "dist" / "release"
NATIVE_WHEELS = ROOT / "rust" / "wheels"
IGNORED = ("__pycache__", "*.pyc", ".pytest_cache", ".hypothesis", "target")


class ReleaseError(RuntimeError):
    """A release could not be built, or it does not hold what it says."""


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pin_siblings(pyproject: str, versions: Mapping[str, str]) -> str:
    """A pyproject text whose requirements on siblings name the exact version, without uv's workspace sources.

    Requirement strings are replaced where they stand, so that everything else stays as its author wrote it.

    >>> print(pin_siblings('dependencies = ["marin-fray[ray]>=0.1; x"]', {"marin-fray": "0.2.0"}))
    dependencies = ["marin-fray[ray]==0.2.0; x"]
    """

    def pinned(match: re.Match[str]) -> str:
        version = versions.get(normalise(match["name"] or ""))
        return f'"{match["name"]}{match["extras"] or ""}=={version}{match["marker"] or ""}"' if version else match[0]

    # The first alternative takes the project's own name out of the way.
    requirement = r'^name\s*=[^\n]*|"(?P<name>marin[-_][\w-]+)(?P<extras>\[[^\]]*\])?[^";]*(?P<marker>;[^"]*)?"'
    text = re.sub(requirement, pinned, pyproject, flags=re.MULTILINE)
    return re.sub(r"(?ms)^\[tool\.uv\.sources\]\n.*?(?=^\[|\Z)", "", text)


def git(*words: str) -> str:
    """Output of a git command in the repository, stripped."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def make_plan(packages: Mapping[str, Package]) -> dict[str, object]:
    """What ``build`` would make: commit, versions, siblings of each package."""
    return {
        "commit": git("rev-parse", "HEAD"),
        "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
        "source_date_epoch": int(git("log", "-1", "--format=%ct")),
        "packages": {
            package.distribution: {
                "version": package.version,
                "siblings": sorted(set(sibling_closure(package, packages)) - {package.distribution}),
            }
            for package in packages.values()
        },
    }


def build_once(uv: str, package: Package, versions: Mapping[str, str], epoch: int, out: Path) -> None:
    """Build sdist and wheel of one package from a pinned copy."""
    with tempfile.TemporaryDirectory(prefix="marin-release-") as scratch:
        copy = Path(scratch) / package.distribution
        shutil.copytree(package.path, copy, ignore=shutil.ignore_patterns(*IGNORED, "rust", "tests", "benchmarks"))
        shutil.copyfile(ROOT / "LICENSE", copy / "LICENSE")
        pyproject = copy / "pyproject.toml"
        pyproject.write_text(pin_siblings(pyproject.read_text(encoding="utf-8"), versions), encoding="utf-8")
        command = [uv, "build", "--quiet", "--python", sys.executable, "--out-dir", out, copy]
        run(command, cwd=copy, what=f"building {package.distribution}", extra={"SOURCE_DATE_EPOCH": str(epoch)})


def build_twice(uv: str, package: Package, versions: Mapping[str, str], epoch: int, out: Path) -> list[Path]:
    """Build a package twice, keep one result.

    Raises:
        ReleaseError: The two builds differ in any byte.
    """
    with tempfile.TemporaryDirectory(prefix="marin-release-") as scratch:
        folders = [Path(scratch) / "first", Path(scratch) / "second"]
        for folder in folders:
            build_once(uv, package, versions, epoch, folder)
        first, second = (
            {p.name: sha256(p) for p in sorted(f.iterdir()) if p.suffix in (".whl", ".gz")} for f in folders
        )
        if first != second:
            raise ReleaseError(
                f"{package.distribution}: two builds differ: first={first}, second={second}; expected equal."
            )
        for name in first:
            shutil.copyfile(folders[0] / name, out / name)
        return [out / name for name in first]


def write_index(files: Sequence[Path], out: Path) -> None:
    """A simple index over the files: one page a distribution, each link with its digest."""
    pages: dict[str, list[Path]] = {}
    for path in files:
        name = (
            path.name.split("-")[0] if path.suffix == ".whl" else path.name.removesuffix(".tar.gz").rpartition("-")[0]
        )
        pages.setdefault(normalise(name), []).append(path)
    for name, paths in pages.items():
        folder = out / "simple" / name
        folder.mkdir(parents=True)
        links = [
            f'<a href="../../files/{p.name}#sha256={sha256(p)}">{html.escape(p.name)}</a><br>' for p in sorted(paths)
        ]
        (folder / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(links) + "\n", encoding="utf-8")
    names = [f'<a href="{name}/">{name}</a><br>' for name in sorted(pages)]
    (out / "simple" / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(names) + "\n", encoding="utf-8")


def build(uv: str, packages: Mapping[str, Package], out: Path) -> dict[str, object]:
    """Build everything into an empty ``out``; returns the manifest that lies there as ``manifest.json``."""
    plan = make_plan(packages)
    shutil.rmtree(out, ignore_errors=True)
    (out / "files").mkdir(parents=True)
    versions = {package.distribution: package.version for package in packages.values()}
    files: list[Path] = []
    for package in packages.values():
        files += build_twice(uv, package, versions, int(str(plan["source_date_epoch"])), out / "files")
        print(f"built twice, equal: {package.distribution} {package.version}", file=sys.stderr)
    for wheel in sorted(NATIVE_WHEELS.glob("*.whl")):
        files.append(out / "files" / wheel.name)
        shutil.copyfile(wheel, files[-1])
    write_index(files, out)
    bill = run(
        [uv, "export", "--quiet", "--frozen", "--all-packages", "--format", "cyclonedx1.5"],
        cwd=ROOT,
        what="exporting the bill",
    )
    (out / "sbom.cdx.json").write_text(bill, encoding="utf-8")
    manifest = plan | {"files": {path.name: sha256(path) for path in sorted(files)}}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


def verify_files(out: Path) -> dict[str, str]:
    """Compare the folder with its manifest; returns file name to digest.

    Raises:
        ReleaseError: A file is missing, differs, or is not in the manifest.
    """
    promised = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
    found = {path.name: sha256(path) for path in sorted((out / "files").iterdir())}
    wrong = sorted(name for name in set(promised) | set(found) if promised.get(name) != found.get(name))
    if wrong:
        raise ReleaseError(f"files differ from manifest.json: {wrong}; expected exactly what was built. Build again.")
    return found


def verify_install(uv: str, package: Package, packages: Mapping[str, Package], out: Path) -> int:
    """Install one package alone from the folder's index and import it; returns how many distributions came.

    Raises:
        ReleaseError: Something of ours came from elsewhere.
        IsolationError: Installing or importing failed.
    """
    with tempfile.TemporaryDirectory(prefix="marin-release-") as scratch:
        environment = Path(scratch) / "venv"
        python = environment / "bin" / "python"
        run(
            [uv, "venv", "--quiet", "--python", sys.executable, environment],
            cwd=Path(scratch),
            what="making an environment",
        )
        index = (out / "simple").as_uri()
        command = [uv, "pip", "install", "--quiet", "--python", python, "--index", index, f"{package.distribution}"]
        run(command, cwd=Path(scratch), what=f"installing {package.distribution} from {index}")
        run([python, "-c", f"import {package.import_name}"], cwd=Path(scratch), what=f"importing {package.import_name}")
        (site,) = environment.glob("lib/python*/site-packages")
        wheels = {}
        for name in sibling_closure(package, packages):
            (wheels[name],) = [p for p in (out / "files").glob("*.whl") if normalise(p.name.split("-")[0]) == name]
        _, problems = prove_origin(site, wheels, import_names(packages), direct=False)
        if problems:
            raise ReleaseError(f"{package.distribution}: not our files:\n  " + "\n  ".join(problems))
        return len(list(site.glob("*.dist-info")))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the process exit code (0, or 1 when a step does not hold)."""
    parser = argparse.ArgumentParser(prog="python -m infra.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=["plan", "build", "verify"])
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the release (default dist/release)")
    options = parser.parse_args(argv)
    try:
        packages, uv = load_workspace(), find_uv()
        if options.verb == "plan":
            print(json.dumps(make_plan(packages), indent=2, sort_keys=True))
        elif options.verb == "build":
            print(json.dumps(build(uv, packages, options.out.resolve()), indent=2, sort_keys=True))
        else:
            print(f"{len(verify_files(options.out))} files are what the manifest says")
            for package in packages.values():
                count = verify_install(uv, package, packages, options.out.resolve())
                print(f"{package.distribution} installs alone and imports: {count} distributions", flush=True)
    except (ReleaseError, IsolationError, WorkspaceError, FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
