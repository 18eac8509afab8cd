"""Programs that are wrong, and what the user is told. Every message points into the text, and most say what to try.

Modules: grammar.hints grammar.syntax_errors
"""
from __future__ import annotations

import random
import re

import pytest
from support.grammar import HEAD

from tcjit.errors import CheckError, ParseError, TCError
from tcjit.grammar.check import check
from tcjit.grammar.parse import parse

# what stands between the braces | what the error says | what it suggests ("" for nothing)
SYNTAX = [
    ("", "expected a name, found `}`", "at least one statement"),
    ("O(i) = v(i)**2", "expected an expression, found `*`", "pow(x, y)"),
    ("O(i) = v(i) // 2", "expected an expression, found `/`", "`/` floors on integers"),
    ("O(i) = v(i) /* two */ * 2", "found `*`", "a comment starts with `#`"),
    ("O(i) +!= v(i)", "expected an assignment", "`+=!`"),
    ("O(i) max!= v(i)", "expected an assignment", "`max=!`"),
    ("O(i) -= v(i)", "expected an assignment", "`= += +=! *= *=! min= min=! max= max=!`"),
    ("O(i) min = v(i)", "found `min`", "one word: `min=` or `min=!`"),
    ("O(i) min(v(i))", "found `min`", "`min=` and `min=!` reduce"),
    ("O(i) := v(i)", "found `:`", "an assignment is `=`"),
    ("O(i) == v(i)", "expected an assignment", "an assignment is `=`"),
    ("O(i) = v(i) = 3", "found `=`", "a comparison is `==`"),
    ("O(i) = v(i) =< 3 ? 1 : 2", "found `=`", "`< <= > >= == !=`"),
    ("O(i) += d(i) += v(i)", "found `+=`", ""),
    ("O(i) = += v(i)", "expected an expression, found `+=`", "one assignment"),
    ("O(i) = ok(i) and flag", "found `flag`", "`&&`, `||` and `!`"),
    ("O(i) = (ok(i) or flag)", "found `or`", "`&&`, `||` and `!`"),
    ("O(i) = (not flag)", "found `flag`", "`&&`, `||` and `!`"),
    ("O(i) = v(i) if flag else 0", "found `flag`", "`condition ? then : other`"),
    ("O(i) = flag ? v(i)", "expected `:`", "`condition ? then : other`"),
    ("for i in 0:M O(i) = v(i)", "found `i`", "loops are implied"),
    ("return O", "found `O`", "results are listed after `->`"),
    ("float O(i) = v(i)", "found `float`", "`-> (float(N) C)`"),
    ("O(i) = (v(i)", "found `}`", "close the `(`"),
    ("O(i) = sqrt(v(i) O(i) = 1", "found `O`", "close the `(` of line 2, column 12"),
    ("O(i) = v(i)) * 2", "found `)`", "no `(` is open"),
    ("O(i) = v(i,)", "expected an expression, found `)`", "drop the `,`"),
    ("O(i + 1) = v(i)", "an index of `O` on the left is a bare name", "`O(i) = ...`, with `i` shifted"),
    ("O(K + i) = v(i)", "an index of `O` on the left is a bare name", "`O(i) = ...`, with `i` shifted"),
    ("O(2) = v(i)", "an index of `O` on the left is a bare name", "at in 2:3"),
    ("O[i] = v(i)", "`[` is no part of the language", "`A(i, j)`"),
    ("O(i) = v(i);", "`;` is no part", "no separator"),
    ("O(i) = 'x'", "`'` is no part", "no strings"),
    ("O(i) = ok(i) & flag", "`&` is no part", "`&&`"),
    ("O(i) = ok(i) | flag", "`|` is no part", "`||`"),
    ("O(i) = v(i) ^ 2", "`^` is no part", "pow(x, y)"),
    ("O = A @ B", "`@` is no part", "write a product of matrices out"),
    ("O(i) = v(i) × 2", "`×` is no part", "the product is `*`"),
    ("O(i) = −v(i)", "`−` is no part", "`-`"),
    ("O(i) = v(i) ≤ 2 ? 1 : 0", "`≤` is no part", "`<=`"),
    ("O(i) = π", "`π` is no part", ""),
    ("O(i) = 1.0f * v(i)", "`1.0f` is no part", "drop the suffix"),
    ("O(i) = 2v(i)", "`2v` is no part", "needs its `*`"),
    ("O(i) = 0x10", "`0x10` is no part", "decimal"),
    ("O(i) = 1_000", "`1_000` is no part", "without `_`"),
    ("O(i) = A.T", "`.` is no part", "an extent is a size that a parameter names"),
    ("O(i) = v(i) \\\n + 1", "`\\` is no part", "no continuation"),
    ("O(i) = v(0:3)", "found `:`", "no slices"),
    ("O(i) = v(i) where k in 0..3", "`0..3` is no part", "`0:K`"),
    ("O(i) = v(i) where k in range(0, 3)", "expected `:`", "`k in 0:K`"),
    ("O(i) = v(i) where k in K", "expected `:`", "`k in 0:K`"),
    ("O(i) = v(i) k in 0:3", "found `in`", "follow the word `where`"),
    ("O(i) = v(i) exists v(i)", "found `exists`", "follow the word `where`"),
    ("O(i) = v(i) where", "expected an expression or `exists`", "a clause is"),
    ("O(where) = v(i)", "found `where`", "`where` is a keyword"),
    ("def(i) = v(i)", "found `def`", "`def` is a keyword"),
    ("O(i) = in * 2", "expected an expression, found `in`", ""),
    ("O(i) = min(v(i))", "expected `,`", "two arguments"),
    ("O(i) = max(1, 2, 3)", "found `,`", "two arguments"),
    ("O(i) = int32(v(i), 3)", "found `,`", "one value"),
    ("O, P = v(i) + 1", "several names on the left", "`O, P = f(X, Y)`"),
]

