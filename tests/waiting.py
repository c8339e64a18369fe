"""Waiting for what another process or thread does: for an event, and however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""How long a test waits for what takes a moment on a machine with nothing else to do. It only bounds a hang: nothing is
shown by its being over but that the event never comes, so what must not end by itself lasts longer."""


def wait_until(condition: Callable[[], bool], *, seconds: float = PATIENCE_S) -> bool:
    """Whether `condition` came true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def waited(condition: Callable[[], bool]) -> None:
    """Return once `condition` is true."""
    assert wait_until(condition), f"it never came about in {PATIENCE_S:g} s"
