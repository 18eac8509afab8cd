"""What the tests share: programs and their arguments here, random ones in ``fuzz``, the places where kernels run in ``rings``, models and
graphs in ``byoc``, studies and searches in ``tuner``.

Child processes find it by ``PYTHONPATH``, and run its modules by ``python -m support.rings.opencl``, never as files: their folders have
modules called ``cuda`` and ``opencl``. What else this process finds by ``PYTHONPATH``, they find too.
"""
from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PYTHONPATH = os.pathsep.join(dict.fromkeys((str(ROOT), str(TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))))
STAND_INS = ("cuda_host", "opencl")  # the targets that stand in for GPUs, on a processor
