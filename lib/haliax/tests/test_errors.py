"""Errors: every class rendered once, both sides shown, never any data, and a gallery of everyday mistakes."""

import inspect

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, errors
from haliax.errors import (
    ArrayTypeError,
    AxisCollisionError,
    AxisError,
    AxisNotFoundError,
    AxisSizeMismatchError,
    AxisSpecError,
    BackendError,
    BroadcastError,
    ExpressionError,
    HaliaxError,
    ModuleProblems,
    ScanError,
    ShardingError,
    StateDictError,
    StateDictKeyError,
)

EXAMPLES = {
    HaliaxError: HaliaxError("base"),
    AxisError: AxisError("axis"),
    AxisNotFoundError: AxisNotFoundError("sum", ["embd"], {"batch": 2, "embed": 3}),
    AxisSizeMismatchError: AxisSizeMismatchError("add", [("left", {"a": 2}), ("right", {"a": 3})]),
    AxisCollisionError: AxisCollisionError("rename", ["a"], ("a", "a")),
    BroadcastError: BroadcastError("add", [("left", {"a": 2}), ("right", {"b": 3})]),
    AxisSpecError: AxisSpecError("spec"),
    ArrayTypeError: ArrayTypeError("type"),
    ExpressionError: ExpressionError("Unexpected character '$'", "a $ -> a", (2, 3)),
    ShardingError: ShardingError("sharding"),
    BackendError: BackendError("backend"),
    ScanError: ScanError("scan"),
    StateDictError: StateDictError("state dict"),
    StateDictKeyError: StateDictKeyError("h.wieght", ["h.weight", "h.bias"]),
    ModuleProblems: ModuleProblems([("float32{a: 2}", [".x", ".y"])], [".z"]),
}


def test_every_class_has_an_example_and_a_builtin_base():
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, HaliaxError)}
    assert classes == set(EXAMPLES)
    for cls, example in EXAMPLES.items():
        assert str(example)
        if cls is not HaliaxError:
            assert isinstance(example, ValueError | TypeError | NotImplementedError)


def test_messages_are_golden():
    assert str(EXAMPLES[AxisNotFoundError]) == (
        "sum: axis 'embd' not found; expected one of {batch: 2, embed: 3}. Did you mean 'embed'?"
    )
    assert str(EXAMPLES[AxisSizeMismatchError]) == (
        "add: axis sizes differ:\n  left   a: 2\n  right  a: 3  <- differs\n"
        "Rename one of the axes, or slice or pad it to the other's size."
    )
    assert str(EXAMPLES[BroadcastError]) == (
        "add: cannot broadcast, no subset relationship between the axes:\n  left   a: 2  -\n  right  -     b: 3\n"
        "Only left has a; only right has b. Say which one to widen: left.broadcast_axis(b)."
    )
    assert str(EXAMPLES[ExpressionError]) == "Unexpected character '$'\n  a $ -> a\n    ^"
    assert "Did you mean 'h.weight'?" in str(EXAMPLES[StateDictKeyError])


SECRET = 271828.0
X = hax.full({"batch": 2, "embed": 3}, SECRET)
Y = hax.full({"batch": 2, "embed": 4}, SECRET)
Z = hax.full({"pos": 5}, SECRET)
KEY = jax.random.key(0)

