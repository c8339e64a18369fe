"""The Gymnasium environment of planning: which candidates to time and judge, which plans to time, and when to stop.

    env = gymnasium.make("kcg.rl:kcg/Plan-v0", recordings=["gpt2_mini.json"])

It replays recorded programs (`kcg.rl.plan_recording`) without a device. An episode is one program and a horizon: so
many steps will be run with what is deployed. Everything is timed as tinygrad schedules it before it begins. Actions
are, of each part, to compile and time its next candidate, or to judge (and stress) its fastest that is timed and not
judged; to time the whole step of the best plan; and to stop. Only what passed judging may run.

- *Seconds* are those of the device, and those of compiling by the number of cores: compiling overlaps with all else. A
  candidate that fails in a job costs the jobs up to it and gives nothing. Of each part the fastest candidates were
  judged; what the others would have taken see `completed`.
- *Plans* are solved by local search: every kernel has its best judged candidate; regions, by what an occurrence saves
  against these, are each put in wherever their calls are not taken, and left out again, one after the other, as long as
  the sum of all calls becomes less. A run of kcg solves them exactly.
- *Deployed* is the fastest of tinygrad's own step, the plans that were timed, and the best plan where it was not timed.
  Of that one the logarithm of a step's speedup is expected to be that of the sum of its calls, times what it was of
  timed plans by theirs, all together (1 where none was timed): calls are timed cold, and alone, a step is neither. A
  plan that was timed and whose outputs were wrong is never deployed.
- *Cost* is seconds plus horizon × the true step of what would be deployed now. A reward is how much the cost falls, by
  the cost of stopping at once; rewards of an episode sum to what was saved of that. The true step of a plan is the
  recorded one; of others see `Steps`. It is in rewards alone: observations have only what was done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from kcg.errors import DataError, UsageError
from kcg.rl.plan_recording import JOBS, JUDGING, STRESSING, Candidate, Part, PlanRecording, read_recording

Array = np.ndarray[Any, Any]
Plan = frozenset[tuple[int, int]]
"""Which candidate runs, by part, both by number. The empty one is the step as tinygrad schedules it."""
COMPILE, TIME, JUDGE, STRESS = range(len(JOBS))  # columns of what jobs take
OWN: Final[Plan] = frozenset()

MOST_PARTS: Final = 32  # with candidates; a recording has at most 12 kernels and 12 regions of them
SHORTEST, LONGEST = 1e2, 1e6  # horizons, in steps
TIME_NEXT, JUDGE_FASTEST = 0, MOST_PARTS  # the first actions of parts
TIME_PLAN: Final = 2 * MOST_PARTS
STOP: Final = TIME_PLAN + 1
ACTIONS: Final = STOP + 1
UNTRIED, TIMED, JUDGED, FAILED = 0, 1, 2, 3  # what became of a candidate
PRIOR_S: Final = (2.0, 0.5, 1.0, 1.0)  # what observations expect of jobs of which none was done
PRIOR_PLAN_S: Final = 20.0
MOST_LISTED: Final = 7  # regions that share calls of which all orders are numbered in advance
MOST_SHARING: Final = 15  # whose order is an integer of 64 bits
PENALTIES: Final = tuple(float(10.0**power) for power in np.arange(-2, 4.5, 0.5))
LEAST_STEP: Final = 0.5  # of the fastest that was timed: no plan is predicted to be faster
LEAST_SPEEDUP: Final = 0.02  # log of a plan's by the sums of its calls: what steps make of less is noise
LEAST_LEFT: Final = 1e-3  # of what calls take in sum, where not all of them were timed


# ---- what is known before anything is done


class _Orders:
    """How often regions run that share calls, by the order in which they are put in; each order is worked out once."""

    def __init__(self, members: Sequence[int], placed: Callable[[Sequence[int]], list[float]]) -> None:
        """`placed`: how often each of these runs, put in in this order."""
        self._members, self._placed = members, placed
        self._count = count = len(members)
        self._base = (count + 1) ** np.arange(count, dtype=np.int64)
        self._numbers = np.full((count + 1) ** count if count <= MOST_LISTED else 0, -1, np.int32)
        self._others: dict[int, int] = {}
        self._rows = np.zeros((0, count))

    def weights(self, net: Array) -> Array:
        """(B, regions), by what an occurrence of each saves beyond its kernels (B, regions)."""
        order = np.argsort(-net, axis=1, kind="stable") + 1
        order[np.take_along_axis(net, order - 1, 1) <= 0.0] = 0
        codes = order @ self._base
        if not len(self._numbers):
            unique, inverse = np.unique(codes, return_inverse=True)
            found: Array = self._rows_of(unique.tolist())[inverse]
            return found
        if ((numbers := self._numbers[codes]) < 0).any():
            new = np.unique(codes[numbers < 0])
            self._numbers[new] = len(self._rows) + np.arange(len(new))
            self._rows = np.concatenate([self._rows, self._made(new.tolist())])
            numbers = self._numbers[codes]
        known: Array = self._rows[numbers]
        return known

    def best(self, net: Array) -> Array:
        """The same without those regions that others gain more by: one after the other is left out, as long as the sum
        of what all save becomes more."""
        left, found = net.copy(), self.weights(net)
        gained = (found * net).sum(1)
        for _ in range(self._count):
            more = np.zeros(len(net), bool)
            base = left.copy()
            for member in range(self._count):
                some = base.copy()
                some[:, member] = 0.0
                rows = self.weights(some)
                gain = (rows * net).sum(1)
                better = gain > gained * (1.0 + 1e-9)
                found[better], gained[better], left[better] = rows[better], gain[better], some[better]
                more |= better
            if not more.any():
                break
        return found

    def _rows_of(self, codes: list[int]) -> Array:
        new = [code for code in codes if code not in self._others]
        self._others.update({code: len(self._rows) + place for place, code in enumerate(new)})
        self._rows = np.concatenate([self._rows, self._made(new)])
        found: Array = self._rows[[self._others[code] for code in codes]]
        return found

    def _made(self, codes: list[int]) -> Array:
        rows = np.zeros((len(codes), self._count))
        for row, code in zip(rows, codes, strict=True):
            order = []
            while code:
                code, place = divmod(code, self._count + 1)
                order.append(place - 1)
            row[order] = self._placed([self._members[place] for place in order])
        return rows


class Places:
    """Where parts run: the best plan that is found, of many savings at once."""

    def __init__(self, parts: Sequence[Part], calls: Sequence[tuple[str, float]]) -> None:
        self._kernel = np.array([part.is_kernel for part in parts])
        self._regions = np.flatnonzero(~self._kernel)
        kernels = {part.kernels[0]: number for number, part in enumerate(parts) if part.is_kernel}
        self._of_region = np.zeros((len(self._regions), len(parts)))  # how often each kernel is in one occurrence
        for row, number in enumerate(self._regions.tolist()):
            for kernel in parts[number].kernels:
                if kernel in kernels:
                    self._of_region[row, kernels[kernel]] += 1
        self._masks = [
            [(sum(1 << call for call in {*place}), min(calls[call][1] for call in place)) for place in part.places]
            for part in parts
        ]
        self.alone = np.array([self._placed([number])[0] for number in range(len(parts))])
        """(P,) executions of each part in a step where no other takes its calls."""
        self._groups = self._conflicting()
        self._simple = self._kernel & ~self._of_region.any(0) if len(self._regions) else self._kernel
        self._orders = [_Orders(self._regions[members].tolist(), self._placed) for members in self._groups]

    def _placed(self, order: Sequence[int]) -> list[float]:
        """How often each of these regions runs, each put in wherever its calls are not taken."""
        taken, found = 0, []
        for number in order:
            count = 0.0
            for mask, weight in self._masks[number]:
                if not taken & mask:
                    taken |= mask
                    count += weight
            found.append(count)
        return found

    def _conflicting(self) -> list[list[int]]:
        """The regions, as rows, in groups: those of different groups share no call."""
        groups: list[tuple[int, list[int]]] = []
        for row, number in enumerate(self._regions):
            mask, members = 0, [row]
            for place, _ in self._masks[number]:
                mask |= place
            for other in [one for one in groups if one[0] & mask]:
                groups.remove(other)
                mask, members = mask | other[0], other[1] + members
            groups.append((mask, members))
        return [sorted(members) for _, members in groups]

    def weights(self, savings: Array) -> Array:
        """(B, P): how often each part runs in a step of the best plan that is found, by what a call of it saves (B, P),
        which is 0 of what may not run."""
        useful = np.where(self._kernel, np.maximum(savings, 0.0), 0.0)
        placed = self._regions_in(savings[:, self._regions] - useful @ self._of_region.T)
        found = np.where(useful > 0.0, np.maximum(self.alone - placed @ self._of_region, 0.0), 0.0)
        found[:, self._regions] = placed
        return found

    def _regions_in(self, net: Array) -> Array:
        """(B, R): how often each region runs, by what an occurrence of it saves beyond its kernels (B, R)."""
        placed = np.empty_like(net)
        for members, orders in zip(self._groups, self._orders, strict=True):
            if len(members) == 1:
                row = members[0]
                placed[:, row] = np.where(net[:, row] > 0.0, self.alone[self._regions[row]], 0.0)
            else:
                placed[:, members] = orders.best(net[:, members])
        return placed

    def of_plan(self, savings: Array, chosen: Sequence[int]) -> Array:
        """(P,): the same where these parts are put in whether they save anything or not."""
        rows = [row for row, number in enumerate(self._regions) if number in chosen]
        kernels = np.where(np.isin(np.arange(len(savings)), chosen) & self._kernel, savings, 0.0)
        net = savings[self._regions] - self._of_region @ kernels
        order = sorted(rows, key=lambda row: -net[row])
        found, placed = np.zeros(len(savings)), np.zeros(len(self._regions))
        placed[order] = self._placed([int(self._regions[row]) for row in order])
        left = np.maximum(self.alone - placed @ self._of_region, 0.0)
        found[self._kernel] = left[self._kernel]
        found[self._regions] = placed
        found[[number for number in range(len(savings)) if number not in chosen]] = 0.0
        return found

    def entries(self, savings: Array, own_s: Array) -> Array:
        """(B, P): how fast a call of each part has to be for the plan to be better with it: what the plan would gain by
        calls of it that took no time, by their number."""
        useful = np.where(self._kernel, np.maximum(savings, 0.0), 0.0)
        limits = own_s - np.maximum(savings, 0.0)  # of a kernel that is in no region
        hard = np.flatnonzero(~self._simple)
        if not len(hard):
            return limits
        # what a plan saves is what its kernels do everywhere, and what regions do beyond them
        net = savings[:, self._regions] - useful @ self._of_region.T
        more = np.where(self._kernel, own_s - useful, 0.0)[:, hard]  # (B, hard)
        nets = net[:, None] - more[:, :, None] * self._of_region.T[hard]
        rows = np.flatnonzero(~self._kernel[hard])
        which = np.searchsorted(self._regions, hard[rows])
        nets[:, rows, which] = own_s[hard[rows]] - (useful @ self._of_region.T)[:, which]
        flat = nets.reshape(-1, nets.shape[2])
        gained = (self._regions_in(flat) * flat).sum(1).reshape(more.shape) + self.alone[hard] * more
        gained -= (self._regions_in(net) * net).sum(1)[:, None]
        limits[:, hard] = gained / np.maximum(self.alone[hard], 1e-12)
        return limits


@dataclass(frozen=True, eq=False)
class Program:
    """What is known of a program before any candidate was measured. P parts of which there are candidates, C of each at
    most."""

    name: str
    family: str
    parts: tuple[str, ...]  # ids
    groups: tuple[str, ...]  # the form of a region; the kind of schedule of a kernel
    is_kernel: Array  # (P,)
    own_s: Array  # (P,) one call as tinygrad schedules it; of a region the sum of its kernels
    own_job_s: Array  # (P,) what timing that took
    expected_s: Array  # (P, C) one call, by the analytic cost; infinite where there is no candidate
    counts: Array  # (P,) candidates
    places: Places
    own_step_s: float
    total_s: float  # the sum of all calls as tinygrad schedules them, each timed alone
    begin_s: float  # until everything is timed as tinygrad schedules it
    cores: int

    @property
    def shape(self) -> tuple[int, int]:
        """(P, C)."""
        parts, candidates = self.expected_s.shape
        return int(parts), int(candidates)

    def log_speedup(self, sum_s: Any) -> Any:
        """Of the sum of all calls, where so much of it is saved."""
        return -np.log(np.maximum(1.0 - sum_s / self.total_s, LEAST_LEFT))


def program_of(recording: PlanRecording) -> Program:
    """Raises DataError where the recording does not hold together."""
    _check(recording)
    parts = parts_of(recording)
    most = max(len(part.candidates) for part in parts)
    kernel_s = {part.kernels[0]: part.own_s for part in recording.parts if part.is_kernel}
    expected_s = np.full((len(parts), most), np.inf)
    for number, part in enumerate(parts):
        expected_s[number, : len(part.candidates)] = [one.expected_s for one in part.candidates]
    return Program(
        name=recording.name,
        family=recording.family,
        parts=tuple(part.id for part in parts),
        groups=tuple(part.form or part.candidates[0].schedule.partition(":")[0] for part in parts),
        is_kernel=np.array([part.is_kernel for part in parts]),
        own_s=np.array([_own_s(part, kernel_s) for part in parts]),
        own_job_s=np.array([part.own_job_s for part in parts]),
        expected_s=expected_s,
        counts=np.array([len(part.candidates) for part in parts]),
        places=Places(parts, recording.calls),
        own_step_s=recording.own_step_s,
        total_s=sum(weight * kernel_s.get(kernel, 0.0) for kernel, weight in recording.calls),
        begin_s=recording.begin_s + sum(part.own_job_s for part in recording.parts),
        cores=recording.cores,
    )


def _own_s(part: Part, kernel_s: Mapping[str, float]) -> float:
    """Of a region the sum of its kernels, so that what it saves beyond them is the difference of what both take."""
    known = all(kernel in kernel_s for kernel in part.kernels)
    return sum(kernel_s[kernel] for kernel in part.kernels) if known else part.own_s


def parts_of(recording: PlanRecording) -> list[Part]:
    """Those that there is something to do with, in the order in which the environment numbers them."""
    return [part for part in recording.parts if part.candidates and part.places]


def completed(part: Part) -> Part:
    """The part as if all candidates that ran had been judged, of which only the fastest were. Others are expected to
    take what they were timed to, by the median ratio of those that were judged, and stress as long as these; where none
    of them passed, they fail as those did."""
    judged = [one for one in part.candidates if one.judged_s is not None]
    failing = next((one.fails for one in part.candidates if one.fails in (JUDGING, STRESSING)), JUDGING)
    passed = any(not one.fails for one in judged)
    ratio = float(np.median([(one.judged_s or 0.0) / (one.timed_s or 1.0) for one in judged])) if judged else 1.0
    stress_s = float(np.median([one.job_s[STRESS] for one in judged])) if judged else 0.0

    def complete(one: Candidate) -> Candidate:
        if one.fails or one.judged_s is not None or one.timed_s is None:
            return one
        job_s = (*one.job_s[:STRESS], stress_s)
        return replace(one, judged_s=ratio * one.timed_s, job_s=job_s, fails="" if passed else failing)

    return replace(part, candidates=tuple(map(complete, part.candidates)))


def _check(recording: PlanRecording) -> None:
    def wrong(what: str) -> DataError:
        return DataError(f"the recording of {recording.name} does not hold together: {what}; record it again")

    parts = parts_of(recording)
    if not parts:
        raise wrong("no part has candidates")
    if len(parts) > MOST_PARTS:
        raise DataError(
            f"{recording.name} has {len(parts)} parts with candidates, and the environment places for {MOST_PARTS}: "
            "record fewer of its regions and kernels"
        )
    if sum(not part.is_kernel for part in parts) > MOST_SHARING:
        raise DataError(f"{recording.name} has more than {MOST_SHARING} regions with candidates: record fewer of them")
    if not _positive(recording.own_step_s) or recording.cores < 1:
        raise wrong("its own step has no time, or it has no core")
    spent = recording.begin_s, recording.plan_job_s, recording.first_plan_job_s
    if not all(math.isfinite(seconds) and seconds >= 0.0 for seconds in spent):
        raise wrong("beginning, or timing a plan, took no seconds")
    ids = [part.id for part in recording.parts]
    kernels = [part.kernels for part in parts if part.is_kernel]
    if len({*ids}) < len(ids) or len({*kernels}) < len(kernels):
        raise wrong("two of its parts are one")
    for part in parts:
        if not part.kernels or (part.is_kernel and len(part.kernels) > 1):
            raise wrong(f"{part.id} is no kernel and no region")
        for place in part.places:
            if not place or not all(0 <= call < len(recording.calls) for call in place):
                raise wrong(f"{part.id} has a place at no call")
            if sorted(recording.calls[call][0] for call in place) != sorted(part.kernels):
                raise wrong(f"{part.id} has a place at calls of other kernels")
        if not (_positive(part.own_s) and _positive(part.judged_own_s)):
            raise wrong(f"{part.id} has no time of its own")
        for number, one in enumerate(part.candidates):
            if what := _wrong_candidate(one):
                raise wrong(f"candidate {number} of {part.id} {what}")
    known = {part.id: part for part in parts}
    for plan in recording.plans:
        if not _positive(plan.step_s):
            raise wrong("a plan has no time")
        for part_id, number in plan.chosen:
            if part_id not in known or not 0 <= number < len(known[part_id].candidates):
                raise wrong(f"a plan has candidate {number} of {part_id}, which there is not")
            if known[part_id].candidates[number].judged_s is None:
                raise wrong(f"a plan has candidate {number} of {part_id}, which was not judged")


def _wrong_candidate(one: Candidate) -> str:
    if len(one.job_s) != len(JOBS) or not all(math.isfinite(seconds) and seconds >= 0.0 for seconds in one.job_s):
        return f"has no seconds of each of {', '.join(JOBS)}"
    if one.fails and one.fails not in JOBS:
        return f"fails in {one.fails!r}, which is no job"
    if not _positive(one.expected_s):
        return "has no expected time"
    reached = JOBS.index(one.fails) if one.fails else len(JOBS)
    if (reached > TIME) and (one.timed_s is None or not _positive(one.timed_s)):
        return "was not timed, and says not why"
    if one.judged_s is not None and not _positive(one.judged_s):
        return "was judged, and has no time"
    return ""


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0.0


# ---- what is true of a recorded program


@dataclass(frozen=True)
class StepErrors:
    """How far off predicted steps of recorded plans are, each by the others: root mean squares of logarithms."""

    fitted: float  # as `Steps` predicts them
    sums: float  # by the sums of calls alone
    plans: int


class Steps:
    """The true step of any plan of a recorded program.

    Of a plan that was timed it is what was timed; of one whose outputs were wrong tinygrad's own, since its user has to
    go back to it. Of others: log speedup of a step = that of the sum of its calls + a correction, a ridge regression on
    the latter and on which parts are in the plan, over the plans that were timed. It has no constant, so tinygrad's own
    step is exact, and shrinks to the sums; its penalty has the least leave-one-out error. Logarithms, since a step may
    become a hundred times as fast.
    """

    def __init__(self, recording: PlanRecording) -> None:
        """Raises DataError where the recording does not hold together."""
        self.program = program = program_of(recording)
        self.parts = [completed(part) for part in parts_of(recording)]
        """With what is true of their candidates, by number."""
        self.savings = np.zeros(program.shape)
        """(P, C) seconds that a call of each candidate saves, as judged; 0 where it was not."""
        for number, part in enumerate(self.parts):
            for place, one in enumerate(part.candidates):
                if one.judged_s is not None:
                    judged_s = one.judged_s * part.own_s / part.judged_own_s  # by the own schedule beside it
                    self.savings[number, place] = program.own_s[number] - judged_s
        of_id = {part: number for number, part in enumerate(program.parts)}
        self.timed: dict[Plan, tuple[float, bool]] = {OWN: (recording.own_step_s, True)}
        """Step seconds and whether outputs agreed, of recorded plans; parts without calls in them are left out."""
        rows, off = [], []
        for plan in recording.plans:
            reached, sum_s = self._sum(frozenset((of_id[part], number) for part, number in plan.chosen))
            if reached in self.timed:
                continue
            self.timed[reached] = plan.step_s, plan.passed is not False
            if plan.passed is not False:
                rows.append(self._row(reached, sum_s))
                off.append(math.log(program.own_step_s / plan.step_s) - rows[-1][0])
        self._fit(np.array(rows).reshape(-1, len(self.parts) + 1), np.array(off))
        self._least_s = LEAST_STEP * min(step_s for step_s, _ in self.timed.values())
        self._known: dict[Plan, float] = {}

    def _sum(self, chosen: Plan) -> tuple[Plan, float]:
        """The parts of a plan that have calls in it, and what they save in sum."""
        savings = np.zeros(len(self.savings))
        for part, number in chosen:
            savings[part] = self.savings[part, number]
        weights = self.program.places.of_plan(savings, [part for part, _ in chosen])
        return frozenset(one for one in chosen if weights[one[0]] > 0.0), float(weights @ savings)

    def sum_s(self, chosen: Plan) -> float:
        """What a plan's parts save in sum, in seconds of a step, as they were judged."""
        return self._sum(chosen)[1]

    def _row(self, chosen: Plan, sum_s: float) -> Array:
        row = np.zeros(len(self.savings) + 1)
        row[0] = self.program.log_speedup(sum_s)
        row[[1 + part for part, _ in chosen]] = 1.0
        return row

    def _fit(self, rows: Array, off: Array) -> None:
        self._weights = np.zeros(rows.shape[1])
        by_sums = best = math.sqrt(float(np.mean(off**2))) if len(off) else 0.0
        for penalty in PENALTIES if len(off) > 2 else ():
            inverse = np.linalg.inv(rows @ rows.T + penalty * np.eye(len(rows)))
            left_out = (inverse @ off) / np.diag(inverse)  # closed form of leave-one-out residuals
            error = math.sqrt(float(np.mean(left_out**2)))
            if error < best:
                best, self._weights = error, rows.T @ (inverse @ off)
        self.errors = StepErrors(best, by_sums, len(off))

    def step_s(self, chosen: Plan) -> float:
        """Seconds of a step by a plan of parts that all have calls in it."""
        if (found := self.timed.get(chosen)) is not None:
            return found[0] if found[1] else self.program.own_step_s
        if chosen not in self._known:
            row = self._row(chosen, self.sum_s(chosen))
            step_s = self.program.own_step_s * math.exp(-row[0] - float(row @ self._weights))
            self._known[chosen] = max(step_s, self._least_s)
        return self._known[chosen]


