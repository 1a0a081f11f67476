"""The lines of the scoreboard that may not get worse."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.declared import findings
from infra.scoreboard import BEGIN, END, import_cycle, largest_cycle, plain_install, source_facts

# Siblings, third-party packages and all: what a plain install may bring. Raising a number is a decision.
PLAIN_INSTALL_LIMITS = {"rigging": 3, "dupekit": 3, "fray": 5, "zephyr": 14, "haliax": 11, "levanter": 40, "core": 9}


def test_no_package_has_an_import_cycle(packages: dict) -> None:
    assert import_cycle(packages) == []


def test_nothing_undeclared_is_imported_and_nothing_declared_is_unused(packages: dict) -> None:
    assert findings(packages) == []


@pytest.mark.parametrize("folder", sorted(PLAIN_INSTALL_LIMITS))
def test_a_plain_install_stays_light(packages: dict, root: Path, folder: str) -> None:
    lock = tomllib.loads((root / "uv.lock").read_text())
    brought = plain_install(packages[folder], lock)
    assert len(brought) <= PLAIN_INSTALL_LIMITS[folder], sorted(brought)
    assert not brought & {"torch", "wandb", "ray", "kubernetes", "transformers", "pandas"}


def test_every_package_has_a_limit(packages: dict) -> None:
    assert set(PLAIN_INSTALL_LIMITS) == set(packages)


def test_sources_are_annotated_documented_and_name_no_bucket_of_anybody(packages: dict) -> None:
    facts = source_facts(packages)
    assert facts.annotated >= 0.95 * facts.functions
    assert facts.undocumented == 0
    assert facts.buckets == 0
    assert facts.largest_class[0] <= 400, facts.largest_class
    assert facts.largest_file[0] <= 800, facts.largest_file


def test_the_readme_has_the_scoreboard(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert text.index(BEGIN) < text.index("import cycle") < text.index(END)


@given(st.dictionaries(st.integers(0, 6), st.sets(st.integers(0, 6))))
def test_the_largest_cycle_is_the_largest_set_that_reaches_itself(edges: dict[int, set[int]]) -> None:
    graph = {str(node): {str(below) for below in edges.get(node, set())} for node in range(7)}

    def reachable(start: str) -> set[str]:
        found: set[str] = set()
        queue = [start]
        while queue:
            for below in graph[queue.pop()] - found:
                found.add(below)
                queue.append(below)
        return found

    reach = {node: reachable(node) for node in graph}
    components = [{b for b in graph if b == a or (b in reach[a] and a in reach[b])} for a in graph]
    biggest = max(len(component) for component in components)
    found = largest_cycle(graph)
    assert len(found) == (biggest if biggest > 1 else 0)
    assert not found or set(found) in components
