"""The Ray backend: jobs and actors on a Ray cluster, or on a Ray instance that it starts on this machine.

A job's task is a Ray task, an actor is a Ray actor; placement, transport, object transfer and the detection of dead
machines are Ray's. What fray adds is its contract (``fray.actor``, ``fray.client``): retries that tell failure from
preemption, gangs, exceptions that come back as themselves, output that can be read, and nothing left running.

The pieces, from the bottom up: ``_board`` (small facts in Ray's key-value store: who has started, what was printed,
where an actor is), ``_options`` (requests in Ray's words), ``_worker`` (what runs in a Ray worker process), ``_host``
(the Ray actor around a user's object), ``_dispatch`` (the one thread that moves state in the driver), ``_jobs``,
``_calls`` and ``_actors``, and ``_client``. Needs the extra: ``pip install 'marin-fray[ray]'``.
"""

from fray.errors import BackendMissingError

try:
    import ray as _ray
except ImportError as error:
    raise BackendMissingError("ray", "marin-fray[ray]") from error

from fray.ray_backend._client import RayClient

__all__ = ["RayClient"]
del _ray
