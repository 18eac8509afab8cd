#!/usr/bin/env python3
"""tcjit on an NVIDIA GPU beside its peers: ``python benchmarks/gpu.py --help``. The code stands in the folder ``gpu`` beside this file."""
from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from gpu.main import main  # noqa: E402 - the path above comes first

if __name__ == "__main__":
    sys.exit(main())
