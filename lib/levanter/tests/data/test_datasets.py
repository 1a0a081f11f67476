import asyncio
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data._blocking import blocking_wait
from levanter.data._index_maps import BlockShuffleMap
from levanter.data._prp import make_permutation
from levanter.data.dataset import AsyncDataset, BlockShuffleConfig, ListAsyncDataset
from levanter.data.errors import DatasetIndexError, EmptyDatasetError, InfiniteDatasetError

KEY = jax.random.PRNGKey(0)


class Counting(AsyncDataset):
    """Item i is i; without end when no length is given. Remembers what was read together."""

    def __init__(self, length=None):
        self.length = length
        self.reads = []

    async def async_len(self):
        if self.length is None:
            raise InfiniteDatasetError("counting", "async_len")
        return self.length

    def is_finite(self):
        return self.length is not None

    async def get_batch(self, indices):
        self.reads.append(list(indices))
        return [int(i) for i in indices]


def items(dataset):
    view = dataset.as_sync_dataset()
    return list(view.get_batch(range(len(view))))


def test_lists_answer_any_indices_in_any_order():
    dataset = ListAsyncDataset(["a", "b", "c"])
    view = dataset.as_sync_dataset()
    assert view.get_batch([2, 0, 2]) == ["c", "a", "c"]
    assert (len(view), view[1], view.get_batch([]), view.is_finite()) == (3, "b", [], True)
    for bad in (-1, 3):
        with pytest.raises(DatasetIndexError):
            view[bad]


def test_mapping_with_a_key_depends_on_the_index_alone():
    def noisy(item, *, key):
        return item, int(jax.random.randint(key, (), 0, 1000))

    dataset = ListAsyncDataset(list("abcd")).map(noisy, key=KEY)
    whole = items(dataset)
    assert dataset.as_sync_dataset().get_batch([3, 1]) == [whole[3], whole[1]]
    assert len({number for _, number in whole}) > 1

    def noisy_batch(batch, *, key):
        return [noisy(item, key=one) for item, one in zip(batch, key, strict=True)]

    assert items(ListAsyncDataset(list("abcd")).map_batches(noisy_batch, key=KEY)) == whole


@given(st.integers(0, 12), st.integers(0, 14), st.one_of(st.none(), st.integers(0, 14)))
def test_slices_are_python_slices(length, start, end):
    dataset = ListAsyncDataset(list(range(length)))
    if end is not None and start > end:
        with pytest.raises(ValueError, match="not a slice"):
            dataset.slice_dataset(start, end)
        return
    assert items(dataset.slice_dataset(start, end)) == list(range(length))[start:end]


def test_a_slice_with_an_end_of_an_endless_dataset_is_finite():
    endless = Counting()
    assert items(endless.slice_dataset(5, 8)) == [5, 6, 7]
    assert not endless.slice_dataset(5).is_finite()
    assert endless.slice_dataset(5).as_sync_dataset()[10**12] == 5 + 10**12
    with pytest.raises(InfiniteDatasetError):
        len(endless.slice_dataset(5).as_sync_dataset())
    with pytest.raises(DatasetIndexError):
        endless.take(3).as_sync_dataset()[3]


def test_shuffles_are_bijections_that_move_things():
    dataset = Counting(100).shuffle(KEY)
    order = items(dataset)
    assert sorted(order) == list(range(100)) and order != list(range(100))
    assert items(Counting(100).shuffle(KEY)) == order
    assert items(Counting(0).shuffle(KEY)) == []
    with pytest.raises(InfiniteDatasetError):
        Counting().shuffle(KEY).as_sync_dataset()[0]


def test_views_reach_the_source_as_one_read():
    source = Counting(1000)
    source.shuffle(KEY).slice_dataset(10, 500).shuffle(jax.random.PRNGKey(1)).as_sync_dataset().get_batch(range(50))
    assert [len(read) for read in source.reads] == [50]


