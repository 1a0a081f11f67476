"""Signed statements about outputs: an in-toto Statement inside a DSSE envelope, as plain data.

What is signed is the pre-authentication encoding of the payload, so a signature over one kind of document is never one
over another. The statement names an output by its content digest and by the digest of its manifest (which also covers
files that are not part of the content digest, such as checkpoints), and carries the whole record as its predicate.

References:
    DSSE protocol v1.0.0, https://github.com/secure-systems-lab/dsse; in-toto Statement v1,
    https://github.com/in-toto/attestation.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Self

from marin.errors import CorruptRecordError
from marin.execution.layout import MANIFEST_FILE
from marin.execution.records import ArtifactRecord

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:marin:artifact-record:v1"


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: what a signature is over.

    Args:
        payload_type: Media type or URI of the payload.
        payload: Its bytes.
    Example:
        >>> pae("http://example.com/HelloWorld", b"hello world")
        b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True)
class Envelope:
    """A payload with its signatures.

    Attributes:
        payload_type: Media type of the payload.
        payload: Its bytes.
        signatures: ``(key id, signature)``.
    """

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]

    @property
    def signed_bytes(self) -> bytes:
        """What every signature is over."""
        return pae(self.payload_type, self.payload)

    def to_json(self) -> dict[str, Any]:
        """The envelope's JSON form."""
        return {
            "payloadType": self.payload_type,
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "signatures": [
                {"keyid": keyid, "sig": base64.b64encode(signature).decode("ascii")}
                for keyid, signature in self.signatures
            ],
        }

    @classmethod
    def from_json(cls, text: str, path: str) -> Self:
        """Read an envelope.

        Args:
            text: Its JSON text.
            path: Where it lies, for the error.
        Raises:
            CorruptRecordError: It is not an envelope.
        """
        try:
            data = json.loads(text)
            signatures = tuple(
                (str(item.get("keyid", "")), base64.b64decode(item["sig"], validate=True))
                for item in data["signatures"]
            )
            return cls(str(data["payloadType"]), base64.b64decode(data["payload"], validate=True), signatures)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptRecordError(path, f"it is not a DSSE envelope ({error!r})") from None


def statement(record: ArtifactRecord, manifest_text: str) -> dict[str, Any]:
    """The in-toto Statement about an output.

    Args:
        record: Record of the output.
        manifest_text: Text of its manifest file.
    Returns:
        JSON object whose subjects are the output and its manifest.
    """
    label = f"{record.name}@{record.version}"
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": label, "digest": {"sha256": record.content_digest or ""}},
            {"name": f"{label}/{MANIFEST_FILE}", "digest": {"sha256": _sha256(manifest_text)}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": record.to_json(),
    }


def statement_bytes(record: ArtifactRecord, manifest_text: str) -> bytes:
    """The statement as it is signed: sorted keys, no blanks, UTF-8."""
    value = statement(record, manifest_text)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def disagreements(payload: bytes, record: ArtifactRecord, manifest_text: str) -> list[str]:
    """How a signed statement differs from the output at hand.

    Args:
        payload: Payload of an envelope whose signature holds.
        record: Record at hand.
        manifest_text: Manifest at hand.
    Returns:
        One line a difference; empty when the statement is about exactly this output.
    """
    try:
        signed = json.loads(payload)
        subjects = {item["name"]: item["digest"]["sha256"] for item in signed["subject"]}
        predicate = dict(signed["predicate"])
        kind = (signed["_type"], signed["predicateType"])
    except (ValueError, KeyError, TypeError) as error:
        return [f"what is signed is not a statement about an output ({error!r})"]
    expected = statement(record, manifest_text)
    problems = [] if kind == (STATEMENT_TYPE, PREDICATE_TYPE) else [f"the signed statement is of another kind: {kind}"]
    for item in expected["subject"]:
        name, digest = item["name"], item["digest"]["sha256"]
        if name not in subjects:
            problems.append(f"the signed statement is not about {name}")
        elif subjects[name] != digest:
            problems.append(f"signed were other bytes of {name}: {subjects[name][:16]}, now {digest[:16]}")
    # A field that a newer version added is not in an older statement; only what was signed is compared.
    changed = [key for key, value in expected["predicate"].items() if key in predicate and predicate[key] != value]
    if changed:
        problems.append(f"fields of the record changed after it was signed: {', '.join(sorted(changed))}")
    return problems


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
