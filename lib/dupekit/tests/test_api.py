import importlib
import pkgutil
import subprocess
import sys

import dupekit
import pytest

PUBLIC = """
BatchTooLargeError Bloom ColumnNotFoundError ColumnTypeError DEFAULT_HASH_ALGORITHM DupekitError HashAlgorithm
MinHashKind NativeModuleError NgramKind ParameterError ParseError Step TokenNgramFingerprintSignature
TokenNgramSignature TokenNgrams Transformation estimate_jaccard hash_blake2 hash_blake2_bytes hash_blake3
hash_blake3_bytes hash_hex hash_xxh3_128 hash_xxh3_128_hex hash_xxh3_64 hash_xxh3_64_array hash_xxh3_64_batch
jaccard_standard_error lsh_match_probability shingle_hashes transform
""".split()
MODULES = ["bloom", "errors", "hashing", "ngrams", "similarity", "steps", "testing"]


def test_the_public_names_are_these() -> None:
    assert sorted(dupekit.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(dupekit, name)
    assert name in dir(dupekit)
    assert value.__doc__


def test_the_public_modules_are_these() -> None:
    found = [module.name for module in pkgutil.iter_modules(dupekit.__path__) if not module.name.startswith("_")]
    assert sorted(found) == MODULES
    for name in MODULES:
        assert importlib.import_module(f"dupekit.{name}").__doc__


def test_the_type_checkers_twin_lists_the_same_names() -> None:
    source = importlib.util.find_spec("dupekit")
    assert source is not None and source.origin is not None
    with open(source.origin, encoding="utf-8") as file:
        text = file.read()
    block = text.split("if TYPE_CHECKING:")[1].split("_HOMES")[0]
    twins = {line.split(" as ")[1].strip() for line in block.splitlines() if " as " in line}
    assert twins == set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        dupekit.nope  # noqa: B018


def test_importing_the_package_is_cheap_and_drags_nothing_along() -> None:
    code = """
import sys, time
start = time.process_time()
import dupekit
seconds = time.process_time() - start
heavy = {"pyarrow", "numpy", "dupekit_native", "jax", "torch", "fsspec", "rigging"} & set(sys.modules)
assert not heavy, heavy
print(seconds)
"""
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    # 0.02 s with a slack of three; the best of three, in CPU time, so that a busy machine does not decide.
    assert min(seconds) < 0.06
