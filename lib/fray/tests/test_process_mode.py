"""What only processes can do: isolation, environments, limits, output, warm reuse."""

import os
import sys
import threading
import time

import pytest
from fray import Entrypoint, JobFailed, JobRequest, LocalClient, ResourceConfig, create_environment


def call(client, name, fn, *args, **fields):
    return client.submit(JobRequest(name, Entrypoint.from_callable(fn, args), **fields)).result(60)


def environment_of(*names):
    return {name: os.environ.get(name) for name in names} | {"cwd": os.getcwd()}


def litter():
    os.environ["LEFT_BEHIND"] = "yes"
    os.chdir("/")
    return os.getpid()


def leave_a_thread():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


def identity():
    from rigging.job_identity import JobIdentity

    return JobIdentity.from_environment()


def test_jobs_run_elsewhere_and_warm_processes_are_used_again(process_client):
    first = call(process_client, "a", os.getpid)
    assert first != os.getpid()
    assert call(process_client, "b", os.getpid) == first
    assert call(process_client, "c", os.getpid, fresh_process=True) != first


def test_a_job_leaves_no_trace_for_the_next_one(process_client, monkeypatch):
    monkeypatch.delenv("LEFT_BEHIND", raising=False)
    pid = call(process_client, "litter", litter)
    assert call(process_client, "pid", os.getpid) == pid
    assert call(process_client, "look", environment_of, "LEFT_BEHIND") == {"LEFT_BEHIND": None, "cwd": os.getcwd()}


def test_a_process_with_leftover_threads_is_not_used_again(process_client):
    assert call(process_client, "a", leave_a_thread) != call(process_client, "b", os.getpid)


def test_a_job_sees_its_environment_and_the_driver_s(process_client, monkeypatch, tmp_path):
    monkeypatch.setenv("FROM_DRIVER", "d")
    environment = create_environment(str(tmp_path), env_vars={"MINE": "m"})
    seen = call(process_client, "env", environment_of, "FROM_DRIVER", "MINE", "JAX_PLATFORMS", environment=environment)
    assert seen == {"FROM_DRIVER": "d", "MINE": "m", "JAX_PLATFORMS": "cpu", "cwd": str(tmp_path)}
    monkeypatch.setenv("FROM_DRIVER", "changed")
    assert call(process_client, "env2", environment_of, "FROM_DRIVER")["FROM_DRIVER"] == "changed"


def test_a_module_that_is_only_on_the_driver_s_path_is_found(process_client, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # pyrefly: ignore[missing-import]

    assert call(process_client, "double", only_here.double, 21) == 42


def test_replicas_get_ranks_and_a_coordinator():
    with LocalClient(max_workers=3) as client:
        job = client.submit(JobRequest("gang", Entrypoint.from_callable(print_rank), replicas=3))
        assert job.result(60) == 0
        lines = job.logs()
        assert [line.split()[:3] for line in lines] == [[f"[{n}]", str(n), "3"] for n in range(3)]
        assert len({line.split()[3] for line in lines}) == 1


def print_rank():
    me = identity()
    print(me.rank, me.count, me.coordinator)
    return me.rank


def fail_on_rank_one():
    if identity().rank == 1:
        raise ValueError("rank 1 fails")
    time.sleep(600)


def test_one_failing_replica_ends_the_others():
    with LocalClient(max_workers=3) as client:
        job = client.submit(JobRequest("gang", Entrypoint.from_callable(fail_on_rank_one), replicas=3))
        with pytest.raises(JobFailed, match="rank 1 fails"):
            job.wait(60)


def test_a_gang_larger_than_the_client_runs_alone():
    with LocalClient(max_workers=1) as client:
        assert client.submit(JobRequest("gang", Entrypoint.from_callable(print_rank), replicas=2)).result(60) == 0


def test_a_retry_knows_its_attempt(process_client):
    def succeed_third_time():
        attempt = identity().attempt
        if attempt < 2:
            raise OSError("again")
        return attempt

    request = JobRequest("retry", Entrypoint.from_callable(succeed_third_time), max_retries_failure=5)
    assert process_client.submit(request).result(60) == 2


def test_output_is_complete_ordered_and_bounded(process_client):
    def talk():
        for n in range(3000):
            print(n)
        sys.stderr.write("no newline at the end")

    job = process_client.submit(JobRequest("talk", Entrypoint.from_callable(talk)))
    job.wait(60)
    # The end of a shared worker's output is not the end of its pipe, so the last line may be unfinished.
    assert job.logs(3) == ["2998", "2999", "no newline at the end"]
    assert len(job.logs(10_000)) <= 2001


def test_the_output_of_one_job_does_not_leak_into_the_next(process_client):
    first = process_client.submit(JobRequest("a", Entrypoint.from_callable(print, ("first",))))
    first.wait(60)
    second = process_client.submit(JobRequest("b", Entrypoint.from_callable(print, ("second",))))
    second.wait(60)
    assert first.logs() == ["first"] and second.logs() == ["second"]


def test_a_memory_limit_is_enforced_as_an_exception():
    def eat(size):
        return len(bytearray(size))

    with LocalClient(max_workers=1, enforce_memory=True) as client:
        small = ResourceConfig(ram="1g")
        assert call(client, "fits", eat, 1 << 20, resources=small) == 1 << 20
        with pytest.raises(JobFailed) as caught:
            call(client, "eats", eat, 2 << 30, resources=small)
        assert isinstance(caught.value.__cause__, MemoryError)


def test_a_result_that_cannot_travel_is_a_failure_and_not_a_hang(process_client):
    with pytest.raises(JobFailed, match="the result of"):
        call(process_client, "lock", threading.Lock)


def test_prewarmed_workers_are_taken(process_client):
    process_client.prewarm(2)
    assert call(process_client, "a", os.getpid) != os.getpid()


def test_strict_threads_behave_like_processes():
    shared = []
    with LocalClient(mode="thread", strict_pickle=True) as client:
        client.submit(JobRequest("append", Entrypoint.from_callable(shared.append, (1,)))).result(30)
        assert shared == [], "arguments are copies"
        with pytest.raises(JobFailed, match="another process"):
            client.submit(JobRequest("lock", Entrypoint.from_callable(threading.Lock))).result(30)
    with LocalClient(mode="thread") as client:
        client.submit(JobRequest("append", Entrypoint.from_callable(shared.append, (1,)))).result(30)
        assert shared == [1], "references by default"
