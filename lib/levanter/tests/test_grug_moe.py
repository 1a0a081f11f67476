"""``model.type: grug_moe``: the template's numbers, training from files, resuming, folders, FLOPs, optimizer groups."""

import dataclasses
import importlib.util
import json
import pathlib
import re
import shutil

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis
from levanter.compat.hf_checkpoints import HFCheckpointConverter, load_hf_checkpoint, save_hf_checkpoint
from levanter.config import load_config
from levanter.data.text.examples import LmExample
from levanter.errors import ConfigError, EvaluationError, HfCheckpointError
from levanter.grug import model as grug
from levanter.grug.flops import flops_per_token
from levanter.inference.generate import generate
from levanter.layers.attention_mask import AttentionMask
from levanter.main.train_lm import TrainLmConfig, train
from levanter.models.grug_moe import GrugMoeLmConfig
from levanter.models.loss import next_token_loss
from levanter.optim.config import OptimizerConfig, hyperparams_of
from levanter.optim.grug_moe_adamh import Group, GrugMoeAdamHConfig, parameter_groups
from levanter.precision import Policy
from levanter.step import StepSpec, build_train_step
from levanter.trainable import BUFFER_PREFIX, partition_trainable, with_buffers
from levanter.trainer_state import TrainerState, trainable
from levanter.tree_paths import named_leaves, raw_array, tree_digest

_spec = importlib.util.spec_from_file_location("optim_oracles", pathlib.Path(__file__).with_name("optim_oracles.py"))
assert _spec is not None and _spec.loader is not None
oracles = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracles)

VOCAB = 40
CONFIG = GrugMoeLmConfig(
    max_seq_len=8,
    hidden_dim=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    intermediate_dim=12,
    shared_expert_intermediate_dim=20,
    gated_norm_rank=4,
    sliding_window=3,
    moe_implementation="ragged",
    gradient_checkpointing=False,
)
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, VOCAB, (4, 8)).astype(np.int32)
TOKENS = hax.named(IDS, (Axis("batch", 4), Axis("position", 8)))
SEGMENTS = np.where(np.arange(8) < 6, 0, -1) * np.ones((4, 1), np.int32)


@pytest.fixture(scope="module")
def model():
    """Every array random, biases and zero-initialised gates too."""
    fresh = jax.jit(lambda key: CONFIG.build(Axis("vocab", VOCAB), key=key))(jax.random.PRNGKey(0))
    leaves, tree = jax.tree.flatten(fresh)
    return jax.tree.unflatten(
        tree, [leaf + 0.2 * jnp.asarray(RNG.normal(size=leaf.shape), jnp.float32) for leaf in leaves]
    )


def test_the_modules_compute_what_the_template_does(model):
    """Scanned modules against the written-out loop: the same arrays, the same numbers, padding left out of both."""
    mask = AttentionMask.causal().with_segment_ids(hax.NamedArray(jnp.asarray(SEGMENTS), TOKENS.axes))
    params, bias = model.raw()
    segments = AttentionMask().with_segment_ids(hax.NamedArray(jnp.asarray(SEGMENTS), TOKENS.axes))

    @jax.jit
    def both(model):
        ours = model.activations_with_aux(TOKENS, mask)
        valid = jnp.asarray(SEGMENTS) >= 0
        return ours, grug.hidden_states(
            CONFIG.template(VOCAB), *model.raw(), jnp.asarray(IDS), valid_BP=valid, segments=segments
        )

    (hidden, aux), (expected, expected_aux) = both(model)
    assert bias.shape == (2, 4) and len(params.layers) == 2
    np.testing.assert_allclose(hidden.array, expected, rtol=1e-5, atol=1e-5)
    assert aux.keys() == expected_aux.keys()
    for name in aux:
        np.testing.assert_allclose(aux[name], expected_aux[name], rtol=1e-5, atol=1e-5)
    assert aux["valid_tokens"].tolist() == [24.0] * 2 and aux["padding_tokens"].tolist() == [8.0] * 2
    assert CONFIG.total_trainable_params(VOCAB) == sum(x.size for x in jax.tree.leaves(trainable(model)))


