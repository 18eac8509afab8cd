"""A picture of a partitioned model for people: every region and every other operation a box, coloured by who runs it, as SVG.

The text needs nothing to be looked at but a browser. What does not fit on a box is in its tooltip: types, constants, the operations of a
region, the reason why nobody took one. Blocks of branches and loops are panels of their own, below.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from tcjit.byoc.graph import Block, Node, Value, captured
from tcjit.byoc.graph_layout import Drawing, arrange
from tcjit.byoc.regions import Region, order

# fill and border: by backend, in the order of their appearance; then what nobody took, what branches and loops, what comes in and goes out
_BACKENDS = (
    ("#cfe3fb", "#2f6fb3"),
    ("#d3efd0", "#3b8a3a"),
    ("#fde3c4", "#c47a1d"),
    ("#e8d7f5", "#7d4aa8"),
    ("#fbd5df", "#b8456a"),
    ("#d0eeee", "#2d8b8b"),
)
_PLAIN, _CONTROL, _ENDS = ("#eeeeee", "#8a8a8a"), ("#fff7c2", "#a08a1d"), ("#ffffff", "#555555")
_LINE, _LETTER, _PAD, _HEAD = 14, 6.7, 8, 34  # pixels: height of a line, width of a letter, inside of a box, heading of a panel
_MOST_LINES, _MOST_LETTERS = 9, 38
_MARGIN = 16


@dataclass(frozen=True)
class _Box:
    """What is drawn as one: lines on it, what its tooltip says, its colours; the values that it needs and makes."""

    lines: tuple[str, ...]
    tip: str
    colours: tuple[str, str]
    needs: tuple[Value, ...]
    makes: tuple[Value, ...]

    @property
    def size(self) -> tuple[float, float]:
        return max(map(len, self.lines)) * _LETTER + 2 * _PAD, len(self.lines) * _LINE + 2 * _PAD


def picture(block: Block, regions: Sequence[Region] = ()) -> str:
    """The SVG of a block, with the blocks inside of it.

    ``regions`` are drawn in place of their nodes, or, where the block has calls in their place already, say what those calls run.

    >>> x, y = Value("x"), Value("y")
    >>> text = picture(Block((x,), [Node("aten.relu", "default", {"self": x}, (y,))], (y,)))
    >>> text.startswith("<svg ") and "aten.relu" in text
    True
    """
    colours = {name: _BACKENDS[at % len(_BACKENDS)] for at, name in enumerate(dict.fromkeys(region.backend for region in regions))}
    parts: list[str] = []
    wide, top = _legend(parts, colours)
    for title, inner in _panels(block):
        boxes = list(_boxes(inner, regions, colours))
        layout = arrange([box.size for box in boxes], [(a, b) for a, b, _ in _edges(boxes)])
        parts.append(f'<text class="head" x="{_MARGIN}" y="{top + 20}">{escape(title)}</text>')
        parts.append(f'<g transform="translate({_MARGIN} {top + _HEAD})">')
        parts.extend(_drawn(boxes, layout))
        parts.append("</g>")
        wide, top = max(wide, layout.width), top + _HEAD + layout.height + _MARGIN
    width, height = wide + 2 * _MARGIN, top + _MARGIN
    return "\n".join([*_opening(width, height), *parts, "</svg>", ""])


def _opening(width: float, height: float) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
    yield (
        "<style>text { font: 11px monospace; fill: #222 } .head { font: bold 13px sans-serif } .first { font-weight: bold }"
        " .edge { fill: none; stroke: #777; stroke-width: 1 } .edge:hover { stroke: #d00; stroke-width: 2.5 }</style>"
    )
    yield (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#777"/></marker></defs>'
    )
    yield f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'


def _legend(parts: list[str], colours: dict[str, tuple[str, str]]) -> tuple[float, float]:
    """Which colour is whose; the width and height that it takes."""
    left: float = _MARGIN
    for name, (fill, border) in {**colours, "PyTorch": _PLAIN, "branch or loop": _CONTROL}.items():
        parts.append(f'<rect x="{left:.0f}" y="{_MARGIN}" width="12" height="12" fill="{fill}" stroke="{border}"/>')
        parts.append(f'<text x="{left + 17:.0f}" y="{_MARGIN + 10}">{escape(_shown(name))}</text>')
        left += 17 + len(name) * _LETTER + 20
    return left, _MARGIN + 14


def _panels(block: Block, path: str = "the model") -> Iterator[tuple[str, Block]]:
    yield path, block
    for node in block.nodes:
        for number, inner in enumerate(node.blocks):
            yield from _panels(inner, f"{path} / {node.op} {', '.join(f'%{v.name}' for v in node.outputs)} block {number}")


def _boxes(block: Block, regions: Sequence[Region], colours: dict[str, tuple[str, str]]) -> Iterator[_Box]:
    """The boxes of a block: what comes in, its cells in their order, what goes out."""
    here = set(block.nodes)
    whole = [region for region in regions if here.issuperset(region.nodes)]
    owner = {value: region for region in regions for value in region.outputs}
    if given := tuple(value for value in block.inputs if not value.constant):
        yield _Box(_cut(["in", *map(_typed, given)]), _listed("inputs", given), _ENDS, (), given)
    for item in order(block, whole):
        if isinstance(item, Region):
            yield _region(item, colours[item.backend], item.inputs, item.outputs)
        elif found := next((owner[value] for value in item.outputs if value in owner), None):
            yield _region(found, colours[found.backend], tuple(item.inputs), item.outputs)
        else:
            yield _single(item)
    if block.outputs:
        yield _Box(_cut(["out", *map(_typed, block.outputs)]), _listed("outputs", block.outputs), _ENDS, block.outputs, ())


def _single(node: Node) -> _Box:
    needs = (*node.inputs, *(value for inner in node.blocks for value in captured(inner)))
    lines = [node.op + (f".{node.overload}" if node.overload not in ("", "default") else ""), *map(_typed, node.outputs)]
    reason = f"not taken: {node.reason}" if node.reason else ""
    tip = "\n".join(filter(None, [repr(node)[:2000], node.effect and f"effect: {node.effect}", reason]))
    return _Box(_cut(lines), tip, _CONTROL if node.blocks else _PLAIN, tuple(dict.fromkeys(needs)), node.outputs)


def _region(region: Region, colours: tuple[str, str], needs: tuple[Value, ...], makes: tuple[Value, ...]) -> _Box:
    lines = [region.name, *(node.op for node in region.nodes), *(f"-> {_typed(value)}" for value in region.outputs)]
    ops = [f"  {node.op} {', '.join(map(_typed, node.outputs))}" for node in region.nodes]
    tip = [f"{region.name}, run by {region.backend}", f"rows: {', '.join(region.rows)}" if region.rows else "", *ops]
    tip += [_listed("inputs", region.inputs), _listed("constants", region.constants), _listed("outputs", region.outputs)]
    return _Box(_cut(lines, keep=len(region.outputs)), "\n".join(filter(None, tip)), colours, needs, makes)


def _edges(boxes: Sequence[_Box]) -> Iterator[tuple[int, int, str]]:
    """From box to box, with the values that go this way."""
    maker = {value: number for number, box in enumerate(boxes) for value in box.makes}
    for number, box in enumerate(boxes):
        ways: dict[int, list[Value]] = {}
        for value in box.needs:
            if value in maker and maker[value] != number:
                ways.setdefault(maker[value], []).append(value)
        for source, values in ways.items():
            yield source, number, "\n".join(map(_typed, values))


def _drawn(boxes: Sequence[_Box], layout: Drawing) -> Iterator[str]:
    for (_, _, tip), points in zip(_edges(boxes), layout.ways):
        yield f'<path class="edge" d="{_curve(points)}" marker-end="url(#tip)"><title>{escape(_shown(tip))}</title></path>'
    for box, (x, y) in zip(boxes, layout.places):
        (width, height), (fill, border) = box.size, box.colours
        yield f"<g><title>{escape(_shown(box.tip))}</title>"
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" fill="{fill}" stroke={quoteattr(border)}/>'
        for number, line in enumerate(box.lines):
            kind = ' class="first"' if number == 0 else ""
            yield f'<text{kind} x="{x + _PAD:.1f}" y="{y + _PAD + _LINE * (number + 0.75):.1f}">{escape(_shown(line))}</text>'
        yield "</g>"


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A smooth way down through points."""
    (x, y), *rest = points
    text = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        text += f" C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    return text


def _typed(value: Value) -> str:
    return f"%{value.name}" + (f" {value.type}" if value.type else "")


def _listed(name: str, values: Sequence[Value]) -> str:
    return f"{name}: {', '.join(map(_typed, values))}" if values else ""


def _cut(lines: Sequence[str], keep: int = 0) -> tuple[str, ...]:
    """As many lines as a box has room for, of the last ``keep`` at least one."""
    if len(lines) > _MOST_LINES:
        tail = min(keep, 2)
        head = _MOST_LINES - 1 - tail
        lines = [*lines[:head], f"... {len(lines) - head - tail} more", *lines[len(lines) - tail :]]
    return tuple(line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 3] + "..." for line in lines)


def _shown(text: str) -> str:
    """Without the characters that XML has no way to write."""
    return "".join(c if c in "\n\t" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe" or c > "\uffff" else "?" for c in text)
