"""Which regions of several kernels a run searches: those that rules propose and that have a program, by what they are
expected to save.

Neither proposing them nor compiling the programs with which their searches begin needs the device. So on a GPU that is
done while tinygrad's own schedules are timed and the kernels are searched (`Proposing`): of Flux 768 it takes two
minutes of a core, which idle cores have.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from kcg.errors import DeviceError
from kcg.measure.child import unsupported_job
from kcg.measure.pools import ServiceClosed
from kcg.optimize.exact_plan import prepare_to_plan
from kcg.optimize.region_plans import (
    Key,
    Proposals,
    among,
    computed_again_s,
    expected_saving_s,
    next_to_measure,
    plans_of,
    propose,
)
from kcg.types import JobKind, Region, Target, Workload
from kcg.unexpected import REFUSALS, looking, report

if TYPE_CHECKING:
    from kcg.kernel.regions import Candidate
    from kcg.measure.service import MeasureService
    from kcg.optimize.device import Device
    from kcg.optimize.log import RunLog
    from kcg.optimize.work import RegionWork

LOOKING_TIMEOUT_S: Final = 30.0  # of looking whether a region has a program
MOST: Final = 40  # regions that are searched: those of the best expected plans, then what is expected to save most
FIRSTS: Final = 14  # of them, the first ones: the best expected plan of Flux has as many
POLL_S: Final = 0.3


class Proposing:
    """The regions of a workload that may be searched. Once it has begun they are found in a thread, and `timed` lets it
    go on with their first programs, until they are asked for."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        log: RunLog,
        *,
        usable: Callable[[Region], bool] | None = None,
        prepare: Callable[[Sequence[RegionWork]], object] = lambda works: None,
        compiles: bool = True,
    ) -> None:
        """All that are `usable`, by default those with a program. `prepare` gets those of the best expected plan, again
        and again while first programs are compiled: what judging them needs may be computed too. Where it `compiles`
        none it is only looked for where the programs of those begin that may be in a plan."""
        self._workload, self._device, self._log, self._usable = workload, device, log, usable
        self._prepare, self._compiles = prepare, compiles
        self._looked: Future[tuple[Proposals, Proposals]] = Future()
        self._timed = threading.Event()
        self._wanted = threading.Event()  # by whoever searches them
        self._until: float | None = None  # whoever looks for them waits no longer, by `time.monotonic`
        self._kernels: Sequence[RegionWork] = ()
        self._thread: threading.Thread | None = None

    def begin(self, kernels: Sequence[RegionWork] = ()) -> None:
        """Look for them from now on, beside all else, until the run's processes are ended. With `kernels`, not all of
        which are timed yet, their first programs are compiled at once, by what these are expected to take."""
        self._device.close_too(self.end)
        if kernels:
            self.timed(kernels)
        self._thread = threading.Thread(target=self._work, name="kcg-regions", daemon=True)
        self._thread.start()

    def timed(self, kernels: Sequence[RegionWork]) -> None:
        """tinygrad's own schedules of the kernels are timed: so it can be told which regions matter."""
        self._kernels = kernels
        self._timed.set()

    def end(self) -> None:
        """They are not asked for: nothing more is compiled."""
        self._wanted.set()
        self._timed.set()

    @property
    def is_found(self) -> bool:
        """Whether it is known which have programs, so that `found` looks for nothing."""
        return self._looked.done()

    def found(self, *, until: float | None = None) -> tuple[Proposals, Proposals]:
        """All that rules propose, and those of them that are usable: what was not looked at until then, by
        `time.monotonic`, is not."""
        self._until = until
        self.end()
        if self._thread is None:
            return self._look()
        self._thread.join()
        return self._looked.result()

    def _look(self) -> tuple[Proposals, Proposals]:
        everything = Proposals(self._workload, ())
        with self._log.jobs.doing(JobKind.REGIONS, self._workload.name):
            with looking("regions of several kernels"):
                everything = propose(self._workload)
            usable = self._usable or has_programs(everything, self._device.service, until=lambda: self._until)
            return everything, among(everything, usable)

    def _work(self) -> None:
        try:
            self._looked.set_result(self._look())
        except BaseException as error:  # it belongs to whoever asks
            self._looked.set_exception(error)
            return
        self._timed.wait()
        try:
            self._compile()
        except (DeviceError, ServiceClosed):
            pass  # the run ends
        except Exception as error:
            report("the first programs of regions", error)

    def _compile(self) -> None:
        """Have first programs compiled, and references computed, what matters most first: the programs of the best
        expected plan, then by no more than half of the compilers, since the search of the kernels has the others, what
        judging these needs and the programs of those that no plan may have. What a search asks for after it is not
        made again. Where it compiles none, only where the programs of these begin is looked for."""
        if self._wanted.is_set():
            return  # whoever wants them waits for this thread
        _, proposals = self._looked.result()
        regions = regions_of(proposals, expected_alone_s(self._kernels), self._device.service.target)
        if not self._compiles:
            for work in self._works(proposals, regions):
                self._device.find_starts([work])
                if self._wanted.is_set():
                    return
            return
        most, under_way = max(self._device.service.compile_workers // 2, 1), set[Future[Any]]()
        firsts: list[RegionWork] = []
        best = list(self._works(proposals, regions[:FIRSTS]))
        self._device.first_programs(best)
        for work in chain(best, self._works(proposals, regions[FIRSTS:])):
            if self._wanted.is_set():
                return
            while len(under_way) >= most:
                _, under_way = wait(under_way, timeout=POLL_S, return_when=FIRST_COMPLETED)
                if self._wanted.is_set():
                    return
            under_way |= {one for programs in self._device.first_programs([work]).values() for one in programs}
            references = (self._device.service.begin_references(work.call.region, v) for v in work.bindings)
            under_way |= {one for one in references if one is not None}
            if len(firsts) < FIRSTS:
                firsts.append(work)
            self._prepare(firsts)  # which goes on from the references that were begun

    def _works(self, proposals: Proposals, regions: Sequence[Region]) -> Iterator[RegionWork]:
        for region in regions:
            yield from self._device.spaces_of(calls_of(proposals, [region]))


def expected_alone_s(kernels: Sequence[RegionWork]) -> dict[str, float]:
    """The best time of each kernel, by id, or what the first program of another kind is expected to take before any is
    measured: by tinygrad's own alone a region would save what its kernels save too. Not of what has neither."""
    from kcg.predictor.cost import guiding
    from kcg.predictor.interface import judge_of

    found = best_alone_s(kernels)
    for work in kernels:
        for space in () if work.searched else work.others.values():
            with looking("what a kernel is expected to take"):
                (expected,) = judge_of(guiding(space, None), space).predict([space.start()])
                if math.isfinite(expected.runtime_s):
                    found[work.call.region.id] = min(found.get(work.call.region.id, math.inf), expected.runtime_s)
    return found


def has_programs(
    proposals: Proposals, service: MeasureService, *, until: Callable[[], float | None]
) -> Callable[[Region], bool]:
    """Whether a region of several kernels can be generated as one program: the compiling children look, `until` then,
    by `time.monotonic`, which may be told meanwhile; None: until they have. What they did not come to has none."""
    regions = {candidate.region.id: candidate.region for candidate in proposals.candidates.values()}
    asked = {
        name: service.beside(unsupported_job, region, service.target, timeout_s=LOOKING_TIMEOUT_S)
        for name, region in regions.items()
    }

    prepare_to_plan()
    looked, waiting = wait(asked.values(), timeout=0.0)
    while waiting and (rest_s := left_s(until())) != 0.0:
        looked, waiting = wait(asked.values(), timeout=POLL_S if rest_s is None else min(rest_s, POLL_S))

    def usable(region: Region) -> bool:
        found = asked[region.id]
        return found in looked and not has_failed(found) and not found.result()

    return usable


def has_failed(look: Future[Any]) -> bool:
    """Whether a look ended in an error; one that nobody expected is reported."""
    if (error := look.exception()) is None:
        return False
    if not isinstance(error, (*REFUSALS, DeviceError, ServiceClosed)):
        report("a program of a region", error)
    return True


def regions_of(proposals: Proposals, alone_s: Mapping[str, float], target: Target) -> Sequence[Region]:
    """What is searched, what matters most first: the times of its kernels say what each region may save."""
    timed = {
        key: candidate
        for key, candidate in proposals.candidates.items()
        if all(kernel.id in alone_s for kernel in candidate.region.kernels)
    }
    savings = expected_savings_s(timed, alone_s, target)
    savings = {key: saved for key, saved in savings.items() if saved + computed_again_s(timed[key], alone_s) > 0}
    first = next_to_measure(plans_of(proposals, alone_s, savings), savings, {})
    # one that saves nothing where it stands is worth it only as a part of a plan that leaves out what it computes again
    rest = sorted((k for k, saved in savings.items() if saved > 0), key=lambda k: -savings[k] * proposals.calls[k])
    keys = list(dict.fromkeys([*first, *rest]))[:MOST]
    return [*dict.fromkeys(proposals.candidates[key].region for key in keys)]


def works_of(proposals: Proposals, kernels: Sequence[RegionWork], *, device: Device) -> list[RegionWork]:
    """What is searched: of each region its kernels' best times, or what is expected of these, say what it may save."""
    regions = regions_of(proposals, expected_alone_s(kernels), device.service.target)
    for region in regions:
        if device.journal is not None:
            device.journal.add_region(region, workload=f"{proposals.workload.name}/{proposals.workload.preset}")
    works = device.plan(calls_of(proposals, regions))
    for work in works:
        work.proposed = True
    return works


def calls_of(proposals: Proposals, regions: Sequence[Region]) -> Workload:
    """A workload that is the calls of some regions of another one."""
    calls = tuple(call for call in map(proposals.call_of, regions) if call is not None)
    return replace(proposals.workload, calls=calls)


def expected_savings_s(
    candidates: Mapping[Key, Candidate], alone_s: Mapping[str, float], target: Target
) -> dict[Key, float]:
    """What one occurrence of each is expected to save; of what no cost is known nothing."""
    found = dict.fromkeys(candidates, 0.0)
    for key, candidate in candidates.items():
        with looking("what a region of several kernels may save"):
            found[key] = expected_saving_s(candidate, alone_s, target)
    return found


def best_alone_s(kernels: Sequence[RegionWork]) -> dict[str, float]:
    """The best time of each kernel that has one, by id."""
    return {work.call.region.id: work.best_s for work in kernels if work.best_s}


def left_s(until: float | None) -> float | None:
    """How much time is left until then, by `time.monotonic`; None: as much as it takes."""
    return None if until is None else max(until - time.monotonic(), 0.0)
