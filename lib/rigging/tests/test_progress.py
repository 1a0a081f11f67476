import io
import logging

import pytest
from rigging.progress import Progress, format_quantity, format_seconds
from rigging.timing import ManualClock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_one_live_line_with_rate_estimate_and_fields(monkeypatch):
    monkeypatch.delenv("MARIN_PROGRESS", raising=False)
    clock, stream = ManualClock(), Terminal()
    with Progress(100, unit="docs", description="tokenize", clock=clock, stream=stream) as progress:
        clock.advance(10)
        progress.advance(25, loss=1.23456)
        assert stream.getvalue() == "\rtokenize: 25/100 docs (25%), 2.5 docs/s, 0:30 left, loss=1.235"
        progress.advance(1)
        assert stream.getvalue().count("\r") == 1, "not more often than the interval"
        clock.advance(30)
        progress.update(100)
    lines = stream.getvalue().split("\r")
    assert lines[-1].rstrip() == "tokenize: 100/100 docs (100%), 2.5 docs/s, done in 0:40, loss=1.235"
    assert stream.getvalue().endswith("\n")
    assert len({len(line) for line in lines[2:]}) <= 2, "shorter lines are padded over longer ones"


def test_elsewhere_a_log_line_comes_every_ten_seconds(monkeypatch, caplog):
    monkeypatch.delenv("MARIN_PROGRESS", raising=False)
    clock, stream = ManualClock(), io.StringIO()
    with (
        caplog.at_level(logging.INFO, logger="rigging.progress"),
        Progress(None, unit="B", description="copy", clock=clock, stream=stream) as progress,
    ):
        for _ in range(35):
            clock.advance(1)
            progress.advance(1000)
    assert stream.getvalue() == ""
    assert [record.message for record in caplog.records] == [
        "copy: 10k B, 1k B/s",
        "copy: 20k B, 1k B/s",
        "copy: 30k B, 1k B/s",
        "copy: 35k B, 1k B/s, done in 0:35",
    ]


def test_a_failing_body_is_said_to_have_failed_and_zero_work_does_not_divide(monkeypatch, caplog):
    monkeypatch.delenv("MARIN_PROGRESS", raising=False)
    with caplog.at_level(logging.INFO, logger="rigging.progress"):
        try:
            with Progress(0, unit="x", description="none", clock=ManualClock(), stream=io.StringIO()):
                raise RuntimeError
        except RuntimeError:
            pass
    assert caplog.records[-1].message == "none: 0/0 x (100%), 0 x/s, failed in 0:00"


def test_it_can_be_silenced(monkeypatch, caplog):
    monkeypatch.setenv("MARIN_PROGRESS", "0")
    stream = Terminal()
    with Progress(1, unit="x", description="quiet", clock=ManualClock(), stream=stream) as progress:
        progress.advance()
    assert stream.getvalue() == "" and not caplog.records


def test_numbers_are_short():
    assert [format_quantity(n) for n in (0, 999, 1000, 999_999, 1.5e9)] == ["0", "999", "1k", "1M", "1.5G"]
    assert [format_seconds(n) for n in (0, 59.9, 60, 3600)] == ["0:00", "0:59", "1:00", "1:00:00"]


def test_the_time_between_log_lines_is_set_from_outside(monkeypatch, caplog):
    monkeypatch.delenv("MARIN_PROGRESS", raising=False)
    monkeypatch.setenv("MARIN_PROGRESS_INTERVAL_S", "2")
    clock = ManualClock()
    with (
        caplog.at_level(logging.INFO, logger="rigging.progress"),
        Progress(4, unit="x", description="work", clock=clock, stream=io.StringIO()) as progress,
    ):
        for _ in range(4):
            clock.advance(1)
            progress.advance(1)
    assert len(caplog.records) == 3


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_time_between_lines_that_is_no_positive_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("MARIN_PROGRESS_INTERVAL_S", text)
    with pytest.raises(ValueError, match=f"MARIN_PROGRESS_INTERVAL_S='{text}'"):
        Progress(4, unit="x", description="work", stream=io.StringIO())
