"""Parse errors in human words: what was expected where, and a hint for the mistakes that people make."""
from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tcjit.dataclass import dataclass
from tcjit.errors import ParseError, Where
from tcjit.grammar.ast import Binary, Expr, Name, Number
from tcjit.grammar.dtypes import ALIASES, DTYPES
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

TYPES = (*DTYPES, *ALIASES)
_OTHER_TYPES = {
    "int": "int32", "uint": "uint32", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8", "uchar": "uint8",
    "size_t": "int64", "unsigned": "uint32", "fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "bfloat16",
    "real": "float32", "boolean": "bool", "Tensor": "float32", "tensor": "float32",
}  # fmt: skip
_EXPRESSION = {"NUMBER", "SCALAR", "MIN", "MAX", "TRUE", "FALSE", "MINUS", "NOT"}
_OPERATOR = {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "COMPARE", "AND", "OR", "QMARK"}
_KEYWORDS = {"DEF", "WHERE", "IN", "EXISTS", "MIN", "MAX", "TRUE", "FALSE", "SCALAR"}
_TOKEN_NAMES = {"ID": "a name", "NUMBER": "a number", "SCALAR": "a type", "$END": "the end of the program"}


def where(token: Token, lines: list[str]) -> Where:
    """The place of a token (none of them spans lines) in the text whose lines are given."""
    line, column = token.line or 1, token.column or 1
    return Where(line, column, max(1, len(token)), lines[line - 1].rstrip("\r"))


def left_index(tensor: str, index: Expr) -> ParseError:
    """The error for ``O(i + 1) = ...``."""
    names = [node.name for node in walk(index) if isinstance(node, Name)]
    name = next((name for name in names if name[0].islower()), names[0] if names else "")  # sizes are seldom
    number = index.text if isinstance(index, Number) else ""
    if name:
        hint = f"`{tensor}({name}) = ...`, with `{name}` shifted or scaled on the right instead, and its part of `{tensor}` as its range"
    elif number.isdigit():
        hint = f"a name with a range, as in `{tensor}(at) = ... where at in {number}:{int(number) + 1}`"
    else:
        hint = f"a name with a range, as in `{tensor}(at) = ... where at in 0:1`"
    return ParseError(f"an index of `{tensor}` on the left is a bare name, or reads a tensor", where=index.where, hint=hint)


def chained(items: Sequence[Any], place: Where | None) -> ParseError:
    """The error for ``a < b < c``: operands and comparisons in turn."""
    pairs = [show(Binary(str(items[at]), items[at - 1], items[at + 1])) for at in range(1, len(items), 2)]
    hint = f"`{' && '.join(pairs)}`; where the result of a comparison is compared, parentheses"
    return ParseError("comparisons do not chain", where=place, hint=hint)


@dataclass(frozen=True)
class Context:
    """What surrounds an error: the tokens before it, the offending token (empty at the end), the text from it on."""

    before: tuple[Token, ...]
    text: str
    kind: str
    position: int
    rest: str
    accepts: frozenset[str]

    def back(self, n: int = 1) -> str:
        """The n-th token before the error."""
        return str(self.before[-n]) if len(self.before) >= n else ""

    def recent(self, n: int) -> tuple[str, ...]:
        return tuple(map(str, self.before[-n:]))

    @property
    def touches(self) -> bool:
        """Whether no blank stands before the offending token."""
        return bool(self.before) and self.before[-1].end_pos == self.position

    @property
    def opened(self) -> tuple[int, ...]:
        """Positions in ``before`` of the parentheses still open."""
        stack: list[int] = []
        for position, token in enumerate(self.before):
            if token == "(":
                stack.append(position)
            elif token == ")" and stack:
                stack.pop()
        return tuple(stack)

    @property
    def head(self) -> str:
        """The kind of the token before the innermost open parenthesis."""
        opened = self.opened
        return self.before[opened[-1] - 1].type if opened and opened[-1] else ""

    @property
    def in_body(self) -> bool:
        braces = [token for token in self.before if token in ("{", "}")]
        return bool(braces) and braces[-1] == "{"

    @property
    def wants_value(self) -> bool:
        return "NOT" in self.accepts

    @property
    def wants_name(self) -> bool:
        return "ID" in self.accepts and not self.wants_value


Rule = tuple[Callable[[Context], object], str]  # when, hint; a hint may use {text} and {back}

