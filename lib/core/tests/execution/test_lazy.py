import json
import os
import random

import pytest
from marin.errors import (
    FingerprintMismatchError,
    InputBindingError,
    MutableDependencyError,
    PlanError,
    StepCycleError,
    UndeclaredArgumentError,
    UndeclaredDependencyError,
    UnfingerprintableError,
)
from marin.execution import OUT, SCRATCH, Artifact, ArtifactStep, apply, lower, materialized_config, run
from marin.execution.lazy import lower_all


def nothing(config):
    return None


def make(name, build, *deps, version="2026.12.01", **fields):
    return ArtifactStep(name=name, version=version, run=nothing, build_config=build, deps=deps, **fields)


def test_the_address_is_prefix_name_version():
    step = make("tokens/web", lambda ctx: 1)
    assert step.path("/store") == step.path("/store/") == "/store/tokens/web/2026.12.01"


def test_a_consumer_gets_the_path_of_its_producer():
    raw = make("raw", lambda ctx: 1)
    step = make("tokens", lambda ctx: {"in": ctx.artifact_path(raw), "out": ctx.output_path}, raw)
    config = materialized_config(step, "/store")
    assert config == {"in": "/store/raw/2026.12.01", "out": "/store/tokens/2026.12.01"}


def random_graph(chance, size, version="2026.12.01"):
    steps = []
    for number in range(size):
        deps = tuple(chance.sample(steps, min(len(steps), chance.randint(0, 3))))
        literal = chance.choice([chance.random(), chance.randint(0, 9), "text", (1, 2), None])

        def build(ctx, deps=deps, literal=literal):
            return {
                "x": literal,
                "out": ctx.output_path,
                "in": [ctx.artifact_path(dep) for dep in deps],
                "p": ctx.prefix,
            }

        steps.append(make(f"s{number}", build, *deps, version=version))
    return steps


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("version", ["2026.12.01", "auto"])
def test_identity_does_not_depend_on_the_prefix(seed, version):
    found = []
    for prefix in ("/first", "/second/deep"):
        specs = lower_all(random_graph(random.Random(seed), 12, version)).values()
        found.append([(spec.fingerprint, spec.hash_id, os.path.relpath(spec.path(prefix), prefix)) for spec in specs])
    assert found[0] == found[1]


def test_runtime_arguments_and_resources_are_not_identity():
    one = make("a", lambda ctx: {"n": 1, "workers": ctx.runtime_arg("workers")}, runtime_args={"workers": 1})
    two = make("a", lambda ctx: {"n": 1, "workers": ctx.runtime_arg("workers")}, runtime_args={"workers": 8})
    assert one.fingerprint() == two.fingerprint()
    assert materialized_config(two, "/store")["workers"] == 8


def test_a_literal_and_the_version_of_an_input_are_identity():
    old, new = make("raw", lambda ctx: 1), make("raw", lambda ctx: 1, version="2026.12.02")
    prints = {
        make("t", lambda ctx, dep=dep, n=n: {"n": n, "in": ctx.artifact_path(dep)}, dep).fingerprint()
        for dep in (old, new)
        for n in (1, 2)
    }
    assert len(prints) == 4


def test_an_input_counts_even_when_the_config_does_not_mention_it():
    old, new = make("raw", lambda ctx: 1), make("raw", lambda ctx: 1, version="2026.12.02")
    assert make("t", lambda ctx: 1, old).fingerprint() != make("t", lambda ctx: 1, new).fingerprint()


def test_a_changed_literal_changes_derived_versions_downstream_and_nowhere_else():
    def chain(vocab):
        raw = make("raw", lambda ctx: 1, version="auto")
        tokens = make("tokens", lambda ctx: {"vocab": vocab, "in": ctx.artifact_path(raw)}, raw, version="auto")
        model = make("model", lambda ctx: ctx.artifact_path(tokens), tokens, version="auto")
        return [step.label for step in (raw, tokens, model)]

    old, new = chain(4096), chain(2048)
    assert old[0] == new[0] and old[1] != new[1] and old[2] != new[2]


def test_an_undeclared_input_is_refused_with_the_names():
    raw = make("raw", lambda ctx: 1)
    with pytest.raises(UndeclaredDependencyError) as caught:
        lower(make("tokens", lambda ctx: ctx.artifact_path(raw)))
    assert (caught.value.step, caught.value.dependency) == ("tokens", "raw")


