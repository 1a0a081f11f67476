"""Every error, rendered once, pickled once."""

import inspect
import pickle

import pytest
from rigging import errors

EXAMPLES = [
    errors.RiggingError("anything; expected nothing. Do so."),
    errors.SizeParseError("4 lumps"),
    errors.ResourceError("cpu", 0, "a positive number"),
    errors.JobIdentityError("MARIN_JOB_RANK", "x", "an integer"),
    errors.CanonicalJsonError("$.a", {1}, "a list"),
    errors.SecretResolutionError("no source had it", tried=["env"]),
    errors.ProvenanceError("git failed", "no repository; expected one", "Run inside one."),
    errors.MissingExtraError("s3:// storage", "s3"),
    errors.ConfigError("x.yaml", "it is a list", "a mapping"),
    errors.ConfigNotFoundError("staging", ["/etc"], ["prod"]),
    errors.TelemetryError("service", "", "a name"),
    errors.AuthError("anything; expected nothing. Do so."),
    errors.KeyFormatError("public key", "it is not SPKI PEM"),
    errors.TokenError("it has run out", "exp in the future"),
    errors.NotAuthenticatedError("the request brought no credential"),
    errors.CredentialError("/x", "others may use it", "mode 0600", "Run chmod."),
    errors.TransportError("k8s://x", "a port"),
    errors.MissingCredentials("gs://example-bucket/x", "no file", "gcloud auth login"),
    errors.TransferBudgetExceeded(1, 2, 2, "gs://example-eu/x"),
    errors.CrossRegionPathError("data.cache", "gs://example-eu/x", "eu", "us"),
    errors.TransferVerificationError("/a", "/b", "3 bytes", "2 bytes"),
    errors.UnsafePathError("../x", "it has the part '..'"),
    errors.ParquetFormatError("/x", "too short"),
    errors.StorageError("anything; expected nothing. Do so."),
    errors.StoragePathError("parse", "", "a path"),
    errors.DestinationExistsError("/x", "nothing there"),
    errors.ConditionalWriteError("/x", "1", "2"),
    errors.UnsupportedConditionalWrite("memory://x", "memory"),
    errors.StoreBusyError("/x", 30.0),
    errors.LeaseError("anything; expected nothing. Do so."),
    errors.LeaseHeldError("/x", "host:1", 3, "it beats"),
    errors.LeaseLostError("/x", 3, "host:2 has written epoch 4"),
    errors.LeaseFormatError("/x", "no epoch"),
]


def classes():
    return [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, Exception) and item.__module__ == "rigging.errors"
    ]


def test_every_class_has_an_example_and_stands_in_the_tree():
    assert {type(error) for error in EXAMPLES} == set(classes())
    for cls in classes():
        assert cls.__name__ in (errors.__doc__ or "")
        assert cls.__doc__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_what_was_expected_and_what_to_do(error):
    text = str(error)
    assert "expected" in text or isinstance(error, errors.SecretResolutionError)
    assert text.rstrip("'").endswith((".", "]", "]'")) or "pip install" in text
    assert isinstance(error, errors.RiggingError)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_travels_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.__dict__ == error.__dict__


def test_each_error_is_also_the_builtin_that_fits():
    import builtins

    plain = {errors.RiggingError, errors.StorageError, errors.LeaseError}
    for cls in set(classes()) - plain:
        assert any(base.__module__ == builtins.__name__ and base is not Exception for base in cls.__mro__[1:-3]), cls
