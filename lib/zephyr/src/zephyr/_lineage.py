"""Proof that an output is complete and made from this input by this code: what `skip_existing` goes by.

Beside an output lies a note, `.<name>.lineage.json`, with the output's size and content digest and with a digest of
everything that went into it: contents of the input files, the operations, the code of the callables, the shard's
number. The file is left alone only when the note matches on all counts; a file that merely exists is written again.

Code means the bytecode of a function, its constants, defaults and captured values, and the functions and plain values
of its own module that it names. What it calls in other modules is not looked into; change the output path then.
"""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any

import cloudpickle
import pyarrow as pa
import xxhash

from zephyr._adapters import remote
from zephyr._files import open_input
from zephyr._paths import FileSpan, is_remote, local_path
from zephyr._task import BlockRef, TaskReport, dump_block
from zephyr.expr import Expr
from zephyr.physical import Branch, Collect, Plan, SourceInput, Stage, WriteShard

_VERSION = "1"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Proof:
    """What need not run, and the notes to write for what does.

    Args:
        proven: Reports of tasks whose output is proven and whose chain ends there, by (stage, shard).
        written: (stage, shard) whose file is proven but whose chain goes on after the write.
        skipped_stages: Stages that nobody needs.
        lineage: Digest by output path.
    """

    proven: Mapping[tuple[int, int], TaskReport]
    written: frozenset[tuple[int, int]]
    skipped_stages: frozenset[int]
    lineage: Mapping[str, str]


def prove(plan: Plan, shared: Mapping[str, bytes] = MappingProxyType({})) -> Proof:
    """Find out which outputs of a plan are there already.

    Args:
        plan: The plan.
        shared: Data that any of its functions may ask for, so that all outputs depend on it.
    """
    proven: dict[tuple[int, int], TaskReport] = {}
    written: set[tuple[int, int]] = set()
    lineage: dict[str, str] = {}
    stage_digests: dict[int, str] = {}
    files: dict[str, str] = {}
    given = [part for name in sorted(shared) for part in (name, hashlib.sha256(shared[name]).hexdigest())]
    wanted = any(_noted(branch) is not None for stage in plan.stages for branch in stage.branches)
    if not wanted:
        return Proof({}, frozenset(), frozenset(), {})
    for stage in plan.stages:
        tasks = [_task_digest(stage, shard, stage_digests, files, given) for shard in range(stage.num_tasks)]
        stage_digests[stage.index] = _digest([*tasks, fingerprint(stage.output)])
        for shard, digest in enumerate(tasks):
            branch, _ = stage.locate(shard)
            op = _noted(branch)
            if op is None:
                continue
            path = op.paths[shard]
            lineage[path] = digest
            if not note_holds(path, digest):
                continue
            if branch.ops[-1] is op and isinstance(stage.output, Collect):
                data = dump_block([path])
                proven[stage.index, shard] = TaskReport(blocks=(BlockRef(1, len(data), data=data),))
            else:
                written.add((stage.index, shard))
    return Proof(proven, frozenset(written), _unneeded(plan, {*proven, *written}), lineage)


def _noted(branch: Branch) -> WriteShard | None:
    return next((op for op in branch.ops if isinstance(op, WriteShard) and op.skip_existing), None)


def _unneeded(plan: Plan, done: set[tuple[int, int]]) -> frozenset[int]:
    needed = {len(plan.stages) - 1}
    for stage in reversed(plan.stages):
        complete = all((stage.index, shard) in done for shard in range(stage.num_tasks))
        if stage.index in needed and not complete:
            needed |= {b.input.stage for b in stage.branches if not isinstance(b.input, SourceInput)}
    return frozenset(stage.index for stage in plan.stages) - needed


def _task_digest(
    stage: Stage, shard: int, upstream: Mapping[int, str], files: dict[str, str], shared: Sequence[str]
) -> str:
    branch, local = stage.locate(shard)
    parts = [_VERSION, sys.implementation.cache_tag or "", str(shard), str(stage.num_tasks), *shared]
    if isinstance(branch.input, SourceInput):
        parts.extend(_item_digest(item, files) for item in branch.input.shards[local])
    else:
        parts.append(upstream[branch.input.stage])
    for op in branch.ops:
        if isinstance(op, WriteShard):
            kind = op.format if isinstance(op.format, str) else fingerprint(op.format)
            parts.append(f"write:{kind}:{op.paths[shard]}:{op.schema}")
        else:
            parts.append(fingerprint(op))
    parts.append(fingerprint(branch.key))
    return _digest(parts)


