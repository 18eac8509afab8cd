"""The front door and namespaces: what they show, how they travel, and what they leave unimported.

Modules: jit.settings jit.signature
"""
from __future__ import annotations

import json
import pickle

import pytest
import torch
from support.calls import TEXT, assert_refused, child, defs

import tcjit
from tcjit.grammar.ast import Binary, Call, Cast, Const, Size, Unary
from tcjit.jit import kernel_cache
from tcjit.jit.signature import Signature, encode, evaluate

NAMES = ["add", "mm", "both", "onto", "pick", "step", "rest", "sum", "shift"]


def test_namespace() -> None:
    tc = defs()
    assert list(tc) == NAMES and dir(tc) == sorted(NAMES) and len(tc) == len(NAMES)
    assert tc.mm is tc["mm"] is tc.mm
    assert repr(tc).startswith("<tcjit\n  add(float32(N) A, float32(N) B) -> (C)\n")
    assert "  step(float32 a, float32(N) X, int32 s) -> (Y)\n" in repr(tc)
    assert repr(tc.mm) == "<tcjit mm(float32(M, K) A, float32(K, N) B) -> (C)>"
    assert tc.mm.__name__ == "mm" and "mm(float32(M, K) A" in (tc.mm.__doc__ or "")
    with pytest.raises(AttributeError, match="no def called 'nm'"):
        tc.nm  # noqa: B018
    assert not hasattr(tc, "_private") and not hasattr(tc, "__len")
    assert_refused(lambda: tc["nm"], tcjit.ArgumentError, "one of add, mm")


def test_the_same_text_is_the_same_function() -> None:
    assert defs().mm is defs().mm
    assert defs("reference").mm is not defs().mm
    assert tcjit.define(TEXT, options=tcjit.Options(vector_width=1)).mm is not defs().mm


def test_pickle() -> None:
    for target in (None, "cpu", "reference"):
        options = tcjit.Options(vector_width=1)
        tc = tcjit.define(TEXT, target=target, options=options)
        again = pickle.loads(pickle.dumps(tc))
        assert list(again) == NAMES and again.mm is tc.mm and again.mm.target == target and again.mm.options == options
        assert pickle.loads(pickle.dumps(tc.mm)) is tc.mm


def test_pickle_travels_between_processes() -> None:
    data = pickle.dumps(defs("reference"))
    code = f"import pickle, torch; tc = pickle.loads({data!r}); print(tc.add(torch.ones(2), torch.ones(2)).tolist(), list(tc)[:2])"
    assert child(code) == "[2.0, 2.0] ['add', 'mm']"


def test_compile_without_a_namespace() -> None:
    k = tcjit.compile(TEXT, "mm", torch.ones(2, 3), torch.empty(3, 4, device="meta"))
    assert isinstance(k, tcjit.Kernel) and torch.equal(k(torch.ones(2, 3), torch.ones(3, 4)), torch.full((2, 4), 3.0))
    assert tcjit.compile(TEXT, "mm", torch.ones(2, 3), torch.ones(3, 4)) is k
    assert tcjit.compile(TEXT, "mm", torch.ones(2, 3), torch.ones(3, 4), target="reference").target == "reference"


def test_synchronize_has_nothing_to_wait_for() -> None:
    assert tcjit.synchronize() is None


def test_public_names_stay_what_they_are() -> None:
    """Importing every part binds none of the public names to a module."""
    code = """
import importlib, json, pkgutil, tcjit
before = {name: getattr(tcjit, name) for name in tcjit.__all__}
for module in pkgutil.walk_packages(tcjit.__path__, "tcjit."):
    if module.name.startswith(("tcjit.jit", "tcjit.cache", "tcjit.runtime", "tcjit.library")):
        importlib.import_module(module.name)
from tcjit.jit import define
print(json.dumps([name for name in before if getattr(tcjit, name) is not before[name]] + [type(define).__name__]))
"""
    assert json.loads(child(code)) == ["function"]


# ---------------------------------------------------------------- weight


