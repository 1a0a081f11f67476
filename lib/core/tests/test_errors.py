"""Every error class renders its values, its fix, and survives a trip between processes."""

import inspect
import pickle

import pytest
from marin import errors
from marin.execution.gates import Refusal
from marin.execution.regions import RegionConflict

REFUSAL = Refusal(
    rule="licence",
    step="model@auto-1",
    name="model",
    kind="train",
    subject="web",
    reason="web is under CC-BY-NC-4.0",
    path=("web", "raw@1", "model@auto-1"),
    remedy="Leave it out.",
)
EXAMPLES = [
    errors.PlanError("train", "something is wrong.", field="model.lr", hint="Change it."),
    errors.InvalidNameError("a//b", "has an empty segment"),
    errors.InvalidVersionError("train", "v1", "is not a version"),
    errors.UnresolvedVersionError("train"),
    errors.UnfingerprintableError("train", "model.act", "builtins.function", "is a function"),
    errors.UndeclaredDependencyError("train", "tokens"),
    errors.UndeclaredArgumentError("train", "workers", ["threads"]),
    errors.InputBindingError("train", "missing a required argument: 'source'"),
    errors.StepCycleError(["a", "b", "a"]),
    errors.StepCollisionError("a@dev", "b@dev", "/store/a/dev", "two different recipes share one output path"),
    errors.MutableDependencyError("train", "2026.12.01", "tokens@dev"),
    errors.FingerprintMismatchError("train", "abcd1234", "ffff0000", "lr: 1 -> 2"),
    errors.SecretInConfigError("train", "wandb.api_key", "its name says that it holds a secret: 'api_key'"),
    errors.PlanRefusedError([REFUSAL, REFUSAL], "policy.toml (0123)"),
    errors.UnknownStepError("trian", ["train"]),
    errors.CrossRegionError([RegionConflict("a@dev", "gs://example-eu/a", "eu-west1", ("us-east1",))]),
    errors.StoreError("/store", "strange"),
    errors.StoreUnavailableError("/store", "PermissionError: no"),
    errors.InputMissingError("/data", "raw@2026.12.01 adopts it"),
    errors.RecordNotFoundError("/store", "no step x"),
    errors.RecordFormatError("/store/a/.artifact.json", "record_format=9, newest known here is 2"),
    errors.CorruptRecordError("/store/a/.artifact.json", "it is not JSON"),
    errors.ReplicaMismatchError("s3://example-bucket/a", "changed content: x"),
    errors.UnsupportedFileError("/store/a/socket", "mode=srwx"),
    errors.ArtifactTypeMismatchError("/store/a", "lab.Tokens", "lab.Model"),
    errors.ArtifactFieldError("lab.Tokens", "count", "the record does not hold it"),
    errors.StepFailedError("a@dev", "user_code", "ValueError: no"),
    errors.StepTimeoutError("a@dev", 3.0),
    errors.StepLeaseLostError("a@dev", 4, "another driver has written epoch 5"),
    errors.GangError("/store/gang", "rank 1 ended with ValueError: no"),
    errors.UsageError("--plan and --dry-run exclude one another.", hint="Leave one of them out."),
    errors.ScriptError("x.py", "there is no such file"),
    errors.PolicyError("policy.toml", "kinds.train.alow", "this key is not known; did you mean 'allow'?"),
    errors.KeyFileError("key.pem", "it is no Ed25519 key"),
]
ABSTRACT = {errors.MarinError, errors.ArtifactError, errors.StepError}


def test_every_class_has_an_example():
    classes = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.MarinError)}
    assert classes - ABSTRACT == {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_what_to_do_and_survives_pickling(error):
    text = str(error)
    assert error.hint and text.endswith(error.hint)
    assert (isinstance(error, errors.MarinError) and not isinstance(error, errors.StepError | errors.PlanError)) or text
    revived = pickle.loads(pickle.dumps(error))
    assert type(revived) is type(error) and str(revived) == text and revived.__dict__ == error.__dict__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_also_a_fitting_builtin(error):
    builtins = {base for base in type(error).__mro__ if base.__module__ == "builtins"} - {
        object,
        BaseException,
        Exception,
    }
    assert builtins


def test_the_tree_in_the_docstring_is_the_real_one():
    for example in EXAMPLES:
        assert type(example).__name__ in errors.__doc__
