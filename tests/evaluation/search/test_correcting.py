"""Corrections compared on schedules that are all measured: what a correction is worth, and what it is asked by."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.search.correcting import BUDGETS, METHODS, ORDERS, Pool, replay, steps_of
from kcg.types import RAW, Opt, Schedule
from tests.predictor.test_correction import candidates, planted


@pytest.mark.parametrize("order", ORDERS)
def test_a_correction_finds_what_no_correction_finds(order: str) -> None:
    """The predictor is right but for a planted residual: so a correction must pay, and no score is above 1."""
    found: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in range(6):
        x, predicted, sigma = candidates(seed, n=200)
        log_s = predicted * 0.3 + planted(x, level=0.5, tilt=0.5, seed=seed)
        log_s[::50] = np.nan
        pool = Pool(predicted * 0.3, sigma, x, log_s, (0,) * len(x), np.zeros((len(x), 3), np.int64))
        for name, method in METHODS.items():
            found[name].append(replay(pool, method, order=order, seed=seed))
            assert len(found[name][-1]) == len(BUDGETS) and all(0 < score <= 1 for score in found[name][-1])
    none, regression = (np.log(found[name]).mean(0) for name in ("none", "regression"))
    assert regression[0] == none[0], "with nothing measured there is nothing to correct"
    assert regression[-1] > none[-1] + 0.1


def test_steps_are_sets_of_opts() -> None:
    twice = Schedule.from_opts((Opt("UPCAST", 0, 2), Opt("UPCAST", 0, 2)))
    once = Schedule.from_opts((Opt("UPCAST", 0, 2),))
    other = Schedule.from_opts((Opt("LOCAL", 0, 4), Opt("UPCAST", 0, 2)))
    one, two, three, none = steps_of([once, twice, other, RAW])
    assert none == 0 and one.bit_count() == 1 and two.bit_count() == three.bit_count() == 2
    assert (one & two).bit_count() == (one & three).bit_count() == 1
