"""Jobs and actors behind one protocol.

Write against ``Client``; run on this machine with ``LocalClient``, which needs no cluster and no set-up, or on whatever
``connect_backend`` finds. See ``fray.actor`` for the actor contract and ``fray.local_backend`` for what local means.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fray.actor import (
        ActorContext,
        ActorFuture,
        ActorGroup,
        ActorHandle,
        ActorOperation,
        cancel_requested,
        current_actor,
    )
    from fray.backends import connect_backend
    from fray.client import Client, HostedActor, JobHandle, wait_all
    from fray.current_client import current_client, set_current_client
    from fray.errors import (
        ActorUnavailableError,
        BackendMissingError,
        BackendNotFoundError,
        CallCancelledError,
        ClientClosedError,
        EndpointNotFoundError,
        EndpointTakenError,
        EnvironmentSetupError,
        FrayError,
        JobAlreadyExists,
        JobFailed,
        JobRequestError,
        PortNotFoundError,
        RemoteError,
        SerializationError,
    )
    from fray.local_backend import LocalClient
    from fray.ports import job_port
    from fray.types import (
        ANY_REGION,
        ActorConfig,
        CpuConfig,
        Entrypoint,
        EnvironmentConfig,
        GpuConfig,
        JobRequest,
        JobStatus,
        ResourceConfig,
        TpuConfig,
        create_environment,
    )

_EXPORTS = {
    "ANY_REGION": "types",
    "ActorConfig": "types",
    "ActorContext": "actor",
    "ActorFuture": "actor",
    "ActorGroup": "actor",
    "ActorHandle": "actor",
    "ActorOperation": "actor",
    "ActorUnavailableError": "errors",
    "BackendMissingError": "errors",
    "BackendNotFoundError": "errors",
    "CallCancelledError": "errors",
    "Client": "client",
    "ClientClosedError": "errors",
    "CpuConfig": "types",
    "EndpointNotFoundError": "errors",
    "EndpointTakenError": "errors",
    "Entrypoint": "types",
    "EnvironmentConfig": "types",
    "EnvironmentSetupError": "errors",
    "FrayError": "errors",
    "GpuConfig": "types",
    "HostedActor": "client",
    "JobAlreadyExists": "errors",
    "JobFailed": "errors",
    "JobHandle": "client",
    "JobRequest": "types",
    "JobRequestError": "errors",
    "JobStatus": "types",
    "LocalClient": "local_backend",
    "PortNotFoundError": "errors",
    "RemoteError": "errors",
    "ResourceConfig": "types",
    "SerializationError": "errors",
    "TpuConfig": "types",
    "cancel_requested": "actor",
    "connect_backend": "backends",
    "create_environment": "types",
    "current_actor": "actor",
    "current_client": "current_client",
    "job_port": "ports",
    "set_current_client": "current_client",
    "wait_all": "client",
}

__all__ = [
    "ANY_REGION",
    "ActorConfig",
    "ActorContext",
    "ActorFuture",
    "ActorGroup",
    "ActorHandle",
    "ActorOperation",
    "ActorUnavailableError",
    "BackendMissingError",
    "BackendNotFoundError",
    "CallCancelledError",
    "Client",
    "ClientClosedError",
    "CpuConfig",
    "EndpointNotFoundError",
    "EndpointTakenError",
    "Entrypoint",
    "EnvironmentConfig",
    "EnvironmentSetupError",
    "FrayError",
    "GpuConfig",
    "HostedActor",
    "JobAlreadyExists",
    "JobFailed",
    "JobHandle",
    "JobRequest",
    "JobRequestError",
    "JobStatus",
    "LocalClient",
    "PortNotFoundError",
    "RemoteError",
    "ResourceConfig",
    "SerializationError",
    "TpuConfig",
    "cancel_requested",
    "connect_backend",
    "create_environment",
    "current_actor",
    "current_client",
    "job_port",
    "set_current_client",
    "wait_all",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_EXPORTS[name]}", fromlist=[name])
    value = getattr(module, name)
    globals()[name] = value  # also wins over the submodule of the same name (current_client)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
