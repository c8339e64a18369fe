"""Lists of Opts drawn at random, each as likely, and how many there are."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kcg.kernel.kinds import DrawsUniformly, programs_of
from kcg.kernel.opts import uniform
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Schedule
from tests.chains import region_of
from tests.known_targets import KNOWN_TARGETS
from tests.small_spaces import programs, space_named, total


def lists(space: KernelSpace, steps: int) -> list[Schedule]:
    found = level = [space.start()]
    for _ in range(steps):
        level = [action.schedule for one in level for action in space.actions(one)]
        found = found + level
    return found


def test_a_small_space_is_listed_and_each_program_is_as_likely() -> None:
    space = space_named("opts")
    assert isinstance(space, DrawsUniformly)
    assert space.count() == len(programs("opts"))
    assert {space.key(one) for one in programs_of(space, most=1000)} == programs("opts").keys()
    assert programs_of(space, most=5) == []


def test_each_list_of_a_large_space_is_as_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform, "LISTED", 1)
    monkeypatch.setattr(uniform, "STEPS", 2)
    space = KernelSpace(region_of(total(2, 12)), KNOWN_TARGETS["sm_90"])
    every = lists(space, 2)
    assert len(set(every)) == len(every) > 20
    assert space.count() == pytest.approx(len(every), rel=0.2), "an estimate"
    rng = random.Random(0)
    drawn = Counter(space.uniform(rng) for _ in range(200 * len(every)))
    assert drawn.keys() == set(every)
    assert all(140 < count < 260 for count in drawn.values()), "whatever their lengths"
