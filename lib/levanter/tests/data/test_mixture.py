import collections

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data.dataset import ListAsyncDataset
from levanter.data.errors import DatasetIndexError, EmptyDatasetError, InfiniteDatasetError, MixtureError
from levanter.data.mixture import MixtureDataset, block_counts, rescale_mixture_schedule_for_batch_schedule
from levanter.schedule import BatchSchedule, ScheduleStep

KEY = jax.random.PRNGKey(0)


def numbered(name, length):
    return ListAsyncDataset([(name, i) for i in range(length)])


def mixture(lengths, weights, block_size=10, **kwargs):
    datasets = {name: numbered(name, length) for name, length in lengths.items()}
    return MixtureDataset(datasets, weights, block_size, key=KEY, **kwargs)


def read(dataset, indices):
    return list(dataset.as_sync_dataset().get_batch(indices))


def test_every_block_holds_the_exact_share_of_each():
    stream = mixture({"a": 1000, "b": 1000, "c": 1000}, {"a": 0.5, "b": 0.3, "c": 0.2})
    for block in range(20):
        names = collections.Counter(name for name, _ in read(stream, range(block * 10, block * 10 + 10)))
        assert names == {"a": 5, "b": 3, "c": 2}


def test_each_component_is_read_in_its_own_order_over_blocks():
    stream = mixture({"a": 50, "b": 50}, {"a": 0.7, "b": 0.3})
    seen = read(stream, range(100))
    for name, count in (("a", 7), ("b", 3)):
        mine = [i for n, i in seen if n == name]
        for block in range(len(mine) // count):
            expected = [i % 50 for i in range(block * count, block * count + count)]
            assert sorted(mine[block * count : block * count + count]) == sorted(expected)


def test_blocks_are_stable_and_differ_from_each_other():
    stream = mixture({"a": 1000, "b": 1000}, {"a": 1, "b": 1}, block_size=32)
    again = mixture({"a": 1000, "b": 1000}, {"a": 1, "b": 1}, block_size=32)
    assert read(stream, range(96)) == read(again, range(96))
    names = [name for name, _ in read(stream, range(96))]
    assert names[:32] != names[32:64]
    plain = mixture({"a": 100, "b": 100}, {"a": 1, "b": 1}, block_size=4, randomize_blocks=False)
    assert read(plain, range(5)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2)]


def test_batches_and_single_items_agree_in_any_order():
    stream = mixture({"a": 17, "b": 5}, {"a": 0.6, "b": 0.4})
    indices = [99, 0, 0, 53, 7, 1001]
    assert read(stream, indices) == [read(stream, [i])[0] for i in indices]
    assert read(stream, []) == []


def test_restart_wraps_each_component():
    stream = mixture({"a": 7}, {"a": 1}, block_size=1)
    assert [i for _, i in read(stream, [6, 7, 8])] == [6, 0, 1]
    with pytest.raises(InfiniteDatasetError):
        len(stream.as_sync_dataset())
    with pytest.raises(EmptyDatasetError, match="dataset=b"):
        read(mixture({"a": 7, "b": 0}, {"a": 1, "b": 1}), [0])


def test_components_without_weight_are_left_out():
    stream = mixture({"a": 7, "b": 0, "c": 3}, {"a": 1, "b": 0})
    assert list(stream.datasets) == ["a"]
    assert {name for name, _ in read(stream, range(50))} == {"a"}


def test_stages_switch_at_their_sample_and_components_go_on_where_they_were():
    stages = [(0, {"a": 1.0}), (20, {"a": 0.5, "b": 0.5}), (40, {"b": 1.0})]
    stream = mixture({"a": 1000, "b": 1000}, stages)
    seen = read(stream, range(60))
    assert {n for n, _ in seen[:20]} == {"a"} and {n for n, _ in seen[40:]} == {"b"}
    assert collections.Counter(n for n, _ in seen[20:40]) == {"a": 10, "b": 10}
    assert sorted(i for n, i in seen if n == "a") == list(range(30))
    assert sorted(i for n, i in seen if n == "b") == list(range(30))
    assert read(stream, range(15, 45)) == seen[15:45], "a batch may span stages"


