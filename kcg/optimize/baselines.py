"""tinygrad's own schedules, timed: all else is compared with them. Those first that are expected to take longest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Final

from kcg.cli import counted
from kcg.measure.protocol import median
from kcg.optimize.work import Measured, RegionWork, noun_for, total_s

if TYPE_CHECKING:
    from kcg.optimize.budget import Budget
    from kcg.optimize.device import Device
    from kcg.optimize.log import RunLog
    from kcg.search.problem import Observation

AT_ONCE = 8  # baselines that are compiled before the first of them is timed, for each compiler, on a CPU
AHEAD: Final = 2  # of a budget on a GPU, baselines that are on their way for each compiler: none waits for the device
ENOUGH: Final = 0.95  # of the expected time of all kernels: once so much is timed, a search has what matters
SURE: Final = 0.98
"""Of it so much is sent where a search may begin before the rest is timed: its own would wait for what is on its way.
With a budget of 60 s the first of Flux 1024 waited 3 s for 35 kernels that take a hundredth of the time."""
BESIDE: Final = 4  # baselines that are on their way at once while a search goes on
HEAD: Final = 1 / 4  # of what is left of a budget, in which those are timed that make so much of the time
TAIL: Final = 1 / 10  # in which the others are, too
CHECKED_S: Final = 0.15
TERM_S: Final = 1e-7
"""What timing and checking a kernel takes on a CPU, and a term of its reference, of which a sum over whole pictures has
10^8. Only their ratio counts: how long they take here the first ones say."""
PREPARING: Final = ("inputs and reference", "load", "check")  # of the phases of a measurement; with "check: …"


def measure_baselines(
    works: Sequence[RegionWork],
    device: Device,
    *,
    budget: Budget,
    log: RunLog,
    meanwhile: Callable[[], object] = lambda: None,
    until: float | None = None,
    leaves_tail: bool = False,
) -> Measured:
    """Time the hand-coded schedule of the regions that have no time yet, those first that are expected to take longest.

    On a CPU what a reference takes counts too. On a GPU `meanwhile` is called while that is done; on a CPU before,
    since nothing may disturb a sample. Of a budget it ends before all are, see `_Turns`. With `until` it ends then, by
    `time.monotonic`, whatever is timed, and the order is that of `works`. On a GPU it may leave a `Tail`, which is
    timed while the search goes on.
    """
    if device.is_cpu:
        meanwhile()
    waiting = [work for work in works if not work.is_timed]
    if until is None:
        waiting.sort(key=lambda work: -work.expected_s / (price_s(work) if device.is_cpu else 1.0))
    leaves_tail = leaves_tail and not device.is_cpu and until is None
    turns, count = _Turns(works, device, budget, until, few=leaves_tail), len(waiting)
    nouns = f"{noun_for(waiting)}s"
    if waiting:
        many = counted(len({w.call.region.id for w in waiting}), noun_for(waiting))
        log.progress.phase(f"timing {many} as tinygrad schedules them")
    sent: dict[Future[Observation], RegionWork] = {}
    flying: set[Future[Observation]] = set()

    def send() -> None:
        """Send as many as it is the turn of."""
        if batch := waiting[: turns.next(waiting, flying=[sent[one] for one in flying])]:
            del waiting[: len(batch)]
            futures = device.measure_baselines(batch)
            sent.update(zip(futures, batch, strict=True))
            flying.update(futures)

    send()
    if not device.is_cpu:
        meanwhile()

    def is_enough() -> bool:
        """Whether the search may begin before the rest is timed: a few tell what is expected of that."""
        few = min(BESIDE, len(works))
        return leaves_tail and sum(w.is_timed for w in works) >= few and untimed_share(works) <= 1 - ENOUGH

    while flying and not is_enough():
        some = any(work.is_timed for work in sent.values())
        end = until if until is not None else budget.late_at if some else None
        late_s = None if end is None else max(end - time.monotonic(), 0.0)
        done, _ = wait(flying, timeout=late_s, return_when=FIRST_COMPLETED)
        if not done:
            break
        flying -= done
        for future in done:
            sent[future].keep(future.result())
            device.check_journal()
            log.show(
                total_s(works),
                measurements=budget.ledger.measurements,
                budget_s=budget.limit_s,
                kernels=(sum(work.is_timed for work in sent.values()), count),
                nouns=nouns,
            )
        if not (device.is_cpu and flying) and not is_enough():
            send()
    timed, now = sum(work.is_timed for work in sent.values()), time.monotonic()
    untimed, share = count - timed, untimed_share(works)
    tail = _Tail({f: sent[f] for f in flying}, waiting, turns, device) if leaves_tail else None
    tail = None if tail is None or tail.is_over else tail
    if not timed:
        return Measured(works, now, untimed, untimed_share=share, tail=tail)
    here = [work for work in sent.values() if work.is_timed]
    # a search compiles what it measures, also where these need not be compiled
    each_s = (now - turns.begun + device.service.spared_s(work.call.region for work in here)) / timed
    each_preparing_s = preparing_s(device.spread.spent_s) / timed
    return Measured(works, now, untimed, each_s, each_preparing_s, untimed_share=share, tail=tail)


class _Tail:
    """A few are on their way at once, so that what the search wants to have measured does not wait for many."""

    def __init__(
        self,
        flying: dict[Future[Observation], RegionWork],
        waiting: Sequence[RegionWork],
        turns: _Turns,
        device: Device,
    ) -> None:
        self._flying, self._waiting, self._turns, self._device = flying, [*waiting], turns, device
        turns.begin_beside()

    @property
    def is_over(self) -> bool:
        return not self._flying and not (self._waiting and self._turns.has_time_beside)

    def turn(self) -> list[RegionWork]:
        timed = [self._keep(future) for future in [*self._flying] if future.done()]
        free = max(BESIDE - len(self._flying), 0)
        if free and self._turns.has_time_beside and (batch := self._waiting[:free]):
            del self._waiting[: len(batch)]
            self._flying.update(zip(self._device.measure_baselines(batch), batch, strict=True))
        return timed

    def finish(self, timeout_s: float | None) -> None:
        """Wait so long for those that are on their way, without a limit for all."""
        if timeout_s is None:
            self._flying.update(zip(self._device.measure_baselines(self._waiting), self._waiting, strict=True))
        self._waiting.clear()
        done, _ = wait(self._flying, timeout=timeout_s)
        for future in done:
            self._keep(future)

    def _keep(self, future: Future[Observation]) -> RegionWork:
        work = self._flying.pop(future)
        work.keep(future.result())
        return work


class _Turns:
    """How many baselines are sent next.

    Of a budget no more than a part is for them: the search has what makes most of the time, and what makes little of it
    is timed where that takes little. One is timed in any case, on a CPU as many as there are compilers.
    """

    def __init__(
        self, works: Sequence[RegionWork], device: Device, budget: Budget, until: float | None, *, few: bool
    ) -> None:
        """`few`: no more are sent than make nearly all of the time, since a search waits for those that are."""
        self._works, self._device, self._until, self._few = works, device, until, few
        self._over_at = budget.over_at if until is None else None
        self._here = [work for work in works if not work.is_timed]
        self.begun = self._beside_since = time.monotonic()

    @property
    def has_time_beside(self) -> bool:
        """Whether what makes little of the time is timed while a search goes on."""
        if self._over_at is None:
            return True
        return time.monotonic() < self._beside_since + TAIL * (self._over_at - self._beside_since)

    def begin_beside(self) -> None:
        """The search begins."""
        self._beside_since = time.monotonic()

    def next(self, waiting: Sequence[RegionWork], *, flying: Sequence[RegionWork]) -> int:
        """How many of those that wait, while these are with the device."""
        now, workers, is_cpu = time.monotonic(), self._device.service.compile_workers, self._device.is_cpu
        # on a CPU no sample is taken while one of a batch compiles; on a GPU no compiler waits for the device
        most = AT_ONCE * workers if is_cpu else len(waiting)
        ahead = max(AHEAD * workers - len(flying), 0)
        if self._few:
            ahead = min(ahead, self._for_most(waiting, flying))
        if self._over_at is None:
            return (ahead if self._few else most) if self._until is None or now < self._until else 0
        if not any(work.is_timed for work in self._works):
            return workers if is_cpu else ahead
        missing = untimed_share(self._works) - (1 - ENOUGH)
        left_s = self.begun + (HEAD if missing > 0 else TAIL) * (self._over_at - self.begun) - now
        if left_s <= 0:
            return 0
        if not is_cpu:
            return ahead
        priced_s = sum(price_s(work) for work in self._here if work.is_timed)
        fitting = _fitting(waiting, left_s * priced_s / max(now - self.begun, 1e-9)) if priced_s else workers
        if missing > 0 and not adds_enough(waiting[:fitting], self._works):
            return 0
        return min(fitting, most, _until_enough(waiting, missing) if missing > 0 else most)

    def _for_most(self, waiting: Sequence[RegionWork], flying: Sequence[RegionWork]) -> int:
        """How many of those that wait make, with what is timed or with the device, nearly all of the time by what is
        expected; a few are on their way in any case, since it may be off."""
        missing_s = SURE * sum(work.expected_s for work in self._works)
        missing_s -= sum(work.expected_s for work in self._works if work.is_timed)
        missing_s -= sum(work.expected_s for work in flying)
        count = 0
        while count < len(waiting) and missing_s > 0:
            missing_s -= waiting[count].expected_s
            count += 1
        return max(count, BESIDE - len(flying), 0)


def price_s(work: RegionWork) -> float:
    """About what timing tinygrad's own schedule of a kernel takes on a CPU, in seconds, its reference included."""
    return CHECKED_S + TERM_S * work.reference_terms


