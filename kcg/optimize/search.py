"""Spending the budget of an optimisation: which region is searched when, with what, and what guides it."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from kcg.cli import counted
from kcg.errors import KcgError, ScheduleError
from kcg.measure.jobs import TinyBeamJob
from kcg.measure.service import CORE
from kcg.optimize.expecting import expect_kernels
from kcg.optimize.settings import EFFORTS, TINY_BEAM, Settings, search_of, strategy_of
from kcg.optimize.work import Candidates, RegionWork, missing_share, searched_of, total_s
from kcg.predictor.interface import judge_of
from kcg.search.allocation import PATIENCE_S, Allocator, Limits, Transfer
from kcg.search.problem import PRIOR_GAIN, Expected, Observation, Problem, Strategy, Trials
from kcg.search.uniform import UNKNOWN, Chance, Draws
from kcg.search.workers import FromItsStart
from kcg.types import Job, JobKind, JobOutcome, Schedule
from kcg.unexpected import looking, report

if TYPE_CHECKING:
    from kcg.optimize.ahead import Ahead
    from kcg.optimize.device import Device
    from kcg.optimize.estimates import Estimates
    from kcg.optimize.log import RunLog
    from kcg.predictor.interface import Predictor
    from kcg.search.workers import SearchWorkers


class Weights:
    """What a second that each region saves is worth, by the seconds that each is expected to save next (infinite where
    nothing was measured), both by `RegionWork.id`; 1 where nothing is said, as here."""

    def __call__(self, expected_s: Mapping[str, float]) -> Mapping[str, float]:
        return {}

    def saved_s(self) -> float:
        """What regions of several kernels save of one execution by what the search measured, beside their kernels."""
        return 0.0


@dataclass(frozen=True)
class Joined:
    """What joins a search: all that is known from then on, and what is searched too."""

    estimates: Estimates
    works: Sequence[RegionWork]
    weights: Weights


class Joins(Protocol):
    """What gets ready while a search goes on."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will join any more."""
        ...

    def turn(self) -> Joined | None:
        """What joins now, if anything."""
        ...


HOPELESS = 2.5  # a candidate this much slower than the best so far gets one sample only
SEARCHING = 3  # processes that search, for every four that compile
AWAITED_S = 10.0  # for which a search without a budget goes on at least while nothing has joined it that will
WAITING = 1 / 2  # of the compilers, which a search has while what joins it gets ready


