"""Kill -9 a worker, an actor, the driver: defined outcomes, and nothing is left running."""

import gc
import os
import signal
import threading
import time

import pytest
from fray import (
    ActorConfig,
    ActorUnavailableError,
    Entrypoint,
    JobFailed,
    JobRequest,
    JobStatus,
    LocalClient,
    current_actor,
    current_client,
)
from rigging.job_identity import JobIdentity


def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


def print_pid_and_wait():
    print(os.getpid(), flush=True)
    time.sleep(600)


def read_until(job, predicate):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        lines = job.logs()
        if predicate(lines):
            return lines
        time.sleep(0.005)
    raise AssertionError(f"output never came: {job.logs()}")


class Actor:
    def __init__(self):
        self.calls = 0

    def pid(self):
        return os.getpid()

    def count(self):
        self.calls += 1
        return self.calls

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def sleep(self):
        time.sleep(600)


def test_a_killed_worker_fails_its_job_with_the_signal(process_client):
    job = process_client.submit(JobRequest("victim", Entrypoint.from_callable(print_pid_and_wait)))
    (pid,) = read_until(job, lambda lines: lines)
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(JobFailed, match="SIGKILL") as caught:
        job.wait(30)
    assert caught.value.signal == 9 and caught.value.exit_code is None
    assert caught.value.log_tail == (pid,)
    assert process_client.submit(JobRequest("next", Entrypoint.from_callable(os.getpid))).result(30) != int(pid)


def test_an_exit_code_of_a_process_that_leaves_the_hard_way_is_reported(process_client):
    job = process_client.submit(JobRequest("hard", Entrypoint.from_callable(os._exit, (5,))))
    with pytest.raises(JobFailed) as caught:
        job.wait(30)
    assert caught.value.exit_code == 5


def test_a_worker_killed_while_idle_is_replaced(process_client):
    pid = process_client.submit(JobRequest("a", Entrypoint.from_callable(os.getpid))).result(30)
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 30
    other = pid
    while other == pid and time.monotonic() < end:
        job = process_client.submit(JobRequest("b", Entrypoint.from_callable(os.getpid)))
        if job.wait(30, raise_on_failure=False) is JobStatus.SUCCEEDED:
            other = job.result()
    assert other != pid


def end_together(folder):
    me = JobIdentity.from_environment()
    open(os.path.join(folder, f"{me.attempt}-{me.rank}"), "w").close()
    while any(not os.path.exists(os.path.join(folder, f"{me.attempt}-{rank}")) for rank in range(me.count)):
        time.sleep(0.0005)
    if me.attempt == 0 and me.rank == 1:
        raise OSError("the first attempt of rank 1 fails")
    return me.attempt


def test_a_worker_that_ends_its_task_while_it_is_being_killed_gets_no_other(process_client, tmp_path):
    # Rank 0 ends in the moment in which rank 1 fails: its result may arrive after it was killed for the next attempt.
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        entrypoint = Entrypoint.from_callable(end_together, (str(folder),))
        request = JobRequest("gang", entrypoint, replicas=2, max_retries_failure=1)
        assert process_client.submit(request).result(60) == 1


def test_terminate_kills_the_whole_group_even_if_it_ignores_the_polite_signal(process_client, wait_gone):
    script = "trap '' TERM; sleep 600 & echo $!; setsid sleep 601 & echo $!; echo $$; wait"
    job = process_client.submit(JobRequest("stubborn", Entrypoint.from_binary("sh", ["-c", script])))
    pids = [int(line) for line in read_until(job, lambda lines: len(lines) == 3)]
    start = time.monotonic()
    job.terminate()
    assert time.monotonic() - start < 10
    assert job.status() is JobStatus.STOPPED
    assert all(wait_gone(pid) for pid in pids)


def test_what_a_job_leaves_running_ends_with_it(process_client, wait_gone):
    script = "sleep 600 & echo $!; setsid sleep 601 & echo $!"
    job = process_client.submit(JobRequest("litter", Entrypoint.from_binary("sh", ["-c", script])))
    # The background children hold the output open; the job ends with its own process all the same.
    assert job.wait(30) is JobStatus.SUCCEEDED
    pids = [int(line) for line in job.logs()]
    assert len(pids) == 2 and all(wait_gone(pid) for pid in pids)


