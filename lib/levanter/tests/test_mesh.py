"""Layouts over 8 devices: the same loss everywhere, parameters really sharded, checkpoints open on another mesh."""

import json
import os
import pathlib

import pytest
from levanter.errors import ConfigError
from levanter.mesh import MeshConfig

WORKER = str(pathlib.Path(__file__).parent / "mesh_worker.py")
LAYOUTS = {
    "one device": ({}, {"embed": "data"}, -1, 1),
    "fsdp, accumulating": ({}, {"embed": "data"}, 1, 8),
    "fsdp and tensor": ({"model": 2}, {"embed": "data"}, -1, 8),
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_layout_gives_the_same_losses(tmp_path, run_python):
    """Tolerance 2e-5 relative: float32 sums are taken in another order on each layout."""
    results = {}
    for name, (axes, mapping, per_device, devices) in LAYOUTS.items():
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        args = [str(tmp_path / name.replace(" ", "_")), json.dumps(axes), json.dumps(mapping), str(per_device)]
        done = run_python(WORKER, *args, env={"XLA_FLAGS": flags}, timeout=280)
        assert done.returncode == 0, done.stderr[-3000:]
        results[name] = json.loads(done.stdout.splitlines()[-1])
    expected = results["one device"]["losses"]
    assert len(expected) == 5 and expected[-1] < expected[0]
    for name, result in results.items():
        assert result["losses"] == pytest.approx(expected, rel=2e-5), name
        assert result["same"], name
    assert results["fsdp, accumulating"]["shard"] == [2, 4, 4, 8]
    assert results["fsdp and tensor"]["shard"] == [2, 8, 2, 8]
