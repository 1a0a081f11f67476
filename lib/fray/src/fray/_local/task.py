"""One attempt of one replica, as sent to a child."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker runs.

    Args:
        label: Name for messages.
        payload: cloudpickle of ``(fn, args, kwargs)``.
        environ: Variables for this task alone, on top of the child's.
        memory_limit_bytes: Limit of the address space; None for no limit.
    """

    label: str
    payload: bytes
    environ: dict[str, str]
    memory_limit_bytes: int | None
