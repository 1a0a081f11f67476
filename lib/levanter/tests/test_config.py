"""Configuration: files, overrides, includes, and errors that name the nearest key."""

import dataclasses
from datetime import timedelta

import jax
import pytest
from levanter import config as cfg
from levanter.callbacks.profiler import ProfileOptionsConfig
from levanter.errors import ConfigError, ConfigFileError, UnknownKeyError
from levanter.main.train_lm import TrainLmConfig
from levanter.models.llama import LlamaConfig
from levanter.optim.config import AdamConfig
from levanter.optim.schedules import Cosine, Linear
from levanter.tracker.json_logger import JsonLoggerConfig
from levanter.tracker.noop import NoopConfig
from levanter.trainer_config import TrainerConfig

PUBLISHED = """
data: {cache_dir: cache, tokenizer: gpt2, components: {wiki: {source: {type: url, train_urls: [a.jsonl]}}}}
model: {type: llama, hidden_dim: 32, intermediate_dim: 64, num_heads: 4, num_kv_heads: 4, num_layers: 2}
trainer: {require_accelerator: false, train_batch_size: 8, num_train_steps: 100, mp: "p=f32,c=bfloat16",
          tracker: {type: noop}, checkpointer: {keep: [{every: 50}], save_interval: 5m}}
optimizer: {learning_rate: 1e-3, weight_decay: 0.1, warmup: 0.1, decay: 0.2, lr_schedule: linear}
"""


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "nano.yaml"
    path.write_text(PUBLISHED)
    return str(path)


def test_a_published_config_loads(published):
    config = cfg.load_config(TrainLmConfig, [published])
    assert isinstance(config.model, LlamaConfig) and config.model.hidden_dim == 32
    assert config.trainer.checkpointer is not None
    assert config.trainer.checkpointer.save_interval == timedelta(minutes=5)
    assert config.trainer.policy.compute == "bfloat16"
    assert isinstance(config.trainer.tracker, NoopConfig)
    assert config.optimizer.learning_rate == 1e-3 and config.optimizer.lr_schedule == Linear()


def test_a_config_survives_encoding(published):
    config = cfg.load_config(TrainLmConfig, [published])
    assert cfg.decode(TrainLmConfig, cfg.encode(config)) == config
    assert "num_train_steps: 100" in cfg.dump_yaml(config)


def test_overrides_win_over_later_files_over_earlier_files(published, tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("trainer: {num_train_steps: 7, seed: 3}")
    config = cfg.parse_command_line(
        TrainLmConfig, ["--config_path", published, str(later), "--trainer.seed", "9", "--optimizer.beta2=0.9"]
    )
    assert (config.trainer.num_train_steps, config.trainer.seed, config.optimizer.beta2) == (7, 9, 0.9)
    assert config.trainer.train_batch_size == 8


def test_includes_are_relative_to_their_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/optimizer.yaml").write_text("learning_rate: 5e-4")
    (tmp_path / "main.yaml").write_text("optimizer: !include sub/optimizer.yaml")
    assert cfg.load_config(TrainLmConfig, [str(tmp_path / "main")]).optimizer.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("trainer.num_train_step", "num_train_steps"),
        ("model.hidden_dims", "hidden_dim"),
        ("optimizer.learning_rat", "learning_rate"),
        ("trainer.checkpointer.keeps", "keep"),
        ("trane", "trainer"),
    ],
)
def test_unknown_keys_name_the_nearest(key, nearest):
    with pytest.raises(UnknownKeyError) as caught:
        cfg.load_config(TrainLmConfig, [], [f"--{key}", "1"])
    assert caught.value.key == key and caught.value.nearest == nearest


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model.type", "lama"], "llama"),
        (["--trainer.num_train_steps", "x"], "num_train_steps"),
        (["--trainer.num_train_steps", "0"], "num_train_steps=0"),
        (["--trainer.mp", "p=f99"], "f99"),
        (["--optimizer.lr_schedule", "sideways"], "sideways"),
        (["--trainer.divergence.patience", "0"], "patience"),
        (["stray"], "stray"),
        (["--trainer.seed"], "no value"),
        (["--initialize_from_hf", "a", "--initialize_from_checkpoint_path", "b"], "at most one"),
    ],
)
def test_values_that_do_not_fit_say_why(words, text):
    with pytest.raises(ConfigError) as caught:
        cfg.parse_command_line(TrainLmConfig, words)
    assert text in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1")
    (tmp_path / "broken.yaml").write_text("a: [")
    for name in ("absent.yaml", "list.yaml", "broken.yaml"):
        with pytest.raises(ConfigFileError) as caught:
            cfg.load_config(TrainLmConfig, [str(tmp_path / name)])
        assert name in caught.value.path


