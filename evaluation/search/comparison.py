"""Strategies compared on equal terms: each is replayed on every recorded kernel, from several seeds, and what it knew
after each measurement is kept.

A contender is a strategy and what guides it, in one name: `mcts`, `mcts/oracle`. Beside the guides, `LEARNED` first,
there are contenders that measure nothing (`UNMEASURED`). BEAM runs to its own end, everything else with a budget.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evaluation.search.rollouts import Led, rollouts
from evaluation.search.strategies import needs_policy, registry, strategy
from kcg.errors import UnknownName, UsageError
from kcg.search.beam import draft
from kcg.search.problem import Correct, Observation, Predict, Problem, Strategy, Trials
from kcg.search.replay import RecordedKernel, ReplayTable, Traits, constant_predict, oracle_predict
from kcg.types import Prediction, Region, Schedule, Status, Target

if TYPE_CHECKING:
    from kcg.kernel.opts.space import KernelSpace
    from kcg.predictor.features import Array
    from kcg.predictor.learned import LearnedPredictor

LEARNED, UNCORRECTED, ORACLE, CONSTANT = "", "uncorrected", "oracle", "constant"
GUIDES: Final = {
    LEARNED: "the checkpoint, corrected by what was measured",
    UNCORRECTED: "the checkpoint as it is",
    ORACLE: "every runtime, before it is measured",
    CONSTANT: "nothing: all schedules are predicted alike",
}
"""What guides, by the part of a contender's name after the slash."""

BEAMS: Final = (1, 2, 4, 8)  # widths
BEAM: Final = "full-beam"  # as tinygrad has it: all children are measured
HAND_CODED, RANDOM, MCTS = "hand-coded", "random", "mcts"
ALONE: Final = "predictor-alone"
DRAFT, ROLLOUT = "draft", "policy-rollout"
GAP: Final = 1.03  # BEAM leaves a gap where its end takes so many times the optimum

LedOf = Callable[[Region, Target, ReplayTable], Led]
"""The policy for one kernel."""


def predictor_alone(problem: Problem) -> Iterator[Observation]:
    """Measures what prediction alone would pick, the best first: no search is corrected by what was measured."""
    trials = Trials(problem)
    yield from trials.baseline()
    yield from trials.measure(draft(trials))


def likeliest(problem: Problem, led: Led | None) -> Schedule:
    """Where the policy ends that takes its likeliest step each time, from the unoptimised kernel on."""
    assert led is not None, "`turns` leaves it out where there is no policy"
    return rollouts(Trials(problem), led, [problem.space.start()], temperature=0.0)[0]


UNMEASURED: Final[dict[str, Callable[[Problem, Led | None], Schedule]]] = {
    DRAFT: lambda problem, _: draft(Trials(problem))[0],
    ROLLOUT: likeliest,
}
"""Contenders that pick one schedule and measure nothing."""


@dataclass(frozen=True)
class Contender:
    """A strategy, and what guides it."""

    strategy: str
    guide: str = LEARNED

    @classmethod
    def of(cls, name: str) -> Contender:
        """The one of that name. Raises UnknownName."""
        stem, slash, guide = name.partition("/")
        if guide not in GUIDES or (slash and not guide):
            raise UnknownName("guide of a strategy", guide, [known for known in GUIDES if known])
        found = cls(stem, guide)
        found.search()
        return found

    def search(self, led: Led | None = None) -> Strategy:
        """What searches, with a policy for those that follow one."""
        return predictor_alone if self.strategy == ALONE else strategy(self.strategy, led)

    @property
    def needs_policy(self) -> bool:
        """Whether it cannot be run without a policy."""
        return needs_policy(self.strategy)


def the_field(default: str) -> tuple[str, ...]:
    """Every strategy that searches, and what is left of one of them without each of its guides."""
    names = [name for name in registry() if name != HAND_CODED]
    return (*names, ALONE, *(f"{default}/{guide}" for guide in GUIDES if guide))


