"""Events move into Parquet without one of them being lost or counted twice, wherever the mover dies."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marin.errors import CorruptRecordError
from marin.execution.events import LedgerEvent, write_event
from marin.ledger import Ledger
from marin.ledger.compaction import compact, compacted_events
from marin.ledger.scan import compacted_paths, event_paths
from marin.ledger.tables import load_tables

pytest.importorskip("pyarrow", reason="the extra ledger is not installed")

TODAY = "2026-12-03"


def event(number, day="2026-12-01", **data):
    return LedgerEvent(
        id=f"{day}-{number:04d}",
        at=f"{day}T00:00:{number % 60:02d}.000000Z",
        kind="finished",
        step="tokens",
        digest=None if number % 2 else "ab",
        data={"n": number, **data},
    )


@pytest.fixture
def store(tmp_path):
    prefix = str(tmp_path / "store")
    for day in ("2026-11-30", "2026-12-01", TODAY):
        for number in range(5):
            write_event(prefix, event(number, day, text="ä\n'\"", nested={"a": [1, None, 2.5]}))
    return prefix


def test_events_and_queries_are_the_same_before_and_after(store):
    events, tables = Ledger(store).events(), load_tables(Ledger(store))
    done = compact(store, today=TODAY)
    assert [(day.day, day.events, day.files_removed) for day in done] == [("2026-11-30", 5, 5), ("2026-12-01", 5, 5)]
    assert len(list(event_paths(store))) == 5
    assert Ledger(store).events() == events
    assert load_tables(Ledger(store)) == tables
    assert compact(store, today=TODAY) == []


@given(
    st.lists(
        st.tuples(
            st.text(max_size=20),
            st.dictionaries(
                st.text(max_size=5), st.one_of(st.none(), st.integers(-(2**53), 2**53), st.text(max_size=9))
            ),
        ),
        max_size=6,
    )
)
def test_every_event_survives_the_change_of_form(tmp_path_factory, contents):
    prefix = str(tmp_path_factory.mktemp("store"))
    events = [
        LedgerEvent(id=f"{n:04d}", at="2026-12-01T00:00:00Z", kind="drift", step=text, data=data)
        for n, (text, data) in enumerate(contents)
    ]
    for item in events:
        write_event(prefix, item)
    compact(prefix, today=TODAY)
    assert compacted_events(prefix) == events


class Died(Exception):
    pass


@pytest.mark.parametrize("step", range(1, 8))
def test_a_compaction_that_dies_anywhere_loses_nothing(store, step):
    events = Ledger(store).events()
    steps = []

    def die(what):
        steps.append(what)
        if len(steps) == step:
            raise Died

    with pytest.raises(Died):
        compact(store, today=TODAY, on_step=die)
    assert Ledger(store).events() == events
    compact(store, today=TODAY)
    assert Ledger(store).events() == events
    assert len(list(event_paths(store))) == 5 and len(compacted_paths(store)) == 2


def test_a_late_event_of_a_compacted_day_joins_it(store):
    compact(store, today=TODAY)
    late = event(77)
    write_event(store, late)
    assert late in Ledger(store).events()
    (day,) = compact(store, today=TODAY)
    assert day.events == 6 and day.files_removed == 2
    assert late in compacted_events(store)
    assert len(compacted_paths(store)) == 2


def test_equal_events_give_equal_files(store, tmp_path):
    other = str(tmp_path / "other")
    for number in reversed(range(5)):
        write_event(other, event(number, "2026-12-01", text="ä\n'\"", nested={"a": [1, None, 2.5]}))
    compact(store, today=TODAY)
    compact(other, today=TODAY)
    assert os.path.basename(compacted_paths(other)[0]) in {os.path.basename(path) for path in compacted_paths(store)}


def test_a_file_that_is_no_events_is_an_error_with_its_path(store):
    compact(store, today=TODAY)
    path = compacted_paths(store)[0]
    with open(path, "wb") as file:
        file.write(b"PAR1 torn")
    with pytest.raises(CorruptRecordError, match=os.path.basename(path)):
        Ledger(store).events()


def test_why_still_knows_why_a_step_ran_after_compaction(tmp_path):
    from marin.execution import ArtifactStep, run

    prefix = str(tmp_path / "store")
    run(ArtifactStep("x", "2026.12.01", run=lambda config: None, build_config=lambda ctx: None), prefix=prefix)
    before = Ledger(prefix).why("x").paragraph
    compact(prefix, today="9999-12-31")
    assert list(event_paths(prefix)) == []
    assert Ledger(prefix).why("x").paragraph == before
