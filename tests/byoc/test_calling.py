"""A partitioned model is called as the original: by place or by name, with other extents where that was asked for, in and out of trees.

Modules: byoc.containers byoc.partition byoc.respecialise
"""
from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import tcjit
from tcjit.byoc import runtime
from tcjit.errors import ArgumentError, PartitionError, ShapeError

ROOT = Path(__file__).resolve().parents[2]
ALL = tcjit.PartitionConfig(cost=False)
X, MASK = torch.linspace(-2, 2, 512).view(8, 64), torch.linspace(0, 1, 64)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        y = torch.tanh(self.layer(x)) * scale
        return y if mask is None else y * mask


def masked() -> Masked:
    torch.manual_seed(0)
    return Masked().eval().requires_grad_(False)


def assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_calls_by_name() -> None:
    model = masked()
    plain = tcjit.partition(model, (X,), ALL)
    assert plain.regions
    for found in (plain(X), plain(x=X), plain(X, None), plain(X, mask=None, scale=1.0)):
        assert_same(found, model(X))
    both = tcjit.partition(model, (X,), ALL, kwargs={"scale": 2.0, "mask": MASK})
    for found in (both(X, MASK, scale=2.0), both(scale=2.0, mask=MASK, x=X), both(X, scale=2.0, mask=MASK)):
        assert_same(found, model(X, MASK, scale=2.0))
    named = tcjit.partition(model, {"x": X, "mask": MASK}, ALL)
    assert_same(named(X, MASK), model(X, MASK))
    with pytest.warns(DeprecationWarning):
        script = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.Tanh()).eval())
    assert_same(tcjit.partition(script, {"input": X}, ALL)(input=X), script(X))


def test_measuring_takes_names() -> None:
    model = masked()
    assert_same(tcjit.partition(model, (X,), kwargs={"mask": MASK}, measure=True)(X, mask=MASK), model(X, MASK))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fast: fast(X, MASK), "partitioned without mask"),
        (lambda fast: fast(X, scale=2.0), "partitioned without scale"),
        (lambda fast: fast(X, None, 1.0), "takes x, mask, scale; 3 are given by place"),
        (lambda fast: fast(X, x=X), "x is given twice"),
        (lambda fast: fast(X, other=X), "takes x, mask, scale, and no other"),
        (lambda fast: fast(), "x is not given"),
        (lambda fast: fast({"x": X}), "nested otherwise"),
    ],
)
def test_calls_that_do_not_fit(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(tcjit.partition(masked(), (X,), ALL))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "missing a required argument: 'x'"),
        ((X, X, X), "too many positional arguments"),
        ({"y": X}, "missing a required argument: 'x'"),
        ({"x": X, "y": X}, "unexpected keyword argument 'y'"),
        ({3: X}, "names that are texts"),
    ],
)
def test_example_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tcjit.partition(masked(), inputs)


@pytest.mark.parametrize(("inputs", "message"), [((), "lack input"), ((X, X), "takes input; 2 are given"), ({"y": X}, "and no y")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_example_inputs_that_do_not_fit_a_script(inputs: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tcjit.partition(torch.jit.script(nn.Sequential(nn.Linear(64, 64)).eval()), inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_example_inputs_that_the_model_cannot_take(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PartitionError, match="fails on its example inputs: aten.linear: .*reduction dim"):
        tcjit.partition(torch.jit.script(nn.Sequential(nn.Linear(64, 64)).eval()), (X[:, :5],))
    with pytest.raises(PartitionError, match="reduction dim"):
        tcjit.partition(masked(), (X[:, :5],))
    assert "Traceback" not in capfd.readouterr().err


def test_other_sizes() -> None:
    model = masked()
    fixed = tcjit.partition(model, (X,), ALL)
    with pytest.raises(ShapeError, match=r"x\.size\(\)\[0\] == 8, which does not hold") as caught:
        fixed(X[:3])
    assert "dynamic=True" in caught.value.hint
    ways: list[Any] = [True, {"x": {0: "batch"}}, {"x": {0: torch.export.Dim("rows")}}, ({0: "batch"},)]
    for dynamic in ways:
        open_rows = tcjit.partition(model, (X,), ALL, dynamic=dynamic)
        assert open_rows.regions
        for rows in (2, 3, 8):
            assert_same(open_rows(X[:rows]), model(X[:rows]))
        with pytest.raises(ShapeError, match=r"x\.size\(\)\[1\] == 64"):
            open_rows(X[:, :63])
    two = tcjit.partition(model, (X,), ALL, kwargs={"mask": MASK.expand(8, 64)}, dynamic={"x": {0: "n"}, "mask": {0: "n"}})
    assert_same(two(X[:5], MASK.expand(5, 64)), model(X[:5], MASK))
    with pytest.raises(ShapeError):
        two(X[:5], MASK.expand(4, 64))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_sizes_of_a_script() -> None:
    script = torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.Tanh()).eval())
    ways: list[Any] = [True, {"input": {0: "batch"}}, ({0: "batch"},)]
    for dynamic in ways:
        made = tcjit.partition(script, (X,), ALL, dynamic=dynamic)
        assert any("?" in row["output"] for row in made.rows), made.rows
        assert_same(made(X[:3]), script(X[:3]))


def test_extents_that_cannot_change() -> None:
    with pytest.raises(PartitionError, match="Constraints violated"):
        tcjit.partition(masked(), (X,), dynamic={"x": {1: "width"}})
    with pytest.raises(ArgumentError, match="dynamic names 'z', which is no argument"):
        tcjit.partition(masked(), (X,), dynamic={"z": {0: "n"}})
    with pytest.raises(ArgumentError, match="'2 n' is no name of an extent"):
        tcjit.partition(masked(), (X,), dynamic={"x": {0: "2 n"}})
    with pytest.raises(PartitionError, match="are its own already"):
        tcjit.partition(torch.export.export(masked(), (X,)), (X,), dynamic=True)


def stored(model: Any) -> Any:
    stream = io.BytesIO()
    torch.save(model, stream)
    return torch.load(io.BytesIO(stream.getvalue()), weights_only=False)


WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)), "save": stored}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_copies(way: Callable[[Any], Any]) -> None:
    model = masked()
    fast = tcjit.partition(model, (X,), ALL)
    again = way(fast)
    assert_same(again(x=X), model(X))
    assert again.regions == fast.regions and again.report() == fast.report()
    with torch.no_grad():
        model.layer.weight.zero_()
    assert not torch.allclose(again(X), fast(X)), "its parameters are its own"
    with pytest.raises(PartitionError, match="a dry run have no file"):
        way(tcjit.partition(model, (X,), dry_run=True))


