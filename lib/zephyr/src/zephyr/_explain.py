"""Plans in words: names of operations and stages, and the text of `ZephyrContext.explain`."""

from zephyr._ops import Filter, Key, Load
from zephyr.expr import Expr
from zephyr.physical import (
    BlocksInput,
    Branch,
    HashScatter,
    Input,
    Output,
    PairInput,
    PhysicalOp,
    Plan,
    RangeScatter,
    RowScatter,
    ShuffleInput,
    SourceInput,
    WriteShard,
)

_CUT = "; one far above the median is cut between keys"

_NAMES = {
    "FlatMap": "flat_map",
    "MapShard": "map_shard",
    "MapBatches": "map_batches",
    "WindowBy": "window_by",
    "TakePerShard": "take",
    "FoldShard": "fold",
    "CountShard": "count",
    "SumShard": "sum",
    "ReduceGroups": "reduce",
    "KeepFirst": "keep_first",
    "JoinGroups": "join",
    "PartialAggregate": "aggregate",
    "MergeAggregates": "merge_aggregates",
    "MergeSides": "merge_join",
    "ReadSource": "read",
    "DropKeys": "",
}


def op_name(op: PhysicalOp) -> str:
    """Short name of an operation, as in the method that made it."""
    if isinstance(op, Load):
        return "load" if op.format == "auto" else f"load_{op.format}"
    if isinstance(op, WriteShard):
        return f"write_{op.format}" if isinstance(op.format, str) else f"write_to({type(op.format).__name__})"
    name = type(op).__name__
    return _NAMES.get(name, name.lower())


def _output_name(output: Output) -> str:
    return {"HashScatter": "shuffle", "RangeScatter": "sort", "RowScatter": "deal"}.get(type(output).__name__, "")


def stage_name(branches: tuple[Branch, ...], output: Output) -> str:
    chains = [" → ".join(filter(None, map(op_name, branch.ops))) for branch in branches]
    body = " | ".join(dict.fromkeys(chain for chain in chains if chain))
    return " → ".join(part for part in (body, _output_name(output)) if part) or "items"


def explain(plan: Plan) -> str:
    """Describe a plan, one line per stage and one per operation that is more than its name."""
    lines = []
    for stage in plan.stages:
        lines.append(f"stage {stage.index}: {stage.name} [{stage.num_tasks} tasks]")
        for branch in stage.branches:
            lines.append(f"  from {_describe_input(branch.input)}")
            lines.extend(f"  {text}" for op in branch.ops if (text := _describe(op)))
            if branch.key is not None:
                sort = "" if branch.key.sort_by is None else f", sort_by={_describe_key(branch.key.sort_by)}"
                lines.append(f"  key={_describe_key(branch.key.key)}{sort}")
        lines.append(f"  to {_describe_output(stage.output)}")
    return "\n".join(lines)


def describe(plan: Plan) -> list[dict[str, object]]:
    """The plan as plain values: stages with their tasks, inputs, operations and output.

    Example:
        >>> from zephyr import Dataset, compute_plan
        >>> [stage] = describe(compute_plan(Dataset.from_list([1]).map(abs).pipeline))
        >>> stage["name"], stage["tasks"], stage["branches"][0]["operations"]
        ('map', 1, ['map'])
    """
    return [
        {
            "index": stage.index,
            "name": stage.name,
            "tasks": stage.num_tasks,
            "output": _describe_output(stage.output),
            "branches": [
                {
                    "input": _describe_input(branch.input),
                    "shards": branch.input.num_shards,
                    "operations": [_describe(op) or op_name(op) for op in branch.ops if op_name(op)],
                }
                for branch in stage.branches
            ],
        }
        for stage in plan.stages
    ]


def _describe_input(source: Input) -> str:
    match source:
        case SourceInput(shards):
            items = sum(map(len, shards))
            return f"source: {items} items in {len(shards)} shards"
        case PairInput(stage, num):
            return f"both sides of stage {stage} in {num} pairs of shards"
        case BlocksInput(stage, num):
            return f"blocks of stage {stage} in {num} shards"
        case ShuffleInput(stage, num):
            return f"shuffle of stage {stage} in {num} targets"


def _describe(op: PhysicalOp) -> str:
    match op:
        case Load():
            columns = "all" if op.columns is None else ", ".join(op.columns) or "none"
            columns += "" if op.path_column is None else f" and {op.path_column} (the path)"
            pushed = "" if op.predicate is None else f", filter {op.predicate!r} pushed down"
            return f"{op_name(op)}: columns {columns}{pushed}, as {'rows' if op.as_rows else 'Arrow batches'}"
        case Filter(predicate) if isinstance(predicate, Expr):
            return f"filter: {predicate!r} on Arrow batches"
        case WriteShard():
            first = op.paths[0] if op.paths else "nothing"
            return f"{op_name(op)}: {len(op.paths)} files, first {first}{', skip_existing' if op.skip_existing else ''}"
    return ""


def _describe_key(key: Key) -> str:
    return repr(key) if isinstance(key, Expr | str) else getattr(key, "__qualname__", type(key).__name__)


def _describe_output(output: Output) -> str:
    match output:
        case HashScatter(num, combiner, keep_first):
            early = ", combined early" if combiner is not None or keep_first else ""
            return f"{num} targets by key hash{early}{_CUT if num > 1 else ''}"
        case RangeScatter(num, reverse):
            return f"{num} targets by key range{', descending' if reverse else ''}{_CUT if num > 1 else ''}"
        case RowScatter(num):
            return f"{num} targets in turn"
    return "collected blocks"
