"""The board: small facts that every process of the cluster can read, in Ray's own key-value store.

Tasks write here that they have started and what they printed last, so that a driver can ask without another actor in
between; actor names and published endpoints stand here as well. Everything of one client carries its id and is wiped
when the client ends. One value is at most some tens of kilobytes.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from fray.endpoints import Endpoint
from fray.errors import EndpointTakenError

_NAMESPACE: Final = "fray"
_FRESH_S: Final = 0.05
publishing: Final[dict[str | None, bool]] = {}  # jobs for which this process has published an endpoint


def put(key: str, value: bytes) -> None:
    """Write ``value`` under ``key``, over what is there."""
    _internal_kv_put(key, value, overwrite=True, namespace=_NAMESPACE)


def put_new(key: str, value: bytes) -> bool:
    """Write ``value`` unless ``key`` has one; tell whether it was written."""
    return not _internal_kv_put(key, value, overwrite=False, namespace=_NAMESPACE)


def get(key: str) -> bytes | None:
    """Return the value of ``key``, None without one."""
    return _internal_kv_get(key, namespace=_NAMESPACE)


def keys(prefix: str) -> Iterator[str]:
    """Yield all keys that begin with ``prefix``."""
    for key in _internal_kv_list(prefix, namespace=_NAMESPACE):
        yield key.decode()


def wipe(prefix: str) -> None:
    """Remove all keys that begin with ``prefix``."""
    _internal_kv_del(prefix, del_by_prefix=True, namespace=_NAMESPACE)


class Presence:
    """Which keys under a prefix exist; asked at most every 50 ms, however many ask."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: set[str] = set()
        self._asked_s = float("-inf")

    def __contains__(self, key: str) -> bool:
        if time.monotonic() - self._asked_s > _FRESH_S:
            self._known = set(keys(self._prefix))
            self._asked_s = time.monotonic()
        return key in self._known


class EndpointBoard:
    """The endpoints of a tree of jobs. A job's endpoints are removed when its driver sees it end."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def publish(self, endpoint: Endpoint) -> None:
        """Make an endpoint known; the job that has published it before may change it.

        Raises:
            EndpointTakenError: Another job has published the name.
        """
        key = self._key(endpoint.name)
        value = json.dumps(asdict(endpoint)).encode()
        publishing[endpoint.job_id] = True
        if not put_new(key, value):
            known = self.find(endpoint.name)
            if known is not None and known.job_id != endpoint.job_id:
                raise EndpointTakenError(endpoint.name, known.address)
            put(key, value)

    def find(self, name: str) -> Endpoint | None:
        """Return the endpoint of that name."""
        value = get(self._key(name))
        return None if value is None else Endpoint(**json.loads(value))

    def all(self, prefix: str = "") -> list[Endpoint]:
        """Return the endpoints whose name begins with ``prefix``, by name."""
        names = sorted(key.removeprefix(self._prefix).removesuffix(";") for key in keys(self._prefix + prefix))
        return [endpoint for endpoint in map(self.find, names) if endpoint is not None]

    def forget_job(self, job_id: str) -> None:
        """Remove what a job has published."""
        for endpoint in self.all():
            if endpoint.job_id == job_id:
                wipe(self._key(endpoint.name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name};"
