"""What a job is, on every local backend."""

import os
import threading
import time

import pytest
from fray import (
    ClientClosedError,
    Entrypoint,
    JobAlreadyExists,
    JobFailed,
    JobRequest,
    JobStatus,
    LocalClient,
    ResourceConfig,
    create_environment,
    current_client,
    set_current_client,
    wait_all,
)


def request(name, fn, *args, **kwargs):
    return JobRequest(name, Entrypoint.from_callable(fn, args, kwargs))


class TwoArguments(Exception):
    """Cannot be unpickled by calling it with args."""

    def __init__(self, path, line):
        self.path = path
        self.line = line
        super().__init__(f"bad line {line} of {path}")


class HoldsALock(Exception):
    """Cannot be pickled at all as it is."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


def divide(a, b):
    return a / b


def fail_with(error_type, *args):
    raise error_type(*args)


def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


def append_and_maybe_fail(path, fail_times):
    with open(path, "a") as stream:
        stream.write("x")
    if os.path.getsize(path) <= fail_times:
        raise OSError("flaky")
    return os.path.getsize(path)


def test_a_callable_gives_its_value(client):
    job = client.submit(request("divide", divide, 6, b=3))
    assert job.result(timeout=30) == 2
    assert job.status() is JobStatus.SUCCEEDED
    assert job.wait() is JobStatus.SUCCEEDED


def test_lambdas_closures_and_large_values_travel(client):
    big = os.urandom(3_000_000)
    job = client.submit(request("reverse", lambda: big[::-1]))
    assert job.result(timeout=30) == big[::-1]


def test_an_exception_comes_back_as_cause_with_its_remote_traceback(client):
    job = client.submit(request("divide", divide, 1, 0))
    assert job.wait(30, raise_on_failure=False) is JobStatus.FAILED
    with pytest.raises(JobFailed, match="ZeroDivisionError") as caught:
        job.result()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in divide" in (caught.value.remote_traceback or "")
    assert caught.value.failed_status == "failed" and caught.value.job_id == job.job_id


def test_an_exception_whose_init_wants_other_arguments_is_revived(client):
    with pytest.raises(JobFailed) as caught:
        client.submit(request("two", fail_with, TwoArguments, "a.txt", 7)).result(30)
    cause = caught.value.__cause__
    assert type(cause).__name__ == "TwoArguments"
    assert (cause.path, cause.line, str(cause)) == ("a.txt", 7, "bad line 7 of a.txt")
    assert isinstance(cause, TwoArguments)


def test_an_exception_that_cannot_be_pickled_still_tells_its_story(client):
    with pytest.raises(JobFailed, match="HoldsALock: held") as caught:
        client.submit(request("lock", fail_with, HoldsALock, "held")).result(30)
    assert "held" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("error_type", "args"),
    [
        (FileNotFoundError, (2, "No such file", "x.txt")),
        (UnicodeDecodeError, ("utf-8", b"\xff", 0, 1, "bad byte")),
        (KeyError, ("k",)),
        (StopIteration, (1,)),
    ],
)
def test_builtin_exceptions_come_back_equal(client, error_type, args):
    with pytest.raises(JobFailed) as caught:
        client.submit(request("builtin", fail_with, error_type, *args)).result(30)
    original = error_type(*args)
    cause = caught.value.__cause__
    assert type(cause) is error_type and str(cause) == str(original)
    if isinstance(original, OSError):
        assert (cause.errno, cause.filename) == (2, "x.txt")


@pytest.mark.parametrize(("code", "status"), [(0, "succeeded"), (None, "succeeded"), (3, "failed"), ("bye", "failed")])
def test_sys_exit_ends_the_job_and_not_the_machinery(client, code, status):
    job = client.submit(request("exit", fail_with, SystemExit, code))
    assert job.wait(30, raise_on_failure=False) == status
    if code == 3:
        with pytest.raises(JobFailed) as caught:
            job.wait()
        assert caught.value.exit_code == 3
    assert client.submit(request("after", divide, 4, 2)).result(30) == 2


def test_wait_times_out_and_can_be_repeated(client, tmp_path):
    path = str(tmp_path / "go")
    job = client.submit(request("wait", wait_for_file, path))
    with pytest.raises(TimeoutError, match="has not ended"):
        job.wait(0.02)
    assert job.wait(0, raise_on_failure=False) in (JobStatus.PENDING, JobStatus.RUNNING)
    (tmp_path / "go").touch()
    assert job.result(30) == path


def test_jobs_run_at_once(client, tmp_path):
    paths = [str(tmp_path / f"{n}") for n in range(3)]

    def meet(mine, others):
        with open(mine, "w"):
            pass
        for other in others:
            wait_for_file(other)
        return mine

    jobs = [client.submit(request(f"meet-{n}", meet, path, paths)) for n, path in enumerate(paths)]
    assert [job.result(30) for job in jobs] == paths


def test_more_jobs_than_workers_all_run(client):
    jobs = [client.submit(request(f"n-{n}", divide, n, 1)) for n in range(40)]
    assert wait_all(jobs, timeout=60) == [JobStatus.SUCCEEDED] * 40
    assert [job.result() for job in jobs] == list(range(40))


def test_a_failing_task_is_retried_as_often_as_allowed(client, tmp_path):
    path = str(tmp_path / "tries")
    entry = Entrypoint.from_callable(append_and_maybe_fail, (path, 2))
    assert client.submit(JobRequest("retry", entry, max_retries_failure=2)).result(30) == 3
    os.remove(path)
    with pytest.raises(JobFailed, match="flaky"):
        client.submit(JobRequest("retry", entry, max_retries_failure=1)).result(30)
    assert os.path.getsize(path) == 2


def test_wait_all_raises_for_the_first_failure_and_counts_what_remains(client, tmp_path):
    slow = client.submit(request("slow", wait_for_file, str(tmp_path / "never")))
    bad = client.submit(request("bad", divide, 1, 0))
    with pytest.raises(JobFailed, match="bad"):
        wait_all([slow, bad], timeout=30)
    with pytest.raises(TimeoutError, match="1 of 2 remain"):
        wait_all([slow, bad], timeout=0.1, raise_on_failure=False)
    assert wait_all([]) == []
    slow.terminate()
    assert wait_all([slow, bad], raise_on_failure=False) == [JobStatus.STOPPED, JobStatus.FAILED]
    (tmp_path / "never").touch()


def test_a_terminated_job_is_stopped_and_terminating_again_does_nothing(client, tmp_path):
    job = client.submit(request("stop", wait_for_file, str(tmp_path / "never")))
    while job.status() is JobStatus.PENDING:
        time.sleep(0.002)
    job.terminate()
    job.terminate()
    assert job.status() is JobStatus.STOPPED
    with pytest.raises(JobFailed, match="stopped"):
        job.wait()
    (tmp_path / "never").touch()


def test_a_live_job_of_the_same_name_is_adopted_only_if_it_is_the_same(client, tmp_path):
    path = str(tmp_path / "go")
    first = client.submit(request("same", wait_for_file, path))
    assert client.submit(request("same", wait_for_file, path)) is first
    with pytest.raises(JobAlreadyExists) as caught:
        client.submit(request("same", wait_for_file, path), adopt_existing=False)
    assert caught.value.job_name == "same" and caught.value.handle is first
    with pytest.raises(JobAlreadyExists):
        client.submit(request("same", divide, 1, 1))
    (tmp_path / "go").touch()
    first.wait(30)
    assert client.submit(request("same", divide, 1, 1)).result(30) == 1


def test_a_command_runs_and_its_output_is_kept(client):
    entry = Entrypoint.from_binary("sh", ["-c", "echo out; echo err >&2; pwd; echo $MODE"])
    job = client.submit(JobRequest("cmd", entry, environment=create_environment("/tmp", env_vars={"MODE": "m1"})))
    assert job.wait(30) is JobStatus.SUCCEEDED
    assert job.logs() == ["out", "err", "/tmp", "m1"]
    assert job.logs(max_lines=1) == ["m1"]
    assert job.result() is None


def test_a_failing_command_tells_its_exit_code_and_last_output(client):
    job = client.submit(JobRequest("cmd", Entrypoint.from_binary("sh", ["-c", "echo no such thing; exit 7"])))
    with pytest.raises(JobFailed, match="exit code 7") as caught:
        job.wait(30)
    assert caught.value.exit_code == 7
    assert caught.value.log_tail == ("no such thing",)


def test_a_command_that_does_not_exist_is_a_failed_job(client):
    job = client.submit(JobRequest("cmd", Entrypoint.from_binary("no-such-program-here")))
    with pytest.raises(JobFailed, match="no-such-program-here") as caught:
        job.wait(30)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_jobs_can_start_jobs(client):
    def outer():
        inner = current_client().submit(JobRequest("inner", Entrypoint.from_callable(divide, (8, 2))))
        return inner.result(30) + 1

    with set_current_client(client):
        assert client.submit(request("outer", outer)).result(60) == 5


def test_nested_jobs_cannot_deadlock_a_full_client():
    for mode in ("thread", "process"):
        with LocalClient(mode=mode, max_workers=1) as client, set_current_client(client):

            def outer():
                return current_client().submit(request("inner", divide, 8, 2)).result(30)

            assert client.submit(request("outer", outer)).result(60) == 4


def test_a_client_that_was_shut_down_refuses_work(client):
    client.shutdown()
    client.shutdown()
    with pytest.raises(ClientClosedError):
        client.submit(request("late", divide, 1, 1))


def test_shutdown_stops_what_runs(client, tmp_path):
    job = client.submit(request("stop", wait_for_file, str(tmp_path / "never")))
    client.shutdown()
    assert job.wait(30, raise_on_failure=False) is JobStatus.STOPPED
    (tmp_path / "never").touch()


def test_requests_carry_resources(client):
    entry = Entrypoint.from_callable(divide, (1, 1))
    made = JobRequest("r", entry, resources=ResourceConfig(cpu=2, ram="1g"))
    assert made.num_replicas == 1
    assert client.submit(made).result(30) == 1
