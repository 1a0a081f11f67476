"""Keep secrets out of logs, records and bug reports.

Two kinds of evidence decide. The *name* of a field: ``HF_TOKEN`` hides its value, ``max_tokens`` does not, because a
token beside a counting word is a length. The *shape* of a text: well-known key prefixes, and long runs of key-alphabet
characters that look random (Shannon entropy). Names that identify things (``run_id``, ``commit``, ``path``) are exempt
from the entropy rule, so hashes stay readable in records.

Invariants (property-tested): redaction is idempotent, keeps every dict key and list length, and never fails.
"""

import functools
import itertools
import json
import math
import re
from collections import Counter

REDACTED_VALUE = "[REDACTED]"

_SENSITIVE_WORDS = frozenset(
    "token tokens secret secrets password passwords passwd passphrase pwd auth authorization bearer credential "
    "credentials session cookie apikey apikeys signature".split()
)
_SENSITIVE_PAIRS = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("signing", "key"), ("api", "keys")}
)
_COUNTING_WORDS = frozenset(
    "max min num count counts total len length per budget limit size sizes n avg mean sum rate ratio vocab seq batch "
    "seen trained train eval position positions second seconds throughput id ids type types bos eos pad unk "
    "mask".split()
)
_LENGTH_WORDS = frozenset({"token", "tokens"})
_SAFE_SUFFIXES = frozenset("id ids name names index idx no num nums".split())
_SAFE_WORDS = frozenset(
    "name namespace hostname host zone region status path paths url uri commit version digest sha256 sha1 md5 hash "
    "fingerprint checksum tree branch".split()
)
_HUMP = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")

