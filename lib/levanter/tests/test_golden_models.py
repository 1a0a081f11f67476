"""Every architecture gives the logits that transformers gives, from a folder, with neither network nor torch."""

import json
import pathlib
import runpy

import haliax as hax
import jax
import numpy as np
import pytest
from haliax import Axis
from levanter.compat.hf_checkpoints import HFCheckpointConverter
from levanter.compat.hf_weights import weight_files
from levanter.layers.attention_mask import AttentionMask
from safetensors.numpy import load_file, save_file

RECIPE = runpy.run_path(str(pathlib.Path(__file__).parent / "golden" / "recipe.py"))
CASES = sorted(RECIPE["CASES"])
# Float32 in another order of summation, through two to four layers; logits are of order one.
TOLERANCE = 3e-5


def write_folder(folder: pathlib.Path, name: str, dtype: str | None = None) -> dict[str, np.ndarray]:
    config, tensors, _, _ = RECIPE["load_case"](name)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def run(model, ids: np.ndarray, mask: AttentionMask | None = None) -> np.ndarray:
    named = hax.named(ids, (Axis("batch", ids.shape[0]), Axis("position", ids.shape[1])))
    return np.asarray(jax.jit(lambda m, x: m(x, mask).array)(model, named))


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers_and_tensors_survive_the_round_trip(name, tmp_path):
    tensors = write_folder(tmp_path / "in", name)
    converter = HFCheckpointConverter.from_hf(str(tmp_path / "in"))
    model = converter.load_pretrained()
    _, _, ids, expected = RECIPE["load_case"](name)
    np.testing.assert_allclose(run(model, ids, AttentionMask.causal()), expected, atol=TOLERANCE, rtol=0)
    converter.save_pretrained(model, str(tmp_path / "out"), max_shard_size=4000)
    files = weight_files(str(tmp_path / "out"))
    assert len(files) > 1
    exported = {key: value for file in files for key, value in load_file(file).items()}
    assert sorted(exported) == sorted(tensors)
    for key, value in tensors.items():
        assert exported[key].dtype == value.dtype and exported[key].tobytes() == value.tobytes(), key
    again = HFCheckpointConverter.from_hf(str(tmp_path / "out"))
    assert again.default_config == converter.default_config
    assert sum(x.size for x in jax.tree.leaves(model)) == model.config.total_trainable_params(RECIPE["VOCAB"])
