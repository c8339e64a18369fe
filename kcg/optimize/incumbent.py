"""The incumbent: the best plan of parts that passed every rule, in RESULT.json from the first verdict of a run on.

So whatever ends a run after that, `kill -9` too, leaves the best that was verified by then. The file is written whole
each time, says that it is not complete and how to go on, and has tinygrad's own schedule where nothing was judged.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcg.errors import UsageError
from kcg.report.result import write_result
from kcg.types import ModelCheck, Plan, ProgressPoint, Result

if TYPE_CHECKING:
    from kcg.optimize.work import RegionResults

SHARE: Final = 1 / 20
"""Of the time since it was last made, what making and writing it may take: on a CPU the device waits meanwhile, and on
a GPU who judges shares the interpreter. Of Flux 1024 it
is a fifth of a second of one core: .12 the best plan of 90 candidate regions, .03 the rest of the result, .04 to write
.7 MB; a verdict of its took four seconds on one NVIDIA H100. So only where verdicts come faster, as those that are
taken over of an earlier run, are some written together."""
LARGE: Final = 0.05
"""Of what the workload takes by what was verified, a gain of which the file soon has: making it may take five times the
share then. Beside a search on a GPU, which keeps the interpreter busy, it took seconds, and four kernels of Flux 768
that save .5 of 1.13 s were in the file twenty seconds after their verdicts."""
UNCHECKED: Final = ModelCheck(None, "not run: the run ended before")


class Incumbent:
    """The file of one run. It never ends the run: where it cannot be written, the result at the end says so."""

    def __init__(
        self,
        path: Path,
        make: Callable[[RegionResults | None], Result],
        *,
        whole: str,
        go_on: str,
        set_aside: Callable[[], None],
        history: list[ProgressPoint],
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` gives the result by these results of all regions, or by the best that was judged so far; `whole` is
        what is checked at the end, e.g. a script, `go_on` the command that goes on; `set_aside` is called before the
        file is written. What the workload takes by what was verified is put into `history` whenever that changes; its
        times are since `started`, by the same clock."""
        self._path, self._make, self._set_aside, self._clock = path, make, set_aside, clock
        self._whole, self._go_on = whole, f"; to go on: {go_on}" if go_on else ""
        self._history, self._started = history, started
        self._written: tuple[Plan, frozenset[str]] | None = None  # with the regions that were provisional
        self._begun_s = -math.inf  # when the result was last made
        self._took_s = 0.0  # what that took
        self._missing_s = 0.0  # what the workload gains by what the file does not have
        self.verified_s: tuple[float, float] | None = None
        """What the workload takes by what was verified, and by tinygrad's own schedules; None before any verdict."""

    def improve(self, saved_s: float = 0.0) -> bool:
        """Something more was judged, which saves about so many seconds of the workload: write what is the best now,
        where the file has another plan, or one of which more is provisional. What comes too soon is written with the
        next verdict, or when this is called again: whether it was not too soon."""
        begun = self._clock()
        self._missing_s += saved_s
        is_large = self.verified_s is not None and self._missing_s >= LARGE * self.verified_s[0]
        if self._took_s > (5 if is_large else 1) * SHARE * (begun - self._begun_s):
            return False
        self._missing_s = 0.0
        result = self._seen(self._make(None))
        if self._written != _state_of(result):
            self._write(result, "everything was judged: what was not has the best that was, or tinygrad's own")
        self._begun_s, self._took_s = begun, self._clock() - begun
        return True

    def settle(self, results: RegionResults) -> None:
        """All is judged, and these are the results by the best plan; what is left is the check of the whole."""
        result = self._seen(self._make(results))
        self._write(result, f"the whole {self._whole} was checked: what is changed was verified part by part")

    def _seen(self, result: Result) -> Result:
        """A result, which has what was verified until now."""
        self.verified_s = result.total_after_s, result.total_before_s
        if not self._history or self._history[-1].total_s != result.total_after_s:
            elapsed_s = max(self._clock() - self._started, 0.0)
            self._history.append(ProgressPoint(elapsed_s, result.measurements, result.total_after_s))
        return replace(result, verified_progress=tuple(self._history))

    def _write(self, result: Result, ended_before: str) -> None:
        warnings = (*result.warnings, f"the run ended before {ended_before}{self._go_on}")
        with contextlib.suppress(OSError, UsageError):
            self._set_aside()
            write_result(replace(result, complete=False, model_check=UNCHECKED, warnings=warnings), self._path)
            self._written = _state_of(result)


def _state_of(result: Result) -> tuple[Plan, frozenset[str]]:
    """What is written anew where it changes: the plan, and what of it is provisional."""
    return result.plan, frozenset(row.region.id for row in result.provisional)