def test_an_actor_that_dies_during_a_call_is_unavailable(process_client):
    actor = process_client.create_actor(Actor, name="mortal")
    assert actor.count() == 1
    with pytest.raises(ActorUnavailableError, match="before it answered"):
        actor.die()
    with pytest.raises(ActorUnavailableError):
        actor.count()


def test_every_call_under_way_learns_of_the_death(process_client):
    actor = process_client.create_actor(Actor, name="mortal")
    pid = actor.pid()
    futures = [actor.sleep.remote() for _ in range(5)]
    os.kill(pid, signal.SIGKILL)
    assert all(isinstance(future.exception(30), ActorUnavailableError) for future in futures)


def test_a_dead_actor_is_replaced_as_often_as_allowed(process_client):
    group = process_client.create_actor_group(Actor, name="phoenix", count=1, actor_config=ActorConfig(max_restarts=1))
    (actor,) = group.wait_ready(timeout=60)
    assert (actor.count(), actor.count()) == (1, 2)
    first = actor.pid()
    with pytest.raises(ActorUnavailableError):
        actor.die()
    # The name stays, so this call waits for the replacement instead of failing.
    assert actor.count() == 1, "state is fresh"
    assert actor.pid() != first
    with pytest.raises(ActorUnavailableError):
        actor.die()
    with pytest.raises(ActorUnavailableError):
        actor.count()
    assert group.is_done()


DRIVER = """
import os, subprocess, sys, time
from fray import Entrypoint, JobRequest, LocalClient, current_client

def outer():
    inner = current_client().submit(JobRequest("inner", Entrypoint.from_callable(report_and_wait, ("inner",))))
    report_and_wait("outer")

def report_and_wait(name):
    litter = subprocess.Popen(["setsid", "sleep", "600"])
    print(name, os.getpid(), litter.pid, flush=True)
    time.sleep(600)

class Actor:
    def pid(self):
        return os.getpid()

if __name__ == "__main__":
    client = LocalClient()
    job = client.submit(JobRequest("outer", Entrypoint.from_callable(outer)))
    entry = Entrypoint.from_binary("sh", ["-c", "sleep 600 & echo $!; echo $$; wait"])
    command = client.submit(JobRequest("cmd", entry))
    actor = client.create_actor(Actor, name="actor")
    pids = {actor.pid()}
    while len(pids) < 7:
        for line in job.logs() + command.logs():
            pids |= {int(word) for word in line.split() if word.isdigit()}
        time.sleep(0.01)
    print(*sorted(pids), flush=True)
    if len(sys.argv) > 1:
        sys.exit(0)
    time.sleep(600)
"""


def nested_driver() -> str:
    # The inner job's output goes to the inner client's log; let it travel up by printing what the logger gets. An
    # unbuffered interpreter writes a line word by word, so the log may hold the beginning of one.
    return DRIVER.replace(
        '    report_and_wait("outer")',
        "    while len(' '.join(inner.logs()).split()) < 3:\n        time.sleep(0.01)\n"
        "    print(*inner.logs(), flush=True)\n"
        '    report_and_wait("outer")',
    )


def test_a_killed_guardian_is_replaced_and_knows_what_it_must(driver, wait_gone):
    program = driver(
        """
        import os, signal, time
        from fray import Entrypoint, JobRequest, LocalClient

        def wait():
            time.sleep(600)

        if __name__ == "__main__":
            client = LocalClient()
            first = client.submit(JobRequest("first", Entrypoint.from_binary("sh", ["-c", "echo $$; sleep 600"])))
            while not first.logs():
                time.sleep(0.005)
            guardian = client._guardian
            os.kill(guardian.pid, signal.SIGKILL)
            os.waitid(os.P_PID, guardian.pid, os.WEXITED | os.WNOWAIT)
            second = client.submit(JobRequest("second", Entrypoint.from_binary("sh", ["-c", "echo $$; sleep 600"])))
            while not second.logs():
                time.sleep(0.005)
            print(first.logs()[0], second.logs()[0], guardian.pid, flush=True)
            time.sleep(600)
        """
    )
    pids = [int(word) for word in program.line().split()]
    assert len(set(pids)) == 3
    program.kill()
    assert [pid for pid in pids if not wait_gone(pid)] == []