def test_an_undeclared_runtime_argument_is_refused():
    with pytest.raises(UndeclaredArgumentError) as caught:
        lower(make("tokens", lambda ctx: ctx.runtime_arg("workers"), runtime_args={"threads": 1}))
    assert (caught.value.step, caught.value.key, caught.value.known) == ("tokens", "workers", ["threads"])


def test_a_handle_inside_a_config_is_refused_with_advice():
    raw = make("raw", lambda ctx: 1)
    with pytest.raises(UnfingerprintableError, match="artifact_path") as caught:
        lower(make("tokens", lambda ctx: {"data": [raw]}, raw))
    assert caught.value.field == "data[0]"


def test_loading_an_input_while_the_identity_is_computed_is_refused():
    raw = make("raw", lambda ctx: 1)
    with pytest.raises(PlanError, match="is_fingerprint"):
        lower(make("tokens", lambda ctx: ctx.resolved(raw), raw))


def test_an_exception_in_build_config_names_the_step_and_keeps_the_cause():
    with pytest.raises(PlanError) as caught:
        lower(make("tokens", lambda ctx: {}["missing"]))
    assert caught.value.step == "tokens" and caught.value.field == "build_config"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_fixed_step_may_not_read_a_mutable_one():
    moving = make("raw", lambda ctx: 1, version="dev")
    with pytest.raises(MutableDependencyError):
        lower(make("tokens", lambda ctx: ctx.artifact_path(moving), moving))
    lower(make("tokens", lambda ctx: ctx.artifact_path(moving), moving, version="dev"))


def test_a_pinned_recipe_that_changed_is_refused_when_lowered():
    pinned = make("t", lambda ctx: 1).fingerprint()
    lower(make("t", lambda ctx: 1, expected_fingerprint=pinned[:16]))
    with pytest.raises(FingerprintMismatchError) as caught:
        lower(make("t", lambda ctx: 2, expected_fingerprint=pinned))
    assert caught.value.expected == pinned


def test_a_circle_of_handles_is_refused():
    one = make("one", lambda ctx: 1)
    two = make("two", lambda ctx: 1, one)
    object.__setattr__(one, "deps", (two,))
    with pytest.raises(StepCycleError) as caught:
        lower(two)
    assert caught.value.cycle == ("two", "one", "two")


def test_a_step_needs_something_to_run_and_not_two_sources():
    with pytest.raises(InputBindingError):
        ArtifactStep(name="x", version="dev")
    with pytest.raises(InputBindingError):
        ArtifactStep(name="x", version="dev", override_path="/a", adopt_source="/b")


def test_lowering_builds_each_config_once_however_many_paths_lead_to_it():
    built = []
    layer = [make("leaf", lambda ctx: built.append("leaf") or 1)]
    for depth in range(20):
        layer = [
            make(f"n{depth}-{side}", lambda ctx, key=f"{depth}{side}": built.append(key) or 1, *layer) for side in "lr"
        ]
    lower_all(layer)
    assert len(built) == len(set(built)) == 41


class Count(Artifact):
    words: int


def count_words(source, out, scratch, minimum=0):
    assert os.path.isdir(scratch)
    with open(os.path.join(source, "text.txt")) as file:
        words = [word for word in file.read().split() if len(word) >= minimum]
    with open(os.path.join(out, "words.json"), "w") as file:
        json.dump(words, file)
    return Count(words=len(words))


def test_apply_runs_a_keyword_function_with_handles_and_placeholders_resolved(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "text.txt").write_text("a bb ccc")
    raw = ArtifactStep.adopt("raw", "2026.12.01", str(tmp_path / "raw"))
    step = apply(
        "count", count_words, version="auto", artifact_type=Count, source=raw, out=OUT, scratch=SCRATCH, minimum=2
    )
    assert step.deps == (raw,)
    artifact = run(step, prefix=str(tmp_path / "store")).artifact(step)
    assert artifact.words == 2
    with open(artifact.file("words.json")) as file:
        assert json.load(file) == ["bb", "ccc"]


def test_apply_refuses_inputs_that_do_not_fit_when_the_step_is_built():
    with pytest.raises(InputBindingError, match="count_words"):
        apply("count", count_words, version="auto", source="x", output="y")
