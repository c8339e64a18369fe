"""A loop by chains of a run that judges while it searches: which jobs start next, given what is known. Pure: it has no
clock, no thread and no device, so it is tested by replaying recorded runs (`evaluation.search.loop_replay`). What a run
does is simpler (`kcg.optimize.ahead`), and is replayed beside it.

    add(state, chains)    next_jobs(state, now, deadline)    started(state, tasks, now)    done(state, id, outcome)

What is left to do with one program is a *chain* of tasks, any of which may fail and so ends it: compile, time, judge,
stress. Its index is what it is expected to gain by the seconds that it is expected to take, at the best place to stop,
as that of Gittins (1979) for one that may be abandoned. Its gain is that of the plan solved with it over the incumbent,
the plan of what is verified, as a share of the speed: the seconds that are left count more the fewer they are. So a
measurement whose program is not expected to change the plan has no gain, and the search of a region ends by itself.
What the plan that is expected will do without waits, unless it is of use meanwhile: kernels that a region replaces.

A wrong estimate changes when something is done, never what is verified: that follows from outcomes alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from kcg.types import JobKind

DEVICE: Final = "device"  # does one task at a time
CORE: Final = "core"  # of which there are several
Z90: Final = 1.2816  # deviations above the mean of a normal distribution, below which nine of ten are
LEAST: Final = 1e-5
"""A chain that is expected to gain a smaller share of the speed a second is not begun, where nothing else says so."""


@dataclass(frozen=True)
class Resources:
    """On what tasks run."""

    cores: int = 1
    memory_bytes: float = math.inf  # for all tasks that run at once
    quiet: bool = False  # on a CPU: no other task runs while the device has one


@dataclass(frozen=True)
class Task:
    """A job that may be started."""

    id: str  # unique in a run
    kind: JobKind
    subject: str  # the id of a region, or what else it is about
    resource: str  # DEVICE or CORE
    expected_s: float
    late_s: float  # nine of ten take no longer
    memory_bytes: int = 0
    passes: float = 1.0  # probability
    counts: float = 0.0  # the share of its chain's gain that counts from its passing on
    after: tuple[str, ...] = ()  # tasks that several chains share, e.g. a reference, which have to pass first


@dataclass(frozen=True)
class Chain:
    """What is left to do with one program of a region, in order; where one fails, the rest is not done."""

    id: str
    region: str
    calls: float  # in one execution of the workload, wherever a plan has the region
    seconds: float  # of one call, as a median of what is expected, or as it was timed
    deviation: float  # of its logarithm; 0 once it was timed
    tasks: tuple[Task, ...]
    kernels: frozenset[str] = frozenset()  # whose calls it takes

    @property
    def is_timed(self) -> bool:
        return self.deviation == 0.0


@dataclass(frozen=True)
class Verified:
    """A program that may run, since so much of its chain passed."""

    chain: str
    region: str
    seconds: float  # of one call
    share: float  # 1: by every rule; less is provisional


@dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    passed: bool
    seconds: float | None = None  # of one call, where it timed the program


@dataclass(frozen=True)
class Solved:
    """The best plan by some seconds of regions."""

    seconds: float  # of one execution of the workload
    regions: frozenset[str]  # that have calls in it


Solve = Callable[[Mapping[str, float]], Solved]
"""The best plan, given the seconds of a call of each kernel, and of those regions of several that may run. Pure; asked
again and again with the same seconds."""


@dataclass(frozen=True)
class State:
    """What is known, what runs, and what is left to do."""

    solve: Solve = field(compare=False)
    own: Mapping[str, float]  # seconds of a call of each kernel as tinygrad schedules it: expected, or timed
    resources: Resources = Resources()
    chains: Mapping[str, Chain] = field(default_factory=dict)  # by id, in the order in which they came
    shared: Mapping[str, Task] = field(default_factory=dict)  # those that are not over
    running: Mapping[str, tuple[Task, float]] = field(default_factory=dict)  # by id, and since when
    verified: tuple[Verified, ...] = ()
    least: float = LEAST  # share of the speed a second

    @cached_property
    def incumbent(self) -> Solved:
        """The best plan of what is verified."""
        return self.solve(self.seconds())

    def seconds(self, without: str = "") -> dict[str, float]:
        """Of a call of every region that may run, by the best that is verified, but for one chain."""
        found = dict(self.own)
        for one in self.verified:
            if one.chain != without:
                found[one.region] = min(one.seconds, found.get(one.region, math.inf))
        return found

    def task(self, task_id: str) -> tuple[Task, Chain | None]:
        """A task that is not over, and the chain that it is the next of; None where several share it."""
        if task_id in self.shared:
            return self.shared[task_id], None
        chain = next(chain for chain in self.chains.values() if chain.tasks[0].id == task_id)
        return chain.tasks[0], chain


# ---- what changes a state


def add(state: State, chains: Iterable[Chain], shared: Iterable[Task] = ()) -> State:
    """There is more to do: programs that a search proposes, and tasks that several of them share."""
    return replace(
        state,
        chains={**state.chains, **{chain.id: chain for chain in chains}},
        shared={**state.shared, **{task.id: task for task in shared}},
    )


def started(state: State, tasks: Iterable[Task], now: float) -> State:
    """These run since now."""
    return replace(state, running={**state.running, **{task.id: (task, now) for task in tasks}})


def done(state: State, task_id: str, outcome: Outcome) -> State:
    """A task is over. What failed ends its chain, or all that need it."""
    task, chain = state.task(task_id)
    state = replace(state, running={key: one for key, one in state.running.items() if key != task_id})
    if chain is None:
        return _shared_done(state, task, outcome)
    others = {key: one for key, one in state.chains.items() if key != chain.id}
    if not outcome.passed:
        kept = tuple(one for one in state.verified if one.chain != chain.id)
        return replace(state, chains=others, verified=kept)
    timed = outcome.seconds is not None
    after = replace(
        chain,
        tasks=chain.tasks[1:],
        seconds=outcome.seconds if outcome.seconds is not None else chain.seconds,
        deviation=0.0 if timed else chain.deviation,
    )
    state = _count(state, after, task.counts)
    if after.tasks:
        return replace(state, chains={key: after if key == chain.id else one for key, one in state.chains.items()})
    return replace(state, chains=others)


def _shared_done(state: State, task: Task, outcome: Outcome) -> State:
    shared = {key: one for key, one in state.shared.items() if key != task.id}
    chains, own = dict(state.chains), dict(state.own)
    if not outcome.passed:
        chains = {key: one for key, one in chains.items() if not any(task.id in t.after for t in one.tasks)}
    elif outcome.seconds is not None and task.subject in own:
        own[task.subject] = outcome.seconds
    return replace(state, shared=shared, chains=chains, own=own)


def _count(state: State, chain: Chain, share: float) -> State:
    """A program may run, or is more certain than it was."""
    if not share:
        return state
    before = sum(one.share for one in state.verified if one.chain == chain.id)
    others = tuple(one for one in state.verified if one.chain != chain.id)
    verified = Verified(chain.id, chain.region, chain.seconds, min(before + share, 1.0))
    return replace(state, verified=(*others, verified))


# ---- what starts next


def next_jobs(state: State, now: float, deadline: float = math.inf) -> list[Task]:
    """The tasks that start now, the best first: for the device the best that is ready, whenever it is idle; for idle
    cores what the expected plan waits for. Nothing of a chain that does not end by the deadline nine times of ten."""
    fit = [chain for chain in state.chains.values() if math.isinf(deadline) or ends_at(state, chain, now) <= deadline]
    gains = Gains(state, fit)
    order = best_first(state, gains, now, deadline)
    return starting(state, order, on_cores=_begun_first(order, gains))


def starting(state: State, order: Sequence[Chain], *, on_cores: Sequence[Chain] = ()) -> list[Task]:
    """The same by given orders of chains, for the device and for cores; where there is one, for both."""
    waiting = _wanted(state, order)
    device = next((task for task in waiting if task.resource == DEVICE), None)
    cores = [task for task in _wanted(state, on_cores or order) if task.resource == CORE]
    running = [task for task, _ in state.running.values()]
    is_idle = all(task.resource != DEVICE for task in running)
    if state.resources.quiet:
        return _alone(state, waiting, device, cores, is_idle=is_idle)
    begun = [device] if device is not None and is_idle else []
    return [*begun, *_on_cores(state, cores, [*running, *begun])]


def _begun_first(order: Sequence[Chain], gains: Gains) -> list[Chain]:
    """The order for cores: what the expected plan waits for, by what it gains, however long it takes. Cores are many; a
    reference that takes one for a minute has to be begun a minute before it is needed."""
    expected = {chain.id: gains.gain_s(chain) for chain in order if gains.is_expected(chain)}
    return sorted(order, key=lambda chain: -expected.get(chain.id, 0.0))


def _alone(
    state: State, waiting: Sequence[Task], device: Task | None, cores: Sequence[Task], *, is_idle: bool
) -> list[Task]:
    """The same where the device and the cores are one: what is best decides who has them, and nothing that takes longer
    than what comes before the device's turn is begun beside it."""
    running = [task for task, _ in state.running.values()]
    if not waiting or not is_idle:
        return []
    if device is None:
        return _on_cores(state, cores, running)
    before = waiting[: waiting.index(device)]
    if not before:
        return [] if running else [device]
    longest_s = max(task.expected_s for task in before)
    beside = [task for task in cores if task in before or task.expected_s <= longest_s]
    return _on_cores(state, beside, running)


