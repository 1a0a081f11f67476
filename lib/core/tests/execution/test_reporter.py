"""What a person sees of a run: on a terminal, and in a log."""

import io

from marin.execution.reporter import ConsoleReporter
from rigging.timing import ManualClock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_log_a_step_tells_how_far_it_is_every_ten_seconds():
    clock, stream = ManualClock(), io.StringIO()
    reporter = ConsoleReporter(stream, clock=clock)
    for second in range(25):
        reporter.step_progress("model@auto-1", f"train: {second}/25 steps")
        reporter.step_progress("other@auto-1", f"{second}")
        clock.advance(1)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "model" in line] == [
        f"  ...      model  train: {second}/25 steps" for second in (0, 10, 20)
    ]
    assert sum("other" in line for line in lines) == 3


def test_on_a_terminal_one_live_line_is_redrawn_and_gone_before_the_next_line():
    stream = Terminal()
    reporter = ConsoleReporter(stream, clock=ManualClock())
    reporter.step_progress("model@auto-1", "train: 10/25 steps, loss=8.123")
    reporter.step_progress("model@auto-1", "train: 20/25 steps")
    assert "\n" not in stream.getvalue()
    first, second = stream.getvalue().split("\r")[1:]
    assert second.rstrip() == "  ...      model  train: 20/25 steps"
    assert len(first) == len(second), "a shorter line covers the longer one before it"
    reporter.notice("model@auto-1", "done")
    cleared = stream.getvalue().split("\r")[-2:]
    assert cleared[0].strip() == "" and len(cleared[0]) == len(second)
    assert cleared[1] == "  note     model@auto-1  done\n"
