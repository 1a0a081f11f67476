import gc
import os
import pathlib
import subprocess
import sys
import threading
import time

import haliax as hax
import jax
import numpy as np
import pytest
from levanter.data._background import BackgroundIterator
from levanter.data.dataset import AsyncDataset, ListAsyncDataset
from levanter.data.errors import EmptyDatasetError, InfiniteDatasetError
from levanter.data.loader import DataLoader
from levanter.data.text.datasets import CausalLmDataset
from levanter.schedule import BatchSchedule, ScheduleStep

Pos = hax.Axis("position", 4)


def windows(count):
    return ListAsyncDataset([np.arange(i * 4, i * 4 + 4, dtype=np.int32) for i in range(count)])


def examples(count, **kwargs):
    return CausalLmDataset(windows(count), Pos, **kwargs)


def first_tokens(batch):
    return (np.asarray(batch.tokens.array)[:, 0] // 4).tolist()


def test_batches_are_consecutive_examples_with_a_batch_axis_in_front():
    loader = DataLoader(examples(10), 4)
    batches = list(loader)
    assert [first_tokens(batch) for batch in batches[:2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[0].tokens.axes == (hax.Axis("batch", 4), Pos)
    assert batches[0].loss_weight.axes == (hax.Axis("batch", 4), Pos)
    assert batches[0].attn_mask.causal_offset == 0
    assert (len(loader), loader.has_len()) == (3, True)


def test_a_short_last_batch_is_padded_with_weightless_zeros_or_dropped():
    last = list(DataLoader(examples(10), 4))[-1]
    np.testing.assert_array_equal(np.asarray(last.tokens.array)[2:], 0)
    np.testing.assert_array_equal(np.asarray(last.loss_weight.array)[2:], 0)
    assert np.asarray(last.loss_weight.array)[:2].sum() == 6
    dropping = DataLoader(examples(10), 4, pad_final_batch=False)
    assert (len(dropping), len(list(dropping))) == (2, 2)


@pytest.mark.parametrize(
    "settings", [{}, {"prefetch_size": 1}, {"max_buffered_batches": 0}, {"max_buffered_batches": None}]
)
def test_the_batch_of_a_step_does_not_depend_on_where_reading_began(settings):
    schedule = BatchSchedule([ScheduleStep(0, 2), ScheduleStep(3, 5)])
    reference = [DataLoader(examples(40), schedule).batch_at(step) for step in range(10)]
    loader = DataLoader(examples(40), schedule, **settings)
    for start in (0, 2, 3, 7, 9):
        resumed = list(loader.iter_from_step(start))
        assert len(resumed) == len(loader) - start
        for batch, expected in zip(resumed, reference[start:], strict=True):
            for got, want in zip(jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(got, want)


def test_steps_far_out_are_reached_at_once():
    class Endless(AsyncDataset):
        async def async_len(self):
            raise InfiniteDatasetError("endless", "async_len")

        def is_finite(self):
            return False

        async def get_batch(self, indices):
            return [np.array([int(i)]) for i in indices]

    loader = DataLoader(Endless(), 8)
    batches = loader.iter_from_step(10**8)
    assert np.asarray(next(batches))[:, 0].tolist() == list(range(8 * 10**8, 8 * 10**8 + 8))
    assert batches.next_step == 10**8 + 1
    assert not loader.has_len()
    with pytest.raises(InfiniteDatasetError):
        len(loader)
    batches.stop()
    with pytest.raises(ValueError, match="negative"):
        loader.iter_from_step(-1)


def test_plain_pytrees_and_named_axes_are_batched_too():
    data = ListAsyncDataset([{"x": np.full(3, i), "n": np.float32(i)} for i in range(6)])
    batch = next(iter(DataLoader(data, hax.Axis("rows", 2))))
    assert batch["x"].shape == (2, 3) and batch["n"].tolist() == [0.0, 1.0]


def test_an_empty_dataset_is_refused_at_once():
    with pytest.raises(EmptyDatasetError):
        DataLoader(ListAsyncDataset([]), 4)
    with pytest.raises(ValueError, match="prefetch_size"):
        DataLoader(windows(4), 2, prefetch_size=0)


class Failing(AsyncDataset):
    async def async_len(self):
        return 100

    def is_finite(self):
        return True

    async def get_batch(self, indices):
        if max(indices) >= 12:
            self.explode(int(max(indices)))
        return [np.array([int(i)]) for i in indices]

    def explode(self, index):
        raise OSError(f"cannot read row {index}")


def test_a_read_error_reaches_the_consumer_with_its_traceback():
    batches = DataLoader(Failing(), 4, prefetch_size=1).iter_from_step(0)
    assert [np.asarray(next(batches))[0, 0] for _ in range(3)] == [0, 4, 8]
    with pytest.raises(OSError, match="cannot read row 15") as caught:
        next(batches)
    assert any(entry.name == "explode" for entry in caught.traceback)
    with pytest.raises(OSError):
        next(batches)


def test_the_first_request_is_one_batch_and_later_ones_grow():
    requests = []

    class Recording(AsyncDataset):
        async def async_len(self):
            return 1000

        def is_finite(self):
            return True

        async def get_batch(self, indices):
            requests.append(len(indices))
            return [np.array([int(i)]) for i in indices]

    loader = DataLoader(Recording(), 4, prefetch_size=8, max_buffered_batches=0)
    requests.clear()
    batches = iter(loader)
    for _ in range(31):
        next(batches)
    assert requests == [4, 8, 16, 32, 32, 32]


def test_requests_stay_below_the_size_that_memory_can_be_reused_at():
    rows = ListAsyncDataset([np.zeros(1024 * 1024, np.uint8) for _ in range(4)])
    assert DataLoader(rows, 2)._steps_per_request() == 4
    assert DataLoader(rows, 64)._steps_per_request() == 1
    assert DataLoader(rows, 2, prefetch_size=3)._steps_per_request() == 3


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "levanter-data-loader"]


def test_stopping_or_dropping_an_iterator_ends_its_thread():
    before = len(loader_threads())
    loader = DataLoader(examples(1000), 2, max_buffered_batches=2)
    batches = loader.iter_from_step(0)
    next(batches)
    assert len(loader_threads()) == before + 1
    batches.stop()
    batches.stop()
    assert len(loader_threads()) == before
    with pytest.raises(StopIteration):
        next(batches)
    dropped = loader.iter_from_step(0)
    next(dropped)
    [thread] = [thread for thread in loader_threads()]
    del dropped
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_the_queue_is_bounded():
    made = []

    def make():
        for number in range(100):
            made.append(number)
            yield number

    iterator = BackgroundIterator(make, 3)
    deadline = time.monotonic() + 10
    while iterator.num_ready < 3 and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    assert len(made) <= 4
    assert list(iterator) == list(range(100))
    assert list(BackgroundIterator(make, None)) == list(range(100))
    assert list(BackgroundIterator(make, 0)) == list(range(100))
    assert list(BackgroundIterator(lambda: iter([]), 2)) == []


@pytest.mark.slow
def test_the_cases_on_eight_devices_pass():
    """They need a process of their own: the number of virtual devices is fixed when jax starts."""
    cases = pathlib.Path(__file__).with_name("mesh_cases.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(cases), "-q", "-p", "no:cacheprovider", "-n", "0"],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and "5 passed" in done.stdout
