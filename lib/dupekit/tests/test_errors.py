import pickle

import dupekit.errors
import pytest
from dupekit.errors import DupekitError

EXAMPLES = [
    (dupekit.errors.NativeModuleError(reason="it does not load"), ImportError, "pip install"),
    (dupekit.errors.ParameterError(name="n", value="0", expected="at least 1"), ValueError, "n=0; expected at least 1"),
    (dupekit.errors.ColumnNotFoundError(column="a", available=["b"]), ValueError, "column='a'; expected one of: b"),
    (dupekit.errors.ColumnTypeError(column="a", found="Int64", expected="string"), TypeError, "type=Int64; expected"),
    (dupekit.errors.ParseError(what="a record", reason="length=1"), ValueError, "cannot read a record: length=1"),
    (dupekit.errors.BatchTooLargeError(column="a"), ValueError, "Split the batch"),
]


def test_every_error_class_has_an_example() -> None:
    classes = {
        value for value in vars(dupekit.errors).values() if isinstance(value, type) and value is not DupekitError
    }
    defined = {kind for kind in classes if issubclass(kind, DupekitError)}
    assert defined == {type(error) for error, _, _ in EXAMPLES}


@pytest.mark.parametrize(("error", "builtin", "part"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_is_a_builtin_too_and_says_what_to_do(error: DupekitError, builtin: type, part: str) -> None:
    assert isinstance(error, builtin)
    assert part in str(error)
    assert "expected" in str(error) or isinstance(error, dupekit.errors.ParseError)
    assert str(error).endswith(".")


@pytest.mark.parametrize(("error", "builtin", "part"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_an_error_crosses_processes_with_its_fields(error: DupekitError, builtin: type, part: str) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_the_tree_in_the_docstring_is_complete() -> None:
    for error, builtin, _ in EXAMPLES:
        assert f"{type(error).__name__} ({builtin.__name__})" in (dupekit.errors.__doc__ or "")
