"""Signatures of outputs: where they lie, how one is made, and what there is to say about those that are there.

They lie beside the attempts, ``.<version>.step/signatures/<attempt>-<key>.json``, each written once. An output that is
rebuilt keeps the old ones, which then no longer fit, until it is signed again.
"""

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from marin.errors import CorruptRecordError, RecordNotFoundError
from marin.execution._files import create_text, json_text
from marin.execution.layout import StepLayout, list_folder
from marin.execution.records import ArtifactRecord, read_record, read_text
from marin.ledger.dsse import PAYLOAD_TYPE, Envelope, disagreements, pae, statement_bytes
from marin.ledger.trusted_keys import TrustedKey, TrustedKeys


class SignatureState(StrEnum):
    """What there is to say about the signature of an output."""

    ABSENT = "absent"
    VALID = "valid"
    WRONG_KEY = "wrong_key"
    TAMPERED = "tampered"
    UNCHECKED = "unchecked"


@dataclass(frozen=True)
class SignatureCheck:
    """The state of an output's signature.

    Attributes:
        state: In one word; ``unchecked`` when there is one and no keys were given.
        signed_by: Name of the key of a valid one.
        problems: One line each of what is wrong.
    """

    state: SignatureState
    signed_by: str = ""
    problems: tuple[str, ...] = ()


class AbstractSigner(Protocol):
    """Something that signs: ``marin.ledger._adapters.ed25519.Signer``, or a key that never leaves its hardware."""

    keyid: str

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes."""
        ...


def signatures_folder(layout: StepLayout) -> str:
    """Folder of an output's signatures."""
    return os.path.join(layout.control, "signatures")


def sign_output(layout: StepLayout, signer: AbstractSigner) -> str:
    """Sign an output as it is.

    Args:
        layout: Where the step lies.
        signer: The key.
    Returns:
        Path of the envelope.
    Raises:
        RecordNotFoundError: There is no output, or it has no manifest that could be signed.
    """
    record, manifest = read_record(layout.output_path), read_text(layout.manifest)
    if record is None or manifest is None:
        raise RecordNotFoundError(layout.output_path, "there is no output with a record and a manifest to sign")
    payload = statement_bytes(record, manifest)
    envelope = Envelope(PAYLOAD_TYPE, payload, ((signer.keyid, signer.sign(pae(PAYLOAD_TYPE, payload))),))
    path = os.path.join(signatures_folder(layout), f"{record.attempt or 'record'}-{signer.keyid[:16]}.json")
    create_text(path, json_text(envelope.to_json()))
    return path


def check_signature(layout: StepLayout, record: ArtifactRecord, keys: TrustedKeys | None) -> SignatureCheck:
    """What there is to say about an output's signature; the best of several counts.

    Args:
        layout: Where the step lies.
        record: Its record.
        keys: Keys that count; None leaves signatures unchecked.
    """
    folder = signatures_folder(layout)
    names = [name for name in list_folder(folder)[1] if name.endswith(".json") and not name.startswith(".")]
    if not names:
        return SignatureCheck(SignatureState.ABSENT)
    if keys is None:
        return SignatureCheck(SignatureState.UNCHECKED)
    manifest = read_text(layout.manifest) or ""
    checks = [_check_one(os.path.join(folder, name), record, manifest, keys) for name in names]
    order = (SignatureState.VALID, SignatureState.TAMPERED, SignatureState.WRONG_KEY)
    return min(checks, key=lambda check: order.index(check.state))


def _check_one(path: str, record: ArtifactRecord, manifest: str, keys: TrustedKeys) -> SignatureCheck:
    name = os.path.basename(path)
    try:
        envelope = Envelope.from_json(read_text(path) or "", path)
    except CorruptRecordError as error:
        return SignatureCheck(SignatureState.TAMPERED, problems=(f"signature {name}: {error.reason}",))
    known = [(keys.keys[keyid], signature) for keyid, signature in envelope.signatures if keyid in keys.keys]
    if not known:
        ids = ", ".join(keyid[:16] for keyid, _ in envelope.signatures) or "nobody"
        return SignatureCheck(SignatureState.WRONG_KEY, problems=(f"signed by {ids}, which is no trusted key",))
    return _check_known(name, envelope, known, record, manifest)


def _check_known(
    name: str, envelope: Envelope, known: Sequence[tuple[TrustedKey, bytes]], record: ArtifactRecord, manifest: str
) -> SignatureCheck:
    held = [key for key, signature in known if key.holds(signature, envelope.signed_bytes)]
    if not held:
        return SignatureCheck(SignatureState.TAMPERED, problems=(f"signature {name} does not fit what is signed",))
    objections = [key.objection(_day(record)) for key in held]
    if all(objections):
        return SignatureCheck(SignatureState.WRONG_KEY, problems=(objections[0],))
    if problems := disagreements(envelope.payload, record, manifest):
        return SignatureCheck(SignatureState.TAMPERED, problems=tuple(problems))
    return SignatureCheck(SignatureState.VALID, held[objections.index("")].name)


def _day(record: ArtifactRecord) -> dt.date | None:
    try:
        return dt.date.fromisoformat(record.created_at[:10])
    except ValueError:
        return None
