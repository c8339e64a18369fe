"""What a run keeps of itself from its start to its result: phases, warnings, progress, and how it ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kcg.optimize.job_log import JobLog
from kcg.report.phases import GOES_ON, PHASES, STARTING
from kcg.search.problem import Observation
from kcg.types import Expectation, Prediction, ProgressPoint, WorkloadCall

if TYPE_CHECKING:
    from kcg.optimize.console import Progress
    from kcg.optimize.live import LiveFile


class RunLog:
    """The one thing of a run that every step adds to, by its methods only."""

    def __init__(self, progress: Progress, *, started: float) -> None:
        """`started` is when the run began, and its first phase, by `time.monotonic`."""
        self.progress, self.started = progress, started
        self.jobs = JobLog(started)
        self.warnings: list[str] = []
        self.history: list[ProgressPoint] = []
        self.verified: list[ProgressPoint] = []  # by `Incumbent`
        self.expectations: list[tuple[WorkloadCall, Expectation]] = []
        self.interrupted = False
        self.lost = ""  # why the device went away in the middle, if it did
        self.verified_s: tuple[float, float] | None = None  # see `Incumbent.verified_s`
        self.live: LiveFile | None = None  # what is kept up to date for who watches the run
        self._now, self._since = STARTING, started
        self._spent: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watched(self, file: LiveFile) -> Iterator[LiveFile]:
        """Keep `file` up to date inside. It is removed where the block raises."""
        self.live = file
        try:
            yield file
        except BaseException:
            file.forget()
            raise
        finally:
            self.live = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def ended_early(self) -> bool:
        return self.interrupted or bool(self.lost)

    def begin(self, phase: str) -> None:
        """End the phase that runs and begin another one of `PHASES`."""
        assert phase in PHASES, phase
        now = time.monotonic()
        self._spent[self._now] = self._spent.get(self._now, 0.0) + now - self._since
        self._now, self._since = phase, now
        if self.live is not None:
            self.live.begin(phase, self.elapsed_s)
        self.progress.goes_on(GOES_ON[phase])

    def phases(self) -> tuple[tuple[str, float], ...]:
        """Seconds of each phase that there was, in their order, up to now: together the time since the start."""
        self.begin(self._now)
        return tuple((phase, self._spent[phase]) for phase in PHASES if phase in self._spent)

    def warn(self, *lines: str) -> None:
        """Keep warnings for the result."""
        self.warnings += lines

    def alert(self, line: str, *, important: bool = False) -> None:
        """Keep a warning for the result, and say it at once."""
        self.warn(line)
        self.progress.line(f"kcg: {line}", important=important)

    def interrupt(self) -> None:
        """The user ended the run."""
        self.interrupted = True

    def lose(self, error: Exception) -> None:
        """The device went away in the middle."""
        self.lost = str(error)
        self.warn(f"the device was lost: {error}")

    def show(
        self,
        total_s: float | None,
        *,
        measurements: int,
        budget_s: float | None,
        kernels: tuple[int, int] | None = None,
        nouns: str = "kernels",
        note: str = "",
        verified_s: tuple[float, float] | None = None,
        keep: bool = True,
    ) -> None:
        """Show where the run stands, see `Progress.update`; what the workload takes by now is kept for the report."""
        verified_s = self.verified_s if verified_s is None else verified_s
        elapsed_s = self.elapsed_s
        if keep and total_s is not None:
            self.history.append(ProgressPoint(elapsed_s, measurements, total_s))
        self.progress.update(
            done_s=elapsed_s,
            budget_s=budget_s,
            measurements=measurements,
            total_s=total_s,
            kernels=kernels,
            nouns=nouns,
            note=note,
            verified_s=verified_s,
        )
        if self.live is not None:
            best_s = total_s if keep else None
            self.live.show(
                elapsed_s,
                measurements,
                best_s,
                budget_s=budget_s,
                kernels=kernels,
                nouns=nouns,
                verified_s=verified_s,
            )

    def expect(
        self, call: WorkloadCall, predicted: Prediction, corrected: Prediction | None, measured: Future[Observation]
    ) -> None:
        """Keep what was expected of a schedule of a region beside what `measured` will show. Its place in the result
        is known when that is made."""

        def done(future: Future[Observation]) -> None:
            if future.cancelled() or future.exception() is not None:
                return
            seen = future.result()
            row = Expectation(
                self.elapsed_s,
                0,
                seen.schedule,
                predicted.runtime_s,
                None if corrected is None else corrected.runtime_s,
                predicted.failure_probability,
                seen.runtime_s,
                str(seen.status),
            )
            with self._lock:
                self.expectations.append((call, row))

        measured.add_done_callback(done)