@pytest.mark.slow
def test_a_step_sets_the_router_biases_and_nothing_else_touches_them(model):
    """Two micro-batches are two router shards; bfloat16 leaves the biases float32; evaluation sets nothing."""
    params, rest = partition_trainable(model)
    assert params.router_bias.value.array is None and rest.router_bias.value.array is not None
    low = Policy.parse("p=f32,c=bfloat16").cast_to_compute(model)
    assert low.router_bias.value.array.dtype == jnp.float32 and low.lm_head.weight.array.dtype == jnp.bfloat16
    batch = LmExample.causal(TOKENS)

    def loss(model, batch, *, key=None):
        return next_token_loss(model, batch, with_router_losses=key is not None)

    def after(model, micro):
        state = TrainerState.init(optax.sgd(0.1), model, key=jax.random.PRNGKey(0))
        state, outputs = build_train_step(StepSpec(loss, micro_size=micro))(jax.tree.map(jnp.copy, state), batch)
        assert not any(name.startswith(BUFFER_PREFIX) for name in outputs)
        return state.model, outputs

    halves, seen = after(model, 2)
    sharded = dataclasses.replace(model, spec=dataclasses.replace(model.spec, router_shards=2))
    whole, also = after(sharded, None)
    for left, right in zip(jax.tree.leaves(halves), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(halves.router_bias.value.array - model.router_bias.value.array)).max() > 1e-3
    assert float(seen["moe/valid_assignments"]) == float(also["moe/valid_assignments"]) == 2 * 2 * 32
    _, measured = jax.eval_shape(lambda m: loss(m, batch), model)
    assert measured and not any(name.startswith((BUFFER_PREFIX, "train/")) for name in measured)
    with pytest.raises(KeyError, match="router_biases"):
        with_buffers(model, {"router_biases": jnp.zeros((2, 4))})


ROUTER_METRICS = [
    "train/cross_entropy_loss",
    "train/router/routing_entropy_mean",
    "train/router/load_balancing_loss",
    "train/router/router_z_loss",
    "train/router/routing_counts_per_layer",
    "train/router/capacity_overflow_rate_mean",
    "train/router/layer_1/routing_entropy",
    "train/router/layer_0/load_balancing_loss",
    "moe/layer1/expert3_load",
    *(f"moe/{kind}_assignments" for kind in ("dropped", "sender_dropped", "receiver_dropped", "skipped_padding")),
    "moe/valid_assignments",
]