def _on_cores(state: State, tasks: Iterable[Task], running: Sequence[Task]) -> list[Task]:
    """Those that find a core and memory, the best first."""
    free = state.resources.cores - sum(task.resource == CORE for task in running)
    bytes_left = state.resources.memory_bytes - sum(task.memory_bytes for task in running)
    found: list[Task] = []
    for task in tasks:
        if len(found) < free and task.memory_bytes <= bytes_left:
            bytes_left -= task.memory_bytes
            found.append(task)
    return found


def _ready(state: State, task: Task) -> bool:
    return not any(other in state.shared for other in task.after)


def _wanted(state: State, order: Iterable[Chain]) -> list[Task]:
    """The next task of every chain, and before it those shared ones that any of its tasks waits for: what is ready."""
    found: dict[str, Task] = {}
    for chain in order:
        for task in chain.tasks:
            for other in _needed(state, task):
                found.setdefault(other.id, other)
        found.setdefault(chain.tasks[0].id, chain.tasks[0])
    return [task for task in found.values() if task.id not in state.running and _ready(state, task)]


def _needed(state: State, task: Task) -> list[Task]:
    """The shared tasks that are not over and that one waits for, what they themselves wait for first."""
    if not task.after:
        return []
    direct = [state.shared[other] for other in task.after if other in state.shared]
    return [one for other in direct for one in (*_needed(state, other), other)]


