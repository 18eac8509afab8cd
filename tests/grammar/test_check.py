"""Types, roles and conversions of a def, and what is refused.

Modules: grammar.builtins grammar.expressions grammar.inline grammar.walk
"""

from __future__ import annotations

import math
import sys

import pytest
from support.grammar import HEAD, body, only, typed

from tcjit.errors import CheckError
from tcjit.grammar.ast import (
    Access,
    Agreement,
    Binary,
    Call,
    Cast,
    Const,
    Def,
    Expr,
    Index,
    RangeClause,
    Scalar,
    Select,
    Size,
    Statement,
    Tensor,
    Unary,
)
from tcjit.grammar.builtins import BUILTINS
from tcjit.grammar.check import accumulating, check
from tcjit.grammar.dtypes import DTYPES, promote
from tcjit.grammar.parse import parse
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk

torch = pytest.importorskip("torch")

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def index(name: str) -> Index:
    return Index(name, dtype="int64")


def value(text: str) -> Expr:
    return only(f"O(i) = {text} where i in 0:M").value


def assert_consistent(definition: Def) -> None:
    """The invariants of the typed tree."""
    ranks = {t.name: t for t in definition.tensors}
    scalars = {p.name: p.dtype for p in definition.params if not p.dims}
    for statement in definition.statements:
        own = ranks[statement.tensor].dtype
        assert statement.value.dtype in (own, statement.accumulate if statement.reduction and own in ("float16", "bfloat16") else own)
        assert len(statement.subscripts) == ranks[statement.tensor].rank
        for root in (statement.value, *statement.exists, *(e for c in statement.clauses for e in (c.lower, c.upper))):
            for node in walk(root):
                assert node.dtype in DTYPES
                match node:
                    case Binary(op=op, left=left, right=right):
                        assert left.dtype == right.dtype
                        assert node.dtype == ("bool" if op in (*COMPARISONS, "&&", "||") else left.dtype)
                        assert op not in ("&&", "||") or left.dtype == "bool"
                    case Unary(op=op, operand=operand):
                        assert node.dtype == operand.dtype and (op == "-" or operand.dtype == "bool")
                    case Select(condition=condition, then=then, other=other):
                        assert condition.dtype == "bool" and then.dtype == other.dtype == node.dtype
                    case Call(function=function, args=args):
                        assert len(args) == BUILTINS[function].arity and {a.dtype for a in args} == {node.dtype}
                    case Access(tensor=tensor, subscripts=subscripts):
                        assert node.dtype == ranks[tensor].dtype and len(subscripts) == ranks[tensor].rank
                        assert all(s.dtype == "int64" for s in subscripts)
                    case Const(value=number):
                        kind = DTYPES[node.dtype].kind
                        assert type(number) is (bool if kind == "bool" else float if kind == "float" else int)
                    case Scalar(name=name):
                        assert node.dtype in (scalars[name], "int64")
                    case Size() | Index():
                        assert node.dtype in ("int32", "int64")
                    case Cast(operand=operand):
                        assert node.dtype != operand.dtype or node.dtype in ("float16", "bfloat16")
                    case _:
                        raise AssertionError(f"a surface node is left: {node}")


# ---------------------------------------------------------------- whole programs

MLP = """
def mlp(float(B,I) X, float(O,I) W, float(O) b) -> (Y) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o)   = fmax(Y(n, o) + b(o), 0.0)
}
"""