@dataclass(frozen=True)
class Settings:
    """What is replayed. Of `contenders`, `default` is compared with the others and with BEAM."""

    contenders: tuple[str, ...] = ()  # none: the field
    default: str = MCTS
    beams: tuple[int, ...] = BEAMS
    seeds: int = 5
    budget: int = 64  # measurements, the baseline included
    batch_size: int = 4

    def checked(self, *, has_policy: bool, log: Callable[[str], None]) -> Settings:
        """These without the contenders that need a policy where there is none, each said in a line.

        Raises UnknownName or UsageError where they cannot be run.
        """
        if self.budget < 2 or self.seeds < 1:
            raise UsageError(
                f"a budget of {self.budget} and {self.seeds} seeds: the baseline takes one measurement, so there is "
                "something to compare from a budget of 2 and one seed on"
            )
        for width in self.beams:
            strategy(f"{BEAM}:{width}")
        kept = []
        for name in dict.fromkeys(self.contenders or the_field(self.default)):
            if Contender.of(name).needs_policy and not has_policy:
                log(f"{name} is left out: there is no policy")
            else:
                kept.append(name)
        if self.default not in kept:
            raise UsageError(f"{self.default} is not among what is replayed: {', '.join(kept) or 'nothing'}")
        return replace(self, contenders=tuple(kept))


@dataclass(frozen=True)
class Replay:
    """One contender on one kernel, from one seed. `budget` is None where it ran to its own end."""

    contender: str
    seed: int
    budget: int | None
    curve: tuple[
        tuple[int, float], ...
    ]  # (after so many measurements, the best known takes so many seconds), if better
    measurements: int  # unique binaries
    evaluations: int  # schedules that were predicted
    failures: int  # of what was measured
    seconds: float  # of one core, for all but measuring and predicting
    seeded: bool  # whether it drew random numbers: one that did not runs the same from every seed

    @property
    def end_s(self) -> float:
        """The best at the end, in seconds; infinite where nothing succeeded."""
        return self.curve[-1][1] if self.curve else math.inf


Turn = tuple[str, int, int | None]
"""Contender, seed, budget."""


def replay(name: str, problem: Problem, *, seed: int, led: Led | None = None) -> Replay:
    """Lets a contender search a problem, recorded or live, until its ledger is exhausted or the strategy ends."""
    before, began = problem.rng.getstate(), time.thread_time()
    curve: list[tuple[int, float]] = []
    binaries: set[str] = set()
    failures, best_s = 0, math.inf
    if name in UNMEASURED:
        schedule = UNMEASURED[name](problem, led)
        seconds = time.thread_time() - began
        (future,) = problem.measure([schedule])  # only to say what it takes
        found = future.result()
        curve = [(0, found.time_s)] if math.isfinite(found.time_s) else []
        return Replay(name, seed, 0, tuple(curve), 0, problem.ledger.evaluations, int(not curve), seconds, False)
    for observation in Contender.of(name).search(led)(problem):
        if observation.binary_hash:
            binaries.add(observation.binary_hash)
        failures += observation.status != Status.OK
        if observation.time_s < best_s:
            best_s = observation.time_s
            curve.append((len(binaries), best_s))
    return Replay(
        name,
        seed,
        problem.ledger.max_measurements,
        tuple(curve),
        problem.ledger.measurements,
        problem.ledger.evaluations,
        failures,
        time.thread_time() - began,
        problem.rng.getstate() != before,
    )


class Remembered:
    """What a predictor makes of the schedules of a table, asked once and shared by all replays on it."""

    def __init__(self, predictor: LearnedPredictor, kernel: RecordedKernel) -> None:
        from kcg.kernel.opts.space import KernelSpace

        self.space = KernelSpace(kernel.region, kernel.target)
        self.corrects = bool(predictor.checkpoint.nets)
        schedules = list(kernel.table.records)
        self._predicted = dict(zip(schedules, zip(*predictor.embed(self.space, schedules), strict=True), strict=True))

    def embed(self, space: KernelSpace, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]:
        predicted = [self._predicted[s] for s in schedules]
        return [prediction for prediction, _ in predicted], [state for _, state in predicted]


