"""The tile programs and the Opts that take part, each found by kcg's own search with a budget for each kernel.

What was found is kept in a journal by kernel and card, one line each, so that a call that is cut off goes on there.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kcg.kernel.kinds import Unsupported, kind_named, space_of
from kcg.kernel.program import Executable
from kcg.measure.service import MeasureService, Request
from kcg.optimize.search import HOPELESS
from kcg.optimize.settings import DEFAULT_SEARCH
from kcg.predictor.cost import KnownCost
from kcg.predictor.interface import judge_of
from kcg.search.problem import Ledger, Observation, Problem, Strategy
from kcg.search.strategies import strategy
from kcg.search.workers import FromItsStart, SearchWorkers
from kcg.types import Region, Schedule, ScheduleKind, Status

log = logging.getLogger(__name__)

FINALISTS = 3  # tile programs of a kernel that are timed beside the others
SEARCHING = 12  # kernels at once: each has its inputs on the device
TIMEOUT_S = 60.0  # of checking and timing one program


@dataclass(frozen=True)
class Wanted:
    """What is to be searched for one region: so many tile programs, so many Opts, tinygrad's own included."""

    region: Region
    tiles: int
    opts: int
    known: Schedule | None = None  # Opts of an earlier result


@dataclass
class Found:
    """What a search found of one kernel."""

    region: str
    card: str
    tiles: list[dict[str, Any]] = field(default_factory=list)  # the fastest: body and seconds
    start_s: float | None = None  # of the program that the analytic cost chooses
    opts: dict[str, Any] = field(default_factory=dict)  # body, seconds, from where
    hand_coded_s: float | None = None
    measured: dict[str, int] = field(default_factory=dict)  # by kind
    failed: dict[str, int] = field(default_factory=dict)  # statuses of tile programs
    reasons: dict[str, str] = field(default_factory=dict)  # of one of each
    refused: str = ""
    search_s: float = 0.0
    cut_off: bool = False  # the time was over before the budget

    def schedules(self) -> dict[str, Schedule]:
        """Name -> what takes part."""
        made = {f"tile {i}": Schedule(ScheduleKind.TILE, one["body"]) for i, one in enumerate(self.tiles)}
        return made | ({"opts": Schedule(ScheduleKind.OPTS, self.opts["body"])} if self.opts else {})

    def best(self) -> Schedule | None:
        """The fastest of all that were measured, of either kind."""
        found = [(one["s"], ScheduleKind.TILE, one["body"]) for one in self.tiles[:1]]
        found += [(self.opts["s"], ScheduleKind.OPTS, self.opts["body"])] if self.opts else []
        _, kind, body = min(found, default=(0.0, "", ""))
        return Schedule(kind, body) if kind else None


