"""What is special about Ray: kill -9 of a worker, an actor, a machine, the driver; shipping; refusals."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from fray import (
    ActorConfig,
    ActorUnavailableError,
    Entrypoint,
    JobFailed,
    JobRequest,
    JobRequestError,
    JobStatus,
    ResourceConfig,
    SerializationError,
    connect_backend,
    create_environment,
    current_actor,
    current_client,
)

pytest.importorskip("ray", reason="needs the extra: marin-fray[ray]")


@pytest.fixture
def client(ray_instance):
    made = connect_backend("ray")
    yield made
    made.shutdown()


def job(name, fn, *args, **fields):
    return JobRequest(name, Entrypoint.from_callable(fn, args), **fields)


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def litter_and_wait(path):
    """Leave two processes, one of which left our session, and write all pids down."""
    pids = [os.getpid()]
    for command in (["sleep", "600"], ["setsid", "sleep", "601"]):
        pids.append(subprocess.Popen(command).pid)
    print("last words", flush=True)
    Path(path + ".part").write_text(" ".join(map(str, pids)))
    os.rename(path + ".part", path)
    time.sleep(600)


def pids_of(path):
    wait_until(path.exists)
    return [int(word) for word in path.read_text().split()]


def test_a_killed_worker_fails_its_job_and_leaves_nothing(client, tmp_path, wait_gone):
    made = client.submit(job("victim", litter_and_wait, str(tmp_path / "pids")))
    pids = pids_of(tmp_path / "pids")
    wait_until(lambda: made.status() is JobStatus.RUNNING)
    wait_until(lambda: made.logs() == ["last words"])
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(JobFailed, match="worker died") as caught:
        made.wait(60)
    assert caught.value.log_tail == ("last words",)
    assert [pid for pid in pids if not wait_gone(pid)] == []


def test_terminate_takes_nested_jobs_actors_and_litter_along(client, tmp_path, wait_gone):
    class Inner:
        def work(self, path):
            litter_and_wait(path)

    def outer(folder):
        mine = current_client()
        mine.submit(job("inner", litter_and_wait, os.path.join(folder, "inner")))
        mine.create_actor(Inner, name="inner").work.remote(os.path.join(folder, "actor"))
        litter_and_wait(os.path.join(folder, "outer"))

    made = client.submit(job("outer", outer, str(tmp_path)))
    pids = [pid for name in ("outer", "inner", "actor") for pid in pids_of(tmp_path / name)]
    assert len(set(pids)) == 9
    made.terminate()
    assert made.status() is JobStatus.STOPPED
    assert [pid for pid in pids if not wait_gone(pid)] == []


class Mortal:
    def __init__(self):
        self.calls = 0
        self.attempt_number = current_actor().attempt

    def count(self):
        self.calls += 1
        return self.calls, self.attempt_number

    def pid(self):
        return os.getpid()

    def size(self, data):
        return len(data)


def test_a_killed_actor_comes_back_as_often_as_allowed(client):
    group = client.create_actor_group(Mortal, name="mortal", count=1, actor_config=ActorConfig(max_restarts=1))
    (actor,) = group.wait_ready(timeout=60)
    assert (actor.count(), actor.count()) == ((1, 0), (2, 0))
    assert actor.size(bytes(20_000_000)) == 20_000_000
    os.kill(actor.pid(), signal.SIGKILL)
    with pytest.raises(ActorUnavailableError):
        actor.count()  # Ray has not noticed yet
    assert actor.count() == (1, 1), "fresh state, later attempt; no waiting needed: the call waits"
    os.kill(actor.pid(), signal.SIGKILL)
    with pytest.raises(ActorUnavailableError):
        actor.count()
    with pytest.raises(ActorUnavailableError):
        actor.count()
    wait_until(group.is_done)


def test_a_fresh_process_is_fresh_and_ends(client, wait_gone):
    pid = client.submit(job("fresh", os.getpid, fresh_process=True)).result(60)
    assert client.submit(job("next", os.getpid)).result(60) != pid
    assert wait_gone(pid)


def test_a_shipped_tree_has_what_git_has(client, tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "only_in_the_tree.py").write_text("ANSWER = 42\n")
    (tree / "secret.bin").write_text("x")
    (tree / ".gitignore").write_text("*.bin\n")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)

    def look():
        import only_in_the_tree  # pyrefly: ignore[missing-import]

        return only_in_the_tree.ANSWER, sorted(os.listdir()), os.getcwd()

    shipping = connect_backend("ray", ship_workspace=True)
    request = job("look", look, environment=create_environment(str(tree)))
    answer, files, folder = shipping.submit(request).result(60)
    assert (answer, files) == (42, [".gitignore", "only_in_the_tree.py"]) and folder != str(tree)
    shipping.shutdown()


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("resources", {"resources": ResourceConfig(cpu=10_000)}),
        ("resources", {"resources": ResourceConfig.with_gpu("H100", 8)}),
        ("replicas", {"resources": ResourceConfig(cpu=4), "replicas": 3}),
        ("docker_image", {"environment": create_environment(docker_image="x")}),
        ("extras", {"environment": create_environment(extras=["no-such-extra"])}),
    ],
)
def test_what_the_cluster_can_never_give_is_refused_at_once(client, field, fields):
    with pytest.raises(JobRequestError) as caught:
        client.submit(job("greedy", abs, 1, **fields))
    assert caught.value.field == field


def test_an_address_for_a_process_that_is_connected_is_refused(client):
    with pytest.raises(JobRequestError, match=r"ray.shutdown\(\) first"):
        connect_backend("ray", address="1.2.3.4:6379")


def test_arguments_that_cannot_travel_are_refused_at_once(client):
    import threading

    with pytest.raises(SerializationError, match="the entrypoint"):
        client.submit(job("lock", print, threading.Lock()))
    actor = client.create_actor(Mortal, name="mortal")
    with pytest.raises(SerializationError, match="the arguments of size"):
        actor.size(threading.Lock())


DRIVER = """
import os, subprocess, time
from fray import Entrypoint, JobRequest, connect_backend

