"""The loader on a mesh of eight virtual devices; run by test_loader.py in a process of its own."""

import haliax as hax
import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from levanter.data.dataset import ListAsyncDataset
from levanter.data.errors import BatchSizeError
from levanter.data.loader import DataLoader, check_sharded_consistency
from levanter.data.text.datasets import CausalLmDataset

Pos = hax.Axis("position", 4)


def examples(count, **kwargs):
    rows = [np.arange(i * 4, i * 4 + 4, dtype=np.int32) for i in range(count)]
    return CausalLmDataset(ListAsyncDataset(rows), Pos, **kwargs)


def first_tokens(batch):
    return (np.asarray(batch.tokens.array)[:, 0] // 4).tolist()


@pytest.fixture
def mesh():
    assert len(jax.devices()) == 8
    return Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "data", "model"))


@pytest.mark.parametrize("resources", [{"batch": ("replica", "data")}, {"batch": "data", "position": "model"}, {}])
def test_every_layout_shows_the_same_global_batch(mesh, resources):
    plain = DataLoader(examples(30, eos_id=17), 8)
    sharded = DataLoader(examples(30, eos_id=17), 8, mesh=mesh, axis_resources=resources)
    for want, got in zip(plain, sharded, strict=True):
        check_sharded_consistency(got, check_disjoint_indices_are_different=False)
        for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
            np.testing.assert_array_equal(a, b)
    tokens = next(iter(sharded)).tokens
    shards = {shard.data.shape for shard in tokens.array.addressable_shards}
    expected = {("replica", "data"): (2, 4), "data": (4, 2), None: (8, 4)}[resources.get("batch")]
    assert shards == {expected}


def test_disjoint_shards_hold_different_examples(mesh):
    batch = next(iter(DataLoader(examples(16), 8, mesh=mesh, axis_resources={"batch": ("replica", "data")})))
    check_sharded_consistency(batch.tokens, check_disjoint_indices_are_different=True)
    with pytest.raises(AssertionError, match="different parts are equal"):
        check_sharded_consistency(batch.loss_weight, check_disjoint_indices_are_different=True)


def test_batches_the_devices_cannot_share_are_refused_or_padded(mesh, caplog):
    resources = {"batch": ("replica", "data")}
    with pytest.raises(BatchSizeError, match="batch_size=6, data_axis_size=4.*Use batch_size=8"):
        DataLoader(examples(16), 6, mesh=mesh, axis_resources=resources)
    loader = DataLoader(examples(16), 6, mesh=mesh, axis_resources=resources, allow_nondivisible_batch_size=True)
    assert "padding every batch" in caplog.text
    batches = list(loader)
    assert [first_tokens(batch)[:6] for batch in batches[:2]] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert batches[0].tokens.axes[0].size == 8
    assert np.asarray(batches[0].loss_weight.array)[6:].sum() == 0
