"""Keys: everything that a kernel depends on is in them, and nothing else.

Modules: cache.storage
"""
from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.cache import files, printed

from tcjit.cache import call_key, code_version, keys, options_key, storage, text_key

FACTS: dict[str, Any] = {"text": "def f", "shapes": [[4, 4], None], "dtypes": ["float32"], "scalars": {"s": 2}, "checked": True}


def test_every_fact_counts() -> None:
    changed = [
        {**FACTS, "text": "def g"},
        {**FACTS, "shapes": [[4, 5], None]},
        {**FACTS, "shapes": [[4], 4, None]},
        {**FACTS, "scalars": {"s": 2.0}},
        {**FACTS, "scalars": {"s": True}},
        {**FACTS, "checked": False},
        {**FACTS, "more": None},
    ]
    for key in (call_key, partial(options_key, program="f" * 64)):
        found = [key(target, **facts) for facts in (FACTS, *changed) for target in ("cpu", "cuda:sm_90")]
        assert len(set(found)) == len(found)
        assert all(len(text) == 64 and int(text, 16) for text in found)
    assert call_key("cpu", **FACTS) == call_key("cpu", **dict(reversed(FACTS.items()))), "order does not count"


def test_tools_count_for_binaries_only(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, options, text = call_key("cpu", "a compiler", **FACTS), options_key("cpu", "f" * 64, **FACTS), text_key("def f")
    assert call_key("cpu", "another compiler", **FACTS) != kernel
    monkeypatch.setattr(keys, "code_version", lambda: "another version")
    assert call_key("cpu", "a compiler", **FACTS) != kernel and text_key("def f") != text
    assert options_key("cpu", "f" * 64, **FACTS) == options


def test_families_tell_their_program() -> None:
    one, other = "1" * 64, "1" * 15 + "2" * 49
    assert keys.is_of_program(options_key("cpu", one, device="d"), one) and not keys.is_of_program(options_key("cpu", one), other)
    assert len({options_key("cpu", one), options_key("cpu", other), options_key("cuda", one), options_key("cpu", one[:-1] + "2")}) == 4


def test_any_text_has_a_key() -> None:
    texts = ["", "é", "\ud800", "\0", "a" * 100000]
    assert len({text_key(text) for text in texts}) == len(texts)


def test_code_version_is_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two versions side by side, in one cache: each finds its own. A copy elsewhere, unchanged or only in what uses kernels, shares it."""
    code = """
import json, sys
from tcjit.cache import code_version, text_key, store
if store().signatures(text_key("text")) is None:
    store().put_signatures(text_key("text"), [{"version": code_version()}])
print(json.dumps([code_version(), store().signatures(text_key("text"))[0]["version"]]))
"""
    copies = [str(tmp_path / name) for name in ("one", "two", "same", "above")]
    for source, copy in zip((str(ROOT), *copies), copies):
        shutil.copytree(f"{source}/tcjit", f"{copy}/tcjit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "two" / "tcjit" / "grammar" / "dtypes.py").open("a").write("\n")
    (tmp_path / "same" / "tcjit" / ".#lock.py").symlink_to("nowhere")
    (tmp_path / "above" / "tcjit" / "byoc" / "partition.py").open("a").write("\n")
    cache = str(tmp_path / "cache")
    runs = [printed(code, PYTHONPATH=path, TCJIT_CACHE_DIR=cache) for path in (*copies, *copies)]
    assert all(own == stored for own, stored in runs)
    one, two, same, above, *again = [own for own, _ in runs]
    assert one == same == above != two and again == [one, two, same, above]


def test_code_version_looks_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path))
    code_version.cache_clear()
    version = code_version()
    note = next(path for path in files(tmp_path) if path.name.startswith("code-"))
    name, stored = note.name, storage.store().note(note.name)
    assert stored is not None and stored["version"] == version
    storage.store().put_note(name, {**stored, "version": "remembered"})
    code_version.cache_clear()
    assert code_version() == "remembered"
    storage.store().put_note(name, {**stored, "look": "files looked otherwise", "version": "remembered"})
    code_version.cache_clear()
    assert code_version() == version
    assert code_version() is code_version()


def test_a_warm_process_asks_no_compiler(tmp_path: Path) -> None:
    """The second process computes the same key without running the compiler or reading a source file."""
    script = tmp_path / "cc"
    script.write_text(f'#!/bin/sh\necho run >> {tmp_path}/log\nexec gcc "$@"\n')
    script.chmod(0o755)
    code = """
import json
from tcjit.cache import call_key
from tcjit.jit import targets
print(json.dumps(call_key("cpu", targets.find("cpu").identity(), n=1)))
"""
    environment = {"TCJIT_CACHE_DIR": str(tmp_path / "cache"), "CC": str(script)}
    first = printed(code, **environment)
    log = (tmp_path / "log").read_text()
    assert log and printed(code, **environment) == first
    assert (tmp_path / "log").read_text() == log
    os.utime(script, ns=(5, 5))
    assert printed(code, **environment) != first, "another compiler, another binary"
