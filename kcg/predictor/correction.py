"""Predictions of one kernel corrected by what was measured of it, in the features that the networks themselves learned.

What a measurement left over of a prediction (measured minus predicted log-runtime) is taken for the sum of a constant
that all schedules of the kernel share, a linear function of the networks' last hidden state, something that schedules
with like hidden states share (it fades with their distance, as exp(-distance)), and what is particular to one schedule:
Bayesian regression in its closed form (Rasmussen & Williams, 2006, chapters 2 and 5). How much of each to expect is not
fixed: every combination of a small grid is fitted and counts by its marginal likelihood, so that few measurements
change little of what the grid expects and many decide. Of held-out kernels, the marginal likelihood is higher with both
the linear and the fading part than with either alone.

Where it is told which schedules are of one tile (what a thread computes, `Space.tile`), these share something,
too, and what is particular to one schedule may be less: of what four searches had measured on the kernels of Flux, on
an H200, residuals spread by 0.04 within a tile and the means of tiles by 0.07 (medians over 26 tensor-core kernels; of
14 others 0.08 and 0.17).

Where it is told the traits of a schedule (its space's `groups`: which kinds of steps it uses at all, and along which
axes a thread computes several elements), each trait, there or not, has a part of its own: a predictor that promises too
much of unrolling promises it of everything that unrolls, and what does not is not to be judged by it. What that is
worth is in docs/experiments/2026-11-23-correction.md and, on recorded lattices, by
`evaluation/predictor/evaluate_correction.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from kcg.predictor.features import Array
from kcg.types import Prediction, Schedule

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space


CONSTANT: Final = 1.0
"""Standard deviation, in log-seconds, of what all schedules of a kernel share: a predictor that ranks a new kernel well
may place it badly. With less, the level would be taken for news about the features."""
LINEAR: Final = (0.0, 0.3)  # standard deviation of what is linear in the features
NEARBY: Final = (0.1, 0.2, 0.4)  # standard deviation of what schedules with like features share
LENGTH: Final = (0.4, 0.8)  # how far apart those are, in units of the usual distance from the kernel's centre
NOISE: Final = (0.05, 0.1, 0.2)  # of what is particular to a schedule
TILE: Final = (0.05, 0.15)  # of what the schedules of one tile share, where tiles are told
TRAIT: Final = (0.2, 0.5)  # of what all traits together explain, where they are told
TRAIT_NEARBY: Final = (0.1, 0.3)  # of what schedules with like features share then
TILE_NOISE: Final = (0.02, *NOISE)  # of what is particular to a schedule then
MOST: Final = 128  # measurements that are kept, so that a correction of 10,000 schedules takes a fraction of a second
LEAST_SHARE: Final = 0.02  # of a combination of the grid: the others change nothing that would be seen
LEAST_SCALE: Final = 1e-6
FARTHEST: Final = 8.0  # from the centre: embeddings beyond are brought nearer
WORST: Final = 3.0  # log-seconds: of a residual beyond, the sign alone is news


@dataclass(frozen=True)
class _Fit:
    """One combination of the grid, fitted to what was measured."""

    weight: float  # its share among all
    linear: float  # variance
    local: float  # variance
    tile: float  # variance
    trait: float  # variance
    length: float
    noise: float  # variance
    factor: Array  # (m, m) inverse of the lower Cholesky factor of the measured residuals' covariance
    solved: Array  # (m,) the covariance's inverse times the residuals


class Correction:
    """The correction for one kernel: `observe` what was measured, then ask `corrected`."""

    def __init__(self, reference: Array) -> None:
        """`reference` (r, d) are embeddings of some schedules of the kernel, at least one: what is usual for it."""
        reference = np.asarray(reference, np.float64)
        reference = reference[np.isfinite(reference).all(1)]
        self._centre = reference.mean(0) if len(reference) else np.zeros(reference.shape[1])
        spread = float(np.sqrt(np.square(reference - self._centre).sum(1).mean())) if len(reference) else 0.0
        self._scale = spread if spread > LEAST_SCALE else 1.0
        self._x = np.zeros((0, reference.shape[1]))
        self._left = np.zeros(0)
        self._tile = np.zeros(0, np.int64)  # numbers of tiles; -1: not told
        self._traits = np.zeros((0, 0), np.int64)  # 0 or 1 of each; as many columns as are told
        self._fits: list[_Fit] | None = None

    def __len__(self) -> int:
        return len(self._left)

    def observe(
        self,
        embedding: Array,
        predicted: Array,
        measured: Array,
        *,
        tiles: Sequence[int] | None = None,
        traits: Array | None = None,
    ) -> None:
        """Take in measurements: embeddings (n, d), predicted and measured log-seconds (n,).

        A failed one has a `measured` that is not finite and teaches nothing here. `tiles` are numbers, the same for
        schedules of one tile, `traits` (n, t) are 1 where a schedule has a trait and 0 where it has not: told of all
        or of none, else ValueError is raised.
        """
        left = np.asarray(measured, np.float64) - np.asarray(predicted, np.float64)
        x = self._scaled(embedding)
        usable = np.isfinite(left) & np.isfinite(x).all(1)
        known = self._checked_traits(traits, len(usable))
        held = (self._x, self._left, self._tile, self._traits.reshape(len(self), known.shape[1]))
        new = (x, np.clip(left, -WORST, WORST), _numbers(tiles, len(usable)), known)
        self._x, self._left, self._tile, self._traits = (
            np.concatenate([old, column[usable]])[-MOST:] for old, column in zip(held, new, strict=True)
        )
        self._fits = None

    def corrected(
        self,
        embedding: Array,
        predicted: Array,
        sigma: Array,
        *,
        tiles: Sequence[int] | None = None,
        traits: Array | None = None,
    ) -> tuple[Array, Array]:
        """(n,) each: the corrected mean and standard deviation of log-runtimes; those given where nothing was measured.

        The deviation is the regression's own, and never above the one given: small where a schedule like it was
        measured, and where what was measured says that little is left over. The networks' spread is not scaled down
        instead, because it is mostly of the level of a kernel, which the first measurements tell.
        """
        predicted, sigma = np.asarray(predicted, np.float64), np.asarray(sigma, np.float64)
        if not len(self):
            return predicted, sigma
        if self._fits is None:
            self._fits = self._fitted()
        x = self._scaled(embedding)
        usable = np.asarray(np.isfinite(x).all(1))
        x = np.where(usable[:, None], x, 0.0)
        near, own = x @ self._x.T, np.square(x).sum(1)
        far = _distances(near, own, np.square(self._x).sum(1))
        fading = {length: np.exp(-far / length) for length in {fit.length for fit in self._fits}}
        alike = _same_tile(_numbers(tiles, len(x)), self._tile)
        common = _common(self._checked_traits(traits, len(x)), self._traits)
        change, second = np.zeros(len(x)), np.zeros(len(x))
        for fit in self._fits:
            covariance = CONSTANT**2 + fit.linear * near + fit.local * fading[fit.length] + fit.tile * alike
            covariance += fit.trait * common
            known = covariance @ fit.solved
            unknown = CONSTANT**2 + fit.linear * own + fit.local + fit.tile + fit.trait + fit.noise
            left = unknown - np.square(covariance @ fit.factor.T).sum(1)
            change += fit.weight * known
            second += fit.weight * (np.maximum(left, fit.noise) + np.square(known))
        mean, deviation = predicted + change, np.minimum(sigma, np.sqrt(np.maximum(second - np.square(change), 0.0)))
        broken = ~(usable & np.isfinite(mean) & np.isfinite(deviation))
        return np.where(broken, predicted, mean), np.where(broken, sigma, deviation)

    def _checked_traits(self, traits: Array | None, count: int) -> Array:
        """(count, t) with as many traits as before."""
        known = np.zeros((count, 0), np.int64) if traits is None else np.asarray(traits, np.int64)
        if len(self) and known.shape[1] != self._traits.shape[1]:
            raise ValueError("traits are told of all schedules of a kernel or of none")
        return known

    def _scaled(self, embedding: Array) -> Array:
        x = (np.asarray(embedding, np.float64) - self._centre) / self._scale
        with np.errstate(invalid="ignore", over="ignore"):
            length = np.sqrt(np.square(x).sum(1, keepdims=True))
            return np.asarray(x * np.minimum(1.0, FARTHEST / np.maximum(length, LEAST_SCALE)))

    def _fitted(self) -> list[_Fit]:
        """Every combination of the grid that has a share in the answer."""
        near = self._x @ self._x.T
        far = _distances(near, np.diag(near), np.diag(near))
        particular = np.eye(len(self))
        alike = _same_tile(self._tile, self._tile)
        common, traits = _common(self._traits, self._traits), bool(self._traits.shape[1])
        known = bool((self._tile >= 0).any())
        made, likelihoods = [], []
        for linear, local, length, noise, tile, trait in itertools.product(
            LINEAR,
            TRAIT_NEARBY if traits else NEARBY,
            LENGTH,
            TILE_NOISE if known else NOISE,
            TILE if known else (0.0,),
            TRAIT if traits else (0.0,),
        ):
            covariance = CONSTANT**2 + linear**2 * near + local**2 * np.exp(-far / length) + noise**2 * particular
            covariance += tile**2 * alike + trait**2 * common
            lower = np.linalg.cholesky(covariance)
            factor = np.linalg.inv(lower)
            whitened = factor @ self._left
            likelihoods.append(-np.square(whitened).sum() / 2 - np.log(np.diag(lower)).sum())
            variances = (linear**2, local**2, tile**2, trait**2)
            made.append(_Fit(0.0, *variances, length, noise**2, factor, factor.T @ whitened))
        weights = np.exp(np.array(likelihoods) - max(likelihoods))
        weights = np.where(weights < LEAST_SHARE * weights.sum(), 0.0, weights)
        if not weights.any():
            weights = np.ones(len(made))
        weights /= weights.sum()
        return [replace(fit, weight=float(w)) for fit, w in zip(made, weights, strict=True) if w > 0]


def _numbers(tiles: Sequence[int] | None, count: int) -> Array:
    return np.full(count, -1, np.int64) if tiles is None else np.asarray(tiles, np.int64)


def _same_tile(one: Array, other: Array) -> Array:
    """(n, m) of 0 and 1; what no tile is told of is like nothing."""
    return np.asarray((one[:, None] == other[None]) & (one[:, None] >= 0), np.float64)


def _common(one: Array, other: Array) -> Array:
    """(n, m): of how many traits both say the same, as a share of all; 0 where there are none."""
    if not one.shape[1]:
        return np.zeros((len(one), len(other)))
    return np.asarray((one[:, None] == other[None]).mean(2), np.float64)


def _distances(products: Array, one: Array, other: Array) -> Array:
    """(n, m) Euclidean distances, from the products of all pairs and the squared lengths."""
    return np.asarray(np.sqrt(np.maximum(one[:, None] + other[None] - 2 * products, 0.0)))


# ---- A learned predictor of one kernel that takes in what is measured while the kernel is searched.


class Embeds(Protocol):
    """What says of schedules of a kernel how long they take, and what its networks see in each: a `LearnedPredictor`,
    or what one said before."""

    def embed(self, space: Space, schedules: Sequence[Schedule]) -> tuple[list[Prediction], list[Array | None]]: ...


class TileNumbers(dict[Schedule, int]):
    """A number for what a thread computes, worked out once for each schedule; schedules of one tile have the same."""

    def __init__(self, space: Space) -> None:
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

    def __init__(self, predictor: Embeds, space: Space) -> None:
        self.predictor, self.space = predictor, space
        self._predictions: dict[Schedule, Prediction] = {}
        self._states: dict[Schedule, Array] = {}
        self._measured: dict[Schedule, float] = {}
        self._correction: Correction | None = None
        self._tiles = TileNumbers(space)
        self._traits: dict[Schedule, tuple[int, ...]] = {}

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
            predicted = self.predict([s for s, _ in fresh])
            self._measured.update(fresh)
            seen = [
                (s, p, t) for (s, t), p in zip(fresh, predicted, strict=True) if s in self._states and 0 < t < math.inf
            ]
            if seen:
                timed = [s for s, _, _ in seen]
                if self._correction is None:
                    self._correction = Correction(np.stack(list(self._states.values())))
                self._correction.observe(
                    np.stack([self._states[s] for s in timed]),
                    np.array([p.log_runtime for _, p, _ in seen]),
                    np.array([math.log(t) for _, _, t in seen]),
                    tiles=[self._tiles[s] for s in timed],
                    traits=self._traits_of(timed),
                )
        places = [i for i, s in enumerate(schedules) if s in self._states]
        if self._correction is None or not places:
            return predictions
        asked = [schedules[i] for i in places]
        states = np.stack([self._states[schedule] for schedule in asked])
        means, sigmas = self._correction.corrected(
            states,
            np.array([predictions[i].log_runtime for i in places]),
            np.array([predictions[i].uncertainty for i in places]),
            tiles=[self._tiles[s] for s in asked],
            traits=self._traits_of(asked),
        )
        for place, mean, sigma in zip(places, means.tolist(), sigmas.tolist(), strict=True):
            predictions[place] = Prediction(mean, sigma, predictions[place].failure_probability)
        return predictions

    def _traits_of(self, schedules: Sequence[Schedule]) -> Array:
        """(n, t): which traits each has, worked out once for each schedule."""
        for schedule in schedules:
            if schedule not in self._traits:
                traits = self.space.groups(schedule) or ()  # of a space that cannot tell
                assert isinstance(traits, tuple), "of one length for all schedules of a space"
                self._traits[schedule] = traits
        return np.array([self._traits[s] for s in schedules], np.int64)
