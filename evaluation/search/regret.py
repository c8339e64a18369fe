"""What recorded replays say: how far from the optimum each contender is after n measurements, and how sure that is.

Everything is a ratio of times. Quality is the optimum's over what was found, and a gain of A over B is B's time over
A's, so above 1 is good for both. A ratio is given weighted, as a ratio of sums of calls x seconds over kernels, and as
the unweighted geometric mean over kernels. Intervals are 95 % bootstrap intervals: over kernels and over the seeds of
each, or over kernels alone, with the mean over seeds, where two contenders are compared on the same kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evaluation.search.comparison import (
    BEAM,
    DRAFT,
    GAP,
    RANDOM,
    ROLLOUT,
    Replay,
    Settings,
    Turn,
    replayed,
)
from kcg.predictor.features import Array
from kcg.search.replay import RecordedKernel

RESAMPLES: Final = 2000
SHARE: Final = (0.025, 0.975)  # of resamples below the ends of an interval
BUDGETS: Final = (1, 2, 4, 8, 16, 32, 64)
CLOSE: Final = 1.01  # as good as BEAM: takes at most so many times as long
SPARING: Final = 20  # one of so many of BEAM's measurements
TIE: Final = 1.02  # a pick that takes at most so many times what hand-coded takes is no loss


@dataclass(frozen=True)
class Ratio:
    """A ratio of times with its interval, weighted by calls, and as the geometric mean."""

    weighted: float
    low: float
    high: float
    mean: float
    mean_low: float
    mean_high: float

    def reported(self) -> dict[str, float]:
        return {name: round(value, 5) for name, value in vars(self).items()}

    def named(self, name: str) -> dict[str, float]:
        """As entries of a headline."""
        return {name if key == "weighted" else f"{name}_{key}": value for key, value in self.reported().items()}


class Bootstrap:
    """How often each kernel, and each seed of a kernel, is drawn in each resample: the same for all that is asked."""

    def __init__(self, kernels: int, seeds: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.kernels = rng.multinomial(kernels, [1 / kernels] * kernels, RESAMPLES).astype(np.float64)  # (R, K)
        self.seeds = rng.multinomial(seeds, [1 / seeds] * seeds, (kernels, RESAMPLES)) / seeds  # (K, R, S)

    def totals(self, values: Array) -> Array:
        """(R, N) sums over drawn kernels of means over drawn seeds, of (K, S, N)."""
        found = np.zeros((RESAMPLES, values.shape[2]))
        for k, own in enumerate(values):
            found += self.kernels[:, k, None] * (self.seeds[k] @ own)
        return found


class Board:
    """All replays as times: K kernels, S seeds, after 0 to N measurements."""

    def __init__(
        self,
        kernels: Sequence[RecordedKernel],
        replays: Sequence[Mapping[Turn, Replay]],
        settings: Settings,
        *,
        allocated: Array | None = None,
    ) -> None:
        """`allocated` is what `evaluation.search.shared_budget.allocated` found for the default contender."""
        self.settings, self.replays, self.allocated = settings, replays, allocated
        self.weights = np.array([kernel.calls for kernel in kernels], np.float64)  # (K,)
        self.best_s = np.array([kernel.table.best_s for kernel in kernels])  # (K,)
        self.hand_coded_s = np.array([kernel.hand_coded_s for kernel in kernels])  # (K,)
        self.bootstrap = Bootstrap(len(kernels), settings.seeds)
        self._known: dict[str, Array] = {}

    @property
    def budgets(self) -> list[int]:
        return [n for n in BUDGETS if n <= self.settings.budget]

    def has(self, name: str) -> bool:
        return name in self.settings.contenders

    def known(self, name: str) -> Array:
        """(K, S, N + 1) the best time known after 0 to N measurements."""
        if name not in self._known:
            budget, seeds = self.settings.budget, range(self.settings.seeds)
            self._known[name] = np.array(
                [
                    [_after(self._replay(k, (name, seed, budget)), budget, float(otherwise_s)) for seed in seeds]
                    for k, otherwise_s in enumerate(self.hand_coded_s)
                ]
            )
        return self._known[name]

    def ends(self, turn: Turn) -> tuple[Array, Array]:
        """(K,) each: where one replay per kernel ended, and how much it measured."""
        found = [self._replay(k, turn) for k in range(len(self.replays))]
        times = np.array([p.end_s for p in found])
        return np.where(np.isfinite(times), times, self.hand_coded_s), np.array([p.measurements for p in found])

    def beam(self, width: int) -> tuple[Array, Array]:
        return self.ends((f"{BEAM}:{width}", 0, None))

    def picked(self, name: str) -> Array | None:
        """(K,) what the picks without any measurement take; None where there are none."""
        return self.ends((name, 0, 0))[0] if replayed(self.replays[0], (name, 0, 0)) else None

    def picking_s(self, name: str) -> float:
        """The mean seconds that such a pick takes."""
        return float(np.mean([self._replay(k, (name, 0, 0)).seconds for k in range(len(self.replays))]))

    def own(self, name: str) -> list[Replay]:
        """Every replay of a contender under the budget."""
        turns = [(name, seed, self.settings.budget) for seed in range(self.settings.seeds)]
        return [self._replay(k, turn) for k in range(len(self.replays)) for turn in turns]

    def _replay(self, k: int, turn: Turn) -> Replay:
        found = replayed(self.replays[k], turn)
        assert found is not None, turn
        return found

    # figures

    def quality(self, times: Array) -> list[Ratio]:
        """N of (K, S, N) times, against the optimum."""
        weights, best = self.weights[:, None, None], self.best_s[:, None, None]
        logs = np.log(best / times)
        total = self.bootstrap.totals(np.broadcast_to(weights * best, times.shape))
        drawn = total / self.bootstrap.totals(weights * times)
        drawn_mean = np.exp(self.bootstrap.totals(logs) / len(times))
        value = (self.weights @ self.best_s) / (weights * times).sum(0).mean(0)
        return _ratios(value, drawn, np.exp(logs.mean((0, 1))), drawn_mean)

    def gain(self, slow: Array, fast: Array, chosen: Array | None = None) -> list[Ratio]:
        """N of (K, N) times on the same kernels, seeds averaged: how many times as long `slow` takes as `fast`.

        `chosen` (K,) bool are the kernels that count, at least one.
        """
        counts, w = self.bootstrap.kernels, self.weights
        if chosen is not None:
            slow, fast, w = slow[chosen], fast[chosen], w[chosen]
            counts = Bootstrap(len(w), 1).kernels
        logs = np.log(slow / fast)
        drawn = (counts @ (w[:, None] * slow)) / (counts @ (w[:, None] * fast))
        return _ratios((w @ slow) / (w @ fast), drawn, np.exp(logs.mean(0)), np.exp(counts @ logs / len(w)))

    def paired(self, name: str, other: str) -> list[Ratio]:
        """How much faster what `name` knows is than what `other` knows, at each of `budgets`."""
        return self.gain(*(self.known(n)[:, :, self.budgets].mean(1) for n in (other, name)))

    def measurements(self, name: str) -> Array:
        """(K, N + 1) how many were made once 0 to N were allowed: mean over seeds."""
        made = np.array([p.measurements for p in self.own(name)]).reshape(len(self.replays), -1, 1)
        return np.asarray(np.minimum(made, np.arange(self.settings.budget + 1)).mean(1))

    def measurements_needed(self, name: str, width: int) -> tuple[float, float, float]:
        """The least share of BEAM's measurements with which a contender's weighted time is within 1 % of BEAM's, the
        same number allowed for each kernel; infinite where its budget does not suffice. With its interval."""
        beam_s, beam_made = self.beam(width)
        times, made = self.known(name).mean(1), self.measurements(name)

        def needed(counts: Array) -> Array:
            total = counts * self.weights
            enough = total @ times <= CLOSE * (total @ beam_s)[:, None]
            first = np.argmax(enough, 1)
            spent = np.take_along_axis(counts @ made, first[:, None], 1)[:, 0] / (counts @ beam_made)
            return np.asarray(np.where(enough.any(1), spent, np.inf))

        (value,) = needed(np.ones((1, len(times))))
        drawn = np.sort(needed(self.bootstrap.kernels))  # no value between a number and infinity is interpolated
        low, high = (float(drawn[round(share * (RESAMPLES - 1))]) for share in SHARE)
        return float(value), low, high

    def allocated_needed(self, width: int) -> float:
        """The same, where the measurements are allocated to the kernels by what they are expected to save."""
        assert self.allocated is not None
        beam_s, beam_made = self.beam(width)
        enough = self.allocated.mean(0) <= CLOSE * (self.weights @ beam_s)
        return float(np.argmax(enough) / beam_made.sum()) if enough.any() else math.inf

    def with_beams_measurements(self, width: int) -> tuple[int, Ratio | None]:
        """How many kernels the widest BEAM left a gap on, and what the default contender gains there by as many
        measurements of each; no gain where it did not run so long, as on a device."""
        beam_s, made = self.beam(width)
        gap = beam_s >= GAP * self.best_s
        times = beam_s.copy()
        for k in np.flatnonzero(gap).tolist():
            allowed, known_s = int(made[k]), float(self.hand_coded_s[k])
            turn = (self.settings.default, 0, max(allowed, self.settings.budget))
            if replayed(self.replays[k], turn) is None:
                return int(gap.sum()), None
            found = [self._replay(k, (turn[0], seed, turn[2])) for seed in range(self.settings.seeds)]
            times[k] = np.mean([_after(p, allowed, known_s)[allowed] for p in found])
        return int(gap.sum()), self.gain(beam_s[:, None], times[:, None], gap)[0] if gap.any() else None


def _after(replay: Replay, budget: int, otherwise_s: float) -> Array:
    """(budget + 1,) what is known after 0 to `budget` measurements."""
    found = np.full(budget + 1, otherwise_s)
    for n, best_s in replay.curve:
        found[n:] = best_s
    return found


def _ratios(value: Array, drawn: Array, mean: Array, drawn_mean: Array) -> list[Ratio]:
    ends = (*np.quantile(drawn, SHARE, axis=0), *np.quantile(drawn_mean, SHARE, axis=0))
    return [Ratio(*map(float, row)) for row in zip(value, *ends[:2], mean, *ends[2:], strict=True)]


def headline(board: Board) -> dict[str, float | None]:
    """The figures that are compared with the targets. None stands where a budget did not suffice."""
    default, widths = board.settings.default, board.settings.beams
    found: dict[str, float | None] = {}
    last = board.quality(board.known(default)[:, :, board.budgets])
    for n, ratio in zip(board.budgets, last, strict=True):
        found[f"quality_at_{n}"], found[f"quality_at_{n}_mean"] = round(ratio.weighted, 5), round(ratio.mean, 5)
    at_16 = board.budgets.index(16) if 16 in board.budgets else None
    if at_16 is not None and board.has(RANDOM) and default != RANDOM:
        found |= board.paired(default, RANDOM)[at_16].named("default_vs_random_at_16")
    if 4 in widths:
        found |= _against_beam4(board)
    if widths:
        count, gain = board.with_beams_measurements(max(widths))
        found[f"kernels_with_room_after_beam{max(widths)}"] = count
        found |= gain.named(f"gain_with_room_on_beam{max(widths)}") if gain is not None else {}
    replays = board.own(default)
    found["search_s_per_kernel"] = round(float(np.mean([p.seconds for p in replays])), 4)
    return found


def _against_beam4(board: Board) -> dict[str, float | None]:
    default, (beam_s, beam_made) = board.settings.default, board.beam(4)
    found: dict[str, float | None] = {"beam4_measurements_per_kernel": round(float(beam_made.mean()), 2)}
    needed = board.measurements_needed(default, 4)
    for key, value in zip(("", "_low", "_high"), needed, strict=True):
        found[f"measurements_vs_beam4{key}"] = _finite(value)
    if board.allocated is not None:
        found["measurements_vs_beam4_dealt"] = _finite(board.allocated_needed(4))
    allowed = min(max(1, int(beam_made.sum() / SPARING / len(beam_made))), board.settings.budget)
    found["quality_vs_beam4_measurements_per_kernel"] = allowed
    sparing = board.known(default).mean(1)[:, [allowed]]
    found |= board.gain(beam_s[:, None], sparing)[0].named("quality_vs_beam4")
    for key, name in (("unmeasured", DRAFT), ("unmeasured_policy", ROLLOUT)):
        if (picked := board.picked(name)) is not None:
            found |= board.gain(picked[:, None], beam_s[:, None])[0].named(f"{key}_vs_beam4")
            found[f"{key}_not_slower_than_hand_coded"] = round(float((picked <= TIE * board.hand_coded_s).mean()), 4)
    if board.picked(ROLLOUT) is not None:
        found["unmeasured_policy_s_per_kernel"] = round(board.picking_s(ROLLOUT), 5)
    return found


def _finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def entry(board: Board, kernels: Sequence[RecordedKernel]) -> dict[str, Any]:
    """The full tables, for the results file."""
    settings, budgets = board.settings, board.budgets
    every = range(1, settings.budget + 1)
    report: dict[str, Any] = {"settings": vars(settings), "budgets": budgets, "contenders": {}, "beams": {}}
    for name in settings.contenders:
        replays, ratios = board.own(name), board.quality(board.known(name)[:, :, 1:])
        report["contenders"][name] = {
            "quality": {n: ratios[n - 1].reported() for n in budgets},
            "regret": {key: [_short(1 / getattr(ratios[n - 1], of) - 1) for n in every]
                       for key, of in (("weighted", "weighted"), ("low", "high"), ("high", "low"), ("mean", "mean"))},
            "measurements": _short(np.mean([p.measurements for p in replays])),
            "evaluations": _short(np.mean([p.evaluations for p in replays])),
            "failures": _short(np.mean([p.failures for p in replays])),
            "search_s": _short(np.mean([p.seconds for p in replays])),
        }  # fmt: skip
    for width in settings.beams:
        times, made = board.beam(width)
        shape = (len(times), settings.seeds, 1)
        ratio = board.quality(np.broadcast_to(times[:, None, None], shape))[0]
        report["beams"][width] = {
            "quality": ratio.reported(),
            "measurements": _short(made.mean()),
            "most_measurements": int(made.max()),
        }
    report["pairs"] = {
        other: {n: ratio.reported() for n, ratio in zip(budgets, board.paired(settings.default, other), strict=True)}
        for other in settings.contenders
        if other != settings.default
    }
    if board.allocated is not None:
        report["dealt_s"] = [_short(value) for value in board.allocated.mean(0)]
    report["kernels"] = [_kernel(board, k, kernel) for k, kernel in enumerate(kernels)]
    return report


def _kernel(board: Board, k: int, kernel: RecordedKernel) -> dict[str, Any]:
    """One kernel: what it is, and what each contender knew after each budget in microseconds, mean over seeds."""
    return {
        "region": kernel.region.id[:12],
        "family": kernel.family,
        "part": kernel.part,
        "calls": kernel.calls,
        "schedules": len(kernel.table.records),
        "best_us": _short(1e6 * kernel.table.best_s),
        "hand_coded_us": _short(1e6 * kernel.hand_coded_s),
        "beams": {
            width: [_short(1e6 * board.beam(width)[0][k]), int(board.beam(width)[1][k])]
            for width in board.settings.beams
        },
        "known_us": {
            name: [_short(1e6 * t) for t in board.known(name)[k][:, board.budgets].mean(0)]
            for name in board.settings.contenders
        },
    }


def _short(value: Any) -> float:
    return float(f"{value:.5g}")
