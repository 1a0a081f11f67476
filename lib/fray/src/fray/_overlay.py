"""Extra packages for a job on this machine: installed once with uv, and put before the driver's own.

An overlay is a folder that holds the packages and what they depend on, named by what was asked for; jobs that ask for
the same share it. The driver's environment is left as it is.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from typing import Final

from fray.errors import EnvironmentSetupError, JobRequestError
from fray.types import EnvironmentConfig

VARIABLE: Final = "FRAY_OVERLAY"
_LAST_LINES: Final = 5


def requirements_of(environment: EnvironmentConfig) -> list[str]:
    """Return what an environment asks to be installed: its packages, and those of the extras of its workspace.

    Raises:
        JobRequestError: The workspace's ``pyproject.toml`` has no such extra.

    Example:
        >>> requirements_of(EnvironmentConfig(workspace="/tmp", pip_packages=["six==1.17.0"]))
        ['six==1.17.0']
    """
    wanted = list(environment.pip_packages)
    if environment.extras:
        offered: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(environment.workspace or "", "pyproject.toml"), "rb") as stream:
                offered = tomllib.load(stream).get("project", {}).get("optional-dependencies", {})
        for extra in environment.extras:
            if extra not in offered:
                raise JobRequestError(
                    "extras",
                    list(environment.extras),
                    f"extras that the pyproject.toml of the workspace offers: {sorted(offered)}",
                )
            wanted += offered[extra]
    return wanted


def overlay(requirements: Sequence[str], base: str | None = None) -> str:
    """Return the folder that holds these packages; the first call installs them and takes as long as that takes.

    Args:
        requirements: As for ``pip install``.
        base: Folder of all overlays; default one per user in the temporary folder.
    Raises:
        EnvironmentSetupError: uv is not there, or cannot install them; carries its last words.
    """
    base = base or os.path.join(tempfile.gettempdir(), f"fray-overlays-{os.getuid()}")
    asked = json.dumps([sorted(requirements), sys.version, sys.platform])
    target = os.path.join(base, hashlib.blake2b(asked.encode(), digest_size=12).hexdigest())
    if os.path.isdir(target):
        return target
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise EnvironmentSetupError(list(requirements), "uv is not on PATH")
    os.makedirs(base, mode=0o700, exist_ok=True)
    staged = tempfile.mkdtemp(prefix=".part-", dir=base)
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", staged, *requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EnvironmentSetupError(
                list(requirements), " / ".join(done.stderr.strip().splitlines()[-_LAST_LINES:]) or "no message"
            )
        with contextlib.suppress(OSError):  # another process was faster, with the same packages
            os.rename(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target