# whole programs
PROGRAMS = [
    ("", "expected `def`, found the end of the program", "a program is a sequence of defs"),
    ("# nothing\n", "expected `def`", "a program is a sequence of defs"),
    ("O(i) = A(i)", "expected `def`, found `O`", "a program is a sequence of defs"),
    ("def", "expected a name, found the end", ""),
    ("def f(float(N) A) { O(i) = A(i) }", "expected `->`", "`-> (results)`"),
    ("def f(float(N) A) -> O { O(i) = A(i) }", "expected `(`, found `O`", "parentheses: `-> (C)`"),
    ("def f(float(N) A) -> () { O(i) = A(i) }", "found `)`", ""),
    ("def f(float(N) A) -> (O) { O(i) = A(i)", "found the end of the program", "ends with `}`"),
    ("def f(float(N) A) -> (O) { O(i) = A(i) }}", "found `}`", "is a `}` too early?"),
    ("def f(float(N) A) -> (O) { O(i) = A(i) def g() -> (O) { O = 1 }", "found `def`", "ends with `}`"),
    ("def f(int A) -> (O) { O = A }", "unknown type `int`", "`int32`"),
    ("def f(flaot A) -> (O) { O = A }", "unknown type `flaot`", "`float`"),
    ("def f(complex64 A) -> (O) { O = A }", "unknown type `complex64`", "one of bool"),
    ("def f(float A(N)) -> (O) { O = A }", "found `(`", "the extents belong to the type: `float(M, N) A`"),
    ("def f(float() A) -> (O) { O = A }", "found `)`", "`float a`"),
    ("def f(float(N)) -> (O) { O = A }", "expected a name, found `)`", "a type and a name"),
    ("def f(float(N) A,) -> (O) { O = A }", "expected a type, found `)`", "drop the `,`"),
    ("def f(float(1.5) A) -> (O) { O = A }", "an extent is a whole number or made of sizes, not 1.5", ""),
    ("def f(float(2 N) A) -> (O) { O = A }", "found `N`", ""),
    ("def f(float(99999999999999999999) A) -> (O) { O = A }", "too large for an extent", ""),
    ("def in(float(N) A) -> (O) { O = A }", "found `in`", "`in` is a keyword"),
    ("def f(float(N) half) -> (O) { O = A }", "found `half`", "`half` is a keyword"),
]

