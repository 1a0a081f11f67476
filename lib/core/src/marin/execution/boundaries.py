"""Names of the moments at which a driver may die, and a hook that is told about each.

The commit protocol promises that a crash between any two of these is recovered from. The hook lets a test (or a fault
drill on a real cluster) stop a driver exactly there, without patching anything.
"""

from collections.abc import Callable
from enum import StrEnum


class Boundary(StrEnum):
    """Durable writes of one attempt, in order; each names the moment right after the write."""

    LEASE_ACQUIRED = "lease_acquired"
    ATTEMPT_OPENED = "attempt_opened"
    STATUS_RUNNING = "status_running"
    STAGING_CREATED = "staging_created"
    BODY_RETURNED = "body_returned"
    MANIFEST_WRITTEN = "manifest_written"
    RECORD_WRITTEN = "record_written"
    OUTPUT_RENAMED = "output_renamed"
    STATUS_SUCCESS = "status_success"
    SCRATCH_REMOVED = "scratch_removed"
    ATTEMPT_CLOSED = "attempt_closed"
    EVENT_WRITTEN = "event_written"
    STATUS_FAILED = "status_failed"
    LEASE_RELEASED = "lease_released"


BoundaryHook = Callable[[Boundary, str], None]
"""Called with the boundary that was just passed and the step's label."""


def no_hook(boundary: Boundary, step: str) -> None:
    """The hook of ordinary runs: does nothing."""
    del boundary, step
