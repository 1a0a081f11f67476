"""How much log text a second ``redact_string`` clears, and what ``redact_value`` costs a record.

The rival is the least that could be done: one compiled alternation of the known key prefixes, which misses assignments,
long random runs and everything that a field's name gives away. Both must hide the planted keys first; only ours must
hide the rest.

usage: python lib/rigging/benchmarks/bench_redaction.py [--smoke]
Prints one JSON line: MB/s (10**6 bytes) and microseconds, median over rounds.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import time

from rigging.redaction import redact_string, redact_value

RIVAL = re.compile(r"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{36,})")
PLANTED = ("sk-" + "a1B2c3D4" * 4, "AKIA" + "ABCDEFGH12345678", "hf_" + "Zx9" * 10)
ONLY_OURS = "HF_TOKEN=plainword and password: hunter2"


def corpus(lines: int) -> list[str]:
    """Log lines as they are: numbers, paths, names, now and then a key."""
    dice = random.Random(7)
    made = []
    for n in range(lines):
        place = f"path=/data/run-{n % 7}/part-{n:05d}.parquet max_tokens=4096"
        line = f"I20261201 10:00:00 {n} trainer step={n} loss={dice.random():.4f} {place}"
        made.append(line + (f" using {dice.choice(PLANTED)}" if n % 50 == 0 else ""))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    rounds, lines = (3, 500) if options.smoke else (15, 5000)
    text = corpus(lines)
    for key in PLANTED:
        assert key not in redact_string(f"x {key} y") and key not in RIVAL.sub("-", f"x {key} y")
    assert "plainword" not in redact_string(ONLY_OURS) and "hunter2" not in redact_string(ONLY_OURS)
    size = sum(map(len, text))
    record = {
        "run_id": "8c7dd922ad47494fc02c388e12c00eac",
        "config": {"lr": 0.1, "api_key": "x" * 20, "steps": [1, 2, 3]},
    }
    ours, rival, records = [], [], []
    for _ in range(rounds):
        start = time.perf_counter()
        for line in text:
            redact_string(line)
        ours.append(size / (time.perf_counter() - start) / 1e6)
        start = time.perf_counter()
        for line in text:
            RIVAL.sub("[REDACTED]", line)
        rival.append(size / (time.perf_counter() - start) / 1e6)
        start = time.perf_counter()
        for _ in range(1000):
            redact_value(record)
        records.append((time.perf_counter() - start) * 1e3)
    print(
        json.dumps(
            {
                "name": "redaction",
                "MB_per_s": round(statistics.median(ours), 2),
                "one_regex_MB_per_s": round(statistics.median(rival), 2),
                "us_per_record": round(statistics.median(records), 1),
                "us_per_line": round(size / lines / statistics.median(ours), 1),
                "rounds": rounds,
                "machine": platform.machine(),
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