# what stands between the braces, with the parameters of HEAD
MEANING = [
    ("O(i) *=! v(j) where j in 0:i", "the range of `j` names the index `i`", "`j < i ? ... : 1`"),
    ("O(i) max=! v(j) where j in i:M", "the range of `j` names the index `i`", "`j >= i ? ... : -infinity()`"),
    # targets: subscripts of the left side that read tensors
    ("O(Idx(i)) = v(i) where Idx(i) in 0:M", "`=` stores one value, and several may go to the element `Idx(i)` of `O`", "`+=!` adds"),
    ("O(Idx(i)) +=! v(i)", "nothing gives dimension 0 of `O` an extent", "`where Idx(i) in 0:N`, or the type of the result"),
    ("O(Idx(i)) +=! v(i) where Idx(i) in 1:M", "the range of `Idx(i)`, an extent, does not start at 0", "`Idx(i) in 0:...`"),
    ("O(Idx(i)) +=! v(i) where Idx(i) in 0:M, Idx(i) in 0:M", "a second range for `Idx(i)`", "drop one"),
    ("O(Idx(i)) +=! v(i) where Idx(i) in 0:Idx(i)", "the range of `Idx(i)` depends on the tensor `Idx`", "its largest range"),
    ("O(Idx(i)) +=! v(i) where L(i) in 0:M", "no subscript on the left is `L(i)`", "of an index, or of a subscript"),
    ("O(i) = v(i) where Idx(i) in 0:M", "no subscript on the left is `Idx(i)`", ""),
    ("O(i) = v(i) where i + 1 in 0:M", "no subscript on the left is `i + 1`", ""),
    ("O(v(i)) +=! v(i) where v(i) in 0:M", "an index is an integer, and this is float32", "`int32(...)`"),
    ("O(abs(i)) +=! v(i) where abs(i) in 0:M", "`abs(i)` on the left is no index, and reads no tensor", "`O(i) = ...`"),
    ("O(i) = Idx(i) O(O(i)) += 1", "a reduction into `O` reads `O` itself", "a tensor of its own"),
    ("O(i) = v(i) O(Idx(i)) += O(i)", "a reduction into `O` reads `O` itself", "a tensor of its own"),
    ("O(Idx(i), j) +=! v(i) where Idx(i) in 0:M O(Idx(i)) += 1.0", "`O` has 2 dimensions", "agree on its dimensions"),
    # subscripts and names
    ("O(i) = A(i)", "`A` has 2 dimensions, and here is 1 subscript", "`A(i, j)`"),
    ("O(i) = v(i, j)", "`v` has 1 dimension, and here are 2 subscripts", "`v(i)`"),
    ("O = v", "`v` has 1 dimension, and here is no subscript", "`v(i)`"),
    ("O(i) = sqr(v(i))", "undefined tensor or function `sqr`", "`sqrt`"),
    ("O(i) = zzz(v(i))", "undefined tensor or function `zzz`", "tensors: A, B, v"),
    ("O(i) = tanhf(v(i))", "undefined tensor or function `tanhf`", "`tanh`"),
    ("O(i) = a(i)", "`a` is a scalar parameter and takes no subscripts", "`a * ...`"),
    ("O(i) = M(i)", "`M` is a size and takes no subscripts", ""),
    ("O(i) = x(i) * v(i) where x = 3", "`x` is a let and takes no subscripts", ""),
    ("O = f(v)", "the def `f` cannot call itself", "the ones before it"),
    ("O, P = g(v)", "no earlier def is named `g`", "a def stands before"),
    ("O(i) = T(i) T(i) = v(i)", "`T` is read before any statement defines it", "has to write `T`"),
    ("O(i) = O(i) + v(i)", "`O` is read before any statement defines it", "has to write `O`"),
    ("O(i) = v(i) where exists T(i) T(i) = v(i)", "`T` is read before any statement defines it", ""),
    ("O(M) = v(M)", "the index `M` is named like a size", "rename the index"),
    ("O(A) = v(i)", "the index `A` is named like a tensor", "rename the index"),
    ("O(a) = v(a)", "the index `a` is named like a scalar parameter", "rename the index"),
    ("O(T) = v(T) T = 1", "the index `T` is named like a tensor", "rename the index"),
    ("O(i, i) = A(i, i)", "the index `i` stands twice on the left", "a diagonal"),
    ("O(i) = v(i) where M = 3", "the let `M` is named like a size", "rename the let"),
    ("O(i) = v(i) where v = 3", "the let `v` is named like a tensor", "rename the let"),
    ("O(i) = v(i) where i = 3", "the let `i` is named like an index", "rename the let"),
    ("O(i) = v(i) * x where x = 1, x = 2", "a second let `x`", "rename"),
    ("O(i) = v(i) * x where x = y, y = 2", "`y` is used before its let", "change their order"),
    ("O(i) = v(i) * x where x = x", "`x` is used before its let", ""),
    # reductions
    ("O(i) = A(i, k)", "`k` is an index not on the left, and `=` does not reduce", "`+=!` sums over it"),
    ("O(i) = A(i, k) * B(k, j)", "`k`, `j` are indices not on the left", "sums over them"),
    ("O(i) = v(i) * m", "`m` is an index not on the left", "or is `M` meant?"),
    ("O(i) = v(i) where exists A(i, k)", "`k` is an index not on the left", ""),
    ("T(i) += v(i) O(i) = T(i)", "`+=` accumulates into `T`, which nothing has defined", "`+=!` starts from the identity"),
    ("T max= v(i) O = T", "`max=` accumulates into `T`", "`max=!`"),
    ("O(i) = v(i) O(i) = O(i - 1) + v(i)", "only at the element it writes, `O(i)`", "recurrences are not in the language"),
    ("O(i) = v(i) O(i) = x where x = O(i + 1)", "only at the element it writes", "another name"),
    ("O(i, j) = A(i, j) O(i, j) = O(j, i)", "only at the element it writes, `O(i, j)`", ""),
    ("O(i) = v(i) O(i) += O(i) * A(i, k)", "a reduction into `O` reads `O` itself", "a tensor of its own"),
    ("O(i) = v(i) O(i) +=! O(i)", "a reduction into `O` reads `O` itself", "a tensor of its own"),
    # ranges
    ("O(i) = v(i) where k in 0:3", "no expression uses `k`, which has a range", "drop the range"),
    ("O(i) = v(i) where M in 0:3", "`M` is a size, and has no range", "rename"),
    ("O(i) = v(i) * x where x = 2, x in 0:3", "`x` is a let, and has no range", "rename"),
    ("O(i) +=! A(i, k) where k in 0:i", "the range of `k` names the index `i`", "`k < i ? ... : 0`"),
    ("O(i) +=! A(i, k) where k in i + 1:K", "the range of `k` names the index `i`", "`k >= i + 1 ? ... : 0`"),
    ("O(i) +=! A(i, k) where k in 0:x, x = i", "the range of `k` names the index `i`", "`k < x ? ... : 0`"),
    ("O(i) +=! A(i, k) where k in 0:k", "the range of `k` names the index `k`", ""),
    ("O(i) +=! A(i, k) where k in 0:Q", "`Q` in the range of `k` is no size", "parameters name"),
    ("O(i) +=! A(i, k) where k in 0:Idx(i)", "the range of `k` depends on the tensor `Idx`", "`k < Idx(i) ? ... : 0`"),
    ("O(i) +=! A(i, k) where k in 0:1.5", "an index is an integer, and this is float32", "int32(...)"),
    ("O(i) +=! A(i, k) where k in 0:a", "an index is an integer, and this is float32", "int32(...)"),
    ("O(i) +=! A(i, k) where k in 0:(flag ? 1 : 2)", "a bound of `k` is made of sizes", "`min` and `max`"),
    # types
    ("O(i) = v(i) ? 1 : 2", "a condition is bool, and this is float32", "`... != 0`"),
    ("O(i) = 1 ? v(i) : 0", "a condition is bool, and this is int32", ""),
    ("O(i) = ok(i) && i ? 1 : 2", "a condition is bool, and this is int32", ""),
    ("O(i) = !v(i)", "a condition is bool, and this is float32", ""),
    ("O(i) = -ok(i)", "`-` of a bool", "`!`"),
    ("O(i) = ok(i) - flag", "`-` of bools", "int32(...)"),
    ("O(i) = ok(i) / flag", "`/` of bools", "int32(...)"),
    ("O(i) = relu(ok(i))", "`relu` of a bool", "relu(int32(...))"),
    ("O(i) = v(i * 0.5)", "an index is an integer, and this is float32", "int32(...)"),
    ("O(i) = v(d(i))", "an index is an integer, and this is float64", "int32(...)"),
    ("O(i) = v(ok(i))", "an index is an integer, and this is bool", "int32(...)"),
    ("O(i) = v(sqrt(i))", "an index is an integer, and this is float32", "int32(...)"),
    ("O(i) = u32(i) + Idx(i)", "uint32 and int32 have no common type", "int64(...)"),
    ("O(i) = min(u32(i), u8(i))", "uint32 and uint8 have no common type", ""),
    ("O(i) = u8(i) * 256", "256 does not fit uint8", "`int16(256)`"),
    ("O(i) = u8(i) + -1", "-1 does not fit uint8", "`uint8(-1)` wraps"),
    ("O(i) = 3000000000 where i in 0:M", "3000000000 does not fit int32", "`int64(3000000000)`"),
    ("O(i) = v(i + 99999999999999999999)", "does not fit int64", ""),
    ("O(i) = 999999999999999999999 * v(i)", "at most 64 bits", "with `.0`"),
    ("O(i) = 9999999999 * 9999999999 * v(i)", "does not fit 64 bits", "floats"),
    ("O(i) = v(i) * (3 / 0)", "an integer is divided by zero", "a float may be"),
    ("O(i) = v(i % 0)", "an integer is divided by zero", ""),
    ("O(i) = sqrt(v(i), 2)", "`sqrt` takes 1 argument, not 2", "`sqrt(x)`"),
    ("O(i) = clamp(v(i), 2)", "`clamp` takes 3 arguments, not 2", ""),
    ("O(i) = infinity(1)", "`infinity` takes no arguments, not 1", "`infinity()`"),
    # the tensor that is written
    ("v(i) = 1 O = 1", "`v` is a parameter, and parameters are never written", "another name"),
    ("a = 3 O = a", "`a` is a parameter, and parameters are never written", ""),
    ("M = 3 O = M", "`M` is a size, and cannot be written", "rename"),
    ("exp(i) = v(i) O(i) = exp(i)", "a tensor cannot be named like the built-in `exp`", "`exp_`"),
    ("T(i) = v(i)", "no statement writes the result `O`", "`O(...) = ...`"),
    ("O(i) = v(i) O(i, j) = A(i, j)", "`O` has 1 dimension (line 2, column 1), and is written with 2 indices", "use another name"),
    ("O(i) = v(i) O(i) = d(i)", "`O` is float32 (line 2, column 1), and this value is float64", "`-> (float64(...) O)`"),
    ("O(i) = v(i) O(i) = Idx(i)", "`O` is float32 (line 2, column 1), and this value is int32", "`float32(...)`"),
    ("O(i) = Idx(i) O(i) = 0.5", "`O` is int32 (line 2, column 1), and this value is float32", "`-> (float32(...) O)`"),
    ("O(i) = ok(i) O(i) = 1", "`O` is bool (line 2, column 1), and this value is int32", "`bool(...)`"),
]

