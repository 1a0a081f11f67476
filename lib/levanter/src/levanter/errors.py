"""Every error levanter's training side raises on purpose, as one tree.

    LevanterError
    ├── ConfigError                (ValueError)         a configuration that cannot be used
    │   ├── UnknownKeyError                             a key no dataclass field has; names the nearest one
    │   └── ConfigFileError                             a configuration file that cannot be read or parsed
    ├── MissingExtraError          (ImportError)        a feature whose optional dependency is not installed
    ├── MaskError                  (ValueError)         attention masks that cannot be combined or applied
    ├── ModelShapeError            (ValueError)         a model and its inputs disagree on a shape
    ├── AttentionBackendError      (ValueError)         an attention kernel that cannot do what is asked, here
    ├── TrainingError              (RuntimeError)       training stopped
    │   ├── DivergedError          (ArithmeticError)    the loss went to infinity, to NaN, or ran away
    │   ├── CancelledError                              the caller's cancel event was set
    │   ├── PreemptedError                              a preemption signal arrived; the state was saved first
    │   └── DataFailedError                             the loader failed or ran dry; the state was saved first
    ├── CheckpointError            (RuntimeError)       saving or restoring failed
    │   ├── CheckpointNotFoundError (FileNotFoundError) nothing complete at that path
    │   ├── CheckpointMismatchError (ValueError)        the stored tree and the wanted tree differ
    │   └── CheckpointCorruptError (OSError)            stored bytes cannot be read back
    ├── HfCheckpointError          (ValueError)         a Hugging Face folder that cannot be imported or exported
    │   └── HfTensorError                               one tensor is missing, unexpected or has the wrong shape
    ├── TrackerError               (RuntimeError)       a metrics back-end failed or was misused
    └── EvaluationError            (ValueError)         a measurement over no data, or over data a model cannot take

Messages follow one form: what failed, the offending ``name=value`` pairs, what was expected, what to do.
Every value in a message is also an attribute, so callers branch on fields and never on text.
"""

from collections.abc import Sequence
from typing import Any


class LevanterError(Exception):
    """Root of every error that levanter raises on purpose.

    Errors travel between processes: unpickling restores message and fields without calling the constructor.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(error_class: type[LevanterError], args: tuple[Any, ...], fields: dict[str, Any]) -> LevanterError:
    error = error_class.__new__(error_class)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigError(LevanterError, ValueError):
    """A configuration value that cannot be used.

    Attributes:
        key: Dotted path of the offending key, empty for the root.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(f"`{key}`: {message}" if key else message)
        self.key = key


class UnknownKeyError(ConfigError):
    """A key that no field of the configuration has.

    Attributes:
        key: Dotted path of the unknown key.
        nearest: The known key most like it, or None.
        known: Every key valid at that place.
    """

    def __init__(self, key: str, *, known: Sequence[str], nearest: str | None, owner: str) -> None:
        hint = f"Did you mean `{nearest}`?" if nearest else f"Known keys: {', '.join(sorted(known)) or 'none'}."
        super().__init__(f"unknown configuration key for {owner}; expected a field of that class. {hint}", key=key)
        self.nearest = nearest
        self.known = tuple(known)


class ConfigFileError(ConfigError):
    """A configuration file that cannot be read or parsed.

    Attributes:
        path: The file.
        reason: What went wrong.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"cannot load the configuration file: path={path}, reason={reason}; expected a YAML mapping. "
            "Check the path and the syntax."
        )
        self.path = path
        self.reason = reason


class MissingExtraError(LevanterError, ImportError):
    """An optional dependency is not installed.

    Attributes:
        feature: What was asked for.
        extra: The extra that brings it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"cannot use {feature}: its package is not installed; expected the extra `{extra}`. "
            f"Run `pip install 'marin-levanter[{extra}]'`."
        )
        self.feature = feature
        self.extra = extra


class MaskError(LevanterError, ValueError):
    """Attention masks that cannot be combined or applied."""


class ModelShapeError(LevanterError, ValueError):
    """A model and its inputs, or a configuration and itself, disagree on a shape.

    Attributes:
        name: The quantity at fault.
    """

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class AttentionBackendError(LevanterError, ValueError):
    """An attention kernel that cannot do what is asked of it, on this platform or with these inputs.

    Attributes:
        backend: Name of the kernel.
    """

    def __init__(self, backend: str, found: str, expected: str) -> None:
        super().__init__(f"cannot attend: attn_backend={backend}, {found}; expected {expected}.")
        self.backend = backend


