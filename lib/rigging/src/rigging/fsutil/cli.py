"""The command ``fsutil``: look at and move files in any store.

Paths are local paths or full URLs (``s3://``, ``gs://`` with their extras); patterns are expanded by the store. Data
goes to stdout, as text or, with ``--json``, as one JSON value; everything else goes to stderr. Exit codes: 0 done, 1 a
store failed or a copy does not match, 2 the request itself is wrong, 130 interrupted.
"""

import argparse
import base64
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rigging.errors import RiggingError, TransferBudgetExceeded, TransferVerificationError
from rigging.filesystem.storage_path import StoragePath, StoredEntry
from rigging.progress import Progress, format_quantity
from rigging.redaction import redact_string

logger = logging.getLogger(__name__)

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
PREVIEW_BYTES: Final = 10_000_000
_ALGORITHMS: Final = ("md5", "sha1", "sha256", "sha512", "blake2b")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Example:
        >>> import tempfile
        >>> main(["du", tempfile.mkdtemp() + "/nothing-here"])
        2
    """
    parser = build_parser()
    try:
        options = parser.parse_args(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)
    if options.verbose:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    elif not logging.getLogger().handlers:
        # Else Python prints what the stores' libraries log, tracebacks of their retries included.
        logging.getLogger().addHandler(logging.NullHandler())
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (RiggingError, OSError, ValueError) as error:
        return _report(error)
    except Exception as error:
        # The stores' libraries have error classes of their own; a person at a terminal wants words, not a stack.
        logger.info("unexpected %s", type(error).__name__, exc_info=error)
        return _report(OSError(f"{error} ({type(error).__name__})"))


def _report(error: Exception) -> int:
    """Say what went wrong on stderr; tell a wrong request from a store that failed."""
    text, hint = redact_string(str(error) or type(error).__name__), ""
    if isinstance(error, FileNotFoundError) and error.filename is None and "nothing is at" not in text:
        text = f"nothing is at {text}"
    code = FAILED
    if isinstance(error, FileNotFoundError):
        code, hint = BAD_INPUT, "fsutil ls shows what is in a folder"
    elif isinstance(error, IsADirectoryError | NotADirectoryError | ImportError):
        code = BAD_INPUT
    elif isinstance(error, TransferBudgetExceeded | TransferVerificationError):
        code = FAILED
    elif isinstance(error, ValueError):
        code = BAD_INPUT
    elif isinstance(error, PermissionError) or "credentials" in text.lower():
        hint = "check the credentials, and who may read this place"
    print(f"error: {text}", file=sys.stderr)
    if hint:
        print(f"\nhint: {hint}", file=sys.stderr)
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the command line, one sub-command a verb."""
    parser = argparse.ArgumentParser(prog="fsutil", description="Look at and move files in any store.")
    parser.add_argument("--verbose", action="store_true", help="show log lines on stderr")
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    def verb(name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print one JSON value on stdout")
        return made

    one = verb("ls", _ls, "List folders and files.")
    one.add_argument("paths", nargs="*", default=["."], metavar="PATH")
    one.add_argument("-l", "--long", action="store_true", help="size and time too")
    one.add_argument("-R", "--recursive", action="store_true", help="every file below")
    one = verb("stat", _stat, "Show what the store says of files and folders.")
    one.add_argument("paths", nargs="+", metavar="PATH")
    one = verb("find", _find, "Print what matches patterns; ** crosses folders, {a,b} and {1..3} are expanded.")
    one.add_argument("paths", nargs="+", metavar="PATTERN")
    one = verb("cat", _cat, "Print files: compressed ones decoded, Parquet as JSON lines.")
    one.add_argument("paths", nargs="+", metavar="PATH")
    one.add_argument("--raw", action="store_true", help="the bytes as they are")
    one = verb("head", _head, "Print the first lines, or the first rows of a Parquet file.")
    one.add_argument("paths", nargs=1, metavar="PATH")
    one.add_argument("-n", "--lines", type=_positive, default=10, help="how many (10)")
    one = verb("schema", _schema, "Show columns, rows, row groups and compression of Parquet files.")
    one.add_argument("paths", nargs="+", metavar="PATH")
    one = verb("du", _du, "Count bytes and files below folders.")
    one.add_argument("paths", nargs="*", default=["."], metavar="PATH")
    one.add_argument("-s", "--summarize", action="store_true", help="only the total of each")
    one = verb("hash", _hash, "Digest the content of files.")
    one.add_argument("paths", nargs="+", metavar="PATH")
    one.add_argument("--hex", action="store_true", help="hexadecimal rather than base64")
    one.add_argument("--algorithm", choices=_ALGORITHMS, default="md5", help="default md5, which stores keep")
    one = verb("cp", _cp, "Copy files between any two stores, and check what arrived.")
    _add_transfer(one)
    one.add_argument("-n", "--no-clobber", action="store_true", help="leave files that are there already")
    one = verb("mv", _mv, "Move files: copy, check, and remove the sources when all copies are there.")
    _add_transfer(one)
    one = verb("rsync", _rsync, "Make a folder like another: copy what differs in size, time or content.")
    one.add_argument("source", metavar="SOURCE")
    one.add_argument("target", metavar="TARGET")
    one.add_argument("--delete", action="store_true", help="remove what the source does not have")
    one.add_argument("--checksum", action="store_true", help="compare content, not time")
    one.add_argument("--dry-run", action="store_true", help="only say what would be done")
    one.add_argument("--jobs", type=_positive, default=8, help="copies at once (8)")
    one = verb("rm", _rm, "Remove files, or with -r folders.")
    one.add_argument("paths", nargs="+", metavar="PATH")
    one.add_argument("-r", "--recursive", action="store_true", help="folders with everything in them")
    one.add_argument("-f", "--force", action="store_true", help="fine if nothing is there")
    one = verb("clean-temp", _clean_temp, "Remove temporary files that have outlived the days in their path.")
    one.add_argument("root", nargs="?", metavar="ROOT", help="root of the store; default MARIN_PREFIX")
    one.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    return parser


def _add_transfer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("-r", "--recursive", action="store_true", help="folders with everything in them")
    parser.add_argument("--no-verify", action="store_true", help="do not check what arrived")
    parser.add_argument("--jobs", type=_positive, default=8, help="copies at once (8)")


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def _named(paths: Sequence[str]) -> list[StoragePath]:
    """The places that arguments name; a pattern that is no file of that very name is expanded."""
    from rigging.filesystem.transfer import expand_source

    return [found for path in paths for found in expand_source(path)]


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2, default=str, ensure_ascii=False)
    sys.stdout.write("\n")