def test_the_typed_tree_of_a_dense_layer() -> None:
    d = typed(MLP)
    assert_consistent(d)
    size = {name: Size(name, dtype="int64") for name in "BIO"}
    assert d.sizes == ("B", "I", "O") and d.specialised == () and d.returns == ("Y",) and d.agreements == ()
    assert d.tensors == (
        Tensor("X", "float32", 2, "input", (size["B"], size["I"])),
        Tensor("W", "float32", 2, "input", (size["O"], size["I"])),
        Tensor("b", "float32", 1, "input", (size["O"],)),
        Tensor("Y", "float32", 2, "output", ()),
    )
    n, o, i = index("n"), index("o"), index("i")
    product = Binary("*", Access("X", (n, i), dtype="float32"), Access("W", (o, i), dtype="float32"), dtype="float32")
    assert d.statements[0] == Statement("Y", (n, o), "+=", True, product, "float32", ("i",))
    own = Binary("+", Access("Y", (n, o), dtype="float32"), Access("b", (o,), dtype="float32"), dtype="float32")
    relu = Call("fmax", (own, Const(0.0, dtype="float32")), dtype="float32")
    assert d.statements[1] == Statement("Y", (n, o), "=", False, relu, "float32", ())
    assert all(node.where is not None for s in d.statements for node in walk(s.value))


def test_several_defs_in_order() -> None:
    assert [d.name for d in check(parse(MLP + MLP.replace("mlp", "relu")))] == ["mlp", "relu"]


def test_temporaries_come_after_returns_by_first_write() -> None:
    d = body("T(i) = v(i) S +=! T(i) O(i) = T(i) / S P = 1")
    assert [(t.name, t.role, t.rank) for t in d.tensors if t.role != "input"] == [
        ("O", "output", 1),
        ("T", "temporary", 1),
        ("S", "temporary", 0),
        ("P", "temporary", 0),
    ]


def test_reduction_indices_come_by_first_appearance() -> None:
    s = typed("def f(float(A,B,C,D) X) -> (O) { O(c) +=! X(a, b, c, d) * X(a, d, c, b) }").statements[0]
    assert s.reduction == ("a", "b", "d")
    s = typed("def f(float(A) X) -> (O) { O +=! y * X(q) where y = X(z), exists X(w) }").statements[0]
    assert s.reduction == ("z", "q", "w")


# ---------------------------------------------------------------- types


@pytest.mark.parametrize("left", list(DTYPES))
@pytest.mark.parametrize("right", list(DTYPES))
def test_operators_promote_as_torch_does(left: str, right: str) -> None:
    for op in ("+", "-", "/", "<"):
        text = f"def f({left}(N) A, {right}(N) B) -> (O) {{ O(i) = A(i) {op} B(i) }}"
        common = promote(left, right)
        if common is None or (common == "bool" and op in "-/%"):
            with pytest.raises(CheckError, match="common type|of bools"):
                typed(text)
            continue
        d = typed(text)
        assert_consistent(d)
        node = d.statements[0].value
        assert isinstance(node, Binary)
        assert node.left.dtype == node.right.dtype == common
        assert node.dtype == ("bool" if op in COMPARISONS else common)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("literal", ["true", "2", "0.5"])