# Texts that no token matches.
_CHARACTERS: tuple[tuple[str, str], ...] = (
    (r";", "statements need no separator: drop the `;`"),
    (r"[\[\]]", "subscripts are written with parentheses: `A(i, j)`"),
    (r"['\"]", "there are no strings; a comment starts with `#`"),
    (r"&", "`&&` is the logical and; there are no bitwise operators"),
    (r"\|", "`||` is the logical or; there are no bitwise operators"),
    (r"[\^~]", "there are no bitwise operators; a power is `pow(x, y)`"),
    (r"@", "write a product of matrices out: `C(i,j) +=! A(i,k) * B(k,j)`"),
    (r"[−–]", "the minus sign is `-`"),
    (r"[×⋅·∗]", "the product is `*`"),
    (r"(?![0-9])\d", "the digits are 0 to 9"),
    (r"[\ufeff\u200b-\u200f\u2060]", "drop this character, which editors do not show"),
    (r"≤", "write `<=`"),
    (r"≥", "write `>=`"),
    (r"≠", "write `!=`"),
    (r"∞", "write `infinity()`"),
    (r"\d+\.\.", "a half-open range is written `0:K`"),
    (r"0[xXbBoO]\w", "numbers are decimal"),
    (r"\d+_", "write the digits without `_`"),
    (r"\d+\.?\d*([eE][+-]?\d+)?[fFhHlLuU]+\b", "a literal takes the type of what stands beside it; drop the suffix"),
    (r"\d+[A-Za-z]", "a name starts with a letter, and a product needs its `*`"),
    (r"\.\s*[A-Za-z]", "nothing has members here: an extent is a size that a parameter names, as in `float(M, N) A`"),
    (r"\\", "a line needs no continuation mark"),
)

_RULES: tuple[Rule, ...] = (
    (lambda c: c.text == "*" and c.back() == "*" and c.touches, "a power is `pow(x, y)`"),
    (lambda c: c.text == "/" and c.back() == "/", "`/` floors on integers already; for a float, `floor(x / y)`; a comment starts with `#`"),
    (lambda c: c.text == "*" and c.back() == "/" and c.touches, "a comment starts with `#`"),
    (lambda c: re.match(r"[-/%]=", c.rest), "the assignments are `= += +=! *= *=! min= min=! max= max=!`"),
    (lambda c: re.match(r"([+*]|min|max)\s*!=", c.rest), "the `!` comes last: `{text}=!`"),
    (lambda c: re.match(r"(min|max)\s+=", c.rest), "one word: `{text}=` or `{text}=!`"),
    (lambda c: re.match(r"(min|max)\s*\(", c.rest) and "EQUAL" in c.accepts, "`{text}=` and `{text}=!` reduce"),
    (lambda c: c.text == "=" and re.match(r"=\s*[<>]", c.rest), "the comparisons are `< <= > >= == !=`"),
    (lambda c: c.text == ":" and re.match(r":\s*=", c.rest), "an assignment is `=`"),
    (lambda c: c.text == "==" and "EQUAL" in c.accepts, "an assignment is `=`"),
    (lambda c: c.text == "=" and "COMPARE" in c.accepts, "a comparison is `==`; a statement starts with the tensor it writes"),
    (lambda c: {"and", "or", "not"} & {*c.recent(2), c.text}, "write `&&`, `||` and `!`"),
    (lambda c: {"if", "else"} & {*c.recent(2), c.text}, "a choice is written `condition ? then : other`"),
    (lambda c: {"for", "while"} & {*c.recent(2), c.text}, "loops are implied by the indices; a range is given by `where i in 0:N`"),
    (lambda c: {"return", "let", "var"} & {*c.recent(2), c.text}, "results are listed after `->`, and a let stands in a `where` clause"),
    (lambda c: c.recent(2)[-1:] != ("in",) and ("in", "range") in zip(c.recent(12), c.recent(12)[1:]), "a range is written `k in 0:K`"),
    (lambda c: "COLON" in c.accepts and "?" in c.recent(30), "a choice is written `condition ? then : other`"),
    (lambda c: "COLON" in c.accepts and "in" in c.recent(30), "a half-open range is written `k in 0:K`"),
    (lambda c: c.text == ":" and c.in_body and c.opened, "there are no slices: subscript with indices, and give their ranges by `where`"),
    (lambda c: c.text in ("in", "exists") and c.in_body, "ranges, lets and `exists` follow the word `where`"),
    (lambda c: c.back() == "where", "a clause is `k in 0:K`, `x = ...` or `exists A(k)`"),
    (lambda c: c.back() == "{" and c.text == "}", "a def needs at least one statement"),
    (lambda c: c.back() == "," and c.text in (")", "}"), "drop the `,` before it"),
    (lambda c: "ARROW" in c.accepts, "`-> (results)` stands between the parameters and the body"),
    (lambda c: c.back() == "->" and c.text != "(", "the results stand in parentheses: `-> (C)`"),
    (lambda c: c.back() == "->", "a def returns at least one tensor: `-> (C)`"),
    (lambda c: re.match(r"def\s+[A-Za-z_]|$", c.rest) and c.in_body and not c.opened, "the body of a def ends with `}`"),
    (lambda c: c.kind == "SCALAR" and c.in_body and c.wants_name, "a type stands in the results `-> (float(N) C)`, or converts `float(x)`"),
    (lambda c: c.kind in _KEYWORDS and c.wants_name, "`{text}` is a keyword; choose another name"),
    (lambda c: c.kind in _KEYWORDS and c.kind != "DEF" and c.wants_value, "`{text}` is a keyword"),
    (lambda c: c.text == "(" and not c.in_body and c.head == "ID", "the extents belong to the type: `float(M, N) {back}`"),
    (lambda c: c.text == ")" and not c.in_body and c.back() == "(" and c.head == "SCALAR", "a scalar parameter is `float a`"),
    (lambda c: c.text in (",", ")") and not c.in_body and c.wants_name, "each parameter is a type and a name: `float(M, N) A`"),
    (lambda c: c.head in ("MIN", "MAX") and c.text in (",", ")"), "`min` and `max` take two arguments; nest them for more"),
    (lambda c: c.head == "SCALAR" and c.in_body and c.text == ",", "a conversion takes one value"),
    (lambda c: c.text == ")" and not c.opened, "no `(` is open here"),
    (lambda c: c.accepts == {"DEF"}, "a program is a sequence of defs: `def name(float(N) A) -> (B) { B(i) = A(i) }`"),
    (lambda c: not c.in_body and "$END" in c.accepts, "a program is a sequence of defs; is a `}` too early?"),
    (lambda c: c.text in ("+=", "*=", "+=!", "*=!", "min=", "max=") and c.wants_value, "one assignment a statement"),
)  # fmt: skip