GALLERY = [
    (lambda: X + Y, "embed: 4"),
    (lambda: X + Z, "pos: 5"),
    (lambda: X + np.full(3, SECRET), "raw array"),
    (lambda: X + None, "NoneType"),
    (lambda: X @ X, "hax.dot"),
    (lambda: X.sum("embde"), "Did you mean 'embed'"),
    (lambda: X.sum(Axis("embed", 9)), "embed: 9"),
    (lambda: X.rename({"batch": "embed"}), "specified twice"),
    (lambda: X.rename({"zz": "a"}), "'zz'"),
    (lambda: X["zz", 0], "'zz'"),
    (lambda: X["embed"], "pairs"),
    (lambda: X["embed", 1.5], "float"),
    (lambda: X.at["embed", 0].set(Z), "Reduce the update"),
    (lambda: X.take("embed", Z), "integers"),
    (lambda: hax.dot(X, Y, axis="embed"), "embed: 4"),
    (lambda: hax.dot(X, Z, axis="zz"), "'zz'"),
    (lambda: hax.einsum("a b -> c", X), "not on the lhs"),
    (lambda: hax.rearrange(X, "b (x y) -> b x y", x=2), "not divide"),
    (lambda: hax.rearrange(X, ("embed",)), "missing"),
    (lambda: X.flatten_axes(("batch", "embed"), Axis("f", 7)), "6 elements"),
    (lambda: X.unflatten_axis("embed", (Axis("a", 2), Axis("b", 2))), "product"),
    (lambda: X.split("embed", [Axis("a", 1)]), "piece 0"),
    (lambda: hax.concatenate("pos", [X, X]), "'pos'"),
    (lambda: hax.stack("l", [X, Y]), "arrays[1]"),
    (lambda: hax.broadcast_to(X, ("batch", "pos")), "'pos'"),
    (lambda: hax.where(X > 0, X), "both or neither"),
    (lambda: hax.pad(X, {"zz": (1, 1)}), "'zz'"),
    (lambda: hax.zeros("a"), "no size"),
    (lambda: Axis("a", -1), "size >= 0"),
    (lambda: hax.zeros((Axis("a", 2), Axis("a", 2))), "specified twice"),
    (lambda: hax.named(jnp.full((2, 3), SECRET), ("a",)), "one axis per dimension"),
    (lambda: hax.named(jnp.full((2, 3), SECRET), {"a": 2, "b": 4}), "b: 4"),
    (lambda: hax.scan(lambda c, x: (c, x), "time")(0, X), "'time'"),
    (lambda: hax.vmap(lambda x: x, Axis("batch", 9))(X), "leading dimension 2"),
    (lambda: hnn.Linear.init(Axis("pos", 5), Axis("o", 2), key=KEY)(X), "'pos'"),
    (lambda: hnn.LayerNorm.init(Axis("pos", 5))(X), "'pos'"),
    (lambda: hnn.Dropout(0.5)(X), "key"),
    (lambda: hnn.dot_product_attention("batch", "embed", X, X, X), "KPos"),
    (lambda: X.scalar(), "Reduce"),
    (lambda: np.asarray(X), ".array"),
    (lambda: len(X), "axis_size"),
    # duplicate names
    (lambda: hax.named(jnp.full((2, 2), SECRET), ("a", "a")), "specified twice"),
    (lambda: hax.stack("embed", [X, X]), "specified twice"),
    (lambda: X.unflatten_axis("embed", (Axis("batch", 1), Axis("x", 3))), "specified twice"),
    (lambda: X.flatten_axes("embed", "batch"), "specified twice"),
    (lambda: hax.rearrange(X, "b e -> (z: b) (z: e)"), "specified twice"),
    (lambda: hax.dot(X, X, axis=("embed", "embed")), "embed"),
    (lambda: hnn.Linear.init(Axis("e", 2), Axis("e", 2), key=KEY), "specified twice"),
    (lambda: hax.vmap(lambda x: X, "batch")(X), "'batch'"),
    # sizes
    (lambda: hax.maximum(X, Y), "embed: 4"),
    (lambda: hax.where(X > 0, X, Y), "embed: 4"),
    (lambda: hax.einsum("{embed} -> ", X, Y), "embed: 4"),
    (lambda: hax.concatenate(Axis("batch", 5), [X, X]), "batch: 5"),
    (lambda: X.broadcast_to({"batch": 3, "embed": 3}), "batch: 3"),
    (lambda: X.updated_slice({"embed": 2}, hax.full({"batch": 2, "embed": 2}, SECRET)), "exceeds"),
    (lambda: X.slice("embed", start=2, length=2), "exceeds"),
    (lambda: hax.sum(X, where=hax.ones({"embed": 4}) > 0), "embed: 4"),
    (lambda: hax.top_k(X, "embed", 9), "9"),
    # unknown axes
    (lambda: hax.roll(X, 1, "zz"), "'zz'"),
    (lambda: hax.cumsum(X, "zz"), "'zz'"),
    (lambda: hax.argmax(X, "zz"), "'zz'"),
    (lambda: hax.take(X, "zz", 0), "'zz'"),
    (lambda: X.unbind("zz"), "'zz'"),
    (lambda: X.split("zz", [Axis("a", 1)]), "'zz'"),
    (lambda: hnn.softmax(X, "zz"), "'zz'"),
    (lambda: hax.fft(X, "zz"), "'zz'"),
    (lambda: hax.random.permutation(KEY, X, "zz"), "'zz'"),
    (lambda: hax.nmap(jnp.sum, "zz")(X), "'zz'"),
    (lambda: hax.linalg.det(X, "batch", "zz"), "'zz'"),
    # dtypes and kinds
    (lambda: X["embed", hax.named([0.5], "i")], "integers"),
    (lambda: X.take("embed", hax.named([0.5], "i")), "integers"),
    (lambda: hax.sum(X, where=np.ones((2, 3), bool)), "NamedArray of bool"),
    (lambda: hax.new_ref(X.array), "NamedArray"),
    (lambda: hax.roll(X, hax.arange(Axis("s", 2)), "embed"), "axes {s: 2}"),
    (lambda: hnn.dot_product_attention("k", "embed", X.array, X, X), "NamedArray"),
    (lambda: X["embed", "text"], "str"),
    # negative sizes
    (lambda: hax.ds(0, -1), "size >= 0"),
    (lambda: Axis("a", 2).resize(-3), "size >= 0"),
    (lambda: hax.zeros({"a": -2}), "size >= 0"),
    (lambda: hax.make_axes(a=-1), "size >= 0"),
    (lambda: hax.tree_util.resize_axis(X, "embed", -1), ">= 0"),
    # implementations that are not here
    (lambda: hnn.ragged_dot(jnp.ones((1, 1)), jnp.ones((1, 1, 1)), jnp.ones(1), implementation="triton"), "'cpu'"),
    (lambda: hnn.ragged_dot(jnp.ones((1, 1)), jnp.ones((1, 1, 1)), jnp.ones(1), implementation="cuda"), "megablox"),
]


@pytest.mark.parametrize(("mistake", "clue"), GALLERY)
def test_everyday_mistakes_are_explained_without_data(mistake, clue):
    with pytest.raises(HaliaxError) as caught:
        mistake()
    text = str(caught.value)
    assert clue in text
    assert "271828" not in text
    assert len(text) < 700


def test_messages_work_on_tracers():
    with pytest.raises(BroadcastError, match="pos: 5"):
        jax.jit(lambda x, z: x + z)(X, Z)