def _fitting(waiting: Sequence[RegionWork], left_s: float) -> int:
    """How many of those that wait are timed in so many seconds, by their prices."""
    for count, work in enumerate(waiting):
        left_s -= price_s(work)
        if left_s < 0:
            return count
    return len(waiting)


def untimed_share(works: Sequence[RegionWork]) -> float:
    """The share of the time of all regions that those are expected to take that are not timed: as many times what is
    expected of them as the others took, in the median."""
    timed = [work for work in works if work.before_s]
    rest_s = sum(work.expected_s for work in works if not work.is_timed)
    if not timed:
        return float(rest_s > 0)
    rest_s *= median([work.before_s / work.expected_s for work in timed])
    return rest_s / (rest_s + sum(work.before_s for work in timed))


def adds_enough(some: Sequence[RegionWork], works: Sequence[RegionWork]) -> bool:
    """Whether timing these is expected to add so much to the time of what is timed that it would be missing there."""
    untimed_s = sum(work.expected_s for work in works if not work.is_timed)
    if not untimed_s:
        return False
    share = untimed_share(works) * sum(work.expected_s for work in some) / untimed_s
    return share >= (1 - ENOUGH) * (1 - untimed_share(works))


def _until_enough(waiting: Sequence[RegionWork], missing: float) -> int:
    """How many of those that wait, in their order, are expected to take so large a share of the time, of which all
    of them take that and what is not missing."""
    left_s = sum(work.expected_s for work in waiting) * missing / (missing + 1 - ENOUGH)
    for count, work in enumerate(waiting, 1):
        left_s -= work.expected_s
        if left_s <= 0:
            return count
    return len(waiting)


def preparing_s(spent_s: Mapping[str, float]) -> float:
    """Seconds of `Spread.spent_s` that were not spent on compiling, on runs or on samples."""
    named = (phase for phase in spent_s if phase in PREPARING or phase.startswith("check: "))
    return sum(spent_s[phase] for phase in named if phase != "check: run")