def test_changing_a_type_drops_the_other_types_fields(tmp_path):
    (tmp_path / "a.yaml").write_text("optimizer: {lr_schedule: {type: cosine, exponent: 2.0}}")
    config = cfg.load_config(TrainLmConfig, [str(tmp_path / "a.yaml")])
    assert config.optimizer.lr_schedule == Cosine(2.0)
    config = cfg.load_config(TrainLmConfig, [str(tmp_path / "a.yaml")], ["--optimizer.lr_schedule.type", "linear"])
    assert config.optimizer.lr_schedule == Linear()


def test_several_trackers_and_a_batch_schedule_decode():
    raw = {
        "tracker": [{"type": "noop"}, {"type": "json_logger", "level": "DEBUG"}],
        "train_batch_size": [{"start": 0, "value": 4}, {"start": 10, "value": 8}],
    }
    config = cfg.decode(TrainerConfig, raw)
    assert config.trackers() == [NoopConfig(), JsonLoggerConfig(level="DEBUG")]
    assert config.batch_schedule(4).batch_size_at_step(12) == 8


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("1h30m", 5400), ("45s", 45), (2.5, 2.5), ("250ms", 0.25)])
def test_durations(text, seconds):
    assert cfg.parse_duration(text).total_seconds() == seconds
    assert cfg.parse_duration(cfg.format_duration(cfg.parse_duration(text))) == cfg.parse_duration(text)


def test_a_duration_that_is_none_is_refused():
    with pytest.raises(ConfigError):
        cfg.parse_duration("soon")


def test_the_command_prints_an_error_and_a_hint_and_exits_2(capsys):
    @dataclasses.dataclass(frozen=True)
    class Demo:
        steps: int = 1

    globals()["Demo"] = Demo

    def run(config):
        return config.steps

    run.__annotations__ = {"config": Demo}
    assert cfg.main(args=["--steps", "4"])(run)() == 4
    with pytest.raises(SystemExit) as caught:
        cfg.main(args=["--step", "4"])(run)()
    out, err = capsys.readouterr()
    assert caught.value.code == 2 and out == ""
    assert err.startswith("error: ") and "\n\nhint: Did you mean `steps`?" in err


def test_help_lists_every_key(capsys):
    cfg.print_help(TrainLmConfig)
    out = capsys.readouterr().out
    for key in ("--trainer.num_train_steps", "--optimizer.type", "--z_loss_weight", "--trainer.mesh.axes"):
        assert key in out
    assert AdamConfig().beta2 == 0.95


OLD = """
model: {type: llama, hidden_dim: 32, intermediate_dim: 64, num_heads: 4, num_kv_heads: 4, num_layers: 2}
trainer:
  wandb: {project: levanter, tags: [gpt2]}
  mp: p=f32,c=bfloat16
  model_axis_size: 2
  replica_dcn_axis_size: 1
  fsdp_axis: embed
  tensor_parallel_axes: [mlp, heads]
  batch_axis: batch
  profiler: true
  profiler_num_steps: 7
  quantization: null
  ray: {auto_start_cluster: false}
  train_batch_size: 256
optimizer: {learning_rate: 1E-3, weight_decay: 0.1, min_lr_ratio: 0.1}
"""


def test_keys_of_older_published_configs_find_their_place(tmp_path):
    (tmp_path / "old.yaml").write_text(OLD)
    trainer = cfg.load_config(TrainLmConfig, [str(tmp_path / "old.yaml")]).trainer
    assert trainer.mesh.axes == {"model": 2} and trainer.mesh.dcn_axes == {"replica_dcn": 1}
    assert trainer.mesh.param_mapping == {"embed": "data"}
    assert trainer.mesh.shared_mapping == {"mlp": "model", "heads": "model"}
    assert trainer.profiler.enabled and trainer.profiler.num_steps == 7
    assert type(trainer.tracker).__name__ == "WandbConfig"
    assert cfg.decode(TrainerConfig, cfg.encode(trainer)) == trainer


