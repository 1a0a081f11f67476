"""Every error class is rendered once: its message names what failed and its fields are attributes."""

import pickle

import pytest
from levanter import errors as e

EXAMPLES = {
    e.LevanterError: lambda: e.LevanterError("anything"),
    e.ConfigError: lambda: e.ConfigError("x=1; expected 2.", key="a.b"),
    e.UnknownKeyError: lambda: e.UnknownKeyError("a.stpes", known=["steps"], nearest="steps", owner="A"),
    e.ConfigFileError: lambda: e.ConfigFileError("c.yaml", "no such file"),
    e.MissingExtraError: lambda: e.MissingExtraError("the wandb tracker", "wandb"),
    e.MaskError: lambda: e.MaskError("cannot combine masks: a=1; expected 2."),
    e.ModelShapeError: lambda: e.ModelShapeError("heads=3; expected 4.", name="heads"),
    e.AttentionBackendError: lambda: e.AttentionBackendError("cudnn", "platform=cpu", "gpu; use jax_flash here"),
    e.TrainingError: lambda: e.TrainingError("stopped", step=3),
    e.DivergedError: lambda: e.DivergedError(3, float("nan"), "loss is not finite"),
    e.CancelledError: lambda: e.CancelledError(3),
    e.PreemptedError: lambda: e.PreemptedError(3, "SIGTERM", "/c/step-3"),
    e.DataFailedError: lambda: e.DataFailedError(3, "the data ended"),
    e.CheckpointError: lambda: e.CheckpointError("cannot write", path="/c"),
    e.CheckpointNotFoundError: lambda: e.CheckpointNotFoundError("/c", incomplete=["/c/step-3"]),
    e.CheckpointMismatchError: lambda: e.CheckpointMismatchError("/c", "w", expected="shape (2,)", found="shape (3,)"),
    e.CheckpointCorruptError: lambda: e.CheckpointCorruptError("/c", "w", "checksum"),
    e.HfCheckpointError: lambda: e.HfCheckpointError("cannot import", path="/hf"),
    e.HfTensorError: lambda: e.HfTensorError("/hf", "lm_head.weight", "missing", detail="every tensor"),
    e.TrackerError: lambda: e.TrackerError("cannot log backwards: step=1; expected 2."),
    e.EvaluationError: lambda: e.EvaluationError("documents=0; expected one."),
}


def classes(root=e.LevanterError):
    own = [c for c in root.__subclasses__() if c.__module__ == e.__name__]
    return [root, *(c for child in own for c in classes(child))]


@pytest.mark.parametrize("cls", classes(), ids=lambda c: c.__name__)
def test_every_class_has_an_example_that_reads(cls):
    error = EXAMPLES[cls]()
    assert type(error) is cls and len(str(error)) >= 7
    assert cls.__name__ in e.__doc__


def test_every_class_also_is_a_fitting_builtin():
    for cls in classes()[1:]:
        assert issubclass(cls, ValueError | ImportError | RuntimeError | OSError | ArithmeticError), cls


def test_stops_survive_process_boundaries():
    for cls in (e.DivergedError, e.CancelledError, e.PreemptedError, e.DataFailedError):
        error = EXAMPLES[cls]()
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is cls and str(copy) == str(error) and copy.step == 3
        assert copy.failure_category in ("diverged", "cancelled", "preempted", "data")
