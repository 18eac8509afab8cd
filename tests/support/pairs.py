"""Parameters of a test that are independent of one another: as few combinations as hold every pair of values."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairs(indirect: Sequence[str] = (), **values: Iterable[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrises a test, or its fixtures that are ``indirect``; a mapping names its values.

    Of all combinations those are chosen, one after another, that hold most pairs which none before them holds.
    """
    named = [list(each.items()) if isinstance(each, Mapping) else [(str(value), value) for value in each] for each in values.values()]
    places = [range(len(each)) for each in named]
    chosen = []
    left = {((a, i), (b, j)) for a, b in combinations(range(len(places)), 2) for i in places[a] for j in places[b]}
    every = {one: set(combinations(enumerate(one), 2)) for one in product(*places)}
    while left:
        best = max(every, key=lambda one: len(every[one] & left))
        left -= every.pop(best)
        chosen.append(best)
    picked = [[each[place] for each, place in zip(named, one)] for one in chosen]
    params = [pytest.param(*(value for _, value in one), id="-".join(name for name, _ in one)) for one in picked]
    return pytest.mark.parametrize(list(values), params, indirect=indirect)
