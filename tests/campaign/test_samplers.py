"""Who draws the schedules of a campaign: every sampler of the registry, on a small space of every kind."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from click import unstyle
from typer.testing import CliRunner

from kcg.campaign.samplers import SAMPLERS, KernelState, chance, sampler
from kcg.campaign.sampling import DrawJob, Known, draw
from kcg.campaign.settings import DEFAULT_MIX, TILE_MIX, parse_mix
from kcg.dataset.__main__ import app
from kcg.errors import UnknownName
from kcg.predictor.cost import KnownCost
from kcg.predictor.roofline import Roofline
from kcg.search.strategies import strategy
from kcg.search.uniform import UNKNOWN
from kcg.types import Schedule
from tests.search.test_every_kind import problem
from tests.small_spaces import KINDS, SM_90, programs, space_named, time_s

NAMES = [name.replace("WIDTH", "2").replace("CHILDREN", "3").replace("EPSILON", "0.3") for name in SAMPLERS]
SEARCHES = ("random", "prior", "mcts")


def state(kind: str, known: dict[str, Schedule]) -> KernelState:
    """What is known of a space when those were measured."""
    guide = KnownCost() if kind.startswith("tile") else Roofline()
    return KernelState(space_named(kind), guide, {key: time_s(key) for key in known}, dict(known))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_draws_legal_schedules_of_every_kind(name: str, kind: str) -> None:
    space, own = space_named(kind), space_named(kind).baseline()
    known = {space.key(own): own}
    drawn = sampler(name)(state(kind, known), random.Random(1))
    again = sampler(name)(state(kind, known), random.Random(1))
    assert drawn == again and drawn, "it keeps no state"
    for schedule in drawn:
        space.check(schedule)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_draws_what_it_would_measure_next_until_it_ends(name: str, kind: str) -> None:
    space, known = space_named(kind), dict[str, Schedule]()
    met: list[Schedule] = []
    while batch := sampler(name)(state(kind, known), random.Random(len(known))):
        if name == "mcts" and len(met) > 16:  # with their neighbours parts are many
            break
        keys = [space.key(schedule) for schedule in batch]
        assert not known.keys() & set(keys) and len(set(keys)) == len(keys), "nothing comes twice"
        known.update(zip(keys, batch, strict=True))
        met += batch
    assert met[0] == space.baseline()
    if name == "prior":
        assert met[: len(space.prior())] == space.prior()
    if name == "random":
        assert known.keys() == programs(kind).keys()


def test_a_search_goes_on_as_it_would_by_itself() -> None:
    """In batches that are drawn apart, against one search that measures its batches of the same size."""
    space, known = space_named("tile"), dict[str, Schedule]()
    drawn: list[Schedule] = []
    while batch := sampler("prior")(state("tile", known), random.Random(0)):
        known.update({space.key(schedule): schedule for schedule in batch})
        drawn += batch
    alone = replace(problem("tile"), predict=KnownCost().of(space).predict)
    assert drawn == [one.schedule for one in strategy("prior")(alone)]


def test_searches_share_a_campaign_with_what_always_comes() -> None:
    region, rows = space_named("opts").region, tuple[Known, ...]()
    while batch := draw(
        DrawJob(region, SM_90, rows, 20, parse_mix(",".join(SEARCHES)), "0", predictor="roofline")
    ).batch:
        rows += tuple(Known(one.schedule, one.sampler, time_s(one.key), one.key) for one in batch)
    counts = Counter(one.sampler for one in rows)
    assert len({one.key for one in rows}) == counts.total() == 20
    assert counts["hand-coded"] == counts["raw"] == 1 and all(counts[name] == 6 for name in SEARCHES)


def test_names_are_checked_and_listed() -> None:
    for bad in ("walk", "walk:", "beam", "beam:0", "beam:2/0", "beam:2/", "greedy:2", "near", "mcts:4", "RANDOM", ""):
        with pytest.raises(UnknownName, match=f"unknown sampler '{re.escape(bad)}': .*walk:hand-coded"):
            sampler(bad)
    shown = unstyle(CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "400"}).output)
    assert all(name in shown for name in SAMPLERS)


def test_samplers_are_named_with_equal_shares_or_with_their_own() -> None:
    assert parse_mix("mcts,walk:raw") == (("mcts", 0.5), ("walk:raw", 0.5)), "in the order named"
    assert parse_mix("random=1, beam:2/8=3") == (("random", 0.25), ("beam:2/8", 0.75))
    assert parse_mix("prior") == (("prior", 1.0),)
    assert all(sampler(name) for name in DEFAULT_MIX)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(("near:prior", "near:best", "uniform"), ("tile", "tile of several kernels")),
        ("uniform", "opts"),
        ("uniform", "parts"),
    ],
)
def test_the_chance_of_a_draw_is_how_often_it_comes(name: str, kind: str) -> None:
    found = list(programs(kind).items())
    of = state(kind, dict(found[:7]) if name == "near:best" else {})
    rng = random.Random(0)
    drawn = Counter(one for _ in range(400) for one in sampler(name)(of, rng))
    chances = {one: chance(name, of, one).probability for one in drawn}
    assert all(chances.values()) and sum(filter(None, chances.values())) == pytest.approx(1.0, abs=0.02)
    for one, count in drawn.items():
        assert count / drawn.total() == pytest.approx(chances[one], abs=0.02)
        assert chance(name, of, one).pool.partition(":")[2].isdecimal()


def test_who_cannot_tell_a_chance_says_none() -> None:
    of = state("opts", {})
    for name in ("walk:raw", "beam:2/8", "greedy:0.3", "near:best", "mcts", "random"):
        assert chance(name, of, of.space.baseline()) == UNKNOWN
    assert chance("prior", of, of.space.baseline()).probability == 1.0


def test_tile_programs_of_a_region_are_drawn_beside_its_baseline_of_another_kind() -> None:
    region = space_named("tile of several kernels").region
    drawn = draw(DrawJob(region, SM_90, (), 8, tuple(TILE_MIX.items()), "0", predictor="roofline", kind="tile")).batch
    if not drawn:
        pytest.skip("no tools for tile programs here")
    assert [one.sampler for one in drawn[:2]] == ["hand-coded", "start"]
    assert drawn[0].schedule.kind == "parts" and {one.schedule.kind for one in drawn[1:]} == {"tile"}
    known = tuple(Known(one.schedule, one.sampler, 1e-5, one.key) for one in drawn)
    more = draw(DrawJob(region, SM_90, known, 12, tuple(TILE_MIX.items()), "0", predictor="roofline", kind="tile"))
    waits = tuple(replace(one, waits=True) for one in known)
    job = DrawJob(
        region, SM_90, waits, 100, (("mcts", 0.5), ("near:best", 0.5)), "0", predictor="roofline", kind="tile"
    )
    later = draw(job).batch
    assert later and not {one.key for one in later} & {one.key for one in drawn}, "what waits is not drawn again"
    assert "hand-coded" not in {one.sampler for one in more.batch}
    assert not {one.key for one in more.batch} & {one.key for one in drawn}


def test_nothing_is_near_tinygrads_own_choice_where_that_is_of_another_kind() -> None:
    """It may be the fastest that was measured: a second draw goes on without it."""
    region, known = space_named("tile of several kernels").region, dict[Schedule, Known]()
    for count in (8, 16):
        mix = (("near:best", 1.0),)
        drawn = draw(DrawJob(region, SM_90, tuple(known.values()), count, mix, "0", predictor="roofline", kind="tile"))
        if not drawn.batch and not known:
            pytest.skip("no tools for tile programs here")
        assert drawn.batch and not drawn.why_not
        for place, one in enumerate(drawn.batch):
            known[one.schedule] = Known(one.schedule, one.sampler, 1e-6 * (1 + place), one.key)
    kinds = Counter(schedule.kind for schedule in known)
    assert kinds["parts"] == 1 and kinds["tile"] > 7 and len(kinds) == 2
