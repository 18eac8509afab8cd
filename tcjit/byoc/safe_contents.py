"""What a model's file may hold so that loading and running it runs nothing but operations on tensors.

PyTorch loads an exported program by unpickling, evaluating texts, looking names up in Python's modules and writing Python that has the
file's names in it. So every member, text and name is compared with what a program of tensor operations has; the rest asks for
``trust=True``.
"""
from __future__ import annotations

import io
import json
import keyword
import pickletools
import re
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tcjit.byoc import containers
from tcjit.byoc.archive import Archive
from tcjit.byoc.expressions import is_guard, is_size
from tcjit.errors import PartitionError

MODEL, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
CONFIGS = {
    "data/weights/model_weights_config.json": ("data/weights/", re.compile(r"weight_\d+")),
    "data/constants/model_constants_config.json": ("data/constants/", re.compile(r"tensor_\d+")),
}
TRUST = "trust=True (tcjit partition: --trust) if you trust who made the file: it may then run any code"
_EXPORTED = re.compile(
    r"archive_(format|version)|byteorder|\.data/(version|serialization_id)|extra/.*|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
)
_SCRIPTED = re.compile(
    r"version|byteorder|\.data/(version|serialization_id)|extra/.*|(data|constants|traced_inputs)(\.pkl|/\d+)|code/[\w./]+\.py(\.debug_pkl)?"
)
_SPACES = frozenset("aten prim prims mkl mkldnn mkldnn_prepacked onednn quantized quantized_decomposed tcjit torchvision".split())
_HIGHER = frozenset("cond while_loop map_impl scan associative_scan wrap_with_set_grad_enabled wrap_with_autocast".split())
_NUMBERS = frozenset("getitem add sub mul floordiv truediv mod pow neg pos abs eq ne lt le gt ge and_ or_ not_ lshift rshift".split())
_OF_MATH = frozenset("ceil floor trunc sqrt".split())
_ACTING = frozenset("save load from_file rpc_async rpc_sync rpc_remote PythonOp IgnoredPythonOp".split())  # files, other processes, Python
_TARGET = re.compile(r"torch\.ops\.(\w+)\.(\w+)(\.\w+)?|_operator\.(\w+)|math\.(\w+)|torch\.(sym_\w+)")
_WORD = re.compile(r"[\w.@:/+-]*")
_KEY = re.compile(r"[\w ./:@+-]*")
_FACTORIES = frozenset("int float str list dict set tuple".split())


def check(archive: Archive, form: str) -> None:
    """Raises PartitionError where a file of this form holds more than tensors, and operations on them that act on nothing else."""
    allowed, contents = (_EXPORTED, _exported) if form == "exported" else (_SCRIPTED, _scripted)
    for name in archive.members:
        if allowed.fullmatch(name) is None:
            _refuse(archive, name, "is no part of a model of tensor operations")
    contents(archive)


def operation(name: str) -> bool:
    """Whether an operator, such as ``aten.add``, is known to act on tensors only."""
    space, _, rest = name.partition(".")
    return rest.partition(".")[0] in _HIGHER if space == "higher_order" else space in _SPACES and rest.partition(".")[0] not in _ACTING


def _refuse(archive: Archive, member: str, why: str) -> None:
    raise PartitionError(f"{archive.path}: {member} {why}", hint=TRUST)


# exported programs


