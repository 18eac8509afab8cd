"""Model files from others: nothing of a file runs as code, whatever is damaged is an error that names it.

Modules: byoc.archive byoc.expressions byoc.manifest byoc.safe_contents byoc.script_file
"""
from __future__ import annotations

import functools
import io
import json
import logging
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import tcjit
from tcjit.byoc.archive import opened
from tcjit.byoc.expressions import is_guard, is_size
from tcjit.byoc.script_file import failing, read
from tcjit.errors import PartitionError, ShapeError

Members = dict[str, bytes]
MODEL, WEIGHTS, MANIFEST = "archive/models/model.json", "archive/data/weights/model_weights_config.json", "archive/extra/tcjit.json"
SAMPLES, CONSTANTS = "archive/data/sample_inputs/model.pt", "archive/data/constants/model_constants_config.json"
X = torch.linspace(-2, 2, 48).view(6, 8)


class Named(nn.Module):
    """A weight, and sizes of its input in what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) * x.shape[0]


@functools.cache
def model() -> Named:
    torch.manual_seed(0)
    return Named().eval().requires_grad_(False)


@functools.cache
def saved(form: str) -> bytes:
    """The file of a partitioned model, ``exported`` or ``torchscript``."""
    program = torch.export.export(model(), (X,), dynamic_shapes={"x": {0: Dim("rows", min=2, max=64)}})
    given = program if form == "exported" else torch.jit.script(model())
    made = tcjit.partition(given, (X,), tcjit.PartitionConfig(cost=False, backends=("tcjit",)))
    assert made.regions
    stream = io.BytesIO()
    file = Path("/dev/shm") / f"tcjit-test-{random.randrange(1 << 60):x}" if Path("/dev/shm").is_dir() else Path("model.pt")
    try:
        made.save(file)
        stream.write(file.read_bytes())
    finally:
        file.unlink(missing_ok=True)
    return stream.getvalue()


def members(content: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def packed(file: Path, parts: Members) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file


def with_json(name: str, change: Callable[[Any], None]) -> Callable[[Members], None]:
    def done(parts: Members) -> None:
        document = json.loads(parts[name])
        change(document)
        parts[name] = json.dumps(document).encode()

    return done


class Touch:
    """A pickle of it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def pickled(file: Path, by: Callable[..., None] = torch.save, thing: Callable[[Touch], Any] = lambda touch: (touch,)) -> bytes:
    stream = io.BytesIO()
    by(thing(Touch(file)), stream)
    return stream.getvalue()


def set_payload(config: str, name: str, **fields: Any) -> Callable[[Members], None]:
    def change(document: Any) -> None:
        entry = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None, **fields}
        document["config"]["layer.bias" if config == WEIGHTS else "odd"] = entry

    return with_json(config, change)


def graph(document: Any) -> Any:
    return document["graph_module"]["graph"]