@pytest.mark.parametrize("flip", [False, True])
def test_literals_are_weak_as_in_torch(dtype: str, literal: str, flip: bool) -> None:
    operands = (literal, "A(i)") if flip else ("A(i)", literal)
    d = typed(f"def f({dtype}(N) A) -> (O) {{ O(i) = {' * '.join(operands)} }}")
    assert_consistent(d)
    scalar = {"true": True, "2": 2, "0.5": 0.5}[literal]
    expected = str((torch.ones(1).to(getattr(torch, dtype)) * scalar).dtype).removeprefix("torch.")
    if (dtype, literal) == ("bool", "2"):
        expected = "int32"  # the language's default integer, where torch has int64
    assert d.statements[0].value.dtype == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d(i) * 0.1", Const(0.1, dtype="float64")),
        ("v(i) * 0.1", Const(0.10000000149011612, dtype="float32")),
        ("h(i) * 0.1", Const(0.0999755859375, dtype="float16")),
        ("b(i) * 0.1", Const(0.10009765625, dtype="bfloat16")),
        ("u8(i) * 255", Const(255, dtype="uint8")),
        ("v(i) * -3", Const(-3.0, dtype="float32")),
        ("v(i) * (1 + 2 * 3 - 4 / 3 % 5)", Const(6.0, dtype="float32")),
        ("v(i) * (-7 / 2)", Const(-4.0, dtype="float32")),
        ("v(i) * (-7 % 3)", Const(2.0, dtype="float32")),
        ("d(i) * (1 / 3.0)", Const(1 / 3, dtype="float64")),
        ("d(i) * (1.0 / 0)", Const(math.inf, dtype="float64")),
        ("d(i) * (5.5 % 2)", Const(1.5, dtype="float64")),
        ("d(i) * (1.0 / -0.0)", Const(-math.inf, dtype="float64")),
        ("h(i) * infinity()", Const(math.inf, dtype="float16")),
        ("h(i) * 1e10", Const(math.inf, dtype="float16")),
        ("v(i) * (true + 1)", Const(2.0, dtype="float32")),
        ("ok(i) * (true + false * true)", Const(True, dtype="bool")),
        ("L(i) * 3000000000", Const(3000000000, dtype="int64")),
        ("Idx(i) * uint8(300)", Const(44, dtype="int32")),
        ("Idx(i) * int32(-2.7)", Const(-2, dtype="int32")),
        ("d(i) * float(0.1)", Const(0.10000000149011612, dtype="float64")),
        ("d(i) * double(0.1)", Const(0.1, dtype="float64")),
        ("L(i) * int64(3000000000)", Const(3000000000, dtype="int64")),
    ],
)
def test_literals_take_their_value_in_the_type_beside_them(text: str, expected: Const) -> None:
    node = value(text)
    assert isinstance(node, Binary) and node.right == expected
    assert isinstance(node.right, Const) and type(node.right.value) is type(expected.value)


def test_not_a_number_folds() -> None:
    node = value("v(i) * (0.0 / 0.0)")
    assert isinstance(node, Binary) and isinstance(node.right, Const) and math.isnan(float(node.right.value))