def _exported(archive: Archive) -> None:
    for name in (MODEL, SAMPLES, *CONFIGS):
        if name not in archive.members:
            raise PartitionError(f"{archive.path}: {name} is missing")
    samples = archive.read(SAMPLES, len(archive.content))
    if samples:
        try:
            found = torch.load(io.BytesIO(samples), weights_only=True)
        except Exception:  # torch.export would unpickle it without limits then
            found = None
        if not isinstance(found, (tuple, dict)):
            _refuse(archive, SAMPLES, "holds more than tensors, numbers and texts")
    for name, (folder, pattern) in CONFIGS.items():
        with archive.failing(name):
            for entry in archive.json(name)["config"].values():
                _payload(archive, name, folder, pattern, entry)
    with archive.failing(MODEL):
        document = archive.json(MODEL)
        for place, text in _texts(document):
            _text(archive, place, text)
        for signature in (each.get("signature") for each in document["graph_module"]["module_call_graph"]):
            for spec in (signature["in_spec"], signature["out_spec"]) if signature else ():
                _tree(archive, spec)
        for graph in _graphs(document):
            if not all(_KEY.fullmatch(given.get("as_string", "")) for given in graph["inputs"]):
                _refuse(archive, MODEL, "has an input that is more than a name")
            for node in graph["nodes"]:
                if node["target"].startswith("torch.ops.tcjit."):
                    _region(archive, MODEL, node["inputs"][0]["arg"]["as_string"])


def _payload(archive: Archive, config: str, folder: str, pattern: re.Pattern[str], entry: dict[str, Any]) -> None:
    path = entry["path_name"]
    if entry["use_pickle"] is not False or pattern.fullmatch(path) is None:
        _refuse(archive, f"{folder}{path}" if isinstance(path, str) else config, "is a pickle, which can run any code")
    if folder + path not in archive.members:
        raise PartitionError(f"{archive.path}: {folder}{path} is missing")
    sizes = [each["as_int"] for each in entry["tensor_meta"]["sizes"]]
    empty = not archive.read(folder + path, len(archive.content))
    if not all(type(each) is int and 0 <= each < 1 << 62 for each in sizes) or (empty and prod(sizes)):
        raise PartitionError(f"{archive.path}: {folder}{path} is damaged: it has not the sizes that {config} says")


def _texts(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text of a document, with the names of the objects' fields that lead to it; the names too, under their own."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield (*place, "key"), name
            yield from _texts(each, (*place, name))
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, place)
    elif isinstance(value, str):
        yield place, value


def _graphs(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "nodes" in value and "inputs" in value:
            yield value
        for each in value.values():
            yield from _graphs(each)
    elif isinstance(value, list):
        for each in value:
            yield from _graphs(each)


_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "expr_str": (is_size, "a size that is more than arithmetic"),
    "guards_code": (is_guard, "a condition that is more than arithmetic on sizes"),
    **dict.fromkeys(("name", "as_name", "as_names"), (lambda text: not text or _identifier(text), "what is no name")),
    "forward_arg_names": (lambda text: _identifier(text), "what is no name"),
}


def _text(archive: Archive, place: tuple[str, ...], text: str) -> None:
    """One text of the document: names go into Python that PyTorch writes and runs, and so may be nothing else."""
    last = place[-1]
    if "metadata" in place or last in ("in_spec", "out_spec"):  # never run; looked at as trees
        return
    if last in ("as_string", "as_strings"):  # written as Python writes a text
        return
    if last in ("target", "as_operator") and "nodes" in place:
        if not _target(text):
            _refuse(archive, MODEL, f"calls {text[:200]}, which is not known to act on tensors only")
        return
    holds, what = _RULES.get(last, (lambda each: _WORD.fullmatch(each) is not None, "an odd text"))
    if not holds(text):
        _refuse(archive, MODEL, f"has {what} at {'.'.join(each for each in place if each.isidentifier())[-200:]}: {text[:200]!r}")


def _identifier(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text) and not text.startswith("__")


def _target(text: str) -> bool:
    found = _TARGET.fullmatch(text)
    if found is None:
        return False
    space, op, _, number, of_math, sym = found.groups()
    return bool(operation(f"{space}.{op}") if space else (number in _NUMBERS or of_math in _OF_MATH or sym))


