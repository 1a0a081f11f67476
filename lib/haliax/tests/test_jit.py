"""named_jit: one trace per signature, static values, donation, placement of results."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.errors import ArrayTypeError

A = hax.Axis("A", 4)


def counted(fn, **kwargs):
    calls = []

    def wrapped(*args, **kw):
        calls.append(1)
        return fn(*args, **kw)

    return hax.named_jit(wrapped, **kwargs), calls


def test_one_trace_per_signature():
    f, calls = counted(lambda x, s: x * s)
    for _ in range(3):
        f(hax.ones(A), 2.0)
    assert len(calls) == 1
    f(hax.ones(A), 3.0)
    assert len(calls) == 2, "Python numbers are static"
    f(hax.ones(A) + 1, 2.0)
    assert len(calls) == 2
    f(hax.ones(A.resize(5)), 2.0)
    assert len(calls) == 3
    f(hax.ones(A.alias("B")), 2.0)
    assert len(calls) == 4


def test_output_structure_follows_the_arguments():
    def f(x):
        return (x, x) if x.ndim == 2 else x

    g = hax.named_jit(f)
    assert isinstance(g(jnp.ones(3)), jax.Array)
    assert isinstance(g(jnp.ones((3, 3))), tuple)
    assert isinstance(g(jnp.ones(3)), jax.Array)
    assert g(jnp.ones(3, jnp.int32)).dtype == jnp.int32


def test_results_may_be_static():
    @hax.named_jit
    def f(x, how):
        return x, how, None, {"k": len, "n": 3}

    out = f(hax.ones(A), "fast")
    assert out[1] == "fast"
    assert out[2] is None
    assert out[3] == {"k": len, "n": 3}


def test_classes_and_modules_can_be_compiled(key):
    layer = hax.named_jit(hnn.Linear.init)(A, A.alias("B"), key=key)
    assert layer.weight.names == ("B", "A")
    assert layer.In == A
    assert hax.named_jit(layer)(hax.ones(A)).names == ("B",)


def test_numpy_arrays_and_keywords():
    f = hax.named_jit(lambda x, *, y=None: x if y is None else x + y)
    assert f(np.ones(3), y=np.ones(3)).tolist() == [2.0] * 3
    assert f(hax.ones(A), y=hax.ones(A)).tolist() == [2.0] * 4


def test_unhashable_statics_are_named():
    class Bad:
        __hash__ = None

    with pytest.raises(ArrayTypeError, match="Bad"):
        hax.named_jit(lambda x, b: x)(hax.ones(A), Bad())


def test_donation_frees_the_argument():
    f = hax.named_jit(lambda x, y: x + y, donate_args=(True, False))
    x, y = hax.ones(A), hax.ones(A)
    f(x, y)
    assert x.array.is_deleted()
    assert not y.array.is_deleted()
    g = hax.named_jit(lambda x, *, y: x + y, donate_kwargs={"y": True})
    x, y = hax.ones(A), hax.ones(A)
    g(x, y=y)
    assert y.array.is_deleted()
    assert not x.array.is_deleted()


def test_lowering_and_shapes():
    f = hax.named_jit(lambda x: (x + 1).sum())
    lowered = f.lower(hax.ones(A))
    assert "stablehlo" in lowered.as_text()
    cost = lowered.compile().cost_analysis()
    assert cost is not None
    out = f.eval_shape(hax.ones(A))
    assert out.names == ()
    template = jax.eval_shape(lambda: hax.ones(A))
    assert f.lower(template) is not None


def test_decorator_forms_keep_the_name():
    @hax.named_jit(axis_resources={"A": "data"})
    def double(x):
        """Twice."""
        return x * 2

    assert double.__name__ == "double"
    assert double.__doc__ == "Twice."
    assert double.__wrapped__(hax.ones(A)).tolist() == [2.0] * 4
    assert double(hax.ones(A)).tolist() == [2.0] * 4


def test_the_mapping_in_force_is_part_of_the_cache_key():
    seen = []

    @jax.jit
    def f(x):
        seen.append(dict(hax.partitioning.current_thread_local_mapping() or {}))
        return x

    f(hax.ones(A))
    with hax.axis_mapping({"A": "data"}):
        f(hax.ones(A))
    with hax.axis_mapping({"A": "model"}):
        f(hax.ones(A))
    f(hax.ones(A))
    assert seen == [{}, {"A": "data"}, {"A": "model"}]


def test_training_step_traces_once(key):
    calls = []
    model = hnn.MLP.init(A, hax.Axis("out", 2), 8, 2, key=key)

    @hax.named_jit
    def step(model, x):
        calls.append(1)
        loss, grads = eqx.filter_value_and_grad(lambda m: hax.mean(m(x) ** 2).scalar())(model)
        return loss, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))

    losses = []
    for _ in range(4):
        loss, model = step(model, hax.ones((hax.Axis("b", 3), A)))
        losses.append(float(loss))
    assert len(calls) == 1
    assert losses == sorted(losses, reverse=True)
