"""Orders of a run's jobs, beside the loop's: today's phases, saving a second, one-step knowledge gradient; and what an
order could do at most that knew every outcome."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from evaluation.search.job_replay import FIRST, Replayed
from evaluation.search.job_runs import LEFT, Part, Program, Run, groups, solver, taken_calls
from evaluation.search.loop import DEVICE, Chain, Gains, Solve, State, Task, device_s, next_jobs, starting
from kcg.optimize.ahead import Lead, order_of, share_until
from kcg.types import JobKind

SEARCHING: Final = (JobKind.COMPILE, JobKind.TIME)


def area(replay: Replayed, run: Run, best_s: float, until_s: float) -> float:
    """The mean share of the best plan's speed that the verified plan has, over the logarithm of the seconds since the
    command began, from when the workload was captured until then."""
    edges = [*(at for at, _ in replay.points if at < until_s), until_s]
    shares = [best_s / seconds for at, seconds in replay.points if at < until_s]
    pieces = [share * math.log(end / at) for share, (at, end) in zip(shares, itertools.pairwise(edges), strict=True)]
    return sum(pieces) / math.log(until_s / run.begin_s)


# ---- policies


def loop(state: State, now: float, deadline: float) -> list[Task]:
    """The loop's."""
    return next_jobs(state, now, deadline)


def saving_a_second(state: State, now: float, deadline: float) -> list[Task]:
    """What saves most a second of the device that is left of its chain, however likely and whatever is ahead of it."""
    gains = Gains(state, [])

    def saved(chain: Chain) -> float:
        return chain.calls * max(gains.entry_s(chain) - chain.seconds, 0.0) / max(device_s(chain), 1e-9)

    by_saving = {chain.id: saved(chain) for chain in state.chains.values()}
    order = sorted(state.chains.values(), key=lambda chain: -by_saving[chain.id])
    return starting(state, [chain for chain in order if by_saving[chain.id] > 0.0])


def one_step(state: State, now: float, deadline: float) -> list[Task]:
    """The knowledge gradient of one step: what the very next job changes of what is known to be best, a second of that
    job. Compiling and timing are one; a comparison that stress has to follow changes nothing yet."""
    known = Gains(state, [chain for chain in state.chains.values() if chain.is_timed])
    alone = Gains(state, [])

    def value(chain: Chain) -> float:
        if not chain.is_timed:
            seconds = sum(task.expected_s for task in _search_only(chain))
            return known.beside_s(chain) / seconds
        task = chain.tasks[0]
        return task.counts * task.passes * alone.gain_s(chain) / task.expected_s

    values = {chain.id: value(chain) for chain in state.chains.values()}
    return starting(state, sorted(state.chains.values(), key=lambda chain: -values[chain.id]))


class Phases:
    """Today's run: every kernel's own schedule is timed, kernels are searched, then regions; then what was found is
    judged, what saves most first of that whose references are there, which are begun then; kernels that regions cover
    last. With a deadline the search ends where judging is expected to need the rest, but has a third."""

    SHARE: Final = 1 / 3
    SLOWER: Final = 1.4

    def __init__(self, run: Run) -> None:
        self._kernels = {part.id for part in run.parts if part.is_kernel}
        self._begin_s = run.begin_s
        self._judging = False

    def __call__(self, state: State, now: float, deadline: float) -> list[Task]:
        own = [task for task in state.shared.values() if task.kind == JobKind.TIME]
        if own and not self._judging:
            return self._only(state, [task for task in own if task.id not in state.running])
        self._judging = self._judging or self._is_over(state, now, deadline)
        if not self._judging:
            searched = [chain for chain in state.chains.values() if chain.tasks[0].kind in SEARCHING]
            kernels = [chain for chain in searched if chain.region in self._kernels]
            gains = Gains(state, [chain for chain in state.chains.values() if chain.is_timed])
            order = sorted(kernels or searched, key=lambda chain: -gains.beside_s(chain))
            return starting(state, [replace(chain, tasks=_search_only(chain)) for chain in order])
        if any(task.kind in SEARCHING for task, _ in state.running.values()):
            return []
        timed = [chain for chain in state.chains.values() if chain.is_timed]
        gains = Gains(state, timed)
        judged = {one.region: one.chain for one in state.verified}  # a second is judged where the first fails
        left = [chain for chain in timed if judged.get(chain.region, chain.id) == chain.id]
        firsts = [chain for chain in left if gains.is_first(chain) or chain.id in judged.values()]
        of_plan = [chain for chain in firsts if chain.region in gains.expected.regions]
        covered = [chain for chain in firsts if chain not in of_plan and chain.region in self._kernels]
        order = [*self._by_saving(of_plan, state), *covered]
        begun = [chain for chain in order if chain.tasks[0].kind == JobKind.STRESS]
        return starting(state, [*begun, *(chain for chain in order if chain not in begun)])

    def _only(self, state: State, tasks: Sequence[Task]) -> list[Task]:
        return [] if any(task.resource == DEVICE for task, _ in state.running.values()) else list(tasks[:1])

    def _is_over(self, state: State, now: float, deadline: float) -> bool:
        """Whether the search is."""
        if not any(chain.tasks[0].kind in SEARCHING for chain in state.chains.values()):
            return True
        if math.isinf(deadline):
            return False
        timed = [chain for chain in state.chains.values() if chain.is_timed]
        gains = Gains(state, timed)
        judging_s = self.SLOWER * sum(device_s(chain) for chain in timed if gains.is_first(chain))
        share_s = self.SHARE * (deadline - self._begin_s)
        return now >= max(self._begin_s + share_s, deadline - judging_s)

    def _by_saving(self, chains: Sequence[Chain], state: State) -> list[Chain]:
        gains = Gains(state, [])
        saved = {chain.id: chain.calls * (gains.entry_s(chain) - chain.seconds) for chain in chains}
        return sorted((chain for chain in chains if saved[chain.id] > 0.0), key=lambda chain: -saved[chain.id])