def _fields(entry: StoredEntry) -> dict[str, Any]:
    when = None if entry.mtime is None else datetime.fromtimestamp(entry.mtime, UTC).isoformat(timespec="seconds")
    kind = "folder" if entry.is_folder else "file"
    return {"path": entry.path, "kind": kind, "size": entry.size, "modified": when, "md5": entry.md5}


def _ls(options: argparse.Namespace) -> int:
    entries: list[StoredEntry] = []
    for place in _named(options.paths):
        info = place.info()
        entries.extend(place.scan(recursive=options.recursive) if info.is_folder else [info])
    if options.json:
        _print_json([_fields(entry) for entry in entries])
        return DONE
    for entry in entries:
        name = entry.path + ("/" if entry.is_folder else "")
        if options.long:
            fields = _fields(entry)
            size = "-" if entry.size is None else str(entry.size)
            name = f"{size:>14}  {fields['modified'] or '-':25}  {name}"
        print(name)
    return DONE


def _stat(options: argparse.Namespace) -> int:
    found = [_fields(place.info()) for place in _named(options.paths)]
    if options.json:
        _print_json(found)
        return DONE
    for fields in found:
        print("\n".join(f"{key}: {value}" for key, value in fields.items() if value is not None))
    return DONE


def _find(options: argparse.Namespace) -> int:
    found = [str(path) for pattern in options.paths for path in StoragePath(pattern).glob()]
    if options.json:
        _print_json(found)
    else:
        print("\n".join(found), end="\n" if found else "")
    return DONE