def step_errors(recording: PlanRecording) -> StepErrors:
    """How well the steps of plans that were not timed are predicted. Raises DataError as `program_of`."""
    return Steps(recording).errors


# ---- an episode


@dataclass(frozen=True)
class SeenPlan:
    """A plan whose step was timed."""

    sum_s: float  # of its parts' savings
    step_s: float
    passed: bool


@dataclass(eq=False)
class Seen:
    """What is known in an episode: of the program, and of what was done. Policies choose by this alone."""

    program: Program
    horizon: float  # steps
    seconds: float  # since the command began
    status: Array  # (P, C) of UNTRIED, TIMED, JUDGED and FAILED
    failed_in: Array  # (P, C) the job, by its column; -1
    timed_s: Array  # (P, C) NaN where it was not
    saved_s: Array  # (P, C) by a call, as judged; NaN where it may not run
    job_s: Array  # (P, C, jobs) what jobs took; NaN where they were not done
    tried: Array  # (P,) candidates that were compiled
    fastest: Array  # (P,) that is timed and not judged; -1
    best: Array  # (P,) of those that may run; -1
    savings: Array  # (P,) of a call by the best; 0
    plan_jobs_s: list[float] = field(default_factory=list)  # what timing whole steps took
    plans: dict[Plan, SeenPlan] = field(default_factory=dict)
    _plan: tuple[Plan, float, Array] | None = None

    @classmethod
    def of(cls, program: Program, horizon: float) -> Seen:
        """Nothing was done."""
        parts, shape = program.shape[0], program.shape
        return cls(
            program, horizon, program.begin_s,
            status=np.zeros(shape, np.int8), failed_in=np.full(shape, -1, np.int8), timed_s=np.full(shape, np.nan),
            saved_s=np.full(shape, np.nan), job_s=np.full((*shape, len(JOBS)), np.nan),
            tried=np.zeros(parts, np.int64), fastest=np.full(parts, -1), best=np.full(parts, -1),
            savings=np.zeros(parts),
        )  # fmt: skip

    @property
    def unit_s(self) -> float:
        """The cost of stopping at once."""
        return self.horizon * self.program.own_step_s + self.program.begin_s

    def plan(self) -> tuple[Plan, float, Array]:
        """The best plan of what may run, the sum of its savings in seconds, and (P,) how often each part runs in it."""
        if self._plan is None:
            weights = self.program.places.weights(self.savings[None])[0]
            chosen = frozenset((int(part), int(self.best[part])) for part in np.flatnonzero(weights))
            self._plan = chosen, float(weights @ self.savings), weights
        return self._plan

    def factor(self) -> float:
        """The log speedup of timed plans by that of the sums of their calls, all plans together; 1 where none was
        timed that is faster by more than noise."""
        found = self._speedups()
        return sum(step for step, _ in found) / sum(calls for _, calls in found) if found else 1.0

    def factors(self) -> list[float]:
        """The same of each."""
        return [step / calls for step, calls in self._speedups()]

    def _speedups(self) -> list[tuple[float, float]]:
        own, log_speedup = self.program.own_step_s, self.program.log_speedup
        timed = [(one.step_s, float(log_speedup(one.sum_s))) for one in self.plans.values() if one.passed]
        return [(math.log(own / step_s), calls) for step_s, calls in timed if calls > LEAST_SPEEDUP]

    def deployed(self) -> Plan:
        """What would be deployed now: see the module."""
        own = self.program.own_step_s
        steps = {OWN: own, **{plan: one.step_s for plan, one in self.plans.items() if one.passed}}
        plan, sum_s, _ = self.plan()
        if plan not in self.plans and plan != OWN:
            steps[plan] = own * math.exp(-self.factor() * float(self.program.log_speedup(sum_s)))
        return min(steps, key=lambda one: steps[one])

    def masks(self) -> Array:
        """(ACTIONS,) bool: what may be done."""
        found = np.zeros(ACTIONS, bool)
        parts = len(self.tried)
        found[TIME_NEXT : TIME_NEXT + parts] = self.tried < self.program.counts
        found[JUDGE_FASTEST : JUDGE_FASTEST + parts] = self.fastest >= 0
        plan = self.plan()[0]
        found[TIME_PLAN] = plan != OWN and plan not in self.plans
        found[STOP] = True
        return found

    def changed(self, part: int) -> None:
        """Bring what follows of a part's candidates up to date."""
        waiting = np.where(self.status[part] == TIMED, self.timed_s[part], np.inf)
        self.fastest[part] = int(waiting.argmin()) if np.isfinite(waiting).any() else -1
        saved = np.where(np.isnan(self.saved_s[part]), -np.inf, self.saved_s[part])
        best = int(saved.argmax())
        was, self.savings[part] = self.savings[part], max(float(saved[best]), 0.0)
        chosen, self.best[part] = self.best[part], best if saved[best] > 0.0 else -1
        if was != self.savings[part] or chosen != self.best[part]:
            self._plan = None


