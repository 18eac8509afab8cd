"""A tuner's other side that takes for ever to begin, and says who it is in the folder that it is given."""
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    Path(request["note"], str(os.getpid())).touch()
    while True:
        time.sleep(1)
