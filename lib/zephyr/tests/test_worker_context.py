"""Data that the driver shares with its functions, and what a function may know about its task."""

import threading
from pathlib import Path

import pytest
from zephyr import Dataset, ZephyrContext
from zephyr.errors import ContextClosedError, DatasetError, NoTaskError, SharedDataError, TaskFailedError
from zephyr.worker_context import zephyr_worker_ctx


def named(n: int) -> str:
    return zephyr_worker_ctx().get_shared("names of numbers/..")[n]


def test_functions_find_what_was_put_in_every_worker(scratch: Path) -> None:
    with ZephyrContext(max_workers=2, chunk_storage_prefix=str(scratch)) as ctx:
        ctx.put("names of numbers/..", {1: "one", 2: "two"})
        ds = Dataset.from_list([1, 2, 1, 2], shards=4).map(named)
        assert ctx.execute(ds).results == ["one", "two", "one", "two"]
        ctx.put("names of numbers/..", {1: "eins", 2: "zwei"})  # the same workers see the new one
        assert ctx.execute(ds).results == ["eins", "zwei", "eins", "zwei"]
    assert not list(scratch.glob("*"))


def test_what_is_changed_after_put_is_not_seen(ctx: ZephyrContext) -> None:
    table = {"a": 1}
    ctx.put("t", table)
    table["a"] = 2
    ds = Dataset.from_list([0]).map(lambda _: zephyr_worker_ctx().get_shared("t")["a"])
    assert ctx.execute(ds).results == [1]


def test_one_object_serves_all_tasks_of_a_process(ctx: ZephyrContext) -> None:
    ctx.put("t", object())
    ids = ctx.execute(Dataset.from_list([0] * 6, shards=3).map(lambda _: id(zephyr_worker_ctx().get_shared("t"))))
    assert len(set(ids.results)) == 1


def test_a_name_that_nobody_put_is_an_error_that_lists_those_there_are(ctx: ZephyrContext) -> None:
    ctx.put("hosts", {"a"})
    with pytest.raises(SharedDataError, match="'nams'.*'hosts'") as caught:
        ctx.execute(Dataset.from_list([0]).map(lambda _: zephyr_worker_ctx().get_shared("nams")))
    assert caught.value.known == ("hosts",)


def test_what_cannot_be_shared_is_refused_at_once(ctx: ZephyrContext) -> None:
    with pytest.raises(DatasetError, match="'lock' is a lock that cannot be pickled"):
        ctx.put("lock", threading.Lock())
    with pytest.raises(DatasetError, match="name=''"):
        ctx.put("", 1)
    closed = ZephyrContext(inline=True)
    closed.shutdown()
    with pytest.raises(ContextClosedError):
        closed.put("a", 1)


def test_a_function_knows_its_task_and_nobody_else_does(ctx: ZephyrContext) -> None:
    def where(_: int) -> tuple[int, int, int]:
        here = zephyr_worker_ctx()
        return here.stage, here.shard, here.attempt

    assert ctx.execute(Dataset.from_list([0, 0], shards=2).map(where)).results == [(0, 0, 1), (0, 1, 1)]
    with pytest.raises(NoTaskError):
        zephyr_worker_ctx()

    def elsewhere(_: int) -> None:
        with pytest.raises(NoTaskError):
            zephyr_worker_ctx()

    def from_a_thread(item: int) -> int:
        thread = threading.Thread(target=elsewhere, args=(item,))
        thread.start()
        thread.join()
        return item

    assert ctx.execute(Dataset.from_list([7]).map(from_a_thread)).results == [7]


def test_an_output_that_shared_data_went_into_is_made_again_when_it_changes(ctx: ZephyrContext, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.write_text("")

    def price(n: int) -> dict[str, int]:
        with open(runs, "a") as stream:
            stream.write("x")
        return {"n": n * zephyr_worker_ctx().get_shared("factor")}

    ds = Dataset.from_list([1], shards=1).map(price).write_jsonl(str(tmp_path / "a.jsonl"), skip_existing=True)
    for factor, expected, ran in ((2, 2, 1), (2, 2, 1), (3, 3, 2)):
        ctx.put("factor", factor)
        ctx.execute(ds)
        assert (tmp_path / "a.jsonl").read_text() == f'{{"n":{expected}}}\n'
        assert len(runs.read_text()) == ran


def test_a_task_that_fails_on_shared_data_says_where(scratch: Path) -> None:
    class Bad:
        def __reduce__(self):
            return int, ("not a number",)

    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch)) as ctx:
        ctx.put("bad", Bad())
        with pytest.raises(TaskFailedError, match="not a number"):
            ctx.execute(Dataset.from_list([0]).map(lambda _: zephyr_worker_ctx().get_shared("bad")))
