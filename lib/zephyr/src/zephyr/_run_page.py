"""One HTML file about a run: stages, where the time went, how uneven tasks were, counters, plan; needs no network."""

import html
from collections.abc import Iterable, Mapping, Sequence

from rigging.progress import format_quantity, format_seconds

from zephyr._monitor import StageStats

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: .25rem .6rem; }
th { border-bottom: 1px solid #c6ccd2; font-weight: 600; } td:first-child, th:first-child { text-align: left; }
tr:nth-child(even) td { background: #f6f8fa; } pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; }
.failed { color: #a40e26; } .done { color: #116329; } svg { display: block; margin: .3rem 0 1rem; }
.bar { fill: #4078c0; } .slow { fill: #c9510c; } .note { color: #57606a; }
"""
_WIDTH, _HEIGHT, _BARS = 960, 80, 240


def render(
    *,
    name: str,
    execution: str,
    outcome: str,
    plan: str,
    stages: Sequence[StageStats],
    counters: Mapping[str, float],
    error: str = "",
) -> str:
    """The page.

    Args:
        name: Of the context.
        execution: Id of the run.
        outcome: "done" or "failed".
        plan: What `explain` prints.
        stages: Statistics of each stage that started.
        counters: Totals by name.
        error: What went wrong.
    Example:
        >>> page = render(name="x", execution="e", outcome="done", plan="p", stages=[], counters={"n": 1.0})
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    title = html.escape(name or execution)
    seconds = sum(stage.seconds for stage in stages)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>zephyr: {title}</title><style>{_STYLE}</style>",
        f"<h1>{title} <span class={outcome}>{outcome}</span></h1>",
        f"<p class=note>execution {html.escape(execution)}, {format_seconds(seconds)}</p>",
        f"<pre class=failed>{html.escape(error)}</pre>" if error else "",
        "<h2>Stages</h2>",
        _stage_table(stages),
        *(_stage_bars(stage) for stage in stages if stage.durations),
        "<h2>Counters</h2>",
        _table(("counter", "total"), ((name, f"{value:g}") for name, value in counters.items())),
        "<h2>Plan</h2>",
        f"<pre>{html.escape(plan)}</pre></html>",
    ]
    return "\n".join(part for part in parts if part)


def _stage_table(stages: Sequence[StageStats]) -> str:
    head = (
        "stage",
        "tasks",
        "seconds",
        "records in",
        "rec/s",
        "bytes in",
        "B/s",
        "shuffled",
        "bytes out",
        "skew",
        "targets cut",
        "dropped",
        "quarantined",
    )
    return _table(head, map(_stage_row, stages))


def _stage_row(stage: StageStats) -> Sequence[str]:
    flows, seconds = stage.flows, max(stage.seconds, 1e-9)
    records, size = flows.get("records_in", 0), flows.get("bytes_in", 0)
    return (
        f"{stage.index}: {stage.name}",
        f"{stage.done}/{stage.tasks}" + (f" ({stage.proven} proven)" if stage.proven else ""),
        f"{stage.seconds:.2f}",
        format_quantity(records),
        format_quantity(records / seconds),
        format_quantity(size),
        format_quantity(size / seconds),
        format_quantity(stage.shuffle_bytes),
        format_quantity(flows.get("bytes_out", 0)),
        f"{stage.skew:.1f}",
        _describe_cut(stage),
        str(stage.dropped),
        str(stage.quarantined),
    )


def _describe_cut(stage: StageStats) -> str:
    """Which shuffle targets were far larger than the rest, and in how many pieces they were reduced."""
    if not stage.cut:
        return ""
    shown = [
        f"shard {shard}: {pieces} pieces" if pieces > 1 else f"shard {shard}: one key"
        for shard, pieces in sorted(stage.cut.items())[:3]
    ]
    more = [f"{len(stage.cut) - 3} more"] if len(stage.cut) > 3 else []
    return f"{', '.join([*shown, *more])}; largest {stage.largest_target:.1f} x median"


def _stage_bars(stage: StageStats) -> str:
    """Seconds by shard; many shards share a bar, which shows the slowest of them."""
    times = [seconds for _, seconds in sorted(stage.durations.items())]
    per_bar = -(-len(times) // _BARS)
    bars = [max(times[at : at + per_bar]) for at in range(0, len(times), per_bar)]
    top = max(bars) or 1e-9
    slow = 3 * sorted(times)[len(times) // 2]
    width = _WIDTH / max(len(bars), 20)
    shapes = []
    for at, value in enumerate(bars):
        high = max(1.0, value / top * _HEIGHT)
        kind = "slow" if value > slow else "bar"
        shapes.append(
            f'<rect class={kind} x="{at * width:.2f}" y="{_HEIGHT - high:.2f}" width="{max(0.5, width - 1):.2f}" '
            f'height="{high:.2f}"><title>shard {at * per_bar}: {value:.3f} s</title></rect>'
        )
    label = f"stage {stage.index}: seconds by shard, highest {top:.3f}"
    return (
        f"<p class=note>{html.escape(label)}</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" height="{_HEIGHT}">{"".join(shapes)}</svg>'
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def cells(kind: str, values: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(value)}</{kind}>" for value in values) + "</tr>"

    return "<table>" + cells("th", head) + "".join(cells("td", row) for row in rows) + "</table>"
