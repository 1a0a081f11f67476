"""Every error of the room says what failed, with the values, and survives the way from a worker."""

import pickle

import pytest
from marin.datakit import errors

EXAMPLES = [
    errors.SourceSyntaxError("s3:x"),
    errors.SourceNotFoundError("data/*.x", "jsonl files"),
    errors.SourceAccessError("hf:a/b@main"),
    errors.EmptyCorpusError("normalisation", seen=3, detail="All blank."),
    errors.DocumentFieldError("text", found="int", where="a.jsonl, record 1"),
    errors.UndecodableFileError("a.txt", position=3, byte=233),
    errors.MissingSuiteError(["gsm8k@1"], known=["mmlu@1"], detail="Say where it is."),
    errors.FeatureVersionError("out/index", found=2, expected=3),
    errors.ShardMismatchError("out/marks", "out/docs", detail="attribute_shards=1, document_shards=2"),
]


def all_subclasses(kind):
    return {kind} | {deep for sub in kind.__subclasses__() for deep in all_subclasses(sub)}


def test_every_error_has_an_example():
    assert {type(error) for error in EXAMPLES} == all_subclasses(errors.DatakitError) - {errors.DatakitError}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_names_values_expectation_and_remedy_and_survives_pickling(error):
    message = str(error)
    assert "=" in message
    assert "; expected " in message
    assert message.endswith((".", "'"))
    revived = pickle.loads(pickle.dumps(error))
    assert (type(revived), str(revived), vars(revived)) == (type(error), message, vars(error))
