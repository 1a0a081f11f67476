"""OpenTelemetry's API and SDK (extras ``telemetry`` and ``otlp``)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rigging.errors import MissingExtraError

_SCOPE: Final = "rigging"


@dataclass(frozen=True, slots=True)
class Providers:
    """The SDK's two ends that we set up."""

    traces: Any
    metrics: Any

    def tracer(self) -> Any:
        """Return a tracer."""
        return self.traces.get_tracer(_SCOPE)

    def meter(self) -> Any:
        """Return a meter."""
        return self.metrics.get_meter(_SCOPE)

    def flush(self, timeout_s: float) -> bool:
        """Send what waits; tell whether all of it went."""
        milliseconds = int(timeout_s * 1000)
        return bool(self.traces.force_flush(milliseconds)) and bool(self.metrics.force_flush(milliseconds))

    def shutdown(self, timeout_s: float) -> None:
        """Send what waits and stop the threads."""
        self.flush(timeout_s)
        self.traces.shutdown()
        self.metrics.shutdown(int(timeout_s * 1000))


class GlobalApi:
    """What the application around us has set up itself, if it has loaded OpenTelemetry."""

    def tracer(self) -> Any:
        """Return a tracer."""
        from opentelemetry import trace

        return trace.get_tracer(_SCOPE)

    def meter(self) -> Any:
        """Return a meter."""
        from opentelemetry import metrics

        return metrics.get_meter(_SCOPE)


def global_api() -> GlobalApi | None:
    """Return the process's OpenTelemetry when somebody has loaded it; None leaves it unloaded."""
    return GlobalApi() if "opentelemetry.trace" in sys.modules else None


def make_providers(
    service: str,
    attributes: Mapping[str, str],
    exporters: Sequence[str],
    endpoint: str | None,
    span_exporters: Sequence[Any],
    metric_readers: Sequence[Any],
    interval_s: float,
) -> Providers:
    """Set the SDK up and make it the process's, unless the application has set up its own.

    Raises:
        MissingExtraError: The extra ``telemetry``, or for ``otlp`` that extra, is not installed.
    """
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError("telemetry", "telemetry") from error
    pairs = [_exporters(name, endpoint) for name in exporters]
    resource = Resource.create({"service.name": service, **attributes})
    traces = TracerProvider(resource=resource)
    for exporter in (*(pair[0] for pair in pairs), *span_exporters):
        traces.add_span_processor(BatchSpanProcessor(exporter))
    periodic = [PeriodicExportingMetricReader(pair[1], export_interval_millis=interval_s * 1000) for pair in pairs]
    measured = MeterProvider(resource=resource, metric_readers=[*periodic, *metric_readers])
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(traces)
        metrics.set_meter_provider(measured)
    return Providers(traces, measured)


def _exporters(name: str, endpoint: str | None) -> tuple[Any, Any]:
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr), ConsoleMetricExporter(out=sys.stderr)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise MissingExtraError("the OTLP exporter", "otlp") from error
    if endpoint is None:
        return OTLPSpanExporter(), OTLPMetricExporter()
    base = endpoint.rstrip("/")
    return OTLPSpanExporter(endpoint=f"{base}/v1/traces"), OTLPMetricExporter(endpoint=f"{base}/v1/metrics")


def add_event(name: str, attributes: Mapping[str, Any]) -> None:
    """Add an event to the span around us."""
    from opentelemetry import trace

    trace.get_current_span().add_event(name, attributes)