@pytest.mark.cold
def test_import_is_light() -> None:
    code = """
import sys
import tcjit
print({"torch", "lark", "islpy", "numpy"} & set(sys.modules))
"""
    assert child(code) == "set()"


@pytest.mark.cold
def test_import_after_torch_is_quick() -> None:
    """A tenth of what torch takes itself, in CPU time of the best of three processes: machines differ, and may be busy."""
    code = """
import time, sys
start = time.process_time()
import torch
middle = time.process_time()
import tcjit
print((time.process_time() - middle) / (middle - start))
assert not {"lark", "islpy"} & set(sys.modules)
"""
    assert any(float(child(code)) < 0.1 for _ in range(3))


@pytest.mark.bare
def test_a_warm_cache_needs_neither_lark_nor_isl() -> None:
    code = f"""
import sys, torch, tcjit
tc = tcjit.define({TEXT!r})
assert torch.equal(tc.add(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))
for _ in range(3):
    assert torch.equal(tc.mm(torch.ones(2, 3), torch.ones(3, 2)), torch.full((2, 2), 3.0))
k = tc.mm.compile(torch.ones(2, 3), torch.ones(3, 2))
assert "int64_t tc_mm" in k.source and "domain" in k.tree and k.options == tcjit.Options.from_dict(k.record["options"])
print(sorted({{"lark", "islpy"}} & set(sys.modules)), tc.mm._call is not None and len(tc.mm._table._launcher or ()))
"""
    child(code)
    assert child(code) == "[] 1"


@pytest.mark.cold
def test_define_alone_does_not_need_torch() -> None:
    code = f"""
import sys, tcjit
tc = tcjit.define({TEXT!r})
print(list(tc)[0], "torch" in sys.modules)
import torch
print(tc.add(torch.ones(1), torch.ones(1)).item())
"""
    child(code)
    assert child(code) == "add False\n2.0"


# ---------------------------------------------------------------- signatures


def test_signatures_travel_as_json() -> None:
    for signature in kernel_cache.signatures(TEXT):
        text = json.dumps(signature.to_json())
        assert Signature.from_json(json.loads(text)) == signature
    (onto,) = (s for s in kernel_cache.signatures(TEXT) if s.name == "onto")
    assert onto.accumulates == ("C",) and onto.sizes == ("M", "K")


def test_extents() -> None:
    n, k = Size("N", dtype="int64"), Size("K", dtype="int64")
    one = Const(1, dtype="int64")
    window = Binary("+", Binary("-", n, k, dtype="int64"), one, dtype="int64")
    for expr, value in (
        (window, 6),
        (Call("min", (n, k), dtype="int64"), 3),
        (Call("max", (n, Binary("*", k, k, dtype="int64")), dtype="int64"), 9),
        (Cast(Binary("/", Unary("-", n, dtype="int64"), k, dtype="int64"), dtype="int64"), -3),
    ):
        assert evaluate(encode(expr), {"N": 8, "K": 3}) == value
    with pytest.raises(TypeError):
        encode(Call("exp", (n,), dtype="float32"))


def test_a_damaged_signature_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def fresh(float(N) X) -> (Y) { Y(i) = X(i) }"
    good = kernel_cache.signatures(text)
    store = kernel_cache.cache.store()
    strange = {**good[0].to_json(), "returns": [{"name": "Y", "dtype": "float32", "shape": [["exec", 1]]}]}
    for bad in ([{}], [{"name": 3}], ["x"], [strange]):
        store.put_signatures(kernel_cache.cache.text_key(text), bad)
        assert kernel_cache.signatures(text) == good


@pytest.mark.parametrize(("target", "hint"), [("cuda:sm_75", "sm_80"), ("cuda:sm_1", "sm_80"), ("cuda:hopper", "cuda:sm_90")])
def test_architectures_that_generated_code_cannot_run_on_are_refused(target: str, hint: str) -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(i) max=! X(i,j) }"
    with pytest.raises(tcjit.TCError) as caught:
        tcjit.define(text, target=target)
    assert hint in (caught.value.hint or "")
