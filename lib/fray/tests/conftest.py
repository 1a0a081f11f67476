"""Clients of every local mode, children that can be killed, and a check that nothing is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest
from fray import Client, LocalClient, connect_backend


@pytest.fixture(scope="session")
def ray_instance() -> Iterator[None]:
    """One small Ray instance for all tests of this process."""
    ray = pytest.importorskip("ray", reason="needs the extra: marin-fray[ray]")
    ray.init(
        "local",
        num_cpus=4,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="CRITICAL",
    )
    yield
    ray.shutdown()


# A Ray actor is a process of over a second of processor time; these say little there that others do not say too.
LEFT_OUT_ON_RAY = {
    "test_calls_block_or_give_futures",
    "test_callbacks_are_called_once_the_answer_is_there",
    "test_private_and_missing_methods_are_refused",
    "test_many_threads_share_one_actor_from_the_first_call_on",
    "test_concurrent_calls_can_meet",
    "test_an_operation_that_is_left_alone_gives_its_value",
    "test_a_cancelled_operation_is_told_and_its_answer_is_dropped",
    "test_calls_to_an_actor_that_was_shut_down_are_refused",
    "test_groups_have_handles_by_index",
    "test_an_operation_that_is_cancelled_before_it_began_never_runs",
    "test_every_start_of_an_actor_has_a_greater_attempt",
}


@pytest.fixture(params=["thread", "process", "ray"])
def client(request) -> Iterator[Client]:
    """A client of every backend; the contract is the same."""
    if request.param == "ray":
        if request.function.__name__ in LEFT_OUT_ON_RAY and not os.environ.get("FRAY_TEST_ALL"):
            pytest.skip("costs a Ray process and tells little; FRAY_TEST_ALL=1 runs it")
        request.getfixturevalue("ray_instance")
        made = connect_backend("ray")
    else:
        made = LocalClient(mode=request.param, max_workers=4)
    yield made
    made.shutdown()


@pytest.fixture
def process_client() -> Iterator[LocalClient]:
    with LocalClient(max_workers=2) as made:
        yield made


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def wait_gone() -> Callable[[int], bool]:
    """Tell whether a process ends within ten seconds."""

    def wait(pid: int) -> bool:
        end = time.monotonic() + 10
        while is_running(pid) and time.monotonic() < end:
            time.sleep(0.005)
        return not is_running(pid)

    return wait


class Driver:
    """A Python program of its own that prints lines and can be killed."""

    def __init__(self, code: str, folder: str):
        path = os.path.join(folder, "driver.py")
        with open(path, "w") as stream:
            stream.write(textwrap.dedent(code))
        self.process = subprocess.Popen(
            [sys.executable, "-u", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def driver(tmp_path) -> Iterator[Callable[[str], Driver]]:
    made: list[Driver] = []

    def start(code: str) -> Driver:
        made.append(Driver(code, str(tmp_path)))
        return made[-1]

    yield start
    for one in made:
        one.close()