def in_sizes(text: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        graph(document)["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text

    return change


def spec_as(**fields: Any) -> Callable[[Any], None]:
    """The first input's tree, as a node of another class."""

    def change(document: Any) -> None:
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        version, tree = json.loads(signature["in_spec"])
        leaf = tree["children_spec"][0]["children_spec"][0]
        tree["children_spec"][0]["children_spec"][0] = {"children_spec": [leaf], **fields}
        signature["in_spec"] = json.dumps([version, tree])

    return change


def region_with(op: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        node = next(each for each in graph(document)["nodes"] if each["target"] == "torch.ops.tcjit.call.default")
        spec = json.loads(node["inputs"][0]["arg"]["as_string"])
        spec["nodes"][0]["op"] = op
        node["inputs"][0]["arg"]["as_string"] = json.dumps(spec).replace('"nodes"', '"\\u006eodes"')

    return change


def first_node(**fields: Any) -> Callable[[Any], None]:
    return lambda document: graph(document)["nodes"][0].update(fields)


def touching(file: Path) -> str:
    return f"__import__('pathlib').Path({str(file)!r}).touch()"


# what is done to the file, given the marker's path, and the member that the error names
ATTACKS: dict[str, tuple[Callable[[Members, Path], None], str]] = {
    "sample inputs": (lambda parts, mark: parts.update({SAMPLES: pickled(mark)}), "data/sample_inputs/model.pt"),
    "weight": (
        lambda parts, mark: (parts.update({"archive/data/weights/weight_1": pickled(mark)}), set_payload(WEIGHTS, "weight_1")(parts))[0],
        "data/weights/weight_1",
    ),
    "constant": (
        lambda parts, mark: (
            parts.update({"archive/data/constants/tensor_0": pickled(mark)}),
            set_payload(CONSTANTS, "tensor_0")(parts),
        )[0],
        "data/constants/tensor_0",
    ),
    "object": (
        lambda parts, mark: (
            parts.update({"archive/data/constants/opaque_obj_0": pickled(mark, pickle.dump, lambda touch: touch)}),
            set_payload(CONSTANTS, "opaque_obj_0")(parts),
        )[0],
        "data/constants/opaque_obj_0",
    ),
    "library": (lambda parts, mark: parts.update({"archive/data/aotinductor/model/model.so": b"\x7fELF"}), "data/aotinductor/model"),
    "size": (lambda parts, mark: with_json(MODEL, in_sizes(touching(mark)))(parts), "models/model.json"),
    "condition": (
        lambda parts, mark: with_json(MODEL, lambda document: document["guards_code"].append(touching(mark) + " is None"))(parts),
        "models/model.json",
    ),
    "function": (
        lambda parts, mark: with_json(
            MODEL,
            first_node(
                target="torch.os.system",
                inputs=[{"name": "command", "arg": {"as_string": f"touch {mark}"}, "kind": 1}],
                outputs=[{"as_int": 0}],
            ),
        )(parts),
        "models/model.json",
    ),
    "file": (lambda parts, mark: with_json(MODEL, first_node(target="torch.ops.aten.from_file.default"))(parts), "models/model.json"),
    "name": (lambda parts, mark: with_json(MODEL, first_node(name=f"{touching(mark)}; y"))(parts), "models/model.json"),
    "region": (lambda parts, mark: with_json(MODEL, region_with("aten.from_file"))(parts), "models/model.json"),
    "factory": (
        lambda parts, mark: with_json(
            MODEL,
            spec_as(
                type="collections.defaultdict",
                context={"default_factory_module": "antigravity", "default_factory_name": "fly", "dict_context": ["x"]},
            ),
        )(parts),
        "models/model.json",
    ),
    "enumeration": (
        lambda parts, mark: with_json(
            MODEL, spec_as(type="builtins.dict", context='[{"__enum__": true, "fqn": "antigravity:x", "name": "y"}]')
        )(parts),
        "models/model.json",
    ),
    "key": (
        lambda parts, mark: with_json(MODEL, spec_as(type="builtins.dict", context=json.dumps([f'x"); {touching(mark)}; ("'])))(parts),
        "models/model.json",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_no_code_of_a_program_runs(name: str, tmp_path: Path) -> None:
    attack, member = ATTACKS[name]
    parts, mark = members(saved("exported")), tmp_path / "mark"
    attack(parts, mark)
    file = packed(tmp_path / "model.pt", parts)
    for reading in (tcjit.load, read):
        with pytest.raises(PartitionError) as caught:
            reading(file)
        assert str(file) in str(caught.value) and member in str(caught.value) and "trust=True" in caught.value.hint, caught.value
    assert not mark.exists()


@pytest.mark.parametrize("name", ["sample inputs", "weight", "constant", "object", "size"])
def test_the_same_files_run_code_where_they_are_trusted(name: str, tmp_path: Path) -> None:
    """So that the test above shows something."""
    parts, mark = members(saved("exported")), tmp_path / "mark"
    ATTACKS[name][0](parts, mark)
    file = packed(tmp_path / "model.pt", parts)
    try:
        tcjit.load(file, trust=True)
    except PartitionError:
        pass  # of what the pickle gave in place of a tensor
    assert mark.exists()


class Writer(nn.Module):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.file)
        return x


class Waking(nn.Module):
    """Runs when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> int:
        return 1

    @torch.jit.export
    def __setstate__(self, state: int) -> None:
        self.training = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_no_file_is_written_by_a_script(tmp_path: Path) -> None:
    file = str(tmp_path / "model.pt")
    torch.jit.script(Writer(str(tmp_path / "mark"))).save(file)
    with pytest.raises(PartitionError, match=r"model\.pt: code/ calls aten\.save"):
        read(file)
    torch.jit.script(Waking()).save(file)
    with pytest.raises(PartitionError, match=r"model\.pt: code/.*__setstate__"):
        read(file)
    assert not (tmp_path / "mark").exists()
    assert torch.equal(read(file, trust=True)(X), X)


def test_pickles_of_a_script_that_make_objects_of_libraries(tmp_path: Path) -> None:
    parts = members(saved("torchscript"))
    name = next(each for each in parts if each.endswith("/data.pkl"))
    parts[name] = b"\x80\x02c__torch__.torch.classes.quantized\nLinearPackedParamsBase\n)\x81."
    with pytest.raises(PartitionError, match=r"data\.pkl makes objects of C\+\+"):
        tcjit.load(packed(tmp_path / "model.pt", parts))


@pytest.mark.parametrize("form", ["exported", "torchscript"])
def test_a_file_comes_back_whole(form: str, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(saved(form))
    again = tcjit.load(tmp_path / "model.pt")
    torch.testing.assert_close(again(X), model()(X))
    torch.testing.assert_close(again(X[:4]), model()(X[:4]))  # the number of rows is in no text of the file
    if form == "exported":
        assert not opened(tmp_path / "model.pt").read("data/sample_inputs/model.pt"), "example inputs are their user's"
        with pytest.raises(ShapeError, match=r"partitioned for inputs with x.size\(\)\[0\] <= 64"):
            again(X[:1].expand(100, 8))


@pytest.mark.parametrize("form", ["exported", "torchscript"])
def test_one_flipped_bit(form: str, tmp_path: Path) -> None:
    """In any member and between them: an error that names the file, or a model that computes the same."""
    content, order = saved(form), random.Random(7)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        starts = [(info.header_offset + 30, len(info.filename) + info.compress_size) for info in archive.infolist()]
    spans = [(start, start + size) for start, size in starts]
    places = [order.randrange(*span) for span in spans for _ in range(2)] + [order.randrange(len(content)) for _ in range(30)]
    file, refused, expected = tmp_path / "model.pt", 0, model()(X)
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << order.randrange(8)
        file.write_bytes(changed)
        try:
            again = tcjit.load(file)
        except PartitionError as error:
            assert str(file) in str(error)
            refused += 1
        else:
            torch.testing.assert_close(again(X), expected)
    assert refused >= len(spans), "checksums are looked at"


GARBAGE: dict[str, tuple[Any, str]] = {
    "a list": ([], "is no object"),
    "a number": (3, "is no object"),
    "format": ({"format": "x"}, "format must be a whole number"),
    "no format": ({"format": None}, "format must be"),
    "format 0": ({"format": 0}, "format must be"),
    "format true": ({"format": True}, "format must be"),
    "later": ({"format": 2, "backends": {"new": 1}}, "whose format 2 is not known here"),
    "form": ({"form": "pickle"}, "form must be one of"),
    "backends": ({"backends": 3}, "backends must be a list of names"),
    "a backend": ({"backends": [3]}, "backends must be"),
    "long": ({"backends": ["x" * 5000]}, "backends must be"),
    "devices": ({"devices": [3]}, "devices must be"),
    "training": ({"training": 1}, "training must be true or false"),
    "regions": ({"regions": "ab"}, "regions must be"),
    "coverage": ({"coverage": {"nodes": 0.5}}, "coverage must be"),
    "part": ({"coverage": {"nodes": 2, "flops": 0, "bytes": 0}}, "coverage must be"),
    "no number": ({"coverage": {"nodes": float("nan"), "flops": 0, "bytes": 0}}, "coverage must be"),
    "rows": ({"rows": [{"op": "x"}]}, "rows must be"),
    "report": ({"report": 5}, "report must be a text"),
    "version": ({"tcjit": {}}, "tcjit must be a version"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_manifests_are_typed(name: str, tmp_path: Path) -> None:
    given, message = GARBAGE[name]
    parts = members(saved("exported"))
    parts[MANIFEST] = json.dumps({**json.loads(parts[MANIFEST]), **given} if isinstance(given, dict) else given).encode()
    with pytest.raises(PartitionError, match=message) as caught:
        tcjit.load(packed(tmp_path / "model.pt", parts))
    assert "model.pt" in str(caught.value) and "extra/tcjit.json" in str(caught.value) or name == "later"


NO_JSON = [b"[" * 200_000, b"[" * 500 + b"]" * 500, b'{"format": ', b"\xff\xfe", b"", b'{"format": 1e999}', b"9" * 9999]


@pytest.mark.parametrize("text", NO_JSON, ids=range(len(NO_JSON)))
def test_manifests_that_are_no_json(text: bytes, tmp_path: Path) -> None:
    parts = members(saved("exported"))
    parts[MANIFEST] = text
    with pytest.raises(PartitionError, match=r"model\.pt: extra/tcjit\.json"):
        tcjit.load(packed(tmp_path / "model.pt", parts))


def test_archives_that_are_none(tmp_path: Path) -> None:
    parts, file = members(saved("exported")), tmp_path / "model.pt"
    with pytest.raises(PartitionError, match="model.pt is no model, or damaged: it has not one folder"):
        tcjit.load(packed(file, {**parts, "other/models/model.json": b"{}"}))
    with pytest.raises(PartitionError, match="model.pt is no model, or damaged: it has not one folder"):
        tcjit.load(packed(file, {**parts, "archive/Models/model.json": b"{}"}))
    with pytest.raises(PartitionError, match="models/model.json is missing"):
        tcjit.load(packed(file, {name: each for name, each in parts.items() if name != MODEL}))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/extra/tcjit.json", bytes(300 << 20))
    assert file.stat().st_size < 1 << 20
    with pytest.raises(PartitionError, match="more than a file of"):
        tcjit.load(file)


def test_a_weight_smaller_than_it_says(tmp_path: Path) -> None:
    def change(document: Any) -> None:
        document["config"]["layer.weight"]["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}, {"as_int": 8}]

    parts = members(saved("exported"))
    with_json(WEIGHTS, change)(parts)
    with pytest.raises(PartitionError, match="cannot be loaded"):
        tcjit.load(packed(tmp_path / "model.pt", parts))
    parts["archive/data/weights/weight_0"] = b""
    with pytest.raises(PartitionError, match="data/weights/weight_0 is damaged"):
        tcjit.load(packed(tmp_path / "model.pt", parts))


@pytest.mark.parametrize(
    ("text", "size", "guard"),
    [
        ("FloorDiv(Symbol('s60', positive=True, integer=True), Integer(2))", True, False),
        ("8*s0 + Max(1, u3)", True, False),
        ("(L['d']['x'].size()[0] // 2) != L['d']['x'].size()[-1]", False, True),
        ("torch.sym_max(L['x'].stride()[0], 2) == math.floor(L['y'])", False, True),
        ("().__class__", False, False),
        ("L['x'].__class__", False, False),
        ("L['x'].size.__func__()", False, False),
        ("L['x'].data_ptr()", False, False),
        ("torch.load('x')", False, False),
        ("math.factorial(9)", False, False),
        ("L['x\"'] == 1", False, False),
        ("2 ** 2 ** 99", False, False),
        ("(lambda: 0)()", False, False),
        ("[x for x in L]", False, False),
        ("eval('1')", False, False),
        ("s0 +", False, False),
        ("1\n2", False, False),
    ],
)
def test_texts_that_are_evaluated_are_arithmetic(text: str, size: bool, guard: bool) -> None:
    assert (is_size(text), is_guard(text)) == (size, guard)


@pytest.mark.parametrize(
    ("logged", "said"),
    [((ValueError("a wrong size\nand more"), "of a file"), "a wrong size"), ((None, "of a file"), "of a file"), ((), "no program")],
)
def test_a_file_that_cannot_be_loaded_says_what_pytorch_logged(logged: tuple[Any, ...], said: str) -> None:
    """PyTorch logs the cause of a failure and raises another error, about what it could not go on with."""
    with pytest.raises(PartitionError) as caught, failing("model.pt2"):
        if logged:
            logging.getLogger("torch.export").warning(logged[1], exc_info=logged[0])
        raise RuntimeError("no program")
    assert caught.value.what == f"model.pt2 cannot be loaded: {said}"