def test_dtypes_stay() -> None:
    model = masked()
    fast = tcjit.partition(model, (X,), ALL)
    changes: list[Callable[[], Any]] = [fast.half, fast.double, lambda: fast.to(torch.bfloat16), lambda: fast.to("meta")]
    for change in changes:
        with pytest.raises(PartitionError, match="keeps its dtype and device"):
            change()
    assert model.layer.weight.dtype == torch.float32 and model.layer.weight.device.type == "cpu"
    assert fast.float().to("cpu") is fast
    assert_same(fast(X), model(X))


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_TOLD", {})


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regions that ran in plain ATen."""
    calls: list[str] = []
    run = runtime._plain
    monkeypatch.setattr(runtime, "_plain", lambda spec, inputs: (calls.append(spec), run(spec, inputs))[1])
    return calls


def test_without_gradients_nothing_is_said(untold: None, plain: list[str]) -> None:
    model = masked()
    fast = tcjit.partition(model, (X,), ALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(X)
    assert not plain and "gradients" not in fast.report()


class Cache:
    """Pairs of tensors that a model adds to, as decoders have them."""

    def __init__(self, keys: list[Tensor] | None = None) -> None:
        self.keys = keys or []


@dataclass
class Decoded:
    logits: Tensor
    cache: Cache


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Decoded:
        key = torch.tanh(self.layer(x))
        old = cache.keys if cache is not None else []
        keys = torch.cat([*old, key])
        return Decoded(torch.softmax(key @ keys.T, -1), Cache([keys]))


@pytest.fixture
def registered() -> Iterator[None]:
    pytree.register_pytree_node(
        Cache,
        lambda cache: (cache.keys, None),
        lambda keys, _: Cache(list(keys)),
        serialized_type_name=f"{__name__}.Cache",
        flatten_with_keys_fn=lambda cache: ([(pytree.SequenceKey(place), key) for place, key in enumerate(cache.keys)], None),
    )
    torch.export.register_dataclass(Decoded, serialized_type_name=f"{__name__}.Decoded")
    yield
    for kind in (Cache, Decoded):
        pytree._deregister_pytree_node(kind)


def test_classes_go_in_and_out(registered: None, tmp_path: Path) -> None:
    model = Decoder().eval().requires_grad_(False)
    first = tcjit.partition(model, (X,), ALL)
    found, expected = first(X), model(X)
    assert isinstance(found, Decoded) and isinstance(found.cache, Cache) and first.regions
    assert_same(found.logits, expected.logits)
    second = tcjit.partition(model, {"x": X, "cache": expected.cache}, ALL)
    found, expected = second(X, cache=Cache([*expected.cache.keys])), model(X, expected.cache)
    assert_same(found.logits, expected.logits)
    assert_same(found.cache.keys[0], expected.cache.keys[0])
    second.save(tmp_path / "model.pt")
    assert_same(tcjit.load(tmp_path / "model.pt")(X, cache=Cache([X])).logits, model(X, Cache([X])).logits)
    code = f"""
        import tcjit
        try:
            tcjit.load({str(tmp_path / "model.pt")!r})
        except tcjit.TCError as error:
            assert "takes or returns {__name__}." in str(error) and "try: import {__name__} before loading" in str(error), error
        else:
            raise SystemExit("the class was not missed")
        """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_classes_that_are_not_known() -> None:
    with pytest.raises(PartitionError, match="Decoder can be neither exported nor scripted") as caught:
        tcjit.partition(Decoder().eval().requires_grad_(False), (X,))
    assert "register_dataclass" in caught.value.hint


def test_what_the_front_page_shows_runs_regions(untold: None, plain: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Whole models")[2]
    served: list[str] = []
    monkeypatch.setattr(runtime, "_RUNNERS", {})
    monkeypatch.setattr(runtime, "_first", lambda spec, inputs, first=runtime._first: (served.append(spec), first(spec, inputs))[1])
    scope: dict[str, Any] = {"torch": torch, "tcjit": tcjit}
    exec(text.partition("```python\n")[2].partition("```")[0], scope)
    assert len(served) == len(scope["fast"].regions) > 0 and not plain
