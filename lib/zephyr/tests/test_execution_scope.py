"""Contexts that run on the pool of a scope: what they share with it, and what stays their own."""

import contextvars
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigging.resources import ResourceConfig
from zephyr import Dataset, Policy, ZephyrContext
from zephyr.errors import ContextClosedError, DatasetError, TaskFailedError
from zephyr.worker_context import zephyr_worker_ctx


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZephyrContext]:
    os.environ["MARIN_PROGRESS"] = "0"
    resources = ResourceConfig(cpu=2, ram="1g")
    scratch = str(tmp_path_factory.mktemp("scratch"))
    # Patient with slow workers, since the tests look at who they are.
    policy = Policy(max_task_errors=2, suspect_after_s=600, heartbeat_timeout_s=600)
    with ZephyrContext(2, resources, name="home", chunk_storage_prefix=scratch, policy=policy) as context:
        yield context


def pids(context: ZephyrContext) -> set[int]:
    return set(context.execute(Dataset.from_list([0] * 6, shards=6).map(lambda _: os.getpid())).results)


def test_contexts_built_inside_run_on_the_workers_of_the_scope(pool: ZephyrContext) -> None:
    with pool.execution_scope() as lent:
        assert lent is pool
        with ZephyrContext(max_workers=5, inline=True, name="guest") as guest:
            first = pids(guest)
        assert pool._pool is not None  # closing a guest ends nobody
        workers = set(pool._pool.pids())
        again = pids(ZephyrContext())
    assert first <= workers
    assert again <= workers
    assert pids(pool) <= workers
    assert not list(Path(pool.scratch).iterdir())
    assert ZephyrContext(inline=True)._home is not pool


def test_guests_have_shared_data_of_their_own(pool: ZephyrContext) -> None:
    ds = Dataset.from_list([0, 0], shards=2).map(lambda _: zephyr_worker_ctx().get_shared("who"))
    pool.put("who", "host")
    with pool.execution_scope():
        one, two, nobody = ZephyrContext(), ZephyrContext(), ZephyrContext()
        one.put("who", "one")
        two.put("who", "two")
        found = [context.execute(ds).results for context in (one, pool, two, one)]
        with pytest.raises(KeyError, match="known=\\[\\]"):
            nobody.execute(ds)
    assert found == [["one"] * 2, ["host"] * 2, ["two"] * 2, ["one"] * 2]


def test_the_retry_rules_are_those_of_the_scope_and_an_error_ends_nothing_but_the_scope(
    pool: ZephyrContext, tmp_path: Path
) -> None:
    def broken(n: int) -> int:
        with open(tmp_path / "tries", "a") as stream:
            stream.write("x")
        raise KeyError(n)

    pids(pool)
    assert pool._pool is not None
    workers = set(pool._pool.pids())
    guest = None
    with pytest.raises(TaskFailedError), pool.execution_scope():
        guest = ZephyrContext(policy=Policy(max_task_errors=7))
        guest.execute(Dataset.from_list([1]).map(broken))
    assert (tmp_path / "tries").read_text() == "xx"
    assert ZephyrContext(inline=True)._host is None
    assert guest is not None
    assert pids(guest) | pids(pool) <= workers == set(pool._pool.pids())  # as good as before


def test_threads_share_the_pool_when_they_copy_the_scope(pool: ZephyrContext) -> None:
    found: dict[int, list[int]] = {}
    hosts = []

    def work(at: int) -> None:
        context = ZephyrContext(inline=True)
        hosts.append(context._home)
        found[at] = context.execute(Dataset.from_list([1, 2, 3], shards=3).map(lambda n: n * at)).results

    with pool.execution_scope():
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, at)) for at in range(1, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone = threading.Thread(target=work, args=(9,))
        alone.start()
        alone.join()
    assert found == {at: [at, 2 * at, 3 * at] for at in (1, 2, 3, 9)}
    assert hosts[:3] == [pool] * 3
    assert hosts[3] is not pool


def test_the_innermost_scope_counts_and_the_outer_one_comes_back(pool: ZephyrContext, ctx: ZephyrContext) -> None:
    with pool.execution_scope():
        guest = ZephyrContext()
        with guest.execution_scope():
            assert ZephyrContext()._home is pool  # a guest lends what it was lent
        with pytest.raises(RuntimeError, match="on purpose"), ctx.execution_scope():
            assert ZephyrContext()._home is ctx
            raise RuntimeError("on purpose")
        assert ZephyrContext()._home is pool
    assert ZephyrContext(inline=True)._host is None


def test_resources_are_what_a_task_needs_and_must_fit_a_worker(pool: ZephyrContext) -> None:
    with pool.execution_scope():
        assert ZephyrContext(resources=ResourceConfig(cpu=1, ram="512m")).memory_bytes == 128 << 20
        assert ZephyrContext().memory_bytes == pool.memory_bytes == 256 << 20
        assert ZephyrContext(task_memory="3m").memory_bytes == 3 << 20
        for cpu, ram, disk in ((3, "1g", "1g"), (1, "2g", "1g"), (1, "1g", "1t")):
            with pytest.raises(DatasetError, match="exceed one Zephyr worker"):
                ZephyrContext(resources=ResourceConfig(cpu, ram, disk))
        for other in (ResourceConfig(ram="1g", preemptible=False), ResourceConfig(ram="1g", zone="a")):
            with pytest.raises(DatasetError, match="must match the worker pool"):
                ZephyrContext(resources=other)
    assert ZephyrContext(inline=True, resources=ResourceConfig(cpu=3, ram="2g")).memory_bytes == 512 << 20


def test_a_scope_keeps_a_pool_for_its_block_and_no_longer(tmp_path: Path) -> None:
    home = ZephyrContext(max_workers=1, chunk_storage_prefix=str(tmp_path / "scratch"))
    with home.execution_scope():
        guest = ZephyrContext()
        one = pids(guest)
        with guest.execution_scope():
            assert pids(home) == one
        assert pids(guest) == one
    assert home._pool is None
    home.shutdown()
    for closed in (guest, home):
        with pytest.raises(ContextClosedError):
            closed.execute(Dataset.from_list([1]))
    with pytest.raises(ContextClosedError), home.execution_scope():
        raise AssertionError("a closed context lends nothing")
