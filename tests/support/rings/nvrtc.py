"""The releases of NVRTC that tests compile with: the one that is found, and 13.0, which ``make test`` installs in a folder of its own.

13.0 is what PyTorch for CUDA 13.0 brings; it gives kernels other registers than later releases, and its wheel has no run path.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcjit.errors import CompileError
from tcjit.runtime import nvrtc

OTHER = "13.0"
OTHER_PATH = Path(sys.prefix, f"nvrtc-{OTHER}", "nvidia", "cu13", "lib", "libnvrtc.so.13")
RELEASES = ("installed", OTHER)


def require() -> None:
    """Skip the test where there is no NVRTC at all."""
    try:
        nvrtc.find()
    except CompileError as missing:
        pytest.skip(f"{missing.what}: {missing.hint}")


@contextmanager
def using(release: str) -> Iterator[None]:
    """Compile with one of ``RELEASES``; skips the test where it is not installed."""
    require()
    if release == OTHER and not OTHER_PATH.exists():
        pytest.skip(f"no NVRTC {OTHER}: pip install --no-deps --target {sys.prefix}/nvrtc-{OTHER} nvidia-cuda-nvrtc==13.0.88")
    with pytest.MonkeyPatch.context() as patch:
        if release == OTHER:
            patch.setattr(nvrtc, "find", lambda: str(OTHER_PATH))
        nvrtc._library.cache_clear()
        try:
            yield
        finally:
            nvrtc._library.cache_clear()