@pytest.mark.slow
def test_train_lm_learns_logs_resumes_bit_for_bit_and_leaves_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": "1 2 3 4 5 6 7 " * 20}) + "\n" for _ in range(20)))
    fields = {f.name: getattr(CONFIG, f.name) for f in dataclasses.fields(CONFIG) if f.name != "initializer_range"}
    source = {"train_urls": ["text.jsonl"]}
    (tmp_path / "c.yaml").write_text(
        json.dumps(
            {
                "data": {"tokenizer": "passthrough", "vocab_size": 30, "cache_dir": "cache",
                         "components": {"text": {"source": source}}},
                "model": {"type": "grug_moe", **fields},
                "optimizer": {"type": "grug_moe_adamh_v2", "learning_rate": 0.02, "adam_lr": 0.02, "expert_lr": 0.01},
                "trainer": {"train_batch_size": 4, "num_train_steps": 6, "mp": "p=f32,c=bfloat16", "log_dir": "logs",
                            "watch": {"interval": 0},
                            "checkpointer": {"base_path": "checkpoints", "keep": [{"every": 3}]}},
                "hf_save_path": "export",
            }
        )
    )  # fmt: skip
    first = train(load_config(TrainLmConfig, ["c.yaml"]), progress=False)
    rows = [json.loads(line) for line in (tmp_path / "logs/run/metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses[-1] < losses[0]
    missing = [name for name in ROUTER_METRICS if not any(name in row for row in rows)]
    assert not missing

    converter = HFCheckpointConverter.from_hf("export/step-6")
    exported = converter.load_pretrained()
    assert tree_digest(exported) == first.parameter_digest
    bias = exported.router_bias.value.array
    assert bias.dtype == jnp.float32 and np.abs(np.asarray(bias)).max() > 0

    shutil.rmtree(tmp_path / "checkpoints/run/step-6")
    before = (tmp_path / "logs/run/metrics.jsonl").read_bytes()
    again = train(load_config(TrainLmConfig, ["c.yaml"]), progress=False)
    assert again.parameter_digest == first.parameter_digest
    assert (tmp_path / "logs/run/metrics.jsonl").read_bytes() == before


def test_a_folder_round_trip_changes_no_bit_and_keeps_the_bias_exact(model, tmp_path):
    save_hf_checkpoint(model, CONFIG, str(tmp_path / "a"))
    config, loaded = load_hf_checkpoint(str(tmp_path / "a"))
    assert tree_digest(loaded) == tree_digest(model)
    ours = {"initializer_range": None, "moe_implementation": "ragged", "gradient_checkpointing": False}
    assert dataclasses.replace(config, **ours) == CONFIG
    assert config.initializer_range == 0.5 / 16**0.5
    save_hf_checkpoint(loaded, config, str(tmp_path / "b"))
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert (tmp_path / "a/config.json").read_bytes() == (tmp_path / "b/config.json").read_bytes()
    save_hf_checkpoint(model, CONFIG, str(tmp_path / "low"), dtype="bfloat16")
    _, low = load_hf_checkpoint(str(tmp_path / "low"))
    np.testing.assert_array_equal(low.router_bias.value.array, model.router_bias.value.array)
    assert low.transformer.layers.stacked.mlp.router.weight.array.dtype == jnp.bfloat16
    grown = model.resize_vocab(VOCAB + 3, key=jax.random.PRNGKey(1))
    np.testing.assert_array_equal(grown.lm_head.weight.array[:, :VOCAB], model.lm_head.weight.array)
    assert grown.Vocab.size == VOCAB + 3


def test_the_state_dict_has_the_published_names():
    shape = jax.eval_shape(lambda: CONFIG.build(Axis("vocab", VOCAB), key=jax.random.PRNGKey(0)))
    slots = {slot.name: slot.shape(shape) for slot in CONFIG.state_dict_map()}
    layer = {name.removeprefix("model.layers.1."): shape for name, shape in slots.items() if ".layers.1." in name}
    assert layer == {
        "input_layernorm.weight": (16,),
        "attn_gated_norm.down_proj.weight": (4, 16),
        "attn_gated_norm.up_proj.weight": (16, 4),
        "self_attn.q_proj.weight": (32, 16),
        "self_attn.k_proj.weight": (16, 16),
        "self_attn.v_proj.weight": (16, 16),
        "self_attn.o_proj.weight": (16, 32),
        "self_attn.attn_gate.weight": (4, 16),
        "post_attention_layernorm.weight": (16,),
        "mlp_gated_norm.down_proj.weight": (4, 16),
        "mlp_gated_norm.up_proj.weight": (16, 4),
        "mlp.router.weight": (4, 16),
        "mlp.router.bias": (4,),
        "mlp.experts.gate_proj": (4, 12, 16),
        "mlp.experts.up_proj": (4, 12, 16),
        "mlp.experts.down_proj": (4, 16, 12),
        "shared_expert.gate_proj.weight": (20, 16),
        "shared_expert.up_proj.weight": (20, 16),
        "shared_expert.down_proj.weight": (16, 20),
    }
    outer = {"model.embed_tokens.weight", "model.embed_norm.weight", "model.embed_gated_norm.down_proj.weight",
             "model.embed_gated_norm.up_proj.weight", "model.norm.weight", "model.final_gated_norm.down_proj.weight",
             "model.final_gated_norm.up_proj.weight", "lm_head.weight"}  # fmt: skip
    assert outer == {name for name in slots if ".layers." not in name}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"num_local_experts": 4}, "num_local_experts=4; expected that value under num_experts"),
        ({"intermediate_size": 12}, "intermediate_size=12; expected that value under moe_intermediate_size"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True; expected False"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'; expected 'silu'"),
        ({"full_attention_interval": 6}, "full_attention_interval=6; expected 4"),
        ({"routed_scaling_factor": 1.0}, "routed_scaling_factor=1.0; expected 2.5"),
        ({"num_experts": None}, "num_experts is missing"),
    ],
)
def test_configs_off_the_recipe_or_spelt_otherwise_are_refused(changes, shown):
    raw = {key: value for key, value in {**CONFIG.to_hf_config(VOCAB), **changes}.items() if value is not None}
    with pytest.raises(HfCheckpointError, match=shown):
        GrugMoeLmConfig.from_hf_config(raw)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"num_experts_per_tok": 4}, "num_experts_per_tok=4, num_experts=4"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"num_heads": 3}, "num_heads=3, num_kv_heads=2"),
        ({"router_shards": 0}, "router_shards=0"),
        ({"capacity_factor": 0.0}, r"capacity_factor`: 0\.0"),
        ({"intermediate_dim": 0}, "intermediate_dim`: 0"),
        ({"moe_implementation": "magic"}, "implementation='magic'"),
    ],
)
def test_shapes_that_cannot_work_are_refused_by_name(changes, shown):
    with pytest.raises(ConfigError, match=shown):
        dataclasses.replace(CONFIG, **changes)


