"""Export a checkpoint in Hugging Face layout; equal parameters give equal bytes."""

from __future__ import annotations

import equinox as eqx
import jax
from haliax import Axis
from levanter.checkpoint import latest_checkpoint_path, load_checkpoint
from levanter.compat.hf_checkpoints import save_hf_checkpoint
from levanter.models.llama import LlamaLMHeadModel
from levanter.models.lm_model import count_parameters
from levanter.tokenizers import load_tokenizer

from marin.training.artifacts import HfModel
from marin.training.levanter_config import llama_config
from marin.training.recipe import ExportConfig


def export(config: ExportConfig) -> HfModel:
    """Write config.json, model.safetensors and the tokeniser.

    Args:
        config: Checkpoint, tokeniser and output.
    Returns:
        The artifact.
    Raises:
        levanter.errors.CheckpointError: The folder holds no complete checkpoint of this shape.
    """
    shape = llama_config(config.model)
    vocab = Axis("vocab", load_tokenizer(config.tokenizer_path).vocab_size)
    template = eqx.filter_eval_shape(lambda key: LlamaLMHeadModel.init(vocab, shape, key=key), jax.random.PRNGKey(0))
    checkpoint = latest_checkpoint_path(f"{config.checkpoint_path}/checkpoints")
    model = load_checkpoint(template, checkpoint, subpath="model")
    folder = f"{config.output_path}/model"
    save_hf_checkpoint(model, shape, folder, tokenizer=config.tokenizer_path)
    return HfModel(num_parameters=count_parameters(model))
