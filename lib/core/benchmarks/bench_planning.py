"""How long planning takes, how long a finished graph takes to be served, and what one step costs beside its rivals.

Planning: a chain, a wide fan-in and a stack of full diamonds, lowered and ordered without touching a store.
Serving: a finished chain where every step is asked for, so that every status is read.
Overhead: the same chain of trivial steps in a fresh store, in redun (a fresh SQLite backend) and in DVC (a fresh git
repository; each stage is a shell command, as DVC's stages are), interleaved; all must compute the same number (fifty
steps: redun nests expressions, and a chain of 200 meets Python's recursion limit).
The rivals are installed into throw-away environments; ``--no-rival`` leaves them out.

    python bench_planning.py [--smoke] [--no-rival]
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from marin.execution import Artifact, ArtifactStep, StepSpec, run
from marin.execution.graph import plan_graph
from marin.execution.lazy import lower_all
from marin.policy import policy_gate

RIVAL = """
import json, sys, time
from redun import Scheduler, task
from redun.config import Config
redun_namespace = "bench"

@task()
def step(number: int, before: int) -> int:
    return before + number

@task()
def chain(length: int) -> int:
    value = 0
    for number in range(length):
        value = step(number, value)
    return value

scheduler = Scheduler(config=Config({"backend": {"db_uri": "sqlite:///" + sys.argv[1] + "/redun.db"}}))
scheduler.load()
begun = time.perf_counter()
result = scheduler.run(chain(int(sys.argv[2])))
first = time.perf_counter() - begun
begun = time.perf_counter()
again = scheduler.run(chain(int(sys.argv[2])))
print(json.dumps({"result": result, "seconds": first, "again": time.perf_counter() - begun, "same": again == result}))
"""


def nothing(config):
    return None


def handle(name, *deps):
    def build(ctx):
        return {"out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in deps]}

    return ArtifactStep(name=name, version="auto", run=nothing, build_config=build, deps=deps)


def chain(length):
    last = handle("s0")
    for number in range(1, length):
        last = handle(f"s{number}", last)
    return last


def fan_in(leaves):
    return handle("end", *(handle(f"leaf/{number}") for number in range(leaves)))


def diamonds(layers):
    layer = [handle(f"l0-{side}") for side in "abc"]
    for depth in range(1, layers):
        layer = [handle(f"l{depth}-{side}", *layer) for side in "abc"]
    return handle("end", *layer)


def plan_seconds(build, repeats):
    """CPU seconds: planning is one thread without any waiting."""
    found = []
    for _ in range(repeats):
        terminal = build()
        begun = time.process_time()
        specs = lower_all([terminal])
        plan_graph([specs[terminal]], "/store")
        found.append(time.process_time() - begun)
    return found


def gate_seconds(build, repeats):
    """CPU seconds that the shipped policy needs to judge a plan; every fan-in leaf declares a source."""
    gate, found = policy_gate(), []
    for _ in range(repeats):
        terminal = build()
        specs = lower_all([terminal])
        graph = plan_graph([specs[terminal]], "/store")
        begun = time.process_time()
        assert not gate(graph).refusals
        found.append(time.process_time() - begun)
    return found


def licensed_fan_in(leaves):
    """A model made from as many sources."""

    class Model(Artifact):
        purpose = "train"

    def source(number):
        build = lambda ctx, number=number: {"id": f"source{number}", "licence": "MIT"}  # noqa: E731
        return ArtifactStep(name=f"leaf/{number}", version="auto", run=nothing, build_config=build)

    deps = tuple(source(number) for number in range(leaves))
    build = lambda ctx: [ctx.artifact_path(dep) for dep in deps]  # noqa: E731
    return ArtifactStep(name="model", version="auto", artifact_type=Model, run=nothing, build_config=build, deps=deps)


def adder(number, before):
    def add(path):
        value = number
        if before is not None:
            with open(os.path.join(before, "value")) as file:
                value += int(file.read())
        with open(os.path.join(path, "value"), "w") as file:
            file.write(str(value))

    return add


def ours(root, length):
    """A chain of trivial steps in a fresh store: result, seconds of its first and of its second run."""
    specs, last = [], None
    for number in range(length):
        before = last.path(root) if last is not None else None
        last = StepSpec(name=f"s{number}", fn=adder(number, before), deps=[last] if last is not None else [])
        specs.append(last)
    begun = time.perf_counter()
    summary = run(*specs, prefix=root, max_concurrent=2)
    first = time.perf_counter() - begun
    assert summary.ok
    begun = time.perf_counter()
    assert run(*specs, prefix=root).count("cached") == length
    second = time.perf_counter() - begun
    with open(os.path.join(last.path(root), "value")) as file:
        return int(file.read()), first, second


def rival_python(folder, package):
    """A throw-away environment with a package; returns its interpreter and the package's version."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
    python = os.path.join(folder, "bin", "python")
    subprocess.run([python, "-m", "pip", "install", "-q", package], check=True, capture_output=True, timeout=600)
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return python, subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def redun(python, root, length):
    """The chain in redun: result, seconds of its first and of its second run, import and set-up left out."""
    os.makedirs(root, exist_ok=True)
    script = os.path.join(root, "chain.py")
    with open(script, "w") as file:
        file.write(RIVAL)
    done = subprocess.run([python, script, root, str(length)], check=True, capture_output=True, text=True, cwd=root)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["same"]
    return answer["result"], answer["seconds"], answer["again"]


