"""A run's jobs in another order, without a device: how fast the verified plan is after each second.

An order sees estimates of what a run really took and gave; what is known is what was done by then. Programs of a part
come in the order in which the search came to them, `AHEAD` at once, as a search on a GPU asks for a batch.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from evaluation.search.job_runs import Part, Program, Run, solver
from evaluation.search.loop import CORE, DEVICE, Z90, Chain, Outcome, Resources, Solve, State, Task, add, done, started
from kcg.types import JobKind

Policy = Callable[[State, float, float], list[Task]]
"""What starts now: of a state, the time and the deadline, in seconds since the command began."""

AHEAD: Final = {True: 1, False: 4}  # programs of one part that are on their way, on a CPU and elsewhere
PASSES: Final = {JobKind.TIME: 0.99, JobKind.PAIRED: 0.98, JobKind.STRESS: 0.98}  # what any order expects
PROVISIONAL: Final = 0.99  # of a gain, after the first launches of stress
FIRST: Final = 0.1  # of the launches of stress, and of its seconds
PIECE_S: Final = 1.0  # of the rest, at most: the device is for something better meanwhile

Errors = Literal["exact", "predicted", "wrong"]


@dataclass(frozen=True)
class Estimates:
    """What is expected of a run before it is done. `exact`: what it really is. `predicted`: seconds of jobs off by a
    third, of programs by a fifth, both as they say. `wrong`: each twice what it is or half of it, at random: of jobs
    all of one kind of one part, of programs what all of a part save, until one of that part was timed."""

    errors: Errors = "exact"
    seed: int = 0

    def order(self, part: Part) -> list[int]:
        """In which a search comes to the programs of a part: as it did, or by what they take, where that is known."""
        numbers = list(range(len(part.programs)))
        return sorted(numbers, key=lambda n: part.programs[n].seconds) if self.errors == "exact" else numbers

    def task_s(self, run: Run, part: str, kind: str, seconds: float) -> tuple[float, float]:
        """What a job is expected to take, and nine of ten at most."""
        rng = random.Random(f"{run.name} {part} {kind} {self.seed}")
        if self.errors == "exact":
            return seconds, seconds
        if self.errors == "wrong":
            expected = seconds * rng.choice((0.5, 2.0))
            return expected, 1.5 * expected
        expected = seconds * math.exp(rng.gauss(0.0, 1 / 3))
        return expected, expected * math.exp(Z90 / 3)

    def seconds(self, run: Run, part: Part, number: int, own_s: float, *, is_timed: bool) -> tuple[float, float]:
        """What a call of a program is expected to take, and the deviation of its logarithm. `own_s` is what the calls
        take without it; `is_timed`: another program of the part was."""
        true = part.programs[number].seconds
        rng, of_part = (random.Random(f"{run.name} {part.id} {n} {self.seed}") for n in (number, "all"))
        if self.errors == "exact":
            return true, 1e-3
        if self.errors == "wrong" and not is_timed:
            saved = (own_s - true) * of_part.choice((0.5, 2.0))
            return own_s - min(saved, 0.98 * own_s), math.log(2.0)
        if self.errors == "wrong":
            return true * math.exp(rng.gauss(0.0, 0.1)), 0.1
        common = 0.0 if is_timed else of_part.gauss(0.0, 0.2)
        return true * math.exp(common + rng.gauss(0.0, 0.08)), 0.08 if is_timed else 0.22


@dataclass(frozen=True)
class Replayed:
    """What a replay gave."""

    points: tuple[tuple[float, float], ...]  # when the verified plan changed, and its seconds
    verified: frozenset[str]  # the programs that may run at the end
    ended_s: float
    device_s: float  # that the device was busy

    def seconds_at(self, at: float) -> float:
        """What the workload takes by what is verified then."""
        return [seconds for when, seconds in self.points if when <= at][-1]


def replayed(
    run: Run,
    policy: Policy,
    estimates: Estimates,
    *,
    deadline: float = math.inf,
    until: float = math.inf,
) -> Replayed:
    """A run in the order of a policy, which knows the deadline, if there is one; what is not over then is lost. It is
    looked at until then."""
    return _Replay(run, policy, estimates, deadline).run(min(until, deadline))


class _Replay:
    def __init__(self, run: Run, policy: Policy, estimates: Estimates, deadline: float) -> None:
        self._run, self._policy, self._estimates, self._deadline = run, policy, estimates, deadline
        self._parts = {part.id: part for part in run.parts}
        self._solve: Solve = solver(run)
        own = {part.id: estimates.task_s(run, part.id, "own", part.own_s)[0] for part in run.parts if part.is_kernel}
        resources = Resources(run.cores, quiet=run.quiet)
        self.state = State(self._solve, own, resources, least=0.0)
        self._next = dict.fromkeys(self._parts, 0)  # program of each part
        self._timed: set[str] = set()  # parts of which one was
        shared = [task for part in run.parts for task in self._shared(part)]
        self.state = add(self.state, [], shared)
        for part in run.parts:
            self._propose(part, AHEAD[run.quiet])

    def run(self, until: float) -> Replayed:
        """All of it, or until nothing starts any more."""
        now, busy_s, waiting = self._run.begin_s, 0.0, list[tuple[float, int, str]]()
        points, count = [(now, self._true_s())], 0
        while True:
            for task in self._policy(self.state, now, self._deadline):
                self.state = started(self.state, [task], now)
                seconds = self._seconds(task)
                busy_s += seconds if task.resource == DEVICE else 0.0
                heapq.heappush(waiting, (now + seconds, count, task.id))
                count += 1
            if not waiting or waiting[0][0] > until:
                break
            now, _, task_id = heapq.heappop(waiting)
            self._end(task_id)
            if (seconds := self._true_s()) != points[-1][1]:
                points.append((now, seconds))
        verified = frozenset(one.chain for one in self.state.verified)
        return Replayed(tuple(points), verified, now, busy_s)

    def _true_s(self) -> float:
        """What the workload takes by what is verified, whatever was expected."""
        return self._solve(replace(self.state, own=self._run.own).seconds()).seconds

    def _end(self, task_id: str) -> None:
        task, chain = self.state.task(task_id)
        self.state = done(self.state, task_id, self._outcome(task))
        if chain is not None and task.kind in (JobKind.COMPILE, JobKind.TIME):
            part = self._parts[chain.region]
            is_over = task.kind == JobKind.TIME or chain.id not in self.state.chains
            if task.kind == JobKind.TIME:
                self._timed.add(part.id)
                self._correct(part)
            self._propose(part, int(is_over))

    def _outcome(self, task: Task) -> Outcome:
        part, program = self._of(task)
        name = task.id.split(" ")[-1]
        if program is None:
            return Outcome(True, part.own_s if task.kind == JobKind.TIME else None)
        passed = name not in (program.fails, f"{program.fails}:0")
        return Outcome(passed, program.seconds if task.kind == JobKind.TIME and passed else None)

    def _of(self, task: Task) -> tuple[Part, Program | None]:
        part_id, number, _ = task.id.split(" ")
        part = self._parts[part_id]
        return part, None if number == "-" else part.programs[int(number)]

    def _seconds(self, task: Task) -> float:
        """What it really takes."""
        part, program = self._of(task)
        name = task.id.split(" ")[-1]
        if program is None:
            return part.timing_s if name == "own" else part.reference_s
        if name.startswith("stress"):
            return _pieces(program)[int(name.partition(":")[2])]
        return {"compile": program.compile_s, "time": program.time_s, "judge": program.judge_s}[name]

    # ---- what there is to do

    def _shared(self, part: Part) -> list[Task]:
        found = [self._task(part, "-", "reference", JobKind.REFERENCE, CORE, part.reference_s)]
        if part.is_kernel:
            found.append(self._task(part, "-", "own", JobKind.TIME, DEVICE, part.timing_s))
        return found

    def _propose(self, part: Part, count: int) -> None:
        order = self._estimates.order(part)
        numbers = order[self._next[part.id] : self._next[part.id] + count]
        self._next[part.id] += len(numbers)
        self.state = add(self.state, [self._chain(part, number) for number in numbers])

    def _correct(self, part: Part) -> None:
        """What one of a part took says how far off the others are expected to be."""
        for chain in list(self.state.chains.values()):
            if chain.region == part.id and not chain.is_timed:
                seconds, deviation = self._expected(part, int(chain.id.split(" ")[1]))
                chain = replace(chain, seconds=seconds, deviation=deviation)
                self.state = replace(self.state, chains={**self.state.chains, chain.id: chain})

    def _expected(self, part: Part, number: int) -> tuple[float, float]:
        own = self._run.own
        own_s = sum(own[kernel] * calls for kernel, calls in part.takes) or part.own_s
        is_timed = part.id in self._timed
        return self._estimates.seconds(self._run, part, number, own_s, is_timed=is_timed)

    def _chain(self, part: Part, number: int) -> Chain:
        program = part.programs[number]
        seconds, deviation = self._expected(part, number)
        needs = (f"{part.id} - own",) if part.is_kernel else ()
        judge_after = (f"{part.id} - reference",)
        has_stress = program.stress_s > 0.0
        tasks = [
            self._task(part, number, "compile", JobKind.COMPILE, CORE, program.compile_s),
            self._task(part, number, "time", JobKind.TIME, DEVICE, program.time_s, after=needs),
            self._task(
                part,
                number,
                "judge",
                JobKind.PAIRED,
                DEVICE,
                program.judge_s,
                after=judge_after,
                counts=0.0 if has_stress else 1.0,
            ),
        ]
        for piece, seconds_s in enumerate(pieces := _pieces(program)):
            counts = PROVISIONAL if piece == 0 else 1 - PROVISIONAL if piece == len(pieces) - 1 else 0.0
            tasks.append(self._task(part, number, f"stress:{piece}", JobKind.STRESS, DEVICE, seconds_s, counts=counts))
        kernels = frozenset(kernel for kernel, _ in part.takes) or frozenset([part.id])
        return Chain(f"{part.id} {number}", part.id, part.calls, seconds, deviation, tuple(tasks), kernels)

    def _task(
        self,
        part: Part,
        number: int | str,
        name: str,
        kind: JobKind,
        resource: str,
        seconds: float,
        *,
        counts: float = 0.0,
        after: tuple[str, ...] = (),
    ) -> Task:
        expected_s, late_s = self._estimates.task_s(self._run, part.id, name, seconds)
        is_certain = number == "-" or (kind == JobKind.STRESS and name != "stress:0")
        passes = 1.0 if is_certain else PASSES.get(kind, 1.0)
        task_id = f"{part.id} {number} {name}"
        return Task(task_id, kind, part.id, resource, expected_s, late_s, 0, passes, counts, after)


def _pieces(program: Program) -> list[float]:
    """Stress: the first launches, then the rest in pieces, in seconds; none where it needs none."""
    if not program.stress_s:
        return []
    rest_s = (1 - FIRST) * program.stress_s
    count = math.ceil(rest_s / PIECE_S)
    return [FIRST * program.stress_s, *[rest_s / count] * count]
