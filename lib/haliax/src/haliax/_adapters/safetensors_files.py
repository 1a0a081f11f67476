"""Safetensors files, with the extra ``state-dict``."""

from typing import Any

import numpy as np

from haliax.errors import StateDictError

try:
    import safetensors
    import safetensors.numpy
except ImportError as error:
    raise ImportError(
        "read or write safetensors: package 'safetensors' is not installed. Install marin-haliax[state-dict]."
    ) from error


def save_file(tensors: dict[str, np.ndarray], path: str, metadata: dict[str, str]) -> None:
    """Write arrays to a file."""
    safetensors.numpy.save_file(tensors, path, metadata=metadata)


def load_file(path: str) -> dict[str, Any]:
    """Read all arrays of a file.

    Raises:
        StateDictError: The file is damaged or incomplete.
    """
    try:
        return safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise StateDictError(
            f"read {path}: not a complete safetensors file ({error}). Copy or download it again."
        ) from error