# the parameters and results of a def
SIGNATURES = [
    ("def f(float(N) A, float(N) A) -> (O) { O(i) = A(i) }", "a second meaning for `A`: it is there already", "rename"),
    ("def f(float(N) A, float N) -> (O) { O(i) = A(i) }", "a second meaning for `N`: it is a size too", "rename"),
    ("def f(float(N) N) -> (O) { O(i) = N(i) }", "a second meaning for `N`", "rename"),
    ("def f(float(N) A) -> (A) { A(i) = 1 }", "the result `A` is a parameter", "`A_out`"),
    ("def f(float(N) A) -> (N) { N(i) = A(i) }", "the result `N` is named like a size", "rename"),
    ("def f(float(N) A) -> (O, O) { O(i) = A(i) }", "`O` is listed twice", "once"),
    ("def f(float(N) A) -> (O, P) { O(i) = A(i) }", "no statement writes the result `P`", "`P(...) = ...`"),
    ("def f(float(N) A) -> (relu) { relu(i) = A(i) }", "a tensor cannot be named like the built-in `relu`", "`relu_` or `RELU`"),
    ("def f(float(N) j0) -> (O) { O(i) = j0(i) }", "a tensor cannot be named like the built-in `j0`", "`j0_`"),
    ("def f(float(N) A) -> (float(Q) O) { O(i) = A(i) }", "the size `Q` stands only in the type of a result", "leave the type out"),
    ("def f(float(N) A) -> (float(N, N) O) { O(i) = A(i) }", "`O` has 1 index here and 2 extents in its type", "`-> (O)`"),
    ("def f(float(N) A) -> (float O) { O(i) = A(i) }", "`O` has 1 index here and no extents in its type", "`-> (O)`"),
    ("def f() -> (O) { O = 1 } def f() -> (O) { O = 1 }", "a second def named `f`", "rename"),
    # extents that are expressions
    ("def f(float(-1) A) -> (O) { O = 1 }", "the extent `-1` of `A` is negative", "a positive number, or a size"),
    ("def f(float(2*N) A) -> (O) { O = 1 }", "`N` in the extent `2 * N` of `A` is no size", "as in `float(N) X`"),
    ("def f(float(N) B, float(N - i) A) -> (O) { O = 1 }", "`i` in the extent `N - i` of `A` is no size", ""),
    ("def f(float(N) B, float(B(0)) A) -> (O) { O = 1 }", "an index is an integer, and this is float32", ""),
    ("def f(int32(N) B, float(B(0)) A) -> (O) { O = 1 }", "the extent `B(0)` of `A` is made of sizes, integer scalars and numbers", "size"),
    ("def f(float(N) B, float(N / 0) A) -> (O) { O = 1 }", "an integer is divided by zero", ""),
    ("def f(float(N) B, float a, float(N + a) A) -> (O) { O = 1 }", "an index is an integer", ""),
    ("def f(float(N) B) -> (float(N + M) O) { O(i) = B(i) }", "`M` in the extent `N + M` of `O` is no size", ""),
    ("def f(float(N) B) -> (float(N - N - 3) O) { O(i) = B(i) }", "the extent `N - N - 3` of `O` is negative", ""),
]

