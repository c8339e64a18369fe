"""What tests plant in the children of a service or of a host: jobs for the one that owns the device, and compilers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from kcg.measure.workbench import Workbench


def slow_clock(factor: float) -> None:
    """Every launch in this process takes `factor` times as long from now on, by its clock."""
    launcher = Workbench.launcher

    def slow(self: Workbench, runs: Any, **options: Any) -> Callable[[], float]:
        launch = launcher(self, runs, **options)
        return lambda: factor * launch()

    Workbench.launcher = slow  # type: ignore[method-assign]


def wrong_reading() -> None:
    """Every buffer that this process reads back from now on has one element that was not computed."""
    read = Workbench.read

    def one_wrong(self: Workbench, slot: int) -> Any:
        found = read(self, slot).copy()
        found.flat[7] = 0
        return found

    Workbench.read = one_wrong  # type: ignore[method-assign]


def loops(job: object) -> None:
    """A compiler that does not end."""
    time.sleep(600)


def aborts(job: object) -> None:
    """A compiler that fails an assertion of its own."""
    os.abort()