def test_what_the_family_has_not_is_said(model):
    with pytest.raises(EvaluationError, match="GrugMoeLMHeadModel"):
        generate(model, [1, 2], max_new_tokens=2, temperature=0)


def test_flops_are_those_that_xla_counts():
    """Within 4 %, and each term by itself: norms, softmax, activations and masks are what the formula leaves out.

    On CPU ``ragged`` is one masked product an expert, so XLA counts the experts' part E times, and a window hides
    scores from the result but not from the product.
    """
    base = dataclasses.replace(
        CONFIG, hidden_dim=128, head_dim=32, intermediate_dim=64, shared_expert_intermediate_dim=128, max_seq_len=64,
        gated_norm_rank=32, sliding_window=64, scan_layers=False,
    )  # fmt: skip

    def counted(c, vocab=256, batch=2, length=64):
        shape = jax.eval_shape(lambda: c.build(Axis("vocab", vocab), key=jax.random.PRNGKey(0)))
        ids = hax.named(jnp.zeros((batch, length), jnp.int32), (Axis("batch", batch), Axis("position", length)))
        found = jax.jit(lambda model: model(ids)).lower(shape).cost_analysis()["flops"] / (batch * length)
        routed = 6 * c.hidden_dim * c.intermediate_dim * c.num_experts_per_tok * c.num_layers
        return found - (c.num_experts - 1) * routed, c.flops_per_token(vocab, length)

    found, formula = counted(base)
    assert formula < found < 1.05 * formula, (found, formula)
    changes = [{"intermediate_dim": 128}, {"num_experts_per_tok": 3}, {"shared_expert_intermediate_dim": 256},
               {"gated_norm_rank": 64}, {"head_dim": 64}, {"num_heads": 8}]  # fmt: skip
    for change in changes:
        more, more_formula = counted(dataclasses.replace(base, **change))
        assert 1 <= (more - found) / (more_formula - formula) < 1.13, change
    assert counted(base, vocab=512)[0] - found == pytest.approx(2 * 128 * 256, rel=1e-6)
    template = base.template(256)
    narrow = flops_per_token(dataclasses.replace(template, sliding_window=4), 64)
    scores = 4 * 4 * 32 + 3 * 4
    assert flops_per_token(template, 64) - narrow == scores * 60
    assert flops_per_token(template, 64) - flops_per_token(template, 64, convention="causal") == scores * 64