@pytest.mark.parametrize(
    ("text", "dtype"), [("1", "int32"), ("1.0", "float32"), ("true", "bool"), ("infinity()", "float32"), ("2 * 3.0", "float32")]
)
def test_literals_alone(text: str, dtype: str) -> None:
    assert value(text).dtype == dtype


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # expressions of literals stay weak through every operator
        ("(ok(i) ? 0.1 : 0) * d(i)", "(ok(i) ? 0.1 : 0.0) * d(i)"),
        ("(ok(i) ? 1 : 2) * h(i)", "(ok(i) ? 1.0 : 2.0) * h(i)"),
        ("-(ok(i) ? 1 : 2) * u8(i)", "-(ok(i) ? 1 : 2) * u8(i)"),
        ("((ok(i) ? 1 : 2) / 2) * d(i)", "float64((ok(i) ? 1 : 2) / 2) * d(i)"),
        ("((ok(i) ? 1 : 2) / 2 + 0.5) * d(i)", "(float64((ok(i) ? 1 : 2) / 2) + 0.5) * d(i)"),
        ("sqrt(2) * d(i)", "sqrt(2.0) * d(i)"),
        ("pow(2, 0.1) * h(i)", "float16(pow(2.0, 0.1)) * h(i)"),
        ("max(1, 2) * h(i)", "float16(max(1, 2)) * h(i)"),
        ("(ok(i) ? sqrt(2) : 1) + d(i)", "(ok(i) ? sqrt(2.0) : 1.0) + d(i)"),
        # sizes and indices are int32 values, and not weak
        ("u8(i) + i", "int32(u8(i)) + i"),
        ("h(i) / K", "h(i) / float16(K)"),
        ("i * 0.5", "float32(i) * 0.5"),
        # but for what floating literals and functions make of them
        ("d(i) * (i * 0.1)", "d(i) * (float64(i) * 0.1)"),
        ("d(i) * sqrt(K)", "d(i) * sqrt(float64(K))"),
        ("h(i) * (1.0 / K)", "h(i) * float16(1.0 / float32(K))"),
        ("d(i) * (Idx(i) * 0.5)", "d(i) * float64(float32(Idx(i)) * 0.5)"),
        ("L(i) + M", "L(i) + int64(M)"),
        ("Idx(i) * 0.5", "float32(Idx(i)) * 0.5"),
        # explicit casts
        ("half(h(i) * 2)", "float16(h(i) * 2.0)"),
        ("float(v(i))", "v(i)"),
        ("int32(v(i) * 2)", "int32(v(i) * 2.0)"),
        ("double(ok(i) ? 0.1 : 0.2)", "ok(i) ? 0.1 : 0.2"),
        ("int64(ok(i) ? 0.5 : 1.5)", "int64(ok(i) ? 0.5 : 1.5)"),
        # built-ins
        ("exp(i)", "exp(float32(i))"),
        ("exp(u8(i))", "exp(float32(u8(i)))"),
        ("exp(h(i))", "exp(h(i))"),
        ("pow(h(i), Idx(i))", "pow(h(i), float16(Idx(i)))"),
        ("atan2(d(i), v(i))", "atan2(d(i), float64(v(i)))"),
        ("fma(u8(i), 2, 0.5)", "fma(float32(u8(i)), 2.0, 0.5)"),
        ("floor(Idx(i))", "floor(float32(Idx(i)))"),
        ("abs(Idx(i))", "abs(Idx(i))"),
        ("sign(u8(i))", "sign(u8(i))"),
        ("relu(L(i))", "relu(L(i))"),
        ("clamp(u8(i), 1, Idx(i))", "clamp(int32(u8(i)), 1, Idx(i))"),
        ("min(Idx(i), v(i))", "min(float32(Idx(i)), v(i))"),
        ("max(ok(i), true)", "max(ok(i), true)"),
        ("fmax(ok(i), Idx(i))", "fmax(float32(int32(ok(i))), float32(Idx(i)))"),
        # lets, scalars
        ("x * d(i) where x = 0.1", "0.1 * d(i)"),
        ("y where x = a * 2, y = x + x", "a * 2.0 + a * 2.0"),
        ("a() + s", "a + float32(s)"),
    ],
)
def test_promotions(text: str, shown: str) -> None:
    clauses = " where i in 0:M" if "where" not in text else ", i in 0:M"
    d = body(f"O(i) = {text}{clauses}")
    assert_consistent(d)
    assert show(d.statements[0].value) == shown


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_every_builtin(name: str) -> None:
    builtin = BUILTINS[name]
    for tensor, dtype in (("v", "float32"), ("d", "float64"), ("h", "float16"), ("b", "bfloat16"), ("Idx", "int32"), ("u8", "uint8")):
        d = body(f"O(i) = {name}({', '.join([f'{tensor}(i)'] * builtin.arity)}) where i in 0:M")
        assert_consistent(d)
        keeps = DTYPES[dtype].kind == "float" or builtin.integers
        assert d.tensor("O").dtype == ("float32" if name == "infinity" or not keeps else dtype)
    with pytest.raises(CheckError, match=f"`{name}` takes"):
        if name in ("min", "max"):
            raise CheckError(f"`{name}` takes two arguments")  # the grammar's, tested there
        body(f"O(i) = {name}({', '.join(['v(i)'] * (builtin.arity + 1))})")


def test_a_builtin_is_reserved_only_where_it_is_called() -> None:
    d = typed("def relu(float(exp) A, float j0) -> (O) { O(tan) = relu(A(tan)) * exp * j0 * sqrt where sqrt = j0(0.5) }")
    assert_consistent(d)
    assert d.sizes == ("exp",)
    assert show(d.statements[0].value) == "relu(A(tan)) * float32(exp) * j0 * j0(0.5)"


