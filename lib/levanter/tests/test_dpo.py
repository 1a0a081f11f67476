"""Preference optimisation: the loss against NumPy, the data rules, and a run whose margin grows."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis
from hypothesis import given, settings
from hypothesis import strategies as st
from levanter.config import decode, load_config
from levanter.data.errors import BadRecordError, DataConfigError
from levanter.dpo import (
    DpoExample,
    attach_reference,
    dpo_loss,
    dpo_terms,
    sequence_log_probs,
    simpo_loss,
    stack_pairs,
)
from levanter.errors import ConfigError
from levanter.main.train_dpo import TrainDpoConfig, train
from levanter.preference import PreferenceChatLmDatasetFormat, PreferenceLmDataConfig, make_example, read_pairs
from levanter.tokenizers import load_tokenizer
from levanter.tokenizers.hf import HfTokenizer
from levanter.tokenizers.passthrough import PassthroughTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Pos = Axis("position", 16)


def pair(seed: int) -> DpoExample:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 50, 3).tolist()
    return DpoExample(
        make_example([*prompt, *rng.integers(0, 50, 4)], 3, Pos),
        make_example([*prompt, *rng.integers(0, 50, 6)], 3, Pos),
    )


def log_prob_oracle(model, example) -> float:
    """Sum of the log-softmax entries of the answer's tokens, in float64."""
    logits = np.asarray(model(example.tokens).array, np.float64)
    logs = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    tokens, weight = np.asarray(example.tokens.array), np.asarray(example.loss_weight.array)
    return sum(weight[i] * logs[i, tokens[i + 1]] for i in range(len(tokens) - 1))


@pytest.fixture(scope="module")
def batch(tiny_model):
    pairs = attach_reference([pair(s) for s in range(3)], tiny_model, batch_size=2)
    return pairs


def test_log_probabilities_are_those_of_the_answer_alone(tiny_model, batch):
    for example in batch:
        assert float(example.reference_chosen.array) == pytest.approx(
            log_prob_oracle(tiny_model, example.chosen), rel=1e-5
        )
        expected = log_prob_oracle(tiny_model, example.rejected)
        assert float(example.reference_rejected.array) == pytest.approx(expected, rel=1e-5)
        assert float(sequence_log_probs(tiny_model, example.rejected)) == pytest.approx(expected, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-40, 0), min_size=4, max_size=4), st.floats(0.01, 2))
def test_the_loss_is_the_published_formula(values, beta):
    pc, pr, rc, rr = (np.float32(v) for v in values)
    terms = dpo_terms((jnp.float32(pc), jnp.float32(pr)), (jnp.float32(rc), jnp.float32(rr)), beta)
    x = beta * ((float(pc) - float(pr)) - (float(rc) - float(rr)))
    assert float(terms["dpo_loss"]) == pytest.approx(np.log1p(np.exp(-x)), rel=1e-4, abs=1e-5)
    assert float(terms["dpo_chosen_reward"]) == pytest.approx(beta * (float(pc) - float(rc)), rel=1e-4, abs=1e-5)
    assert float(terms["dpo_accuracy"]) == float(terms["dpo_chosen_reward"] > terms["dpo_rejected_reward"])


def test_equal_policy_and_reference_start_at_ln_two(tiny_model, batch):
    loss, metrics = jax.jit(dpo_loss)(tiny_model, stack_pairs(batch))
    assert float(loss.result()) == pytest.approx(np.log(2), abs=1e-5)
    assert set(metrics) == {
        "dpo_loss",
        "dpo_margin_policy",
        "dpo_margin_ref",
        "dpo_accuracy",
        "dpo_chosen_reward",
        "dpo_rejected_reward",
    }
    assert float(metrics["dpo_margin_policy"].result()) == pytest.approx(
        float(metrics["dpo_margin_ref"].result()), rel=1e-4
    )
    grads = jax.grad(lambda m: dpo_loss(m, stack_pairs(batch))[0].result())(tiny_model)
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads)) > 1e-4
    simpo, terms = simpo_loss(tiny_model, stack_pairs(batch))
    lengths = [(float(e.chosen.loss_weight.array.sum()), float(e.rejected.loss_weight.array.sum())) for e in batch]
    assert lengths == [(4, 6)] * 3
    margins = [float(e.reference_chosen.array) / 4 - float(e.reference_rejected.array) / 6 for e in batch]
    assert float(terms["simpo_margin"].result()) == pytest.approx(np.mean(margins), rel=1e-4)
    assert float(simpo.result()) == pytest.approx(np.mean(np.log1p(np.exp(-2 * (np.array(margins) - 0.5)))), rel=1e-4)


