"""What one strategy has seen of one problem: actions, keys and predictions asked for once, and every observation.

`actions` costs 5 to 200 ms on a real kernel and `predict` 1 to 10 ms a batch, so nothing is asked for twice. All is
remembered by `space.key`: schedules that are the same kernel share one entry.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from kcg.errors import ScheduleError
from kcg.kernel.kinds import StepSpace
from kcg.search.uniform import CANDIDATES, CERTAIN, UNKNOWN, Chance, Draws, pool_name
from kcg.types import Action, Measurement, Prediction, Schedule, Status
from kcg.unexpected import looking

# ---- What a search strategy sees: a space (`kcg.kernel.kinds`), `predict(batch)`, an asynchronous `measure(batch)`, a
# budget ledger.
#
# A device, several devices and a replayed table are interchangeable behind these, so that every strategy is tested
# without a device and compared on equal terms.


@dataclass(frozen=True)
class Observation:
    """What measuring one schedule showed. `runtime_s` is None where it failed."""

    schedule: Schedule
    status: Status
    runtime_s: float | None
    binary_hash: str = ""
    reason: str = ""

    @classmethod
    def of(cls, row: Measurement) -> Observation:
        """What a search sees of a row."""
        return cls(
            row.schedule, row.status, row.median_s if row.status == Status.OK else None, row.binary_hash, row.reason
        )

    @property
    def time_s(self) -> float:
        """The runtime in seconds; infinite where it failed, for comparing only."""
        return self.runtime_s if self.status == Status.OK and self.runtime_s is not None else math.inf


def best(observations: Iterable[Observation]) -> Observation | None:
    """The fastest that succeeded, the first of equals; None where none did."""
    found = min(observations, key=lambda o: o.time_s, default=None)
    return None if found is None or math.isinf(found.time_s) else found


Predict = Callable[[Sequence[Schedule]], list[Prediction]]
Correct = Callable[[Sequence[Schedule], Sequence[tuple[Schedule, float]]], list[Prediction]]
Expected = tuple[Prediction, Prediction | None]
"""What was expected of a schedule when it was measured: as predicted, and corrected by what was measured before."""
Measure = Callable[[Sequence[Schedule]], list["Future[Observation]"]]


@dataclass
class Ledger:
    """The budget of a search and what it has spent. `None` means no limit.

    A measurement is a unique binary timed; schedules that share a binary cost one. An evaluation is a schedule that the
    predictor was asked about; `Trials` counts them.
    """

    max_measurements: int | None = None
    max_compilations: int | None = None
    max_evaluations: int | None = None
    deadline: float | None = None  # on `clock`
    clock: Callable[[], float] = time.monotonic
    measurements: int = 0
    compilations: int = 0
    evaluations: int = 0

    @property
    def exhausted(self) -> bool:
        return self.remaining(1) < 1

    @property
    def used_up(self) -> bool:
        """Whether all measurements that it allows were made, whatever time is left; not where it allows none."""
        return bool(self.max_measurements) and self.measurements >= (self.max_measurements or 0)

    @property
    def may_evaluate(self) -> bool:
        """Whether the predictor may be asked about more schedules. What was found so far can still be measured."""
        return self.max_evaluations is None or self.evaluations < self.max_evaluations

    def remaining(self, wanted: int) -> int:
        """How many of `wanted` further measurements the budget still allows."""
        if self.deadline is not None and self.clock() >= self.deadline:
            return 0
        if self.max_measurements is not None:
            wanted = min(wanted, self.max_measurements - self.measurements)
        if self.max_compilations is not None:
            wanted = min(wanted, self.max_compilations - self.compilations)
        return max(wanted, 0)


@dataclass
class Problem:
    """One region to be searched. `measure` charges `ledger` itself; strategies only ask what is left.

    `measure` of a schedule that was measured before returns the known observation and charges nothing.
    """

    space: StepSpace
    predict: Predict
    measure: Measure
    ledger: Ledger
    rng: random.Random
    batch_size: int = 4  # how many measurements are asked for at once
    drafting: int | None = None  # schedules whose steps are looked at before a batch, at most; None: no such limit
    known: dict[Schedule, Observation] = field(default_factory=dict)  # measured, e.g. before a resume; strategies add
    correct: Correct | None = None
    """Predictions corrected by all that was measured so far, in seconds (not finite: failed); None where the predictor
    learns nothing from measurements."""
    expected: dict[Schedule, Expected] | None = None
    """Where somebody wants to know: what was expected of each schedule, put here before it is measured."""
    chances: dict[Schedule, Chance] | None = None
    """Likewise, from what each was chosen, and with which probability."""
    draws: Draws | None = None
    """Where some of its measurements are to be drawn uniformly."""
    ask: Callable[[int, float], int] | None = None
    """Where several kernels share a device: called before a batch is measured with its size and the share by which it
    is expected to be faster than the best so far; waits for its turn, and says how many of it may be measured. Where
    others measured something of the kernel meanwhile it says 0, and what they saw is in `known`: ask again."""


class Strategy(Protocol):
    """A search: yields every observation as it is made and stops when the budget is gone or nothing is left to try.

    It is a generator, so that the budget can move to another region between two batches and come back.
    """

    def __call__(self, problem: Problem) -> Iterator[Observation]: ...


# ---- What measuring a schedule is expected to gain (expected improvement: Jones, Schonlau and Welch, 1998).

PRIOR_GAIN: Final = 0.3
"""Expected relative gain of a kernel before anything is predicted of it."""
LEAST_DOUBT: Final = 0.03
"""Standard deviation in log-seconds of a predictor that says that it has none."""


def expected_improvement(log_s: float, doubt: float, best_s: float) -> float:
    """The expected share by which a schedule is faster than the best known, 0 where it is slower: its runtime is
    lognormal, of this mean and standard deviation in log-seconds."""
    sigma = max(doubt, LEAST_DOUBT)
    below = (math.log(best_s) - log_s) / sigma
    ratio = math.exp(min(log_s - math.log(best_s) + sigma * sigma / 2, 50.0))
    return max(_normal(below) - ratio * _normal(below - sigma), 0.0)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


STANDS_FOR: Final = 1.5
"""What took longer, relative to the best, is measured by one sample: it says nothing of schedules alike."""
FAILURE_COST = 2.0
"""What a certain failure weighs when candidates are ranked, in log-runtime: as bad as being e² = 7.4 times slower."""


class Trials:
    """A problem and the memory of a search over it.

    Every new observation is also added to `problem.known`, so that a search begun later on the same problem goes on
    from there. What others add to it while this search waits to measure is taken in too. Of the observations known
    beforehand, those whose schedule no longer applies are left aside.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.observations: dict[str, Observation] = {}  # by key
        self._keys: dict[Schedule, str] = {}
        self._actions: dict[str, list[Action]] = {}
        self._predictions: dict[str, Prediction] = {}
        self._alike: dict[str, str] = {}  # by key
        self._like: dict[str, Observation] = {}  # the fastest of those alike
        self._fastest_s = math.inf
        self._grouped = 0  # observations that are among them
        self._taken = 0  # of what the problem knows
        self._at_random: set[str] = set()  # keys of what chance led to, nobody can tell how likely
        self._take_known()

    def _take_known(self) -> bool:
        """Takes in what is new among what the problem knows; whether there was something."""
        taken = self._taken
        for schedule, observation in itertools.islice(self.problem.known.items(), self._taken, None):
            try:
                self.observations.setdefault(self.key(schedule), observation)
            except ScheduleError:
                continue  # measured under another action space; this search cannot meet it
        self._taken = len(self.problem.known)
        return self._taken > taken

    @property
    def out_of_budget(self) -> bool:
        return self.problem.ledger.exhausted

    def key(self, schedule: Schedule) -> str:
        found = self._keys.get(schedule)
        if found is None:
            found = self._keys[schedule] = self.problem.space.key(schedule)
        return found

    def actions(self, schedule: Schedule) -> list[Action]:
        key = self.key(schedule)
        found = self._actions.get(key)
        if found is None:
            found = self._actions[key] = list(self.problem.space.actions(schedule))
        return found

    def children(self, schedule: Schedule) -> list[Schedule]:
        """The schedules one step away that are another kernel, each kernel once, in the order of the actions."""
        seen = {self.key(schedule)}
        found = []
        for action in self.actions(schedule):
            key = self.key(action.schedule)
            if key not in seen:
                seen.add(key)
                found.append(action.schedule)
        return found

    def tile(self, schedule: Schedule) -> Hashable:
        """What its threads compute."""
        return self.problem.space.tile(schedule)

    def groups(self, schedule: Schedule) -> Hashable:
        """Equal for what may be misjudged alike; None where the space cannot tell."""
        return self.problem.space.groups(schedule)

    def predict(self, schedules: Sequence[Schedule]) -> list[Prediction]:
        """One prediction for each schedule; those not asked for before go to the predictor in one batch."""
        missing = {self.key(s): s for s in schedules if self.key(s) not in self._predictions}
        if missing:
            answers = self.problem.predict(list(missing.values()))
            self.problem.ledger.evaluations += len(missing)
            self._predictions.update(zip(missing, answers, strict=True))
        return [self._predictions[self.key(s)] for s in schedules]

    def within_evaluations(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Those that `predict` may be asked about: all, or where the evaluations are used up those asked before."""
        if self.problem.ledger.may_evaluate:
            return list(schedules)
        return [s for s in schedules if self.key(s) in self._predictions]

    def corrected(self, schedules: Sequence[Schedule]) -> list[Prediction] | None:
        """What is expected of each after all that was measured, where the predictor learns from it."""
        if self.problem.correct is None:
            return None
        return self.problem.correct(schedules, [(o.schedule, o.time_s) for o in self.observations.values()])

    def costs(self, schedules: Sequence[Schedule]) -> list[float]:
        """The predicted log-runtime of each, and `FAILURE_COST` for as much as it is expected to fail."""
        return [p.log_runtime + FAILURE_COST * p.failure_probability for p in self.predict(schedules)]

    def ranked(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """`schedules`, the best expected first; equals keep their order."""
        costs = self.costs(schedules)
        order = sorted(range(len(schedules)), key=costs.__getitem__)
        return [schedules[i] for i in order]

    def observed(self, schedule: Schedule) -> Observation | None:
        return self.observations.get(self.key(schedule))

    def alike(self, schedule: Schedule) -> str:
        """Equal for schedules of which one is enough."""
        key = self.key(schedule)
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = self.problem.space.alike(schedule)
        return found

    def like(self, schedule: Schedule) -> Observation | None:
        """What was measured of it, or else the fastest of what was measured of schedules alike, where that is about as
        fast as the best: a failure or a late run is one schedule's own."""
        if (own := self.observed(schedule)) is not None:
            return own
        if self._grouped < len(self.observations):
            self._group()
        found = self._like.get(self.alike(schedule))
        return found if found is not None and found.time_s <= STANDS_FOR * self._fastest_s else None

    def _group(self) -> None:
        """Takes the observations that are new among those alike."""
        for observation in itertools.islice(self.observations.values(), self._grouped, None):
            if math.isfinite(observation.time_s):
                alike = self.alike(observation.schedule)
                if alike not in self._like or observation.time_s < self._like[alike].time_s:
                    self._like[alike] = observation
                self._fastest_s = min(self._fastest_s, observation.time_s)
        self._grouped = len(self.observations)

    def time_s(self, schedule: Schedule) -> float:
        """The measured runtime; infinite where the schedule failed or was not measured."""
        observation = self.observed(schedule)
        return math.inf if observation is None else observation.time_s

    def fastest(self, count: int) -> list[Schedule]:
        """At most `count` of the schedules that were measured and succeeded, the fastest first."""
        done = [o for o in self.observations.values() if math.isfinite(o.time_s)]
        return [o.schedule for o in sorted(done, key=lambda o: o.time_s)[:count]]

    def at_random(self, schedules: Sequence[Schedule]) -> Sequence[Schedule]:
        """The same; that chance led to them, with a probability that nobody can tell, is remembered."""
        self._at_random.update(map(self.key, schedules))
        return schedules

    def measure(
        self,
        schedules: Sequence[Schedule],
        *,
        rethink: bool = False,
        promising: Sequence[Schedule] = (),
        among: Sequence[Schedule] | None = None,
    ) -> Iterator[Observation]:
        """Measures those that were not yet, a batch at a time while the budget lasts; yields each as it is made.

        They were chosen `among` others: by default all that was predicted and not measured. One in so many is drawn
        uniformly in the place of the last of its batch (`Problem.draws`), which comes in the next one, or with
        `rethink` where the search proposes it again.

        Observations come in the order asked for, whichever finished first: a search repeats itself under its seed.
        Where it has to ask, those that are like measured ones come last. Where others measured something while it
        waited, it asks again; with `rethink` it ends, so that the search may choose other candidates. What is
        `promising`, though it is not its turn, counts in what a batch is expected to gain.
        """
        fresh = {self.key(s): s for s in reversed(schedules) if self.key(s) not in self.observations}
        queue = list(reversed(fresh.values()))
        while queue:
            if self.problem.ask is not None:  # nothing is expected of what is like a measured one: the others first
                queue.sort(key=lambda s: self.like(s) is not None)
            count = self.problem.ledger.remaining(min(len(queue), self.problem.batch_size))
            if count > 0 and self.problem.ask is not None:
                count = self.problem.ask(count, self.expected_gain([*queue[:count], *promising]))
                if self._take_known() and count < 1 and not rethink and not self.out_of_budget:
                    queue = [s for s in queue if self.key(s) not in self.observations]
                    continue
            if count < 1:
                return
            batch, queue = queue[:count], queue[count:]
            chances = self._chances(batch, among) if self.problem.chances is not None else {}
            if (drawn := self._drawn(batch)) is not None:
                schedule, chances[schedule] = drawn
                waits = [] if rethink else [one for one in (batch[-1], *queue) if self.key(one) != self.key(schedule)]
                batch, queue = [*batch[:-1], schedule], waits
            if self.problem.expected is not None:
                self.problem.expected |= self._expectations(batch)
            if self.problem.chances is not None:
                self.problem.chances |= {schedule: chances[schedule] for schedule in batch}
            for schedule, future in zip(batch, self.problem.measure(batch), strict=True):
                observation = future.result()
                self.observations[self.key(schedule)] = observation
                self.problem.known[schedule] = observation
                self._taken = len(self.problem.known)
                yield observation

    def expected_gain(self, schedules: Sequence[Schedule]) -> float:
        """By which share the best promise among `schedules` is expected to be faster than the best known: 0 where all
        are like what was measured; of what was never predicted, and before anything is known, `PRIOR_GAIN`."""
        best_s = min((o.time_s for o in self.observations.values()), default=math.inf)
        judged = [s for s in schedules if self.key(s) in self._predictions]
        if not math.isfinite(best_s) or len(judged) < len(schedules):
            return PRIOR_GAIN
        if not (judged := [s for s in judged if self.like(s) is None]):
            return 0.0
        expected = self.corrected(judged) or self.predict(judged)
        return max(
            (1.0 - p.failure_probability) * expected_improvement(p.log_runtime, p.uncertainty, best_s) for p in expected
        )

    def _drawn(self, batch: Sequence[Schedule]) -> tuple[Schedule, Chance] | None:
        """What is drawn uniformly in the place of the last of a batch, if it is the turn of that."""
        draws, asked = self.problem.draws, {self.key(one) for one in batch}
        if draws is None or not draws.are_due(len(batch)):
            return None
        drawn: tuple[Schedule, Chance] | None = None
        with looking("a schedule drawn uniformly"):
            drawn = draws.draw(lambda one: self.key(one) in asked or self.key(one) in self.observations)
            if drawn is not None and self.problem.ledger.may_evaluate:
                self.predict([drawn[0]])  # what was expected of it is worth knowing
        return drawn

    def _chances(self, batch: Sequence[Schedule], among: Sequence[Schedule] | None) -> dict[Schedule, Chance]:
        """From what a batch is chosen; of what chance led to nobody can tell."""
        keys = set(self._predictions) if among is None else set(map(self.key, among))
        keys = {key for key in keys if key not in self.observations} | set(map(self.key, batch))
        chosen = Chance(pool_name(CANDIDATES, keys), 1.0)
        always = self.key(self.problem.space.baseline())

        def of(key: str) -> Chance:
            return UNKNOWN if key in self._at_random else CERTAIN if key == always else chosen

        return {one: of(self.key(one)) for one in batch}

    def _expectations(self, schedules: Sequence[Schedule]) -> dict[Schedule, Expected]:
        judged = [s for s in schedules if self.key(s) in self._predictions]
        corrected = self.corrected(judged) or itertools.repeat(None)
        pairs = zip(self.predict(judged), corrected, strict=False)
        return dict(zip(judged, pairs, strict=True))

    def baseline(self) -> Iterator[Observation]:
        """Measures tinygrad's own choice, unless it is known: every strategy begins with it."""
        yield from self.measure([self.problem.space.baseline()])

    def unmeasured(self) -> Iterator[Schedule]:
        """Every schedule within reach that was not measured, nearest first: the end of a search that ran out of ideas.

        Lazy, and it stops with the budget: the space may be far too large to be walked.
        """
        queue = [self.problem.space.start(), self.problem.space.baseline()]
        seen = {self.key(s) for s in queue}
        for schedule in queue:
            if self.observed(schedule) is None:
                yield schedule
            if self.out_of_budget:
                return
            for child in self.children(schedule):
                if (key := self.key(child)) not in seen:
                    seen.add(key)
                    queue.append(child)