def best_first(state: State, gains: Gains, now: float, deadline: float = math.inf) -> list[Chain]:
    """The chains that are worth their time, the best first: those of the plan that is expected and what is worth having
    until they can be there, then the others."""
    index = {chain.id: gains.index(chain) for chain in gains.chains}
    worth = [chain for chain in gains.chains if index[chain.id] > state.least]
    order = sorted(worth, key=lambda one: (not gains.lasts(one, now), -index[one.id]))
    return order if math.isinf(deadline) else _guarded(order, gains, deadline - now)


def _guarded(order: Sequence[Chain], gains: Gains, left_s: float) -> list[Chain]:
    """The best chain first where it alone gains more than all that would fit in its place: by gain a second a knapsack
    may be filled with little that leaves no place for it."""
    taken, gain_s = list[Chain](), 0.0
    for chain in order:
        if (seconds := device_s(chain)) <= left_s:
            left_s -= seconds
            taken.append(chain)
            gain_s += gains.passing(chain) * gains.gain_s(chain)
    alone = max(order, key=lambda chain: gains.passing(chain) * gains.gain_s(chain), default=None)
    if alone is None or alone in taken or gains.passing(alone) * gains.gain_s(alone) <= gain_s:
        return list(order)
    return [alone, *(chain for chain in order if chain is not alone)]


def until_it_counts(chain: Chain) -> Sequence[Task]:
    """What is left of a chain up to where its gain first counts; the rest, as more of stress, can wait."""
    first = next((place for place, task in enumerate(chain.tasks) if task.counts), len(chain.tasks))
    return chain.tasks[: first + 1]


