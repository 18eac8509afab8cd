"""The benchmark's models, which lie beside the tests' path."""
from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from models import MODELS, Model  # noqa: E402 - the path above comes first
from models.compare import detections, largest, results  # noqa: E402

sys.path.remove(str(BENCHMARKS))
__all__ = ["BENCHMARKS", "MODELS", "Model", "detections", "largest", "results"]
