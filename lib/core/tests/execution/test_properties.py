"""The promises about identity, order and drift, for graphs and configs that nobody chose."""

import dataclasses
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from marin.execution import ArtifactStep, StepSpec, run
from marin.execution.fingerprint import canonical_payload, fingerprint_of
from marin.execution.lazy import lower_all
from marin.execution.manifest import hash_file


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float
    names: tuple


LEAVES = (
    st.booleans()
    | st.integers(-5, 5)
    | st.floats(-2, 2)
    | st.text("abc", max_size=2)
    | st.none()
    | st.binary(max_size=2)
    | st.frozensets(st.integers(0, 3), max_size=2)
)
CONFIGS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Inner, st.floats(0, 1), st.tuples(inner))
    ),
    max_leaves=8,
)


def places(value, path=()):
    """Where the leaves of a config are."""
    if isinstance(value, dict):
        return [place for key, item in value.items() for place in places(item, (*path, ("key", key)))]
    if isinstance(value, list | tuple):
        return [place for number, item in enumerate(value) for place in places(item, (*path, ("index", number)))]
    if isinstance(value, Inner):
        return [(*path, ("field", "rate")), *places(value.names, (*path, ("field", "names")))]
    return [path]


def mutated(value, path, new):
    """The config with one leaf replaced."""
    if not path:
        return new(value)
    (kind, key), *rest = path
    if kind == "field":
        return dataclasses.replace(value, **{key: mutated(getattr(value, key), rest, new)})
    if kind == "key":
        return {**value, key: mutated(value[key], rest, new)}
    items = [mutated(item, rest, new) if number == key else item for number, item in enumerate(value)]
    return type(value)(items)


def other_than(value):
    """A literal that a person would call another one."""
    return {bool: lambda: int(value), int: lambda: float(value), float: lambda: value + 1.0}.get(
        type(value), lambda: [value]
    )()


@given(CONFIGS, st.data())
def test_a_single_changed_literal_is_another_fingerprint(config, data):
    found = places(config)
    if not found:
        return
    changed = mutated(config, data.draw(st.sampled_from(found)), other_than)
    assert fingerprint_of(canonical_payload(changed)) != fingerprint_of(canonical_payload(config))


@st.composite
def graphs(draw):
    """Edges of a random graph: for every step the steps before it that it reads."""
    return [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(draw(st.integers(1, 10)))]


def handles(edges, literal=0):
    steps = []
    for number, deps in enumerate(edges):
        above = tuple(steps[dep] for dep in sorted(deps))

        def build(ctx, above=above, number=number):
            return {"n": number, "literal": literal, "in": [ctx.artifact_path(dep) for dep in above], "p": ctx.prefix}

        steps.append(ArtifactStep(f"s{number}", "auto", run=print, build_config=build, deps=above))
    return steps


@given(graphs(), st.sampled_from(["/a", "/a/b/c", "s3://example-bucket/x"]))
def test_no_prefix_is_part_of_an_identity(edges, prefix):
    def identity(root):
        specs = lower_all(handles(edges)).values()
        return [(spec.fingerprint, spec.hash_id, spec.path(root)[len(root) :]) for spec in specs]

    assert identity(prefix) == identity("/elsewhere")


@given(graphs(), st.randoms())
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_of_the_steps_runs_each_once_after_its_inputs(tmp_path_factory, edges, chance):
    ran = []
    specs = []
    for number, deps in enumerate(edges):
        specs.append(
            StepSpec(
                name=f"s{number}",
                fn=lambda path, number=number: ran.append(number),
                deps=tuple(specs[dep] for dep in sorted(deps)),
            )
        )
    order = list(range(len(specs)))
    chance.shuffle(order)
    assert run(*(specs[number] for number in order), prefix=str(tmp_path_factory.mktemp("order"))).ok
    assert sorted(ran) == list(range(len(specs)))
    assert all(ran.index(dep) < ran.index(number) for number, deps in enumerate(edges) for dep in deps)


class Warnings:
    """A reporter that keeps what it is told about drift."""

    def __init__(self):
        self.told = []

    def notice(self, step, message):
        self.told.append((step, message))

    def __getattr__(self, name):
        return lambda *arguments: None


@given(st.lists(st.integers(0, 2), min_size=2, max_size=4), st.lists(st.integers(0, 2), min_size=2, max_size=4))
@settings(max_examples=8)
def test_an_edit_under_a_fixed_version_is_told_once_a_step_and_changes_no_byte(tmp_path_factory, first, second):
    def write(config):
        with open(os.path.join(config["out"], "n.txt"), "w") as file:
            file.write(str(config["n"]))

    def graph(literals):
        steps = []
        for number, literal in enumerate(literals[:2]):
            above = tuple(steps[-1:])

            def build(ctx, literal=literal, above=above):
                return {"n": literal, "out": ctx.output_path, "in": [ctx.artifact_path(dep) for dep in above]}

            steps.append(ArtifactStep(f"s{number}", "2026.12.01", run=write, build_config=build, deps=above))
        return steps

    prefix = str(tmp_path_factory.mktemp("drift"))
    run(*graph(first), prefix=prefix)
    files = [os.path.join(prefix, f"s{number}", "2026.12.01", "n.txt") for number in range(2)]
    before = [hash_file(path) for path in files]
    warnings = Warnings()
    summary = run(*graph(second), prefix=prefix, reporter=warnings)
    assert [step.outcome for step in summary.steps] == ["cached", "cached"]
    assert [hash_file(path) for path in files] == before
    edited = [f"s{number}@2026.12.01" for number in range(2) if first[number] != second[number]]
    assert sorted(step for step, message in warnings.told if "drift" in message) == edited