class Guide:
    """What guides a search: the predictor, and where it would not disturb samples the processes that search. It is
    read when there is time for it. Where tinygrad searches by itself there is none."""

    def __init__(self, settings: Settings, device: Device) -> None:
        self._settings, self._device = settings, device
        self.wanted = settings.measurements == 0 or not settings.search.startswith(TINY_BEAM)
        self.predictor: Predictor | None = None
        self.workers: SearchWorkers | None = None
        self._beside: threading.Thread | None = None  # in which it is loaded

    @property
    def name(self) -> str:
        """What the predictor is called; empty where none was read."""
        return self.predictor.name if self.predictor is not None else ""

    def begin(self) -> None:
        """Before the workload is captured: have what the predictor needs loaded meanwhile. It takes seconds of a core,
        on a GPU in the first of the processes that will search, and on a CPU in a thread while a program runs."""
        if not self.wanted:
            return
        if self._searches_beside:
            self._start_workers()
        elif self._settings.program is not None:
            self._beside = threading.Thread(target=self._load, name="kcg-preload")
            self._beside.start()

    def preload(self) -> None:
        """Once it is captured: have the networks read by who will search on a GPU; on a CPU load what the predictor
        needs while the device opens in its own process."""
        if self.workers is not None:
            self.workers.know(self._device.service.target)
        if self._beside is not None:
            self._beside.join()
        elif self.wanted:
            self._load()

    def _load(self) -> None:
        from kcg.predictor.choice import preload

        if self._device.is_cpu:
            device, _, renderer = self._device.choice.dev.partition(":")
            with contextlib.suppress(Exception):  # raised again where it is wanted
                preload(self._settings.predictor, device, renderer)

    @property
    def _searches_beside(self) -> bool:
        """Whether other processes search: where that would not disturb samples."""
        return not self._device.is_cpu and self._settings.measurements != 0

    def _start_workers(self) -> None:
        from kcg.search.workers import SearchWorkers

        begun, service, choice = time.monotonic(), self._device.service, self._settings.predictor

        def ready() -> None:
            seconds = time.monotonic() - begun
            self._device.jobs.add(Job(JobKind.PREDICTOR, choice, CORE, begun, seconds, JobOutcome.OK))

        self.workers = SearchWorkers(
            max(2, SEARCHING * service.compile_workers // 4),
            choice,
            None,
            service.initargs,
            strategies=strategy_of,
            allow_tf32=self._settings.allow_tf32,
            ready=ready,
        )
        self._device.close_too(self.workers.close)

    def read(self) -> None:
        """Read the predictor. Where other processes search they do so, and this one does once it is asked."""
        from kcg.predictor.choice import choose_predictor, deferred

        if not self.wanted:
            return
        choice, service = self._settings.predictor, self._device.service
        if self._searches_beside:
            if self.workers is None:
                self._start_workers()
                self.preload()
            self.predictor = deferred(choice, service.target, calibrated=True)
            return
        with self._device.jobs.doing(JobKind.PREDICTOR, choice):
            self.predictor = choose_predictor(choice, service.target, calibrated=True)


def search(
    estimates: Estimates,
    guide: Guide,
    *,
    device: Device,
    log: RunLog,
    works: Sequence[RegionWork] = (),
    weights: Weights | None = None,
    ahead: Ahead | None = None,
    joins: Joins | None = None,
) -> Candidates:
    """Spend the rest of the budget where it is expected to save the most, on these regions or else on all, and on what
    `joins` them; meanwhile `ahead` judges what was found. A run in which nothing was searched says why: at once where
    it is known before."""
    return _Search(estimates, guide, device, log, works, weights or Weights(), ahead, joins).run()


def watched(strategy: Strategy) -> Strategy:
    """A search that ends where something is raised that nobody expected, and reports it: others go on."""

    def search_one(problem: Problem) -> Iterator[Observation]:
        try:
            yield from strategy(problem)
        except KcgError:
            raise
        except Exception as error:
            report("a faster schedule of a kernel or region", error)

    return search_one


WEIGHING = 0.05  # of the time of a search, at most, for finding what its entries are worth


@dataclass
class _Search:
    estimates: Estimates
    guide: Guide
    device: Device
    log: RunLog
    works: Sequence[RegionWork] = ()
    weights: Weights = field(default_factory=Weights)
    ahead: Ahead | None = None
    joins: Joins | None = None
    settled: bool = False
    expected: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.works = self.works or self.estimates.works
        self.missing = [work for work in self.works if work.is_missing]
        self.settings, self.budget = self.estimates.settings, self.estimates.budget
        self.ledger = self.budget.ledger
        self.allocator: Allocator | None = None
        self.tail = self.estimates.measured.tail if self.works is self.estimates.works else None
        self._entered: list[RegionWork] = []
        self._weigh_at = 0.0  # when the entries are weighed again, by `time.monotonic`
        self._planned_s = math.inf  # what the workload took by the best plan when they were last weighed

    def run(self) -> Candidates:
        settings, budget, log, begun = self.settings, self.budget, self.log, time.monotonic()
        too_short = self.estimates.too_short() if self.missing else ""
        if too_short:
            budget.search_until(self.estimates.measured.at)
            log.progress.line(too_short, important=True)
        elif budget.limit_s is not None:
            budget.search_until(self.estimates.search_until())
            if advice := self.estimates.too_short_for_some():
                log.progress.line(advice, important=True)
            if advice := self.estimates.too_short_for_the_model():
                log.progress.line(advice)
        elif settings.measurements is None:
            budget.search_until(time.monotonic() + missing_share(self.works) * EFFORTS[settings.effort].search_s)
        used_up = self.ledger.used_up
        if self.missing and (any(work.tried for work in self.missing) or not (too_short or used_up)):
            self._spend()
            if (deadline := self.ledger.deadline) is not None:
                for some in ([w for w in self.works if not w.proposed], [w for w in self.works if w.proposed]):
                    share_efforts(some, deadline - begun)
        if not self.searched:
            line = f"nothing was searched: {too_short or self._why_nothing(used_up=used_up)}"
            log.warn(line)
            if not too_short:  # else it was said before
                log.progress.line(line, important=True)
        return Candidates(
            self.works,
            self.estimates.measured.untimed,
            self.settled,
            self.ledger.used_up,
            searched=self.searched,
            expected=self.expected,
        )

    @property
    def searched(self) -> bool:
        """Whether any schedule was tried beside tinygrad's own, of any kernel."""
        if self.settings.measurements == 0:
            return any(w.known for w in self.works)  # by prediction alone
        return any(w.tried or w.nothing for w in self.works)

    def _why_nothing(self, *, used_up: bool) -> str:
        if not any(work.baseline_s for work in self.works) and self.settings.measurements != 0:
            unjudged = all(work.is_unjudged for work in self.works)
            return "every kernel is unjudged" if unjudged else "there is no kernel that runs and can be judged"
        if all(work.is_alone for work in self.works):
            return "no kernel has a schedule beside tinygrad's own"
        if used_up:
            taken = counted(self.ledger.measurements, "measurement")
            return f"timing tinygrad's own schedules took {taken}: give it more with --measurements"
        if self.settled:
            return "no step was expected to save enough; --effort thorough tries those that save less too"
        if self.ledger.exhausted:
            return "the time for searching was over"
        return f"--search {self.settings.search} tried no schedule but tinygrad's own"

    def _spend(self) -> None:
        if self.guide.predictor is None:
            self.guide.read()
        if (predictor := self.guide.predictor) is None:
            self._tiny_beam(int(self.settings.search.partition(":")[2] or "2"))
        elif self.settings.measurements == 0:
            self._predict_only(predictor)
        else:
            self._search_with(predictor)

    def _problem(self, work: RegionWork, predictor: Predictor, index: int) -> Problem:
        """The search problem of one region: its space, this run's predictor, device and ledger."""

        judge, seed = judge_of(predictor, work.space), f"{self.settings.seed}:{index}"
        expected, chances = dict[Schedule, Expected](), dict[Schedule, Chance]()
        return Problem(
            space=work.space,
            predict=judge.predict,
            measure=functools.partial(self._measure, work, expected=expected, chances=chances),
            ledger=self.ledger,
            rng=random.Random(seed),
            known=work.known,
            correct=judge.correct,
            expected=expected,
            chances=chances,
            draws=Draws(work.space, judge.predict, seed),
        )

    def _measure(
        self,
        work: RegionWork,
        batch: Sequence[Schedule],
        *,
        expected: Mapping[Schedule, Expected],
        chances: Mapping[Schedule, Chance],
        expected_s: float = math.inf,
    ) -> list[Future[Observation]]:
        """Measure schedules, each no longer than tells that it is far behind the best of the region, and keep what was
        `expected` of each and why it was chosen. Nothing is surprisingly fast that takes `expected_s`."""
        best_s = work.best_s
        known_s = min(best_s, expected_s) if best_s else None
        stop_above_s = HOPELESS * best_s if best_s else None
        self.device.choose(work, {one: (expected.get(one), chances.get(one, UNKNOWN)) for one in batch})
        futures = self.device.measure(work, batch, stop_above_s=stop_above_s, known_s=known_s)
        for schedule, future in zip(batch, futures, strict=True):
            if (expectation := expected.get(schedule)) is not None:
                self.log.expect(work.call, *expectation, future)
        return futures

    def _strategy(self, work: RegionWork, kind: str, *, place: int, seed: str) -> Strategy:
        """How the schedules of one kind are searched: in a process that searches where there are some."""
        name, workers = search_of(self.settings.search, kind), self.guide.workers
        if workers is None:
            return watched(strategy_of(name))
        return watched(workers.strategy(name, work.call.region, place=place, seed=seed, kind=kind))

    def _enter_other(self, allocator: Allocator, work: RegionWork, kind: str, *, place: int, index: int) -> None:
        """Search a region's schedules of another kind too: beside the device, as those of the baseline's are."""
        space = work.others[kind]
        with looking(f"where the search of kind {kind} begins"):
            seed = f"{self.settings.seed}:{index}:{kind}"
            problem, expected_s = self._other_problem(work, kind, seed)
            how = self._strategy(work, kind, place=place, seed=seed)
            gain = max(1.0 - expected_s / (work.best_s if work.proposed else work.baseline_s), PRIOR_GAIN)
            allocator.enter(work.id, work.call.calls, problem, how, transfer=Transfer(space), gain=gain)

    def _other_problem(self, work: RegionWork, kind: str, seed: str) -> tuple[Problem, float]:
        """The search problem of a region's schedules of another kind, which begins where their space does, and what is
        expected of that schedule, in seconds."""
        from kcg.predictor.cost import guiding

        space = work.others[kind]
        judge = judge_of(guiding(space, self.guide.predictor), space)
        expected, chances = dict[Schedule, Expected](), dict[Schedule, Chance]()
        (first,) = judge.predict([space.start()])
        # what was expected is no surprise: it is judged by every rule where it counts, and not here too
        measure = functools.partial(self._measure, work, expected=expected, chances=chances, expected_s=first.runtime_s)
        searched = FromItsStart(space)
        problem = Problem(
            space=searched,
            predict=judge.predict,
            measure=measure,
            ledger=self.ledger,
            rng=random.Random(seed),
            known=work.seen_of(kind),
            correct=judge.correct,
            expected=expected,
            chances=chances,
            draws=Draws(searched, judge.predict, seed),
        )
        return problem, first.runtime_s

    def _search_with(self, predictor: Predictor) -> None:
        self.log.progress.phase(f"searching with {self.settings.search}")
        self.allocator = allocator = Allocator(
            self.ledger,
            self._limits(),
            seen=self._seen,
            weigh=self._weigh,
            between=self._between,
            arriving=functools.partial(self._arrive, predictor),
            elsewhere=self._elsewhere,
        )
        self._enter(predictor, self.works)
        allocator.run()
        if self.ahead is not None:
            self.ahead.over()
        self.device.check_journal()
        self.settled, self.expected = allocator.settled, allocator.expected

    def _enter(self, predictor: Predictor, timed: Sequence[RegionWork]) -> None:
        """Have the allocator search those of these that are to be searched."""
        allocator = self.allocator
        assert allocator is not None
        # without a baseline there is nothing to compare with
        wanted = {work.id for work in searched_of(self.missing)} & {work.id for work in timed}
        works = [(i, work) for i, work in enumerate(self.works) if work.baseline_s and work.id in wanted]
        works.sort(key=lambda one: -one[1].before_s)
        workers = self.guide.workers
        if workers is None:
            places = [0] * len(works)
        elif self._entered:  # each is little beside those before
            places = [(len(self._entered) + n) % workers.count for n in range(len(works))]
        else:
            places = assigned([work.before_s for _, work in works], workers.count)
        for place, (index, work) in zip(places, works, strict=True):
            if not work.proposed or not work.others:  # the parts of what is proposed were searched as kernels
                asked = self._problem(work, predictor, index)
                how = self._strategy(work, work.kind, place=place, seed=f"{self.settings.seed}:{index}")
                allocator.enter(
                    work.id,
                    work.call.calls,
                    asked,
                    how,
                    transfer=Transfer(work.space),
                    each_s=self.estimates.measuring_one_s(work),
                    until=functools.partial(self.estimates.searched_until, work),
                )
            for kind in work.others:
                self._enter_other(allocator, work, kind, place=place, index=index)
        self._entered += [work for _, work in works]
        self._weigh()
        if self.ahead is not None:
            self.ahead.know(self.estimates, searched=self._entered)

    def _arrive(self, predictor: Predictor) -> bool:
        """Search those too that were timed since; whether there may be more."""
        if self.tail is not None and (timed := self.tail.turn()):
            self.device.check_journal()
            self._enter(predictor, timed)
        if self.joins is not None and (joined := self.joins.turn()) is not None:
            self._join(predictor, joined)
        self._await_first()
        return any(more is not None and not more.is_over for more in (self.tail, self.joins))

    def _await_first(self) -> None:
        """Without a budget a search is not over before what joins it is ready, if anything is."""
        waits = _waits_for_first(self.joins, self.works)
        if waits and self.budget.limit_s is None and (deadline := self.ledger.deadline) is not None:
            self.budget.search_until(max(deadline, time.monotonic() + AWAITED_S))

    def _join(self, predictor: Predictor, joined: Joined) -> None:
        """From now on these are searched too."""
        self.estimates, self.weights = joined.estimates, joined.weights
        self.works = [*self.works, *joined.works]
        self.missing = [work for work in self.works if work.is_missing]
        if self.budget.limit_s is None and self.settings.measurements is None:  # they have the time that they need
            effort_s = missing_share(joined.works) * EFFORTS[self.settings.effort].search_s
            self.budget.search_until(time.monotonic() + effort_s)
        self._enter(predictor, joined.works)

    def _elsewhere(self) -> float:
        """What a second of the device is worth to judging. Without a budget all is judged in the end: to wait would
        only take the search its time."""
        return self.ahead.rate if self.ahead is not None and self.budget.limit_s is not None else 0.0

    def _between(self) -> None:
        """While nothing is at work on a CPU: the search's own thoughts would disturb a sample."""
        if self.ahead is not None:
            self.ahead.turn()

    def _limits(self) -> Limits:
        """On a CPU all takes turns, so that nothing disturbs a sample, and a budget is for searching as long as a batch
        is worth it: a quarter of minutes holds few measurements of each kernel. A GPU is kept busy by many at once."""
        compilers, devices, least = self.device.compilers, self.device.spread.size, self.settings.least_saving
        if self.device.is_cpu:  # four of one device take no more than one
            measuring = max(4 * devices, compilers)
            stalls = self.budget.limit_s is None
            return Limits(measuring=measuring, batch=4, least_saving=least, stalls=stalls, patience_s=self._patience_s)
        searching = self.guide.workers.count if self.guide.workers is not None else 2
        if _waits_for_first(self.joins, self.works):
            compilers = max(int(WAITING * compilers), 1)
        limits = Limits.on_gpu(compilers, searching, gpus=devices, least_saving=least)
        return replace(limits, patience_s=self._patience_s)

    def _patience_s(self) -> float:
        wait_s = self.estimates.waits_s()
        return PATIENCE_S if wait_s is None else max(min(wait_s, PATIENCE_S), 0.0)

    def _seen(self, note: str = "") -> None:
        """After something was measured. More improved kernels mean more to be judged, and so less time to search."""
        if self.budget.limit_s is not None:
            self.budget.search_until(self.estimates.search_until())
        self.device.check_journal()
        if self.ahead is not None:
            self.ahead.check()
        if time.monotonic() >= self._weigh_at:
            self._weigh()
        self._show(note=note)

    def _weigh(self) -> None:
        """Give each entry the weight that it has by what is known now."""
        if (allocator := self.allocator) is None:
            return
        begun = time.monotonic()
        allocator.limits = self._limits()  # devices and hosts come and go
        open_ = [entry for entry in allocator.entries if not entry.ended]
        weights = self.weights({entry.name: entry.expected_s for entry in open_})
        for entry in open_:
            entry.weight = weights.get(entry.name, 1.0)
        if (alone_s := self._alone_s()) is not None:
            self._planned_s = alone_s - self.weights.saved_s()
        now = time.monotonic()
        self._weigh_at = now + (now - begun) / WEIGHING

    def _show(self, *, kernels: tuple[int, int] | None = None, note: str = "") -> None:
        alone_s = self._alone_s()
        self.log.show(
            None if alone_s is None else min(alone_s, self._planned_s),
            measurements=self.ledger.measurements,
            budget_s=self.estimates.expected_s(),
            kernels=kernels,
            note=note,
            keep=self.settings.measurements != 0,
        )

    def _alone_s(self) -> float | None:
        """What the workload takes with every kernel alone, by the best that is known of each."""
        return total_s(self.estimates.measured.timed if self.tail is None or self.tail.is_over else self.works)

    def _tiny_beam(self, width: int) -> None:
        """tinygrad's own BEAM, region by region, the largest first."""
        self.log.progress.phase(f"searching with tinygrad's own BEAM={width}")
        service = self.device.service
        for work in sorted(searched_of(self.missing), key=lambda w: -w.before_s):
            if self.ledger.exhausted:
                break
            left = 3600.0 if self.ledger.deadline is None else self.ledger.deadline - time.monotonic()
            job = TinyBeamJob(work.call.region, service.target, width)
            own = work.space.name(work.space.baseline())
            try:
                found = service.tiny_beam(job, timeout_s=max(left, 1.0)).result()
            except TimeoutError as error:
                self.log.progress.line(str(error))
                break
            except ScheduleError as error:
                self.log.warn(f"{own}: {error}")
                continue
            work.searched_by_beam(found.binaries)
            self.budget.charge(measurements=max(found.binaries - 1, 0), compilations=found.binaries)
            for future in self.device.measure(work, [found.schedule], sampler=f"{TINY_BEAM}:{width}"):
                work.keep(future.result())
            self._seen(note=own)

    def _predict_only(self, predictor: Predictor) -> None:
        """Choose by prediction alone. The choice is still verified and timed against the baseline at the end."""
        from kcg.search.beam import draft

        def drafted(work: RegionWork) -> Sequence[Schedule]:
            return draft(Trials(self._problem(work, predictor, places[work.id])))

        self.log.progress.phase("choosing by prediction, without measuring")
        places, count = {work.id: place for place, work in enumerate(self.works)}, len(self.missing)
        longest, until = sorted(self.missing, key=lambda work: -work.expected_s), self.ledger.deadline

        def show(done: int) -> None:
            self._show(kernels=(done, count))
            if self.ahead is not None:  # these are judged soon, and wait for references then
                self.ahead.prepare([work for work in longest if work.found])

        if not expect_kernels(self.missing, predictor, drafted, device=self.device, until=until, show=show):
            self.log.warn("the budget ended before a schedule was predicted for every kernel")


def _waits_for_first(joins: Joins | None, works: Sequence[RegionWork]) -> bool:
    """Whether regions will join the search, and none has."""
    return joins is not None and not joins.is_over and not any(work.proposed for work in works)


def share_efforts(works: Sequence[RegionWork], seconds: float) -> None:
    """Know of each that is missing what a search of these that may take so long stands for."""
    total_s, part = sum(work.before_s for work in works), missing_share(works)
    for work in works:
        if work.is_missing and total_s and part:
            work.search_s, work.share = max(seconds, 0.0) / part, work.before_s / total_s


def assigned(seconds: Sequence[float], count: int) -> list[int]:
    """Which of `count` search workers each kernel gets, the largest first: whoever has the least of the workload's
    time. They take turns in one process, and the largest would wait for the others."""
    loads, places = [0.0] * count, []
    for one in seconds:
        places.append(loads.index(min(loads)))
        loads[places[-1]] += one
    return places
