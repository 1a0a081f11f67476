"""Memory, predicted and asked for: the formula against XLA's buffer assignment, and the command that prints both."""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import pytest
from haliax import Axis
from levanter.checkpoint import CheckpointerConfig
from levanter.data.text.config import LmDataConfig
from levanter.data.text.examples import LmExample
from levanter.main.plan import plan, render
from levanter.main.train_lm import TrainLmConfig
from levanter.memory_estimate import compiled_memory, estimate_memory
from levanter.models.llama import LlamaConfig
from levanter.models.loss import next_token_loss
from levanter.optim.config import AdamConfig
from levanter.precision import Policy
from levanter.step import StepSpec, build_train_step
from levanter.trainer_config import TrainerConfig
from levanter.trainer_state import TrainerState

SHAPES = [
    pytest.param(4, 256, 256, 16, 2000, "p=f32,c=bfloat16", id="bfloat16, activations dominate"),
]


def step_memory(config, vocab, batch, length, mp):
    optimizer = AdamConfig(warmup=0).build(10)
    key = jax.random.PRNGKey(0)

    def fresh():
        model = config.build(Axis("vocab", vocab), key=key)
        return TrainerState.init(optimizer, model, key=key, mp=Policy.parse(mp))

    def example():
        axes = (Axis("batch", batch), Axis("position", length))
        return LmExample.causal(hax.named(jnp.zeros((batch, length), jnp.int32), axes))

    step = build_train_step(StepSpec(lambda model, batch, key=None: next_token_loss(model, batch)))
    return compiled_memory(step, eqx.filter_eval_shape(fresh), eqx.filter_eval_shape(example))


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "embed", "length", "batch", "vocab", "mp"), SHAPES)
def test_the_formula_is_within_a_fifth_of_what_xla_assigns(layers, embed, length, batch, vocab, mp):
    config = LlamaConfig(
        max_seq_len=length, hidden_dim=embed, intermediate_dim=embed * 11 // 4, num_layers=layers, num_heads=4,
        num_kv_heads=4,
    )  # fmt: skip
    estimate = estimate_memory(config, vocab_size=vocab, batch_size=batch, seq_len=length, mp=Policy.parse(mp))
    found = step_memory(config, vocab, batch, length, mp)
    assert 0.8 < estimate.total / found.total < 1.2
    assert found.state == pytest.approx(estimate.parameters + estimate.optimizer, rel=0.02)


def test_parameters_and_moments_are_counted_exactly(tiny_config):
    estimate = estimate_memory(tiny_config, vocab_size=50, batch_size=8, seq_len=128)
    assert estimate.parameters == 4 * tiny_config.total_trainable_params(50)
    assert estimate.optimizer == 2 * estimate.parameters


@pytest.mark.slow
def test_the_plan_of_a_run_needs_no_data_and_allocates_nothing(tmp_path, tiny_config):
    config = TrainLmConfig(
        data=LmDataConfig(tokenizer="passthrough", vocab_size=50, cache_dir=str(tmp_path / "none")),
        model=tiny_config,
        trainer=TrainerConfig(
            train_batch_size=8, num_train_steps=10, checkpointer=CheckpointerConfig(base_path=str(tmp_path / "c"))
        ),
    )
    report = plan(config)
    assert report["parameters"] == tiny_config.total_trainable_params(50)
    assert report["tokens_in_all"] == 8 * 10 * 128
    assert report["compiled_total_bytes"] == report["compiled_state_bytes"] + report["compiled_temporary_bytes"]
    assert "compiled_total_bytes" in render(report) and not list(tmp_path.iterdir())