@pytest.mark.parametrize(
    "weights, message",
    [
        ({"a": -1.0}, "-1.0"),
        ({"a": float("nan")}, "nan"),
        ({"a": 0.0}, "all weights are zero"),
        ({"x": 1.0}, "unknown components"),
        ([(5, {"a": 1.0})], "stage 0 starts at sample 5"),
        ([(0, {"a": 1.0}), (15, {"a": 1.0})], "The nearest is 20"),
        ([(0, {"a": 1.0}), (10, {"a": 1.0}), (10, {"a": 1.0})], "rising"),
        ([], "no stage"),
        ({"a": 1.0, "b": 1e-4}, "get no sample"),
    ],
)
def test_weights_that_cannot_be_mixed_are_refused(weights, message):
    with pytest.raises(MixtureError, match=message):
        mixture({"a": 5, "b": 5}, weights)


def test_starved_components_can_be_tolerated(caplog):
    mixture({"a": 5, "b": 5}, {"a": 1.0, "b": 1e-4}, on_zero="warn")
    assert "get no sample" in caplog.text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=8), st.integers(1, 5000))
def test_counts_fill_the_block_and_round_by_less_than_one(weights, block_size):
    names = [f"d{i}" for i in range(len(weights))]
    counts = block_counts(dict(zip(names, weights, strict=True)), names, block_size)
    assert counts.sum() == block_size
    exact = np.array(weights) / sum(weights) * block_size
    assert (np.abs(counts - exact) < 1 + 1e-6).all()


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 30), min_size=1),
    st.integers(3, 12),
    st.booleans(),
    st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_finite_mixtures_end_when_components_have_given_what_they_hold(lengths, block_size, randomize, strategy):
    weights = {name: 1.0 for name in lengths}
    stream = mixture(lengths, weights, block_size, stop_strategy=strategy, randomize_blocks=randomize)
    endless = mixture(lengths, weights, block_size, randomize_blocks=randomize)
    length = len(stream.as_sync_dataset())

    def exhausted(count):
        given = collections.Counter(name for name, _ in read(endless, range(count)))
        done = [given[name] >= size for name, size in lengths.items()]
        return any(done) if strategy == "first_exhausted" else all(done)

    assert exhausted(length) and not exhausted(length - 1)
    assert read(stream, range(length)) == read(endless, range(length))
    with pytest.raises(DatasetIndexError):
        read(stream, [length])


def test_stacked_reads_equal_item_reads():
    datasets = {n: ListAsyncDataset([np.full(3, k * 100 + i) for i in range(20)]) for k, n in enumerate("ab")}
    stream = MixtureDataset(datasets, {"a": 2, "b": 1}, 9, key=KEY)
    view = stream.as_sync_dataset()
    from levanter.data._blocking import blocking_wait

    indices = [5, 80, 3, 3, 44]
    [stacked] = blocking_wait(stream.get_stacked(indices))
    np.testing.assert_array_equal(stacked, np.stack(view.get_batch(indices)))


def test_training_steps_become_sample_positions():
    batches = BatchSchedule([ScheduleStep(0, 10), ScheduleStep(5, 20)])
    scaled = rescale_mixture_schedule_for_batch_schedule([(0, {"a": 1}), (5, {"a": 2}), (10, {"b": 1})], batches)
    assert [start for start, _ in scaled] == [0, 50, 150]
    with pytest.raises(MixtureError, match="step -1"):
        rescale_mixture_schedule_for_batch_schedule([(-1, {"a": 1})], batches)


def test_the_fingerprint_follows_what_decides_the_stream():
    base = mixture({"a": 5, "b": 5}, {"a": 1, "b": 1})
    assert base.stream_fingerprint() == mixture({"a": 5, "b": 5}, {"a": 1.0, "b": 1.0}).stream_fingerprint()
    others = [
        mixture({"a": 5, "b": 5}, {"a": 1, "b": 2}),
        mixture({"b": 5, "a": 5}, {"a": 1, "b": 1}),
        mixture({"a": 5, "b": 5}, {"a": 1, "b": 1}, block_size=20),
    ]
    assert base.stream_fingerprint() not in {other.stream_fingerprint() for other in others}
    assert base.stream_fingerprint({"a": 5}) != base.stream_fingerprint({"a": 6})


def test_positions_beyond_32_bits_are_found():
    stream = mixture({"a": 10**6}, {"a": 1}, block_size=100, randomize_blocks=False)
    assert read(stream, [5 * 10**9 + 3]) == [("a", 3)]