class Bench:
    """Where contenders search one recorded kernel, each from nothing: only what no measurement changes is shared."""

    def __init__(
        self, kernel: RecordedKernel, predictor: LearnedPredictor | None, *, led: Led | None = None, batch_size: int = 4
    ) -> None:
        self.kernel, self.predictor, self.led, self.batch_size = kernel, predictor, led, batch_size
        self._remembered: Remembered | None = None

    def problem(self, name: str, *, seed: int, budget: int | None) -> Problem:
        """The kernel as a contender meets it."""
        guide = name.partition("/")[2]
        table, correct, space = self.kernel.table, None, None
        if guide == ORACLE:
            predict: Predict = oracle_predict(table)
        elif guide == CONSTANT or self.predictor is None:
            predict = constant_predict()
        else:
            predict, correct, space = self._learned(self.predictor)
        if space is not None:
            table = table.with_traits(Traits(alike=space.alike, tile=space.tile))
        problem = table.problem(predict, seed=seed, max_measurements=budget, batch_size=self.batch_size)
        problem.correct = correct if guide == LEARNED else None
        return problem

    def _learned(self, predictor: LearnedPredictor) -> tuple[Predict, Correct | None, KernelSpace]:
        from kcg.predictor.correction import CorrectingKernel

        if self._remembered is None:
            self._remembered = Remembered(predictor, self.kernel)
        space = self._remembered.space
        kernel = CorrectingKernel(self._remembered, space)
        return kernel.predict, kernel.correct if self._remembered.corrects else None, space


def is_within(kernel: RecordedKernel, end_s: float) -> bool:
    """Whether a kernel is far from its optimum where `end_s` is the best that was found."""
    return end_s >= GAP * kernel.table.best_s


def turns(kernel: RecordedKernel, settings: Settings, known: Mapping[Turn, Replay], *, has_policy: bool) -> list[Turn]:
    """What is still to be replayed on a kernel.

    The default contender runs once more with the measurements of the widest BEAM, where that is more than the budget
    and left some of the budget; so this is only known after it.
    """
    beams = [f"{BEAM}:{width}" for width in sorted(settings.beams)]
    wanted: list[Turn] = [(name, 0, None) for name in beams]
    wanted += [(name, 0, 0) for name in UNMEASURED if name != ROLLOUT or has_policy]
    wanted += [(name, seed, settings.budget) for name in settings.contenders for seed in range(settings.seeds)]
    widest = known.get((beams[-1], 0, None)) if beams else None
    if widest is not None and widest.measurements > settings.budget and is_within(kernel, widest.end_s):
        wanted += [(settings.default, seed, widest.measurements) for seed in range(settings.seeds)]
    return [turn for turn in wanted if replayed(known, turn) is None]


def replayed(known: Mapping[Turn, Replay], turn: Turn) -> Replay | None:
    """The replay of a turn; that of another seed where it would be the same."""
    if turn in known:
        return known[turn]
    first = known.get((turn[0], 0, turn[2]))
    return first if first is not None and not first.seeded else None


def replay_all(bench: Bench, settings: Settings, known: Mapping[Turn, Replay]) -> dict[Turn, Replay]:
    """Replays what is missing on one kernel, and returns that."""
    everything, made = dict(known), {}
    while missing := turns(bench.kernel, settings, everything, has_policy=bench.led is not None):
        name, seed, budget = missing[0]
        problem = bench.problem(name, seed=seed, budget=None if name in UNMEASURED else budget)
        made[missing[0]] = everything[missing[0]] = replay(name, problem, seed=seed, led=bench.led)
    return made


@functools.lru_cache(maxsize=1)
def predictor_of(checkpoint: Path) -> LearnedPredictor:
    """The predictor of a file, read once in a process."""
    from kcg.predictor.checkpoint import read
    from kcg.predictor.learned import LearnedPredictor

    return LearnedPredictor(read(checkpoint))
