"""The fastest few of each kernel timed again, in turns, before one of them is judged.

Of many measured schedules the one that was seen to be fastest was also lucky, the more so the more were measured and
the shorter the kernel is. So those that come close to it are timed again, each as often as the others and one after
the other, in the process that will judge; what the search saw of them counts no more. Only a thorough run does that:
it takes seconds, and a shorter one has measured too few for luck to matter.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kcg.measure.group import Request
from kcg.measure.protocol import median, samples_for
from kcg.optimize.settings import EFFORTS
from kcg.search.interface import Observation
from kcg.types import Schedule

if TYPE_CHECKING:
    from concurrent.futures import Future

    from kcg.optimize.session import RegionWork, Session

MOST: Final = 4  # contenders of a kernel
ROUNDS: Final = 3
SHARE: Final = 0.002  # of the workload's time with tinygrad's own schedules: of less, nothing is timed again
CLOSE: Final = ((20e-6, 0.13), (50e-6, 0.09), (200e-6, 0.03), (math.inf, 0.02))
"""Up to how many seconds of a call, within what share of the fastest a schedule may be as fast: so far did one schedule
stray from run to run on an H200 (docs/search.md, "Short kernels"), and above 200 µs twice as far."""
SAMPLER: Final = "run-off"
TIMING_S: Final = 0.1  # of one timing, apart from its samples


def contenders(session: Session, work: RegionWork) -> list[Schedule]:
    """What is to be timed again of a kernel, the fastest seen first; nothing where there is no choice."""
    total_s = sum(w.call.calls * w.baseline_s for w in session.works)
    if not EFFORTS[session.settings.effort].run_off or work.call.calls * work.baseline_s < SHARE * total_s:
        return []
    faster = work.faster()[:MOST]
    best_s = min((work.known[s].time_s for s in faster), default=0.0)
    limit_s = best_s * (1 + next(share for seconds, share in CLOSE if best_s <= seconds))
    close = [s for s in faster if work.known[s].time_s <= limit_s]
    return close if len(close) > 1 else []


def run_off(session: Session) -> None:
    """Time contenders of every kernel again and put the fastest first (`RegionWork.finalists`).

    Raises DeviceError where the device goes away; a contender that fails now comes last.
    """
    entered = [(work, found) for work in session.works if (found := contenders(session, work))]
    compiled = {
        (work.id, schedule): session.service.compiled(work.call.region, schedule, work.call.variables)
        for work, found in entered for schedule in found
    }  # fmt: skip
    for future in compiled.values():
        future.exception()  # on a CPU nothing may compile while something is timed
    for work, found in sorted(entered, key=lambda one: -one[0].call.calls * one[0].baseline_s):
        seconds = _timed(session, work, {s: compiled[work.id, s] for s in found})
        work.finalists = sorted(found, key=lambda s: seconds[s])
        session.check_journal()
        session.show(note=f"{len(found)} schedules of {work.space.name(work.space.baseline())} again")


def run_off_s(session: Session) -> float:
    """Seconds that it is expected to take."""
    cost_s = 0.0
    for work in session.works:
        each_s = TIMING_S + samples_for(work.best_s, early_stop=True, careful=True) * work.best_s
        cost_s += ROUNDS * len(contenders(session, work)) * each_s
    return cost_s


def _timed(session: Session, work: RegionWork, compiled: dict[Schedule, Future[Any]]) -> dict[Schedule, float]:
    """The median of each contender's timings, infinite where it fails."""
    seen: dict[Schedule, list[float]] = {schedule: [] for schedule in compiled}
    for trial in range(1, ROUNDS + 1):
        for schedule, future in compiled.items():
            request = Request(
                work.call.region, schedule, work.call.variables, SAMPLER, in_search=True, careful=True, trial=trial
            )
            if future.exception() is None:
                row = session.service.measure_compiled(request, future.result().compiled).result()
                seen[schedule].append(Observation.of(row).time_s)
    return {schedule: median(values) if values else math.inf for schedule, values in seen.items()}
