"""What a run may spend, and when its time is over. What the rest of it will take: `kcg.optimize.estimates`."""

from __future__ import annotations

import threading
import time
from typing import Final

from kcg.search.problem import Ledger

OVERTIME: Final = 0.05  # of the budget, within which a run still counts as in time
LEAST_OVERTIME_S: Final = 3.0  # or so many seconds, where these are more
SLOWER: Final = 3.0  # so many times what was expected is waited for when a budget is over


def overtime_s(limit_s: float) -> float:
    """How much longer than a budget of so many seconds a run may take and still counts as in time, in seconds."""
    return max(OVERTIME * limit_s, LEAST_OVERTIME_S)


class Budget:
    """What a run may spend, and what it has spent: the ledger of its search, and when its time is over."""

    def __init__(self, *, started: float, limit_s: float | None, measurements: int | None) -> None:
        """`started` is when the run began, by `time.monotonic`; `limit_s` is from there to the result."""
        self.started, self.limit_s = started, limit_s
        self.ledger = Ledger(max_measurements=measurements)
        self._lock = threading.Lock()

    def charge(self, *, measurements: int = 0, compilations: int = 0) -> None:
        """So much more was spent. Called from any thread."""
        with self._lock:
            self.ledger.measurements += measurements
            self.ledger.compilations += compilations

    def search_until(self, deadline: float | None) -> None:
        """Let the search end at this time, by `time.monotonic`."""
        self.ledger.deadline = deadline

    @property
    def over_at(self) -> float | None:
        """When the budget is over, by `time.monotonic`; None without one."""
        return None if self.limit_s is None else self.started + self.limit_s

    @property
    def late_at(self) -> float | None:
        """When a run counts as late, by `time.monotonic`; None without a budget."""
        return None if self.limit_s is None else self.started + self.limit_s + overtime_s(self.limit_s)

    @property
    def is_over(self) -> bool:
        return self.over_at is not None and time.monotonic() >= self.over_at

    def patience_s(self, expected_s: float) -> float | None:
        """How long to wait now for something that should take `expected_s`, in seconds; None: as long as its own
        deadline allows. In a budget nobody waits much longer than until it is over for a process that was stopped."""
        if self.over_at is None or self.limit_s is None:
            return None
        return max(self.over_at - time.monotonic(), SLOWER * expected_s) + overtime_s(self.limit_s)
