"""Fixtures shared by the tests: contexts that keep their scratch files in the test's folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from zephyr import ZephyrContext

# A busy machine is not a bug: examples may take their time.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def quiet_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PROGRESS", "0")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def ctx(scratch: Path) -> Iterator[ZephyrContext]:
    """Runs in this process; afterwards the scratch folder must be empty."""
    with ZephyrContext(inline=True, chunk_storage_prefix=str(scratch)) as context:
        yield context
    assert not list(scratch.glob("*/*")) if scratch.exists() else True
