"""Which package calls the CUDA driver, and what is said where there is none, or no driver.

Modules: runtime.cuda_driver
"""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import PYTHONPATH
from support.rings import cuda_stub as stub

from tcjit import config
from tcjit.errors import LaunchError, TCError
from tcjit.runtime import cuda, cuda_driver

pytestmark = pytest.mark.cold
LIGHT = """
import tcjit.runtime.cuda, tcjit.runtime.nvrtc
print(sorted({"numpy", "torch"} & set(sys.modules)))
"""


def run(package: str, code: str, **environment: str) -> list[str]:
    return stub.run(package, code, **environment).splitlines()


def child(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def without(*packages: str) -> str:
    return f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def test_the_choice_is_made_once() -> None:
    stub.require("cuda-bindings")
    code = "print(cuda.driver().name, cuda.driver() is cuda.driver())"
    assert run("cuda-bindings", code, TCJIT_CUDA_DRIVER="") == ["cuda-bindings True"]
    assert run("cuda-bindings", code, TCJIT_CUDA_DRIVER="auto") == ["cuda-bindings True"]
    stub.require("pycuda")
    assert run("cuda-bindings", without("cuda") + code, TCJIT_CUDA_DRIVER="") == ["pycuda True"]
    assert run("pycuda", code) == ["pycuda True"]


def test_no_package() -> None:
    stub.require("cuda-bindings")
    code = without("cuda", "pycuda") + "print(raises(LaunchError, cuda.count))"
    lines = run("cuda-bindings", code, TCJIT_CUDA_DRIVER="")
    assert lines[0] == "no package to call the CUDA driver: No module named 'cuda'; No module named 'pycuda'"
    assert lines[1].startswith("try: pip install 'tcjit[cuda]'")
    assert "tcjit[pycuda]" in run("cuda-bindings", code, TCJIT_CUDA_DRIVER="pycuda")[1]


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TCJIT_CUDA_DRIVER", raising=False)
    assert config.cuda_driver() == ""
    for text, meaning in ((" PyCUDA ", "pycuda"), ("cuda-bindings", "cuda-bindings"), ("auto", ""), ("", "")):
        monkeypatch.setenv("TCJIT_CUDA_DRIVER", text)
        assert config.cuda_driver() == meaning
    monkeypatch.setenv("TCJIT_CUDA_DRIVER", "cupy")
    with pytest.raises(TCError, match="TCJIT_CUDA_DRIVER='cupy' is no driver package(.|\n)*try: cuda-bindings or pycuda"):
        config.cuda_driver()


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-nobody-has.so.1")
    monkeypatch.setattr(cuda, "_process", cuda._Process())
    cuda_driver.library.cache_clear()
    try:
        with pytest.raises(LaunchError, match="there is no CUDA driver: libcuda-that-nobody-has.so.1: cannot open") as caught:
            cuda.count()
        assert "nvidia-driver" in caught.value.hint and "--gpus all" in caught.value.hint
        assert cuda_driver.driver_version() is None
    finally:
        cuda_driver.library.cache_clear()


def test_importing_needs_nothing() -> None:
    """No driver, no package, no torch."""
    code = without("torch", "cuda", "pycuda") + LIGHT
    assert child(code) == ["[]"]