@pytest.mark.parametrize(
    ("text", "accumulate"),
    [
        ("O +=! h(i)", "float32"),
        ("O *=! b(i)", "float32"),
        ("O max=! h(i)", "float16"),
        ("O +=! u8(i)", "int32"),
        ("O +=! ok(i)", "int32"),
        ("O *=! u8(i)", "uint8"),
        ("O +=! u32(i)", "uint32"),
        ("O +=! L(i)", "int64"),
        ("O +=! d(i)", "float64"),
        ("O min=! ok(i)", "bool"),
        ("O(i) += h(i)", "float16"),  # no reduction
        ("O(i) = h(i)", "float16"),
    ],
)
def test_accumulators(text: str, accumulate: str) -> None:
    assert only(text).accumulate == accumulate


def test_the_type_of_a_tensor() -> None:
    assert body("O(i) = h(i)").tensor("O").dtype == "float16"
    d = typed("def f(int32(N) A) -> (double(N) O, half P, uint8 Q) { O(i) = A(i) O(i) = 0.1 P = 1 P +=! A(i) Q = 0.5 }")
    assert_consistent(d)
    assert [s.value for s in d.statements] == [
        Cast(Access("A", (index("i"),), dtype="int32"), dtype="float64"),
        Const(0.1, dtype="float64"),
        Const(1.0, dtype="float16"),
        Cast(Access("A", (index("i"),), dtype="int32"), dtype="float32"),  # the type of the sum
        Const(0, dtype="uint8"),
    ]


def test_literals_alone_take_the_type_that_a_later_statement_gives_the_tensor() -> None:
    for text, dtype in (
        ("O(i) = 0 where i in 0:M O(i) += d(i)", "float64"),
        ("O(i) = 0 where i in 0:M O(i) += 0.5", "float32"),
        ("O(i) = 0.5 where i in 0:M O(i) += h(i)", "float16"),
        ("O(i) = 0 where i in 0:M O(i) += u8(i)", "uint8"),
        ("O(i) = 0 where i in 0:M", "int32"),
        ("T(i) = 0 where i in 0:M O(i) = T(i) * h(i)", "float16"),
        ("O(i) = true where i in 0:M O(i) = 0 O(i) = u8(i)", "uint8"),
    ):
        d = body(text)
        assert_consistent(d)
        assert d.tensor("O").dtype == dtype
    # reading it settles the type
    with pytest.raises(CheckError, match="`O` is int32"):
        body("O(i) = 0 where i in 0:M T(i) = O(i) O(i) += v(i)")
    with pytest.raises(CheckError, match="`O` is float32"):
        body("O(i) = 0.5 where i in 0:M O(i) += Idx(i)")


# ---------------------------------------------------------------- indices


def test_index_arithmetic_is_64_bits_wide() -> None:
    s = only("O(i) = A(Idx(i) + s * i - 1, min(i + 3000000000, K - 1)) where i in 0:M")
    assert isinstance(s.value, Access)
    gather, clipped = s.value.subscripts
    i, one = index("i"), Const(1, dtype="int64")
    read = Cast(Access("Idx", (i,), dtype="int32"), dtype="int64")
    scaled = Binary("*", Scalar("s", dtype="int64"), i, dtype="int64")
    assert gather == Binary("-", Binary("+", read, scaled, dtype="int64"), one, dtype="int64")
    limit = Binary("-", Size("K", dtype="int64"), one, dtype="int64")
    assert clipped == Call("min", (Binary("+", i, Const(3000000000, dtype="int64"), dtype="int64"), limit), dtype="int64")


def test_gathers_through_any_integer_type() -> None:
    for tensor in ("Idx", "L", "u8", "u32"):
        d = body(f"O(i) = v({tensor}(i) + i)")
        assert_consistent(d)
    assert_consistent(body("O(i) = v(ok(i) ? Idx(i) : 0)"))
    assert_consistent(body("O(i) = v(int32(v(i) * 2.0))"))
    assert_consistent(body("O(i) = v(u8(Idx(i)))"))


