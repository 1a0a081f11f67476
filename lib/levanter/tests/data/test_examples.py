import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.data._blocking import blocking_wait
from levanter.data._stacking import stack_examples
from levanter.data.dataset import ListAsyncDataset
from levanter.data.errors import DatasetIndexError
from levanter.data.text.datasets import CausalLmDataset, TokenSeqDataset
from levanter.data.text.examples import LmExample, segments_from_eos
from levanter.store.cache import SerialCacheWriter
from levanter.store.ledger import FieldSpec

Pos = hax.Axis("position", 6)


def example(tokens, **kwargs):
    return LmExample.causal(hax.named(np.array(tokens, np.int32), (hax.Axis("position", len(tokens)),)), **kwargs)


def test_the_last_position_predicts_nothing():
    assert example([1, 2, 3]).loss_weight.array.tolist() == [1, 1, 0]
    assert example([1]).loss_weight.array.tolist() == [0]


def test_ignored_tokens_are_not_predicted():
    assert example([1, 9, 3, 9], ignore_id=9).loss_weight.array.tolist() == [0, 1, 0, 0]


def test_documents_are_kept_apart_in_attention_and_loss():
    made = example([1, 0, 2, 3, 0, 4], eos_id=0)
    assert made.attn_mask.segment_ids[0].array.tolist() == [0, 0, 1, 1, 1, 2]
    assert made.loss_weight.array.tolist() == [1, 0, 1, 1, 0, 0]
    kept = example([1, 0, 2, 3, 0, 4], eos_id=0, train_on_document_starts=True)
    assert kept.loss_weight.array.tolist() == [1, 1, 1, 1, 1, 0]
    assert example([1, 0, 2]).attn_mask.segment_ids is None


def test_given_segments_and_weights_take_part():
    Pos4 = hax.Axis("position", 4)
    made = example(
        [1, 2, 3, 4],
        segment_ids=hax.named(np.array([7, 7, 8, 8], np.int32), (Pos4,)),
        loss_weight=hax.named(np.array([0.5, 1, 2, 1], np.float32), (Pos4,)),
    )
    assert made.loss_weight.array.tolist() == [0.5, 0, 2, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_segments_begin_after_every_eos_in_numpy_and_in_jax(tokens):
    expected, segment = [], 0
    for position in range(len(tokens)):
        segment += position > 0 and tokens[position - 1] == 0
        expected.append(segment)
    assert segments_from_eos(np.array(tokens), 0).tolist() == expected
    padded = jnp.array((tokens + [1] * 12)[:12])  # One shape, one compilation.
    assert segments_from_eos(padded, 0).tolist()[: len(tokens)] == expected


def test_examples_can_be_made_inside_a_compiled_function():
    made = jax.jit(lambda t: LmExample.causal(hax.named(t, (Pos,)), eos_id=0))(jnp.array([1, 0, 2, 3, 0, 4]))
    assert made.loss_weight.array.tolist() == [1, 0, 1, 1, 0, 0]


@pytest.fixture
def cache(tmp_path):
    with SerialCacheWriter(str(tmp_path / "c"), {"input_ids": FieldSpec("int32")}) as writer:
        writer.write_batch([{"input_ids": row} for row in ([1, 2, 3, 0], [4, 0], [5, 6, 7, 8, 9, 0], [1] * 8)])
    return writer.result()


def test_windows_tile_the_concatenated_documents_and_drop_the_rest(cache):
    windows = TokenSeqDataset(cache, 6).as_sync_dataset()
    assert len(windows) == 3
    assert [w.tolist() for w in windows.get_batch([2, 0])] == [[1] * 6, [1, 2, 3, 0, 4, 0]]
    assert windows[0].dtype == np.int32
    with pytest.raises(DatasetIndexError):
        windows[3]
    assert len(TokenSeqDataset(cache, 100).as_sync_dataset()) == 0
    with pytest.raises(ValueError, match="seq_len=0"):
        TokenSeqDataset(cache, 0)


@pytest.mark.parametrize("eos_id", [None, 0])
def test_batches_built_at_once_equal_examples_built_one_by_one(cache, eos_id):
    dataset = CausalLmDataset(TokenSeqDataset(cache, 6), Pos, eos_id=eos_id, ignore_id=3)
    built = dataset.as_sync_dataset().get_batch([2, 0, 1])
    for at_once, stacked in zip(blocking_wait(dataset.get_stacked([2, 0, 1])), stack_examples(built), strict=True):
        np.testing.assert_array_equal(at_once, stacked)
        assert at_once.dtype == stacked.dtype
    single = LmExample.causal(hax.named(built[1].tokens.array, (Pos,)), eos_id=eos_id, ignore_id=3)
    for a, b in zip(jax.tree.leaves(built[1]), jax.tree.leaves(single), strict=True):
        np.testing.assert_array_equal(a, b)


def test_windows_must_have_the_length_of_the_position_axis():
    dataset = CausalLmDataset(ListAsyncDataset([np.zeros(5, np.int32)]), Pos)
    with pytest.raises(ValueError, match="length=5, position=6"):
        dataset.as_sync_dataset()[0]
