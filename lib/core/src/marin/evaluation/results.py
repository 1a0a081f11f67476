"""What a measurement leaves behind. Plain data, no jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marin.execution import Artifact


class BitsPerByteResult(Artifact):
    """How many bits the model spends on one byte of held-out text; tokenisers cancel out of the comparison.

    Attributes:
        bits_per_byte: Sum of negative log2 likelihoods over UTF-8 bytes.
        nats_per_token: Mean loss.
        num_tokens: Tokens predicted.
        num_bytes: UTF-8 bytes of the documents.
        num_documents: Documents measured.
    """

    bits_per_byte: float = 0.0
    nats_per_token: float = 0.0
    num_tokens: int = 0
    num_bytes: int = 0
    num_documents: int = 0
    purpose: ClassVar[str] = "eval"


@dataclass(frozen=True)
class BitsPerByteConfig:
    """What to measure.

    Attributes:
        output_path: Folder that receives ``results.json``.
        model_path: Folder of a model in Hugging Face layout.
        documents_path: Folder of consolidated documents; the ``test`` split is read.
        seq_len: Positions in one window.
        batch_size: Windows in one forward pass.
        max_bytes: Stop before the document that would pass this many bytes; None measures all.
    """

    output_path: str
    model_path: str
    documents_path: str
    seq_len: int = 256
    batch_size: int = 16
    max_bytes: int | None = None
