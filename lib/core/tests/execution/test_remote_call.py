import os
import sys
import threading
import time

import cloudpickle
import pytest
from fray import LocalClient, set_current_client
from marin.execution import Artifact, ArtifactStep, RemoteCallable, remote, run, step_attempt
from marin.execution.reporter import QuietReporter
from marin.ledger import Ledger
from rigging.progress import Progress
from rigging.resources import ResourceConfig

# A job cannot import this file by name where only wheels are installed, so its bodies travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# Jobs cannot import a test module by its name: its functions travel whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Made(Artifact):
    pid: int
    attempt: str = ""


def in_child(config):
    print("hello from the job")
    attempt = step_attempt()
    with open(os.path.join(config["out"], "x"), "w") as file:
        file.write(attempt.step)
    return Made(pid=os.getpid(), attempt=attempt.attempt)


def fails(config):
    raise LookupError("remote trouble")


def sleeps(config):
    with open(config["pid_file"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)


def counts(config):
    with Progress(3, unit="steps", description="count", interval_s=0.01) as progress:
        for value in range(3):
            time.sleep(0.4)
            progress.advance(1, value=value)
    return Made(pid=os.getpid())


@pytest.fixture(scope="module")
def client():
    with LocalClient() as client, set_current_client(client):
        yield client


def step(function, name="a", **config):
    return ArtifactStep(
        name=name,
        version="2026.12.01",
        artifact_type=Made,
        run=function,
        build_config=lambda ctx: {"out": ctx.output_path, **config},
        timeout_s=5.0 if function.fn is sleeps else None,
    )


def test_a_remote_body_runs_in_another_process_and_its_result_comes_back(tmp_path, client):
    with set_current_client(client):
        handle = step(remote(in_child))
        summary = run(handle, prefix=str(tmp_path))
    made = summary.artifact(handle)
    assert made.pid != os.getpid() and made.attempt == summary.outcome("a").attempt
    assert summary.outcome("a").resources["scope"] == "job"
    attempt = Ledger(str(tmp_path)).attempts("a")[0]
    assert attempt.job_id and "hello from the job" in attempt.log_tail


def test_the_driver_hears_how_far_a_remote_body_is_and_the_attempt_keeps_its_log(tmp_path, client, monkeypatch):
    heard = []

    class Reporter(QuietReporter):
        def step_progress(self, step, text):
            heard.append((step, text))

    with set_current_client(client):
        run(step(remote(counts, env_vars={"MARIN_PROGRESS": "1"})), prefix=str(tmp_path), reporter=Reporter())
    assert heard and all(name == "a@2026.12.01" for name, _ in heard)
    assert "count: 1/3 steps" in heard[0][1] and "value=0" in heard[0][1]
    assert "count: 3/3 steps" in Ledger(str(tmp_path)).attempts("a")[0].log_tail


def test_a_remote_exception_arrives_with_its_type_and_traceback(tmp_path, client):
    with set_current_client(client):
        summary = run(step(remote(fails)), prefix=str(tmp_path))
    attempt = Ledger(str(tmp_path)).attempts("a")[0]
    assert attempt.error["type"] == "builtins.LookupError" and "in fails" in attempt.error["traceback"]
    assert summary.outcome("a").message == "LookupError: remote trouble"


@pytest.mark.slow
def test_a_cancelled_remote_body_is_terminated(tmp_path, client):
    pid_file = str(tmp_path / "pid")
    with set_current_client(client):
        summary = run(step(remote(sleeps), pid_file=pid_file), prefix=str(tmp_path / "store"))
    assert summary.outcome("a").category == "timeout"
    with open(pid_file) as file:
        pid = int(file.read())
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_remote_is_a_wrapper_and_a_decorator_and_resources_are_not_identity():
    @remote
    def plain(config):
        return None

    @remote(resources=ResourceConfig(cpu=2, ram="8g"), name="big")
    def described(config):
        return None

    assert isinstance(plain, RemoteCallable) and plain.resources == ResourceConfig.with_cpu()
    assert described.resources.cpu == 2 and described.name == "big"
    assert step(plain).fingerprint() == step(described).fingerprint()
