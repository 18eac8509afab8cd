"""C text that knows its precedence, so that operators are parenthesised where they must be, and only there."""
from __future__ import annotations

from enum import IntEnum

SMALLEST_VECTOR = 4  # elements


def stack_array(element: str, name: str, elements: int) -> list[str]:
    """The declaration of an array on the stack, on the boundary of a line, that loops over lanes write and vectors are loaded from.

    gcc (seen with 12.2) may reach it by the pointer into another array, of which a vector is loaded under a mask. It then believes that
    what is stored so is not in this one, and loads from it before it is written; through a pointer that may be any it does not.
    """
    if elements < SMALLEST_VECTOR:  # which stay in registers
        return [f"{element} {name}[{elements}] __attribute__((aligned(64)));"]
    array = f"tc_array_{name}"  # no tensor is called so
    return [f"{element} {array}[{elements}] __attribute__((aligned(64)));", f"{element} *{name} = {array};", f'__asm__("" : "+r"({name}));']


class Precedence(IntEnum):
    """How tightly the outermost operator of a text binds."""

    CHOICE = 1  # ?:
    EITHER = 2  # ||
    BOTH = 3  # &&
    OR = 4  # |
    AND = 5  # &
    EQUAL = 6
    ORDER = 7
    SUM = 8
    PRODUCT = 9
    PREFIX = 10
    ATOM = 11


OPERATORS = {
    **dict.fromkeys(("*", "/", "%"), Precedence.PRODUCT),
    **dict.fromkeys(("+", "-"), Precedence.SUM),
    **dict.fromkeys(("<", ">", "<=", ">="), Precedence.ORDER),
    **dict.fromkeys(("==", "!="), Precedence.EQUAL),
    "&": Precedence.AND,
    "|": Precedence.OR,
    "&&": Precedence.BOTH,
    "||": Precedence.EITHER,
}
# What an operand must be to stand bare. Compilers warn of (and readers stumble over) && within ||, and comparisons within | & ==.
_BARE = {
    Precedence.EITHER: Precedence.EQUAL,
    Precedence.BOTH: Precedence.EQUAL,
    Precedence.OR: Precedence.SUM,
    Precedence.AND: Precedence.SUM,
    Precedence.EQUAL: Precedence.SUM,
    Precedence.ORDER: Precedence.SUM,
    Precedence.SUM: Precedence.PRODUCT,
    Precedence.PRODUCT: Precedence.PREFIX,
}


class Text(str):
    """C text with the level of its outermost operator; ``literal`` is the value of one that is a plain integer."""

    level: Precedence
    literal: int | None

    def __new__(cls, text: str, level: Precedence, literal: int | None = None) -> Text:
        made = super().__new__(cls, text)
        made.level = level
        made.literal = literal
        return made

    def at(self, level: Precedence) -> str:
        """As the operand of something that takes operands of this level and above."""
        return str(self) if self.level >= level else f"({self})"


def atomic(text: str) -> Text:
    """A text of unknown make: an operand as it stands when only brackets hold operators, else parenthesised.

    >>> atomic("A[i + 1]"), atomic("a + b"), atomic("(a) + (b)"), atomic("-x")
    ('A[i + 1]', '(a + b)', '((a) + (b))', '(-x)')
    """
    if isinstance(text, Text):
        return text
    depth = 0
    for letter in text:
        depth += letter in "([{"
        depth -= letter in ")]}"
        if depth == 0 and not (letter.isalnum() or letter in "_.)]}"):
            return Text(f"({text})", Precedence.ATOM)
    return Text(text, Precedence.ATOM)


def call(name: str, *arguments: str) -> Text:
    return Text(f"{name}({', '.join(arguments)})", Precedence.ATOM)


def prefixed(operator: str, operand: Text) -> Text:
    """A unary operator or a cast before its operand.

    >>> prefixed("-", Text("-x", Precedence.PREFIX)), prefixed("(float)", Text("a + b", Precedence.SUM))
    ('-(-x)', '(float)(a + b)')
    """
    inner = operand.at(Precedence.PREFIX)
    return Text(f"{operator}({inner})" if operator == "-" and inner.startswith("-") else operator + inner, Precedence.PREFIX)


def join(operator: str, left: Text, right: Text) -> Text:
    """A binary operation; operators associate to the left.

    >>> a, b = atomic("a"), atomic("b")
    >>> join("*", join("+", a, b), b), join("-", join("-", a, b), join("-", a, b)), join("||", join("&&", a, b), join("<", a, b))
    ('(a + b) * b', 'a - b - (a - b)', '(a && b) || a < b')
    """
    level = OPERATORS[operator]
    chain = left.level == level and level not in (Precedence.EQUAL, Precedence.ORDER)
    return Text(f"{left.at(level if chain else _BARE[level])} {operator} {right.at(_BARE[level])}", level)


def choose(condition: Text, then: Text, other: Text) -> Text:
    """``condition ? then : other``, of which the last may be another choice."""
    return Text(f"{condition.at(Precedence.EITHER)} ? {then.at(Precedence.EITHER)} : {other.at(Precedence.CHOICE)}", Precedence.CHOICE)