def device_s(chain: Chain) -> float:
    """What a chain takes of the device until it counts."""
    return sum(task.expected_s for task in until_it_counts(chain) if task.resource == DEVICE)


def ends_at(state: State, chain: Chain, now: float) -> float:
    """When a chain would end, nine times of ten, if it were begun now: up to where its gain first counts."""
    at, variance = max([now, *(_end(one) for one in state.running.values() if one[0].resource == DEVICE)]), 0.0
    if chain.tasks[0].id in state.running:
        at = now
    for task in until_it_counts(chain):
        others = [_shared_end(state, other, now) for other in _needed(state, task)]
        at = max([at, *others]) + _left(state, task, now)
        variance += ((task.late_s - task.expected_s) / Z90) ** 2
    return at + Z90 * math.sqrt(variance)


def _shared_end(state: State, task: Task, now: float) -> float:
    before = [_shared_end(state, other, now) for other in _needed(state, task)]
    return max([now, *before]) + _left(state, task, now)


def _left(state: State, task: Task, now: float) -> float:
    return max(_end(state.running[task.id]) - now, 0.0) if task.id in state.running else task.expected_s


def _end(running: tuple[Task, float]) -> float:
    task, since = running
    return since + task.expected_s


# ---- what a chain is worth


MEANWHILE: Final = 2.0
"""So many times as long as it takes the device something has to be of use, before what is expected instead of it can be
there: kernels of a region whose reference takes a minute are judged meanwhile, those of one that is ready are not."""
NOTHING: Final = (0.0, math.inf)