class Ahead:
    """What a run on a GPU does (`kcg.optimize.ahead`): it searches all the while, and between two measurements judges
    the first program of a region that saves most a second over what is verified, of those whose references are there;
    what runs only where a region of the best plan is refused counts for as long as it is of use. What is provisional
    has more launches where there is nothing to judge."""

    def __init__(self, run: Run) -> None:
        self._run, self._led, self._judged_last = run, dict[str, tuple[str, float]](), False
        self._calls = {part.id: part.calls for part in run.parts if part.is_kernel}
        self._of = {part.id: part for part in run.parts}

    def __call__(self, state: State, now: float, deadline: float) -> list[Task]:
        timed = Gains(state, [chain for chain in state.chains.values() if chain.is_timed])
        judged = self._to_judge(state, timed, now, deadline)
        searched = self._to_search(state, timed)
        begun = [chain for chain in state.chains.values() if chain.tasks[0].kind == JobKind.STRESS]
        first = [chain for chain in begun if chain.id not in {one.chain for one in state.verified}]
        rest = [chain for chain in begun if chain not in first and timed.is_expected(chain)]
        own = self._own(state)
        by_turn = [*searched, *judged] if self._judged_last else [*judged, *searched]
        order = [*first, *by_turn, *rest]
        found = starting(state, order, on_cores=[*judged, *searched])
        if own is not None and not any(task.resource == DEVICE for task, _ in state.running.values()):
            found = [own, *(task for task in found if task.resource != DEVICE)]
        for task in found:
            if task.resource == DEVICE:
                self._judged_last = task.kind not in SEARCHING
        return found

    def _own(self, state: State) -> Task | None:
        """tinygrad's own schedules are timed before all else, what is expected to take longest first."""
        waiting = [task for task in state.shared.values() if task.kind == JobKind.TIME]
        waiting = [task for task in waiting if task.id not in state.running]
        return max(waiting, key=lambda task: self._calls[task.subject] * state.own[task.subject], default=None)

    def _to_search(self, state: State, gains: Gains) -> list[Chain]:
        """What a search measures next: what is expected to be best improves most by it."""
        searched = [chain for chain in state.chains.values() if chain.tasks[0].kind in SEARCHING]
        return sorted(searched, key=lambda chain: -gains.beside_s(chain))

    def _to_judge(self, state: State, gains: Gains, now: float, deadline: float) -> list[Chain]:
        verified = state.seconds()
        of_plan = gains.expected.regions
        taken = Counter[str]()
        for name in of_plan:
            taken.update(taken_calls(self._of[name]))
        leads, chains = list[Lead](), dict[str, Chain]()
        for chain in gains.chains:
            part = self._of[chain.region]
            if not gains.is_first(chain) or chain.tasks[0].kind != JobKind.PAIRED:
                continue
            if not part.is_kernel and part.id not in of_plan:
                continue
            before_s = verified.get(part.id, sum(n * verified[kernel] for kernel, n in part.takes))
            led = self._led.setdefault(part.id, (chain.id, now))
            if led[0] != chain.id:
                led = self._led[part.id] = chain.id, now
            left_s = min(deadline, 2 * now) - now
            covered = part.is_kernel and taken[part.id] >= part.calls - LEFT
            chains[part.id] = chain
            again = any(one.region == part.id for one in state.verified)
            gain_s = part.calls * (before_s - chain.seconds)
            leads.append(Lead(part.id, gain_s, now - led[1], left_s, device_s(chain), covered, again))
        waits_s = sum(lead.judging_s for lead in leads if not self._of[lead.id].is_kernel)
        share = share_until(waits_s, now, None if math.isinf(deadline) else deadline - now)
        order = order_of([replace(lead, share=share) if lead.covered else lead for lead in leads])
        return [chains[lead.id] for lead in order]


