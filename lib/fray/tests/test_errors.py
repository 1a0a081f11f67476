"""Every error, rendered once, pickled once."""

import inspect
import pickle

import pytest
from fray import errors

EXAMPLES = [
    errors.FrayError("anything; expected nothing. Do so."),
    errors.JobRequestError("name", "a b", "text without blanks"),
    errors.EnvironmentSetupError(["nothing"], "uv is not on PATH"),
    errors.SerializationError("the entrypoint", "TypeError: a lock"),
    errors.BackendNotFoundError("cloud", ["local"]),
    errors.BackendMissingError("ray", "marin-fray[ray]"),
    errors.CallCancelledError("counter-0.add"),
    errors.ClientClosedError("submit"),
    errors.JobAlreadyExists("train"),
    errors.JobFailed("local-train-1", "failed", exit_code=3, log_tail=("last words",)),
    errors.PortNotFoundError("http", ["grpc"]),
    errors.EndpointNotFoundError("web", 3.0),
    errors.EndpointTakenError("web", "http://h:80"),
    errors.RemoteError("mod.Oops", "text", "Traceback ..."),
    errors.ActorUnavailableError("counter-0", "it was shut down"),
]


def classes():
    return [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, Exception) and item.__module__ == "fray.errors"
    ]


def test_every_class_has_an_example_and_stands_in_the_tree():
    assert {type(error) for error in EXAMPLES} == set(classes())
    for cls in classes():
        assert cls.__name__ in (errors.__doc__ or "") and cls.__doc__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_what_was_expected(error):
    assert "expected" in str(error) and isinstance(error, errors.FrayError)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_travels_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.__dict__ == error.__dict__


def test_exits_are_described_in_words():
    assert errors.describe_exit(None, 15) == "killed by SIGTERM"
    assert errors.describe_exit(None, 200) == "killed by signal 200"
    assert "it was stopped" in str(errors.JobFailed("j", "stopped"))
    assert "ZeroDivisionError: x" in str(errors.JobFailed("j", "failed", remote_traceback="T\nZeroDivisionError: x\n"))
