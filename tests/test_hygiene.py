from collections.abc import Callable
from pathlib import Path

import pytest

from infra.hygiene import LARGE_BYTES, file_problems, foreign_names, shell_problems

SLASH = "/"


@pytest.mark.parametrize(
    "text",
    [
        f"open('{SLASH}root/data.txt')\n",
        f"path = {SLASH}work/main\n",
        f"see {SLASH}home/somebody/notes\n",
        "[tool.uv]\nindex" + "-url = 'https://mirror.example'\n",
        "pip install --extra-index" + "-url https://mirror.example x\n",
    ],
)
def test_a_machine_path_or_an_index_setting_is_found_with_its_line(repository: Callable[..., Path], text: str) -> None:
    folder = repository({"docs/page.md": "first\n" + text})
    (finding, *_) = foreign_names(folder)
    assert finding.startswith("docs/page.md:")


def test_paths_that_belong_to_no_machine_are_left_alone(repository: Callable[..., Path]) -> None:
    text = f"$HOME{SLASH}work/x  ~{SLASH}work/y  lib{SLASH}root/z  {SLASH}tmp/scratch  https://example.org/root\n"
    assert foreign_names(repository({"a.md": text})) == []


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", "x = 1 \n", "blanks"),
        ("a.py", "x = 1", "newline"),
        ("a.py", "<<<<<<< HEAD\n", "merge marker"),
        ("a.toml", "x = \n", "parse"),
        ("a.json", "{]\n", "parse"),
        ("a.yaml", "a: [1\n", "parse"),
        ("a.bin", "x" * (LARGE_BYTES + 1), "bytes"),
    ],
)
def test_a_leftover_is_found(repository: Callable[..., Path], name: str, text: str, expected: str) -> None:
    findings = file_problems(repository({f"sub/{name}": text}))
    assert any(expected in finding for finding in findings), findings


def test_fixing_blanks_keeps_the_words(repository: Callable[..., Path]) -> None:
    folder = repository({"a.py": "x = 1  \n\n\n"})
    assert file_problems(folder, fix=True) == []
    assert (folder / "a.py").read_text() == "x = 1\n"
    assert file_problems(folder) == []


def test_shell_scripts_must_parse_and_be_executable(repository: Callable[..., Path]) -> None:
    folder = repository({"run": "#!/usr/bin/env bash\nif true\n", "quiet.sh": "echo hi\n"})
    findings = shell_problems(folder)
    assert len(findings) == 2 and "not executable" in findings[1]