class Replay:
    """A recorded program: carries out actions, and knows what is true."""

    def __init__(self, recording: PlanRecording) -> None:
        """Raises DataError where the recording does not hold together."""
        self.recording, self.steps = recording, Steps(recording)
        self.program, self.parts = self.steps.program, self.steps.parts

    def begin(self, horizon: float) -> Seen:
        """Everything is timed as tinygrad schedules it."""
        return Seen.of(self.program, horizon)

    def act(self, seen: Seen, action: int) -> None:
        """Do what may be done; stopping does nothing."""
        if action == TIME_PLAN:
            self._time_plan(seen)
        elif action < JUDGE_FASTEST:
            self._time_next(seen, action - TIME_NEXT)
        elif action < TIME_PLAN:
            self._judge(seen, action - JUDGE_FASTEST)

    def cost(self, seen: Seen) -> float:
        """Of stopping now, in seconds."""
        return seen.seconds + seen.horizon * self.steps.step_s(seen.deployed())

    def _did(self, seen: Seen, part: int, number: int, jobs: Sequence[int]) -> bool:
        """Do jobs with a candidate until one fails; whether all passed."""
        one = self.parts[part].candidates[number]
        for job in jobs:
            seen.job_s[part, number, job] = one.job_s[job]
            seen.seconds += one.job_s[job] / (self.program.cores if job == COMPILE else 1)
            if one.fails == JOBS[job]:
                seen.status[part, number], seen.failed_in[part, number] = FAILED, job
                return False
        return True

    def _time_next(self, seen: Seen, part: int) -> None:
        number = int(seen.tried[part])
        seen.tried[part] += 1
        if self._did(seen, part, number, (COMPILE, TIME)):
            seen.status[part, number] = TIMED
            seen.timed_s[part, number] = self.parts[part].candidates[number].timed_s
        seen.changed(part)

    def _judge(self, seen: Seen, part: int) -> None:
        number = int(seen.fastest[part])
        if self._did(seen, part, number, (JUDGE, STRESS)):
            seen.status[part, number] = JUDGED
            seen.saved_s[part, number] = self.steps.savings[part, number]
        seen.changed(part)

    def _time_plan(self, seen: Seen) -> None:
        took = self.recording.plan_job_s if seen.plan_jobs_s else self.recording.first_plan_job_s
        plan, sum_s, _ = seen.plan()
        seen.plan_jobs_s.append(took)
        seen.seconds += took
        passed = self.steps.timed.get(plan, (0.0, True))[1]
        seen.plans[plan] = SeenPlan(sum_s, self.steps.step_s(plan), passed)


