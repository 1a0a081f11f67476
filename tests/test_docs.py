"""The documentation holds: the site builds, every command a reader is told to type is run, the vocabulary is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.docs_commands import DocsError, missing_lines, read_blocks, reader_environment, run_block, run_page, unmarked

# Pages a newcomer reads in this order, with one store: the first runs the main job, the others look at what it left.
JOURNEY = ("README.md", "docs/index.md", "docs/installation.md", "docs/first-experiment.md", "docs/lm-pipeline.md")
OTHERS = ("CONTRIBUTING.md", "docs/GLOSSARY.md", "docs/core/many-machines.md")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_journey_of_a_newcomer_holds(root: Path, tmp_path: Path) -> None:
    environment = reader_environment(tmp_path / "store")
    counts = {page: run_page(root / page, environment) for page in JOURNEY}
    assert counts["docs/first-experiment.md"] >= 5, counts


@pytest.mark.parametrize("page", OTHERS)
def test_commands_of_other_pages_hold(root: Path, tmp_path: Path, page: str) -> None:
    run_page(root / page, reader_environment(tmp_path / "store"))


@pytest.mark.parametrize("page", [*JOURNEY, *OTHERS])
def test_every_command_is_run_or_says_why_not(root: Path, page: str) -> None:
    assert unmarked(read_blocks(page, (root / page).read_text())) == []


@pytest.mark.slow
def test_the_site_builds_strictly_and_needs_no_other_host(root: Path, tmp_path: Path) -> None:
    # Not --quiet: it silences the warnings before --strict counts them.
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site/index.html").read_text()
    loaded = [part.split('"')[0] for part in page.split('src="')[1:]]
    assert loaded and not [source for source in loaded if source.startswith(("http:", "https:", "//"))]
    assert "fonts.googleapis" not in page


def page(marker: str, body: str = "echo hello", language: str = "bash") -> str:
    return f"# Title\n\n{marker}\n```{language}\n{body}\n```\n"


def test_a_block_is_read_with_its_marker_and_place() -> None:
    (block,) = read_blocks("p.md", page("<!-- run: exit=2 timeout=7 -->"))
    assert (block.verb, block.expected_exit, block.timeout_s, block.body, block.place) == (
        "run",
        2,
        7.0,
        "echo hello\n",
        "p.md:4",
    )


def test_a_block_without_a_marker_is_reported_and_data_is_not() -> None:
    assert unmarked(read_blocks("p.md", page(""))) == ["p.md:4"]
    assert unmarked(read_blocks("p.md", page("", language="text"))) == []
    assert unmarked(read_blocks("p.md", page("<!-- not run: needs a GPU -->"))) == []


def test_not_running_needs_a_reason() -> None:
    with pytest.raises(DocsError, match="without a reason"):
        read_blocks("p.md", page("<!-- not run -->"))


def test_a_command_that_fails_is_shown_with_its_last_words(tmp_path: Path) -> None:
    (block,) = read_blocks("p.md", page("<!-- run -->", "echo last words; exit 3"))
    with pytest.raises(DocsError, match=r"p.md:4: exit_code=3[\s\S]*last words"):
        run_block(block, reader_environment(tmp_path), root=tmp_path)


def test_a_promise_about_output_is_checked(tmp_path: Path) -> None:
    text = page("<!-- run -->", "echo one; echo two 22 s") + "\n<!-- output -->\n```text\none\n...\ntwo ... s\n```\n"
    (tmp_path / "p.md").write_text(text)
    assert run_page(tmp_path / "p.md", reader_environment(tmp_path), root=tmp_path) == 1
    (tmp_path / "p.md").write_text(text.replace("one\n...", "three\n..."))
    with pytest.raises(DocsError, match="not printed: \\['three'\\]"):
        run_page(tmp_path / "p.md", reader_environment(tmp_path), root=tmp_path)


def test_output_lines_must_come_in_order() -> None:
    assert missing_lines("a\n\nb\n", "a\nx\nb\n") == []
    assert missing_lines("b\na\n", "a\nb\n") == ["a"]
