"""Layouts over 8 devices: the same loss everywhere, parameters really sharded, checkpoints open on another mesh."""

import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import time

import equinox as eqx
import jax
import pytest
from haliax import Axis
from levanter._trainer.base import split_base
from levanter.checkpoint import discover_checkpoint_candidates, load_checkpoint, read_metadata, verify_checkpoint
from levanter.errors import ConfigError
from levanter.mesh import MeshConfig
from levanter.models.llama import LlamaConfig
from levanter.tree_paths import tree_digest

WORKER = str(pathlib.Path(__file__).parent / "mesh_worker.py")
ALONE = {"one device": {"axes": {}}}
LAYOUTS = {
    "replica": {"axes": {"replica": 8, "data": 1}},
    "fsdp, accumulating": {"axes": {}, "per_device": 1},
    "data and tensor": {"axes": {"model": 4, "data": 2}, "param_mapping": {}},
    "fsdp, tensor and context": {"axes": {"model": 2, "context": 2}},
}
SHARDS = {
    "replica": [2, 32, 4, 8],
    "fsdp, accumulating": [2, 4, 4, 8],
    "data and tensor": [2, 32, 1, 8],
    "fsdp, tensor and context": [2, 16, 2, 8],
}


def test_axis_sizes_absorb_what_is_left():
    assert MeshConfig(axes={"model": 2}).axis_sizes(8, 1) == {"replica_dcn": 1, "data": 4, "replica": 1, "model": 2}
    assert MeshConfig(axes={"replica": -1}).axis_sizes(8, 1)["data"] == 1
    assert MeshConfig().axis_sizes(8, 2) == {"replica_dcn": 2, "data": 4, "replica": 1, "model": 1}


@pytest.mark.parametrize(
    "bad",
    [{"axes": {"model": 3}}, {"axes": {"data": 2}}, {"axes": {"data": -1, "model": -1}}, {"dcn_axes": {"data": 1}}],
)
def test_meshes_that_do_not_fit_are_refused(bad):
    with pytest.raises(ConfigError):
        MeshConfig(**bad).axis_sizes(8, 1)


def test_context_and_expert_are_mapped_where_they_are_declared():
    mesh = jax.make_mesh((1,) * 6, ("replica_dcn", "data", "replica", "model", "context", "expert"))
    config = MeshConfig(axes={"context": 1, "expert": 1})
    compute, params = config.resolved_compute_mapping(mesh), config.resolved_param_mapping(mesh)
    assert compute["position"] == "context" and compute["experts"] == params["experts"] == "expert"
    assert "expert" in compute["batch"] and "position" not in params
    plain = MeshConfig().resolved_compute_mapping(MeshConfig().device_mesh())
    assert "position" not in plain and "experts" not in plain


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_layout_gives_the_same_losses(tmp_path, run_python):
    """Tolerance 2e-5 relative: float32 sums are taken in another order on each layout."""
    results = {}
    for devices, layouts in ((1, ALONE), (8, LAYOUTS)):
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        args = [str(tmp_path / str(devices)), json.dumps(layouts)]
        done = run_python(WORKER, *args, env={"XLA_FLAGS": flags}, timeout=280)
        assert done.returncode == 0, done.stderr[-3000:]
        results |= json.loads(done.stdout.splitlines()[-1])
    expected = results["one device"]["losses"]
    assert len(expected) == 4 and expected[-1] < expected[0]
    for name, result in results.items():
        assert result["losses"] == pytest.approx(expected, rel=2e-5), name
        assert result["same"], name
    assert {name: results[name]["shard"] for name in LAYOUTS} == SHARDS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_save_one_checkpoint_that_opens_anywhere(tmp_path):
    layout = {"fsdp and tensor": {"axes": {"model": 2}}}
    pair = start_pair(WORKER, str(tmp_path), json.dumps(layout), devices=2)
    outputs = [process.communicate(timeout=280) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs[0][1][-2000:] + outputs[1][1][-2000:]
    first, second = (json.loads(out.splitlines()[-1])["fsdp and tensor"] for out, _ in outputs)
    assert first == second and first["same"] and first["losses"][-1] < first["losses"][0]
    assert [c.step for c in discover_checkpoint_candidates(str(tmp_path / "0/ckpt/run"))] == [2, 4]
    assert verify_checkpoint(first["checkpoint"]) > 10
    template = eqx.filter_eval_shape(lambda: mesh_model().build(Axis("vocab", 50), key=jax.random.PRNGKey(0)))
    assert tree_digest(load_checkpoint(template, first["checkpoint"], subpath="model")) == first["digest"]
    lines = (tmp_path / "0/run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3], "one process logs"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path):
    pair = start_pair(WORKER.replace("mesh_worker", "preempt_worker"), str(tmp_path), devices=1)
    deadline = time.monotonic() + 200
    while not (tmp_path / "ready-1").exists() and time.monotonic() < deadline:
        assert pair[1].poll() is None, pair[1].communicate()[1][-2000:]
        time.sleep(0.05)
    pair[1].send_signal(signal.SIGTERM)
    outputs = [process.communicate(timeout=100) for process in pair]
    first, second = (out.splitlines()[-1].split() for out, _ in outputs)
    assert first == second, outputs[0][1][-2000:]
    assert [c.step for c in discover_checkpoint_candidates(str(tmp_path / "checkpoints/run"))] == [int(first[0])]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_know_the_base_under_their_adapters(tmp_path):
    """The digest is that of one process, so the base is checked across layouts; both processes refuse another base."""
    worker = WORKER.replace("mesh_worker", "adapter_worker")
    pair = start_pair(worker, str(tmp_path), devices=1)
    outputs = [process.communicate(timeout=280) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs[0][1][-2000:] + outputs[1][1][-2000:]
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert first == second and first["step"] == 2 and first["shard"] == [5, 4]
    model = runpy.run_path(worker)["adapted"]
    ours, theirs = (tree_digest(split_base(made)[1]) for made in (model(), model(last=0.0)))
    assert read_metadata(first["checkpoint"]).extra["base"]["sha256"] == ours
    assert f"sha256={ours}" in first["refused"] and f"sha256={theirs} (the base from elsewhere)" in first["refused"]


def start_pair(worker: str, *args: str, devices: int) -> list[subprocess.Popen]:
    """Two processes of one run, each with that many virtual devices."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return [
        subprocess.Popen(
            [sys.executable, worker, *args, str(process), "2", str(port)],
            env={**os.environ, "XLA_FLAGS": flags, "MARIN_PROGRESS": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]


def mesh_model() -> LlamaConfig:
    """The shape that ``mesh_worker.py`` trains."""
    return LlamaConfig(max_seq_len=16, hidden_dim=32, intermediate_dim=64, num_layers=2, num_heads=4, num_kv_heads=4)
