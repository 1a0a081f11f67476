"""The standard library as a corpus."""

import json

import pytest
from marin.datakit.download.python_stdlib import docstring_text, module_documents, stdlib_modules, stdlib_root
from marin.datakit.errors import SourceNotFoundError
from marin.datakit.sources import stdlib_source


def test_modules_are_sorted_relative_and_free_of_tests_and_vendored_packages():
    modules = stdlib_modules(stdlib_root())
    assert modules == sorted(modules)
    assert "json/decoder.py" in modules
    assert not any(part in {"test", "tests", "site-packages"} for name in modules for part in name.split("/")[:-1])


def test_a_folder_without_modules_is_refused(tmp_path):
    with pytest.raises(SourceNotFoundError, match="--data path:GLOB"):
        stdlib_modules(tmp_path)


def test_docstrings_come_in_source_order_under_dotted_names():
    source = '"""Top."""\nclass A:\n    """Of A."""\n    def m(self):\n        """Of m."""\ndef f(): pass\n'
    assert docstring_text(source, "pkg.mod") == "pkg.mod\n\nTop.\n\npkg.mod.A\n\nOf A.\n\npkg.mod.A.m\n\nOf m.\n"


def test_source_that_does_not_parse_has_no_docstrings():
    assert docstring_text("def (", "broken") == ""


def test_a_module_and_its_docstrings_share_a_group(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text('"""A package."""\n', encoding="utf-8")
    documents = list(module_documents(tmp_path, "pkg/__init__.py", source=stdlib_source()))
    metadata = [json.loads(document["metadata"]) for document in documents]
    assert [m["kind"] for m in metadata] == ["source", "docstrings"]
    assert {m["group"] for m in metadata} == {"pkg/__init__.py"}
    assert documents[1]["text"].startswith("pkg\n")


def test_a_declared_encoding_is_honoured_and_an_undecodable_file_is_left_out(tmp_path):
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n")
    (tmp_path / "broken.py").write_bytes(b"x = '\xff\xfe'\n")
    (latin,) = module_documents(tmp_path, "latin.py", source=stdlib_source())
    assert "é" in latin["text"]
    assert list(module_documents(tmp_path, "broken.py", source=stdlib_source())) == []
