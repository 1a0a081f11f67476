"""Telemetry: nothing by default, the real SDK where it is asked for, and never an exception into the caller."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rigging import telemetry
from rigging.errors import MissingExtraError, TelemetryError

from .conftest import have

HAVE = have("opentelemetry.sdk")
needs_sdk = pytest.mark.skipif(not have("opentelemetry"), reason="the extra telemetry is not installed")
needs_otlp = pytest.mark.skipif(not have("opentelemetry.exporter"), reason="the extra otlp is not installed")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.delenv("MARIN_TELEMETRY", raising=False)
    telemetry.shutdown()
    yield
    telemetry.shutdown()


def work():
    with telemetry.span("outer", {"shard": 3, "api_key": "hunter2"}) as outer:
        with telemetry.span("inner") as inner:
            inner.set_attribute("rows", 10)
            telemetry.event("written", {"step": 1})
        telemetry.counter("items", unit="1").add(2, {"kind": "a"})
        telemetry.gauge("queue").set(7)
        telemetry.histogram("wait", unit="s").record(0.5)
    return outer


def test_without_configuration_it_does_nothing_and_loads_nothing():
    code = """
import sys
from rigging import telemetry
with telemetry.span("x", {"a": 1}) as here:
    here.set_attribute("b", 2); here.add_event("c")
    assert here.trace_id is None
telemetry.event("e"); telemetry.counter("n").add(1); telemetry.gauge("g").set(1); telemetry.histogram("h").record(1)
assert telemetry.flush() and not telemetry.runtime_status().configured
telemetry.shutdown()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and done.stderr == ""


@pytest.fixture
def memory():
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    status = telemetry.configure(
        service="test", attributes={"region": "us"}, exporters=[], span_exporters=[spans], metric_readers=[metrics]
    )
    assert status.configured and status.exporters == ()
    return spans, metrics


@needs_sdk
def test_spans_nest_and_carry_clean_attributes(memory):
    spans, metrics = memory
    outer = work()
    measured = metrics.get_metrics_data()  # flushing would collect too, and take the gauge's value with it
    assert telemetry.flush()
    inner, top = spans.get_finished_spans()
    assert (inner.name, top.name) == ("inner", "outer") and inner.parent.span_id == top.context.span_id
    assert dict(top.attributes) == {"shard": 3, "api_key": "[REDACTED]"} and dict(inner.attributes) == {"rows": 10}
    assert [event.name for event in inner.events] == ["written"]
    assert outer.trace_id == f"{top.context.trace_id:032x}"
    assert top.resource.attributes["service.name"] == "test" and top.resource.attributes["region"] == "us"
    found = {
        metric.name: metric.data.data_points[0]
        for resource in measured.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["items"].value == 2 and dict(found["items"].attributes) == {"kind": "a"}
    assert found["queue"].value == 7 and (found["wait"].count, found["wait"].sum) == (1, 0.5)


@needs_sdk
def test_an_exception_marks_its_span_and_goes_on(memory):
    spans, _ = memory
    with pytest.raises(KeyError), telemetry.span("fails"):
        raise KeyError("x")
    telemetry.flush()
    (span,) = spans.get_finished_spans()
    assert span.status.status_code.name == "ERROR" and span.events[0].name == "exception"


@needs_sdk
def test_recording_never_raises_into_the_caller(memory, caplog):
    telemetry.counter("no blanks allowed").add(1)
    telemetry.counter("no blanks allowed").add(1)
    assert telemetry.runtime_status().failures >= 2 and caplog.text.count("said once") <= 1


@needs_sdk
def test_the_first_configuration_wins_until_shutdown(memory, caplog):
    assert telemetry.configure(service="other").service == "test" and "that stays" in caplog.text
    telemetry.shutdown()
    assert not telemetry.runtime_status().configured
    assert telemetry.configure(service="other", exporters=[]).service == "other"


@pytest.mark.parametrize(
    "arguments",
    [
        {"service": ""},
        {"service": " "},
        {"service": "x", "exporters": ["carrier-pigeon"]},
        {"service": "x", "exporters": "otlp"},
        {"service": "x", "metric_interval_s": 0},
        {"service": "x", "metric_interval_s": float("nan")},
    ],
)
def test_a_wrong_set_up_is_refused(arguments):
    with pytest.raises(TelemetryError):
        telemetry.configure(**arguments)
    assert not telemetry.runtime_status().configured


def test_exporters_in_the_environment_are_checked_too(monkeypatch):
    monkeypatch.setenv("MARIN_TELEMETRY", "console, nonsense")
    with pytest.raises(TelemetryError, match="nonsense"):
        telemetry.configure(service="x")


@pytest.mark.skipif(have("opentelemetry"), reason="the extra telemetry is installed")
def test_without_the_extra_the_error_names_it():
    with pytest.raises(MissingExtraError, match=r"marin-rigging\[telemetry\]"):
        telemetry.configure(service="x")
    work()


@needs_sdk
def test_an_application_that_has_set_opentelemetry_up_gets_our_spans():
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
from rigging import telemetry
with trace.get_tracer("app").start_as_current_span("theirs"):
    with telemetry.span("ours"):
        pass
ours, theirs = spans.get_finished_spans()
print(ours.name, ours.parent.span_id == theirs.context.span_id)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ours True"


@needs_otlp
def test_otlp_reaches_a_collector(monkeypatch):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received = {"/v1/traces": [], "/v1/metrics": []}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("MARIN_TELEMETRY", "otlp")
    try:
        telemetry.configure(service="test", endpoint=f"http://127.0.0.1:{server.server_port}")
        work()
        assert telemetry.flush(30)
        telemetry.shutdown(30)
    finally:
        server.shutdown()
        server.server_close()
    spans = ExportTraceServiceRequest.FromString(received["/v1/traces"][0]).resource_spans[0].scope_spans[0].spans
    assert [span.name for span in spans] == ["inner", "outer"] and b"hunter2" not in received["/v1/traces"][0]
    metrics = ExportMetricsServiceRequest.FromString(received["/v1/metrics"][0]).resource_metrics[0].scope_metrics[0]
    assert {metric.name for metric in metrics.metrics} >= {"items", "queue", "wait"}


def test_attributes_are_bounded_and_plain():
    many = telemetry.clean_attributes({f"a{n}": n for n in range(100)})
    assert len(many) == 64
    assert len(telemetry.clean_attributes({"text": "word " * 2000})["text"]) == 4096
    assert telemetry.clean_attributes({"thing": [1, 2]}) == {"thing": "[1, 2]"}  # type: ignore[dict-item]
