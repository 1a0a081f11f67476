"""Errors on a command line: one line on stderr, an empty line, a hint, and an exit code that a script can act on.

0 everything is there · 1 a step failed · 2 usage or bad input · 3 the plan was refused
"""

import contextlib
import signal
import sys
from collections.abc import Generator
from types import FrameType

import click

from marin.errors import InvalidVersionError, MarinError, PlanError, StepError, UnknownStepError, UsageError

EXIT_OK = 0
EXIT_STEP_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130


def exit_code_of(error: BaseException) -> int:
    """The exit code that an error stands for."""
    if isinstance(error, UnknownStepError | UsageError):
        return EXIT_USAGE
    if isinstance(error, InvalidVersionError) and error.step.startswith("--"):
        return EXIT_USAGE
    if isinstance(error, PlanError):
        return EXIT_REFUSED
    return EXIT_STEP_FAILED if isinstance(error, StepError) else EXIT_USAGE


def print_error(message: str, hint: str = "") -> None:
    """``error: message`` on stderr, then the hint."""
    message = message.removesuffix(hint).rstrip() if hint else message.rstrip()
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"\nhint: {hint}", err=True)


@contextlib.contextmanager
def reported() -> Generator[None]:
    """Turn errors that are expected into a message and an exit code; SIGTERM is treated like Ctrl-C.

    Raises:
        SystemExit: With the code, after the message was printed.
    """

    def on_terminate(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    except MarinError as error:
        print_error(str(error), error.hint)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        print_error("interrupted", "Run the same command again: finished steps are kept.")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(EXIT_OK)
    except OSError as error:
        print_error(f"{type(error).__name__}: {error}", "Check the path and the rights on it.")
        sys.exit(EXIT_USAGE)
    finally:
        signal.signal(signal.SIGTERM, previous)
