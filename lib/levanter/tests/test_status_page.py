"""The status page: what it shows, what it hides, and that only somebody who has seen it can ask for a checkpoint."""

import html.parser
import json
import urllib.error
import urllib.request

import pytest
from levanter._checkpoint.policy import Retention
from levanter.callbacks.status_page import RunStatus, StatusPageConfig, StatusServer, redact, render_page
from levanter.errors import ConfigError
from levanter.throughput import ThroughputMeter, WorkPerExample
from rigging.timing import ManualClock


@pytest.fixture
def served():
    asked: list[Retention] = []
    status = RunStatus("run <1>", 100, {"tracker": {"api_key": "hunter2"}, "seed": 3})
    for step in range(40):
        status.update(step, {"train/loss": 4.0 - step / 20}, {"goodput/step_seconds": 3.0}, "/c/step-30")
    server = StatusServer(StatusPageConfig(enabled=True), status, asked.append)
    server.start()
    yield server, asked
    server.stop()


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer, answer.read().decode()


def post(url, headers):
    request = urllib.request.Request(url, data=b"", headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_html_that_loads_nothing_and_escapes_names(served):
    server, _ = served
    answer, text = get(server.url)
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and {"progress", "svg", "polyline", "button"} <= tags.seen
    assert "run &lt;1&gt;" in text and "<1>" not in text
    assert "hunter2" not in text and "40 of 100 updates" in text and "/c/step-30" in text
    assert "http" not in text.replace(server.url, ""), "nothing from elsewhere"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_the_json_says_the_same(served):
    server, _ = served
    status = json.loads(get(server.url + "status.json")[1])
    assert status["updates"] == 40 and status["losses"][0] == [0, 4.0] and status["config"]["seed"] == 3


def test_a_checkpoint_needs_the_header_and_a_token_that_works_once(served):
    server, asked = served
    url = server.url + "checkpoint"
    token = json.loads(get(server.url + "status.json")[1])["token"]
    control = {"X-Levanter-Training-Control": "request-permanent-checkpoint"}
    assert post(url, {"X-Levanter-Token": token}) == 400
    assert post(url, control) == 403
    assert post(url, control | {"X-Levanter-Token": "guess"}) == 403
    assert asked == []
    assert post(url, control | {"X-Levanter-Token": token}) == 202
    assert post(url, control | {"X-Levanter-Token": token}) == 403
    assert asked == [Retention.PERMANENT]
    assert post(server.url + "other", control) == 404


def test_a_long_run_keeps_a_bounded_curve_that_spans_it():
    status = RunStatus("r", 10_000)
    for step in range(10_000):
        status.update(step, {"train/loss": 1.0}, {}, None)
    losses = status.as_dict()["losses"]
    assert 100 < len(losses) <= 400 and losses[0][0] == 0 and losses[-1][0] > 9_900


def test_secrets_are_left_out_wherever_they_are():
    hidden = redact({"a": [{"password": "x"}], "tokenizer": "t", "url": "https://u:p@h/"})
    assert hidden == {"a": [{"password": "(hidden)"}], "tokenizer": "t", "url": "https://(hidden)@h/"}


def test_a_page_before_the_first_step_is_a_page():
    assert "not enough steps" in render_page(RunStatus("r", 3).as_dict(), "t", "n")


def test_a_port_that_is_taken_or_impossible_says_so(served):
    server, _ = served
    port = int(server.url.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(ConfigError, match="cannot listen"):
        StatusServer(StatusPageConfig(enabled=True, port=port), RunStatus("r", 1), None)
    with pytest.raises(ConfigError):
        StatusPageConfig(port=70_000)


def test_goodput_adds_up():
    clock = ManualClock()
    meter = ThroughputMeter(WorkPerExample(), clock=clock)
    for what, seconds in (("compile", 2.0), ("step", 5.0), ("checkpoint", 1.0)):
        clock.advance(seconds)
        meter.spend(what, seconds)
    clock.advance(2.0)
    goodput = meter.goodput()
    assert sum(v for k, v in goodput.items() if k.endswith("_seconds")) == pytest.approx(10.0)
    assert goodput["goodput/other_seconds"] == 2.0 and goodput["goodput/productive_fraction"] == 0.5
