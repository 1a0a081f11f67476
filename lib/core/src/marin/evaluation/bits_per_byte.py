"""Measure bits per byte of an exported model on held-out documents.

``bpb = sum of -log p(token) / (ln 2 * UTF-8 bytes)``: the number a tokeniser cannot flatter. The model is read back
from its exported form, so the measurement also proves the export.

Reference: Gao et al., The Pile, arXiv:2101.00027, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from levanter.compat.hf_checkpoints import load_hf_checkpoint
from levanter.eval import bits_per_byte
from levanter.tokenizers import load_tokenizer
from rigging.filesystem.atomic import write_json_atomic

from marin.evaluation.results import BitsPerByteConfig, BitsPerByteResult
from marin.tokenization.tokenizer import iterate_texts


def within_budget(texts: Iterator[str], max_bytes: int | None) -> Iterator[str]:
    """Documents in order, up to a budget of UTF-8 bytes; a document that would pass it is left out.

    Example:
        >>> list(within_budget(iter(["ab", "cdefgh", "ij"]), 4))
        ['ab', 'ij']
    """
    spent = 0
    for text in texts:
        size = len(text.encode())
        if max_bytes is None or spent + size <= max_bytes:
            spent += size
            yield text


def measure(config: BitsPerByteConfig) -> BitsPerByteResult:
    """Measure the test split.

    Args:
        config: Model, documents and window.
    Returns:
        The measurement, also written as ``results.json``.
    """
    _, model = load_hf_checkpoint(config.model_path)
    texts = iterate_texts(f"{config.documents_path}/outputs/test/part-*.parquet")
    found = bits_per_byte(
        model,
        within_budget(texts, config.max_bytes),
        load_tokenizer(config.model_path),
        seq_len=config.seq_len,
        batch_size=config.batch_size,
    )
    result = BitsPerByteResult(
        bits_per_byte=found.bpb,
        nats_per_token=found.nats / found.tokens,
        num_tokens=found.tokens,
        num_bytes=found.bytes,
        num_documents=found.documents,
    )
    write_json_atomic(f"{config.output_path}/results.json", result.result_payload())
    return result
