"""Where the time of one optimisation goes, from the start of the process to the result."""

from __future__ import annotations

import time
from typing import Final

STARTING, CAPTURING, OPENING, BASELINES, SEARCH, JUDGING, MODEL = PHASES = (
    "starting",
    "capturing",
    "opening",
    "baselines",
    "search",
    "judging",
    "model",
)
"""Until the workload is captured; capturing it; what is left of opening the device by then, and planning; timing
tinygrad's own schedules, hand-written kernels and (on a GPU, meanwhile) reading the predictor; searching; re-timing and
verifying; the check of the whole model or script, and writing the result."""

WORDS: Final = {
    STARTING: "starting",
    CAPTURING: "capturing the workload",
    OPENING: "opening the device",
    BASELINES: "timing tinygrad's own schedules",
    SEARCH: "searching",
    JUDGING: "re-timing and verifying",
    MODEL: "checking the whole",
}
"""What each is called in the report."""


class Phases:
    """A stopwatch of which one phase runs at a time."""

    def __init__(self, started: float) -> None:
        """`started` is when the first phase began, by `time.monotonic`."""
        self._now, self._since = STARTING, started
        self._spent: dict[str, float] = {}

    def begin(self, phase: str) -> None:
        """End the phase that runs and begin another one of `PHASES`."""
        assert phase in PHASES, phase
        now = time.monotonic()
        self._spent[self._now] = self._spent.get(self._now, 0.0) + now - self._since
        self._now, self._since = phase, now

    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Each phase that there was, in their order, up to now: together the time since the start."""
        self.begin(self._now)
        return tuple((phase, self._spent[phase]) for phase in PHASES if phase in self._spent)
