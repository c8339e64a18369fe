"""Where the seconds of a piece of code go, by the names of its phases."""

from __future__ import annotations

import time
from collections.abc import Callable


def laps(spent: dict[str, float]) -> Callable[[str], None]:
    """What is called at the end of each phase: it adds the seconds since the last call to `spent`, by name."""
    last = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        spent[name] = spent.get(name, 0.0) + now - last
        last = now

    return lap
