"""What notebooks show of our objects: small pieces of HTML that need nothing else, every text in them escaped."""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

_STYLE = """
.tcjit { font: 14px/1.5 system-ui, sans-serif; }
.tcjit table { border-collapse: collapse; font-size: 13px; }
.tcjit td, .tcjit th { padding: 2px 14px 2px 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }
.tcjit td.n { text-align: right; } .tcjit pre, .tcjit code { font: 13px ui-monospace, monospace; background: none; }
.tcjit .card { display: inline-block; margin: 0 18px 6px 0; } .tcjit .card b { display: block; font-size: 17px; }
.tcjit .word { color: #2563c9; } .tcjit .comment { color: #6b7280; } .tcjit .number { color: #b45309; } .tcjit .soft { color: #6b7280; }
"""
_KEYWORDS = (
    "def where in exists min max true false bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 half"
    " float double"
)
_TOKEN = re.compile(
    rf"(?P<comment>#[^\n]*)|(?P<word>\b(?:{'|'.join(_KEYWORDS.split())})\b)|(?P<number>\b[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)|\w+|.", re.DOTALL
)


def fragment(*parts: str) -> str:
    """Pieces of HTML as what ``_repr_html_`` returns."""
    return f'<div class="tcjit"><style>{_STYLE}</style>{"".join(parts)}</div>'


def heading(text: str) -> str:
    return f"<p><b>{escape(text)}</b></p>"


def listing(text: str) -> str:
    """A program, highlighted.

    >>> listing("Y(i) = 2  # <twice>")
    '<pre>Y(i) = <span class="number">2</span>  <span class="comment"># &lt;twice&gt;</span></pre>'
    """
    pieces = (f'<span class="{m.lastgroup}">{escape(m[0])}</span>' if m.lastgroup else escape(m[0]) for m in _TOKEN.finditer(text))
    return f"<pre>{''.join(pieces)}</pre>"


def code(value: object) -> str:
    return f"<code>{escape(str(value))}</code>"


def facts(values: Mapping[str, object]) -> str:
    """Names with their values."""
    return table(("", ""), [[escape(name), escape(str(value))] for name, value in values.items()])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), long: Sequence[int] = ()) -> str:
    """A table of cells that are HTML; ``numbers`` and ``long`` are columns of numbers, and of texts that may wrap."""
    kinds = ["n" if n in numbers else "long" if n in long else "" for n in range(len(heads))]
    marks = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(f"<th{mark}>{escape(head)}</th>" for mark, head in zip(marks, heads)) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'
