"""Programs drawn uniformly: each legal one as likely, in any process, and about how many there are."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.kinds import DrawsUniformly
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.legal import FIELDS, is_legal, legal_values, starts
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.space import TileSpace
from kcg.kernel.tile.uniform import Uniform
from kcg.types import Region
from tests.chains import region_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

SM_90 = KNOWN_TARGETS["sm_90"]


def space(made: Tensor) -> TileSpace:
    region: Region = region_of(made)
    return TileSpace(region, SM_90, read_region(region))


def listed(found: TileSpace) -> set[TileParameters]:
    """Every legal program, by counting through all fields of every start."""
    level = list(starts(found.kernel, found.target))
    for field in FIELDS:
        level = [
            made.changed(**{field: value})
            for made in level
            for value in legal_values(found.kernel, found.target, made, field) or (getattr(made, field),)
        ]
    return {made for made in level if is_legal(found.kernel, found.target, made)}


@pytest.mark.parametrize("made", [lambda: empty(4, 16).sum(1), lambda: empty(64, 96).gelu()], ids=["sum", "gelu"])
def test_each_legal_program_is_as_likely(made: object) -> None:
    found = space(made())  # type: ignore[operator]
    everything = listed(found)
    assert 8 < len(everything) < 400
    uniform = Uniform(found.kernel, found.target)
    each = 60
    counts = Counter(uniform.draw(Random(n)) for n in range(each * len(everything)))
    assert counts.keys() == everything, "all of them, and nothing else"
    squares = sum((count - each) ** 2 / each for count in counts.values())
    freedom = len(everything) - 1
    assert squares < freedom + 5 * (2 * freedom) ** 0.5, "as chance has it (chi-square)"
    assert uniform.count == len(everything)


def test_of_a_large_space_programs_are_drawn_in_time_and_are_legal() -> None:
    found = space(empty(512, 256) @ empty(256, 384))
    assert isinstance(found, DrawsUniformly)
    drawn = [found.uniform(Random(n)) for n in range(12)]
    for schedule in drawn:
        assert schedule is not None
        found.check(schedule)
    assert len(set(drawn)) == 12 and found.count() > 10_000
    again = space(empty(512, 256) @ empty(256, 384))
    assert again.count() == found.count() and [again.uniform(Random(n)) for n in range(3)] == drawn[:3]


def test_what_is_estimated_is_near_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcg.kernel.tile.uniform.COUNTED", 0)
    for made in (empty(4, 16).sum(1), empty(64, 96).gelu()):
        found = space(made)
        assert Uniform(found.kernel, found.target).count == pytest.approx(len(listed(found)), rel=0.2)


def test_places_grow_where_a_draw_finds_more_values_than_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcg.kernel.tile.uniform.PILOTS", 1)
    monkeypatch.setattr("kcg.kernel.tile.uniform.COUNTED", 0)
    found = space(empty(64, 96).gelu())
    uniform = Uniform(found.kernel, found.target)
    met = {uniform.draw(Random(n)) for n in itertools.islice(itertools.count(), 40 * len(listed(found)))}
    assert met == listed(found)
