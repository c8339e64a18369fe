"""How many runs of a candidate are timed: a hopeless one costs two, and one late run does not make it hopeless."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW
from kcg.measure.child import LATE_S, LONG_S, _hopeless, _samples
from kcg.measure.device_info import detect
from kcg.measure.jobs import TimeJob
from kcg.measure.verify import CheckedBench
from kcg.measure.workbench import NAN_POISON
from kcg.types import CacheState, Region
from tests.kernels import empty, kernels_of

TARGET = detect("CPU:X86", 1)[0]
REGION = Region((kernel_of(kernels_of(empty(16).exp())[0]),))
BENCH = CheckedBench(REGION, TARGET)
BENCH.poison(NAN_POISON)  # what a launch that does nothing leaves


def taken(
    times: list[float],
    *,
    checked: float = 1e-3,
    early_stop: bool = True,
    full: bool = False,
    limit: float | None = 2e-3,
    careful: bool = False,
) -> tuple[tuple[float, ...], int]:
    """The samples of a kernel that takes so long run after run, and how many runs they took."""
    job = TimeJob(
        REGION,
        compile_schedule(REGION, RAW, TARGET),
        TARGET,
        early_stop=early_stop,
        stop_above_s=limit,
        cache_state=CacheState.WARM,
        careful=careful,
    )
    runs = iter(times)
    launch: Callable[[], float] = lambda: next(runs)  # noqa: E731
    hopeless = None if full else _hopeless(job, launch, [checked])
    watched = BENCH.watch(launch, has_run=True)
    found = (hopeless,) if hopeless is not None else _samples(job, watched, full=full)
    assert watched.reason == ""
    return found, len(times) - len(list(runs))


def test_of_a_hopeless_candidate_one_sample_is_kept_where_two_runs_agree() -> None:
    assert taken([5e-3, 6e-3, 9.0]) == ((5e-3,), 2)
    assert taken([6e-3, 5e-3, 9.0], early_stop=False) == ((5e-3,), 2)


def test_a_late_run_makes_no_candidate_hopeless() -> None:
    samples, runs = taken([12e-3, 1e-3, 1.1e-3, 1.2e-3, 9.0])
    assert samples == (12e-3, 1e-3, 1.1e-3) and runs == 3, "the median is that of the others"


@pytest.mark.parametrize("checked", [2 * LONG_S, LATE_S / 2])
def test_a_long_run_of_the_check_counts_where_another_agrees(checked: float) -> None:
    assert taken([checked * 1.1, 9.0], checked=checked) == ((checked,), 1)
    samples, runs = taken([1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 9.0], checked=checked)
    assert samples == (1.1e-3, 1.2e-3, 1.3e-3) and runs == 4


def test_what_takes_far_longer_than_any_launch_is_late_is_believed_at_once() -> None:
    assert taken([9.0], checked=LATE_S) == ((LATE_S,), 0)
    assert taken([LATE_S, 9.0], checked=LONG_S / 2) == ((LATE_S,), 1)


def test_nothing_is_hopeless_where_all_samples_are_wanted() -> None:
    assert taken([5e-3] * 100, full=True)[1] == taken([5e-3] * 100, limit=None, early_stop=False)[1] > 5


def test_what_a_warm_cache_may_have_shortened_is_measured_again() -> None:
    assert taken([1.5e-3, 2.1e-3, 2.2e-3, 9.0], checked=LONG_S * 1.2, limit=1e-3) == ((2.1e-3,), 3)


def test_a_careful_search_takes_more_samples_of_what_is_short() -> None:
    for seconds, few, many in ((15e-6, 9, 120), (60e-6, 5, 60), (150e-6, 3, 30), (1e-3, 3, 3)):
        assert taken([seconds] * 200, checked=seconds)[1] == few
        assert taken([seconds] * 200, checked=seconds, careful=True)[1] == many


def test_a_hopeless_candidate_gets_no_more_of_them() -> None:
    assert taken([30e-6, 31e-6, 9.0], limit=20e-6, careful=True) == ((30e-6,), 2)
