"""The nouns' identities: the same on every machine, and of what they stand for only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcg.kernel.kinds import describe
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.types import Kernel, Measurement, Plan, PlannedRegion, Region, Schedule, Status, canonical_json, malformed

ONE, TWO = Region((Kernel("[1]"),)), Region((Kernel("[2]"),))
SPLIT = schedule_of([Opt("UPCAST", 0, 4), Opt("TC", 0, (-1, 2, 1)), Opt("NOLOCALS")])


def test_identities_are_pinned() -> None:
    """A stored id must mean the same for ever: these were computed once and may not move."""
    assert ONE.id == Kernel("[1]").id == "080a9ed428559ef602668b4c00f114f1a11c3f6b02a435f0bdc154578e4d7f22"
    assert SPLIT.body == '[["UPCAST",0,4],["TC",0,[-1,2,1]],["NOLOCALS",null,null]]'
    assert RAW.body == "[]"


def test_a_schedule_gives_back_its_opts() -> None:
    assert schedule_of(opts_of(SPLIT)) == SPLIT
    assert describe(SPLIT) == "UPCAST(0,4) TC(0,(-1, 2, 1)) NOLOCALS()"
    with pytest.raises(ValueError, match="has no opts"):
        _ = opts_of(Schedule("source", "{}"))


def test_a_region_of_several_kernels_is_its_kernels_and_what_they_bind() -> None:
    both = Region((*ONE.kernels, *TWO.kernels), ((0, 1), (2, 0)), (2,))
    others = {replace(both, args=((0, 1), (2, 1))).id, replace(both, outputs=(0, 2)).id}
    assert len({both.id, ONE.id, TWO.id} | others) == 5 and not malformed(both)
    assert both.id == "b245999d4b256292484b0029ad5f7c502ffc78d665a2684356f51cd77e763cd9"
    with pytest.raises(ValueError):
        _ = both.kernel


@pytest.mark.parametrize(
    ("region", "wrong"),
    [
        (Region(()), "no kernels"),
        (replace(ONE, outputs=(0,)), "one kernel has no args"),
        (Region(ONE.kernels * 2), "slots of each kernel"),
        (Region(ONE.kernels * 2, ((0,), (2,)), (0,)), "first appearance"),
        (Region(ONE.kernels * 2, ((0,), (-1,)), (0,)), "first appearance"),
        (Region(ONE.kernels * 2, ((0,), (1,)), (2,)), "outputs must be buffers"),
        (Region(ONE.kernels * 2, ((0,), (1,)), (1, 0)), "outputs must be buffers"),
        (Region(ONE.kernels * 2, ((0,), (1,))), "no outputs"),
    ],
)
def test_regions_that_cannot_be_are_named(region: Region, wrong: str) -> None:
    assert wrong in malformed(region)


def test_a_plan_is_what_was_chosen_in_any_order() -> None:
    first, second = PlannedRegion(ONE, SPLIT), PlannedRegion(TWO, RAW)
    plan = Plan("w", "p", (first, second))
    assert plan.id == Plan("w", "p", (second, first)).id
    assert plan.id != Plan("w", "p", (first, PlannedRegion(TWO, SPLIT))).id
    assert plan.id != Plan("w", "p", (first, PlannedRegion(TWO, RAW, (("n", 3),)))).id


def test_run_and_trial_do_not_belong_to_a_measurements_identity() -> None:
    row = Measurement(ONE.id, SPLIT, "target", "toolchain", 1, Status.OK, samples_s=(1.0, 3.0, 2.0))
    assert row.median_s == 2.0
    assert replace(row, run_id="other", trial=7, samples_s=(9.0,)).key == row.key
    for change in ({"target": "x"}, {"toolchain": "x"}, {"protocol": 2}, {"variables": (("n", 1),)}):
        assert replace(row, **change).key != row.key  # type: ignore[arg-type]


def test_nan_has_no_canonical_json() -> None:
    with pytest.raises(ValueError):
        canonical_json(float("nan"))
