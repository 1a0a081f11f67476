"""State dicts: keys and shapes as PyTorch has them, files as Hugging Face reads them."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.errors import StateDictError, StateDictKeyError
from haliax.state_dict import (
    ModuleWithStateDictSerialization,
    from_state_dict,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    stack_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
    unstack_state_dict,
    with_prefix,
)

E, H, D, V, L = hax.make_axes(E=4, H=2, D=3, V=5, L=3)


class Block(ModuleWithStateDictSerialization):
    proj: hnn.Linear
    norm: hnn.RmsNorm
    extra: hax.NamedArray | None
    act: object

    @staticmethod
    def init(*, key):
        norm = hnn.RmsNorm.init((E, E.alias("E2")), use_bias=False)
        return Block(hnn.Linear.init(E, (H, D), key=key), norm, None, jnp.sin)

    def _state_dict_key_map(self):
        return {"proj": "attn.q_proj"}


class Model(ModuleWithStateDictSerialization):
    emb: hnn.Embedding
    blocks: hnn.Stacked
    head: hnn.Linear

    @staticmethod
    def init(key):
        return Model(
            hnn.Embedding.init(V, E, key=key),
            hnn.Stacked.init(L, Block)(key=jax.random.split(key, 3)),
            hnn.Linear.init(E, V, key=key, out_first=False, reparam_cls=hnn.Linear.output_reparam(True)),
        )

    def _state_dict_key_map(self):
        return {"emb": None, "blocks": "layers"}


@pytest.fixture
def model(key):
    return Model.init(key)


def test_keys_and_shapes(model):
    state = to_torch_compatible_state_dict(model, prefix="model")
    expected = {"model.weight": (5, 4), "model.head.weight": (4, 5), "model.head.bias": (5,)}
    for i in range(3):
        expected[f"model.layers.{i}.attn.q_proj.weight"] = (6, 4)
        expected[f"model.layers.{i}.attn.q_proj.bias"] = (6,)
        expected[f"model.layers.{i}.norm.weight"] = (16,)
    assert {k: v.shape for k, v in state.items()} == expected
    assert all(isinstance(v, np.ndarray) for v in state.values())
    np.testing.assert_allclose(state["model.head.weight"], np.asarray(model.head.weight.array) / 4)


def test_round_trip_into_shapes_only(model, tmp_path):
    pytest.importorskip("safetensors")
    path = str(tmp_path / "model.safetensors")
    save_state_dict(to_torch_compatible_state_dict(model, prefix="m"), path)
    template = eqx.filter_eval_shape(lambda: model)
    back = from_torch_compatible_state_dict(template, load_state_dict(path), prefix="m")
    assert jax.tree.structure(back) == jax.tree.structure(model)
    for a, b in zip(
        jax.tree.leaves(eqx.filter(back, eqx.is_array_like)),
        jax.tree.leaves(eqx.filter(model, eqx.is_array_like)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    with open(path, "rb") as f:
        assert b'"format":"pt"' in f.read(4096)


def test_a_damaged_file_is_an_error(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "broken.safetensors"
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00garbage")
    with pytest.raises(StateDictError, match=r"broken\.safetensors"):
        load_state_dict(str(path))


def test_missing_keys_and_wrong_shapes_are_named(model):
    state = to_state_dict(model)
    del state["head.bias"]
    with pytest.raises(StateDictKeyError, match=r"head\.bias"):
        from_state_dict(model, state)
    with pytest.raises(KeyError):
        from_state_dict(model, state)
    state["head.bias"] = np.zeros(7)
    with pytest.raises(StateDictError, match=r"\(7,\)"):
        from_state_dict(model, state)


def test_fields_that_are_none_are_never_read(model):
    state = to_state_dict(model)
    state["layers.0.extra"] = np.zeros(3)
    assert from_state_dict(model, state).blocks.stacked.extra is None


def test_containers_prefixes_and_bad_leaves():
    tree = {"a": [hax.ones(E), None], "b": (jnp.ones(2),)}
    state = to_state_dict(tree, "p")
    assert sorted(state) == ["p.a.0", "p.b.0"]
    assert from_state_dict(tree, state, "p")["a"][1] is None
    with pytest.raises(StateDictError, match="prefix"):
        to_state_dict(hax.ones(E))
    with pytest.raises(StateDictError, match="object"):
        to_state_dict({"a": object()})
    assert with_prefix(None, None) is None
    assert with_prefix("a", None) == "a"


def test_stacking_is_inverse_and_strict():
    flat = {"h.0.w": np.zeros(2), "h.1.w": np.ones(2), "other": np.zeros(1)}
    stacked = stack_state_dict(flat, "h")
    np.testing.assert_array_equal(stacked["h.w"], [[0, 0], [1, 1]])
    assert sorted(unstack_state_dict(stacked, "h")) == sorted(flat)
    many = {f"{i}.w": np.full(1, i) for i in range(12)}
    np.testing.assert_array_equal(stack_state_dict(many)["w"][:, 0], np.arange(12))
    with pytest.raises(StateDictError, match=r"missing layers \[1\]"):
        stack_state_dict({"h.0.w": np.zeros(2), "h.2.w": np.ones(2)}, "h")
    with pytest.raises(StateDictError, match="shapes"):
        stack_state_dict({"h.0.w": np.zeros(2), "h.1.w": np.ones(3)}, "h")
    with pytest.raises(StateDictError, match="leading dimension"):
        unstack_state_dict({"h.w": np.zeros(())}, "h")


def test_linear_with_several_axes_flattens_both_ways(key):
    for out_first in (True, False):
        layer = hnn.Linear.init((H, D), (E, V), key=key, out_first=out_first)
        state = to_torch_compatible_state_dict(layer)
        assert state["weight"].shape == ((20, 6) if out_first else (6, 20))
        back = from_torch_compatible_state_dict(layer, state)
        np.testing.assert_array_equal(back.weight.array, layer.weight.array)
        assert back.weight.names == layer.weight.names