CALLEES = """
def g(float(N) x, float(N) y, float c, int32 k) -> (z) { z(i) = x(i * k) + y(i) * c }
def two(float(N) x) -> (p, q) { p(i) = x(i) q(i) = x(i) }
def acc(float(N) x) -> (o) { o += x(i) }
def four(float(4) x) -> (o) { o(i) = x(i) }
def f(float(M) u, float(M) w, float(M, K) A, double(M) d, float(3) t, float a, int32 s, double e, int64 l) -> (O) {
"""
CALLS = [
    ("O = g(u, w, a)", "`g` takes 4 arguments, and here are 3", "in order: x, y, c, k"),
    ("O, P = g(u, w, a, s)", "`g` gives 1 result, and here are 2", "in order: z"),
    ("O = two(u)", "`two` gives 2 results, and here is 1", "in order: p, q"),
    ("O, O = two(u)", "`O` takes two results of one call", "a name of its own"),
    ("u, O = two(w)", "`u` is a parameter, and parameters are never written", ""),
    ("O, P = three(u)", "no earlier def is named `three`", "earlier defs: g, two, acc, four"),
    ("O(i) = two(u)", "`two` is a def, and a def is called by a statement of its own", "`T = two(...)`"),
    ("O = g(u + 1, w, a, s)", "the argument `x` of `g` is a tensor", "a statement before"),
    ("O = g(a, w, a, s)", "the argument `x` of `g` is a tensor", ""),
    ("O = g(d, w, a, s)", "takes float32 of 1 dimension as `x`, and `d` is float64 of 1 dimension", "convert"),
    ("O = g(A, w, a, s)", "takes float32 of 1 dimension as `x`, and `A` is float32 of 2 dimensions", "reshape"),
    ("O = g(T, w, a, s) T(i) = u(i)", "the argument `x` of `g` is read before any statement defines it", "move"),
    ("O = g(u, w, a + 1, s)", "the argument `c` of `g` is a scalar", "`s = ...`"),
    ("O = g(u, w, M, s)", "the argument `c` of `g` is a scalar", ""),
    ("O = g(u, w, u, s)", "`u` has 1 dimension, and here is no subscript", ""),
    ("O = g(u, w, e, s)", "`c` of `g` is float32, which does not hold every float64", "an argument of type float32"),
    ("O = g(u, w, a, l)", "`k` of `g` is int32, which does not hold every int64", ""),
    ("O = g(u, w, a, 0.5)", "`k` of `g` is int32, which does not hold 0.5", ""),
    ("O = g(u, w, true, 1)", "`c` of `g` is float32, which does not hold True", ""),
    ("O = g(u, w, a, 3000000000)", "`k` of `g` is int32, which does not hold 3000000000", ""),
    ("T = 1 O = g(u, w, a, T)", "`g` is specialised to `k`, and `T` is known only when the kernel runs", "a literal"),
    ("O = four(t)", "`four` wants 4, for dimension 0 of `t`: 4 is not 3", "equal"),
    ("T = acc(u) O = T", "`+=` accumulates into `T`, which nothing has defined", "`+=!`"),
    ("O = g(u, w, a, s) O = g(O, w, a, s)", "`O` is an argument and a result of one call", "another name"),
    ("O(i, j) = A(i, j) O, T = two(u)", "`O` has 2 dimensions", ""),
]