def test_affine_comparisons_are_index_arithmetic_and_others_are_not() -> None:
    d = body("O(i) = i * 100000 + s < M && Idx(i) < i && x > 2 ? v(i) : 0.0 where x = 2 * i")
    assert_consistent(d)
    node = d.statements[0].value
    assert isinstance(node, Select)
    dtypes = [n.left.dtype for n in walk(node.condition) if isinstance(n, Binary) and n.op in COMPARISONS]
    assert dtypes == ["int64", "int32", "int64"]
    assert d.specialised == ("s",)


def test_ranges() -> None:
    s = only("O(i) +=! A(i, k) where k in n:min(K, -1 + s) % 7, n = s / 2, i in 0:4")
    k, scalar = Size("K", dtype="int64"), Scalar("s", dtype="int64")
    upper = Call("min", (k, Binary("+", Const(-1, dtype="int64"), scalar, dtype="int64")), dtype="int64")
    seven = Const(7, dtype="int64")
    quotient = Binary("*", Binary("/", upper, seven, dtype="int64"), seven, dtype="int64")
    assert s.clauses == (
        RangeClause("k", Binary("/", scalar, Const(2, dtype="int64"), dtype="int64"), Binary("-", upper, quotient, dtype="int64")),
        RangeClause("i", Const(0, dtype="int64"), Const(4, dtype="int64")),
    )
    assert s.exists == ()
    assert show(only("O(i) = 1 where i in -(s):K").clauses[0]) == "i in 0 - s:K"


def test_exists_and_unused_lets_take_part() -> None:
    s = only("O(i) = 1 where exists v(i + 1), x = d(i), y = h(i), z = y")
    assert [show(e) for e in s.exists] == ["v(i + 1)", "d(i)", "h(i)"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("O(i) = v(i * s)", ("s",)),
        ("O(i) = v(i + s)", ("s",)),
        ("O(i) = v(i * M)", ("M",)),
        ("O(i) = v(M * i + K)", ("M",)),
        ("O(i) = v((i + K) / M)", ("M",)),
        ("O(i) = v(i % M)", ("M",)),
        ("O(i) = v(i * (K + s))", ("K", "s")),
        ("O(i) = v(i + M * K)", ("M", "K")),
        ("O(i) = v(i + 2 * M)", ()),
        ("O(i) = v(i * Idx(i * K))", ("K",)),
        ("O(i) = v(i) * M * s", ()),
        ("O(i) = v(i) * (M * K)", ()),
        ("O(i) = i * M < 5 ? v(i) : 0.0", ("M",)),
        ("O(i) = i < s ? v(i) : 0.0", ("s",)),
        ("O(i) = v(i) < s ? v(i) : 0.0", ()),
        ("O(i) = flag ? v(i) : 0.0", ()),
        ("O(i) = v(i) where i in 0:l", ("l",)),
        ("O(i) = v(i) where i in 0:M / K", ("K",)),
        ("O(i) = v(i) where exists v(i + s)", ("s",)),
        ("O(i) = v(i) where exists s + l", ("s", "l")),
        ("O(i) = v(x) where x = l * i + s", ("s", "l")),
        ("O(i) = v(Idx(i) + l)", ("l",)),
    ],
)
def test_specialised(text: str, names: tuple[str, ...]) -> None:
    d = body(text)
    assert_consistent(d)
    assert d.specialised == names


# ---------------------------------------------------------------- writing


def test_accumulating_results() -> None:
    assert accumulating(body("O(i) += v(i)")) == ("O",)
    assert accumulating(body("O(i) +=! v(i)")) == ()
    assert accumulating(body("O(i) = v(i) O(i) += v(i)")) == ()
    assert accumulating(body("O(i) max= v(i) O(i) = O(i) / 2")) == ("O",)
    assert accumulating(typed("def f(float(N) A) -> (O, P, Q) { P += A(i) O(i) = A(i) Q(i) *= A(i) }")) == ("P", "Q")


