"""Regions of several kernels get ready beside the search of the kernels, and join it.

They do so from when the first programs of the kernels were measured that take most of the time: what a region saves is
told by these, and by what is expected of the others. So a region does not wait for the last of many schedules of
kernels whose calls it will have, of which the first was nearly the best. Those of the best expected plan come first;
of each its kernels as tinygrad schedules them, their best schedules and the first program of the region are timed at
once, and what judging it needs is computed meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from kcg.cli import counted
from kcg.errors import DeviceError
from kcg.measure.pools import ServiceClosed
from kcg.optimize.proposing import FIRSTS, left_s, works_of
from kcg.optimize.region_plans import best_parts
from kcg.optimize.region_search import (
    NONE,
    Proposed,
    best_schedules,
    is_any,
    none_ran,
    not_come_to,
    unmade,
    weights_of,
    with_regions,
    without,
)
from kcg.optimize.search import Joined
from kcg.optimize.settings import EFFORTS
from kcg.optimize.work import Candidates
from kcg.types import Schedule, Status
from kcg.unexpected import looking

if TYPE_CHECKING:
    from kcg.optimize.ahead import Ahead
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.optimize.proposing import Proposing
    from kcg.optimize.work import RegionWork
    from kcg.search.problem import Observation

BEGUN: Final = 0.25
"""Of the time as tinygrad schedules all, which kernels may take that were not begun to be searched when regions get
ready. By what they take now it is more and more of less: of Flux 1024 that was 6 s later, of a budget of 60."""
MOST: Final = 2  # of the others that are timed at once: what is judged meanwhile waits for no more
LATEST: Final = 1 / 2  # of the time that a budget has until regions are to be ready: then they get so in any case
POLL_S: Final = 0.2


class Joining:
    """The regions that join a search, see the module."""

    def __init__(
        self,
        estimates: Estimates,
        proposing: Proposing,
        *,
        device: Device,
        log: RunLog,
        ahead: Ahead,
        begun: Callable[[Proposed], object],
    ) -> None:
        """`estimates` are of the kernels, whose search begins. `ahead` will judge; `begun` gets the regions, once and
        again, before they are searched."""
        self._estimates, self._proposing, self._device, self._log = estimates, proposing, device, log
        self._ahead, self._begins = ahead, begun
        self._ready: list[Proposed] = []  # each has the regions of the one before, too
        self._joined: list[Proposed] = []
        self._error: BaseException | None = None
        self._since = time.monotonic()
        self._ended = threading.Event()
        device.close_too(self._ended.set)
        self._thread = threading.Thread(target=self._work, name="kcg-joining", daemon=True)
        self._thread.start()

    @property
    def has_all(self) -> bool:
        """Whether nothing more gets ready."""
        return not self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether none will join any more."""
        return self.has_all and self._error is None and len(self._joined) == len(self._ready)

    @property
    def proposed(self) -> Proposed | None:
        """All those that joined the search, if any."""
        return self._joined[-1] if self._joined else None

    def turn(self) -> Joined | None:
        """Those that are ready and did not join yet. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        ready = self._ready[:]  # more may get ready meanwhile
        if len(self._joined) == len(ready):
            return None
        before, found = self.proposed, ready[-1]
        self._joined = ready
        self._begins(found)
        known = () if before is None else before.timed
        new = [work for work in found.timed if all(work is not other for other in known)]
        return Joined(found.estimates, new, weights_of(found, self._device.service.target))

    def end(self, timeout_s: float | None) -> None:
        """The search is over: none joins it any more, which a warning says where none did. Raises what went wrong."""
        is_late = self.proposed is None and not self.is_over
        self._ended.set()
        self._proposing.end()
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        if is_late:
            self._log.warn(f"{NONE}: the search was over before they were ready")

    def _work(self) -> None:
        try:
            while not self._may_begin():
                if self._ended.wait(POLL_S):
                    return
            self._get_ready()
        except BaseException as error:  # it belongs to the run's own thread
            if not (self._ended.is_set() and isinstance(error, DeviceError | ServiceClosed)):
                self._error = error

    def _may_begin(self) -> bool:
        """Whether it can be told what regions save, or there is no other time for it."""
        kernels = [work for work in self._estimates.works if work.baseline_s and work.others and work.is_missing]
        waiting = not_come_to(kernels, least_s=0.0)
        is_begun = sum(w.before_s for w in waiting) <= BEGUN * sum(w.before_s for w in kernels)
        return self._proposing.is_found and (is_begun or self._is_due())

    def _is_due(self) -> bool:
        """Whether a search without a budget had its time, and goes on for what joins it; of a budget half of the time
        until regions are to be ready."""
        estimates = self._estimates
        if estimates.budget.limit_s is None:
            return time.monotonic() >= self._since + EFFORTS[estimates.settings.effort].search_s
        until = estimates.regions_until()
        return until is not None and time.monotonic() >= self._since + LATEST * (until - self._since)

    def _get_ready(self) -> None:
        estimates, device, log = self._estimates, self._device, self._log
        if not estimates.regions_fit():
            log.warn(f"{NONE}: the budget has time only to judge what was found of kernels")
            return
        until = estimates.regions_until()
        everything, proposals = self._proposing.found(until=until)
        if not is_any(everything, proposals, estimates, log):
            return
        kernels = [work for work in estimates.works if not work.call.region.args]
        asked = works_of(proposals, kernels, device=device)
        device.first_programs(asked)
        self._ahead.prepare(asked[:FIRSTS])
        log.progress.phase(f"searching {counted(len(asked), 'region')} of several kernels too")
        works: list[RegionWork] = []
        timed: list[RegionWork] = []
        for some in filter(None, (asked[:FIRSTS], asked[FIRSTS:])):
            while timed and self._ahead.rate > 0 and not self._is_over(until):  # which is worth more
                self._ended.wait(POLL_S)
            if self._ended.is_set() or (timed and self._is_over(until)):
                return
            missing = unmade(some, device, until=until)
            made = [work for work in some if work.call.region.id not in missing]
            proposals = without(proposals, missing)
            works, before = [*works, *made], len(timed)
            timed += self._begun(made, kernels, until=until, most=MOST if timed else len(made))
            if len(timed) == before:
                continue
            both = with_regions(estimates, works)
            impossible = len(everything.regions) - len(proposals.regions)
            self._ready.append(Proposed(proposals, works, both, Candidates(both.works), [*timed], impossible))
        if not timed:
            log.warn(none_ran(len(asked)))

    def _is_over(self, until: float | None) -> bool:
        """Whether nothing more is to be timed."""
        return self._ended.is_set() or left_s(until) == 0.0

    def _begun(
        self, works: Sequence[RegionWork], kernels: Sequence[RegionWork], *, until: float | None, most: int
    ) -> list[RegionWork]:
        """Those of some regions that ran as tinygrad schedules their kernels, and as the best known schedules of these;
        their first programs are timed too. No more than `most` of them are with the device at once."""
        sent: list[tuple[RegionWork, Schedule, list[Future[Observation]]]] = []
        for work in works:
            if self._is_over(until):
                break
            before = sent[-most][2] if len(sent) >= most else []
            wait(before, timeout=left_s(until))
            with looking("where programs of a region begin"):
                parts = best_parts(work.call.region, best_schedules(kernels))
                starts = [space.start() for space in work.others.values()]
                sent.append((work, parts, self._device.measure_with_baseline(work, [parts, *starts])))
        done, _ = wait([future for *_, asked in sent for future in asked], timeout=left_s(until))
        for work, _, asked in sent:
            for future in asked:
                if future in done:
                    work.keep(future.result())
        self._device.check_journal()

        def ran(work: RegionWork, parts: Schedule) -> bool:
            seen = work.observed(parts)
            return bool(work.baseline_s) and seen is not None and seen.status == Status.OK

        return [work for work, parts, _ in sent if ran(work, parts)]
