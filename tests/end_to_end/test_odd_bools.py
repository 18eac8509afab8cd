"""Bools whose bytes are not 0 and 1, as memory from elsewhere may have them: every byte but 0 is true, on every target."""

from __future__ import annotations

import pytest
import torch
from support.rings.targets import assert_agrees, everywhere, only

import tcjit
from tcjit.mapping.options import Options

EVERYWHERE = pytest.mark.parametrize("on", everywhere())


def odd(*shape: int) -> torch.Tensor:
    """Bools of the bytes 0, 1, 2 and 255."""
    choice = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(3))
    return torch.tensor([0, 1, 2, 255], dtype=torch.uint8)[choice].view(torch.bool)


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) != 0


def bytes_of(tensor: torch.Tensor) -> set[int]:
    return set(tensor.view(torch.uint8).unique().tolist())


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "text",
    [
        "def f(bool(N) X) -> (Y) { Y +=! X(i) ? 1 : 0 }",
        "def f(bool(N) X) -> (Y) { Y +=! int32(X(i)) }",
        "def f(bool(N) X) -> (Y) { Y(i) = int32(X(i)) * 3 }",
        "def f(bool(N) X) -> (Y, Z, W) { Y(i) = X(i)  Z(i) = X(i) && true  W(i) = !X(i) }",
        "def f(bool(N) X) -> (Y) { Y(i) = X(i) == X(N - 1 - i) }",
        "def f(bool(N) X) -> (Y, Z) { Y max=! X(i)  Z min=! X(i) }",
        "def f(bool(N) X) -> (Y, Z) { Y +=! X(i)  Z *=! X(i) }",
        "def f(bool(N) X) -> (Y, Z) { T(i) = X(i)  Y(i) = T(i) + X(N - 1 - i)  Z(i) = min(T(i), X(N - 1 - i)) }",
        "def f(bool(N) X) -> (Y) { Y(i) = float(X(i)) + (X(N - 1 - i) ? 0.5 : 0.25) }",
        "def f(bool(N) X) -> (Y) { Y(i) = X((int32(X(i)) + i) % N) }",
    ],
)
def test_every_byte_but_0_is_true(on: str, text: str) -> None:
    assert_agrees(on, text, odd(200))
    results = only(text, target=on)(odd(200))
    for result in results if isinstance(results, tuple) else (results,):
        assert result.dtype != torch.bool or bytes_of(result) <= {0, 1}
    expected = only(text, target="reference")(canonical(odd(200)))
    for result, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, expected)), strict=True):
        assert torch.equal(result, wanted)


@EVERYWHERE
@pytest.mark.sample(2)
@pytest.mark.parametrize("options", [Options(), Options(vector=4), Options(vector=4, shared=True, pipeline_stages=2)], ids=range(3))
def test_masks_of_products(on: str, options: Options) -> None:
    """Masks that are packed, copied to shared memory, or read several at once."""
    text = "def f(float(M,K) A, bool(M,K) X, float(K,N) B) -> (C) { C(m, n) +=! (X(m, k) ? A(m, k) : 0.0) * B(k, n) }"
    whole = [torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).float() for shape in ((32, 48), (48, 32))]
    assert_agrees(on, text, whole[0], odd(32, 48), whole[1], options=options)
    found = only(text, target=on, options=options)(whole[0], odd(32, 48), whole[1])
    assert torch.equal(found, (whole[0] * canonical(odd(32, 48))) @ whole[1])


@EVERYWHERE
def test_values_that_a_caller_passes_to_go_on_from(on: str) -> None:
    text = "def f(bool(N) X) -> (Y) { Y(i) min= X(i) }"
    out = odd(200).flip(0).contiguous()
    only(text, target=on)(odd(200), out=out)
    assert torch.equal(out, canonical(odd(200)) & canonical(odd(200)).flip(0)) and bytes_of(out) <= {0, 1}


def test_kernels_without_given_bools_keep_the_type_of_the_language() -> None:
    text = "def f(float(N) X) -> (Y) { T(i) = X(i) > 0.0  Y(i) = T(i) && X(i) < 1.0 }"
    source = tcjit.compile(text, "f", torch.ones(8), target="cpu").source
    assert "_Bool *restrict Y" in source and "!= 0" not in source
    reading = tcjit.compile("def f(bool(N) X) -> (Y) { Y +=! X(i) ? 1 : 0 }", "f", odd(8), target="cpu").source
    assert "const uint8_t *restrict X" in reading and "convertvector(x != 0," in reading


@pytest.mark.parametrize("n", [5, 40, 133])
def test_contractions_take_any_byte_but_0_for_true(n: int) -> None:
    """Words of four bytes, which instructions multiply, are made of whether elements are true."""
    g = torch.Generator().manual_seed(n)
    a, b, x = odd(n, n), odd(n, 70), torch.randn(n, 70, generator=g)
    text = """def f(bool(N,N) A, bool(N,M) B, float(N,M) X) -> (C, T, S) {
        C(i,m) +=! (A(i,j) && B(j,m)) ? 1 : 0
        T(i) +=! (A(i,j) && A(j,i)) ? 1 : 0
        S(i,m) +=! A(i,j) ? X(j,m) : 0.0 }"""
    c, t, s = tcjit.define(text, target="cpu").f(a, b, x)
    true, other = canonical(a).long(), canonical(b).long()
    assert torch.equal(c.long(), true @ other) and torch.equal(t.long(), (true * true.T).sum(1))
    torch.testing.assert_close(s, true.float() @ x, rtol=1e-4, atol=1e-4)
