import errno
import signal

import pytest
from marin.execution.failures import FailureCategory, RetryPolicy, classify, error_signature


class Diverged(RuntimeError):
    failure_category = "diverged"


class JobDied(RuntimeError):
    def __init__(self, number):
        self.signal = number


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (ValueError("x"), "user_code"),
        (MemoryError(), "oom"),
        (OSError(errno.ENOSPC, "full"), "quota"),
        (PermissionError(errno.EACCES, "no"), "auth"),
        (FileNotFoundError("corpus"), "data"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "data"),
        (ModuleNotFoundError("torch"), "dependency"),
        (TimeoutError(), "timeout"),
        (Diverged("nan"), "diverged"),
        (JobDied(signal.SIGKILL), "preempted"),
        (JobDied(signal.SIGSEGV), "user_code"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_an_exception_has_a_category(error, category):
    assert classify(error) is FailureCategory(category)


def test_an_explicit_category_deep_in_the_causes_wins():
    assert (
        classify(raised(RuntimeError("job failed"), raised(OSError(errno.ENOSPC, "x"), Diverged("nan")))) == "diverged"
    )


def test_the_signature_ignores_values_and_tells_places_apart():
    def here(value):
        raise ValueError(f"bad value {value} in '/tmp/{value}/x'")

    def there():
        raise ValueError("bad value 1 in '/tmp/1/x'")

    def signature(function, *arguments):
        try:
            function(*arguments)
        except ValueError as error:
            return error_signature(error)

    assert signature(here, 1) == signature(here, 22) != signature(there)


def test_only_listed_categories_are_retried_and_not_for_ever():
    policy = RetryPolicy({FailureCategory.OOM: 1})
    assert policy.allows(FailureCategory.OOM, 0) and not policy.allows(FailureCategory.OOM, 1)
    assert not policy.allows(FailureCategory.DATA, 0)
