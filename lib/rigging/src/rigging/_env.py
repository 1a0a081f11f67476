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
GCS_EMULATOR = Variable("STORAGE_EMULATOR_HOST", "URL", "unset", "Google Cloud Storage emulator to use for `gs://`")
GOOGLE_CREDENTIALS = Variable("GOOGLE_APPLICATION_CREDENTIALS", "path", "unset", "file with Google credentials")
GCLOUD_FOLDER = Variable("CLOUDSDK_CONFIG", "path", "~/.config/gcloud", "where gcloud keeps its credentials")
CLUSTER = Variable("MARIN_CLUSTER", "name or path", "unset", "cluster configuration that says where data lives")
TRANSFER_BUDGET = Variable("MARIN_MIRROR_BUDGET_GB", "GB", "10", "how much a process may read from other regions")
PAY_ALL_FEES = Variable("MARIN_I_WILL_PAY_FOR_ALL_FEES", "0 or 1", "0", "1 lifts the limit on reads from other regions")
METADATA_HOST = Variable("GCE_METADATA_HOST", "host[:port]", "unset", "metadata server to ask for the machine's region")
CLUSTER_TOKEN = Variable("MARIN_CLUSTER_TOKEN", "token", "unset", "token for a cluster, before any credential file")
SECRET_MANAGER = Variable(
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER",
    "URL",
    "Google's",
    "where Secret Manager is (gcloud's variable)",
)
TELEMETRY = Variable("MARIN_TELEMETRY", "list", "unset", "exporters: some of `console,otlp`; unset sends nothing")
CONFIG_HOME = Variable("XDG_CONFIG_HOME", "path", "~/.config", "where configuration and credentials of a user are")

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
    GCS_EMULATOR,
    GOOGLE_CREDENTIALS,
    GCLOUD_FOLDER,
    CLUSTER,
    TRANSFER_BUDGET,
    PAY_ALL_FEES,
    METADATA_HOST,
    CLUSTER_TOKEN,
    SECRET_MANAGER,
    TELEMETRY,
    CONFIG_HOME,
)


def read(name: str) -> str | None:
    """Return the raw text of the variable ``name``, which the caller's user chose (a secret reference)."""
    return os.environ.get(name)


def quieten_gcsfs_for_emulator() -> None:
    """Keep gcsfs from asking an emulator over gRPC what kind of bucket it has, which hangs for a minute and fails."""
    if GCS_EMULATOR.get():
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


def config_home() -> str:
    """Return the folder of the user's own configuration."""
    return CONFIG_HOME.get() or os.path.expanduser("~/.config")
