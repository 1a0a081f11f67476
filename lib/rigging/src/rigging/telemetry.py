"""Traces and metrics by the OpenTelemetry standard, at no cost where nobody asked for them.

Library code calls ``span``, ``counter``, ``gauge`` and ``histogram`` freely. Without the extra ``telemetry``, or before
anybody has set it up, these do nothing and load nothing. ``configure`` sets the SDK up; **nothing is sent anywhere**
unless exporters are named, there or in ``MARIN_TELEMETRY``. An application that has set OpenTelemetry up by itself gets
our signals in its own pipeline.

Recording never raises into the caller. Attribute values are redacted and bounded before they leave.
"""

import atexit
import contextlib
import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rigging import _env
from rigging._adapters import otel
from rigging.errors import TelemetryError
from rigging.redaction import redact_value

logger = logging.getLogger(__name__)

EXPORTERS: Final = ("console", "otlp")
MAX_ATTRIBUTES: Final = 64
MAX_CHARS: Final = 4_096
_PLAIN: Final = (str, bool, int, float)

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class TelemetryStatus:
    """Whether telemetry was set up here, and where it goes; ``failures`` counts records that could not be made."""

    configured: bool
    service: str | None
    exporters: tuple[str, ...]
    failures: int


class _State:
    """The process's telemetry."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.providers: otel.Providers | None = None
        self.status = TelemetryStatus(False, None, (), 0)
        self.generation = 0
        self.failures = 0

    def backend(self) -> "otel.Providers | otel.GlobalApi | None":
        return self.providers if self.providers is not None else otel.global_api()

    def failed(self, error: Exception) -> None:
        # The boundary towards a library that must never break the work that it measures.
        self.failures += 1
        if self.failures == 1:
            logger.warning("telemetry cannot record, which is said once: %s: %s", type(error).__name__, error)


_state: Final = _State()


def configure(
    *,
    service: str,
    attributes: Mapping[str, str] | None = None,
    exporters: Sequence[str] | None = None,
    endpoint: str | None = None,
    span_exporters: Sequence[Any] = (),
    metric_readers: Sequence[Any] = (),
    metric_interval_s: float = 60.0,
) -> TelemetryStatus:
    """Set telemetry up for this process; the first call wins until ``shutdown``.

    Args:
        service: Name of this service or program.
        attributes: What else describes it, such as the region.
        exporters: Where signals go: some of ``console`` (stderr) and ``otlp``; default what ``MARIN_TELEMETRY`` lists,
            and without that nowhere.
        endpoint: Base URL for ``otlp``; default OpenTelemetry's own variables.
        span_exporters: Exporters of your own, for spans.
        metric_readers: Readers of your own, for metrics.
        metric_interval_s: Seconds between two exports of metrics.
    Raises:
        TelemetryError: An empty service, an unknown exporter, or an interval that is not above 0.
        MissingExtraError: The extra ``telemetry`` (for ``otlp``: ``otlp``) is not installed.
    """
    if not service.strip():
        raise TelemetryError("service", service, "a name")
    if not metric_interval_s > 0:
        raise TelemetryError("metric_interval_s", metric_interval_s, "seconds above 0")
    if isinstance(exporters, str):
        raise TelemetryError("exporters", exporters, "a list of names")
    named = tuple(exporters) if exporters is not None else _exporters_from_environment()
    unknown = [name for name in named if name not in EXPORTERS]
    if unknown:
        raise TelemetryError("exporters", unknown, f"some of {list(EXPORTERS)}")
    with _state.lock:
        if _state.providers is not None:
            logger.warning("telemetry is set up already, for service %r; that stays", _state.status.service)
            return runtime_status()
        _state.providers = otel.make_providers(
            service, dict(attributes or {}), named, endpoint, span_exporters, metric_readers, metric_interval_s
        )
        _state.status = TelemetryStatus(True, service, named, 0)
        _state.generation += 1
        atexit.register(shutdown)
    return runtime_status()


def _exporters_from_environment() -> tuple[str, ...]:
    text = _env.TELEMETRY.get() or ""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def runtime_status() -> TelemetryStatus:
    """Return whether telemetry is set up, and where it goes.

    Example:
        >>> runtime_status().exporters
        ()
    """
    status = _state.status
    return TelemetryStatus(status.configured, status.service, status.exporters, _state.failures)


def flush(timeout_s: float = 5.0) -> bool:
    """Send what waits; tell whether all of it went (True where nothing is set up)."""
    providers = _state.providers
    return True if providers is None else providers.flush(timeout_s)


def shutdown(timeout_s: float = 5.0) -> None:
    """Send what waits and stop; does nothing when telemetry is not set up.

    Args:
        timeout_s: Most seconds to wait.
    """
    with _state.lock:
        providers, _state.providers = _state.providers, None
        _state.status = TelemetryStatus(False, None, (), 0)
        _state.generation += 1
    atexit.unregister(shutdown)
    if providers is not None:
        providers.shutdown(timeout_s)


class _Instrument:
    """A named instrument that finds its real one when there is one."""

    def __init__(self, kind: str, name: str, unit: str, description: str) -> None:
        self.name = name
        self._kind = kind
        self._arguments = {"unit": unit, "description": description}
        self._real: Any = None
        self._made_for: tuple[int, bool] = (-1, False)

    def _send(self, verb: str, value: float, attributes: Attributes | None) -> None:
        backend = _state.backend()
        if backend is None:
            return
        try:
            key = (_state.generation, _state.providers is None)
            if self._made_for != key:
                self._real = getattr(backend.meter(), f"create_{self._kind}")(self.name, **self._arguments)
                self._made_for = key
            getattr(self._real, verb)(value, clean_attributes(attributes))
        except Exception as error:
            _state.failed(error)


class Counter(_Instrument):
    """Something that only grows."""

    def add(self, amount: float, attributes: Attributes | None = None) -> None:
        """Add ``amount``, at least 0."""
        self._send("add", amount, attributes)


class Gauge(_Instrument):
    """Something that has a value now."""

    def set(self, value: float, attributes: Attributes | None = None) -> None:
        """Say what the value is."""
        self._send("set", value, attributes)


class Histogram(_Instrument):
    """Something that is measured again and again."""

    def record(self, value: float, attributes: Attributes | None = None) -> None:
        """Add one measurement."""
        self._send("record", value, attributes)


def counter(name: str, *, unit: str = "", description: str = "") -> Counter:
    """Return the counter of that name.

    Example:
        >>> counter("steps", unit="1").add(1, {"phase": "train"})
    """
    return Counter("counter", name, unit, description)


def gauge(name: str, *, unit: str = "", description: str = "") -> Gauge:
    """Return the gauge of that name.

    Example:
        >>> gauge("queue.length").set(3)
    """
    return Gauge("gauge", name, unit, description)


def histogram(name: str, *, unit: str = "", description: str = "") -> Histogram:
    """Return the histogram of that name.

    Example:
        >>> histogram("step.duration", unit="s").record(0.25)
    """
    return Histogram("histogram", name, unit, description)


class Span:
    """One piece of work that is being traced; does nothing where nobody traces."""

    def __init__(self, real: Any) -> None:
        self._real = real

    @property
    def trace_id(self) -> str | None:
        """The trace that this belongs to, 32 hex digits; None where nobody traces."""
        if self._real is None or not self._real.get_span_context().is_valid:
            return None
        return f"{self._real.get_span_context().trace_id:032x}"

    def set_attribute(self, name: str, value: AttributeValue) -> None:
        """Describe the work further."""
        if self._real is not None:
            for key, cleaned in clean_attributes({name: value}).items():
                self._real.set_attribute(key, cleaned)

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Say that something happened in it."""
        if self._real is not None:
            self._real.add_event(name, clean_attributes(attributes))


