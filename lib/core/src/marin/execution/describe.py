"""What goes into records beside the result: environment, provenance, code, errors.

Everything that may hold a secret (command lines, messages, tracebacks) is redacted here, before it reaches a file.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from rigging.provenance import Provenance, environment_report
from rigging.redaction import REDACTED_VALUE, is_sensitive_key_name, redact_string
from rigging.secrets import is_secret_reference

from marin.execution.failures import causes, error_signature
from marin.execution.fingerprint import type_name


@functools.cache
def environment() -> dict[str, Any]:
    """The machine and the packages, once per process."""
    return dict(environment_report())


def short_environment() -> dict[str, Any]:
    """The environment without the list of packages, for attempts."""
    return {key: value for key, value in environment().items() if key != "packages"}


def provenance_payload(provenance: Provenance) -> dict[str, Any]:
    """Provenance as JSON, with the command line redacted."""
    data: dict[str, Any] = dataclasses.asdict(provenance)
    # Outside of a repository the provenance is empty; how to run it again is worth knowing there too.
    data["command_line"] = redact_arguments(provenance.command_line or sys.orig_argv)
    return data


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets, also without the values of options that are named like one.

    Example:
        >>> redact_arguments(["run", "--api-key", "hunter2", "--max-tokens", "8", "--password=x"])
        ['run', '--api-key', '[REDACTED]', '--max-tokens', '8', '--password=[REDACTED]']
    """
    shown: list[str] = []
    for number, part in enumerate(arguments):
        before = arguments[number - 1] if number else ""
        named = before.startswith("-") and "=" not in before and is_sensitive_key_name(before.lstrip("-"))
        hidden = named and not part.startswith("-") and not is_secret_reference(part)
        shown.append(REDACTED_VALUE if hidden else redact_string(part))
    return shown


def unwrap_body(body: Any) -> Any:
    """The author's function below job descriptions and adapters."""
    while True:
        inner = getattr(body, "fn", None) or getattr(body, "function", None) or getattr(body, "func", None)
        if inner is None or not callable(inner):
            return body
        body = inner


def code_digest(body: Any) -> str | None:
    """Hash of the source file that defines a step's function, or None where there is none. Advisory: never identity."""
    body = unwrap_body(body)
    try:
        target = getattr(body, "target", None)
        if isinstance(target, str) and ":" in target:
            # A function by name: its module is found, not imported.
            found = importlib.util.find_spec(target.partition(":")[0])
            path = found.origin if found is not None else None
        else:
            path = inspect.getsourcefile(body)
        if path is None:
            return None
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (OSError, TypeError, ModuleNotFoundError):
        return None


def json_value(text: str) -> Any:
    """The value of canonical JSON text."""
    return json.loads(text)


def config_digest(config: str | None) -> str:
    """Hash of the config that ran."""
    return hashlib.sha256(config.encode("utf-8")).hexdigest()[:32] if config else ""


def _remote_traceback(error: BaseException) -> str | None:
    texts = (getattr(link, "remote_traceback", None) for link in causes(error))
    return next((text for text in texts if text), None)


def shown_error(error: BaseException) -> BaseException:
    """The exception that a person should read about: for a failed job, the one that ended it."""
    return error.__cause__ if _remote_traceback(error) and error.__cause__ is not None else error


def error_payload(error: BaseException) -> dict[str, Any]:
    """Type, message, traceback and signature of an exception, redacted.

    For a failed job the exception that ended it is described, with the remote traceback.
    """
    remote_text = _remote_traceback(error)
    shown = shown_error(error)
    text = "".join(traceback.format_exception(error))
    if remote_text:
        text = f"{remote_text}\n\nSeen by the driver as:\n{text}"
    return {
        "type": type_name(type(shown)),
        "message": redact_string(str(shown))[:4_000],
        "traceback": redact_string(text)[-32_768:],
        "signature": error_signature(shown),
    }
