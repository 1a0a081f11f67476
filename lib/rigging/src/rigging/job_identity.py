"""Who am I in this job: rank, size, id and the coordinator's address, from the environment.

The scheduler (iris, or fray's local backend) writes the variables; a trainer reads this record. Neither needs to know
the other. A process that no scheduler started is job-less: rank 0 of 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rigging import _env
from rigging.errors import JobIdentityError


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The place of one process in its job.

    Args:
        rank: Number of this process, ``0 <= rank < count``.
        count: Number of processes of the job, ``>= 1``.
        job_id: Id of the job; None outside a job.
        coordinator: ``host:port`` where rank 0 listens; required when ``count > 1``.
        attempt: Number of this attempt, from 0; grows when the job is started again.
    Raises:
        JobIdentityError: The fields contradict each other.

    Example:
        >>> JobIdentity.from_environment({})
        JobIdentity(rank=0, count=1, job_id=None, coordinator=None, attempt=0)
        >>> JobIdentity(rank=1, count=2, job_id="train", coordinator="10.0.0.1:8476").is_coordinator
        False
    """

    rank: int = 0
    count: int = 1
    job_id: str | None = None
    coordinator: str | None = None
    attempt: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise JobIdentityError(_env.JOB_COUNT.name, self.count, "an integer >= 1")
        if not 0 <= self.rank < self.count:
            raise JobIdentityError(_env.JOB_RANK.name, self.rank, f"0 <= rank < {self.count}")
        if self.count > 1 and not self.coordinator:
            raise JobIdentityError(_env.JOB_COORDINATOR.name, self.coordinator, "host:port, as count > 1")
        if self.attempt < 0:
            raise JobIdentityError(_env.JOB_ATTEMPT.name, self.attempt, "an integer >= 0")

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0, which writes what must be written once."""
        return self.rank == 0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the identity from ``environ`` (default: the process environment).

        Raises:
            JobIdentityError: A number is not a number, or the fields contradict each other.
        """

        def text(variable: _env.Variable) -> str | None:
            return variable.get() if environ is None else environ.get(variable.name) or None

        def number(variable: _env.Variable, default: int) -> int:
            raw = text(variable)
            if raw is None:
                return default
            try:
                return int(raw)
            except ValueError:
                raise JobIdentityError(variable.name, raw, "an integer") from None

        return cls(
            rank=number(_env.JOB_RANK, 0),
            count=number(_env.JOB_COUNT, 1),
            job_id=text(_env.JOB_ID),
            coordinator=text(_env.JOB_COORDINATOR),
            attempt=number(_env.JOB_ATTEMPT, 0),
        )

    def to_environment(self) -> dict[str, str]:
        """Return the variables from which ``from_environment`` reads this identity back.

        Example:
            >>> me = JobIdentity(rank=1, count=2, job_id="j", coordinator="h:1")
            >>> JobIdentity.from_environment(me.to_environment()) == me
            True
        """
        values = {
            _env.JOB_RANK.name: str(self.rank),
            _env.JOB_COUNT.name: str(self.count),
            _env.JOB_ATTEMPT.name: str(self.attempt),
        }
        if self.job_id is not None:
            values[_env.JOB_ID.name] = self.job_id
        if self.coordinator is not None:
            values[_env.JOB_COORDINATOR.name] = self.coordinator
        return values