def test_every_parameter_is_in_its_group(model):
    expected = {
        Group.ADAMH: {"q_proj", "k_proj", "v_proj", "o_proj", "lm_head", "shared_expert"},
        Group.EXPERT: {"stacked.mlp.gate_proj", "stacked.mlp.up_proj", "stacked.mlp.down_proj"},
        Group.ROUTER: {"mlp.router"},
        Group.ADAM: {"token_embeddings", "norm.", "attn_gate"},
    }
    groups = parameter_groups(trainable(model))
    assert len(groups) == len(named_leaves(trainable(model))) == 26
    for name, group in groups.items():
        assert [g for g, parts in expected.items() if any(part in name for part in parts)] == [group], name
    raw = parameter_groups(model.raw()[0])
    kinds = {name.rsplit(".", 1)[-1]: group for name, group in raw.items()}
    assert kinds == {
        "embed": Group.ADAM, "norm": Group.ADAM, "gate_down": Group.ADAM, "gate_up": Group.ADAM,
        "wq": Group.ADAMH, "wk": Group.ADAMH, "wv": Group.ADAMH, "wo": Group.ADAMH, "attn_gate": Group.ADAM,
        "router": Group.ROUTER, "w_gate": Group.EXPERT, "w_up": Group.EXPERT, "w_down": Group.EXPERT,
        "shared_gate": Group.ADAMH, "shared_up": Group.ADAMH, "shared_down": Group.ADAMH, "output_proj": Group.ADAMH,
    }  # fmt: skip


def test_each_group_takes_its_own_step_at_its_own_rate():
    """Four steps against float64 NumPy: Adam's direction, rotated at fixed norm or subtracted, one clip before all."""
    peaks = {Group.ADAMH: 0.02, Group.EXPERT: 0.005, Group.ROUTER: 0.03, Group.ADAM: 0.01}
    config = GrugMoeAdamHConfig(
        learning_rate=0.02, expert_lr=0.005, router_lr=0.03, adam_lr=0.01, warmup=0, lr_schedule="linear",
        min_lr_ratio=0.0, epsilon=1e-8,
    )  # fmt: skip
    shapes = {"wq": (4, 6), "w_up": (3, 4, 5), "router": (4, 3), "embed": (7, 4), "gain": (4,)}
    groups = dict(zip(shapes, [Group.ADAMH, Group.EXPERT, Group.ROUTER, Group.ADAM, Group.ADAM], strict=True))
    rng = np.random.default_rng(5)
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    grads = [{name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(4)]
    optimizer = config.build(4)
    ours = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    state = optimizer.init(ours)
    assert hyperparams_of(state).keys() == {"learning_rate", "expert_lr", "router_lr", "adam_lr"}
    update = jax.jit(optimizer.update)
    adam = oracles.Adam(0.9062, 0.999)
    for index, grad in enumerate(grads):
        updates, state = update({n: jnp.asarray(g, jnp.float32) for n, g in grad.items()}, state, ours)
        ours = optax.apply_updates(ours, updates)
        clipped = oracles.clip(grad)
        for name, group in groups.items():
            rate, d = peaks[group] * (1 - index / 4), adam(name, clipped[name])
            if group in (Group.ADAMH, Group.EXPERT):
                stack = zip(
                    params[name].reshape(-1, *shapes[name][-2:]), d.reshape(-1, *shapes[name][-2:]), strict=True
                )
                turned = np.stack([oracles.hyperball(p, u, rate) for p, u in stack])
                params[name] = turned.reshape(shapes[name])
            else:
                params[name] = params[name] - rate * d
    for name, value in params.items():
        np.testing.assert_allclose(raw_array(ours[name]), value, rtol=2e-6, atol=2e-6)
    assert isinstance(OptimizerConfig.get_choice_class("grug_moe_adamh_v2")(), GrugMoeAdamHConfig)
    with pytest.raises(ConfigError, match=r"expert_lr=0\.0"):
        GrugMoeAdamHConfig(expert_lr=0.0)


PAGE = pathlib.Path(__file__).parents[3] / "docs/levanter/models/grug_moe.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are part of the repository, not of the package")
def test_the_page_of_the_family_has_its_state_dict():
    rows = PAGE.read_text().splitlines()
    for slot in CONFIG.state_dict_map():
        name = re.sub(r"\.layers\.\d+\.", ".layers.{i}.", slot.name)
        ours = slot.leaves[0].path.replace("transformer.layers.stacked.", "stacked.")
        assert any(row.startswith(f"| `{name}` | `{ours}` |") for row in rows), name
