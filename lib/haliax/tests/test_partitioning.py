"""Sharding by name needs several devices, which XLA must be told before it starts: run in a child process."""

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", ["devices_partitioning.py", "devices_modes.py"])
def test_the_suite_for_eight_devices_passes(suite):
    here = pathlib.Path(__file__).parent
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    command += ["-W", "error", "-c", os.devnull, "--rootdir", str(here), str(here / suite)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=here, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
