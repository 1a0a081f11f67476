import ast
import inspect
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import dupekit
import dupekit_native
import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)


def stub() -> ast.Module:
    return ast.parse(Path(dupekit_native.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))


def stub_names(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names


def parameters(node: ast.FunctionDef) -> list[tuple[str, bool]]:
    """Names without self or cls, each with whether it is positional only."""
    only = [(argument.arg, True) for argument in node.args.posonlyargs]
    rest = [(argument.arg, False) for argument in node.args.args + ([node.args.vararg] if node.args.vararg else [])]
    return [entry for entry in only + rest if entry[0] not in ("self", "cls")]


def runtime_parameters(value: object) -> list[tuple[str, bool]]:
    found = inspect.signature(value).parameters.values()  # pyrefly: ignore[bad-argument-type]
    entries = [(p.name, p.kind is inspect.Parameter.POSITIONAL_ONLY) for p in found]
    return [entry for entry in entries if entry[0] not in ("self", "cls")]


def test_the_stub_names_exactly_what_the_module_has() -> None:
    declared = {name for name in stub_names(stub().body) if name != "_ArrowArray"}
    private = {"dupekit_native", "__all__"}
    actual = {name for name in vars(dupekit_native) if name not in private and not is_module_detail(name)}
    assert declared == actual


def is_module_detail(name: str) -> bool:
    return name.startswith("__") and name != "__version__"


def test_the_stub_has_the_signatures_of_the_functions() -> None:
    functions = {name: node for name, node in stub_names(stub().body).items() if isinstance(node, ast.FunctionDef)}
    assert len(functions) >= 10
    for name, node in functions.items():
        assert runtime_parameters(getattr(dupekit_native, name)) == parameters(node), name


@pytest.mark.parametrize("kind", [node.name for node in stub().body if isinstance(node, ast.ClassDef)][1:])
def test_the_stub_has_the_members_of_each_class(kind: str) -> None:
    cls = getattr(dupekit_native, kind)
    members = stub_names(stub_names(stub().body)[kind].body)  # pyrefly: ignore[missing-attribute]
    public = {name for name in vars(cls) if not name.startswith("_")}
    assert {name for name in members if not name.startswith("_")} == public
    for name, node in members.items():
        assert hasattr(cls, name), name
        if isinstance(node, ast.FunctionDef) and not name.startswith("__"):
            decorators = {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}
            if "property" not in decorators:
                assert runtime_parameters(getattr(cls, name)) == parameters(node), name


def test_the_stub_test_notices_a_difference() -> None:
    node = stub_names(stub().body)["xxh3_64"]
    assert isinstance(node, ast.FunctionDef)
    assert runtime_parameters(dupekit_native.xxh3_64_batch) != parameters(node)


def test_every_public_native_name_is_documented() -> None:
    for name in ("Bloom", "TokenNgrams", "TokenNgramSignature", "TokenNgramFingerprintSignature"):
        cls = getattr(dupekit, name)
        assert ">>>" in (cls.__doc__ or ""), name
        for member, value in vars(cls).items():
            if not member.startswith("_"):
                assert value.__doc__, f"{name}.{member}"


def test_package_and_module_are_of_one_version_line() -> None:
    assert dupekit_native.__version__ == metadata.version("marin-dupekit-native")
    assert dupekit_native.__version__.split(".")[:2] == dupekit.__version__.split(".")[:2]
    assert dupekit.__version__ == metadata.version("marin-dupekit")


def test_without_the_native_module_import_works_and_use_names_the_fix() -> None:
    # A None in sys.modules is Python's own way to say that a module cannot be imported.
    done = run("""
        import sys
        sys.modules["dupekit_native"] = None
        import dupekit
        assert "transform" in dir(dupekit)
        try:
            dupekit.transform
        except ImportError as error:
            assert isinstance(error, dupekit.DupekitError)
            print(error)
        """)
    assert done.returncode == 0, done.stderr
    assert "run `uv sync`" in done.stdout
    assert "pip install` the file marin_dupekit_native-*.whl" in done.stdout


def test_a_native_module_of_another_contract_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dupekit_native.py").write_text("API_VERSION = 99\n__version__ = '9.9.9'\n", encoding="utf-8")
    done = run(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import dupekit
        try:
            dupekit.Bloom
        except ImportError as error:
            print(error)
        """)
    assert "contract=99 of native version 9.9.9" in done.stdout, done.stderr