def assert_refused(text: str, kind: type[TCError], what: str, hint: str) -> None:
    with pytest.raises(TCError) as caught:
        check(parse(text))
    error = caught.value
    assert type(error) is kind, error
    assert what in error.what, error
    assert hint in error.hint, error
    assert error.where is not None
    assert error.where.line_text == text.split("\n")[error.where.line - 1]
    assert 1 <= error.where.column <= max(1, len(error.where.line_text))
    assert str(error.where) in str(error) and ("^" in str(error) or not error.where.line_text)


@pytest.mark.parametrize(("text", "what", "hint"), SYNTAX)
def test_syntax(text: str, what: str, hint: str) -> None:
    assert_refused(HEAD + text + "\n}", ParseError, what, hint)


@pytest.mark.parametrize(("text", "what", "hint"), PROGRAMS)
def test_programs(text: str, what: str, hint: str) -> None:
    assert_refused(text, ParseError, what, hint)


@pytest.mark.parametrize(("text", "what", "hint"), MEANING)
def test_meaning(text: str, what: str, hint: str) -> None:
    assert_refused(HEAD + text + "\n}", CheckError, what, hint)


@pytest.mark.parametrize(("text", "what", "hint"), SIGNATURES)
def test_signatures(text: str, what: str, hint: str) -> None:
    assert_refused(text, CheckError, what, hint)


