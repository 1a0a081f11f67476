"""No secret enters a recipe: the text that identifies it is stored, shared, diffed and signed.

A config is refused when a field *named* like a secret (``password``, ``api_key``) holds a literal, or when any text has
the *shape* of a known kind of key (``sk-…``, ``hf_…``, a PEM private key, ``https://user:password@…``). References
(``env:HF_TOKEN``, ``file:/run/secrets/x``) say where a secret lives and are what a config should hold.

Names that are also everyday words of this field (``token``, ``session``, ``signature``) count only together with a
value that looks generated, and long random-looking text alone never counts: revisions and digests look like that.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from rigging.redaction import is_safe_key_name, is_sensitive_key_name, key_words, looks_like_key, redact_value
from rigging.secrets import is_secret_reference

from marin.errors import SecretInConfigError

_UNMISTAKABLE = frozenset(
    "secret secrets password passwords passwd passphrase pwd credential credentials apikey apikeys bearer "
    "authorization".split()
)
_KEY_PAIRS = frozenset({"api", "access", "private", "signing"})
_PLACEHOLDER = re.compile(r"<[^<>]*>")
# Parts, in lower case, of everything that the rules below find; nearly every recipe holds none of them. Looked for one
# by one, since that costs a tenth of one pattern with alternatives.
_HINTS = (
    "token secret passw passphrase pwd auth bearer credential session cookie key signature -----begin sk- akia asia "
    "goog1 ghp_ gho_ ghu_ ghs_ ghr_ github_pat hf_ xox hooks.slack eyj"
).split()


def _may_hold_one(payload: str) -> bool:
    text = payload.lower()
    return any(hint in text for hint in _HINTS) or ("://" in text and "@" in text)


def find_secret(payload: str) -> tuple[str, str] | None:
    """The first field of a canonical payload that holds a secret.

    Args:
        payload: Canonical text of a config, or any JSON text.
    Returns:
        The field's path and why it counts, or None.
    Example:
        >>> find_secret('{"wandb":{"api_key":"abc"}}')
        ('wandb.api_key', "its name says that it holds a secret: 'api_key'")
        >>> find_secret('{"wandb":{"api_key":"env:WANDB_API_KEY"},"eos_token":"<eos>"}') is None
        True
    """
    if not _may_hold_one(payload):
        return None
    for path, name, text in _texts(json.loads(payload), "", ""):
        if not text or is_secret_reference(text) or _PLACEHOLDER.fullmatch(text):
            continue
        if _named_secret(name, text):
            return path, f"its name says that it holds a secret: {name!r}"
        # Under a name that identifies something, only known shapes of keys count.
        if redact_value({"path": text}) != {"path": text}:
            return path, "its value has the shape of a key or of a password in a URL"
    return None


def refuse_secrets(payload: str, step: str) -> None:
    """Refuse a recipe that holds a secret.

    Args:
        payload: Canonical text of the recipe.
        step: Name of the step, for the error.
    Raises:
        SecretInConfigError: Names the field and never the value.
    """
    found = find_secret(payload)
    if found is not None:
        field, reason = found
        raise SecretInConfigError(step, field.removeprefix("config.") or "config", reason)


def _named_secret(name: str, text: str) -> bool:
    # ``secret_name``, ``credentials_path`` and ``tokens_digest`` say where or which, not what.
    if not name or not is_sensitive_key_name(name) or is_safe_key_name(name):
        return False
    words = key_words(name)
    unmistakable = bool(_UNMISTAKABLE & set(words)) or any(
        first in _KEY_PAIRS and second in ("key", "keys") for first, second in itertools.pairwise(words)
    )
    return unmistakable or looks_like_key(text, min_len=16, min_entropy=3.0)


def _texts(value: Any, path: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Every text below a canonical value, with its field's path and the nearest name above it."""
    if isinstance(value, str):
        yield path, name, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{path}[{number}]", name)
    elif isinstance(value, dict):
        yield from _texts_of_object(value, path, name)


def _texts_of_object(value: dict[str, Any], path: str, name: str) -> Iterator[tuple[str, str, str]]:
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None or tag == "$dataclass":
        for key, item in (value if tag is None else value["fields"]).items():
            yield from _texts(item, f"{path}.{key}" if path else key, key)
    elif tag == "$map":
        for key, item in value[tag]:
            shown = key if isinstance(key, str) else json.dumps(key)
            yield from _texts(item, f"{path}[{shown!r}]", shown)
    elif tag in ("$tuple", "$set", "$frozenset"):
        yield from _texts(value[tag], path, name)
    elif tag == "$namedtuple":
        yield from _texts(value["items"], path, name)
    elif tag == "$enum":
        yield from _texts(value["value"], path, name)