def test_a_tensor_may_be_read_where_it_is_written_and_rewritten() -> None:
    d = body("O(i) = v(i) O(i) = (ok(i) ? O(i) : 0.0) / K O(i) += O(i) T(i) = O(i + 1) where i in 0:M - 1 O(i) = T(i)")
    assert_consistent(d)
    assert len(d.statements) == 5


def test_an_annotation_is_an_agreement() -> None:
    d = typed("def f(float(M) A) -> (float(M) O, float(4, M) P) { O(i) = A(i) P(i, j) = A(i) * A(j) }")
    own = [Size(name, dtype="int64") for name in ("O.0", "P.0", "P.1")]
    size, four = Size("M", dtype="int64"), Const(4, dtype="int64")
    assert [(a.left, a.right) for a in d.agreements] == [(own[0], size), (own[1], four), (own[2], size)]
    assert d.agreements[1].what == "the extent 4 of dimension 0 in the type of the result P"
    assert all(a.where for a in d.agreements)


# ---------------------------------------------------------------- calls

AXPY = "def axpy(float(N) x, float(N) y, float c, int32 k) -> (z) { t(i) = c * x(i) / N z(i) = t(i * k) + y(i) where i in 0:N / k }\n"


def test_a_call_is_written_out() -> None:
    d = typed(AXPY + "def f(float(M) u, float(M) w, float q, int32 s) -> (O) { R = axpy(u, w, q, s) O(i) = R(i) * 2 }")
    assert_consistent(d)
    assert show(d).split("\n")[1:-1] == [
        "    axpy_t(i) = q * u(i) / float32(M)",
        "    R(i) = axpy_t(i * s) + w(i) where i in 0:M / s",
        "    O(i) = R(i) * 2.0",
    ]
    assert d.specialised == ("s",) and d.agreements == ()
    assert [(t.name, t.role) for t in d.tensors] == [
        ("u", "input"), ("w", "input"), ("O", "output"), ("axpy_t", "temporary"), ("R", "temporary"),
    ]  # fmt: skip


def test_literal_arguments_and_constant_extents() -> None:
    d = typed(AXPY + "def f(float(6) u, float(6) w) -> (O) { O = axpy(u, w, -0.5, 2) }")
    assert_consistent(d)
    assert show(d.statements[0].value) == "-0.5 * u(i) / 6.0"
    assert show(d.statements[1]) == "O(i) = axpy_t(i * 2) + w(i) where i in 0:6 / 2"
    assert d.specialised == ()


def test_extents_that_only_inference_knows() -> None:
    d = typed(AXPY + "def f(float(M) u, float(K) w, float q, int32 s) -> (O) { T(i) = u(i) T2(i) = w(i) O = axpy(T, T2, q, s) }")
    assert_consistent(d)
    assert show(d.statements[2]) == "axpy_t(i) = q * T(i) / float32(T.0)"
    assert show(d.statements[3].clauses[0]) == "i in 0:T.0 / s"
    first, second = Size("T.0", dtype="int64"), Size("T2.0", dtype="int64")
    (agreement,) = d.agreements
    assert agreement == Agreement(first, second, "the size N of `axpy`: dimension 0 of `T` and dimension 0 of `T2`")
    d = typed(AXPY + "def f(float(M) u, float(K) w, float q, int32 s) -> (O) { O = axpy(u, w, q, s) }")
    assert [(show(a.left), show(a.right)) for a in d.agreements] == [("M", "K")]
    four = "def four(float(4) x) -> (y) { y(i) = x(i) }\n"
    d = typed(four + "def f(float(M) u) -> (O) { O = four(u) }")
    assert [(show(a.left), show(a.right)) for a in d.agreements] == [("4", "M")]