def wait(path):
    litter = subprocess.Popen(["setsid", "sleep", "600"])
    with open(path, "w") as stream:
        stream.write(f"{os.getpid()} {os.getppid()} {litter.pid} ")
        stream.flush()
        time.sleep(600)

if __name__ == "__main__":
    client = connect_backend("ray", num_cpus=1, object_store_memory=80 << 20, logging_level="CRITICAL")
    client.submit(JobRequest("wait", Entrypoint.from_callable(wait, ("pids",))))
    while not os.path.exists("pids") or not open("pids").read().endswith(" "):
        time.sleep(0.02)
    print(open("pids").read(), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FRAY_TEST_ALL"), reason="a Ray instance of its own; FRAY_TEST_ALL=1 runs it")
def test_a_killed_driver_takes_its_ray_instance_along(driver, wait_gone):
    program = driver(DRIVER)
    pids = [int(word) for word in program.line().split()]
    assert len(pids) == 3  # the worker, Ray's own daemon above it, and what the job left running
    program.kill()
    assert [pid for pid in pids if not wait_gone(pid)] == []


MACHINES = """
import os, sys, time
import ray
from ray.cluster_utils import Cluster
from fray import ActorConfig, Entrypoint, JobFailed, JobRequest, connect_backend
from fray import ResourceConfig
from rigging.job_identity import JobIdentity

def work(folder):
    attempt = JobIdentity.from_environment().attempt
    node = ray.get_runtime_context().get_node_id()
    path = os.path.join(folder, f"began-{attempt}")
    with open(path + ".part", "w") as stream:
        stream.write(node)
    os.rename(path + ".part", path)
    while attempt == 0:
        time.sleep(0.05)
    return attempt

if __name__ == "__main__":
    options = {"include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0} | options)
    node = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    client = connect_backend("ray", address=cluster.address, logging_level="CRITICAL")
    # No failure is allowed, so only a loss that counts as preemption can be followed by another attempt.
    kept = client.submit(JobRequest("kept", Entrypoint.from_callable(work, (".",)), max_retries_failure=0))
    while not os.path.exists("began-0"):
        time.sleep(0.02)
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    print("attempt", kept.result(100), flush=True)
    client.shutdown()
    cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("FRAY_TEST_ALL"), reason="a cluster of three raylets; FRAY_TEST_ALL=1 runs it")
def test_a_lost_machine_is_a_preemption_and_not_a_failure(driver):
    program = driver(MACHINES)
    for _ in range(50):  # Ray reports the loss on the same stream
        if (line := program.line()).startswith("attempt"):
            break
    assert line == "attempt 1"
