"""A learned predictor of one kernel that takes in what is measured while the kernel is searched."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kcg.predictor.correction import Correction
from kcg.predictor.encode import Array
from kcg.types import Prediction, Schedule, ScheduleKind

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace

TRAITS: Final = ({"UNROLL"}, {"GROUP", "GROUPTOP"}, {"LOCAL"})  # a schedule has one where it uses one of the Opts
UPCAST_AXES: Final = 4  # for each of the first axes: whether a thread computes several elements along it


class Embeds(Protocol):
    """What says of schedules of a kernel how long they take, and what its networks see in each: a `LearnedPredictor`,
    or what one said before."""

    def embed(
        self, space: KernelSpace, schedules: Sequence[Schedule]
    ) -> tuple[list[Prediction], list[Array | None]]: ...


class TileNumbers(dict[Schedule, int]):
    """A number for what a thread computes, worked out once for each schedule; schedules of one tile have the same."""

    def __init__(self, space: KernelSpace) -> None:
        super().__init__()
        self._space = space
        self._numbers: dict[Hashable, int] = {}

    def __missing__(self, schedule: Schedule) -> int:
        self[schedule] = self._numbers.setdefault(self._space.tile(schedule), len(self._numbers))
        return self[schedule]


class CorrectingKernel:
    """`predict` schedules of one kernel, and `correct` what was predicted by what was measured since.

    What the networks made of a schedule is kept, so that a correction costs none of their time.
    """

    def __init__(self, predictor: Embeds, space: KernelSpace) -> None:
        self.predictor, self.space = predictor, space
        self._predictions: dict[Schedule, Prediction] = {}
        self._states: dict[Schedule, Array] = {}
        self._measured: dict[Schedule, float] = {}
        self._correction: Correction | None = None
        self._tiles = TileNumbers(space)
        self._traits: dict[Schedule, Array] = {}

    def predict(self, schedules: Sequence[Schedule]) -> list[Prediction]:
        """What the predictor says of each, in order."""
        missing = [s for s in dict.fromkeys(schedules) if s not in self._predictions]
        if missing:
            predictions, states = self.predictor.embed(self.space, missing)
            self._predictions.update(zip(missing, predictions, strict=True))
            self._states.update((s, state) for s, state in zip(missing, states, strict=True) if state is not None)
        return [self._predictions[s] for s in schedules]

    def correct(self, schedules: Sequence[Schedule], measured: Sequence[tuple[Schedule, float]]) -> list[Prediction]:
        """What is to be expected of each, in order, once those `measured` took so many seconds (not finite: failed).

        All measurements so far are given each time; only new ones are taken in. What does not apply stays as predicted.
        """
        predictions = self.predict(schedules)
        fresh = [(s, seconds) for s, seconds in measured if s not in self._measured]
        if fresh:
            said = self.predict([s for s, _ in fresh])
            self._measured.update(fresh)
            seen = [(s, p, t) for (s, t), p in zip(fresh, said, strict=True) if s in self._states and 0 < t < math.inf]
            if seen:
                timed = [s for s, _, _ in seen]
                if self._correction is None:
                    self._correction = Correction(np.stack(list(self._states.values())))
                self._correction.observe(
                    np.stack([self._states[s] for s in timed]), np.array([p.log_runtime for _, p, _ in seen]),
                    np.array([math.log(t) for _, _, t in seen]), tiles=[self._tiles[s] for s in timed],
                    traits=self._traits_of(timed),
                )  # fmt: skip
        places = [i for i, s in enumerate(schedules) if s in self._states]
        if self._correction is None or not places:
            return predictions
        asked = [schedules[i] for i in places]
        states = np.stack([self._states[schedule] for schedule in asked])
        means, sigmas = self._correction.corrected(
            states, np.array([predictions[i].log_runtime for i in places]),
            np.array([predictions[i].uncertainty for i in places]), tiles=[self._tiles[s] for s in asked],
            traits=self._traits_of(asked),
        )  # fmt: skip
        for place, mean, sigma in zip(places, means.tolist(), sigmas.tolist(), strict=True):
            predictions[place] = Prediction(mean, sigma, predictions[place].failure_probability)
        return predictions

    def _traits_of(self, schedules: Sequence[Schedule]) -> Array:
        """(n, t) as `traits_of`, worked out once for each schedule."""
        missing = [s for s in schedules if s not in self._traits]
        self._traits.update(zip(missing, traits_of(missing), strict=True))
        return np.stack([self._traits[s] for s in schedules])


def traits_of(schedules: Sequence[Schedule]) -> Array:
    """(n, t) which traits each has, 1 or 0: the `TRAITS`, then `UPCAST_AXES`."""
    return np.array([kind_of(schedule) for schedule in schedules], np.int64).reshape(-1, len(TRAITS) + UPCAST_AXES)


def kind_of(schedule: Schedule) -> tuple[int, ...]:
    """Which traits a schedule has, 1 or 0 each: what is of one kind has them in common."""
    told = [0] * (len(TRAITS) + UPCAST_AXES)
    for opt in schedule.opts if schedule.kind == ScheduleKind.OPTS else ():
        for place, of in enumerate(TRAITS):
            told[place] |= opt.op in of
        if opt.op == "UPCAST" and isinstance(opt.axis, int) and opt.axis < UPCAST_AXES:
            told[len(TRAITS) + opt.axis] = 1
    return tuple(told)
