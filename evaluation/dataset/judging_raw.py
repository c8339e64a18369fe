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

import hashlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from evaluation.dataset import outcomes
from evaluation.dataset.compiled_ahead import Ahead, Failed
from evaluation.dataset.looking import LookJob, look_job
from evaluation.dataset.outcomes import Results, Row
from evaluation.dataset.raw_programs import Drawn, Place, Programs
from evaluation.dataset.raw_space import class_of
from evaluation.rows import rounded
from kcg.errors import DeviceError, VerificationError
from kcg.judge.stressing import launches_in
from kcg.kernel.kinds import baseline_of
from kcg.kernel.program import Executable
from kcg.measure import child, stress
from kcg.measure.device_info import first_line
from kcg.measure.jobs import CompileJob, CompileOutcome, PairedJob, StressJob
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import REFERENCES_TIMEOUT_S, MeasureService, Request, ServiceSettings, status_of
from kcg.measure.verify import FINAL_SEEDS, References
from kcg.types import Status, Verification

CHECK_S: Final = 15.0  # timeouts, in seconds: of checking and timing
VERIFY_S: Final = 40.0
STRESS_S: Final = 20.0  # of a piece of about a second, beyond what it should take
COMPILE_S: Final = 30.0
COMPILE_ILLEGAL_S: Final = 8.0
"""What is not legal may be far too large for a compiler: a minute and more. What is legal takes a second or two."""
SLOW_S: Final = 0.005  # a program that takes longer has one sample
LEAST_LAUNCHES: Final = 20
LEAST_S: Final = 5e-6  # that a launch takes, for what follows from its time
PAIRED_SAMPLES: Final = 3
MOSTLY: Final = 0.8  # of programs, that break a rule
COMPILING_S: Final = 900.0  # that a program may wait for its compiler, with all before it
AHEAD: Final = 6  # programs for each compiler that are compiled before they are judged
REGIONS_AHEAD: Final = 6  # whose references are computed before their programs are compiled
POLL_S: Final = 0.2
ALONE, BESIDE, CHECKED = "alone", "beside", "no"
"""How it is verified by the rules of finalists: alone, beside tinygrad's own schedule, or not."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How programs are judged."""

    launches: int = stress.PROVISIONAL
    stress_s: float = 0.2  # of launches of one program, about
    verify: str = ALONE
    verify_every: int = 1  # program in so many that passed, by a hash, is verified
    deaths: int = 3
    slow: int = 6
    children: int = 3  # that take turns on the device


class Over(Exception):
    """There is no time left, or no device: nothing is known of the program at hand."""


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
                same, known = False, _Case(service, item.place, program, runs, self).judged()
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
            return {"outcome": outcomes.of_compiler(status), "reason": _line(error)}

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


def _line(error: BaseException) -> str:
    """`ScheduleError: it takes …`."""
    return f"{type(error).__name__}: {first_line(error)}"[:300]


