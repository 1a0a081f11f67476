"""Sample continuations of prompts from an exported model; equal seeds give equal text."""

from __future__ import annotations

import jax
from levanter.compat.hf_checkpoints import load_hf_checkpoint
from levanter.inference.generate import generate
from levanter.tokenizers import load_tokenizer
from rigging.filesystem.atomic import write_json_atomic

from marin.inference.results import SampleConfig, SampleSet


def sample(config: SampleConfig) -> SampleSet:
    """Continue every prompt.

    Args:
        config: Model, prompts and sampling choices.
    Returns:
        The samples, in the order of the prompts.
    """
    _, model = load_hf_checkpoint(config.model_path)
    tokenizer = load_tokenizer(config.model_path)
    rows = []
    for index, prompt in enumerate(config.prompts):
        added = generate(
            model,
            tokenizer.encode(prompt),
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            key=jax.random.fold_in(jax.random.PRNGKey(config.seed), index),
        )
        rows.append({"prompt": prompt, "text": tokenizer.decode(added, skip_special_tokens=True)})
    write_json_atomic(f"{config.output_path}/samples.json", rows)
    return SampleSet(num_samples=len(rows))
