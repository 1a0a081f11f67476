"""Reads and writes by name."""

import warnings

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, ds
from haliax.errors import AxisNotFoundError, AxisSizeMismatchError, AxisSpecError

H, W, D, C, Q = hax.make_axes(H=4, W=3, D=5, C=2, Q=6)
I0, I1, I2, I3 = hax.make_axes(I0=3, I1=2, I2=4, I3=5)


@pytest.fixture
def x():
    return hax.arange((H, W, D, C, Q))


def ints(axes, high, seed=0):
    shape = tuple(a.size for a in axes)
    return hax.named(np.random.default_rng(seed).integers(0, high, shape), axes)


def test_basic_indices(x):
    raw = np.asarray(x.array)
    assert np.array_equal(x["H", 1].array, raw[1])
    assert np.array_equal(x["H", 1, "D", 2:4].array, raw[1][:, 2:4])
    assert x["H", 1, "D", ::2].names == ("W", "D", "C", "Q")
    assert np.array_equal(x[{"H": -1, Axis("W", 3): jnp.int32(2)}].array, raw[-1, 2])
    assert np.array_equal(x["W", [0, 2]].array, raw[:, [0, 2]])
    assert x["W", [0, 2]].names == x.names
    assert np.array_equal(x["W", hax.named(2, ())].array, raw[:, 2])


def test_indexing_everything_away_keeps_a_named_array():
    out = hax.arange({"a": 3})["a", 2]
    assert isinstance(out, hax.NamedArray)
    assert out.names == ()
    assert out.item() == 2


def test_pinned_placements(x):
    w, d = ints((I2, I3), 3), ints((I1, I3), 5)
    assert x[{"W": w, "D": d}].names == ("H", "I1", "I2", "I3", "C", "Q")
    c = ints((I1, I3), 2)
    assert x[{"W": w, "C": c}].names == ("I1", "I2", "I3", "H", "D", "Q")
    i0 = ints((I0,), 4)
    out = x[{"H": i0, "D": 0}]
    assert out.names == ("I0", "W", "C", "Q")
    assert np.array_equal(out.array, np.asarray(x.array)[np.asarray(i0.array), :, 0])


def test_shared_names_are_batched():
    B, X, Z, Y = hax.make_axes(B=2, X=3, Z=4, Y=5)
    a = hax.arange((B, X, Z, Y))
    i, j = ints((B,), 3), ints((B,), 5)
    out = a["X", i, "Y", j]
    assert out.names == ("B", "Z")
    raw = np.asarray(a.array)
    expected = np.stack([raw[b, int(i.array[b]), :, int(j.array[b])] for b in range(2)])
    assert np.array_equal(out.array, expected)
    logits = hax.arange({"batch": 2, "seq": 3, "vocab": 5})
    ids = ints((Axis("batch", 2), Axis("seq", 3)), 5)
    assert logits["vocab", ids].names == ("batch", "seq")
    assert np.array_equal(
        logits["vocab", ids].array,
        np.take_along_axis(np.asarray(logits.array), np.asarray(ids.array)[..., None], 2)[..., 0],
    )
    partly = ints((Axis("batch", 2), Axis("t", 4)), 5)
    assert set(logits["vocab", partly].names) == {"batch", "seq", "t"}


@pytest.mark.parametrize("sizes", [(5, 7), (7, 5), (5, 5)])
def test_the_order_of_windows_does_not_depend_on_their_sizes(sizes):
    a = hax.arange({"H": 10, "W": 20, "D": 30})
    out = a["H", ds(0, sizes[0]), "D", ds(3, sizes[1])]
    assert out.shape == {"H": sizes[0], "D": sizes[1], "W": 20}
    expected = np.asarray(a.array)[: sizes[0], :, 3 : 3 + sizes[1]].transpose(0, 2, 1)
    assert np.array_equal(out.array, expected)


