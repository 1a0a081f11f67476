import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import InvalidNameError, InvalidVersionError
from marin.execution.versions import VersionKind, derive_version, is_mutable, validate_name, version_kind


@given(st.dates(), st.one_of(st.none(), st.integers(0, 99)))
def test_every_calendar_date_is_a_fixed_version(date, number):
    version = f"{date.year:04}.{date.month:02}.{date.day:02}" + ("" if number is None else f".{number}")
    assert version_kind(version) is VersionKind.FIXED


@pytest.mark.parametrize(
    "version",
    ["2026.13.40", "2026.02.29", "v1", "llama3", "20260628", "2026-01-01", "2026.1.1", "", "2026.01.01.01", "-dev",
     "a/b-dev", "2026.01.01 ", "dev-", "2026.01.01\n"],
)  # fmt: skip
def test_what_is_not_a_version_is_refused(version):
    with pytest.raises(InvalidVersionError) as caught:
        version_kind(version, step="tokens")
    assert caught.value.step == "tokens" and caught.value.version == version


def test_dev_versions_are_mutable_and_auto_versions_are_derived():
    assert is_mutable("dev") and is_mutable("lr-sweep-dev")
    assert version_kind("auto") is version_kind("small-auto") is VersionKind.DERIVED
    assert version_kind("small-auto-0123456789abcdef") is VersionKind.DERIVED


def test_a_derived_version_is_completed_once():
    full = derive_version("small-auto", "f" * 32)
    assert full == "small-auto-" + "f" * 16
    assert derive_version(full, "0" * 32) == full
    assert derive_version("2026.01.01", "f" * 32) == "2026.01.01"


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "a/../b", "..", "gs://x/y", "a:b", ".hidden", "a/.b", "a b", "ledger/x"]
)
def test_a_name_that_cannot_be_a_path_is_refused(name):
    with pytest.raises(InvalidNameError):
        validate_name(name)


def test_names_may_have_segments():
    assert validate_name("users/ada/tokens_v2.1-x") == "users/ada/tokens_v2.1-x"
