"""Deduplication kernels over Arrow: exact hashes, MinHash and LSH, n-gram verification, Bloom filters.

The kernels are native code in `marin-dupekit-native`; this package is their Python face. `import dupekit` always works;
the first use of a name loads the native module, or raises `NativeModuleError` with the command that installs it.

Example:
    >>> import pyarrow as pa
    >>> import dupekit
    >>> batch = pa.record_batch({"text": ["a b c d e f", "A b c d e f!"]})
    >>> steps = [
    ...     dupekit.Transformation.CleanText("text", "clean"),
    ...     dupekit.Transformation.MinHash("clean", "signature", num_perms=64),
    ... ]
    >>> first, second = dupekit.transform(batch, steps)["signature"].to_pylist()
    >>> dupekit.estimate_jaccard(first, second)
    1.0
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dupekit.bloom import Bloom as Bloom
    from dupekit.errors import BatchTooLargeError as BatchTooLargeError
    from dupekit.errors import ColumnNotFoundError as ColumnNotFoundError
    from dupekit.errors import ColumnTypeError as ColumnTypeError
    from dupekit.errors import DupekitError as DupekitError
    from dupekit.errors import NativeModuleError as NativeModuleError
    from dupekit.errors import ParameterError as ParameterError
    from dupekit.errors import ParseError as ParseError
    from dupekit.hashing import DEFAULT_HASH_ALGORITHM as DEFAULT_HASH_ALGORITHM
    from dupekit.hashing import HashAlgorithm as HashAlgorithm
    from dupekit.hashing import hash_blake2 as hash_blake2
    from dupekit.hashing import hash_blake2_bytes as hash_blake2_bytes
    from dupekit.hashing import hash_blake3 as hash_blake3
    from dupekit.hashing import hash_blake3_bytes as hash_blake3_bytes
    from dupekit.hashing import hash_hex as hash_hex
    from dupekit.hashing import hash_xxh3_64 as hash_xxh3_64
    from dupekit.hashing import hash_xxh3_64_array as hash_xxh3_64_array
    from dupekit.hashing import hash_xxh3_64_batch as hash_xxh3_64_batch
    from dupekit.hashing import hash_xxh3_128 as hash_xxh3_128
    from dupekit.hashing import hash_xxh3_128_hex as hash_xxh3_128_hex
    from dupekit.ngrams import TokenNgramFingerprintSignature as TokenNgramFingerprintSignature
    from dupekit.ngrams import TokenNgrams as TokenNgrams
    from dupekit.ngrams import TokenNgramSignature as TokenNgramSignature
    from dupekit.similarity import estimate_jaccard as estimate_jaccard
    from dupekit.similarity import jaccard_standard_error as jaccard_standard_error
    from dupekit.similarity import lsh_match_probability as lsh_match_probability
    from dupekit.steps import MinHashKind as MinHashKind
    from dupekit.steps import NgramKind as NgramKind
    from dupekit.steps import Step as Step
    from dupekit.steps import Transformation as Transformation
    from dupekit.steps import shingle_hashes as shingle_hashes
    from dupekit.steps import transform as transform

_HOMES = {
    "bloom": ("Bloom",),
    "errors": (
        "BatchTooLargeError",
        "ColumnNotFoundError",
        "ColumnTypeError",
        "DupekitError",
        "NativeModuleError",
        "ParameterError",
        "ParseError",
    ),
    "hashing": (
        "DEFAULT_HASH_ALGORITHM",
        "HashAlgorithm",
        "hash_blake2",
        "hash_blake2_bytes",
        "hash_blake3",
        "hash_blake3_bytes",
        "hash_hex",
        "hash_xxh3_64",
        "hash_xxh3_64_array",
        "hash_xxh3_64_batch",
        "hash_xxh3_128",
        "hash_xxh3_128_hex",
    ),
    "ngrams": ("TokenNgramFingerprintSignature", "TokenNgramSignature", "TokenNgrams"),
    "similarity": ("estimate_jaccard", "jaccard_standard_error", "lsh_match_probability"),
    "steps": ("MinHashKind", "NgramKind", "Step", "Transformation", "shingle_hashes", "transform"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dupekit' has no attribute {name!r}; see dupekit.__all__")
    value = getattr(import_module(f"dupekit.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