def _item_digest(item: Any, files: dict[str, str]) -> str:
    if isinstance(item, FileSpan):
        # Every part of a large file asks for the digest of all of it.
        if item.path not in files:
            files[item.path] = file_digest(item.path)
        return f"part:{item.part}/{item.parts}:{item.path}:{files[item.path]}"
    if isinstance(item, str) and (is_remote(item) or os.path.isfile(local_path(item))):
        return f"file:{item}:{file_digest(item)}"
    return fingerprint(item)


def file_digest(path: str) -> str:
    """Content digest of a local file or folder; for a remote one, what its store says identifies the content."""
    if is_remote(path):
        return remote.content_identity(path)
    plain = local_path(path)
    if os.path.isdir(plain):
        names = sorted(os.path.relpath(os.path.join(at, n), plain) for at, _, found in os.walk(plain) for n in found)
        return _digest(part for name in names for part in (name, file_digest(os.path.join(plain, name))))
    digest = xxhash.xxh3_128()
    with open_input(path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


# Fingerprints of operations


def fingerprint(value: Any, seen: frozenset[int] = frozenset()) -> str:
    """Text that changes when a value, or the code of a callable, changes.

    Example:
        >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
        False
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | Expr):
        return f"{type(value).__name__}:{value!r}"
    if id(value) in seen:
        return "again"
    seen |= {id(value)}
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, MethodType):
        return f"method:{_function(value.__func__, seen)}:{fingerprint(value.__self__, seen)}"
    if isinstance(value, functools.partial):
        return f"partial:{fingerprint((value.func, value.args, value.keywords), seen)}"
    if isinstance(value, BuiltinFunctionType | type):
        return f"name:{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}[{','.join(fingerprint(item, seen) for item in value)}]"
    if isinstance(value, set | frozenset):
        return f"set[{','.join(sorted(fingerprint(item, seen) for item in value))}]"
    if isinstance(value, dict):
        pairs = (f"{fingerprint(k, seen)}={fingerprint(v, seen)}" for k, v in value.items())
        return f"dict[{','.join(pairs)}]"
    if isinstance(value, pa.Schema | pa.DataType):
        return f"arrow:{value}"
    if is_dataclass(value):
        inner = ",".join(f"{f.name}={fingerprint(getattr(value, f.name), seen)}" for f in fields(value))
        return f"{type(value).__name__}({inner})"
    call = getattr(type(value), "__call__", None)  # noqa: B004 - the function itself is wanted, not whether it is there
    code = _function(call, seen) if isinstance(call, FunctionType) else ""
    return f"{type(value).__qualname__}:{code}:{hashlib.sha256(cloudpickle.dumps(value)).hexdigest()}"


def _function(fn: FunctionType, seen: frozenset[int]) -> str:
    cells = [cell.cell_contents for cell in fn.__closure__ or () if _has_contents(cell)]
    named = {}
    for name in sorted(_names(fn.__code__)):
        value = fn.__globals__.get(name)
        own = isinstance(value, FunctionType) and value.__module__ == fn.__module__
        if own or isinstance(value, bool | int | float | str | bytes | tuple | frozenset):
            named[name] = value
    state = (fn.__defaults__, fn.__kwdefaults__, tuple(cells), named)
    return f"function:{_code(fn.__code__)}:{fingerprint(state, seen)}"


def _has_contents(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _names(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*(_names(const) for const in inner))


def _code(code: CodeType) -> str:
    consts = [_code(const) if isinstance(const, CodeType) else repr(const) for const in code.co_consts]
    text = f"{code.co_code.hex()}:{code.co_names}:{code.co_varnames}:{consts}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# Notes


def note_path(path: str) -> str:
    """Where the note of an output lies.

    Example:
        >>> note_path("out/a.parquet")
        'out/.a.parquet.lineage.json'
    """
    folder, sep, name = path.rpartition("/")
    return f"{folder}{sep}.{name}.lineage.json"


def note_holds(path: str, lineage: str) -> bool:
    """Whether an output is there, whole, and made from exactly this."""
    note = _read_note(path)
    if note is None or note.get("lineage") != lineage or not _exists(path):
        return False
    return note.get("digest") == file_digest(path)


def write_note(path: str, lineage: str) -> None:
    """Write the note of an output that has just been published."""
    text = json.dumps({"digest": file_digest(path), "lineage": lineage, "version": _VERSION}, sort_keys=True) + "\n"
    note = note_path(path)
    if is_remote(note):
        with remote.open_url(note, "w") as stream:
            stream.write(text)
        return
    temporary = local_path(note) + ".tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, local_path(note))


def _exists(path: str) -> bool:
    if is_remote(path):
        return remote.exists(path)
    return os.path.exists(local_path(path))


def _read_note(path: str) -> dict[str, Any] | None:
    note = note_path(path)
    if not _exists(note):
        return None
    with open_input(note) as stream:
        try:
            value = json.loads(stream.read())
        except ValueError:
            return None
    return value if isinstance(value, dict) else None