def explain(error: UnexpectedInput, text: str, parser: Lark) -> ParseError:
    """The ``ParseError`` for what Lark raised on ``text``."""
    from lark.exceptions import UnexpectedCharacters

    lines = text.split("\n")
    if isinstance(error, UnexpectedCharacters):
        rest = text[error.pos_in_stream :]
        at = Where(error.line, error.column, 1, lines[error.line - 1].rstrip("\r"))
        hint = next((hint for pattern, hint in _CHARACTERS if re.match(pattern, rest)), "")
        word = re.match(r"[\w.]+", rest) if rest[0].isdigit() else None
        found = word.group() if word else rest[0]
        shown = found.isascii() or (found.isprintable() and not found[0].isdigit())
        name = "" if shown else f" ({unicodedata.name(rest[0], f'U+{ord(rest[0]):04X}')})"
        return ParseError(f"`{found}`{name} is no part of the language", where=at, hint=hint)
    context = _context(error, text, parser)
    patterns = {t.name: str(t.pattern.value) for t in parser.terminals}
    expected = _expected(context.accepts, patterns)
    found = f"`{context.text}`" if context.text else "the end of the program"
    if context.text:
        at = where(error.token, lines)  # type: ignore[attr-defined]
    else:
        end = text.rstrip()
        line = end.count("\n")
        at = Where(line + 1, max(1, len(end.split("\n")[-1].rstrip("\r"))), 1, lines[line].rstrip("\r"))
    if context.kind == "ID" and "SCALAR" in context.accepts and not context.wants_value:
        near = difflib.get_close_matches(context.text, TYPES, 1)
        guess = _OTHER_TYPES.get(context.text) or (near[0] if near else "")
        return ParseError(f"unknown type `{context.text}`", where=at, hint=f"`{guess}`" if guess else "one of " + ", ".join(TYPES))
    return ParseError(f"expected {expected}, found {found}", where=at, hint=_hint(context))


def _context(error: UnexpectedInput, text: str, parser: Lark) -> Context:
    from lark.exceptions import UnexpectedToken

    assert isinstance(error, UnexpectedToken)  # the other kind of UnexpectedInput that this parser raises
    token = error.token
    at_end = token.type == "$END"
    position = len(text) if at_end or token.start_pos is None else token.start_pos
    state: Any = error.interactive_parser
    return Context(
        tuple(parser.lex(text[:position])),
        "" if at_end else str(token),
        token.type,
        position,
        text[position:],
        frozenset(state.accepts()),
    )


def _hint(context: Context) -> str:
    for when, hint in _RULES:
        if when(context):
            return hint.replace("{text}", context.text).replace("{back}", context.back())
    if context.opened and (context.kind in ("ID", "$END", "WHERE", "RBRACE", "DEF") or context.text == "="):
        token = context.before[context.opened[-1]]
        return f"close the `(` of line {token.line}, column {token.column}"
    return ""


def _expected(accepts: Iterable[str], patterns: dict[str, str]) -> str:
    """The tokens that could stand here, in words, the longest lists summed up.

    >>> _expected({"ID", "RPAR"}, {"RPAR": ")"})
    'a name or `)`'
    """
    left = set(accepts)
    words = []
    if left >= _EXPRESSION:
        words.append("an expression")
        left -= _EXPRESSION | {"ID", "LPAR"}
    if left >= {"PLUS", "STAR"}:
        words.append("an operator")
        left -= _OPERATOR
    if left >= {"EQUAL", "MIN_INIT"}:
        words.append("an assignment (`=`, `+=!`, ...)")
        left = {name for name in left if not patterns.get(name, "").endswith(("=", "=!", "(?!=)"))}
    words += [_TOKEN_NAMES.get(name) or f"`{patterns[name]}`" for name in sorted(left, key=lambda n: (n not in _TOKEN_NAMES, n))]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
