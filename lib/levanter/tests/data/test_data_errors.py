"""Every error class of the data side renders with its values, and says what was expected and what to do."""

import importlib
import inspect
import pickle

import pytest
from levanter.errors import LevanterError

EXAMPLES = {
    "levanter.store.errors": {
        "CacheNotFinishedError": ("/c", "no ledger"),
        "CacheMetadataError": ("/c", {"tokenizer": ("a", "b")}),
        "LedgerFormatError": ("/c", "counts do not add up"),
        "CorruptCacheError": ("/c", "input_ids", "zarr.json is missing"),
        "CacheExistsError": ("/c",),
        "RowIndexError": ("row of '/c'", 7, 3),
        "SchemaError": ("input_ids", "row 0 has rank 2", "rank 1"),
        "StoragePathError": ("ftp://x", "ftp"),
    },
    "levanter.data.errors": {
        "DatasetIndexError": ("list", 9, 3),
        "InfiniteDatasetError": ("mixture", "async_len"),
        "EmptyDatasetError": ("books", "Check the input."),
        "PermutationError": ("feistel", 0, "length >= 1"),
        "MixtureError": ("weight of 'a' is -1", "a finite weight >= 0", "Correct the weight."),
        "PackingError": ("document 0 is too long", "documents that fit", "Raise max_length."),
        "BatchSizeError": (6, 4),
        "SourceError": ("nothing there", ["/a", "/b"], "existing files"),
        "BadRecordError": ("/a.jsonl", 3, "not JSON", "{broken"),
        "DataConfigError": ("train_weights", "unknown components ['x']", "some of ['a']"),
    },
    "levanter.tokenizers.errors": {
        "TokenizerNotFoundError": ("gpt2",),
        "TokenizerFileError": ("/t", "is not a JSON object"),
        "InvalidTextError": ("lone surrogate", "x"),
        "MissingSpecialTokenError": ("/t", "bos"),
        "VocabularySizeError": (4096, 300, 2, 1000),
    },
}
CASES = [(module, name, arguments) for module, cases in EXAMPLES.items() for name, arguments in cases.items()]


@pytest.mark.parametrize("module, name, arguments", CASES, ids=[name for _, name, _ in CASES])
def test_an_error_says_what_was_expected_and_what_to_do(module, name, arguments):
    error = getattr(importlib.import_module(module), name)(*arguments)
    text = str(error)
    assert "expected" in text and ": " in text
    assert text.rstrip().endswith((".", "!"))
    assert isinstance(error, LevanterError)
    builtin = [base for base in type(error).__mro__ if base.__module__ == "builtins"]
    assert builtin[0] not in (Exception, BaseException, object), "also a builtin that fits"
    for field, value in zip(list(inspect.signature(type(error)).parameters), arguments, strict=True):
        if hasattr(error, field):
            assert getattr(error, field) == value


@pytest.mark.parametrize("module", EXAMPLES)
def test_every_class_has_an_example_and_a_place_in_the_tree(module):
    loaded = importlib.import_module(module)
    classes = [
        name
        for name, value in vars(loaded).items()
        if inspect.isclass(value) and issubclass(value, LevanterError) and value.__module__ == module
    ]
    roots = {"StoreError", "DataError", "TokenizerError"}
    assert set(classes) - roots == set(EXAMPLES[module])
    assert all(name in (loaded.__doc__ or "") for name in classes)


@pytest.mark.parametrize("module, name, arguments", CASES, ids=[name for _, name, _ in CASES])
def test_errors_travel_between_processes(module, name, arguments):
    error = getattr(importlib.import_module(module), name)(*arguments)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
