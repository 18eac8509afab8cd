"""What is here needs an NVIDIA GPU, unless it is marked for another ring."""
from __future__ import annotations

import pytest
from support.rings.cuda import require


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> None:
    """Skip, with the reason, where there is none."""
    if not any(request.node.get_closest_marker(ring) for ring in ("text", "host")):
        require()
