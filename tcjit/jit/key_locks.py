"""A lock for each of many keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class KeyLocks:
    """A lock per key, kept as long as a thread holds it or waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Any, tuple[threading.Lock, int]] = {}  # by key: its lock, and how many hold it or wait for it

    @contextmanager
    def acquired(self, key: Any) -> Iterator[None]:
        with self._lock:
            lock, users = self._held.get(key, (threading.Lock(), 0))
            self._held[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _, users = self._held[key]
                if users > 1:
                    self._held[key] = lock, users - 1
                else:
                    del self._held[key]
