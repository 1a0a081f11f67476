"""A driver process for crash tests: a diamond of four steps, run once, told by its environment where to die.

KILL_AT=<boundary>:<step name>         SIGKILL this process right after that boundary of that step
WANT                                   "top" runs that step alone
FORCE                                  name of a step to rebuild
BODY_FAILS                             every body raises
BODY_SECONDS                           how long each body takes
LEASE_TIMEOUT, HEARTBEAT               lease times
FREEZE_HEARTBEATS                      the heartbeat threads never wake up
CLOCK_OFFSET, CLOCK_JUMP               wall clock: how far it is off, and how far it jumps at every second reading
BODIES                                 file to which every body appends one line when it begins
"""

import json
import os
import signal
import sys
import threading
import time

from marin.execution import Artifact, ArtifactStep, run
from marin.execution.settings import RunnerSettings
from rigging.filesystem.storage_path import StoragePath
from rigging.timing import SystemClock


class Piece(Artifact):
    total: int


def body(config):
    with open(os.environ["BODIES"], "a") as log:
        log.write(f"{config['name']} {os.getpid()}\n")
    deadline = time.monotonic() + float(os.environ.get("BODY_SECONDS", "0"))
    os.makedirs(os.path.join(config["out"], "parts"), exist_ok=True)
    total = config["seed"]
    for number in range(5):
        with open(os.path.join(config["out"], "parts", f"{number}.txt"), "w") as file:
            file.write(f"{config['name']} {number}\n" * 50)
        total += number
        while time.monotonic() < deadline - (4 - number) * 0.01:
            time.sleep(0.005)
    if os.environ.get("BODY_FAILS"):
        raise RuntimeError("told to fail")
    for source in config["inputs"]:
        total += Piece.load(source).total
        with (
            (StoragePath(source) / "parts/0.txt").open() as file,
            open(os.path.join(config["out"], "in.txt"), "a") as out,
        ):
            out.write(file.read())
    os.makedirs(os.path.join(config["out"], "logs"), exist_ok=True)
    with open(os.path.join(config["out"], "logs", "time.txt"), "w") as file:
        file.write(str(time.time()))
    return Piece(total=total)


def step(name, seed, *deps):
    return ArtifactStep(
        name=name,
        version="2026.12.01",
        artifact_type=Piece,
        run=body,
        build_config=lambda ctx: {
            "name": name,
            "seed": seed,
            "out": ctx.output_path,
            "inputs": [ctx.artifact_path(dep) for dep in deps],
        },
        deps=deps,
    )


def diamond():
    top = step("top", 1)
    if os.environ.get("WANT") == "top":
        return top
    left, right = step("left", 2, top), step("right", 3, top)
    return step("deep/bottom", 4, left, right)


def killer(boundary, label):
    wanted = os.environ.get("KILL_AT", "")
    if wanted and f"{boundary.value}:{label.partition('@')[0]}" == wanted:
        os.kill(os.getpid(), signal.SIGKILL)


class WrongClock(SystemClock):
    """A wall clock that is off, and jumps to and fro; monotonic time is what it is."""

    def __init__(self):
        self.readings = 0

    def time(self):
        self.readings += 1
        jump = float(os.environ.get("CLOCK_JUMP", "0")) if self.readings % 2 else 0.0
        return super().time() + float(os.environ.get("CLOCK_OFFSET", "0")) + jump

    def wait(self, event, timeout_s):
        if os.environ.get("FREEZE_HEARTBEATS") and threading.current_thread().name.startswith("lease "):
            return event.wait()
        return super().wait(event, timeout_s)


def main(prefix):
    settings = RunnerSettings(
        clock=WrongClock(),
        lease_timeout_s=float(os.environ.get("LEASE_TIMEOUT", "90")),
        heartbeat_s=float(os.environ.get("HEARTBEAT", "30")),
        poll_s=0.05,
        hook=killer,
    )
    force = os.environ["FORCE"].split() if os.environ.get("FORCE") else ()
    summary = run(diamond(), prefix=prefix, settings=settings, max_concurrent=2, force=force)
    print(json.dumps({step.name: [step.outcome.value, step.category, step.content_digest] for step in summary.steps}))
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