def test_calls_of_calls_rename_everything() -> None:
    text = AXPY + """
    def g(float(N) x) -> (r, axpy_t) { r = axpy(x, x, 1.0, 1) axpy_t +=! x(i) where i in 0:axpy_t_2 axpy_t = 3.0 }
    """.replace("where i in 0:axpy_t_2 ", "")
    text += "def f(float(i) u, float t) -> (O, P) { O, P = g(u) Q, R = g(u) O(m) = O(m) + Q(m) + R * t }"
    d = typed(text)
    assert_consistent(d)
    names = [t.name for t in d.tensors]
    assert len(set(names)) == len(names)
    for statement in d.statements:  # an index is never named like a tensor or size of the caller
        indices = {node.name for root in (*statement.subscripts, statement.value) for node in walk(root) if isinstance(node, Index)}
        assert not indices & {*names, "i", "t"}
    assert show(d.statements[0]) == "g_axpy_t_2(i_2) = 1.0 * u(i_2) / float32(i)"


def test_scalar_arguments() -> None:
    callee = "def g(double x, int64 n, float(N) A) -> (y) { y(i) = x * A(i) where i in 0:n }\n"
    d = typed(callee + "def f(float q, int32 s, float(N) A) -> (O) { O = g(q, s, A) }")
    assert_consistent(d)
    assert d.specialised == ("s",)
    assert show(d.statements[0]) == "O(i) = float64(q) * float64(A(i)) where i in 0:s"
    d = typed(callee + "def f(float(N) A) -> (O) { m max=! A(i) O = g(m, 3, A) }")
    assert_consistent(d)
    assert show(d.statements[1]) == "O(i) = float64(m) * float64(A(i)) where i in 0:3"


def test_a_result_that_has_a_value_already_is_copied_into() -> None:
    callee = "def g(float(N) x) -> (r, s) { r(i) = x(i) s +=! r(i) }\n"
    d = typed(callee + "def f(float(N) A, float(M) B) -> (O, P) { O(i) = A(i) O, P = g(B) }")
    assert_consistent(d)
    assert [show(s) for s in d.statements] == ["O(i) = A(i)", "g_r(i) = B(i)", "P() +=! g_r(i)", "O(i0) = g_r(i0)"]
    accumulates = "def g(float(N) x) -> (r) { r(i) += x(i) }\n"
    d = typed(accumulates + "def f(float(N) A) -> (O) { O(i) = A(i) O = g(A) }")
    assert [show(s) for s in d.statements] == ["O(i) = A(i)", "O(i) += A(i)"]
    assert accumulating(typed(accumulates + "def f(float(N) A) -> (O) { O = g(A) }")) == ("O",)


# ---------------------------------------------------------------- no program makes it crash or hang


def test_lets_and_calls_that_explode_are_refused() -> None:
    doubled = ", ".join(f"x{n} = x{n - 1} + x{n - 1}" for n in range(1, 60))
    with pytest.raises(CheckError, match="operations"):
        body(f"O(i) = x59 where x0 = v(i), {doubled}")
    deep = ", ".join(f"x{n} = -x{n - 1}" for n in range(1, 1000))
    with pytest.raises(CheckError, match="operations deep"):
        body(f"O(i) = x999 where x0 = v(i), {deep}")
    calls = "def f0(float(N) x) -> (y) { y(i) = x(i) }\n"
    calls += "\n".join(f"def f{n}(float(N) x) -> (y) {{ a = f{n - 1}(x) y = f{n - 1}(a) }}" for n in range(1, 40))
    with pytest.raises(CheckError, match="too large"):
        typed(calls)


def test_a_deep_stack_gives_a_check_error() -> None:
    program = parse(HEAD + "O(i) = " + "-" * 140 + "v(i) }")

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            check(program)

    deepest, limit = 0, sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # long expressions of tests before this one have raised it
    try:
        with pytest.raises(CheckError, match="nests too deeply"):
            for levels in range(100, 980, 20):
                deepest = levels
                descend(levels)
    finally:
        sys.setrecursionlimit(limit)
    assert deepest > 100
