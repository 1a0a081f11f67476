"""Two drawings as inline SVG: curves over steps, and the graph of steps. Pure functions over plain data.

The problem: a chart library weighs more than the report it draws for. The idea: lines, axes and boxes are forty lines
each; colours are CSS variables of the page, so both themes work, and identity never rests on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from marin.execution.graph import post_order

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 132, 16, 40
NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y = 190, 44, 28, 26


@dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        label: Written at the end of the line.
        points: ``(step, value)``; non-finite values end the line there.
        slot: Colour slot of the page, 1 or more.
        dashed: Draw it dashed (failed arms).
    """

    label: str
    points: Sequence[tuple[float, float]]
    slot: int = 1
    dashed: bool = False


@dataclass(frozen=True)
class Node:
    """One step in the graph.

    Attributes:
        key: Unique name.
        label: First line of the box.
        detail: Second line.
        status: CSS class of the box.
    """

    key: str
    label: str
    detail: str
    status: str


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round positions that cover an interval.

    Example:
        >>> ticks(0.0, 10.0)
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    magnitude = 10 ** math.floor(math.log10(raw))
    step = min((m for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw), default=10) * magnitude
    first = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(series: Sequence[Series], *, x_label: str, y_label: str, y_limit: float | None = None) -> str:
    """Draw curves over a common axis.

    Args:
        series: Curves; empty ones are left out.
        x_label: Caption of the horizontal axis.
        y_label: Caption of the vertical axis, with its unit.
        y_limit: Values above it are drawn at the upper edge.
    Returns:
        An ``<svg>`` element, or a paragraph that says there is nothing to draw.
    """
    drawn = [(s, [(x, y) for x, y in s.points if math.isfinite(y)]) for s in series]
    drawn = [(s, points) for s, points in drawn if points]
    if not drawn:
        return '<p class="muted">No points were recorded.</p>'
    xs = [x for _, points in drawn for x, _ in points]
    ys = [y if y_limit is None else min(y, y_limit) for _, points in drawn for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high = min(*xs, *x_ticks), max(*xs, *x_ticks)
    y_low, y_high = min(*ys, *y_ticks), max(*ys, *y_ticks)

    def at(x: float, y: float) -> tuple[float, float]:
        clipped = y if y_limit is None else min(y, y_limit)
        across = (x - x_low) / ((x_high - x_low) or 1)
        up = (clipped - y_low) / ((y_high - y_low) or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)}">']
    for value in y_ticks:
        _, y = at(x_low, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in x_ticks:
        x, _ = at(value, y_low)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    last_label_y = math.inf
    ends = sorted(((at(*points[-1]), s, points) for s, points in drawn), key=lambda end: -end[0][1])
    for (end_x, end_y), s, points in ends:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if s.dashed else ""
        title = escape(f"{s.label}: last {points[-1][1]:.4g} at {points[-1][0]:g}")
        parts.append(f'<polyline class="line s{s.slot}" points="{path}"{dash}><title>{title}</title></polyline>')
        parts.append(
            f'<circle class="dot s{s.slot}" cx="{end_x:.1f}" cy="{end_y:.1f}" r="4"><title>{title}</title></circle>'
        )
        label_y = max(min(end_y + 4, last_label_y - 15), 12)
        last_label_y = label_y
        parts.append(f'<text class="label" x="{end_x + 9:.1f}" y="{label_y:.1f}">{escape(s.label)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append("</svg>")
    return "".join(parts)


def layers_of(nodes: Sequence[Node], parents: Mapping[str, Sequence[str]]) -> list[list[Node]]:
    """Rows of a top-down drawing: a node stands one row below its furthest parent.

    Example:
        >>> a, b = Node("a", "a", "", "ok"), Node("b", "b", "", "ok")
        >>> [[n.key for n in row] for row in layers_of([b, a], {"b": ["a"]})]
        [['a'], ['b']]
    """
    known = {node.key for node in nodes}
    above = {node.key: [key for key in parents.get(node.key, ()) if key in known] for node in nodes}
    depth: dict[str, int] = {}
    # A loop and no recursion: a chain of steps may be longer than Python's stack.
    for key in post_order([node.key for node in nodes], lambda key: above[key], str):
        depth[key] = 1 + max((depth[parent] for parent in above[key]), default=-1)
    rows: list[list[Node]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for node in nodes:
        rows[depth[node.key]].append(node)
    return rows


def step_graph(nodes: Sequence[Node], parents: Mapping[str, Sequence[str]]) -> str:
    """Draw the graph of steps, inputs at the top.

    Args:
        nodes: The steps.
        parents: Key to the keys it reads from.
    Returns:
        An ``<svg>`` element.
    """
    rows = layers_of(nodes, parents)
    place: dict[str, tuple[float, float]] = {}
    columns = max((len(row) for row in rows), default=0)
    width = max(columns * (NODE_WIDTH + GAP_X) - GAP_X, 0) + 8
    height = len(rows) * (NODE_HEIGHT + GAP_Y) - GAP_Y + 8
    for y, row in enumerate(rows):
        offset = (columns - len(row)) * (NODE_WIDTH + GAP_X) / 2 + 4
        for x, node in enumerate(row):
            place[node.key] = (offset + x * (NODE_WIDTH + GAP_X), 4 + y * (NODE_HEIGHT + GAP_Y))
    edges = [
        _edge(place[source], place[key])
        for key, sources in sorted(parents.items())
        for source in sources
        if source in place and key in place
    ]
    boxes = [_box(node, *place[node.key]) for node in nodes]
    opening = f'<svg class="graph" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    return "".join([opening, "<title>Graph of steps</title>", *edges, *boxes, "</svg>"])


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    x0, y0 = source[0] + NODE_WIDTH / 2, source[1] + NODE_HEIGHT
    x1, y1 = target[0] + NODE_WIDTH / 2, target[1]
    bend = (y1 - y0) / 2
    curve = f"M{x0:.0f},{y0:.0f} C{x0:.0f},{y0 + bend:.0f} {x1:.0f},{y1 - bend:.0f} {x1:.0f},{y1:.0f}"
    return f'<path class="edge" d="{curve}"/>'


def _box(node: Node, x: float, y: float) -> str:
    return (
        f'<g class="node {escape(node.status)}">'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="6"/>'
        f'<text class="name" x="{x + 10:.0f}" y="{y + 18:.0f}">{escape(_short(node.label, 25))}'
        f"<title>{escape(node.label)}</title></text>"
        f'<text class="detail" x="{x + 10:.0f}" y="{y + 34:.0f}">{escape(_short(node.detail, 30))}</text></g>'
    )


def _short(text: str, limit: int) -> str:
    """A text that fits into a box; the end of a name says more than its beginning.

    Example:
        >>> _short("tutorial/bits-per-byte", 12)
        '…ts-per-byte'
    """
    return text if len(text) <= limit else "…" + text[1 - limit :]