# ---- the environment

PROGRAM_FEATURES: Final = (
    "horizon", "seconds", "begin", "plan_speedup", "plan_is_timed", "timed_speedup", "factor", "plan_cost",
)  # fmt: skip
"""Of the program. Seconds are by the cost of stopping at once, as logarithms."""
PART_FEATURES: Final = (
    "exists", "is_kernel", "own_share", "left_share", "expected_speedup", "next_speedup", "tried", "timed", "failed",
    "judged", "timed_speedup", "is_waiting", "judged_speedup", "in_plan", "time_cost", "judge_cost",
)  # fmt: skip
"""Of a part. Shares are of the sum of calls, as tinygrad schedules them and by the best plan; the rest is of a call."""
LEAST_SHARE: Final = 1e-8  # of the cost of stopping at once
DECADES: Final = 3.0  # of speedups


def observation_space() -> spaces.Dict:
    """Bounded features, padded to `MOST_PARTS`; `mask` says which actions are legal."""
    return spaces.Dict(
        {
            "program": spaces.Box(-1.0, 1.0, (len(PROGRAM_FEATURES),), np.float32),
            "parts": spaces.Box(-1.0, 1.0, (MOST_PARTS, len(PART_FEATURES)), np.float32),
            "mask": spaces.Box(0, 1, (ACTIONS,), np.int8),
        }
    )


