"""Every error: its message, its fields, and its way through a pickle."""

import errno
import pickle

import pytest
from zephyr import errors
from zephyr.errors import ZephyrError

EXAMPLES = [
    errors.ZephyrError("cannot do it: x=1; expected 2. Pass 2."),
    errors.DatasetError("cannot make windows: size=0; expected at least 1. Pass the items per window."),
    errors.NoInputFilesError("in/*.jsonl"),
    errors.PlanError("cannot name an output: pattern='{x}'; expected known placeholders. Use them."),
    errors.DuplicateOutputError("out.jsonl", (0, 1)),
    errors.ExprError("(col('a') < lit('x'))", "left is number and right is string"),
    errors.KeyTypeError("dict", "{}"),
    errors.KeyOrderError("left", 3, "5", "4"),
    errors.RecordTypeError("write_parquet", "int", "1"),
    errors.RecordTypeError("write_binary", "str", "'a'", "bytes"),
    errors.SchemaConflictError("a.b", "int64", "string", where="in/x.jsonl"),
    errors.BadRecordError("in/x.jsonl", 7, "not JSON", '{"a"'),
    errors.RecordTooLargeError("in/x.jsonl", 3, 2000, 1000),
    errors.MemoryBudgetError(2000, 1000, "in/x.jsonl"),
    errors.QuarantineFullError("bad", 10, "in/x.jsonl, line 3", "ValueError: x"),
    errors.CorruptInputError("in/x.jsonl.gz", "truncated gzip stream", 99),
    errors.MissingInputError("in/x.jsonl"),
    errors.OutputError("out/x.parquet", "the disk is full"),
    errors.TaskFailedError("map", 3, 3, "w0", "ValueError: x", "Traceback ..."),
    errors.WorkersLostError("map", 3, 20, "exit code -9"),
    errors.SharedDataError("names", ["hosts"]),
    errors.NoTaskError(),
    errors.ContextClosedError("demo"),
    errors.IllegalTransitionError("TaskSucceeded(w0, 0-0-1)", "not its assignment", ("Tick",)),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_messages_say_what_was_expected_and_what_to_do(error: ZephyrError) -> None:
    text = str(error)
    assert text.startswith("cannot ")
    assert "; expected " in text
    assert text.endswith(".") or ": " in text.rpartition(". ")[2]
    for value in vars(error).values():
        if isinstance(value, str) and value and value != getattr(error, "trace", None):
            assert value in text or repr(value) in text


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_errors_survive_pickling(error: ZephyrError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_storage_errors_say_whose_turn_it_is() -> None:
    full, closed, other = (errors.OutputError("x", "y", code=c) for c in (errno.ENOSPC, errno.EACCES, None))
    assert [e.failure_category for e in (full, closed, other)] == ["quota", "auth", "unknown"]
    assert pickle.loads(pickle.dumps(full)).failure_category == "quota"


def test_every_class_has_an_example_and_a_builtin_parent() -> None:
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ZephyrError)}
    assert classes == {type(error) for error in EXAMPLES}
    for cls in classes - {ZephyrError}:
        assert cls.__doc__
        assert any(base.__module__ == "builtins" and base is not Exception for base in cls.__mro__[1:-3]), cls
        assert f"── {cls.__name__}" in (errors.__doc__ or "")