def _search_only(chain: Chain) -> tuple[Task, ...]:
    return tuple(task for task in chain.tasks if task.kind in SEARCHING)


# ---- hindsight


@dataclass(frozen=True)
class _Whole:
    """A program that passes, and all that it needs."""

    part: Part
    number: int
    program: Program

    @property
    def core_s(self) -> float:
        return self.program.compile_s

    @property
    def device_s(self) -> float:
        """Until it counts: of stress the first launches."""
        return self.part.timing_s + self.program.time_s + self.program.judge_s + FIRST * self.program.stress_s

    @property
    def first_s(self) -> float:
        """After the capture, when it counts at the earliest: its own jobs beside each other where they can be."""
        timed_s = max(self.core_s, self.part.timing_s) + self.program.time_s
        return max(timed_s, self.part.reference_s) + self.program.judge_s + FIRST * self.program.stress_s


def _useful(run: Run) -> list[_Whole]:
    """The fastest program of each part that passes, and those that count sooner though they are slower."""
    found = []
    for part in run.parts:
        passing = [_Whole(part, n, program) for n, program in enumerate(part.programs) if not program.fails]
        kept: list[_Whole] = []
        for whole in sorted(passing, key=lambda one: (one.program.seconds, one.device_s)):
            if not kept or whole.device_s < kept[-1].device_s or whole.first_s < kept[-1].first_s:
                kept.append(whole)
        found += kept
    return found


def best_possible_s(run: Run) -> float:
    """Seconds of the best plan of what passes."""
    seconds = run.own
    for whole in _useful(run):
        seconds[whole.part.id] = min(whole.program.seconds, seconds.get(whole.part.id, math.inf))
    return solver(run)(seconds).seconds


class Hindsight:
    """The best order found by who knows every outcome: only programs that pass are compiled, none that the plan leaves
    out unless it helps meanwhile. Found by changing an order, so there may be a better one: see `bound`."""

    def __init__(self, run: Run, until_s: float, *, seed: int = 0) -> None:
        self._run, self._until_s, self._rng = run, until_s, random.Random(seed)
        self._solve, self._best_s = solver(run), best_possible_s(run)
        firsts: dict[str, _Whole] = {}
        for whole in _useful(run):
            firsts.setdefault(whole.part.id, whole)
        self._firsts = firsts

    def found(self, begin: Sequence[str], *, tries: int = 1500) -> tuple[float, Replayed]:
        """The best area, and its replay, from an order of parts on."""
        order = [name for name in begin if name in self._firsts]
        order += [name for name in self._firsts if name not in order]
        cut = len(order)
        best = self._value(order[:cut])
        for _ in range(tries):
            other, at = self._changed(order, cut)
            if (value := self._value(other[:at])) >= best:
                order, cut, best = other, at, value
        replay = self._replay(order[:cut])
        return area(replay, self._run, self._best_s, self._until_s), replay

    def _changed(self, order: Sequence[str], cut: int) -> tuple[list[str], int]:
        """An order with one part elsewhere; what is behind the cut is not done."""
        other, kind = list(order), self._rng.random()
        if kind < 0.1 and cut > 1:
            return other, cut - 1
        if kind < 0.2 and cut < len(other):
            return other, cut + 1
        name = other.pop(self._rng.randrange(len(other)))
        place = self._rng.randrange(len(other) + 1)
        other.insert(place, name)
        return other, cut

    def _value(self, order: Sequence[str]) -> float:
        return area(self._replay(order), self._run, self._best_s, self._until_s)

    def _replay(self, order: Sequence[str]) -> Replayed:
        """Jobs of these parts: on a core and the device the first in this order that is ready."""
        return _listed(self._run, [self._firsts[name] for name in order], self._solve, self._until_s)


