"""Every environment variable that rigging reads, in one table.

Other modules read the environment only through this one, so the table is complete by construction.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, type, default and meaning."""

    name: str
    type: str
    default: str
    meaning: str

    def get(self) -> str | None:
        """Return the text of the variable, or None when it is unset or empty."""
        return os.environ.get(self.name) or None


PREFIX = Variable("MARIN_PREFIX", "path or URL", "./marin_store", "root of the artifact store")
REGION = Variable("MARIN_REGION", "string", "from the prefix", "region of this machine, for transfer decisions")
PROVENANCE = Variable("MARIN_PROVENANCE", "JSON", "from git", "provenance of the launch, handed to jobs")
PROGRESS = Variable("MARIN_PROGRESS", "0 or 1", "1", "0 silences progress lines")
PROGRESS_INTERVAL = Variable("MARIN_PROGRESS_INTERVAL_S", "seconds", "10", "time between progress lines in a log")
NO_FAULT_HANDLER = Variable("RIGGING_DISABLE_FAULTHANDLER", "0 or 1", "0", "1 leaves faulthandler alone")
JOB_ID = Variable("MARIN_JOB_ID", "string", "unset", "id of the job this process belongs to")
JOB_RANK = Variable("MARIN_JOB_RANK", "integer", "0", "rank of this process, from 0")
JOB_COUNT = Variable("MARIN_JOB_COUNT", "integer", "1", "number of processes of the job")
JOB_COORDINATOR = Variable("MARIN_JOB_COORDINATOR", "host:port", "unset", "address where rank 0 listens")
JOB_ATTEMPT = Variable("MARIN_JOB_ATTEMPT", "integer", "0", "number of this attempt, from 0")

TABLE = (
    PREFIX,
    REGION,
    PROVENANCE,
    PROGRESS,
    PROGRESS_INTERVAL,
    NO_FAULT_HANDLER,
    JOB_ID,
    JOB_RANK,
    JOB_COUNT,
    JOB_COORDINATOR,
    JOB_ATTEMPT,
)


def read(name: str) -> str | None:
    """Return the raw text of the variable ``name``, which the caller's user chose (a secret reference)."""
    return os.environ.get(name)
