"""Taking secrets out of a git patch without making it useless.

A patch is code, and free-text redaction is made for logs: in code ``token = tokenizer.next()`` is no secret and a long
name is no key. So in source files only literals are judged (by the name they are given to, and by their shape), beside
texts whose shape alone tells what they are. Spans are replaced inside their lines and no line is dropped: as long as
only added lines held secrets, ``git apply`` still takes the patch. A secret in a context or removed line is in the
commit already; it is taken out all the same, and the patch then does not apply.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from rigging.redaction import REDACTED_VALUE, is_sensitive_key_name, key_words, redact_string, redact_value

# Files whose values are written in quotes, and prose; in all others a bare word after a sensitive name is a secret.
_LANGUAGES = "py pyi ipynb rs js ts tsx svelte c h cc cpp cu go java proto sql md rst html css j2 json toml lock"
_CODE_SUFFIXES = tuple(f".{language}" for language in _LANGUAGES.split())
_LITERAL = re.compile(r"""(?P<quote>["'])(?P<value>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)""")
_GIVEN_TO = re.compile(r"""([A-Za-z_][\w.-]*)["']?\]?\s*(?::\s*[\w\[\]|., ]+?)?\s*[=:]\s*[fFrRbBuU]{0,2}$""")
_SHELL_ASSIGNMENT = re.compile(r"\b([A-Z][A-Z0-9_]{2,})=([A-Za-z0-9+/_=.~-]{6,})")
_INNER_ASSIGNMENT = re.compile(r"\b([A-Za-z][A-Za-z0-9_-]{2,})=([A-Za-z0-9+/_.~%-]{6,})")
_WORD = re.compile(r"[A-Za-z_.:<>{}()/ -]{0,20}")
_CHOSEN_BY_PEOPLE = frozenset({"password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets"})
_BASE64_RUN = re.compile(r"(?<![\w/+])[A-Za-z0-9+/]{32,}={0,2}(?![\w/+])")
_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")


@dataclass(frozen=True)
class RedactedPatch:
    """A patch without secrets.

    Attributes:
        text: The patch.
        redacted: Whether anything was taken out.
        applies: Whether it still applies to its commit: nothing was taken out of context or removed lines.
    """

    text: str
    redacted: bool
    applies: bool


def redact_patch(patch: str) -> RedactedPatch:
    """Take secrets out of a git patch, span by span.

    Args:
        patch: What ``git diff`` printed.
    Example:
        >>> patch = "+++ b/a.py\\n@@ -0,0 +1,2 @@\\n+token = tokenizer.next()\\n+TOKEN = 'hunter22'\\n"
        >>> kept = redact_patch(patch)
        >>> print(kept.text)
        +++ b/a.py
        @@ -0,0 +1,2 @@
        +token = tokenizer.next()
        +TOKEN = '[REDACTED]'
        <BLANKLINE>
        >>> kept.redacted, kept.applies
        (True, True)
    """
    kept_lines, redacted, applies = [], False, True
    for line, kind in _read_lines(patch):
        kept = _REDACTORS[kind](line)
        kept_lines.append(kept)
        if kept != line:
            redacted = True
            applies = applies and kind is not _Kind.HEADER and line.startswith("+")
    return RedactedPatch("\n".join(kept_lines), redacted, applies)


class _Kind(Enum):
    """What a line of a patch is."""

    HEADER = auto()
    BINARY = auto()
    CODE = auto()
    TEXT = auto()
    PRIVATE_KEY = auto()


def _read_lines(patch: str) -> Iterator[tuple[str, _Kind]]:
    """Each line with what it is; a hunk's header says how many lines are content."""
    old = new = 0
    code = in_key = binary = False
    for line in patch.split("\n"):
        if old > 0 or new > 0:
            in_key = in_key or _KEY_BEGINS.search(line) is not None
            yield line, _Kind.PRIVATE_KEY if in_key else _Kind.CODE if code else _Kind.TEXT
            in_key = in_key and _KEY_ENDS.search(line) is None
            if not line.startswith("\\"):  # "\ No newline at end of file" counts on neither side
                old -= not line.startswith("+")
                new -= not line.startswith("-")
            continue
        in_key = False
        if line.startswith("diff --git "):
            binary = False
        if hunk := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        elif line.startswith(("diff --git ", "+++ ")):
            # A deleted file has no new name: the first line names it, too.
            code = line.rstrip('\t"').endswith(_CODE_SUFFIXES) or (code and line == "+++ /dev/null")
        binary = binary or line == "GIT binary patch"
        yield line, _Kind.BINARY if binary else _Kind.HEADER


def _shape_of(text: str) -> str:
    """Take out what is a secret by its shape alone, whatever stands around it (as in a field that holds a path)."""
    field = redact_value({"path": text})
    assert isinstance(field, dict)
    return str(field["path"])


def _text_line(line: str) -> str:
    return line[:1] + redact_string(line[1:])


def _code_line(line: str) -> str:
    """A line of source code: its literals, and what looks like a line of another file inside a longer literal."""
    text = _shape_of(line[1:])
    text = _LITERAL.sub(lambda match: _literal(text, match), text)
    text = _SHELL_ASSIGNMENT.sub(_assignment, text)
    return line[:1] + _BASE64_RUN.sub(_random_run, text)


def _literal(text: str, match: re.Match[str]) -> str:
    quote, value = match["quote"], match["value"]
    given_to = _GIVEN_TO.search(text[: match.start()])
    name = given_to[1] if given_to is not None else ""
    if name and is_sensitive_key_name(name):
        # What machines make has digits; people also choose a plain word.
        word = _WORD.fullmatch(value) is not None and _CHOSEN_BY_PEOPLE.isdisjoint(key_words(name))
        return match[0] if word or not value else f"{quote}{REDACTED_VALUE}{quote}"
    return quote + _INNER_ASSIGNMENT.sub(_assignment, value) + quote


def _assignment(match: re.Match[str]) -> str:
    name, value = match.groups()
    secret = is_sensitive_key_name(name) and any(letter.isdigit() for letter in value)
    return f"{name}={REDACTED_VALUE}" if secret else match[0]


def _random_run(match: re.Match[str]) -> str:
    """A run of base 64 that mixes cases and digits; names and hexadecimal digests do not."""
    run = match[0]
    mixed = re.search("[a-z]", run) and re.search("[A-Z]", run) and re.search("[0-9]", run)
    return redact_string(run) if mixed else run


_REDACTORS: dict[_Kind, Callable[[str], str]] = {
    _Kind.HEADER: _shape_of,
    _Kind.BINARY: lambda line: line,
    _Kind.CODE: _code_line,
    _Kind.TEXT: _text_line,
    _Kind.PRIVATE_KEY: lambda line: line[:1] + REDACTED_VALUE,
}