@contextlib.contextmanager
def span(name: str, attributes: Attributes | None = None) -> Generator[Span]:
    """Trace the body as one span, child of the span around it; an exception marks it as failed and goes on.

    Args:
        name: What is being done.
        attributes: What describes it.

    Example:
        >>> with span("load", {"shard": 3}) as here:
        ...     here.set_attribute("rows", 100)
    """
    backend = _state.backend()
    if backend is None:
        yield Span(None)
        return
    with backend.tracer().start_as_current_span(name, attributes=clean_attributes(attributes)) as real:
        yield Span(real)


def event(name: str, attributes: Attributes | None = None) -> None:
    """Say that something happened, on the span around us; lost where there is none.

    Example:
        >>> event("checkpoint.written", {"step": 100})
    """
    backend = _state.backend()
    if backend is not None:
        otel.add_event(name, clean_attributes(attributes))


def clean_attributes(attributes: Attributes | None) -> dict[str, AttributeValue]:
    """Return what may leave the process: plain values, redacted, at most 64, texts of at most 4096 characters.

    Example:
        >>> clean_attributes({"step": 3, "api_key": "hunter2"})
        {'step': 3, 'api_key': '[REDACTED]'}
    """
    if not attributes:
        return {}
    cleaned: dict[str, AttributeValue] = {}
    for name in list(attributes)[:MAX_ATTRIBUTES]:
        value = attributes[name]
        hidden = redact_value({name: value if isinstance(value, _PLAIN) else repr(value)})
        assert isinstance(hidden, dict)
        shown = hidden[name]
        cleaned[str(name)] = shown[:MAX_CHARS] if isinstance(shown, str) else shown
    return cleaned
