"""What a run with `--measurements 0` chooses: of each kernel, and of regions of several kernels, what is expected to be
fastest. Nothing is timed before what was chosen is verified.

Where a kernel has programs of other kinds, the one with which their search would begin is chosen if it is expected to
be faster than tinygrad's own schedule. Of the other kernels a beam over Opts that only the predictor judges, a second
of a core each, chooses; what is expected to take a fiftieth of the time in all keeps tinygrad's own schedule. Regions
are those of the best plan by what is expected of their first programs and of what was chosen of their kernels; where
these begin and which have programs is looked for beside all else, and what is compiled of them is what the best plans
have (`kcg.optimize.region_search.expect_regions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from kcg.optimize.proposing import has_failed, left_s
from kcg.optimize.work import EXPECTED, RegionWork, is_expected
from kcg.predictor.interface import judge_of
from kcg.search.problem import Observation
from kcg.types import Schedule, Status
from kcg.unexpected import looking

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.optimize.device import Device
    from kcg.predictor.interface import Predictor

KEEPS: Final = 0.02
"""Of what all kernels are expected to take as tinygrad schedules them, those that take so much in all are left alone:
of 48 kernels of Flux 1024 thirty, of which a beam over each takes a second."""
CHOSEN: Final = 2  # Opts that are compared with tinygrad's own

Draft = Callable[[RegionWork], Sequence[Schedule]]
"""The Opts of a kernel that are expected to be fastest, best first."""


def expect_kernels(
    works: Sequence[RegionWork],
    predictor: Predictor,
    draft: Draft,
    *,
    device: Device,
    until: float | None,
    show: Callable[[int], object],
) -> bool:
    """Know of each kernel what is expected of the schedules that are chosen of it; whether there was time for all,
    `until` then, by `time.monotonic`. `show` gets how many are done."""
    ordered = sorted(works, key=lambda work: -work.expected_s)
    programs = device.first_programs(ordered)
    rest_s = all_s = sum(work.expected_s for work in ordered)
    for done, work in enumerate(ordered, 1):
        if left_s(until) == 0.0:
            return False
        if work.is_timed and not work.is_expected:  # of a run that goes on: what was seen counts more
            rest_s -= work.expected_s
            show(done)
            continue
        (own_s,) = expected_s(predictor, work.space, [work.space.baseline()])
        seen = firsts_of(work, predictor, programs, until=until)
        drafted: Sequence[Schedule] = ()
        if all(s >= own_s for s in seen.values()) and rest_s > KEEPS * all_s:
            drafted = [one for one in draft(work)[:CHOSEN] if one != work.space.baseline()]
        times = zip(drafted, expected_s(predictor, work.space, drafted), strict=True)
        know(work, {work.space.baseline(): own_s, **dict(times), **seen})
        rest_s -= work.expected_s
        show(done)
    return True


def firsts_of(
    work: RegionWork,
    predictor: Predictor | None,
    programs: Mapping[str, Sequence[Future[Schedule]]],
    *,
    until: float | None,
) -> dict[Schedule, float]:
    """What is expected of the first programs of a region that compiled until then, in seconds."""
    from kcg.predictor.cost import guiding

    found: dict[Schedule, float] = {}
    done, _ = wait(programs.get(work.id, ()), timeout=left_s(until))
    for schedule in (one.result() for one in done if not has_failed(one)):
        space = work.others[schedule.kind]
        with looking("what a program is expected to take"):
            (found[schedule],) = expected_s(guiding(space, predictor), space, [schedule])
    return found


def expected_s(predictor: Predictor, space: Space, schedules: Sequence[Schedule]) -> list[float]:
    """What is expected of schedules, in seconds."""
    return [one.runtime_s for one in judge_of(predictor, space).predict(schedules)] if schedules else []


def know(work: RegionWork, expected_s: Mapping[Schedule, float]) -> None:
    """Know what is expected of some schedules, as if it had been seen; not of what was seen."""
    for number, (schedule, seconds) in enumerate(expected_s.items()):
        seen = work.observed(schedule)
        if math.isfinite(seconds) and (seen is None or is_expected(seen)):
            work.keep(Observation(schedule, Status.OK, seconds, binary_hash=f"{EXPECTED}{schedule.kind}:{number}"))
