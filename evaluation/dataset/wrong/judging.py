"""Programs of the raw space judged on a device, by kcg's own rules, and what became of each.

A program is compiled in the pool, and in the child that has the device: checked on one seed and timed, as a candidate
of a search; launched very often, as many times as are asked and fit into `stress_s` of the settings; verified by every
rule of finalists, alone or beside tinygrad's own schedule. The first that fails says what it is. What is wrong is then
looked at (`looking.py`).

Several children take turns on the device, each opening it while the others work: what is legal runs in the first, what
is not in the others, so that a fault of the latter costs no time of the former. Programs that are not legal are no
more run after `deaths` of one class (`raw_space.class_of`) lost a child, nor compiled once at least `slow` of a form
that break a rule, and most of all these, took longer than `COMPILE_ILLEGAL_S`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from evaluation.dataset.wrong import outcomes
from evaluation.dataset.wrong.compiled_ahead import Ahead, Failed
from evaluation.dataset.wrong.judged_program import CHECKED, COMPILE_S, Case, Over, Settings, line_of
from evaluation.dataset.wrong.outcomes import Results, Row
from evaluation.dataset.wrong.raw_programs import Drawn, Place, Programs
from evaluation.dataset.wrong.raw_space import class_of
from evaluation.rows import rounded
from kcg.errors import DeviceError
from kcg.measure import child
from kcg.measure.device_info import first_line
from kcg.measure.jobs import CompileJob, CompileOutcome
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import MeasureService, ServiceSettings, status_of
from kcg.measure.verify import FINAL_SEEDS, References
from kcg.types import Status

COMPILE_ILLEGAL_S: Final = 8.0
"""What is not legal may be far too large for a compiler: a minute and more. What is legal takes a second or two."""
MOSTLY: Final = 0.8  # of programs, that break a rule
COMPILING_S: Final = 900.0  # that a program may wait for its compiler, with all before it
AHEAD: Final = 6  # programs for each compiler that are compiled before they are judged
REGIONS_AHEAD: Final = 6  # whose references are computed before their programs are compiled
POLL_S: Final = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Item:
    """A program on its way: `compiled` is what compiling it comes to."""

    place: Place
    program: Drawn
    compiled: Future[CompileOutcome]


class Judging:
    """One run over a file of programs. Use as a context manager."""

    def __init__(
        self, device: str, programs: Programs, results: Results, settings: Settings, ahead: Ahead | None = None
    ) -> None:
        """What was compiled `ahead` is not compiled here. Raises DeviceError where the device does not open."""
        self._programs, self._results, self._settings, self._ahead = programs, results, settings, ahead
        self._stack = ExitStack()
        beside = ServiceSettings(references_beside=True)
        first = self._stack.enter_context(MeasureService(device, run_id="wrong-programs", settings=beside))
        self.services = [first]
        try:
            _ = first.target
            for _ in range(settings.children - 1):
                more = MeasureService(
                    device, run_id="wrong-programs", settings=beside, compilers_of=first, same_device=True
                )
                self.services.append(self._stack.enter_context(more))
        except BaseException:
            self._stack.close()
            raise
        # by class the programs that lost a child; by form and rule those that took too long to compile, and all
        self._lost = Counter[str]()
        self._slow, self._tried = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for row in results.rows.values():
            self._count(row)
        self._binaries: dict[tuple[str, str], Row] = {}  # by place and binary: what was judged is not judged again
        self.references: dict[str, Future[References]] = {}  # of verifying, by place
        self._until = float("inf")
        self._stop = threading.Event()
        self.errors: list[str] = []
        self.judged = 0

    def __enter__(self) -> Judging:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for service in reversed(self.services):  # those that compile with the first one's children before it
            service.close()
        self._stack.close()

    # ---- the order of work

    def run(self, budget_s: float | None, say: Say) -> int:
        """Judge what has no row yet, for so many seconds; how many programs are left."""
        began = time.monotonic()
        if budget_s is not None:
            self._until = began + budget_s
        queues: list[queue.SimpleQueue[_Item | None]] = [queue.SimpleQueue() for _ in self.services]
        self._room = threading.Semaphore(AHEAD * self.services[0].compile_workers)
        lanes = [
            threading.Thread(target=self._lane, args=(service, items), name="kcg-judging", daemon=True)
            for service, items in zip(self.services, queues, strict=True)
        ]
        for lane in lanes:
            lane.start()
        said = began
        for place, program, number in self._ordered():
            while not self._room.acquire(timeout=POLL_S) and not self._is_over():
                pass
            if self._is_over():
                break
            queues[number].put(_Item(place, program, self._compile(place, program)))
            if time.monotonic() > said + 15:
                said = time.monotonic()
                say(self._progress(said - began))
        for items in queues:
            items.put(None)
        for lane in lanes:
            while lane.is_alive():
                lane.join(timeout=15)
                if lane.is_alive():
                    say(self._progress(time.monotonic() - began))
        say(self._progress(time.monotonic() - began))
        return sum(program.key not in self._results.rows for program in self._programs.programs)

    def _ordered(self) -> Iterator[tuple[Place, Drawn, int]]:
        """What has no row yet, region by region, what is legal first, each with the number of its child: so what is
        done after a cut are all programs of the regions that were drawn first, families in turns."""
        rest = len(self.services) - 1
        by_place: dict[str, list[Drawn]] = {}
        for program in self._programs.programs:
            by_place.setdefault(program.place, []).append(program)
        by_place = {
            place.key: [p for p in by_place.get(place.key, ()) if p.key not in self._results.rows]
            for place in self._programs.places
        }
        places = [place for place in self._programs.places if by_place[place.key]]
        for turn, place in enumerate(places):
            self._begin_references(places[turn : turn + REGIONS_AHEAD])
            waiting = by_place[place.key]
            for program in sorted(waiting, key=lambda p: not p.legal):
                yield place, program, 0 if program.legal or not rest else 1 + turn % rest

    def _begin_references(self, places: Iterable[Place]) -> None:
        """Have the references of regions computed, unless that was begun."""
        first = self.services[0]
        for place in places:
            first.begin_references(place.region, place.variables)
            if self._settings.verify != CHECKED and place.key not in self.references:
                self.references[place.key] = first.references(place.region, place.variables, FINAL_SEEDS)

    def _compile(self, place: Place, program: Drawn) -> Future[CompileOutcome]:
        first = self.services[0]
        if self._is_cut(program):
            done: Future[CompileOutcome] = Future()
            done.set_exception(Over())  # the class is looked at again before that
            return done
        if self._ahead is not None and (known := self._ahead.of(place, program)) is not None:
            return known
        job = CompileJob(place.region, program.schedule, first.target, place.variables)
        return first.beside(child.compile_job, job, timeout_s=COMPILE_S if program.legal else COMPILE_ILLEGAL_S)

    def _is_over(self) -> bool:
        return self._stop.is_set() or time.monotonic() > self._until

    def _is_cut(self, program: Drawn) -> bool:
        if program.legal:
            return False
        lost = self._lost[class_of(program.form, program.rules)] >= self._settings.deaths
        return lost or any(self._is_slow((program.form, rule)) for rule in program.rules)

    def _is_slow(self, rule: tuple[str, str]) -> bool:
        """Whether most programs of a form that break a rule take too long to compile."""
        return self._slow[rule] >= max(self._settings.slow, MOSTLY * self._tried[rule])

    def _count(self, row: Row) -> None:
        """Remember what a program of a class did."""
        self._lost[class_of(row["form"], row["rules"])] += bool(row.get("children_lost"))
        for rule in row["rules"]:
            self._slow[row["form"], rule] += row["outcome"] == outcomes.COMPILE_TIMEOUT
            self._tried[row["form"], rule] += row["outcome"] != outcomes.CUT

    def _progress(self, seconds: float) -> str:
        lost = sum(service.children_replaced for service in self.services)
        found = Counter(row["outcome"] for row in self._results.rows.values())
        words = ", ".join(f"{count} {name}" for name, count in found.most_common())
        return f"{seconds:.0f} s: {self.judged} judged now, {lost} children replaced; all: {words}"

    # ---- one child

    def _lane(self, service: MeasureService, items: queue.SimpleQueue[_Item | None]) -> None:
        try:
            while (item := items.get()) is not None:
                if self._is_over():
                    continue
                row = self._row(service, item)
                if self._stop.is_set():  # what ended since the run ended says nothing
                    raise Over
                self._results.add(row)
                self.judged += 1
                self._room.release()
        except (Over, ServiceClosed) as error:
            if not self._is_over():
                self.errors.append(f"a job did not end: {first_line(error)}")
            self._stop.set()
        except DeviceError as error:
            self.errors.append(first_line(error))
            self._stop.set()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {first_line(error)}")
            self._stop.set()

    def _row(self, service: MeasureService, item: _Item) -> Row:
        program, began, before = item.program, time.monotonic(), service.children_replaced
        if self._is_cut(program):
            found: Row = {"outcome": outcomes.CUT}
        elif isinstance(compiled := self._compiled(item), dict):
            found = compiled
        else:
            runs = compiled.compiled.at(item.place.variables)
            key, same = (program.place, runs.binary_hash), True
            if (known := self._binaries.get(key)) is None:
                same, known = False, Case(service, item.place, program, runs, self).judged()
                self._binaries[key] = known
            found = {**known, "binary": runs.binary_hash[:16], "compile_s": rounded(compiled.compile_s)}
            found |= {"same_binary": True} if same else {}
        if lost := service.children_replaced - before:
            found["children_lost"] = lost
        about = {
            "key": program.key, "region": item.place.region.id, "workload": item.place.workload,
            "family": item.place.family, "form": program.form, "drawn": program.drawn, "rules": list(program.rules),
            "body": program.body,
        }  # fmt: skip
        row = {**about, **found, "spent_s": rounded(time.monotonic() - began)}
        self._count(row)
        return row

    def _compiled(self, item: _Item) -> CompileOutcome | Row:
        """What compiling came to; the row of a failure. Raises Over, or DeviceError."""
        try:
            outcome: CompileOutcome = self.wait(item.compiled, COMPILING_S)
            return outcome
        except (Over, ServiceClosed, DeviceError):
            raise
        except Failed as failed:
            return {name: failed.row[name] for name in ("outcome", "reason")}
        except Exception as error:
            status = status_of(error, timeout=Status.COMPILE_TIMEOUT, other=Status.COMPILE_ERROR)
            return {"outcome": outcomes.of_compiler(status), "reason": line_of(error)}

    def wait(self, future: Future[Any], most_s: float) -> Any:
        """What a future gives. Raises what it raises; Over where the budget ends before it does, or it takes longer
        than it may."""
        deadline = time.monotonic() + most_s
        while not future.done():
            if self._is_over() or time.monotonic() > deadline:
                raise Over
            try:
                return future.result(timeout=POLL_S)
            except FutureTimeout:
                if future.done():
                    break
        return future.result()

    @property
    def settings(self) -> Settings:
        return self._settings
