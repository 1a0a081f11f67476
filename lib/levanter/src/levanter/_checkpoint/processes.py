"""Agreement between the processes of one run, through the coordination service that ``jax.distributed`` starts.

Nothing here touches a device: a collective would wait behind the training step and end asynchronous dispatch. With one
process everything is a no-op. Every process must make the same calls in the same order.
"""

import itertools
from typing import Any

import jax

# JAX has no public name for the client; its own array serialisation and Orbax take it from here.
from jax._src import distributed

from levanter.errors import CheckpointError

TIMEOUT_MS = 30 * 60 * 1000
_numbers = itertools.count()


def is_first() -> bool:
    """Whether this process is the one that decides and commits."""
    return jax.process_index() == 0


def next_name(topic: str) -> str:
    """A name that all processes make alike and that is used once."""
    return f"levanter/{topic}/{next(_numbers)}"


def barrier(name: str) -> None:
    """Wait until every process is here."""
    if jax.process_count() > 1:
        _client().wait_at_barrier(name, timeout_in_ms=TIMEOUT_MS)


def from_first(name: str, value: str) -> str:
    """The first process's value, on every process."""
    if jax.process_count() == 1:
        return value
    if is_first():
        _client().key_value_set(name, value)
        return value
    return _client().blocking_key_value_get(name, TIMEOUT_MS)


def meet(name: str, failure: BaseException | None) -> None:
    """Wait for every process, then fail on all of them if one has failed.

    Raises:
        CheckpointError: another process failed; it is named. This process's own failure is raised as it is.
    """
    if jax.process_count() > 1:
        if failure is not None:
            _client().key_value_set(f"{name}/failed/{jax.process_index()}", repr(failure))
        barrier(name)
        failures = _client().key_value_dir_get(f"{name}/failed/")
        if failure is None and failures:
            process, reason = failures[0]
            raise CheckpointError(f"process {process.rsplit('/', 1)[-1]} could not write its part: {reason}.")
    if failure is not None:
        raise failure


def raise_flag(name: str) -> None:
    """Tell the first process something; see :func:`flag_raised`."""
    if jax.process_count() > 1:
        _client().key_value_set(f"{name}/{jax.process_index()}", "1", allow_overwrite=True)


def flag_raised(name: str) -> bool:
    """Whether any process has raised that flag."""
    return jax.process_count() > 1 and bool(_client().key_value_dir_get(f"{name}/"))


def _client() -> Any:
    return distributed.global_state.client