@pytest.mark.parametrize(("text", "what", "hint"), CALLS)
def test_calls(text: str, what: str, hint: str) -> None:
    assert_refused(CALLEES + text + "\n}", CheckError, what, hint)


def test_extents_of_literal_arguments() -> None:
    both = "def g(float(N) A, float(N) B) -> (D) { D(i) = A(i) + B(i) }\ndef f(float(3) A, float(4) B) -> (C) { C = g(A, B) }"
    assert_refused(both, CheckError, "the size N of `g`: dimension 0 of `A` and dimension 0 of `B`: 3 is not 4", "equal")
    zero = "def g(float(N) A, int32 k) -> (D) { D(i) = A(i / k) }\ndef f(float(N) A) -> (C) { C = g(A, 0) }"
    assert_refused(zero, CheckError, "an integer is divided by zero", "another number")
    result = "def g(float(N) A) -> (D) { D(i) = A(i) }\ndef f(float(N) A) -> (double(N) C) { C = g(A) }"
    assert_refused(result, CheckError, "`g` returns float32, and `C` is float64", "a tensor of its own")


def test_the_whole_message() -> None:
    text = "def f(float(N) A) -> (O) {\n\tO(i) = A(i, j)\n}"
    with pytest.raises(CheckError) as caught:
        check(parse(text))
    assert str(caught.value).split("\n") == [
        "line 2, column 9: `A` has 1 dimension, and here are 2 subscripts",
        "    \tO(i) = A(i, j)",
        "    \t       ^^^^^^^",
        "try: `A(i)`",
    ]


# ---------------------------------------------------------------- mutants: a TCError or nothing