def block_shuffle_by_the_definition(n, b, w, key):
    """The order as the specification words it, item by item."""
    full, tail = divmod(n, b)
    block_key, full_key, tail_key = jax.random.split(key, 3)
    order = list(range(full))
    if full > 1:
        order = make_permutation("feistel", full, block_key)(np.arange(full)).tolist()
    slots = order + ([full] if tail else [])
    out = []
    for window in range(-(-len(slots) // w)):
        mine = slots[window * w : (window + 1) * w]
        full_items = [block * b + offset for block in mine if block < full for offset in range(b)]
        if full_items:
            permutation = make_permutation("feistel", len(full_items), jax.random.fold_in(full_key, window))
            out += [full_items[permutation(i)] for i in range(len(full_items))]
        if mine and mine[-1] == full and tail:
            permutation = make_permutation("feistel", tail, jax.random.fold_in(tail_key, window))
            out += [full * b + permutation(i) for i in range(tail)]
    return out


@pytest.mark.parametrize(
    "n, b, w", [(1, 1, 1), (7, 3, 2), (12, 3, 2), (13, 3, 2), (64, 8, 3), (5, 10, 4), (41, 4, 100)]
)
def test_block_shuffle_follows_its_definition(n, b, w):
    dataset = Counting(n).block_shuffle(io_block_size=b, window_blocks=w, key=KEY)
    assert items(dataset) == block_shuffle_by_the_definition(n, b, w, KEY)


def test_block_shuffle_is_a_bijection_for_every_small_size():
    class Reverse:
        def __init__(self, length):
            self.length = length

        def __call__(self, indices):
            return self.length - 1 - indices

    for n, b, w in itertools.product(range(1, 33), range(1, 9), range(1, 6)):
        index_map = BlockShuffleMap(
            n,
            b,
            w,
            blocks=Reverse(n // b) if n // b > 1 else None,
            window_order=lambda _, size: Reverse(size),
            tail_order=lambda _, size: Reverse(size),
        )
        images = index_map(np.arange(n)).tolist()
        assert sorted(images) == list(range(n)), (n, b, w)
        if n % b:
            assert sorted(images[n - n % b :]) == list(range(n - n % b, n)), "the tail stays last"


def test_block_shuffle_reads_in_ascending_order_and_restores_the_order_asked_for():
    source = Counting(100)
    dataset = source.block_shuffle(io_block_size=4, window_blocks=3, key=KEY)
    whole = items(dataset)
    source.reads.clear()
    assert dataset.as_sync_dataset().get_batch([50, 3, 99]) == [whole[50], whole[3], whole[99]]
    assert source.reads == [sorted([whole[50], whole[3], whole[99]])]
    assert dataset.as_sync_dataset().get_batch([]) == []
    for bad in (-1, 100):
        with pytest.raises(DatasetIndexError):
            dataset.as_sync_dataset()[bad]


def test_block_shuffle_needs_positive_sizes_and_an_end():
    with pytest.raises(ValueError, match="io_block_size=0"):
        BlockShuffleConfig(0, 1)
    with pytest.raises(InfiniteDatasetError):
        Counting().block_shuffle(io_block_size=2, window_blocks=2, key=KEY)


def test_block_shuffle_mixes_nearly_as_far_as_a_full_shuffle():
    """Mean displacement 0.33 of the length, at a hundredth of the block changes."""
    n, b = 8192, 128
    order = np.array(items(Counting(n).block_shuffle(io_block_size=b, window_blocks=8, key=KEY)))
    assert abs(np.abs(order - np.arange(n)).mean() / n - 1 / 3) < 0.05
    windows = order.reshape(-1, 8 * b)
    assert all(len(np.unique(window // b)) == 8 for window in windows)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.data())
def test_holdouts_are_disjoint_and_complete(length, data):
    held = data.draw(st.integers(1, length - 1))
    kept, out = Counting(length).random_holdout_split(held, key=KEY)
    kept_items, out_items = items(kept), items(out)
    assert len(out_items) == held
    assert sorted(kept_items + out_items) == list(range(length))
    assert sum(item != position for position, item in enumerate(kept_items)) <= held


def test_holdouts_of_nothing_or_everything_are_refused():
    for held in (0, 10, 11):
        with pytest.raises(ValueError, match="cannot hold out"):
            items(Counting(10).random_holdout_split(held, key=KEY)[0])


def test_repeats_reorder_every_epoch_when_asked():
    same = Counting(5).repeat(3)
    assert items(same) == [0, 1, 2, 3, 4] * 3
    fresh = items(Counting(50).repeat(3, reshuffle_key=KEY))
    epochs = [fresh[:50], fresh[50:100], fresh[100:]]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    endless = Counting(5).repeat()
    assert not endless.is_finite() and endless.as_sync_dataset()[10**9 + 2] == 2
    with pytest.raises(EmptyDatasetError):
        items(Counting(0).repeat(2))


def test_waiting_works_from_threads_loops_and_nested_calls():
    class Nested(AsyncDataset):
        def __init__(self, depth):
            self.depth = depth

        async def async_len(self):
            return 1

        def is_finite(self):
            return True

        async def get_batch(self, indices):
            if self.depth == 0:
                return ["deep"] * len(indices)
            return blocking_wait(Nested(self.depth - 1).get_batch(indices))

    assert Nested(25).as_sync_dataset()[0] == "deep"

    async def inside():
        return Nested(2).as_sync_dataset()[0]

    assert asyncio.run(inside()) == "deep"
