import json
import os

import pytest
from marin.errors import UsageError
from marin.execution import ArtifactStep, run
from marin.ledger import Ledger, verify
from marin.ledger.tables import COLUMNS, index_path, load_tables


def write(config):
    if config["n"] < 0:
        raise ValueError("negative")
    with open(os.path.join(config["out"], "n.txt"), "w") as file:
        file.write(str(config["n"]))


def step(name, n, *deps):
    return ArtifactStep(
        name=name,
        version="2026.12.01",
        run=write,
        build_config=lambda ctx: {"n": n, "out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in deps]},
        deps=deps,
    )


@pytest.fixture
def store(tmp_path):
    prefix = str(tmp_path / "store")
    a = step("a", 1)
    run(step("c", 3, step("b", 2, a), a), step("bad", -1), prefix=prefix)
    return prefix


def test_every_row_has_every_column(store):
    tables = load_tables(Ledger(store))
    assert {name: len(rows) for name, rows in tables.items()} == {"steps": 4, "attempts": 4, "inputs": 3, "events": 8}
    for name, rows in tables.items():
        assert {len(row) for row in rows} == {len(COLUMNS[name])}


def test_a_deleted_index_comes_back_with_the_same_bytes(store):
    def read():
        with open(index_path(store), "rb") as file:
            return file.read()

    load_tables(Ledger(store))
    before = read()
    os.unlink(index_path(store))
    load_tables(Ledger(store))
    assert read() == before


def test_a_fresh_index_is_used_and_a_stale_or_torn_one_is_made_again(store):
    rebuilt = []
    load_tables(Ledger(store))
    load_tables(Ledger(store), on_rebuild=lambda: rebuilt.append(1))
    assert rebuilt == []
    run(step("d", 4), prefix=store)
    assert len(load_tables(Ledger(store), on_rebuild=lambda: rebuilt.append(2))["steps"]) == 5
    with open(index_path(store), "w") as file:
        file.write('{"source": "')
    assert len(load_tables(Ledger(store), on_rebuild=lambda: rebuilt.append(3))["steps"]) == 5
    assert rebuilt == [2, 3]


def test_sql_answers_over_the_ledger(store):
    pytest.importorskip("duckdb")
    from marin.ledger._adapters.duckdb_query import run_query

    tables = load_tables(Ledger(store))
    names, rows = run_query(COLUMNS, tables, "SELECT category, count(*) n FROM attempts GROUP BY 1 ORDER BY 1")
    assert names == ["category", "n"] and rows == [("", 3), ("user_code", 1)]
    with pytest.raises(UsageError, match="query failed"):
        run_query(COLUMNS, tables, "SELECT nothing FROM nowhere")
    with pytest.raises(UsageError):
        run_query(COLUMNS, tables, "SELECT * FROM read_text('/etc/passwd')")


def test_a_sound_lineage_is_verified_from_the_terminal_down(store):
    result = verify(Ledger(store), "c", deep=True)
    assert result.ok and [finding.step.partition("@")[0] for finding in result.findings] == ["c", "b", "a"]
    assert json.loads(json.dumps(result.to_json()))["ok"]


def test_changed_bytes_are_found_by_a_deep_look(store):
    path = os.path.join(store, "a", "2026.12.01", "n.txt")
    with open(path, "w") as file:
        file.write("9")
    assert verify(Ledger(store), "c").ok
    result = verify(Ledger(store), "c", deep=True)
    assert [finding.problems for finding in result.findings if finding.problems] == [("changed content: n.txt",)]


def test_an_input_that_was_replaced_after_it_was_read_is_found(store):
    run(step("a", 7), prefix=store, force=["a"])
    result = verify(Ledger(store), "c")
    assert not result.ok
    problems = {finding.step: finding.problems for finding in result.findings}
    assert "made from other bytes of a@2026.12.01" in problems["b@2026.12.01"][0]


@pytest.mark.parametrize("name", [".manifest.jsonl", ".artifact.json", "n.txt"])
def test_missing_parts_are_found(store, name):
    os.unlink(os.path.join(store, "b", "2026.12.01", name))
    assert not verify(Ledger(store), "c").ok