def _listed(run: Run, wholes: Sequence[_Whole], solve: Solve, until_s: float) -> Replayed:
    core = [[whole.part.reference_s, whole.program.compile_s] for whole in wholes]
    device = [[whole.part.timing_s, whole.program.time_s, whole.program.judge_s] for whole in wholes]
    for jobs, whole in zip(device, wholes, strict=True):
        jobs += [FIRST * whole.program.stress_s] if whole.program.stress_s else []
    begun = [[False, False] for _ in wholes]
    over = [[False, False] for _ in wholes]
    at_device = [0 if whole.part.timing_s else 1 for whole in wholes]
    free, is_idle, now, busy_s = run.cores, True, run.begin_s, 0.0
    events: list[tuple[float, int, int]] = []
    seconds = run.own
    points = [(now, solve(seconds).seconds)]
    waiting = set(range(len(wholes)))
    while True:
        if is_idle and not (run.quiet and free < run.cores):
            for n in range(len(wholes)):
                stage = at_device[n]
                ready = stage == 0 or (stage == 1 and over[n][1]) or (stage == 2 and over[n][0]) or stage == 3
                if n in waiting and stage < len(device[n]) and ready:
                    heapq.heappush(events, (now + device[n][stage], n, 2))
                    busy_s += device[n][stage]
                    is_idle = False
                    break
        if not (run.quiet and not is_idle):
            for n in range(len(wholes)):
                for job in (0, 1):
                    if free and not begun[n][job]:
                        begun[n][job], free = True, free - 1
                        heapq.heappush(events, (now + core[n][job], n, job))
        if not events or events[0][0] > until_s:
            break
        now, n, job = heapq.heappop(events)
        if job < 2:
            over[n][job], free = True, free + 1
            continue
        is_idle = True
        at_device[n] += 1
        if at_device[n] == len(device[n]):
            waiting.discard(n)
            whole = wholes[n]
            seconds[whole.part.id] = min(whole.program.seconds, seconds.get(whole.part.id, math.inf))
            points.append((now, solve(seconds).seconds))
    return Replayed(tuple(points), frozenset(), now, busy_s)


MOST: Final = 12  # parts of a group, all sets of which are looked at


def bound(run: Run, until_s: float) -> float:
    """An area that no order exceeds: after each second the most that can be saved by then, which need not be one order.
    A set of programs of parts that share calls takes the device at least so long, and each of them has its own jobs
    before; of sets of several such groups the best fractions fill the seconds that the device has had."""
    solve, best_s = solver(run), best_possible_s(run)
    total_s = solve(run.own).seconds
    ats = [run.begin_s * (until_s / run.begin_s) ** (n / BOUND_AT) for n in range(BOUND_AT + 1)]
    options = [_sets(group, run, solve, total_s) for group in groups(run.parts)]
    pieces = [
        best_s / max(total_s - _most(options, at - run.begin_s), best_s) for at in ats[1:]
    ]  # what is there at the end of a piece is more than what is there in it
    return sum(pieces) / len(pieces)


BOUND_AT: Final = 240  # pieces of equal logarithm


def _sets(group: Sequence[Part], run: Run, solve: Solve, total_s: float) -> list[tuple[float, float, float]]:
    """(device seconds, when it is there at the earliest, what it saves) of sets of parts that share calls."""
    by_part: dict[str, list[_Whole]] = {}
    for whole in _useful(replace(run, parts=tuple(group))):
        by_part.setdefault(whole.part.id, []).append(whole)
    best = {name: min(one.program.seconds for one in some) for name, some in by_part.items()}
    least = {name: min(one.device_s for one in some) for name, some in by_part.items()}
    first = {name: min(one.first_s for one in some) for name, some in by_part.items()}

    def saved_s(names: Sequence[str]) -> float:
        return total_s - solve({**run.own, **{name: best[name] for name in names}}).seconds

    if len(best) > MOST:
        raise ValueError(f"{len(best)} parts share calls: too many to look at every set")
    sets = [some for n in range(1, len(best) + 1) for some in itertools.combinations(best, n)]
    return [(sum(least[n] for n in some), max(first[n] for n in some), saved_s(some)) for some in sets]


def _most(options: Sequence[Sequence[tuple[float, float, float]]], seconds: float) -> float:
    """The most that fractions of sets, one of each group, save in so many seconds of the device."""
    steps: list[tuple[float, float]] = []
    for sets in options:
        steps += _hull([(cost, saved) for cost, first, saved in sets if first <= seconds])
    saved_s, left = 0.0, seconds
    for cost, saved in sorted(steps, key=lambda step: -step[1] / max(step[0], 1e-12)):
        share = min(left / cost, 1.0) if cost else 1.0
        saved_s, left = saved_s + share * saved, left - share * cost
        if left <= 0.0:
            break
    return saved_s


def _hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The steps of the least concave function above these points and 0, each a cost and what it saves."""
    found: list[tuple[float, float]] = [(0.0, 0.0)]
    for cost, saved in sorted(points):
        if saved <= found[-1][1]:
            continue
        while len(found) > 1 and _slope(found[-2], found[-1]) <= _slope(found[-2], (cost, saved)):
            found.pop()
        found.append((cost, saved))
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(found)]


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / max(b[0] - a[0], 1e-12)