def _tree(archive: Archive, text: str) -> None:
    """A tree of inputs or outputs: only classes that are known here, and no names of what to import."""
    document = json.loads(text)
    tree = document[1] if isinstance(document, list) else document
    waiting = [tree]
    containers.register()
    while waiting:
        node = waiting.pop()
        kind, context = node["type"], node["context"]
        waiting += node["children_spec"]
        if kind is None:
            continue
        if kind not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            module = str(kind).rpartition(".")[0] or "the module that registers it"
            what = f"{archive.path}: the model takes or returns {str(kind)[:200]}, a class that is not known here"
            raise PartitionError(what, hint=f"import {module} before loading; it registers the class with torch.utils._pytree")
        if kind == "collections.defaultdict":
            if context.get("default_factory_module") != "builtins" or context.get("default_factory_name") not in _FACTORIES:
                _refuse(archive, MODEL, "has a defaultdict of something else than a built-in class")
            context = context["dict_context"]
        if isinstance(context, str) and kind not in _read_by_class():
            context = json.loads(context)
        for place, each in _texts(context):
            if _KEY.fullmatch(each) is None or (place[-1:] == ("key",) and each in ("__enum__", "fqn")):
                _refuse(archive, MODEL, f"has an odd text in the tree of its inputs or outputs: {each[:200]!r}")
    if tree["type"] == "builtins.tuple" and len(tree["children_spec"]) == 2 and tree["children_spec"][1]["type"] == "builtins.dict":
        named = json.loads(tree["children_spec"][1]["context"])
        if not all(isinstance(each, str) and _identifier(each) for each in named):
            _refuse(archive, MODEL, "has arguments whose names are none")


def _read_by_class() -> set[str]:
    """Classes that read their own context."""
    nodes = pytree.SUPPORTED_SERIALIZED_TYPES.values()
    return {each.serialized_type_name for each in nodes if each.from_dumpable_context is not None}


def _region(archive: Archive, member: str, text: str) -> None:
    """The spec of a region: operations on tensors as well."""
    with archive.failing(member):
        for node in json.loads(text)["nodes"]:
            if not operation(str(node["op"])):
                _refuse(archive, member, f"calls {str(node['op'])[:200]} in a region, which is not known to act on tensors only")


# TorchScript


def _scripted(archive: Archive) -> None:
    """TorchScript's own unpickler makes tensors and classes of the file; such a class may have code that runs then, as may those in C++."""
    for name in archive.members:
        if name.endswith(".pkl"):
            with archive.failing(name):
                _unpickled(archive, name)
        elif name.startswith("code/") and name.endswith(".py"):
            with archive.failing(name):
                text = archive.read(name).decode("utf-8")
                if "__setstate__" in text or "__setstate__" in text.encode("latin-1", "backslashreplace").decode("unicode_escape"):
                    _refuse(archive, name, "has code that runs while it is loaded (__setstate__)")


def _unpickled(archive: Archive, name: str) -> None:
    for code, argument, _ in pickletools.genops(archive.read(name)):
        if code.name in ("STACK_GLOBAL", "INST") or (code.name == "GLOBAL" and "torch.classes" in str(argument)):
            _refuse(archive, name, f"makes objects of C++ ({argument})")


def check_script(archive: Archive, module: torch.jit.ScriptModule) -> None:
    """Raises PartitionError where a loaded module's ``forward`` calls what is not known to act on tensors only."""
    if module._c._get_forward_hooks() or module._c._get_forward_pre_hooks():
        _refuse(archive, "code/", "has hooks, code that runs beside forward")
    graph = module._c._get_method("forward").graph.copy()
    torch._C._jit_pass_inline(graph)
    for node in _nodes(graph):
        kind = node.kind().replace("::", ".")
        if not operation(kind) or kind in ("prim.CallMethod", "prim.CallFunction"):
            _refuse(archive, "code/", f"calls {kind}, which is not known to act on tensors only")
        if kind == "tcjit.call":
            spec = next(node.inputs()).node()
            if spec.kind() != "prim::Constant":
                _refuse(archive, "code/", "computes what a region is")
            _region(archive, "code/", spec.s("value"))


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
        for name in node.attributeNames():
            if node.kindOf(name) == "g":
                yield from _nodes(node.g(name))
