"""The public surface: what is promised, what it weighs, how modules depend on each other."""

import ast
import importlib
import pathlib
import subprocess
import sys

import haliax as hax
import haliax.nn as hnn

SNAPSHOT = pathlib.Path(__file__).with_name("api_snapshot.txt")
SOURCE = pathlib.Path(hax.__file__).parent
PUBLIC_MODULES = """
axis core debug errors fft field haxtyping hof jax_utils linalg ops partitioning poly quantization random ref
specialized_fns state_dict tree tree_util types util wrap nn.activations nn.attention nn.array_stacked nn.conv
nn.dropout nn.embedding nn.linear nn.loss nn.mlp nn.mup nn.normalization nn.pool nn.ragged_dot nn.scan
""".split()


def public_names():
    lines = [f"haliax.{n}" for n in hax.__all__] + [f"haliax.nn.{n}" for n in hnn.__all__]
    for name in PUBLIC_MODULES:
        module = importlib.import_module(f"haliax.{name}")
        declared = getattr(module, "__all__", None)
        own = declared or [
            n
            for n, v in vars(module).items()
            if not n.startswith("_") and getattr(v, "__module__", "") in (module.__name__, "haliax")
        ]
        lines += [f"haliax.{name}:{n}" for n in own]
    return sorted(set(lines))


def test_the_public_names_are_those_of_the_snapshot():
    assert "\n".join(public_names()) + "\n" == SNAPSHOT.read_text(encoding="utf8"), (
        "public names changed; if that is meant, write the new list to api_snapshot.txt"
    )


def test_every_promised_name_exists():
    for package in (hax, hnn):
        assert package.__all__ == sorted(set(package.__all__))
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert dir(package) == package.__all__


def imports_of(path):
    tree = ast.parse(path.read_text(encoding="utf8"))
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            out.add(node.module)
            out |= {f"{node.module}.{a.name}" for a in node.names}
    return {n for n in out if n.startswith("haliax")}


def graph():
    names = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    lazy = {"haliax", "haliax.nn"}
    return {n: {i for i in imports_of(p) if i in names and i != n} for n, p in names.items() if n not in lazy}


def test_the_import_graph_has_no_cycle():
    edges, done = graph(), set()

    def visit(node, path):
        assert node not in path, " -> ".join([*path, node])
        if node not in done:
            for other in edges.get(node, ()):
                visit(other, [*path, node])
            done.add(node)

    for name in edges:
        visit(name, [])


def test_rings_point_inwards():
    rank = {"_axis": 0, "_array": 1, "_ops": 2}
    for name, targets in graph().items():
        parts = name.split(".")
        if len(parts) > 1 and parts[1] in rank:
            for target in targets - {"haliax.errors"}:
                other = target.split(".")[1]
                assert other in rank, f"{name} imports {target}"
                assert rank[other] <= rank[parts[1]], f"{name} imports {target}"


def test_private_jax_is_used_in_the_compat_module_only():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf8")
        if path.name != "compat.py":
            assert "jax._src" not in text, path
            assert "DO_NOT_USE" not in text, path


def test_importing_starts_no_backend():
    """A backend that is started at import cannot be configured any more (platform, devices, distributed)."""
    program = """
import importlib, os, pkgutil
os.environ["JAX_PLATFORMS"] = "no_such_platform"
import haliax
for info in pkgutil.walk_packages(haliax.__path__, "haliax."):
    if "_adapters" not in info.name:
        importlib.import_module(info.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_is_light():
    """Equinox and jax.extend come with the first layer or transformation, not with the name; jax is the yardstick."""
    program = """
import sys, time
start = time.thread_time(); import jax; jax_s = time.thread_time() - start
start = time.thread_time(); import haliax; bare_s = time.thread_time() - start
early = {"equinox", "jaxtyping", "jax.extend"} & set(sys.modules)
haliax.arange({"a": 2}).sum("a"), haliax.ds(0, 1)
early |= {"equinox"} & set(sys.modules)
start = time.thread_time(); haliax.nn.Linear; used_s = bare_s + time.thread_time() - start
heavy = {"torch", "safetensors", "flax", "optax", "wandb", "transformers", "jax.experimental.pallas"} & set(sys.modules)
print(jax_s, bare_s, used_s, len(early), len(heavy))
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    jax_s, bare_s, used_s = map(float, out[:3])
    assert out[3:] == ["0", "0"], "a heavy package is imported before it is needed"
    # The budget is jax + 0.25 s; on a machine where jax itself crawls it is the same share of jax's own time.
    assert bare_s < max(0.25, jax_s / 5), f"import haliax adds {bare_s} s of CPU to jax's {jax_s} s"
    assert used_s < max(0.25 * 3, jax_s / 2), f"haliax.nn.Linear adds {used_s} s of CPU to jax's {jax_s} s"
