import itertools

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data.errors import PackingError
from levanter.data.packing import (
    GreedyPrepackedDataset,
    PackedTokenDataset,
    pack_documents,
    per_segment_correct,
    per_segment_loss,
)
from levanter.store.cache import SerialCacheWriter
from levanter.store.ledger import FieldSpec

Pos = hax.Axis("position", 8)


def make_cache(path, rows):
    with SerialCacheWriter(str(path), {"input_ids": FieldSpec("int32")}) as writer:
        writer.write_batch([{"input_ids": row} for row in rows])
    return writer.result()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=40), st.integers(1, 10), st.one_of(st.none(), st.integers(1, 4)))
def test_packs_hold_every_document_once_in_order_and_fit(lengths, size, most):
    packs = pack_documents({"x": lengths}, size, most, slice_strategy="left")
    assert [number for run in packs for number in run] == list(range(len(lengths)))
    for run in packs:
        assert len(run) == 1 or sum(lengths[i] for i in run) <= size
        assert most is None or len(run) <= most
    for before, after in itertools.pairwise(packs):
        grown = [*before, after.start]
        assert (
            sum(lengths[i] for i in grown) > size
            or (most is not None and len(grown) > most)
            or any(lengths[i] > size for i in grown)
        ), "next-fit starts a new pack only when it must"


def test_dropping_leaves_out_long_documents_and_breaks_the_run():
    assert pack_documents({"x": [1, 9, 1, 1]}, 4, slice_strategy="drop") == [range(0, 1), range(2, 4)]
    assert pack_documents({"x": [9]}, 4, slice_strategy="drop") == []
    assert pack_documents({"x": []}, 4) == []


def test_all_fields_must_fit():
    assert pack_documents({"x": [1, 1, 1], "y": [3, 1, 4]}, {"x": 10, "y": 4}) == [range(0, 2), range(2, 3)]


@pytest.mark.parametrize(
    "lengths, size, most, message",
    [
        ({"x": [5]}, 4, None, "document 0 is too long: lengths={'x': 5}"),
        ({"x": [1], "y": [1, 1]}, 4, None, "different numbers of documents"),
        ({"x": [1]}, 4, 0, "max_segments_per_example=0"),
        ({"x": [1]}, 0, None, "max_length of 'x' is 0"),
        ({}, 4, None, "no field"),
    ],
)
def test_impossible_packings_are_refused(lengths, size, most, message):
    with pytest.raises(PackingError) as caught:
        pack_documents(lengths, size, most)
    assert message in str(caught.value)


def test_packs_of_a_cache_carry_data_segments_and_padding(tmp_path):
    cache = make_cache(tmp_path / "c", [[1, 2, 3], [4, 5], [6] * 7, list(range(10, 20))])
    packs = GreedyPrepackedDataset(cache, 8, slice_strategy="left")
    first, second, third = packs.as_sync_dataset().get_batch([0, 1, 2])
    assert first.data["input_ids"].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert first.segment_ids["input_ids"].tolist() == [0, 0, 0, 1, 1, -1, -1, -1]
    assert second.segment_ids["input_ids"].tolist() == [2] * 7 + [-1]
    assert third.data["input_ids"].tolist() == list(range(10, 18))
    assert packs.fill("input_ids") == pytest.approx((5 + 7 + 8) / 24)
    ends = GreedyPrepackedDataset(cache, 8, slice_strategy="right")
    assert ends.as_sync_dataset()[2].data["input_ids"].tolist() == list(range(12, 20))
    with pytest.raises(PackingError, match="document 3"):
        GreedyPrepackedDataset(cache, 8)


def test_no_position_is_trained_to_predict_padding_or_another_document(tmp_path):
    cache = make_cache(tmp_path / "c", [[1, 2, 3], [4, 5], [6] * 7])
    dataset = PackedTokenDataset(GreedyPrepackedDataset(cache, 8), Pos)
    example = dataset.as_sync_dataset()[0]
    assert example.loss_weight.array.tolist() == [1, 1, 0, 1, 0, 0, 0, 0]
    trained = PackedTokenDataset(GreedyPrepackedDataset(cache, 8), Pos, train_on_document_starts=True)
    assert trained.as_sync_dataset()[0].loss_weight.array.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    from levanter.data._blocking import blocking_wait
    from levanter.data._stacking import stack_examples

    for a, b in zip(
        blocking_wait(dataset.get_stacked([1, 0])),
        stack_examples(dataset.as_sync_dataset().get_batch([1, 0])),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(PackingError, match="packs have 8 tokens"):
        PackedTokenDataset(GreedyPrepackedDataset(cache, 8), hax.Axis("position", 9))


@pytest.mark.parametrize("max_segments", [2, 3])
def test_losses_and_hits_are_summed_by_document_under_jit(tmp_path, max_segments):
    cache = make_cache(tmp_path / "c", [[1, 2, 3], [4, 5]])
    example = PackedTokenDataset(GreedyPrepackedDataset(cache, 8), Pos).as_sync_dataset()[0]
    losses = hax.named(jnp.arange(1.0, 9.0), (Pos,))
    ids, sums = jax.jit(per_segment_loss, static_argnums=2)(example, losses, max_segments)
    assert ids.tolist() == [0, 1, -1][:max_segments]
    assert sums.tolist() == [3.0, 4.0, 0.0][:max_segments]
    hits = hax.named(jnp.array([True, False, False, True, False, False, False, False]), (Pos,))
    ids, correct = jax.jit(per_segment_correct, static_argnums=2)(example, hits, max_segments)
    assert correct.tolist()[:2] == [False, True]
