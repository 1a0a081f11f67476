"""What the benchmarks share: rivals in a throw-away folder, documents, interleaved timing, one JSON line."""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from dupekit.testing import simd_path


@contextmanager
def rivals(*requirements: str) -> Generator[None]:
    """Install packages into a temporary folder and make them importable while the block runs."""
    with tempfile.TemporaryDirectory(prefix="dupekit-rivals-") as folder:
        uv = shutil.which("uv") or os.environ.get("UV")
        tool = (
            [uv, "pip", "install", "-q", "--python", sys.executable]
            if uv
            else [sys.executable, "-m", "pip", "install", "-q"]
        )
        subprocess.run([*tool, "--target", folder, *requirements], check=True, stdout=sys.stderr)
        sys.path.append(folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def documents(count: int, words: int, seed: int) -> list[str]:
    """Seeded documents of made-up words, about 7.5 bytes a word."""
    chooser = random.Random(seed)
    vocabulary = ["".join(chooser.choices(string.ascii_lowercase, k=n % 9 + 2)) for n in range(20_000)]
    return [" ".join(chooser.choices(vocabulary, k=words)) for _ in range(count)]


def edited(text: str, share: float, seed: int) -> str:
    """The text with a share of its words replaced."""
    chooser = random.Random(seed)
    words = text.split()
    for at in chooser.sample(range(len(words)), round(share * len(words))):
        words[at] = "".join(chooser.choices(string.ascii_lowercase, k=7))
    return " ".join(words)


def interleaved(cases: dict[str, tuple[int, Callable[[], object]]], rounds: int) -> dict[str, tuple[float, float]]:
    """Items a second and relative spread of each case.

    Each round runs every case once, after one warm-up round. Time is CPU time of this process, which a busy machine
    disturbs less than wall time; every case must run in this process and one thread. Value: median; spread: distance of
    the quartiles over the median.
    """
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, (items, call) in cases.items():
            start = time.process_time()
            call()
            seconds = time.process_time() - start
            if turn:
                rates[name].append(items / seconds)
    result = {}
    for name, values in rates.items():
        low, middle, high = statistics.quantiles(values, n=4)
        result[name] = (middle, (high - low) / middle)
    return result


def lock_hash() -> str | None:
    """Digest of the repository's uv.lock, when run from a checkout."""
    path = Path(__file__).resolve().parents[3] / "uv.lock"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def machine() -> str:
    """CPU model, number of cores and instruction set in use."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, {simd_path()}"


def pin_to_one_core() -> None:
    """Keep this process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def report(**fields: object) -> None:
    """Print the one JSON line."""
    print(json.dumps({**fields, "machine": machine(), "lock_hash": lock_hash()}, sort_keys=True))


def smoke_asked(description: str | None) -> bool:
    """Read the command line: only `--smoke`."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few seconds only, numbers of little worth")
    return parser.parse_args().smoke
