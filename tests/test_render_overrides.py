import datetime as dt
import shutil
import tomllib
from pathlib import Path

import pytest

from infra.render_overrides import BEGIN, END, OverridesError, main, problems, read_entries, render, splice

ROW = """
[[entry]]
name = "{name}"
kind = "{kind}"
bound = "{bound}"
reason = "a reason that is long enough to mean something"
reference = "CVE-0000-0000"
added = 2026-01-01
review_by = {review_by}
"""
TODAY = dt.date(2026, 6, 1)


def row(name: str = "click", kind: str = "floor", bound: str = ">=8", review_by: str = "2027-01-01") -> str:
    return ROW.format(name=name, kind=kind, bound=bound, review_by=review_by)


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    (tmp_path / "infra").mkdir()
    for name in ("pyproject.toml", "uv.lock", "infra/overrides.toml"):
        shutil.copyfile(root / name, tmp_path / name)
    return tmp_path


def test_the_repository_is_in_order() -> None:
    assert main(["--check"]) == 0


def test_overrides_and_constraints_land_in_their_own_setting() -> None:
    block = render(
        read_entries(row("zlib-ng") + row("click", "override", "==8.1") + row("nightly", "prerelease", ">=0.1.dev0"))
    )
    settings = tomllib.loads(block)
    assert settings["override-dependencies"] == ["click==8.1"]
    assert settings["constraint-dependencies"] == ["nightly>=0.1.dev0", "zlib-ng>=8"]


def test_rendering_twice_changes_nothing(root: Path) -> None:
    text = (root / "pyproject.toml").read_text()
    block = render(read_entries((root / "infra/overrides.toml").read_text()))
    assert splice(splice(text, block), block) == splice(text, block) == text


def test_drift_fails_the_check_and_rendering_repairs_it(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = copied / "infra/overrides.toml"
    table.write_text(table.read_text() + row("cloudpickle"))
    assert main(["--check"], root=copied, today=TODAY) == 1
    assert "differs" in capsys.readouterr().err
    assert main([], root=copied, today=TODAY) == 0
    assert main(["--check"], root=copied, today=TODAY) == 0
    assert "cloudpickle>=8" in (copied / "pyproject.toml").read_text()


def test_an_entry_past_its_review_date_is_an_error() -> None:
    entries = read_entries(row(review_by="2026-05-31"))
    (sentence,) = problems(entries, {"package": [{"name": "click"}]}, TODAY)
    assert "2026-05-31" in sentence and "CVE-0000-0000" in sentence
    assert problems(entries, {"package": [{"name": "click"}]}, dt.date(2026, 5, 31)) == []


def test_an_entry_whose_package_left_the_lock_is_an_error() -> None:
    (sentence,) = problems(read_entries(row()), {"package": [{"name": "other"}]}, TODAY)
    assert "no longer in uv.lock" in sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (row() + row(), "more than once"),
        (row(kind="wish"), "kind='wish'"),
        (row(bound="8"), "bound='8'"),
        (row(review_by='"2027-01-01"'), "dates"),
        (row(review_by="2025-01-01"), "not after"),
        (row().replace("a reason that is long enough to mean something", "because"), "because"),
        (row().replace('reference = "CVE-0000-0000"', ""), "reference"),
        (row() + 'colour = "red"\n', "colour"),
    ],
)
def test_a_malformed_table_is_refused_with_the_offending_value(text: str, expected: str) -> None:
    with pytest.raises(OverridesError, match=expected):
        read_entries(text)


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}\n{END}\n{BEGIN}\n{END}"])
def test_missing_or_doubled_markers_are_refused(text: str) -> None:
    with pytest.raises(OverridesError, match="markers"):
        splice(text, "block")