def observed(seen: Seen) -> dict[str, Array]:
    """What was done and what is known, as the arrays of `observation_space`."""
    program, (plan, sum_s, weights) = seen.program, seen.plan()
    parts, own_step_s = len(program.parts), program.own_step_s
    steps = [one.step_s for one in seen.plans.values() if one.passed]
    plan_s = sum(seen.plan_jobs_s) / len(seen.plan_jobs_s) if seen.plan_jobs_s else PRIOR_PLAN_S
    made: dict[str, Array] = {
        "program": np.array([
            (math.log10(seen.horizon) - math.log10(SHORTEST)) / math.log10(LONGEST / SHORTEST),
            _log_share(seen.seconds / seen.unit_s), _log_share(program.begin_s / seen.unit_s),
            _decades(1.0 - sum_s / program.total_s), float(plan in seen.plans),
            _decades(min(steps, default=own_step_s) / own_step_s), seen.factor() / 2.0,
            _log_share(plan_s / seen.unit_s),
        ], np.float32),
        "parts": np.zeros((MOST_PARTS, len(PART_FEATURES)), np.float32),
    }  # fmt: skip
    np.clip(made["program"], -1.0, 1.0, made["program"])
    candidates = np.arange(program.shape[1])
    untried = np.where(candidates >= seen.tried[:, None], program.expected_s, np.inf)
    following = untried[np.arange(parts), np.minimum(seen.tried, len(candidates) - 1)]
    waiting = np.where(seen.fastest >= 0, seen.timed_s[np.arange(parts), np.maximum(seen.fastest, 0)], program.own_s)
    jobs_s = _expected_job_s(seen)
    own_s, many = program.own_s, len(candidates)
    rows = made["parts"][:parts]
    rows[:, 0], rows[:, 1] = 1.0, program.is_kernel
    rows[:, 2] = program.places.alone * own_s / program.total_s
    rows[:, 3] = program.places.alone * (own_s - seen.savings) / max(program.total_s - sum_s, 1e-3 * program.total_s)
    able = seen.tried < program.counts
    rows[:, 4] = _decades(np.where(able, untried.min(1), own_s) / own_s)
    rows[:, 5] = _decades(np.where(able, following, own_s) / own_s)
    rows[:, 6] = seen.tried / many
    rows[:, 7] = (~np.isnan(seen.timed_s)).sum(1) / many
    rows[:, 8] = (seen.status == FAILED).sum(1) / many
    rows[:, 9] = (seen.status == JUDGED).sum(1) / many
    rows[:, 10] = _decades(waiting / own_s)
    rows[:, 11] = seen.fastest >= 0
    rows[:, 12] = _decades(1.0 - seen.savings / own_s)
    rows[:, 13] = weights / np.maximum(program.places.alone, 1e-12)
    rows[:, 14] = _log_share((jobs_s[:, COMPILE] / program.cores + jobs_s[:, TIME]) / seen.unit_s)
    rows[:, 15] = _log_share((jobs_s[:, JUDGE] + jobs_s[:, STRESS]) / seen.unit_s)
    np.clip(rows, -1.0, 1.0, rows)
    made["mask"] = seen.masks().astype(np.int8)
    return made