def _cat(options: argparse.Namespace) -> int:
    from rigging.filesystem.transfer import blocks
    from rigging.fsutil._adapters.parquet import parquet_rows
    from rigging.fsutil._decode import decoded

    for place in _named(options.paths):
        if place.isdir():
            raise IsADirectoryError(f"{place} is a folder")
        if place.suffix == ".parquet" and not options.raw:
            for row in parquet_rows(str(place)):
                print(json.dumps(row, default=str, ensure_ascii=False))
            continue
        sys.stdout.flush()
        with place.open("rb") as stream:
            for block in blocks(stream if options.raw else decoded(str(place), stream)):
                sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    return DONE


def _head(options: argparse.Namespace) -> int:
    from rigging.fsutil._adapters.parquet import parquet_rows
    from rigging.fsutil._decode import decoded, first_lines

    (place,) = _named(options.paths)[:1]
    if place.isdir():
        raise IsADirectoryError(f"{place} is a folder")
    if place.suffix == ".parquet":
        rows = list(parquet_rows(str(place), options.lines))
        if options.json:
            _print_json(rows)
        else:
            for row in rows:
                print(json.dumps(row, default=str, ensure_ascii=False))
        return DONE
    with place.open("rb") as stream:
        lines = first_lines(decoded(str(place), stream), options.lines, PREVIEW_BYTES)
    if options.json:
        _print_json([line.decode("utf-8", "replace").rstrip("\n") for line in lines])
        return DONE
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(lines))
    return DONE


def _schema(options: argparse.Namespace) -> int:
    from rigging.fsutil._adapters.parquet import parquet_schema

    found = [parquet_schema(str(place)) for place in _named(options.paths)]
    if options.json:
        _print_json(found)
        return DONE
    for schema in found:
        print(
            f"{schema['path']}: {schema['rows']} rows, {schema['row_groups']} row groups, "
            f"{'+'.join(schema['compression']) or 'no columns'}"
        )
        for column in schema["columns"]:
            print(f"  {column['name']}: {column['type']}{'' if column['nullable'] else ' not null'}")
    return DONE


def _du(options: argparse.Namespace) -> int:
    from rigging.fsutil.usage import usage_by_child, usage_of

    found = []
    for place in _named(options.paths):
        found.extend([usage_of(str(place))] if options.summarize else usage_by_child(str(place)))
    if options.json:
        _print_json([{"path": item.path, "size": item.size, "files": item.files} for item in found])
        return DONE
    for item in found:
        print(f"{item.size:>16}  {item.files:>8}  {item.path}")
    return DONE


def _hash(options: argparse.Namespace) -> int:
    from rigging.filesystem.transfer import digest_of

    places = _named(options.paths)
    found = []
    with Progress(_total(places), unit="B", description="hash") as progress:
        for place in places:
            if place.isdir():
                raise IsADirectoryError(f"{place} is a folder; name files")
            digest = digest_of(str(place), options.algorithm, progress.advance)
            text = digest.hex() if options.hex else base64.b64encode(digest).decode()
            found.append({"path": str(place), "algorithm": options.algorithm, "digest": text})
    if options.json:
        _print_json(found)
        return DONE
    for item in found:
        print(f"{item['digest']}  {item['path']}")
    return DONE


def _total(places: Sequence[StoragePath]) -> int:
    return sum(place.info().size or 0 for place in places)