def test_an_old_key_that_cannot_be_honoured_is_an_error():
    with pytest.raises(ConfigError, match="quantization"):
        cfg.decode(TrainerConfig, {"quantization": {"fp8": True}})
    with pytest.raises(UnknownKeyError) as caught:
        cfg.decode(TrainerConfig, {"model_axis_siz": 2})
    assert caught.value.key == "model_axis_siz"


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"optimizer": {"type": "adam"}}, "weight_decay_modules"),
        ({"optimizer": {"type": "muon"}}, "adam_modules"),
        ({"optimizer": {"type": "scion"}}, "adam_modules"),
        ({"trainer": {}}, "load_checkpoint_path"),
    ],
)
@pytest.mark.parametrize("value", [["a", "b"], "a"])
def test_a_list_of_names_stays_a_list_and_a_name_a_name(section, key, value):
    # What decodes a union is remembered whatever the order of its members, so every union states the list first.
    ((name, fields),) = section.items()
    config = cfg.decode(TrainLmConfig, {name: {**fields, key: value}})
    assert getattr(getattr(config, name), key) == value


def test_an_axis_may_be_laid_over_several_mesh_axes():
    config = cfg.decode(TrainLmConfig, {"trainer": {"mesh": {"compute_mapping": {"batch": ["replica", "data"]}}}})
    assert config.trainer.mesh.compute_mapping["batch"] == ["replica", "data"]


PUBLISHED_TRAINER = """
profiler:
  enabled: true
  upload: {enabled: false, ttl_days: 7}
  profile_options: {host_tracer_level: 1, python_tracer_level: 0, advanced_configuration: {mode: x, n: 3, flag: true}}
checkpointer:
  debug: {enabled: true, log_interval: 30, dump_stacks_after: 120, tracemalloc_frames: 0}
  write: {max_chunk_bytes: 536870912, data_copy_concurrency: 16, cache_pool_bytes: 1073741824, max_write_replicas: 1024}
progress_watchdog: {step_timeout: 30m, startup_grace_period: 1h, diagnostic_timeout: 10s}
"""


def test_sections_of_published_configs_that_few_runs_set_are_read(tmp_path):
    (tmp_path / "c.yaml").write_text(PUBLISHED_TRAINER)
    trainer = cfg.load_config(TrainerConfig, [str(tmp_path / "c.yaml")])
    assert not trainer.profiler.upload.enabled and trainer.profiler.upload.ttl_days == 7
    options = trainer.profiler.profile_options.build()
    assert (options.host_tracer_level, options.python_tracer_level, options.enable_hlo_proto) == (1, 0, False)
    assert options.advanced_configuration == {"mode": "x", "n": 3, "flag": True}
    assert type(trainer.profiler.profile_options.advanced_configuration["flag"]) is bool
    assert trainer.checkpointer.debug.dump_stacks_after == 120
    assert trainer.checkpointer.write.max_chunk_bytes == 512 << 20
    assert trainer.progress_watchdog.startup_grace_period == timedelta(hours=1)
    assert cfg.decode(TrainerConfig, cfg.encode(trainer)) == trainer


def test_an_option_that_this_profiler_lacks_is_refused_by_name(monkeypatch):
    class OlderOptions:
        host_tracer_level = 2
        enable_hlo_proto = True

    monkeypatch.setattr(jax.profiler, "ProfileOptions", OlderOptions)
    assert ProfileOptionsConfig(host_tracer_level=1).build().host_tracer_level == 1
    with pytest.raises(ConfigError, match=r"profile_options\.device_tracer_level.*has no such option"):
        ProfileOptionsConfig(device_tracer_level=1)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"profiler": {"upload": {"service_url": "https://x"}}}, "tracker that uploads artifacts"),
        ({"profiler": {"upload": {"ttl_days": 0}}}, "ttl_days=0; expected >= 1"),
        ({"profiler": {"upload": {"ttl": 3}}}, "ttl_days"),
        ({"profiler": {"profile_options": {"python_tracer": 1}}}, "profile_options.python_tracer"),
        ({"profiler": {"profile_options": {"host_tracer_level": 4}}}, "host_tracer_level`: 4; expected 0 to 3"),
        ({"profiler": {"profile_options": {"advanced_configuration": {"rate": 0.5}}}}, "advanced_configuration.rate"),
        ({"checkpointer": {"write": {"max_chunk_bytes": 0}}}, "max_chunk_bytes=0; expected >= 1"),
        ({"checkpointer": {"write": {"cache_pool_bytes": -1}}}, "expected >= 0"),
        ({"checkpointer": {"debug": {"log_interval": 0}}}, "expected > 0 seconds"),
        ({"checkpointer": {"debug": {"top_allocations": -1}}}, "top_allocations=-1"),
        ({"progress_watchdog": {"startup_grace_period": "0s"}}, "startup_grace_period"),
    ],
)
def test_values_of_these_sections_that_cannot_be_honoured_say_why(raw, text):
    with pytest.raises(ConfigError, match=text):
        cfg.decode(TrainerConfig, raw)
