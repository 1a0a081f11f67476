"""What an actor is, on every local backend."""

import pickle
import threading
import time
from pathlib import Path

import pytest
from fray import (
    ActorConfig,
    ActorUnavailableError,
    CallCancelledError,
    Entrypoint,
    JobRequest,
    JobRequestError,
    cancel_requested,
    current_actor,
)


class Counter:
    def __init__(self, start=0):
        self.value = start
        self.context = current_actor()

    def add(self, amount=1):
        self.value += amount
        return self.value

    def who(self):
        me = current_actor()
        return me.index, me.group_name, me is self.context or me == self.context

    def me(self):
        return self.context.handle

    def fail(self):
        raise LookupError("not here")

    def sleep_until(self, path):
        import os

        while not os.path.exists(path):
            time.sleep(0.002)
        return path

    def unpicklable(self):
        return threading.Lock()

    def end(self):
        self.context.shutdown_event.set()
        return "bye"


class Meeting:
    """Needs two calls at once to let either go."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=20)

    def meet(self):
        self.barrier.wait()
        return True


class Slow:
    def __init__(self):
        self.inside = 0
        self.most = 0

    def work(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        return self.most


class Broken:
    def __init__(self, text):
        raise ValueError(text)

    def method(self):
        return 1


def call_add(handle, amount):
    return handle.add(amount)


def test_calls_block_or_give_futures(client):
    counter = client.create_actor(Counter, 5, name="counter")
    assert counter.add(2) == 7
    future = counter.add.remote(amount=3)
    assert future.result(30) == 10 and future.done() and future.exception() is None


def test_groups_have_handles_by_index(client):
    group = client.create_actor_group(Counter, name="group", count=3)
    handles = group.wait_ready(timeout=60)
    assert len(group) == 3
    assert [handle.who() for handle in handles] == [(n, "group", True) for n in range(3)]
    assert not group.is_done()
    group.shutdown()
    assert group.is_done()


def test_an_exception_is_the_original_with_a_note(client):
    counter = client.create_actor(Counter, name="counter")
    with pytest.raises(LookupError, match="not here") as caught:
        counter.fail()
    assert type(caught.value) is LookupError
    assert counter.add() == 1, "the actor lives on"


def test_a_result_timeout_leaves_the_call_running(client, tmp_path):
    counter = client.create_actor(Counter, name="counter")
    future = counter.sleep_until.remote(str(tmp_path / "go"))
    with pytest.raises(TimeoutError, match="no answer yet"):
        future.result(0.02)
    (tmp_path / "go").touch()
    assert future.result(30) == str(tmp_path / "go")


def test_callbacks_are_called_once_the_answer_is_there(client, tmp_path):
    counter = client.create_actor(Counter, name="counter")
    seen = []
    event = threading.Event()
    future = counter.sleep_until.remote(str(tmp_path / "go"))
    future.add_done_callback(lambda done: (seen.append(done.result()), event.set()))
    assert seen == []
    (tmp_path / "go").touch()
    assert event.wait(30) and seen == [str(tmp_path / "go")]
    future.add_done_callback(lambda done: seen.append("late"))
    assert seen[-1] == "late"


def test_one_call_at_a_time_unless_told_otherwise(client):
    slow = client.create_actor(Slow, name="slow")
    assert max(future.result(30) for future in [slow.work.remote() for _ in range(8)]) == 1
    many = client.create_actor(Slow, name="many", actor_config=ActorConfig(max_concurrency=3))
    assert 2 <= max(future.result(30) for future in [many.work.remote() for _ in range(12)]) <= 3


def test_concurrent_calls_can_meet(client):
    meeting = client.create_actor(Meeting, name="meeting", actor_config=ActorConfig(max_concurrency=2))
    futures = [meeting.meet.remote() for _ in range(2)]
    assert [future.result(30) for future in futures] == [True, True]


def test_private_and_missing_methods_are_refused(client):
    counter = client.create_actor(Counter, name="counter")
    with pytest.raises(AttributeError, match="private"):
        counter._value  # noqa: B018
    with pytest.raises(AttributeError, match="no_such"):
        counter.no_such()


def test_handles_can_be_pickled_and_handed_out(client):
    counter = client.create_actor(Counter, name="counter")
    counter.add(1)
    again = pickle.loads(pickle.dumps(counter))
    assert again == counter and again.add(1) == 2
    assert counter.me().add(1) == 3
    job = client.submit(JobRequest("caller", Entrypoint.from_callable(call_add, (counter, 10))))
    assert job.result(60) == 13


def test_a_hosted_actor_is_called_from_jobs(client):
    hosted = client.host_actor(Counter, 100, name="hosted")
    assert hosted.handle.add(1) == 101
    job = client.submit(JobRequest("caller", Entrypoint.from_callable(call_add, (hosted.handle, 10))))
    assert job.result(60) == 111
    hosted.shutdown()
    with pytest.raises(ActorUnavailableError):
        hosted.handle.add(1)


def test_a_failing_constructor_fails_the_group_and_removes_its_siblings(client):
    group = client.create_actor_group(Broken, "no good", name="broken", count=2)
    with pytest.raises(ActorUnavailableError) as caught:
        group.wait_ready(timeout=60)
    assert isinstance(caught.value.__cause__, ValueError) and "no good" in str(caught.value.__cause__)
    with pytest.raises(ActorUnavailableError):
        group.handles[0].method()
    group.shutdown()


def test_an_actor_can_end_itself_cleanly_and_is_not_replaced(client):
    group = client.create_actor_group(Counter, name="ending", count=1, actor_config=ActorConfig(max_restarts=5))
    (handle,) = group.wait_ready(timeout=60)
    assert handle.end() == "bye"
    deadline = time.monotonic() + 20
    while not group.is_done() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert group.is_done()
    with pytest.raises(ActorUnavailableError):
        handle.add()


def test_a_restarted_actor_answers_under_the_same_name_with_fresh_state(client):
    group = client.create_actor_group(Counter, name="restart", count=2)
    first, second = group.wait_ready(timeout=60)
    first.add(5), second.add(7)
    group.restart(0)
    assert first.add(1) == 1, "no waiting needed: the call waits"
    assert len(group.wait_ready(1, timeout=60)) >= 1
    for count in (0, 3):
        with pytest.raises(JobRequestError, match="1 to 2"):
            group.wait_ready(count, timeout=60)
    assert group.wait_ready(timeout=60) == [first, second]
    assert second.add(1) == 8


def test_calls_to_an_actor_that_was_shut_down_are_refused(client):
    group = client.create_actor_group(Counter, name="gone", count=1)
    (handle,) = group.wait_ready(timeout=60)
    group.shutdown()
    with pytest.raises(ActorUnavailableError, match="gone"):
        handle.add()
    assert isinstance(handle.add.remote().exception(10), ActorUnavailableError)


def test_many_threads_share_one_actor_from_the_first_call_on(client):
    counter = client.create_actor(Counter, name="shared")
    start = threading.Barrier(8)
    seen = []

    def work():
        start.wait()
        seen.extend(counter.add() for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 201))


class Patient:
    """Long calls that look whether they are still wanted."""

    def __init__(self):
        self.context = current_actor()
        self.seen = []

    def work(self, path):
        Path(path, "began").touch()
        while not cancel_requested():
            if Path(path, "go").exists():
                return "done"
            time.sleep(0.002)
        self.seen.append("cancelled")
        return "gave up"

    def look(self):
        return self.seen

    def attempt(self):
        return self.context.attempt

    def never_cancelled(self):
        return cancel_requested()


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_operation_that_is_left_alone_gives_its_value(client, tmp_path):
    actor = client.create_actor(Patient, name="patient")
    (tmp_path / "go").touch()
    operation = actor.work.submit(str(tmp_path))
    assert operation.result(60) == "done" and operation.done() and not operation.cancel()
    assert operation.exception() is None
    assert actor.never_cancelled() is False and actor.never_cancelled.submit().result(60) is False
    with pytest.raises(AttributeError, match="no_such"):
        actor.no_such.submit().result(60)


def test_a_cancelled_operation_is_told_and_its_answer_is_dropped(client, tmp_path):
    actor = client.create_actor(Patient, name="patient", actor_config=ActorConfig(max_concurrency=2))
    operation = actor.work.submit(str(tmp_path))
    wait_until((tmp_path / "began").exists)
    assert operation.cancel() and not operation.cancel()
    with pytest.raises(CallCancelledError, match="patient-0.work"):
        operation.result(60)
    assert isinstance(operation.exception(), RuntimeError)
    wait_until(lambda: actor.look() == ["cancelled"])


def test_a_timeout_cancels_an_operation(client, tmp_path):
    actor = client.create_actor(Patient, name="patient", actor_config=ActorConfig(max_concurrency=2))
    assert actor.look() == []
    operation = actor.work.submit(str(tmp_path))
    wait_until((tmp_path / "began").exists)
    with pytest.raises(TimeoutError, match="so the call was cancelled"):
        operation.result(0.02)
    with pytest.raises(CallCancelledError, match="timeout=0.02"):
        operation.result()
    wait_until(lambda: actor.look() == ["cancelled"])


def test_an_operation_that_is_cancelled_before_it_began_never_runs(client, tmp_path):
    actor = client.create_actor(Patient, name="patient")
    busy = actor.work.submit(str(tmp_path))
    wait_until((tmp_path / "began").exists)
    (tmp_path / "second").mkdir()
    queued = actor.work.submit(str(tmp_path / "second"))
    queued.cancel()
    (tmp_path / "go").touch()
    assert busy.result(60) == "done" and actor.look() == []
    assert not (tmp_path / "second" / "began").exists()


def test_every_start_of_an_actor_has_a_greater_attempt(client):
    group = client.create_actor_group(Patient, name="fenced", count=1)
    (actor,) = group.wait_ready(timeout=60)
    assert actor.attempt() == 0
    group.restart(0)
    assert actor.attempt() == 1
