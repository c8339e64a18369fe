"""The table of a campaign: what every method makes of the whole model, kernel by kernel, and what it cost to find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.optimize.phases import MODEL
from kcg.types import RAW

from .campaign import Campaign
from .choosing import Choices
from .method_names import KCG, TINY_BEAM, turn_of

DRAWS = 4000
Array = NDArray[np.float64]


@dataclass
class Column:
    """One method: (K, DRAWS + 1) seconds of each kernel's calls, the first of them what was found, the rest drawn."""

    method: str
    seconds: Array
    there: NDArray[np.bool_]  # (K,) where it was tried, and is right: elsewhere tinygrad's own schedule stands
    wrong: int  # kernels of which its schedule gives a wrong result
    failed: int = 0  # whose schedule crashes or hangs

    @property
    def totals(self) -> Array:
        return np.asarray(self.seconds.sum(0))


def columns(chosen: Sequence[Choices], methods: Sequence[str], *, seed: int = 0) -> list[Column]:
    """A column for tinygrad's own schedules and for each method, drawn by a bootstrap over the samples of the duels."""
    own = [_own(kernel) for kernel in chosen]
    everywhere = np.ones(len(chosen), bool)
    found = [Column("hand-coded", np.stack([np.full(DRAWS + 1, s) for s in own]), everywhere, 0)]
    for method in methods:
        generator = np.random.default_rng(seed)
        column = Column(method, np.empty((len(chosen), DRAWS + 1)), everywhere.copy(), 0)
        for k, kernel in enumerate(chosen):
            if method == "raw":  # one sample, and no duel: a step of it takes minutes
                raw = kernel.bench.seen.rows.get(RAW)
                column.there[k] = raw is not None and raw.runtime_s is not None
                column.seconds[k] = own[k] if raw is None or raw.runtime_s is None else kernel.calls * raw.runtime_s
                continue
            told = kernel.bench.seen.duels.get(kernel.by_method.get(method, ""))  # type: ignore[call-overload]
            column.wrong += told is not None and "wrong" in told
            column.failed += bool(told is not None and told.get("reason"))
            column.there[k] = told is not None and "cold_s" in told
            column.seconds[k] = own[k] / _speedups(told, generator)
        found.append(column)
    return found


def _own(kernel: Choices) -> float:
    """Seconds of all calls with tinygrad's own schedule: the median over all duels."""
    samples = [s for told in kernel.bench.seen.duels.values() for s in told.get("own_s", ())]
    return kernel.calls * float(np.median(samples)) if samples else math.nan


def _speedups(told: dict[str, Any] | None, generator: np.random.Generator) -> Array:
    """(DRAWS + 1) the median of the paired speed-ups, and of DRAWS draws of the pairs; ones where there is no duel."""
    if told is None or "cold_s" not in told:
        return np.ones(DRAWS + 1)
    pairs = np.array(told["own_s"]) / np.array(told["cold_s"])
    drawn = np.median(pairs[generator.integers(len(pairs), size=(DRAWS, len(pairs)))], axis=1)
    return np.concatenate(([np.median(pairs)], drawn))


def against(column: Column, other: Column) -> list[float]:
    """How many times as long `column` takes as `other` where it was tried and is right, with its interval."""
    where = column.there & other.there
    return interval(column.seconds[where].sum(0) / other.seconds[where].sum(0)) if where.any() else []


def interval(values: Array) -> list[float]:
    """What was found, and 95 % of what was drawn."""
    return [float(values[0]), *map(float, np.quantile(values[1:], (0.025, 0.975)))]


def cost(campaign: Campaign, chosen: Sequence[Choices], method: str) -> dict[str, float]:
    """What a method took on all kernels together: measurements, and seconds from cold. kcg's hold judging all kernels
    of the model, but not its run as a whole, which has no counterpart. Methods that searched several kernels at once
    had to share the compilers: theirs are upper bounds."""
    name, _, of = method.partition(":")
    if name == KCG:
        if (run := campaign.journal.runs.get(method)) is None:
            return {}
        phases = dict(run["phases"])
        same = sum(run["measured"].get(kernel.bench.region.id, 0) for kernel in chosen)
        return {
            "measurements": same, "measurements_of_all_kernels": run["measurements"],
            "wall_s": run["search_s"] - phases.get(MODEL, 0.0), "whole_command_s": run["search_s"],
            **{f"{phase}_s": seconds for phase, seconds in phases.items()},
        }  # fmt: skip
    benches = [kernel.bench.seen for kernel in chosen]
    if name == TINY_BEAM:
        beams = [seen.tiny[int(of)] for seen in benches if int(of) in seen.tiny]
        return {"measurements": sum(b.binaries for b in beams), "wall_s": sum(b.wall_s for b in beams)}
    ended = [seen.plays[turn_of(method)] for seen in benches if turn_of(method) in seen.plays]
    return {"measurements": sum(e.play.measurements for e in ended), "wall_s": sum(e.spent_s for e in ended)}
