"""A block in which tinygrad schedules in a fraction of its time, see `kcg.compat.store_hazards`. Importing this module
imports no tinygrad."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kcg.compat.capture import when_imported
from kcg.compat.store_hazards import find_store_hazards_quickly

_lock = threading.Lock()
_undo: list[Callable[[], None]] = []
_blocks = 0  # that are open, in any thread


@contextlib.contextmanager
def scheduling_quickly() -> Iterator[None]:
    """Inside the block, and inside any other that is open, this process finds the same schedules sooner. It may begin
    before a program imports tinygrad."""
    global _blocks
    with _lock:
        _blocks += 1
    try:
        with when_imported("tinygrad.schedule", _begin):
            yield
    finally:
        with _lock:
            _blocks -= 1
            while _undo and not _blocks:
                _undo.pop()()


def _begin(schedule: Any) -> None:
    with _lock:
        if not _undo:
            _undo.append(find_store_hazards_quickly(schedule))