def dvc(python, root, length):
    """The chain in DVC: result, seconds of its first and of its second run; the start of ``dvc`` itself left out."""
    os.makedirs(root, exist_ok=True)
    tool = [python, "-m", "dvc", "-q"]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}

    def call(*command):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=root, env=environment)
        return time.perf_counter() - begun

    call("git", "init", "-q")
    call(*tool, "init")
    stages = {}
    for number in range(length):
        command = f"echo $(( $(cat v{number - 1}) + {number} )) > v{number}" if number else "echo 0 > v0"
        stages[f"s{number}"] = {"cmd": command, "outs": [f"v{number}"]}
        if number:
            stages[f"s{number}"]["deps"] = [f"v{number - 1}"]
    with open(os.path.join(root, "dvc.yaml"), "w") as file:
        json.dump({"stages": stages}, file)
    start = call(*tool, "version")
    first, second = call(*tool, "repro"), call(*tool, "repro")
    with open(os.path.join(root, f"v{length - 1}")) as file:
        return int(file.read()), max(first - start, 0.0), max(second - start, 0.0)


RIVALS = {"redun": redun, "dvc": dvc}


def lock_hash():
    folder = os.path.dirname(os.path.abspath(__file__))
    while folder != os.path.dirname(folder):
        path = os.path.join(folder, "uv.lock")
        if os.path.exists(path):
            with open(path, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()[:16]
        folder = os.path.dirname(folder)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, at most ten seconds")
    parser.add_argument("--no-rival", action="store_true", help="do not install and measure redun and DVC")
    parser.add_argument("--store", help="folder for the stores (the disk that is measured)")
    options = parser.parse_args()
    scale = 0.02 if options.smoke else 1.0
    repeats = 1 if options.smoke else 3
    plans = {
        "chain_1000": plan_seconds(lambda: chain(1_000), repeats),
        "fan_in_10000": plan_seconds(lambda: fan_in(10_000), repeats),
        "diamonds_25": plan_seconds(lambda: diamonds(25), repeats),
    }
    gates = {
        "chain_1000": gate_seconds(lambda: chain(1_000), repeats),
        "fan_in_10000_sources": gate_seconds(lambda: licensed_fan_in(10_000), repeats),
    }
    root = tempfile.mkdtemp(prefix="bench-planning-", dir=options.store)
    pythons, versions, overhead, first_runs, second_runs = {}, {}, [], {}, {}
    try:
        value, first, second = ours(os.path.join(root, "large"), int(1_000 * scale))
        length = max(2, int(50 * scale))
        if not (options.no_rival or options.smoke):
            for name in RIVALS:
                pythons[name], versions[name] = rival_python(os.path.join(root, f"venv-{name}"), name)
        for number in range(repeats):
            value, seconds, _ = ours(os.path.join(root, f"ours{number}"), length)
            overhead.append(seconds / length * 1e3)
            for name, python in pythons.items():
                other, seconds, again = RIVALS[name](python, os.path.join(root, f"{name}{number}"), length)
                assert other == value, f"{name} did not compute the same: {other}, expected {value}"
                first_runs.setdefault(name, []).append(seconds / length * 1e3)
                second_runs.setdefault(name, []).append(again / length * 1e3)
    finally:
        shutil.rmtree(root)
    result = {
        "name": "core.overhead_per_step",
        "value": round(statistics.median(overhead), 3),
        "unit": "ms per trivial step, everything durable",
        "spread": [round(min(overhead), 3), round(max(overhead), 3)],
        "n": len(overhead),
        "gate_cpu_seconds": {name: round(statistics.median(found), 4) for name, found in gates.items()},
        "plan_cpu_seconds": {name: round(statistics.median(found), 4) for name, found in plans.items()},
        "finished_graph": {
            "steps": int(1_000 * scale),
            "first_run_s": round(first, 3),
            "second_run_s": round(second, 4),
        },
        "rivals": {
            name: {
                "version": versions[name],
                "value": round(statistics.median(found), 3),
                "second_run_ms_per_step": round(statistics.median(second_runs[name]), 3),
            }
            for name, found in first_runs.items()
        },
        "machine": f"{platform.machine()} {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "lock_hash": lock_hash(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