class Gains:
    """What chains gain in the plan, by what is known in one state."""

    def __init__(self, state: State, chains: Sequence[Chain]) -> None:
        """`chains` are those that may be done."""
        self._state, self.chains = state, chains
        self._ids = {chain.id for chain in chains}
        self._before: dict[str, tuple[float, float]] = {}  # of a chain, whether one before it passes, and its seconds
        self._first: dict[str, tuple[float, float]] = {}  # of a region, the same of its fastest
        self._entries: dict[tuple[str, str], float] = {}
        of_region: defaultdict[str, list[Chain]] = defaultdict(list)
        for chain in chains:
            of_region[chain.region].append(chain)
        self._provisional = {one.chain for one in state.verified}
        self._seconds = state.seconds()
        seconds, best = dict(self._seconds), dict[str, Chain]()
        for region, several in of_region.items():
            best[region] = self._rank(several)
            seconds[region] = min(best[region].seconds, seconds.get(region, math.inf))
        self.expected = state.solve(seconds)  # the plan if all of them passed
        self._lasting = {one.id: one for region, one in best.items() if region in self.expected.regions}
        self._instead: defaultdict[str, list[Chain]] = defaultdict(list)  # by kernel, of whose calls it has some then
        for chain in self._lasting.values():
            for kernel in chain.kernels:
                self._instead[kernel].append(chain)

    def _rank(self, chains: Sequence[Chain]) -> Chain:
        """The fastest of a region's, by what is known and expected; what was timed is before what was not."""
        fastest = min(chains, key=lambda chain: chain.seconds)
        passes, seconds = NOTHING
        for chain in sorted(chains, key=lambda one: (not one.is_timed, one.seconds)):
            if math.isfinite(seconds):
                self._before[chain.id] = passes, seconds
            if chain.seconds < seconds:
                passes, seconds = self.passing(chain), chain.seconds
        self._first[chains[0].region] = passes, seconds
        return fastest

    def is_first(self, chain: Chain) -> bool:
        """Whether no other of its region is before it: it was timed and is faster, or is expected to be."""
        return chain.id not in self._before

    def _known(self, chain: Chain) -> tuple[float, float]:
        """Of what is before it in its region: the probability that it passes, and its seconds."""
        found = self._before if chain.id in self._ids else self._first
        return found.get(chain.id if found is self._before else chain.region, NOTHING)

    def is_expected(self, chain: Chain) -> bool:
        """Whether the plan that is expected has it."""
        return chain.id in self._lasting

    def lasts(self, chain: Chain, now: float) -> bool:
        """Whether it is of the plan that is expected, or is there `MEANWHILE` times as long as it takes the device
        before what takes its calls then can be."""
        instead = [one for kernel in chain.kernels for one in self._instead.get(kernel, ())]
        if not instead or self.is_expected(chain):
            return True
        wait_s = max(ends_at(self._state, one, now) for one in instead) - now
        return wait_s >= MEANWHILE * device_s(chain)

    @staticmethod
    def passing(chain: Chain) -> float:
        """The probability that all that is left of it passes."""
        return math.prod(task.passes for task in chain.tasks)

    def index(self, chain: Chain) -> float:
        """What is gained of the speed a second, at the best place to stop; shared tasks that are not over count, a
        core's second as one of the device by the number of cores."""
        if (gain_s := self.gain_s(chain)) <= 0.0:
            return 0.0
        better = self.better(chain)
        gain = gain_s / max(self._plan_s(chain) - gain_s, 1e-12)
        reach, spent, counted, best = 1.0, 0.0, 0.0, 0.0
        for task in chain.tasks:
            spent += reach * (self._price(task) + sum(map(self._price, _needed(self._state, task))))
            reach *= task.passes
            if task.kind == JobKind.TIME and not chain.is_timed:
                reach *= better
            counted += task.counts * reach
            if counted:
                best = max(best, counted / max(better, 1e-12) * gain / spent)
        return best

    def _price(self, task: Task) -> float:
        return task.expected_s / (self._state.resources.cores if task.resource == CORE else 1)

    def gain_s(self, chain: Chain) -> float:
        """What the plan is expected to save with it, should it pass. Where others of its region are ahead of it, it
        counts in full where none of them passes."""
        limit_s = self.entry_s(chain)
        passes, seconds = self._known(chain)
        alone, beside = improvement(chain, limit_s), improvement(chain, min(limit_s, seconds))
        return chain.calls * ((1.0 - passes) * alone + passes * beside)

    def beside_s(self, chain: Chain) -> float:
        """The same if all that is before it had passed: so much what is known to be best improves."""
        seconds = self._known(chain)[1]
        return chain.calls * improvement(chain, min(self.entry_s(chain), seconds))

    def better(self, chain: Chain) -> float:
        """The probability that it is fast enough to be in a plan."""
        seconds = self._known(chain)[1]
        return below(chain, min(self.entry_s(chain), seconds))

    def entry_s(self, chain: Chain) -> float:
        """How fast a program of its region has to be for the plan to be better with it."""
        own = chain.id if chain.id in self._provisional else ""
        if (chain.region, own) not in self._entries:
            seconds = self._state.seconds(without=own) if own else self._seconds
            least = self._state.solve({**seconds, chain.region: 0.0})
            self._entries[chain.region, own] = (self._plan_s(chain) - least.seconds) / chain.calls
        return self._entries[chain.region, own]

    def _plan_s(self, chain: Chain) -> float:
        """What the incumbent takes without it, also where it is provisional."""
        if chain.id not in self._provisional:
            return self._state.incumbent.seconds
        return self._state.solve(self._state.seconds(without=chain.id)).seconds


def below(chain: Chain, limit_s: float) -> float:
    """The probability that its program takes less."""
    if limit_s <= 0.0 or chain.is_timed:
        return float(chain.seconds < limit_s)
    return _normal(math.log(limit_s / chain.seconds) / chain.deviation)


def improvement(chain: Chain, limit_s: float) -> float:
    """By how much its program is expected to be below a limit, where what is above counts as nothing (the expected
    improvement of Jones, Schonlau and Welch, 1998, of a lognormal)."""
    if limit_s <= 0.0 or chain.is_timed:
        return max(limit_s - chain.seconds, 0.0)
    deviation = chain.deviation
    at = math.log(limit_s / chain.seconds) / deviation
    mean = chain.seconds * math.exp(deviation * deviation / 2)
    return max(limit_s * _normal(at) - mean * _normal(at - deviation), 0.0)


def _normal(at: float) -> float:
    return 0.5 * (1.0 + math.erf(at / math.sqrt(2.0)))