def test_what_cannot_be_compared_is_refused(tiny_model):
    with pytest.raises(ConfigError, match="attach_reference"):
        dpo_loss(tiny_model, stack_pairs([pair(0)]))
    with pytest.raises(ConfigError, match="beta=0"):
        TrainDpoConfig(beta=0.0)
    with pytest.raises(ConfigError, match="expected the folder of the reference"):
        decode(TrainDpoConfig, {"reference": {"type": "separate"}})
    with pytest.raises(ConfigError, match="adapter is not set"):
        TrainDpoConfig(peft_save_path="x")


def test_reference_numbers_are_kept_and_found_again(tiny_model, tmp_path):
    examples = [pair(s) for s in range(2)]
    first = attach_reference(examples, tiny_model, cache_dir=str(tmp_path))
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    again = attach_reference(examples, tiny_model, cache_dir=str(tmp_path))
    assert file.stat().st_mtime_ns == stamp
    assert [float(e.reference_chosen.array) for e in again] == [float(e.reference_chosen.array) for e in first]
    attach_reference(examples[:1], tiny_model, cache_dir=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def write_rows(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_both_forms_become_pairs(tmp_path, caplog):
    user, yes, no = ({"role": "0", "content": c} for c in ("1 2", "3 4", "5"))
    rows = [
        {"prompt": "1 2 3", "chosen": " 4 5", "rejected": " 6"},
        {"chosen": [user, yes], "rejected": [user, no]},
        {"prompt": "1", "chosen": " ", "rejected": " 2"},
    ]
    form = PreferenceChatLmDatasetFormat(message_format="{role} {content} ")
    found = read_pairs([write_rows(tmp_path / "a.jsonl", rows)], form, PassthroughTokenizer(10), Pos)
    assert len(found) == 2 and "1 pairs with an empty answer" in caplog.text
    assert found[0].chosen.tokens.array[:6].tolist() == [1, 2, 3, 4, 5, 0]
    assert found[0].chosen.loss_weight.array[:6].tolist() == [0, 0, 1, 1, 0, 0]
    assert found[1].rejected.tokens.array[:5].tolist() == [0, 1, 2, 0, 5]
    assert found[1].rejected.loss_weight.array[:6].tolist() == [0, 0, 1, 1, 0, 0]


# ChatML, which opens the assistant's turn when asked, refuses other roles, and marks the assistant's words.
CHATML = """{%- for m in messages %}
{%- if m.role not in ("system", "user", "assistant") %}{{ raise_exception("no role " ~ m.role) }}{% endif %}
{{- "<|im_start|>" + m.role + "\\n" }}
{%- if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""


def chat_tokenizer(template: str | None) -> HfTokenizer:
    """Bytes, and three control tokens."""
    model = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<|im_start|>", "<|im_end|>", "<eos>"])
    return HfTokenizer(model, {"eos_token": "<eos>"}, chat_template=template)


USER, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Yes"), ("assistant", "No"))
)


def test_messages_are_written_by_the_tokenizers_template(tmp_path):
    tokenizer, Long = chat_tokenizer(CHATML), Axis("position", 64)
    file = write_rows(tmp_path / "a.jsonl", [{"chosen": [USER, GOOD], "rejected": [USER, BAD]}])
    (found,) = read_pairs([file], PreferenceChatLmDatasetFormat(), tokenizer, Long)
    prompt, answer = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Yes<|im_end|>\n"
    ids = tokenizer.encode(prompt + answer, parse_special=True)
    tokens, weight = found.chosen.tokens.array, found.chosen.loss_weight.array
    assert tokens[: len(ids)].tolist() == ids and not tokens[len(ids) :].any()  # the template ends the turn, no <eos>
    assert tokenizer.decode([t for t, w in zip(tokens[1:], weight, strict=False) if w]) == answer
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>"])[0] in ids

    form = PreferenceChatLmDatasetFormat(message_format="{role}: {content};")
    (plain,) = read_pairs([file], form, tokenizer, Long)
    text = [int(t) for t in plain.rejected.tokens.array if t]
    assert tokenizer.decode(text) == "user: Hi;assistant: No;<eos>"
    (other,) = read_pairs(
        [file], PreferenceChatLmDatasetFormat(chat_template="{{ messages[-1].content }}"), tokenizer, Long
    )
    assert tokenizer.decode([int(t) for t in other.chosen.tokens.array if t]) == "Yes"


def test_no_way_to_write_messages_is_an_error_that_names_both(tmp_path):
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"chosen": [USER, GOOD], "rejected": [USER, BAD]}]
    file = write_rows(tmp_path / "a.jsonl", rows)
    form = PreferenceChatLmDatasetFormat()
    assert len(read_pairs([write_rows(tmp_path / "b.jsonl", rows[:1])], form, chat_tokenizer(None), Pos)) == 1
    with pytest.raises(DataConfigError, match=r"chat_template.*message_format.*line 2 of .*a\.jsonl"):
        read_pairs([file], form, chat_tokenizer(None), Pos)
    with pytest.raises(DataConfigError, match="message_format is set too"):
        PreferenceChatLmDatasetFormat(chat_template="x", message_format="y")
    with pytest.raises(DataConfigError, match="cannot be parsed"):
        read_pairs([file], PreferenceChatLmDatasetFormat(chat_template="{% for %}"), chat_tokenizer(None), Pos)
    file = write_rows(tmp_path / "c.jsonl", [{"chosen": [{"role": "bot", "content": "x"}, GOOD], "rejected": [BAD]}])
    with pytest.raises(BadRecordError, match="the chat template refuses it: no role bot"):
        read_pairs([file], form, chat_tokenizer(CHATML), Pos)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "1"}, "rejected is NoneType"),
        ({"chosen": "1", "rejected": [{"role": "0", "content": "2"}]}, "one answer is a string"),
        ({"chosen": [{"role": "0"}], "rejected": [{"role": "0", "content": "2"}]}, "without role and content"),
        ({"prompt": "1", "chosen": " 2" * 40, "rejected": " 3"}, "41 tokens do not fit 16"),
        ([1], "a list, not a JSON object"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path, row, message):
    path = write_rows(tmp_path / "a.jsonl", [{"chosen": "1", "rejected": "2"}, row])
    with pytest.raises(BadRecordError, match=message) as caught:
        form = PreferenceChatLmDatasetFormat(message_format="{role} {content} ")
        read_pairs([path], form, PassthroughTokenizer(10), Pos)
    assert caught.value.path == path and caught.value.line_number == 2


def test_only_one_unpacked_preference_component_is_taken():
    source = {"type": "url", "train_urls": ["a.jsonl"]}
    good = {"source": source, "format": {"type": "preference_chat"}}
    assert decode(PreferenceLmDataConfig, {"components": {"a": good}}).component.format.prompt_field == "prompt"
    for components in ({"a": good, "b": good}, {"a": {"source": source}}, {"a": {**good, "pack": True}}):
        with pytest.raises((DataConfigError, ConfigError)):
            decode(PreferenceLmDataConfig, {"components": components})


@pytest.mark.slow
def test_a_run_widens_the_margin(tmp_path):
    """Prefer ascending answers: the margin grows and the loss leaves ln 2; adapter and merged model are exported, the
    model with its tokenizer."""
    numbers = Tokenizer(models.WordLevel({str(i): i for i in range(50)}, unk_token="0"))
    numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "numbers").mkdir()
    numbers.save(str(tmp_path / "numbers/tokenizer.json"))
    rng = np.random.default_rng(0)
    rows = []
    for start in rng.integers(5, 20, 64):
        up, down = (" ".join(str(start + s * i) for i in range(1, 5)) for s in (1, -1))
        rows.append({"prompt": f"{start} ", "chosen": up, "rejected": down})
    fields = {
        "data": {
            "tokenizer": str(tmp_path / "numbers"),
            "components": {
                "p": {
                    "source": {"type": "url", "train_urls": [write_rows(tmp_path / "p.jsonl", rows)]},
                    "format": {"type": "preference_chat"},
                }
            },
        },
        "model": {
            "type": "llama",
            "max_seq_len": 8,
            "hidden_dim": 32,
            "intermediate_dim": 64,
            "num_layers": 1,
            "num_heads": 2,
            "num_kv_heads": 2,
        },
        "optimizer": {"learning_rate": 1e-2, "warmup": 0, "weight_decay": 0.0},
        "trainer": {
            "train_batch_size": 16,
            "num_train_steps": 16,
            "steps_per_eval": 16,
            "log_dir": str(tmp_path / "logs"),
            "watch": {"interval": 0},
            "checkpointer": {"base_path": str(tmp_path / "checkpoints"), "save_interval": None},
        },
        "adapter": {"r": 4, "alpha": 8},
        "peft_save_path": str(tmp_path / "peft"),
        "hf_save_path": str(tmp_path / "hf"),
    }
    result = train(decode(TrainDpoConfig, fields), progress=False)
    assert result.step == 16 and result.num_pairs == 58
    assert result.final_loss < 0.5 < np.log(2)
    lines = [json.loads(x) for f in tmp_path.rglob("metrics.jsonl") for x in f.read_text().splitlines()]
    values = {key: line[key] for line in lines for key in line}
    assert values["train/dpo_accuracy"] > 0.9
    assert values["train/dpo_margin_policy"] > values["train/dpo_margin_ref"] + 2
    assert "eval/dpo/loss" in values
    assert (tmp_path / "hf" / "model.safetensors").exists()
    assert load_tokenizer(str(tmp_path / "hf")).encode("49 7") == [49, 7]
    assert (tmp_path / "peft" / "adapter_config.json").exists()
    assert load_config(TrainDpoConfig, overrides=["--beta", "0.2"]).beta == 0.2
