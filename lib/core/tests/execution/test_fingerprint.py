import dataclasses
import datetime as dt
import enum
import json
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marin.errors import UnfingerprintableError
from marin.execution.fingerprint import canonical_payload, describe_drift, fingerprint_of, script_module_name


@dataclasses.dataclass
class Left:
    rate: float = 0.1
    layers: int = 2


@dataclasses.dataclass
class Right:
    rate: float = 0.1
    layers: int = 2


class Colour(enum.Enum):
    RED = 1


class Shade(enum.Enum):
    RED = 1


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.binary()
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=4),
        st.frozensets(st.one_of(st.integers(), st.text(max_size=3)), max_size=4),
        st.builds(Left, rate=st.floats(allow_nan=False, allow_infinity=False), layers=st.integers()),
    ),
    max_leaves=12,
)


def same(left, right):
    """Equality that tells types apart, as identity must."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        keys = {(type(key), key) for key in left}
        return keys == {(type(key), key) for key in right} and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if dataclasses.is_dataclass(left):
        return same(dataclasses.astuple(left), dataclasses.astuple(right))
    return repr(left) == repr(right) if isinstance(left, float) else left == right


@given(values, values)
@settings(max_examples=200, deadline=None)
def test_payloads_agree_exactly_when_the_values_do(left, right):
    assert (canonical_payload(left) == canonical_payload(right)) == same(left, right)


@given(values)
@settings(max_examples=100, deadline=None)
def test_a_payload_is_json_without_extensions(value):
    text = canonical_payload(value)
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text


@given(st.dictionaries(st.text(max_size=5), leaves, min_size=2, max_size=6), st.randoms())
@settings(deadline=None)
def test_the_order_of_a_dict_does_not_matter(mapping, random):
    items = list(mapping.items())
    random.shuffle(items)
    assert canonical_payload(dict(items)) == canonical_payload(mapping)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (1, "1"),
        ([1], (1,)),
        ({1: "a"}, {"1": "a"}),
        ({"$set": [1]}, {1}),
        (Left(), Right()),
        (Left(), {"rate": 0.1, "layers": 2}),
        (Colour.RED, Shade.RED),
        (Colour.RED, 1),
        (0.0, -0.0),
        ("a", b"a"),
        ("a", pathlib.PurePosixPath("a")),
        (dt.date(2026, 1, 1), "2026-01-01"),
        (dt.timedelta(days=1), dt.timedelta(seconds=1)),
        (frozenset(), set()),
        (int, "builtins.int"),
    ],
)
def test_values_that_look_alike_have_different_payloads(left, right):
    assert canonical_payload({"x": left}) != canonical_payload({"x": right})


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), lambda: 0, len, object(), open, iter([]), "\ud800", type("Odd", (dict,), {})()],
)
def test_a_value_without_canonical_form_is_refused_with_step_and_field(value):
    with pytest.raises(UnfingerprintableError) as caught:
        canonical_payload({"model": [Left(), {"act": value}]}, step="train")
    assert caught.value.step == "train"
    assert caught.value.field == "model[1].act"


def test_array_values_are_encoded_by_dtype_shape_and_content():
    numpy = pytest.importorskip("numpy")
    same_array = canonical_payload(numpy.arange(4, dtype="int32").reshape(2, 2))
    assert same_array == canonical_payload(numpy.arange(4, dtype="int32").reshape(2, 2).copy(order="F"))
    assert same_array != canonical_payload(numpy.arange(4, dtype="int64").reshape(2, 2))
    assert same_array != canonical_payload(numpy.arange(4, dtype="int32"))
    assert canonical_payload(numpy.float32(1)) != canonical_payload(1.0)
    assert canonical_payload(numpy.dtype("int8")) == '{"$dtype":"int8"}'


def test_a_fingerprint_has_128_bits():
    assert len(fingerprint_of(canonical_payload({}))) == 32


def test_fingerprints_agree_over_processes_and_hash_seeds():
    code = (
        "from marin.execution.fingerprint import *\n"
        "print(fingerprint_of(canonical_payload({'b': {'y', 'x', 'z'}, 'a': frozenset(range(9)), 'c': (1, 2.5)})))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_a_class_of_a_running_script_is_named_as_if_it_were_imported(tmp_path):
    package = tmp_path / "lab" / "runs"
    package.mkdir(parents=True)
    (tmp_path / "lab" / "__init__.py").touch()
    (package / "__init__.py").touch()
    script = package / "train.py"
    script.write_text(
        "import dataclasses\nfrom marin.execution.fingerprint import canonical_payload\n"
        "@dataclasses.dataclass\nclass Config:\n    n: int = 1\nprint(canonical_payload(Config()))\n"
    )
    assert script_module_name(str(script)) == "lab.runs.train"
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    imported = subprocess.run(
        [sys.executable, "-c", "import lab.runs.train"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert ran == imported == '{"$dataclass":"lab.runs.train.Config","fields":{"n":1}}\n'


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=1), st.integers(4, 9), st.randoms())
@settings(deadline=None)
def test_drift_names_exactly_the_field_that_changed(config, new_value, random):
    key = random.choice(sorted(config))
    lines = describe_drift(canonical_payload(config), canonical_payload({**config, key: new_value}))
    assert lines == [f"{key}: {config[key]} -> {new_value}"]


def test_drift_walks_into_dataclasses_lists_and_tuples():
    old = canonical_payload({"model": Left(rate=0.1), "mix": [("a", 1)], "n": 1})
    new = canonical_payload({"model": Left(rate=0.2), "mix": [("a", 2), ("b", 1)], "n": 1.0})
    assert describe_drift(old, new) == [
        "mix[0][1]: 1 -> 2",
        'mix[1]: (absent) -> tuple["b",1]',
        "model.rate: 0.1 -> 0.2",
        "n: 1 -> 1.0",
    ]


def test_drift_shows_a_changed_class_as_a_whole():
    lines = describe_drift(canonical_payload({"m": Left()}), canonical_payload({"m": Right()}))
    assert lines == ['m: Left({"layers":2,"rate":0.1}) -> Right({"layers":2,"rate":0.1})']


def test_no_drift_between_equal_payloads():
    assert describe_drift(canonical_payload([1, {"a": 2}]), canonical_payload([1, {"a": 2}])) == []
