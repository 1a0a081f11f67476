"""Tokenizers without a hub, a network or torch: load from files, train byte-level BPE, encode to ids and back.

Text is data. A document that happens to contain ``<|endoftext|>`` is encoded as those characters, never as the control
token, and beginning and end of a document are marked by appending *ids*, never by adding text, so no stray space can
appear. For byte-level tokenizers ``decode(encode(text)) == text`` holds for every string without lone surrogates.

:func:`load_tokenizer` reads a folder in Hugging Face layout or a single ``tokenizer.json``; :func:`train_byte_bpe`
makes one from text; :func:`save_tokenizer` writes the folder.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levanter.tokenizers.hf import HfTokenizer as HfTokenizer
    from levanter.tokenizers.hf import load_tokenizer as load_tokenizer
    from levanter.tokenizers.hf import save_tokenizer as save_tokenizer
    from levanter.tokenizers.passthrough import PassthroughTokenizer as PassthroughTokenizer
    from levanter.tokenizers.protocol import MarinTokenizer as MarinTokenizer
    from levanter.tokenizers.training import train_byte_bpe as train_byte_bpe

_EXPORTS = {
    "HfTokenizer": "levanter.tokenizers.hf",
    "MarinTokenizer": "levanter.tokenizers.protocol",
    "PassthroughTokenizer": "levanter.tokenizers.passthrough",
    "load_tokenizer": "levanter.tokenizers.hf",
    "save_tokenizer": "levanter.tokenizers.hf",
    "train_byte_bpe": "levanter.tokenizers.training",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
