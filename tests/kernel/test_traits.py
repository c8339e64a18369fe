"""The traits of a schedule of Opts: which kinds of steps it uses at all, and which axes it upcasts."""

from __future__ import annotations

from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.traits import TRAITS, UPCAST_AXES, traits_of
from kcg.types import Schedule, ScheduleKind

COUNT = len(TRAITS) + UPCAST_AXES


def traits(*steps: tuple[str, int, int]) -> tuple[int, ...]:
    return traits_of(schedule_of([Opt(*step) for step in steps]))


def test_a_schedule_has_the_traits_of_its_steps_whatever_their_order_and_amounts() -> None:
    steps = (("UPCAST", 1, 4), ("UNROLL", 0, 4), ("GROUPTOP", 0, 16))
    assert traits(*steps) == (1, 1, 0, 0, 1, 0, 0) == traits(*steps[::-1])
    assert traits(("UPCAST", 1, 2), ("UNROLL", 0, 2), ("GROUP", 0, 8)) == traits(*steps)
    assert traits(("LOCAL", 0, 2)) == (0, 0, 1, 0, 0, 0, 0)


def test_what_no_trait_speaks_of_has_none() -> None:
    written = Schedule(ScheduleKind.SOURCE, "{}")
    for none in (traits_of(RAW), traits(("UPCAST", UPCAST_AXES, 2)), traits_of(written)):
        assert none == (0,) * COUNT
