import logging

import pytest
from rigging.log_setup import LineFormatter, LogRingBuffer, RingBufferHandler, parse_log_level, slow_log


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
def test_a_line_tells_its_level(level):
    record = logging.LogRecord("app.part", getattr(logging, level), "f.py", 1, "hello %s", ("you",), None)
    line = LineFormatter().format(record)
    assert parse_log_level(line) == level
    assert line.endswith(" app.part hello you")
    assert parse_log_level("") is None and parse_log_level("Info") is None and parse_log_level("X20260101") is None


def test_a_traceback_follows_its_line():
    try:
        raise ValueError("boom")
    except ValueError:
        import sys

        record = logging.LogRecord("a", logging.ERROR, "f.py", 1, "bad", (), sys.exc_info())
    assert LineFormatter().format(record).splitlines()[-1] == "ValueError: boom"


def test_the_ring_keeps_the_newest_and_numbers_everything():
    ring = LogRingBuffer(capacity=3)
    logger = logging.getLogger("ring-test.a")
    handler = RingBufferHandler(ring)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        for n in range(5):
            logger.debug("line %d", n)
    finally:
        logger.removeHandler(handler)
    assert [(record.seq, record.message) for record in ring.query()] == [(3, "line 2"), (4, "line 3"), (5, "line 4")]
    assert [record.seq for record in ring.query_since(3, limit=1)] == [5]
    assert ring.query(prefix="other") == [] and ring.query(limit=0) == []
    assert ring.query(prefix="ring-test")[0].level == "DEBUG"


def test_logging_is_configured_once_and_the_ring_sees_debug(python_child):
    child = python_child(
        """
        import io, logging, sys
        sys.stderr = io.StringIO()
        from rigging.log_setup import configure_logging, get_global_buffer, install_fault_handler
        ring = configure_logging("WARNING")
        assert configure_logging(logging.WARNING) is ring is get_global_buffer()
        assert len(logging.getLogger().handlers) == 2
        logging.getLogger("app").debug("detail")
        logging.getLogger("app").warning("careful")
        logging.getLogger("httpx").info("noise")
        print([record.message.split(" ", 4)[-1] for record in ring.query()], sys.stderr.getvalue().count("careful"),
              "detail" in sys.stderr.getvalue())
        sys.stderr = sys.__stderr__
        print(install_fault_handler(), install_fault_handler())
        """
    )
    assert child.line() == "['detail', 'careful'] 1 False"
    assert child.line() == "True True"


def test_slow_operations_are_reported_also_when_they_fail(caplog):
    logger = logging.getLogger("slow-test")
    with slow_log(logger, "quick", threshold_ms=10_000):
        pass
    with pytest.raises(RuntimeError), slow_log(logger, "load", threshold_ms=-1):
        raise RuntimeError
    assert [record.message.startswith("load was slow") for record in caplog.records] == [True]