class TrainingError(LevanterError, RuntimeError):
    """Training stopped before its last step.

    Attributes:
        step: 0-based index of the step at which it stopped, or None before the first.
        failure_category: Short machine-readable reason, used by ledgers to group failures.
    """

    failure_category = "failed"

    def __init__(self, message: str, *, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class DivergedError(TrainingError, ArithmeticError):
    """The loss became non-finite, or stayed far above its best value.

    Raised after the metrics up to and including the failing step are flushed, so the curve is kept.

    Attributes:
        step: 0-based index of the step whose loss was judged.
        loss: That loss, in nats per token.
        reason: What rule fired.
    """

    failure_category = "diverged"

    def __init__(self, step: int, loss: float, reason: str) -> None:
        super().__init__(
            f"training diverged: step={step}, loss={loss}, reason={reason}; expected a finite loss near its minimum. "
            "Lower optimizer.learning_rate, lengthen optimizer.warmup, or relax trainer.divergence.",
            step=step,
        )
        self.loss = loss
        self.reason = reason

    def __reduce__(self) -> tuple:
        """Rebuild from the three fields so that the error survives process boundaries."""
        return (type(self), (self.step, self.loss, self.reason))


class CancelledError(TrainingError):
    """The caller's cancel event was set; the state was checkpointed first when a checkpointer is configured."""

    failure_category = "cancelled"

    def __init__(self, step: int) -> None:
        super().__init__(
            f"training was cancelled: step={step}; expected to run to the last step. Start it again to resume.",
            step=step,
        )

    def __reduce__(self) -> tuple:
        """Rebuild from the step."""
        return (type(self), (self.step,))


class PreemptedError(TrainingError):
    """A preemption signal arrived; a checkpoint was committed before this was raised.

    Attributes:
        signal_name: The signal, for example ``SIGTERM``.
        checkpoint_path: Where the state was saved, or None without a checkpointer.
    """

    failure_category = "preempted"

    def __init__(self, step: int, signal_name: str, checkpoint_path: str | None) -> None:
        super().__init__(
            f"training was preempted: step={step}, signal={signal_name}, checkpoint_path={checkpoint_path}; "
            "expected to run to the last step. Start it again to resume.",
            step=step,
        )
        self.signal_name = signal_name
        self.checkpoint_path = checkpoint_path

    def __reduce__(self) -> tuple:
        """Rebuild from the three fields."""
        return (type(self), (self.step, self.signal_name, self.checkpoint_path))


class DataFailedError(TrainingError):
    """The loader failed, or the data ended, before the last step; the state was checkpointed first.

    Attributes:
        reason: What the loader said.
    """

    failure_category = "data"

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"no batch could be read: step={step}, reason={reason}; expected one batch a step. "
            "Repair the data and start it again to resume at this step.",
            step=step,
        )
        self.reason = reason

    def __reduce__(self) -> tuple:
        """Rebuild from the two fields."""
        return (type(self), (self.step, self.reason))


class CheckpointError(LevanterError, RuntimeError):
    """Saving or restoring a checkpoint failed.

    Attributes:
        path: The checkpoint or checkpoint root.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """No complete checkpoint exists at the place asked for.

    Attributes:
        incomplete: Checkpoint folders found there that lack ``metadata.json``.
    """

    def __init__(self, path: str, *, incomplete: Sequence[str] = ()) -> None:
        seen = f"; incomplete ones were ignored: {', '.join(incomplete)}" if incomplete else ""
        super().__init__(
            f"no complete checkpoint found: path={path}{seen}; expected a folder with metadata.json, "
            "or a root that holds step-<n> folders. Check the path, or start without load_checkpoint=true.",
            path=path,
        )
        self.incomplete = tuple(incomplete)


class CheckpointMismatchError(CheckpointError, ValueError):
    """The stored tree and the wanted tree differ.

    Attributes:
        leaf: Path of the offending leaf.
        expected: What the caller's tree has there.
        found: What the checkpoint has there.
    """

    def __init__(self, path: str, leaf: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"checkpoint does not fit: path={path}, leaf={leaf}, found={found}; expected {expected}. "
            "Use the configuration the checkpoint was written with, or allow_partial=True for missing leaves.",
            path=path,
        )
        self.leaf = leaf
        self.expected = expected
        self.found = found


class CheckpointCorruptError(CheckpointError, OSError):
    """Stored bytes cannot be read back, or fail their checksum.

    Attributes:
        leaf: Path of the offending leaf, or of the file inside the checkpoint.
        reason: What the storage layer said.
    """

    def __init__(self, path: str, leaf: str, reason: str) -> None:
        super().__init__(
            f"checkpoint is damaged: path={path}, leaf={leaf}, reason={reason}; expected readable bytes with a "
            "matching checksum. Restore an older step, or copy the checkpoint again.",
            path=path,
        )
        self.leaf = leaf
        self.reason = reason


class HfCheckpointError(LevanterError, ValueError):
    """A Hugging Face model folder that cannot be imported or exported.

    Attributes:
        path: The folder.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class HfTensorError(HfCheckpointError):
    """One tensor of a Hugging Face folder is missing, unexpected or has the wrong shape.

    Attributes:
        name: The tensor's name in the state dict.
        problem: ``missing``, ``unexpected``, ``shape``, ``dtype`` or ``value``.
    """

    def __init__(self, path: str, name: str, problem: str, *, detail: str) -> None:
        super().__init__(
            f"cannot import the state dict: path={path}, tensor={name}, problem={problem}; expected {detail}. "
            "Check that config.json belongs to these weights.",
            path=path,
        )
        self.name = name
        self.problem = problem


class TrackerError(LevanterError, RuntimeError):
    """A metrics back-end failed or was misused."""


class EvaluationError(LevanterError, ValueError):
    """A measurement over no data, or over data a model cannot take."""
