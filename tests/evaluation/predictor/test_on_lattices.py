"""Arms on a lattice: what an order is worth, and what chance is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.predictor.equal_seconds import SECONDS as AFTER_SECONDS
from evaluation.predictor.equal_seconds import FormCosts
from evaluation.predictor.on_lattices import (
    AFTER,
    Lattice,
    by_judge,
    costs_by,
    figures_in_seconds,
    figures_of,
    figures_on_some,
    lattices_of,
    order_by,
    random_shares,
    row_of,
    shares_of,
)
from evaluation.predictor.searches import BY_LEARNED, SEARCHES
from kcg.dataset.choices import UNIFORM
from kcg.dataset.noise import RETIMED
from kcg.kernel.kinds import HasCost
from kcg.predictor.cost import KnownCost
from kcg.types import Measurement, Schedule, Status
from tests.small_spaces import SM_90, programs, space_named

SECONDS = (4.0, 2.0, 8.0, 1.0, 2.5)


def test_a_share_is_that_of_the_best_so_far() -> None:
    assert shares_of([2, 0, 1, 4, 3], SECONDS) == {0: 1 / 8, 1: 1 / 8, 2: 1 / 4, 4: 1 / 2, 16: 1.0}


def test_chance_is_the_mean_over_all_orders() -> None:
    orders = [shares_of(order, SECONDS) for order in itertools.permutations(range(len(SECONDS)))]
    expected = {n: math.exp(fmean(math.log(shares[n]) for shares in orders)) for n in AFTER}
    assert random_shares(SECONDS) == pytest.approx(expected)


def test_an_arm_chooses_by_what_it_measured() -> None:
    seen: list[dict[int, float]] = []

    def choose(left: Any, known: Any) -> int:
        seen.append(dict(known))
        return max(left)

    assert order_by(choose, SECONDS, 3) == [4, 3, 2]
    assert seen == [{}, {4: 2.5}, {4: 2.5, 3: 1.0}]


def lattice() -> Lattice:
    space = space_named("tile")
    every = tuple(programs("tile").values())[:12]
    assert isinstance(space, HasCost)
    return Lattice(space.region, SM_90, "norms", every, tuple(space.cost(one).seconds for one in every))


def test_where_the_cost_is_right_the_first_choice_is_the_best() -> None:
    found = lattice()
    row = row_of(found)
    assert set(row["analytic"].values()) == set(row["corrected"].values()) == {1.0}
    assert 0 < row["random"]["0"] < row["random"]["4"] < 1
    figures = figures_of([row, {**row, "analytic": dict.fromkeys(map(str, AFTER), 0.25)}])["analytic"]["0"]
    assert figures["share"] == 0.5 and figures["interval"] == [0.25, 1.0] and figures["p10"] < 0.5
    order = order_by(by_judge(KnownCost().of(space_named("tile")), found.schedules, corrected=True), found.seconds, 12)
    assert sorted(order) == list(range(12)), "nothing is measured twice"


def test_in_seconds_the_oracle_is_first_and_chance_measures_as_many() -> None:
    usual = {"": FormCosts(0.5, 0.1)}
    found = lattice()
    costs = costs_by(found.schedules, [0.0, *[0.25] * 11], usual)
    assert costs.compile_s[:2] == [0.5, 0.25] and set(costs.measure_s) == {0.1}, (
        "none was compiled where a cache answered"
    )
    row = row_of(replace(found, costs=costs))
    assert set(row["after_seconds"]) == {*SEARCHES, "analytic", "corrected", "random", "oracle"} - {BY_LEARNED}
    figures = figures_in_seconds([row, row])
    assert figures["oracle"]["1"]["share"] == 1.0 and figures["oracle"]["1"]["measured"] > 0
    assert all(set(one) == {f"{after:g}" for after in AFTER_SECONDS} for one in figures.values())
    assert figures["random"]["10"] == figures["oracle"]["10"], "all of it is measured"
    assert figures_in_seconds([row_of(found)]) == {}


def test_arms_that_few_lattices_have_are_beside_the_formula_on_those() -> None:
    row = row_of(lattice())
    found = figures_on_some([row, {**row, "common": dict.fromkeys(map(str, AFTER), 0.25)}])
    assert set(found) == {"common"} and found["common"]["lattices"] == 1
    assert found["common"]["common"]["4"]["share"] == 0.25 and found["common"]["analytic"]["4"]["share"] == 1.0


def test_what_was_timed_again_takes_that_time_and_the_others_change_as_much() -> None:
    found = lattice()

    def row(schedule: Schedule, seconds: float, sampler: str = UNIFORM, **more: Any) -> Measurement:
        return Measurement(
            region_id=found.region.id, schedule=schedule, target="t", toolchain="c", protocol=1, status=Status.OK,
            cache_state="cold", samples_s=(seconds,), sampler=sampler, run_id="r", early_stop=True, **more,
        )  # fmt: skip

    first, second, third = found.schedules[:3]
    rows = [row(first, 1.0), row(second, 2.0), row(third, 3.0, "prior"), row(first, 9.0, trial=1)]
    rows += [row(second, seconds, RETIMED, trial=trial) for trial, seconds in enumerate((4.0, 6.0, 5.0))]
    export: Any = SimpleNamespace(
        measurements=lambda protocol: iter(rows), regions=lambda: {found.region.id: found.region},
        targets=lambda: {"t": SM_90}, workloads=list,
    )  # fmt: skip
    (one,) = lattices_of(export, least=2)
    assert dict(zip(one.schedules, one.seconds, strict=True)) == {first: 2.5, second: 5.0}
    assert lattices_of(export, least=3) == []