def _copy(options: argparse.Namespace, verb: str) -> tuple[list[Any], int]:
    from rigging.filesystem.transfer import plan_copies, run_copies

    plan = plan_copies(options.sources, options.target, recursive=options.recursive)
    planned = len(plan)
    if getattr(options, "no_clobber", False):
        plan = [copy for copy in plan if not StoragePath(copy.target).exists()]
    done = []
    if plan:
        with Progress(sum(copy.size for copy in plan), unit="B", description=verb) as progress:
            done = run_copies(plan, jobs=options.jobs, verify=not options.no_verify, advance=progress.advance)
    return done, planned - len(plan)


def _say_copied(options: argparse.Namespace, verb: str, done: Sequence[Any], skipped: int, **more: Any) -> None:
    size = sum(item.size for item in done)
    if options.json:
        files = [{name: getattr(item, name) for name in item.__slots__} for item in done]
        _print_json({"files": files, "bytes": size, "skipped": skipped, **more})
        return
    checked = ", each checked" if done and all(item.verified != "not verified" for item in done) else ""
    left = f"; {skipped} there already" if skipped else ""
    print(f"{verb} {len(done)} files, {format_quantity(size)}B{checked}{left}", file=sys.stderr)


def _cp(options: argparse.Namespace) -> int:
    done, skipped = _copy(options, "copy")
    _say_copied(options, "copied", done, skipped)
    return DONE


def _mv(options: argparse.Namespace) -> int:
    done, _ = _copy(options, "move")
    for item in done:
        StoragePath(item.source).rm()
    for source in options.sources:
        if StoragePath(source).is_local and StoragePath(source).isdir():
            StoragePath(source).rmtree()
    _say_copied(options, "moved", done, 0)
    return DONE


def _rsync(options: argparse.Namespace) -> int:
    from rigging.filesystem.transfer import run_copies
    from rigging.fsutil.mirror_tree import plan_mirror

    plan = plan_mirror(options.source, options.target, by_content=options.checksum)
    doomed = plan.extra if options.delete else []
    if options.dry_run:
        if options.json:
            _print_json({"copy": [copy.target for copy in plan.copies], "delete": doomed, "same": plan.same})
        else:
            print("".join(f"copy {copy.target}\n" for copy in plan.copies), end="")
            print("".join(f"delete {path}\n" for path in doomed), end="")
        return DONE
    done = []
    if plan.copies:
        with Progress(sum(copy.size for copy in plan.copies), unit="B", description="rsync") as progress:
            done = run_copies(plan.copies, jobs=options.jobs, advance=progress.advance)
    for path in doomed:
        StoragePath(path).rm()
    _say_copied(options, "copied", done, plan.same, deleted=doomed)
    return DONE


def _rm(options: argparse.Namespace) -> int:
    removed = 0
    for path in options.paths:
        try:
            places = _named([path])
        except FileNotFoundError:
            if options.force:
                continue
            raise
        for place in places:
            if not place.segments or place.segments == (".",):
                raise ValueError(f"will not remove {place}: it is a root or the current folder. Name what is in it.")
            if not place.isdir():
                place.rm()
            elif options.recursive:
                place.rmtree()
            else:
                raise IsADirectoryError(f"{place} is a folder; give -r to remove it with everything in it")
            removed += 1
    if options.json:
        _print_json({"removed": removed})
    return DONE


def _clean_temp(options: argparse.Namespace) -> int:
    from rigging.filesystem.temp_space import clean_temp

    done = clean_temp(options.root, dry_run=options.dry_run)
    if options.json:
        _print_json({"removed": done.removed, "bytes": done.size, "kept": done.kept, "dry_run": options.dry_run})
        return DONE
    for path in done.removed:
        print(path)
    verb = "would remove" if options.dry_run else "removed"
    print(f"{verb} {len(done.removed)} files, {format_quantity(done.size)}B; kept {done.kept}", file=sys.stderr)
    return DONE


if __name__ == "__main__":
    raise SystemExit(main())