class _Case:
    """One compiled program, and what is known of it so far."""

    def __init__(
        self, service: MeasureService, place: Place, program: Drawn, compiled: Executable, judging: Judging
    ) -> None:
        self._service, self._place, self._program = service, place, program
        self._compiled, self._judging, self._settings = compiled, judging, judging.settings
        self._references = service.begin_references(place.region, place.variables)

    def judged(self) -> Row:
        """What became of it. Raises Over or DeviceError where nothing is known."""
        if why := self._why_unjudged():
            return {"outcome": outcomes.UNJUDGED, "stage": "check", "reason": why}
        row = self._checked()
        if row["outcome"] == outcomes.OK:
            row |= self._stressed(row["seconds"])
        if row["outcome"] == outcomes.OK and self._is_verified():
            row |= self._verified()
        if row["outcome"] in (outcomes.NAN, outcomes.WRONG, outcomes.DIFFERS):
            row |= self._looked_at()
        return row

    def _is_verified(self) -> bool:
        """Whether it is one of those that are verified by the rules of finalists."""
        number = int(hashlib.sha256(self._program.key.encode()).hexdigest()[:8], 16)
        return self._settings.verify != CHECKED and number % self._settings.verify_every == 0

    def _why_unjudged(self) -> str:
        """Why there is no reference; empty where there is one."""
        if self._references is None:
            return ""
        try:
            self._judging.wait(self._references, 2 * REFERENCES_TIMEOUT_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except (VerificationError, TimeoutError) as error:
            return f"no reference: {_line(error)}"
        except Exception:  # the device's own process may have better luck
            return ""
        return ""

    def _checked(self) -> Row:
        """Checked on one seed and timed, as a candidate of a search."""
        request = Request(
            self._place.region, self._program.schedule, self._place.variables, in_search=True, stop_above_s=SLOW_S,
            timeout_s=CHECK_S,
        )  # fmt: skip
        found = self._wait(self._service.measure_compiled(request, self._compiled), CHECK_S)
        if self._service.device_error is not None:
            raise self._service.device_error
        row: Row = {"stage": "check"}
        if found.reason:
            row["reason"] = found.reason[:300]
        if found.status == Status.OK:
            return {**row, "outcome": outcomes.OK, "seconds": rounded(found.median_s)}
        if found.status == Status.WRONG:
            return {**row, "outcome": outcomes.of_wrong(found.reason)}
        if found.status in (Status.UNJUDGED, Status.NOISY):
            return {**row, "outcome": str(found.status)}
        return {**row, "outcome": outcomes.of_failure(found.status, found.reason)}

    def _stressed(self, seconds: float) -> Row:
        """Launched as often as is asked, or as there is time for."""
        service, region, variables = self._service, self._place.region, self._place.variables
        asked, done, began = self._settings.launches, 0, time.monotonic()
        launch_s = stress.expected_s(max(seconds, LEAST_S), 0, service.target) / stress.LAUNCHES
        while done < asked and (left_s := self._settings.stress_s - (time.monotonic() - began)) > 0:
            count = min(max(launches_in(min(left_s, 1.0), launch_s), LEAST_LAUNCHES), asked - done)
            job = StressJob(region, self._compiled, service.target, variables, asked, before=done, count=count)
            timeout_s = STRESS_S + 5 * count * launch_s
            try:
                outcome = self._wait(service.stress(job, timeout_s=timeout_s), timeout_s)
            except (Over, ServiceClosed, DeviceError):
                raise
            except Exception as error:
                return self._failed(error, "stress") | {"launches": done, "asked": asked}
            done += count
            if outcome.wrong:
                word, counts = outcomes.of_wrong(outcome.wrong), {"launches": done, "asked": asked}
                return {"outcome": word, "stage": "stress", "reason": outcome.wrong[:300], **counts}
        return {"launches": done, "asked": asked}

    def _verified(self) -> Row:
        """Verified by every rule of finalists."""
        service, region, variables = self._service, self._place.region, self._place.variables
        own = self._own() if self._settings.verify == BESIDE else None
        try:
            known = self._judging.wait(self._judging.references[self._place.key], 3 * REFERENCES_TIMEOUT_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception as error:
            return {"verified": f"not: {_line(error)}"}
        baseline, finalist = (self._compiled, None) if own is None else (own, self._compiled)
        job = PairedJob(
            region, baseline, finalist, service.target, variables, FINAL_SEEDS, samples=PAIRED_SAMPLES, references=known
        )
        try:
            outcome = self._wait(service.compare_paired(job, timeout_s=VERIFY_S), VERIFY_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception as error:
            return self._failed(error, "verify")
        first: Verification = outcome.baseline_verification
        if own is not None and not first.passed:
            return {"verified": f"not: tinygrad's own: {first.reason}"[:300]}
        result = outcome.finalist_verification if own is not None else first
        assert result is not None
        if result.unjudged or result.passed:
            return {"verified": "" if result.passed else f"not: {result.reason}"[:300]}
        return {"outcome": outcomes.of_wrong(result.reason), "stage": "verify", "reason": result.reason[:300]}

    def _own(self) -> Executable | None:
        """tinygrad's own schedule, compiled; None where it is not."""
        region, service = self._place.region, self._judging.services[0]
        compiled = service.compiled(region, baseline_of(region, service.target), self._place.variables)
        try:
            made: CompileOutcome = self._judging.wait(compiled, 3 * COMPILE_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception:
            return None
        return made.compiled.at(self._place.variables)

    def _looked_at(self) -> Row:
        """What a wrong program leaves, and how long it takes."""
        known = None
        if self._references is not None and self._references.exception() is None:
            known = self._references.result()
        region, variables, service = self._place.region, self._place.variables, self._service
        job = LookJob(region, self._compiled, service.target, variables, known)
        try:
            look = self._wait(service._device.submit(look_job, job, timeout_s=CHECK_S), CHECK_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception as error:
            return {"look": f"not: {_line(error)}"}
        seen = {name: rounded(value) for name, value in asdict(look).items()}
        return {"look": seen, "seconds": seen["seconds"]}

    def _failed(self, error: Exception, stage: str) -> Row:
        status = status_of(error, timeout=Status.TIMEOUT, other=Status.LAUNCH_ERROR)
        return {"outcome": outcomes.of_failure(status, str(error)), "stage": stage, "reason": _line(error)}

    def _wait(self, future: Future[Any], timeout_s: float) -> Any:
        """What a job on the device gives. It may wait for the turns of the other children, and for a child to open."""
        return self._judging.wait(future, 20 * timeout_s + 300)
