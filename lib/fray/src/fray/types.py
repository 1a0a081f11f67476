"""The vocabulary: what a job is, what it runs, where, and how it can end. Plain data, no I/O."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from rigging.resources import ANY_REGION, CpuConfig, GpuConfig, ResourceConfig, TpuConfig

from fray.errors import JobRequestError

__all__ = [
    "ANY_REGION",
    "ActorConfig",
    "CpuConfig",
    "Entrypoint",
    "EnvironmentConfig",
    "GpuConfig",
    "JobRequest",
    "JobStatus",
    "ResourceConfig",
    "TpuConfig",
    "create_environment",
]

_PORT_NAME: Final = re.compile("[A-Za-z][A-Za-z0-9-]*")
_PASSED_ON: Final = ("HF_TOKEN", "WANDB_API_KEY", "MARIN_CI_DISABLE_RUNTIME_ENVS")
_DEFAULT_ENV: Final = {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_TRUST_REMOTE_CODE": "1"}


class JobStatus(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @staticmethod
    def finished(status: "JobStatus") -> bool:
        """Tell whether ``status`` is final.

        Example:
            >>> JobStatus.finished(JobStatus.FAILED), JobStatus.finished(JobStatus.RUNNING)
            (True, False)
        """
        return status in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED)


@dataclass(frozen=True)
class EnvironmentConfig:
    """What surrounds a task: working tree or image, packages, variables.

    Args:
        workspace: Folder that the task starts in.
        docker_image: Image to run in instead; not for the local backend.
        pip_packages: Extra packages, installed with uv before the first job that names them.
        env_vars: Variables on top of the backend's own.
        extras: Extras of the workspace's project to install.
    Raises:
        JobRequestError: Both or neither of ``workspace`` and ``docker_image``.

    Example:
        >>> EnvironmentConfig(workspace="/tmp", env_vars={"MODE": "test"}).env_vars["MODE"]
        'test'
    """

    workspace: str | None = None
    docker_image: str | None = None
    pip_packages: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    extras: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.workspace is None) == (self.docker_image is None):
            raise JobRequestError(
                "environment",
                {"workspace": self.workspace, "docker_image": self.docker_image},
                "exactly one of workspace and docker_image",
            )


def create_environment(
    workspace: str | None = None,
    docker_image: str | None = None,
    pip_packages: Sequence[str] = (),
    env_vars: Mapping[str, str | None] | None = None,
    extras: Sequence[str] = (),
) -> EnvironmentConfig:
    """Return an environment with the usual defaults; the caller's variables win, and None removes one.

    The workspace defaults to the current folder. ``HF_TOKEN``, ``WANDB_API_KEY`` and ``MARIN_CI_DISABLE_RUNTIME_ENVS``
    are passed on when set.

    Example:
        >>> env = create_environment(env_vars={"MODE": "test", "TOKENIZERS_PARALLELISM": None})
        >>> env.env_vars["MODE"], "TOKENIZERS_PARALLELISM" in env.env_vars
        ('test', False)
    """
    merged: dict[str, str | None] = dict(_DEFAULT_ENV)
    merged |= {name: os.environ.get(name) for name in _PASSED_ON}
    merged |= dict(env_vars or {})
    if workspace is None and docker_image is None:
        workspace = os.getcwd()
    return EnvironmentConfig(
        workspace=workspace,
        docker_image=docker_image,
        pip_packages=tuple(pip_packages),
        env_vars={name: value for name, value in merged.items() if value is not None},
        extras=tuple(extras),
    )


@dataclass(frozen=True)
class Entrypoint:
    """What a job runs: a callable with arguments, or a command. Make it with one of the two class methods."""

    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (self.fn is None) == (self.command is None):
            raise JobRequestError("entrypoint", self, "exactly one of a callable and a command")

    @classmethod
    def from_callable(
        cls, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Self:
        """Run ``fn(*args, **kwargs)`` in the job's process; its value is the job's result.

        Raises:
            JobRequestError: ``fn`` cannot be called.

        Example:
            >>> Entrypoint.from_callable(sum, [[1, 2]]).args
            ([1, 2],)
        """
        if not callable(fn):
            raise JobRequestError("fn", fn, "a callable")
        return cls(fn=fn, args=tuple(args), kwargs=dict(kwargs or {}))

    @classmethod
    def from_binary(cls, cmd: str, args: Sequence[str] = ()) -> Self:
        """Run the program ``cmd`` with ``args``; it succeeds when it exits with 0.

        Example:
            >>> Entrypoint.from_binary("echo", ["hello"]).command
            ('echo', 'hello')
        """
        return cls(command=(cmd, *args))


@dataclass(frozen=True)
class JobRequest:
    """A job to run.

    Args:
        name: Name without blanks, unique among live jobs of a client.
        entrypoint: What to run.
        resources: What each replica needs.
        environment: Where it runs; None inherits the driver's.
        replicas: Number of equal tasks; None takes it from ``resources``.
        max_retries_failure: Times a task is started again after an exception or a bad exit.
        max_retries_preemption: Times a task is started again after its machine was taken away. The local backend has no
            preemption: a process killed by a signal there counts as a failure.
        fresh_process: Never run in a process that ran another job before.
        ports: Names of network ports that each task is given; it finds their numbers with ``fray.job_port``.
    Raises:
        JobRequestError: A blank in the name, no replica, negative retries, or a bad or repeated port name.

    Example:
        >>> JobRequest("train", Entrypoint.from_binary("echo"), replicas=4).num_replicas
        4
    """

    name: str
    entrypoint: Entrypoint
    resources: ResourceConfig = field(default_factory=ResourceConfig)
    environment: EnvironmentConfig | None = None
    replicas: int | None = None
    max_retries_failure: int = 0
    max_retries_preemption: int = 100
    fresh_process: bool = False
    ports: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.name or any(char.isspace() for char in self.name):
            raise JobRequestError("name", self.name, "text without blanks", "Use dashes.")
        if self.replicas is None:
            object.__setattr__(self, "replicas", self.resources.replicas)
        if self.num_replicas < 1:
            raise JobRequestError("replicas", self.replicas, "at least 1")
        if self.max_retries_failure < 0 or self.max_retries_preemption < 0:
            raise JobRequestError(
                "retries", (self.max_retries_failure, self.max_retries_preemption), "numbers that are not negative"
            )
        if isinstance(self.ports, str) or len({name.lower() for name in self.ports}) != len(self.ports):
            raise JobRequestError("ports", self.ports, "a list of different names")
        if not all(_PORT_NAME.fullmatch(name) for name in self.ports):
            raise JobRequestError("ports", list(self.ports), "names of letters, digits and dashes")

    @property
    def num_replicas(self) -> int:
        """Number of equal tasks."""
        return self.resources.replicas if self.replicas is None else self.replicas


@dataclass(frozen=True)
class ActorConfig:
    """How an actor behaves.

    Args:
        max_concurrency: Calls that run at once; with 1 the actor needs no locks of its own.
        max_restarts: Times a dead actor is started again under the same name, with fresh state; None means 0.
        max_task_retries: Reserved for backends whose scheduler counts task retries.
    Raises:
        JobRequestError: A number out of range.

    Example:
        >>> ActorConfig(max_concurrency=4, max_restarts=3).max_concurrency
        4
    """

    max_concurrency: int = 1
    max_restarts: int | None = None
    max_task_retries: int | None = None

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise JobRequestError("max_concurrency", self.max_concurrency, "at least 1")
        if self.max_restarts is not None and self.max_restarts < 0:
            raise JobRequestError("max_restarts", self.max_restarts, "None or a number that is not negative")