def test_windows_read_zero_beyond_the_end_and_writes_there_are_dropped():
    a = hax.arange({"a": 4}) + 1
    assert a["a", ds(2, 4)].tolist() == [3, 4, 0, 0]
    assert jax.jit(lambda s: a["a", ds(s, 3)])(3).tolist() == [4, 0, 0]
    assert a.at["a", ds(2, 4)].set(9).tolist() == [1, 2, 9, 9]
    assert a["a", ds(-2, 2)].tolist() == [3, 4]


def test_a_window_in_range_is_a_plain_slice():
    a = hax.arange({"a": 4})
    assert "gather" not in str(jax.make_jaxpr(lambda y: y["a", ds(1, 2)].array)(a))


def test_bool_masks_work_eagerly():
    a = hax.arange({"a": 5})
    assert a["a", a > 2].tolist() == [3, 4]
    with pytest.raises(AxisSpecError, match=r"hax\.where"):
        jax.jit(lambda y: y["a", y > 2])(a)


def test_raw_vectors_take_a_name_by_size_and_say_so_when_ambiguous():
    a = hax.arange({"batch": 2, "pos": 3, "vocab": 5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert a["vocab", jnp.array([1, 2])].names == ("batch", "pos")
        assert a["vocab", jnp.array([0, 1, 2, 3])].names == ("batch", "pos", "vocab")
    square = hax.arange({"a": 3, "b": 3})
    with pytest.warns(UserWarning, match="same size"):
        square["b", jnp.array([0, 1, 2])]


def test_what_cannot_be_an_index_is_refused(x):
    with pytest.raises(AxisNotFoundError):
        x["zz", 0]
    with pytest.raises(AxisSizeMismatchError):
        x[Axis("H", 9), 0]
    with pytest.raises(AxisSpecError, match="pairs"):
        x["H"]
    with pytest.raises(AxisSpecError):
        x["H", 0, "W"]
    with pytest.raises(AxisSpecError, match="integers"):
        x["H", hax.ones({"i": 2})]
    with pytest.raises(AxisSpecError, match="wrap others"):
        x["H", jnp.zeros((2, 2), jnp.int32)]
    with pytest.raises(AxisSpecError):
        x["H", True]
    with pytest.raises(AxisSizeMismatchError):
        x[{"H": ints((Axis("i", 2),), 2), "W": ints((Axis("i", 3),), 2)}]


def test_scalars_are_never_pulled_to_the_host(x):
    class Traced:
        dtype, shape, ndim = jnp.dtype(jnp.int32), (), 0

        def item(self):
            raise AssertionError("item() was called")

        def __jax_array__(self):
            return jnp.int32(1)

    assert np.array_equal(x["H", jax.jit(lambda i: i)(1)].array, np.asarray(x.array)[1])
    assert jax.jit(lambda y, i: y["H", i])(x, 2).names == ("W", "D", "C", "Q")
    with pytest.raises(AssertionError):
        Traced().item()


def test_writes_equal_numpy(x):
    raw = np.array(x.array)
    raw[1, :, 2:4] = 7
    assert np.array_equal(x.at["H", 1, "D", 2:4].set(7).array, raw)
    raw = np.array(x.array)
    raw[:, 1] += np.asarray(hax.arange((C, Q)).array)[None, None]
    assert np.array_equal(x.at["W", 1].add(hax.arange((Q, C)) * 0 + hax.arange((C, Q))).array, raw)
    assert x.at["H", 1].mul(0).sum().item() == np.delete(np.asarray(x.array), 1, 0).sum()
    i = ints((I0,), 4)
    raw = np.array(x.array)
    np.add.at(raw, np.asarray(i.array), 1)
    assert np.array_equal(x.at["H", i].add(1).array, raw)
    assert np.array_equal(x.at["H", 0].get().array, x["H", 0].array)
    assert np.array_equal(x.at["H", 0].max(5).array[0], np.maximum(np.asarray(x.array)[0], 5))
    assert np.array_equal(x.at["H", 0].apply(lambda v: -v).array[0], -np.asarray(x.array)[0])
    assert x.at["H", 9].get(mode="fill", fill_value=-1).array.max() == -1


def test_writes_never_read():
    a = hax.arange({"a": 4, "b": 3})
    jaxpr = str(jax.make_jaxpr(lambda y: y.at["a", hax.named([0, 2], "i")].set(1).array)(a))
    assert "gather" not in jaxpr.replace("GatherScatterMode", "")
    assert "scatter" in jaxpr


def test_writes_check_the_update():
    a = hax.arange({"a": 4, "b": 3})
    with pytest.raises(AxisSpecError, match="Reduce the update"):
        a.at["a", 0].set(hax.ones({"a": 4}))
    with pytest.raises(AxisSizeMismatchError):
        a.at["a", 0].set(hax.ones({"b": 4}))
    with pytest.raises(TypeError):
        a.at["a", 0].set(jnp.ones(3))
    assert a.at["a", 0].set(1.7).dtype == a.dtype


def test_take_splices_and_batches():
    table = hax.arange({"vocab": 5, "embed": 2})
    ids = hax.named([[0, 4], [2, 9]], ("b", "p"))
    out = table.astype(jnp.float32).take("vocab", ids)
    assert out.names == ("b", "p", "embed")
    assert np.isnan(out.array[1, 1]).all()
    assert table.take("vocab", 3).tolist() == [6, 7]
    a = hax.arange({"Batch": 2, "Embed": 4, "Block": 3})
    idx = ints((Axis("Block", 3), Axis("Batch", 2)), 4)
    got = a.take("Embed", idx)
    assert got.names == ("Batch", "Block")
    for b in range(2):
        for k in range(3):
            assert got["Batch", b, "Block", k].item() == a.array[b, int(idx.array[k, b]), k]
    assert table.take("vocab", ints((Axis("vocab", 7),), 5)).shape == {"vocab": 7, "embed": 2}
    with pytest.raises(AxisSpecError):
        table.take("vocab", hax.ones({"i": 2}))
    with pytest.raises(AxisNotFoundError):
        table.take("zz", 0)


def test_slice_forms_and_limits():
    a = hax.arange({"a": 6, "b": 3})
    assert a.slice("a", start=2, length=3).shape == {"a": 3, "b": 3}
    assert a.slice("a", Axis("c", 2), start=1).names == ("c", "b")
    assert a.slice({"a": 1, "b": 0}, {"a": 2, "b": Axis("z", 2)}).shape == {"a": 2, "z": 2}
    assert a.slice(start={"a": 1}, length={"a": 2}).shape == {"a": 2, "b": 3}
    assert jax.jit(lambda s: a.slice("a", start=s, length=2))(5).tolist() == a.slice("a", start=4, length=2).tolist()
    with pytest.raises(AxisSpecError, match="exceeds"):
        a.slice("a", start=5, length=3)
    with pytest.raises(AxisSpecError, match="same axes"):
        a.slice(start={"a": 1}, length={"b": 2})


def test_updated_slice_plain_and_ragged():
    cache = hax.zeros({"batch": 2, "pos": 5, "e": 2})
    new = hax.ones({"batch": 2, "pos": 2, "e": 2})
    out = cache.updated_slice({"pos": 1}, new)
    assert out["batch", 0, "e", 0].tolist() == [0, 1, 1, 0, 0]
    starts = hax.named(jnp.array([0, 3]), "batch")
    ragged = jax.jit(lambda c, s: c.updated_slice({"pos": s}, new))(cache, starts)
    assert ragged["e", 0].tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]
    token = cache.updated_slice({"pos": starts}, hax.ones({"e": 2, "batch": 2}))
    assert token["e", 1].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    with pytest.raises(AxisSpecError, match="that are not in the original array with shape"):
        cache.updated_slice({"pos": 0}, hax.ones({"zz": 2}))
    with pytest.raises(AxisSpecError, match="exceeds"):
        cache.updated_slice({"pos": 4}, new)
    with pytest.raises(AxisNotFoundError):
        cache.updated_slice({"pos": hax.named(jnp.array([0, 1]), "zz")}, new)
