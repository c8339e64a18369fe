"""Other ways to choose on a lattice: what each asks for, and that none measures twice."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from evaluation.predictor import arms
from evaluation.predictor.arms import Elsewhere, Known, Programs, parameters_of, settings_of, ways_of
from evaluation.predictor.on_lattices import order_by, row_of
from kcg.kernel.kinds import HasCost
from kcg.types import Schedule, ScheduleKind
from tests.evaluation.predictor.test_on_lattices import lattice
from tests.small_spaces import SM_90, programs, space_named


def of_lattice() -> tuple[Programs, list[float]]:
    found, space = lattice(), space_named("tile")
    return Programs(space, found.schedules, found.seconds), list(found.seconds)


def by_hand(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in {*one, *other})


def test_programs_are_apart_by_numbers_and_words() -> None:
    one, other = (Schedule(ScheduleKind.TILE, body) for body in ('{"tile":[4,8],"loads":"tma"}', '{"tile":[4,32]}'))
    first, second = parameters_of(one), parameters_of(other)
    assert first["loads is tma"] == 1.0
    assert 2.5 < by_hand(first, second) < 3.0, "two steps of a tile, and a word"
    choices, _ = of_lattice()
    wanted = choices.parameters[3]
    assert choices.apart(wanted).tolist() == pytest.approx([by_hand(one, wanted) for one in choices.parameters])
    within = [by_hand(settings_of(one), settings_of(wanted)) for one in choices.parameters]
    assert choices.apart(wanted, settings=True).tolist() == pytest.approx(within)


def test_every_way_measures_each_program_once() -> None:
    space, (choices, seconds) = space_named("tile"), of_lattice()
    seen = dict(zip(list(programs("tile").values())[12:24], range(1, 13), strict=True))
    elsewhere = Elsewhere([Known(space.region, "another", {one: float(s) for one, s in seen.items()})], SM_90)
    ways = ways_of(choices, elsewhere, space_named("tile of several kernels").region, space, "norms")
    for name, some in ways.items():
        for way in some:
            assert sorted(order_by(way, seconds, len(seconds))) == list(range(len(seconds))), name


def test_climbing_goes_from_what_is_expected_to_what_is_like_the_best_so_far() -> None:
    choices, seconds = of_lattice()
    first, second = order_by(choices.climb, seconds, 2)
    assert choices.expected_s[first] == min(choices.expected_s)
    rest = [place for place in range(len(seconds)) if place != first]
    assert second == choices.nearest(rest, choices.parameters[first])


def test_boosting_finds_what_the_good_ones_have_in_common() -> None:
    """Half of the programs have a parameter that makes them slow, whatever the cost says of it."""
    found, space = lattice(), space_named("tile")
    assert isinstance(space, HasCost)
    names = {name for one in found.schedules for name in parameters_of(one)}
    values = {name: [parameters_of(one).get(name, 0.0) for one in found.schedules] for name in names}
    name = min(values, key=lambda one: abs(sum(v > min(values[one]) for v in values[one]) - len(found.schedules) / 2))
    slow = [value > min(values[name]) for value in values[name]]
    rng = random.Random(0)
    choices = Programs(space, found.schedules, [1e-5 * rng.uniform(1.0, 1.01) for _ in slow])
    seconds = [1e-5 * (2.0 if one else 1.0) for one in slow]
    order = order_by(choices.boost(0), seconds, len(seconds) // 2)
    after = order[4:]
    assert sum(slow[place] for place in after) <= len(after) / 2


def test_what_other_families_have_is_asked_for_first() -> None:
    space, (choices, seconds) = space_named("tile"), of_lattice()
    best = lattice().schedules[7]
    known = Known(space.region, "another", {best: 1.0, lattice().schedules[2]: 2.0})
    elsewhere = Elsewhere([known], SM_90)
    (way,) = ways_of(choices, elsewhere, space.region, space, "norms")["common"]
    assert order_by(way, seconds, 1) == [7]
    assert "common" not in ways_of(choices, elsewhere, space.region, space, "another"), "its own family is not asked"


def test_a_row_has_all_ways() -> None:
    row = row_of(lattice(), elsewhere=Elsewhere([], SM_90))
    assert 0 < row["boosting"]["4"] <= row["boosting"]["16"] <= 1 and "nearest region" not in row


@pytest.mark.parametrize("seed", [0, 1])
def test_around_the_prior_is_drawn_and_mostly_what_is_expected_to_be_fast(seed: int) -> None:
    choices, seconds = of_lattice()
    firsts = {order_by(choices.around(seed), seconds, 1)[0] for _ in range(3)}
    assert len(firsts) == 1, "a seed is a draw"
    drawn = [seconds[order_by(choices.around(n), seconds, 1)[0]] for n in range(200)]
    assert sum(drawn) / len(drawn) < sum(seconds) / len(seconds)


def test_the_published_formula_has_large_tiles_for_large_products_and_small_ones_for_a_wave() -> None:
    large = arms.product_of(8192, 8192, 4096, 2, 1, 132)
    assert large == {"tile": [128, 256], "reduce_tile": 64, "num_warps": 8, "num_stages": 4, "group": 1}
    small = arms.product_of(512, 2048, 1024, 2, 1, 132)
    assert small["tile"] == [64, 128] and small["num_warps"] == 4, "128 programs for 132 multiprocessors"
    assert arms.product_of(16, 4096, 4096, 2, 1, 132)["tile"][0] == 16
    assert arms.product_of(65536, 1024, 1024, 2, 1, 132)["group"] == 2
    for made in (large, small):
        assert sum(made["tile"]) * made["reduce_tile"] * 2 * made["num_stages"] <= 228 << 10


def test_the_published_formula_of_rows_holds_a_row_that_fits() -> None:
    assert arms.row_of(3072, 2) == (
        "rows",
        {"tile": [1], "reduce_tile": 4096, "num_warps": 8, "num_stages": 1, "group": 1},
    )
    form, settings = arms.row_of(200_000, 4)
    assert form == "reduction" and settings["reduce_tile"] == 16_384 and settings["num_warps"] == 32


def test_of_several_kernels_nothing_is_published() -> None:
    assert arms.published(space_named("tile of several kernels"), SM_90) == []
    (found,) = arms.published(space_named("tile"), SM_90)
    assert any(name.startswith("form is") for name in found) and found["num_warps"] > 1
