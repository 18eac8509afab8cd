"""A directory for the cache of one test, and a temporary stand-in that is seen."""
from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tcjit.cache import Store
from tcjit.cache.directory import Directory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store turns when ``home`` fails it."""
    folder = tmp_path / "spare"
    monkeypatch.setattr("tcjit.cache.storage._spare", functools.lru_cache(lambda: Directory(folder)))
    return folder


@pytest.fixture
def store(home: Path, spare: Path) -> Store:
    return Store(home)