# Each pattern with texts of which one must be there for it to match: looking for those is much cheaper.
_PATTERNS = (
    (
        ("-----BEGIN ",),
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    ),
    (("sk-",), re.compile(r"\bsk-[A-Za-z0-9_-]{20,}")),
    (("AKIA", "ASIA"), re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")),
    (("GOOG1",), re.compile(r"\bGOOG1[A-Z0-9]{20,}\b")),
    (("gh",), re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}")),
    (("github_pat_",), re.compile(r"\bgithub_pat_[A-Za-z0-9_]{22,}")),
    (("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{20,}")),
    (("xox",), re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}")),
    (("hooks.slack.com",), re.compile(r"\bhttps://hooks\.slack\.com/services/[A-Za-z0-9/]+")),
    (("eyJ",), re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}")),
    (("://",), re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")),
)
# A key is tried at its first character only: from each of its characters the time would grow with its square.
_KEY_AND_SEPARATOR = re.compile(r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)\s*[=:]\s*(?>(?:Bearer\s+)?)")
_ASSIGNED = re.compile(r"[^\s\"',;&\[\]]+")
_KEY_RUN = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
_KEY_ALPHABET = re.compile(r"[A-Za-z0-9+/_=.-]+")


def shannon_entropy(text: str) -> float:
    """Return the entropy of the characters of ``text`` in bits per character.

    Example:
        >>> shannon_entropy("abab"), shannon_entropy("")
        (1.0, 0.0)

    References:
        C. E. Shannon, A Mathematical Theory of Communication (1948), section 6.
    """
    total = len(text)
    return sum(-n / total * math.log2(n / total) for n in Counter(text).values()) + 0.0


def looks_like_key(text: str, min_len: int = 24, min_entropy: float = 3.5) -> bool:
    """Tell whether ``text`` could be a generated key: key alphabet only, long, and random-looking.

    Args:
        text: Candidate.
        min_len: Least length in characters.
        min_entropy: Least entropy in bits per character.

    Example:
        >>> looks_like_key("c2VjcmV0LWtleS1mb3ItdGVzdHM9"), looks_like_key("a plain sentence, rather long")
        (True, False)
    """
    return len(text) >= min_len and _KEY_ALPHABET.fullmatch(text) is not None and shannon_entropy(text) >= min_entropy


@functools.lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _HUMP.findall(name))


def key_words(name: str) -> list[str]:
    """Split a field name into lower-case words at separators and camel humps.

    Example:
        >>> key_words("maxTokens"), key_words("AWS_SECRET_ACCESS_KEY"), key_words("TOKENIZERS_PARALLELISM")
        (['max', 'tokens'], ['aws', 'secret', 'access', 'key'], ['tokenizers', 'parallelism'])
    """
    return list(_words(name))


def is_sensitive_key_name(name: str) -> bool:
    """Tell whether a field of this name holds a secret.

    Example:
        >>> [is_sensitive_key_name(n) for n in ("HF_TOKEN", "max_tokens", "apiKey", "TOKENIZERS_PARALLELISM")]
        [True, False, True, False]
    """
    return _is_sensitive(name)


@functools.lru_cache(maxsize=4096)
def _is_sensitive(name: str) -> bool:
    words = _words(name)
    hits = {word for word in words if word in _SENSITIVE_WORDS}
    paired = any(pair in _SENSITIVE_PAIRS for pair in itertools.pairwise(words))
    if not hits:
        return paired
    only_lengths = hits <= _LENGTH_WORDS and not paired
    return not (only_lengths and any(word in _COUNTING_WORDS for word in words))


def is_safe_key_name(name: str) -> bool:
    """Tell whether a field of this name identifies something, so a random-looking value is expected there.

    Example:
        >>> is_safe_key_name("run_id"), is_safe_key_name("payload")
        (True, False)
    """
    words = key_words(name)
    return bool(words) and (words[-1] in _SAFE_SUFFIXES or words[-1] in _SAFE_WORDS)


def redact_string(text: str) -> str:
    """Replace what looks like a secret inside a free text.

    Example:
        >>> redact_string("export HF_TOKEN=abc123 and max_tokens=100")
        'export HF_TOKEN=[REDACTED] and max_tokens=100'
    """
    text = _redact_patterns(text)
    text = _redact_assignments(text)
    return _KEY_RUN.sub(_redact_run, text)


def redact_value(obj: object) -> object:
    """Return a copy of nested dicts, lists and tuples with secrets replaced; other objects are returned as they are.

    Example:
        >>> redact_value({"password": "hunter2", "steps": [1, 2], "run_id": "8c7dd922ad47494fc02c388e12c00eac"})
        {'password': '[REDACTED]', 'steps': [1, 2], 'run_id': '8c7dd922ad47494fc02c388e12c00eac'}
    """
    if isinstance(obj, str):
        return redact_string(obj)
    if isinstance(obj, dict):
        return {key: _redact_field(key, value) for key, value in obj.items()}
    if isinstance(obj, list):
        return [redact_value(item) for item in obj]
    if isinstance(obj, tuple):
        items = [redact_value(item) for item in obj]
        make = getattr(obj, "_make", tuple)  # a named tuple stays one
        return make(items)
    return obj


def redact_json_text(text: str) -> str:
    """Redact a JSON text field by field; text that is not JSON is redacted as a free string.

    Example:
        >>> redact_json_text('{"secret": "x", "n": 1}')
        '{"secret": "[REDACTED]", "n": 1}'
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return redact_string(text)
    return json.dumps(redact_value(parsed))


def _redact_field(key: object, value: object) -> object:
    if isinstance(key, str):
        if is_sensitive_key_name(key):
            return value if value is None or isinstance(value, bool) else REDACTED_VALUE
        if is_safe_key_name(key) and isinstance(value, str):
            return _redact_patterns(value)
    return redact_value(value)


def _redact_patterns(text: str) -> str:
    for hints, pattern in _PATTERNS:
        if any(hint in text for hint in hints):
            text = pattern.sub(REDACTED_VALUE, text)
    return text


def _redact_assignments(text: str) -> str:
    parts: list[str] = []
    kept = position = 0
    while match := _KEY_AND_SEPARATOR.search(text, position):
        position = match.end()
        if not _is_sensitive(match[1]):
            continue  # what is assigned may hold an assignment itself: url=https://example.com/?token=...
        assigned = _ASSIGNED.match(text, position)
        if assigned is not None:
            parts += (text[kept:position], REDACTED_VALUE)
            kept = position = assigned.end()
    return "".join((*parts, text[kept:]))


def _redact_run(match: re.Match[str]) -> str:
    run = match[0]
    if shannon_entropy(run) < 3.5 or "/" in run.strip("/") or not any(c.isdigit() for c in run):
        return run  # paths, dashes and plain words are long runs too
    return REDACTED_VALUE
