"""Run the commands that the documentation shows, in the order a reader would type them.

Documentation rots where nothing runs it. A fenced block that a reader is told to type is preceded by an HTML comment,
which neither the site nor a code host shows:

    <!-- run -->                        run the block; it must exit 0
    <!-- run: exit=2 timeout=300 -->    the same, with another exit code or more time (seconds)
    <!-- output -->                     the next block is part of what the previous command printed
    <!-- not run: REASON -->            shown only

Blocks are bash or python. Lines of an output block must appear in order, blanks apart; ``...`` stands for anything in a
line, a line that is only ``...`` for any lines. Each block runs in a shell of its own in the repository's root.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.workspace import ROOT

RUNNABLE = ("bash", "sh", "python")
DEFAULT_TIMEOUT_S = 120.0

_FENCE = re.compile(
    r"(?:^[ ]*<!--\s*(?P<verb>run|output|not run)\s*(?::\s*(?P<rest>.*?))?\s*-->[ ]*\n\s*?)?"
    r"^(?P<indent>[ ]*)```(?P<language>[A-Za-z]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


class DocsError(ValueError):
    """A page's markers are wrong, or a command did not do what the page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block and what its marker says."""

    page: str
    line: int
    language: str
    body: str
    verb: str = ""
    expected_exit: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"


def _options(rest: str, place: str) -> dict[str, str]:
    pairs = {key: value for key, _, value in (part.partition("=") for part in rest.split())}
    unknown = sorted(set(pairs) - {"exit", "timeout"})
    if unknown:
        raise DocsError(f"{place}: unknown options in the run marker: {unknown}; expected exit=, timeout=.")
    return pairs


def read_blocks(page: str, text: str) -> list[Block]:
    """All fenced blocks of a page, in order.

    Raises:
        DocsError: A marker has an unknown option, or ``not run`` without a reason.
    """
    blocks = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("indent")) + 1
        verb, rest = match["verb"] or "", match["rest"] or ""
        place = f"{page}:{line}"
        if verb == "not run" and not rest:
            raise DocsError(f"{place}: `not run` without a reason; expected <!-- not run: REASON -->.")
        options = _options(rest, place) if verb == "run" else {}
        indent = len(match["indent"])
        blocks.append(
            Block(
                page=page,
                line=line,
                language=match["language"],
                body="\n".join(row[indent:] for row in match["body"].splitlines()) + "\n",
                verb=verb,
                expected_exit=int(options.get("exit", "0")),
                timeout_s=float(options.get("timeout", DEFAULT_TIMEOUT_S)),
            )
        )
    return blocks


def unmarked(blocks: Sequence[Block]) -> list[str]:
    """Places of blocks that a reader could type and that nothing runs."""
    return [block.place for block in blocks if block.language in RUNNABLE and not block.verb]


def missing_lines(expected: str, printed: str) -> list[str]:
    """Lines of an output block that do not appear, in order, in what was printed.

    >>> missing_lines("2 steps ... s\\n", "plan\\n2 steps in 0.1 s\\n")
    []
    >>> missing_lines("done\\nplan\\n", "plan\\ndone\\n")
    ['plan']
    """
    rows = [" ".join(row.split()) for row in printed.splitlines()]
    position = 0
    missing = []
    for line in (" ".join(row.split()) for row in expected.splitlines()):
        if line in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")))
        for index in range(position, len(rows)):
            if pattern.fullmatch(rows[index]):
                position = index + 1
                break
        else:
            missing.append(line)
    return missing


def run_block(block: Block, environment: Mapping[str, str], *, root: Path = ROOT) -> str:
    """Run one block and give back what it printed (stdout and stderr together).

    Raises:
        DocsError: Another exit code than the page promises, or it took too long.
    """
    program = ["bash", "-euo", "pipefail", "-c"] if block.language != "python" else [sys.executable, "-c"]
    try:
        done = subprocess.run(
            [*program, block.body],
            cwd=root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=block.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise DocsError(f"{block.place}: timeout_s={block.timeout_s}; the block was still running.") from late
    if done.returncode != block.expected_exit:
        tail = "\n".join(done.stdout.splitlines()[-25:])
        raise DocsError(
            f"{block.place}: exit_code={done.returncode}; expected {block.expected_exit}.\n{block.body}\n{tail}"
        )
    return done.stdout


def run_page(page: Path, environment: Mapping[str, str], *, root: Path = ROOT) -> int:
    """Run every marked block of a page; returns how many ran.

    Raises:
        DocsError: The first block that did not do what the page says.
    """
    name = page.relative_to(root).as_posix()
    printed, ran = "", 0
    for block in read_blocks(name, page.read_text(encoding="utf-8")):
        if block.verb == "run":
            printed = run_block(block, environment, root=root)
            ran += 1
        elif block.verb == "output":
            missing = missing_lines(block.body, printed)
            if missing:
                raise DocsError(f"{block.place}: not printed: {missing}; the command printed:\n{printed[-3000:]}")
    return ran


def reader_environment(store: Path) -> dict[str, str]:
    """The environment of a reader who has activated ``.venv``, with a store of their own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "VIRTUAL_ENV", "PYTHONPATH"))}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    environment["MARIN_PREFIX"] = str(store)
    return environment


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the process exit code (0, or 1 when a page does not hold)."""
    parser = argparse.ArgumentParser(prog="python -m infra.docs_commands", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, help="Markdown files, run in this order with one store")
    parser.add_argument("--store", type=Path, default=ROOT / "marin_store", help="MARIN_PREFIX of the commands")
    options = parser.parse_args(argv)
    try:
        for page in options.pages:
            print(f"{page}: {run_page(page.resolve(), reader_environment(options.store.resolve()))} blocks hold")
    except DocsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
