"""The corpus that is already on every machine: source and docstrings of the Python standard library.

The problem: a first run needs real, licensed text with no network and no account. The idea: the interpreter that runs
the pipeline brings eleven megabytes of it. Each module gives two documents, its source and its docstrings set as plain
text; both carry the module's path as ``group``, so no split can put the prose of a function in the test set and its
source in the training set.

Test suites and bundled third-party packages are left out: distributions differ in whether they ship them.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rigging.filesystem.atomic import write_json_atomic, write_text_atomic
from zephyr import Dataset, counters

from marin.datakit._pipeline import count, pipeline
from marin.datakit.artifacts import DocumentCollection
from marin.datakit.documents import Document, make_document
from marin.datakit.errors import EmptyCorpusError, SourceNotFoundError
from marin.datakit.recipe import CollectConfig
from marin.datakit.sources import Source

EXCLUDED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__pycache__",
        "lib2to3",
        "ensurepip",
        "turtledemo",
    }
)


def stdlib_root() -> Path:
    """Folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def stdlib_modules(root: Path) -> list[str]:
    """Paths of the modules below ``root``, relative and sorted, test suites and vendored packages excluded.

    Raises:
        SourceNotFoundError: The folder holds no module (a frozen or stripped interpreter).
    """
    modules = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not any(part in EXCLUDED_FOLDERS or part.startswith("config-") for part in relative.parts[:-1]):
            modules.append(relative.as_posix())
    if not modules:
        raise SourceNotFoundError(str(root), "*.py files of the standard library; use --data path:GLOB on this machine")
    return sorted(modules)


def docstring_text(source: str, module: str) -> str:
    """All docstrings of a module as plain text, each under its dotted name, in source order.

    Args:
        source: Module source.
        module: Dotted module name that heads the text.
    Returns:
        The text; empty where nothing is documented or the source does not parse.
    Example:
        >>> print(docstring_text('def f():\\n    \"\"\"Say hello.\"\"\"\\n', "greet"))
        greet.f
        <BLANKLINE>
        Say hello.
        <BLANKLINE>
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    return "\n".join(f"{name}\n\n{text}\n" for name, text in _docstrings(tree, module))


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child, f"{name}.{child.name}")


def module_documents(root: Path, relative: str, *, source: Source) -> Iterator[Document]:
    """The documents of one module: its source, and its docstrings when it has any.

    A file that its declared encoding cannot decode is counted (``datakit/undecodable``) and left out.
    """
    path = root / relative
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (UnicodeDecodeError, SyntaxError, LookupError):
        counters.increment("datakit/undecodable")
        return
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    counters.increment("datakit/files")
    counters.increment("datakit/bytes_in", len(text.encode()))
    common: dict[str, Any] = {"group": relative, "licence": source.licence, "sha256": digest}
    yield make_document(text, source=source.label, source_id=relative, kind="source", **common)
    module = relative.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    prose = docstring_text(text, module)
    if prose:
        counters.increment("datakit/bytes_in", len(prose.encode()))
        yield make_document(prose, source=source.label, source_id=f"{relative}#docstrings", kind="docstrings", **common)


def collect_stdlib(config: CollectConfig) -> DocumentCollection:
    """Write the standard library as documents.

    Args:
        config: What to collect and where to.
    Returns:
        The collection: shards of documents, the licence text and the inventory of files.
    Raises:
        SourceNotFoundError: The interpreter has no readable standard library.
        EmptyCorpusError: Not one file could be decoded.
    """
    root = stdlib_root()
    modules = stdlib_modules(root)[: config.max_files]
    filled = [group for i in range(config.num_shards) if (group := modules[i :: config.num_shards])]
    source = config.source

    def read_group(group: list[str]) -> Iterator[Document]:
        for relative in group:
            yield from module_documents(root, relative, source=source)

    dataset = (
        Dataset.from_list(filled, shards=len(filled))
        .flat_map(read_group)
        .write_jsonl(f"{config.output_path}/documents/part-{{shard:05d}}-of-{{total:05d}}.jsonl.zst")
    )
    with pipeline("collect-stdlib") as context:
        counts = count(context, dataset)
    found = counts.get("zephyr/records_out", 0)
    if not found:
        raise EmptyCorpusError("collection", seen=len(modules), detail="Every module failed to decode.")
    licence = root / "LICENSE.txt"
    if licence.is_file():
        write_text_atomic(f"{config.output_path}/LICENSE.txt", licence.read_text(encoding="utf-8"))
    write_json_atomic(
        f"{config.output_path}/source.json",
        {
            "label": source.label,
            "licence": source.licence,
            "licence_text": "LICENSE.txt" if licence.is_file() else None,
            "origin": "standard library of the running interpreter",
            "files": modules,
        },
    )
    return DocumentCollection(
        source=source.label,
        licence=source.licence,
        num_documents=found,
        num_bytes=counts.get("datakit/bytes_in", 0),
        counters=counts,
    )