class Searches:
    """Searches on one device, and the journal of those that ended. Use as a context manager."""

    def __init__(self, service: MeasureService, folder: Path, *, predictor: str = "auto") -> None:
        self.service, self._path = service, folder / "searched.jsonl"
        self.card = service.target.model
        self._lock = threading.Lock()
        count = max(2, min(3 * service.compile_workers // 4, 2 * SEARCHING))
        self._workers = SearchWorkers(count, predictor, service.target, service.initargs, strategies=strategies)
        self.found: dict[str, Found] = {}
        if self._path.exists():
            rows = (json.loads(line) for line in self._path.read_text().splitlines())
            of_card = [Found(**row) for row in rows if row["card"] == self.card]
            self.found = {found.region: found for found in of_card if not found.cut_off}

    def __enter__(self) -> Searches:
        return self

    def __exit__(self, *exc: object) -> None:
        self._workers.close()

    def search(self, wanted: Sequence[Wanted], *, until: float) -> None:
        """Search what is not in the journal, some kernels at once. `until` is on `time.monotonic`."""
        new = [one for one in wanted if one.region.id not in self.found]
        with ThreadPoolExecutor(SEARCHING) as pool:
            for future in [pool.submit(self._one, one, 2 * i, until) for i, one in enumerate(new)]:
                future.result()

    def compiled(self, region: Region, schedules: Mapping[str, Schedule] | None = None) -> dict[str, Executable]:
        """Name -> program of some schedules, by default those that were found; what does not compile is left out."""
        made: dict[str, Executable] = {}
        wanted = self.found[region.id].schedules() if schedules is None else schedules
        futures = {name: self.service.compiled(region, schedule) for name, schedule in wanted.items()}
        for name, future in futures.items():
            try:
                made[name] = future.result().compiled
            except Exception as error:  # a compiler's own kinds
                log.warning("%s of %s: %s", name, region.id[:12], error)
        return made

    def _one(self, wanted: Wanted, place: int, until: float) -> None:
        begin, region = time.monotonic(), wanted.region
        found = Found(region.id, self.card)
        try:
            kind = kind_named(ScheduleKind.TILE).space(region, self.service.target)
            if isinstance(kind, Unsupported):
                found.refused = kind.reason
            else:
                self._tiles(wanted, found, place, until)
            if wanted.opts:
                self._opts(wanted, found, place + 1, until)
        except Exception as error:  # of one kernel: the others go on
            found.reasons["search"] = f"{type(error).__name__}: {error}"[:300]
            log.warning("a search failed: %s", found.reasons["search"])
        found.search_s = round(time.monotonic() - begin, 2)
        found.cut_off = time.monotonic() >= until
        with self._lock:
            self.found[region.id] = found
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(found)) + "\n")

    def _tiles(self, wanted: Wanted, found: Found, place: int, until: float) -> None:
        seen = self._run(f"tile:{DEFAULT_SEARCH}", wanted.region, wanted.tiles, place, until)
        good = sorted((o for o in seen if o.status == Status.OK), key=lambda o: o.time_s)
        binaries: set[str] = set()
        for one in good:
            if one.binary_hash not in binaries and len(binaries) < FINALISTS:
                binaries.add(one.binary_hash)
                found.tiles.append({"body": one.schedule.body, "s": one.time_s})
        found.start_s = next((o.runtime_s for o in seen[:1] if o.status == Status.OK), None)
        found.measured["tile"] = len(seen)
        found.failed = dict(Counter(str(o.status) for o in seen if o.status != Status.OK))
        found.reasons = {str(o.status): o.reason[:200] for o in seen if o.status != Status.OK}

    def _opts(self, wanted: Wanted, found: Found, place: int, until: float) -> None:
        seen = self._run(DEFAULT_SEARCH, wanted.region, 1 if wanted.known else wanted.opts, place, until)
        baseline = space_of(wanted.region, self.service.target).baseline()
        found.hand_coded_s = next((o.runtime_s for o in seen if o.schedule == baseline), None)
        found.measured["opts"] = len(seen)
        origin = "hand-coded" if len(seen) < 2 else f"search, {len(seen)} measured"
        if wanted.known is not None:
            request = Request(wanted.region, wanted.known, in_search=True, careful=True, timeout_s=TIMEOUT_S)
            (row,) = self.service.measure([request])
            seen.append(Observation.of(row.result()))
            origin = "result"
        best = min((o for o in seen if o.status == Status.OK), key=lambda o: o.time_s, default=None)
        if best is not None:
            found.opts = {"body": best.schedule.body, "s": best.time_s, "from": origin}

    def _run(self, name: str, region: Region, budget: int, place: int, until: float) -> list[Observation]:
        """All observations of one search, in order."""
        ledger, best_s, binaries = Ledger(max_measurements=budget, deadline=until), [float("inf")], set[str]()

        def measure(batch: Sequence[Schedule]) -> list[Future[Observation]]:
            limit_s = HOPELESS * best_s[0] if best_s[0] < float("inf") else None
            requests = [
                Request(
                    region, schedule, in_search=True, careful=True, stop_above_s=limit_s, best_s=limit_s and best_s[0],
                    timeout_s=TIMEOUT_S,
                )
                for schedule in batch
            ]  # fmt: skip
            futures = []
            for row in self.service.measure(requests, together=True):
                observation = Observation.of(row.result())
                # equal binaries are one measurement; what fails before there is one counts too, or a search never ends
                if not observation.binary_hash or observation.binary_hash not in binaries:
                    ledger.measurements += 1
                binaries.add(observation.binary_hash)
                best_s[0] = min(best_s[0], observation.time_s)
                futures.append(_done(observation))
            return futures

        problem = Problem(
            space=space_of(region, self.service.target),
            predict=lambda schedules: [],  # in the search worker, which has its own
            measure=measure,
            ledger=ledger,
            rng=random.Random(0),
        )
        found = self._workers.strategy(name, region, place=place, seed=f"0:{region.id[:8]}:{name}")
        return list(found(problem))


def _done(observation: Observation) -> Future[Observation]:
    future: Future[Observation] = Future()
    future.set_result(observation)
    return future


def strategies(name: str) -> Strategy:
    """By name; `tile:NAME` searches the tile programs of the region by their analytic cost."""
    kind, colon, rest = name.partition(":")
    return _of_tiles(strategy(rest)) if colon and kind == ScheduleKind.TILE else strategy(name)


def _of_tiles(search: Strategy) -> Strategy:
    def of_tiles(problem: Problem) -> Iterator[Observation]:
        opts: Any = problem.space
        space = kind_named(ScheduleKind.TILE).space(opts.region, opts.target)
        if isinstance(space, Unsupported):
            return iter(())
        judge = judge_of(KnownCost(), space)
        changed = replace(problem, space=FromItsStart(space), predict=judge.predict, correct=judge.correct)
        return search(changed)

    return of_tiles


def best_opts(results: Sequence[Path]) -> Mapping[str, Schedule]:
    """Region -> the Opts that results chose for it, or found best beside what they chose."""
    from kcg.report.result import read_result

    chosen: dict[str, Schedule] = {}
    for path in results:
        for row in read_result(path).regions:
            for finalist in (row.opts, row.chosen):
                if finalist is not None and finalist.schedule.kind == ScheduleKind.OPTS:
                    chosen.setdefault(row.region.id, finalist.schedule)
    return chosen
