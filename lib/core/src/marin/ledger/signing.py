"""Signing what was checked first: nobody should put a name under bytes that are not the recorded ones."""

from collections.abc import Sequence

from rigging.timing import Clock, SystemClock

from marin.execution.events import new_event, write_event
from marin.execution.layout import StepLayout
from marin.execution.records import read_record
from marin.ledger.ledger import Ledger
from marin.ledger.signatures import AbstractSigner, sign_output
from marin.ledger.verification import Finding, Verification, verify


def sign_step(
    ledger: Ledger,
    name: str,
    version: str = "",
    *,
    signer: AbstractSigner,
    lineage: bool = False,
    clock: Clock | None = None,
) -> tuple[Verification, list[str]]:
    """Hash an output and its lineage again, then sign it; each signature leaves a ``verified`` event.

    Args:
        ledger: The store.
        name: Step name.
        version: Step version; the latest without.
        signer: The key.
        lineage: Also sign everything it was made from.
        clock: Source of time for the events.
    Returns:
        What the check found, and ``name@version`` of what was signed: nothing when something was wrong.
    Raises:
        RecordNotFoundError: There is no such output.
    """
    result = verify(ledger, name, version, deep=True)
    if not result.ok:
        return result, []
    wanted: Sequence[Finding] = result.findings if lineage else result.findings[:1]
    signed = []
    for finding in wanted:
        record = read_record(finding.path)
        if record is None and lineage:
            continue  # a pin has neither record nor manifest
        sign_output(StepLayout(finding.path), signer)
        _tell(ledger, finding, signer, record.content_digest if record is not None else None, clock or SystemClock())
        signed.append(finding.step)
    return result, signed


def _tell(ledger: Ledger, finding: Finding, signer: AbstractSigner, digest: str | None, clock: Clock) -> None:
    name, _, version = finding.step.rpartition("@")
    data = {"deep": True, "signed_by": signer.keyid}
    event = new_event("verified", clock.time(), step=name, version=version, digest=digest, data=data)
    write_event(ledger.prefix, event)