def test_shutdown_without_waiting_ends_everything_all_the_same(wait_gone):
    client = LocalClient(max_workers=1)
    job = client.submit(JobRequest("wait", Entrypoint.from_callable(print_pid_and_wait)))
    (pid,) = read_until(job, lambda lines: lines)
    client.shutdown(wait=False)
    assert wait_gone(int(pid))
    assert job.wait(30, raise_on_failure=False) is JobStatus.STOPPED


def test_a_killed_driver_takes_everything_along(driver, wait_gone):
    program = driver(nested_driver())
    pids = [int(word) for word in program.line().split()]
    assert len(pids) == 7
    program.kill()
    assert [pid for pid in pids if not wait_gone(pid)] == []


def test_a_driver_that_ends_without_shutdown_leaves_nothing(driver, wait_gone):
    program = driver(nested_driver().replace("if len(sys.argv) > 1:", "if True:"))
    pids = [int(word) for word in program.line().split()]
    assert program.process.wait(30) == 0
    assert [pid for pid in pids if not wait_gone(pid)] == []


def test_a_stopped_driver_thread_does_not_kill_its_children(process_client):
    """The kernel's parent-death signal follows the thread that started the child; that must not be the caller's."""
    made = []
    thread = threading.Thread(target=lambda: made.append(process_client.create_actor(Actor, name="child")))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert made[0].count() == 1


@pytest.mark.slow
def test_no_thread_descriptor_or_folder_is_leaked_by_a_client():
    def use():
        with LocalClient(max_workers=1) as client:
            client.submit(JobRequest("a", Entrypoint.from_callable(os.getpid))).result(30)
            actor = client.create_actor(Actor, name="a")
            actor.count()
            folder = client._folder
        assert folder is not None and not os.path.exists(folder)

    def open_things():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    use()  # the hub and what stays once per process
    fds, threads = open_things()
    for _ in range(3):
        use()
    end = time.monotonic() + 10
    while (now := open_things()) > (fds, threads) and time.monotonic() < end:
        time.sleep(0.02)
    assert now[0] <= fds and now[1] <= threads


class Leaving:
    def leave(self, code):
        os._exit(code)

    def attempt(self):
        return current_actor().attempt


def test_an_actor_that_exits_with_code_zero_is_not_replaced_and_any_other_is(process_client):
    group = process_client.create_actor_group(
        Leaving, name="leaving", count=2, actor_config=ActorConfig(max_restarts=3)
    )
    first, second = group.wait_ready(timeout=60)
    for actor, code in ((first, 0), (second, 1)):
        with pytest.raises(ActorUnavailableError):
            actor.leave(code)
    assert second.attempt() == 1
    with pytest.raises(ActorUnavailableError):
        first.attempt()


def test_terminate_takes_nested_jobs_along(process_client, wait_gone):
    def outer():
        inner = current_client().submit(JobRequest("inner", Entrypoint.from_callable(print_pid_and_wait)))
        while not inner.logs():
            time.sleep(0.005)
        print(inner.logs()[0], flush=True)
        print_pid_and_wait()

    job = process_client.submit(JobRequest("outer", Entrypoint.from_callable(outer)))
    pids = [int(line) for line in read_until(job, lambda lines: len(lines) == 2)]
    job.terminate()
    assert [pid for pid in pids if not wait_gone(pid)] == []


def test_a_killed_driver_leaves_no_folder(driver, tmp_path):
    program = driver(
        """
        import os, time
        from fray import Entrypoint, JobRequest, LocalClient, current_client

        def outer():
            current_client().submit(JobRequest("inner", Entrypoint.from_callable(time.sleep, (600,)))).wait()

        if __name__ == "__main__":
            client = LocalClient()
            client.submit(JobRequest("a", Entrypoint.from_callable(os.getpid))).result()
            client.publish_endpoint("web", "http://here")
            client.submit(JobRequest("outer", Entrypoint.from_callable(outer)))
            while len(os.listdir(client._folder)) < 2:
                time.sleep(0.01)
            print(client._folder, flush=True)
            time.sleep(600)
        """
    )
    folder = program.line()
    assert os.path.isdir(os.path.join(folder, "endpoints"))
    program.kill()
    end = time.monotonic() + 20
    while os.path.exists(folder) and time.monotonic() < end:
        time.sleep(0.01)
    assert not os.path.exists(folder)
