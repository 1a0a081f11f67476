"""Whose signatures count: public keys with the time in which they were in use.

A file ends in ``.pub`` (one key in PEM form) or ``.toml`` (a list that a project keeps in its repository, so that keys
can follow one another)::

    format = 1
    [[key]]
    name = "release-2026"
    public = '''-----BEGIN PUBLIC KEY-----
    …
    -----END PUBLIC KEY-----'''
    from = 2026-01-01
    until = 2026-12-31
    [[key]]
    name = "old"
    public = '''…'''
    revoked = true

The dates are compared with the time in the signed record. That time is claimed by whoever signed, so a key that may
have been stolen has to be revoked; letting it run out is not enough.
"""

import datetime as dt
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marin.errors import KeyFileError
from marin.ledger._adapters.ed25519 import holds, key_id, load_public

_FIELDS = ("name", "public", "from", "until", "revoked")


@dataclass(frozen=True)
class TrustedKey:
    """One public key.

    Attributes:
        name: For people.
        public: The key.
        since: First day of its use, or None.
        until: Last day of its use, or None.
        revoked: Whether it counts no more, whatever the dates say.
    """

    name: str
    public: Any
    since: dt.date | None = None
    until: dt.date | None = None
    revoked: bool = False

    def objection(self, day: dt.date | None) -> str:
        """Why a signature of this key does not count for a record of that day; empty when it does."""
        if self.revoked:
            return f"the key {self.name!r} is revoked"
        if day is None:
            return ""
        if self.since is not None and day < self.since:
            return f"the key {self.name!r} was not in use before {self.since.isoformat()}"
        if self.until is not None and day > self.until:
            return f"the key {self.name!r} was in use until {self.until.isoformat()} only"
        return ""

    def holds(self, signature: bytes, data: bytes) -> bool:
        """Whether a signature over some bytes was made with this key."""
        return holds(self.public, signature, data)


@dataclass(frozen=True)
class TrustedKeys:
    """Keys whose signatures count.

    Attributes:
        keys: Each by its id.
    """

    keys: Mapping[str, TrustedKey] = field(default_factory=dict)


def load_trusted_keys(path: str) -> TrustedKeys:
    """Read a ``.pub`` file or a ``.toml`` list of keys.

    Raises:
        KeyFileError: It cannot be read or says something that cannot be meant.
        UsageError: The extra ``sign`` is not installed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(path, getattr(error, "strerror", None) or str(error)) from None
    if "PRIVATE KEY" in text:
        raise KeyFileError(path, "it holds a private key, expected public ones", hint=f"Pass {path}.pub.")
    if not path.endswith(".toml"):
        public = load_public(text, path)
        return TrustedKeys({key_id(public): TrustedKey(path, public)})
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KeyFileError(path, f"it is not TOML ({error})", hint="Check the line named there.") from None
    return _from_toml(data, path)


def _from_toml(data: Mapping[str, Any], path: str) -> TrustedKeys:
    for key in data:
        if key not in ("format", "key"):
            raise KeyFileError(path, f"the key {key!r} is not known", hint="Known here: format, key.")
    entries = data.get("key", [])
    if data.get("format") != 1 or not isinstance(entries, list) or not entries:
        raise KeyFileError(path, "expected 'format = 1' and at least one [[key]]", hint="Add them.")
    found: dict[str, TrustedKey] = {}
    for number, entry in enumerate(entries, 1):
        where = f"key[{number}]"
        for name in entry:
            if name not in _FIELDS:
                close = difflib.get_close_matches(name, _FIELDS, 1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known here: {', '.join(_FIELDS)}."
                raise KeyFileError(path, f"{where}.{name} is not known", hint=hint)
        kinds = {"name": str, "public": str, "from": dt.date, "until": dt.date, "revoked": bool}
        for name, kind in kinds.items():
            if name in entry and not isinstance(entry[name], kind):
                raise KeyFileError(path, f"{where}.{name} is {entry[name]!r}", hint=f"Expected a {kind.__name__}.")
        if not entry.get("name") or not entry.get("public"):
            raise KeyFileError(path, f"{where} needs name and public", hint="Fill them in.")
        public = load_public(entry["public"], f"{path} ({where})")
        found[key_id(public)] = TrustedKey(
            entry["name"], public, entry.get("from"), entry.get("until"), entry.get("revoked", False)
        )
    return TrustedKeys(found)