def _decades(left: Any) -> Any:
    """A speedup, given what is left of a time."""
    return -np.log10(np.maximum(left, 10.0**-DECADES)) / DECADES


def _log_share(share: Any) -> Any:
    """Logarithms of shares from `LEAST_SHARE` to 1, as numbers from 0 to 1."""
    return 1.0 - np.log10(np.maximum(share, LEAST_SHARE)) / math.log10(LEAST_SHARE)


def _expected_job_s(seen: Seen) -> Array:
    """(P, jobs): what a job of a part took on average; else one of the program, else a constant."""
    done = ~np.isnan(seen.job_s)
    counts, sums = done.sum(1), np.where(done, seen.job_s, 0.0).sum(1)
    total = counts.sum(0)
    of_program = np.where(total > 0, sums.sum(0) / np.maximum(total, 1), PRIOR_S)
    found: Array = np.where(counts > 0, sums / np.maximum(counts, 1), of_program)
    return found


Recordings = PlanRecording | str | Path | Sequence[PlanRecording | str | Path]


def read_recordings(recordings: Recordings) -> list[PlanRecording]:
    """Of files, of folders of them, or as they are. Raises UsageError for none, DataError where one is none."""
    found: list[PlanRecording] = []
    for one in [recordings] if isinstance(recordings, PlanRecording | str | Path) else recordings:
        if isinstance(one, PlanRecording):
            found.append(one)
        else:
            path = Path(one)
            found += [read_recording(file) for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not found:
        raise UsageError(f"no recorded program in {recordings}: name files that evaluation.plans.record wrote")
    return found


class PlanEnv(gymnasium.Env[Any, Any]):
    """See the module. `reset(options={"program": i, "horizon": steps})` chooses what else is drawn."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012

    def __init__(self, recordings: Recordings, *, horizon: float | None = None, render_mode: str | None = None) -> None:
        """`horizon`: of every episode; drawn log-uniformly from `SHORTEST` to `LONGEST` by default.

        Raises UsageError for no recording and a horizon that is none, DataError for a recording that does not hold
        together.
        """
        self.replays = [Replay(one) for one in read_recordings(recordings)]
        self.horizon, self.render_mode = horizon if horizon is None else _horizon(horizon), render_mode
        self.observation_space = observation_space()
        self.action_space = spaces.Discrete(ACTIONS)
        self.replay: Replay | None = None
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode. Raises UsageError for a program or a horizon that there is not."""
        super().reset(seed=seed)
        options = options or {}
        chosen = options.get("program")
        if chosen is None:
            chosen = self.np_random.integers(len(self.replays))
        elif not isinstance(chosen, int | np.integer) or not 0 <= chosen < len(self.replays):
            raise UsageError(f"there is no program {chosen!r}: there are {len(self.replays)}, from 0")
        horizon = options.get("horizon", self.horizon)
        if horizon is None:
            horizon = math.exp(self.np_random.uniform(math.log(SHORTEST), math.log(LONGEST)))
        self.replay = self.replays[int(chosen)]
        self._seen = self.replay.begin(_horizon(horizon))
        self._cost, self._over = self.replay.cost(self._seen), False
        return self._observation(), self._info()

    @property
    def seen(self) -> Seen:
        """What is known in this episode; there is none before the first reset."""
        return self._seen

    def action_masks(self) -> Array:
        """(ACTIONS,) bool: the legal actions, as sb3-contrib's MaskablePPO asks for them."""
        return self._mask

    def step(self, action: int) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Do one thing, or stop. An action that is not legal ends the episode by truncation, as stopping would."""
        if self.replay is None or self._over:
            raise UsageError("the episode is over: reset comes before the next step")
        legal = 0 <= action < ACTIONS and bool(self._mask[action])
        self._over = not legal or action == STOP
        if self._over:
            return self._observation(), 0.0, legal, not legal, self._info(fault="" if legal else "it is not legal here")
        self.replay.act(self._seen, int(action))
        before, self._cost = self._cost, self.replay.cost(self._seen)
        return self._observation(), (before - self._cost) / self._seen.unit_s, False, False, self._info()

    def _observation(self) -> dict[str, Array]:
        made = observed(self._seen)
        self._mask = made["mask"].astype(bool)
        return made

    def _info(self, fault: str = "") -> dict[str, Any]:
        info: dict[str, Any] = {"program": self._seen.program.name, "horizon": self._seen.horizon, "cost_s": self._cost}
        return info | ({"fault": fault} if fault else {})

    def render(self) -> str:
        """The program, what was done and what it costs to stop now, in one line."""
        if self.replay is None:
            return "no program"
        seen = self._seen
        timed, judged = int((~np.isnan(seen.timed_s)).sum()), int((seen.status == JUDGED).sum())
        return (
            f"{seen.program.name}, {seen.horizon:.3g} steps: {seen.seconds:.1f} s, {timed} timed, {judged} judged, "
            f"{len(seen.plans)} plans timed, cost {self._cost:.4g} s of {seen.unit_s:.4g}"
        )


def _horizon(steps: Any) -> float:
    if not isinstance(steps, int | float | np.number) or not math.isfinite(float(steps)) or float(steps) < 1.0:
        raise UsageError(f"horizon={steps!r}: a number of steps from 1")
    return float(steps)