CORPUS = [
    CALLEES + "T = g(u, w, a, 2) O(i) = T(i) + t(1) P, Q = two(T) }",
    HEAD + "O(i, j) +=! A(i, k) * B(k, j)\nO(i, j) = fmax(O(i, j) + v(i), 0.0) }",
    HEAD + "T(i) max=! A(i, k)\nE(i, k) = exp(A(i, k) - T(i))\nS(i) +=! E(i, k)\nO(i, k) = E(i, k) / S(i) }",
    HEAD + "O(i) +=! (i + k >= 1 && i + k <= M) ? v(i + k - 1) * h(k) : 0.0 where k in 0:3, i in 0:M / s }",
    HEAD + "O(i, j) = x * A(Idx(i) % M, j) where x = half(a) * 2, exists v(i + 1)\nO(i, j) min= -infinity() }",
    HEAD + "O(i) = clamp(u8(i), 1, 3) + (ok(i) || !flag ? i : -s) * 1e-3 # a comment\n}",
    HEAD + "O(Idx(i), j) +=! A(i, j) where Idx(i) in 0:M\nO(Idx(i) + L(i), j) max= B(j, i) where j in 0:K }",
    "def f(float(3, N) A, bfloat16 b) -> (double(N) O, float P) { P *=! A(i, j) ? b : 1 O(j) += A(0, j) / P }",
]
TOKENS = """( ) { } , : ? = + - * / % < <= == != && || ! +=! min=! -> # def where in exists min max true float int32 half
            i j k A v O T M s 0 1 2.5 1e400 99999999999999999999999 0.0 infinity() sqrt relu \x00 \u00e9 ;""".split()


def mutant(rng: random.Random) -> str:
    text = rng.choice(CORPUS)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(9)
        at = rng.randrange(len(text) + 1)
        if kind == 0:  # a character less
            text = text[:at] + text[at + 1 :]
        elif kind == 1:  # a piece less
            text = text[:at] + text[at + rng.randint(1, 12) :]
        elif kind == 2:  # a token more
            text = text[:at] + " " + rng.choice(TOKENS) + " " + text[at:]
        elif kind == 3:  # two words swapped
            words = text.split(" ")
            a, b = rng.randrange(len(words)), rng.randrange(len(words))
            words[a], words[b] = words[b], words[a]
            text = " ".join(words)
        elif kind == 4:  # a line twice
            lines = text.split("\n")
            line = rng.randrange(len(lines))
            text = "\n".join([*lines[: line + 1], *lines[line:]])
        else:  # a name or number for another of the program
            words = re.split(r"(\w+)", text)
            a, b = (2 * rng.randrange(len(words) // 2) + 1 for _ in range(2))
            words[a] = words[b]
            text = "".join(words)
    return text


@pytest.mark.parametrize("seed", range(10))
def test_mutated_programs_give_a_tc_error_or_nothing(seed: int) -> None:
    rng = random.Random(seed)
    outcomes = {"fine": 0, "ParseError": 0, "CheckError": 0}
    for _ in range(100):
        text = mutant(rng)
        try:
            check(parse(text))
            outcomes["fine"] += 1
        except TCError as error:
            outcomes[type(error).__name__] += 1
            assert error.where is not None and str(error)
    assert min(outcomes.values()) > 0 and sum(outcomes.values()) == 100


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("O(i) = (1 < v(i) < 2) ? 1 : 0", "comparisons do not chain", "`1 < v(i) && v(i) < 2`"),
        ("O(i) = v(i) == v(i) == 3", "comparisons do not chain", "`v(i) == v(i) && v(i) == 3`"),
        ("O(i) = 1 < v(i) + 2 <= 4 < 5", "comparisons do not chain", "`1 < v(i) + 2 && v(i) + 2 <= 4 && 4 < 5`"),
        ("O(i) = v(i) * 1e999", "1e999 is greater than any float", "`infinity()`"),
        ("O(i) = v(i) * \u0663", "`\u0663` (ARABIC-INDIC DIGIT THREE) is no part", "the digits are 0 to 9"),
        ("O(i) = v(i) * \ufeff3", "(ZERO WIDTH NO-BREAK SPACE) is no part", "which editors do not show"),
        ("O(i) = s * O(i - 1) + v(i)", "`O` is computed from its own elements", "recurrences are not in the language: call"),
    ],
)
def test_what_works_instead(text: str, says: str, hint: str) -> None:
    with pytest.raises(TCError) as caught:
        check(parse(HEAD + text + "\n}"))
    assert says in caught.value.what and hint in caught.value.hint and caught.value.where is not None
