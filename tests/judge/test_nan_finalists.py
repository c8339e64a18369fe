"""A schedule that changes what a maximum makes of NaN is no finalist, and the next best that does not gets its turn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.optimize.settings import Settings
from kcg.optimize.work import Candidates
from kcg.search.problem import Observation
from kcg.types import Status
from tests.optimize_run import begun
from tests.slow import first

SCRIPT = Path(__file__).parents[1] / "scripts" / "nan_rows.py"
SEVEN, ELEVEN = (schedule_of([Opt("UNROLL", 0, amount)]) for amount in (7, 11))
BOTH = schedule_of([Opt("UPCAST", 0, 8), Opt("UNROLL", 0, 7)])
IN_ORDER = schedule_of([Opt("UPCAST", 0, 8)])


@pytest.mark.parametrize("has_next", first(1, [True, False]))
def test_the_next_best_that_treats_nan_as_tinygrad_does_gets_its_turn(has_next: bool, tmp_path: Path) -> None:
    """Three that read seven or eleven at once seem to be the fastest, whatever is timed."""
    with begun(Settings(str(SCRIPT), device=os.environ["DEV"], folder=tmp_path / "out")) as run:
        measured = run.measured()
        (work,) = run.works
        for place, schedule in enumerate([SEVEN, ELEVEN, BOTH, *[IN_ORDER] * has_next]):
            work.keep(Observation(schedule, Status.OK, (1 + place) * 1e-3 * work.baseline_s, f"binary {place}"))
        judge = run.judge(run.estimates(measured), Candidates(run.works))
        (row,) = judge.run().rows
    assert set(work.refused) == {SEVEN, ELEVEN, BOTH}
    assert all("makes something else of NaN than tinygrad's own schedule" in why for why in work.refused.values())
    assert work.candidates == [IN_ORDER] * has_next
    assert [schedule for _, schedule in judge.seen] == [IN_ORDER] * has_next, "what is refused is not timed again"
    assert row.chosen.schedule in (work.space.baseline(), IN_ORDER) and row.chosen.verification.passed
    assert "UNROLL(0,7) (and 2 more) is wrong: makes something else of NaN" in row.note
    assert has_next or row.outcome == "kept"
