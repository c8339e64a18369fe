"""tinygrad's own schedule of every region, timed: all else is compared with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Final

from kcg.cli import counted
from kcg.optimize.work import Measured, RegionWork, noun_for, total_s

if TYPE_CHECKING:
    from kcg.optimize.budget import Budget
    from kcg.optimize.device import Device
    from kcg.optimize.log import RunLog
    from kcg.search.problem import Observation

AT_ONCE = 8  # baselines that are compiled before the first of them is timed, for each compiler, on a CPU
PREPARING: Final = ("inputs and reference", "load", "check")  # of the phases of a measurement; with "check: …"


def measure_baselines(
    works: Sequence[RegionWork],
    device: Device,
    *,
    budget: Budget,
    log: RunLog,
    meanwhile: Callable[[], object] = lambda: None,
    until: float | None = None,
) -> Measured:
    """Time the hand-coded schedule of every region that has no time yet.

    On a GPU `meanwhile` is called while that is done; on a CPU before, since nothing may disturb a sample. Where the
    budget is over, it ends with what is timed by then, one kernel at least: a search has no time any more. With `until`
    it ends then, by `time.monotonic`, whatever is timed.
    """
    if device.is_cpu:
        meanwhile()
    waiting, begun = [w for w in works if not w.is_timed], time.monotonic()
    if waiting:
        many = counted(len({w.call.region.id for w in waiting}), noun_for(waiting))
        log.progress.phase(f"timing {many} as tinygrad schedules them")
    # on a CPU no sample is taken while one of a batch compiles; on a GPU no compiler waits for the device
    size = AT_ONCE * device.service.compile_workers if device.is_cpu else 1
    sent: dict[Future[Observation], RegionWork] = {}

    def take() -> None:
        """Wait for what was sent as it comes, or until the budget is over."""
        left = {future for future, work in sent.items() if not work.is_timed}
        while left:
            some = any(work.is_timed for work in sent.values())
            end = until if until is not None else budget.late_at if some else None
            late_s = None if end is None else max(end - time.monotonic(), 0.0)
            done, left = wait(left, timeout=late_s, return_when=FIRST_COMPLETED)
            if not done:
                break
            for future in done:
                sent[future].keep(future.result())
                device.check_journal()
                count = sum(work.is_timed for work in sent.values())
                log.show(
                    total_s(works),
                    measurements=budget.ledger.measurements,
                    budget_s=budget.limit_s,
                    kernels=(count, len(waiting)),
                    nouns=f"{noun_for(waiting)}s",
                )

    for batch in (waiting[begin : begin + size] for begin in range(0, len(waiting), size)):
        if (sent and budget.is_over) or (until is not None and time.monotonic() >= until):
            break
        sent.update(zip(device.measure_baselines(batch), batch, strict=True))
        if device.is_cpu:
            take()
    if not device.is_cpu:
        meanwhile()
    take()
    untimed, now = sum(not work.is_timed for work in waiting), time.monotonic()
    if not (timed := len(waiting) - untimed):
        return Measured(works, now, untimed)
    return Measured(works, now, untimed, (now - begun) / timed, preparing_s(device.spread.spent_s) / timed)


def preparing_s(spent_s: Mapping[str, float]) -> float:
    """Seconds of `Spread.spent_s` that were not spent on compiling, on runs or on samples."""
    named = (phase for phase in spent_s if phase in PREPARING or phase.startswith("check: "))
    return sum(spent_s[phase] for phase in named if phase != "check: run")
