"""Losses: the fused kernel equals the plain one, weights and the last position count as they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray
from levanter.data.text.examples import LmExample
from levanter.errors import ModelShapeError
from levanter.kernels.fused_cross_entropy import (
    CrossEntropySpec,
    cross_entropy_sum,
    reference_cross_entropy,
    token_losses,
)
from levanter.models.loss import next_token_loss, next_token_nll

SPECS = [
    CrossEntropySpec(chunk=4),
    CrossEntropySpec(vocab_first=True, chunk=3, logsumexp_weight=0.1),
    CrossEntropySpec(soft_cap=2.0, chunk=100),
]


def arrays(spec: CrossEntropySpec):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(10, 6)), jnp.float32)
    head = jnp.asarray(rng.normal(size=(11, 6) if spec.vocab_first else (6, 11)), jnp.float32)
    return x, head, jnp.asarray(rng.integers(0, 11, 10), jnp.int32), jnp.asarray(rng.random(10), jnp.float32)


@pytest.mark.parametrize("spec", SPECS, ids=["plain", "tied_z", "capped"])
def test_fused_equals_plain_in_value_and_gradient(spec):
    x, head, labels, weight = arrays(spec)
    fused = jax.jit(jax.value_and_grad(lambda x, w: 3.0 * cross_entropy_sum(x, w, labels, weight, spec)[0], (0, 1)))
    plain = jax.jit(jax.value_and_grad(lambda x, w: 3.0 * reference_cross_entropy(x, w, labels, weight, spec), (0, 1)))
    (value, grads), (expected, expected_grads) = fused(x, head), plain(x, head)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    for a, b in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    forward_only = jax.jit(lambda: cross_entropy_sum(x, head, labels, weight, spec)[0])()
    assert float(forward_only) * 3 == pytest.approx(float(value), rel=1e-6)
    per_row, _ = token_losses(x, head, labels, spec)
    assert float(jnp.sum(weight * per_row)) == pytest.approx(float(expected) / 3, rel=1e-5)


def test_the_program_never_holds_whole_logits():
    rows, vocab = 4096, 2048
    spec = CrossEntropySpec()
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in [((rows, 8), "float32"), ((8, vocab), "float32")]]
    labels, weight = jax.ShapeDtypeStruct((rows,), "int32"), jax.ShapeDtypeStruct((rows,), "float32")
    grad = jax.grad(lambda x, w, y, m: cross_entropy_sum(x, w, y, m, spec)[0], (0, 1))
    compiled = jax.jit(grad).lower(*shapes, labels, weight).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < rows * vocab * 4 / 2


def example(batch: NamedArray, weight=None) -> LmExample:
    ones = NamedArray(jnp.ones(batch.array.shape, jnp.float32), batch.axes)
    return LmExample(batch, ones if weight is None else NamedArray(weight, batch.axes))


def test_loss_is_the_weighted_mean_of_the_log_probabilities(tiny_model, token_batch):
    weight = jnp.asarray(np.random.default_rng(0).random((3, 16)), jnp.float32)
    loss, _ = jax.jit(next_token_loss)(tiny_model, example(token_batch, weight))
    logp = jax.nn.log_softmax(tiny_model(token_batch).array)
    nll = -np.take_along_axis(np.asarray(logp[:, :-1]), np.asarray(token_batch.array)[:, 1:, None], -1)[..., 0]
    used = np.asarray(weight)[:, :-1]
    assert float(loss.result()) == pytest.approx(float((nll * used).sum() / used.sum()), rel=1e-5)
    per_token = next_token_nll(tiny_model, example(token_batch)).array
    np.testing.assert_allclose(per_token[:, :-1], nll, atol=1e-5)
    assert np.all(np.asarray(per_token[:, -1]) == 0)


def test_z_loss_is_added_and_reported_apart(tiny_model, token_batch):
    plain, _ = jax.jit(next_token_loss)(tiny_model, example(token_batch))
    with_z, metrics = next_token_loss(tiny_model, example(token_batch), logsumexp_weight=0.1)
    assert float(metrics["cross_entropy_loss"].result()) == pytest.approx(float(plain.result()), rel=1e-5)
    assert float(with_z.result()) > float(plain.result())


def test_weights_of_another_shape_are_refused(tiny_model, token_batch):
    bad = LmExample(token_batch, NamedArray(jnp.ones((3,)), token_batch.axes[:1]))
    with pytest.raises(ModelShapeError):
        next_token_loss(tiny_model, bad)
