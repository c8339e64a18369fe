"""What a run chooses that measures nothing: by what is expected of programs, Opts and regions of several kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import Unsupported, kind_named, other_kinds, space_of
from kcg.kernel.opts.schedule import RAW
from kcg.optimize import expecting, judging, proposing, region_search
from kcg.optimize.outlook import outlook_of
from kcg.optimize.region_plans import among, propose
from kcg.optimize.work import EXPECTED, Candidates, RegionWork, total_s
from kcg.predictor.roofline import Roofline
from kcg.search.problem import Observation
from kcg.types import Region, Schedule, ScheduleKind, Status, WorkloadCall
from tests.captured import captured
from tests.kernels import empty, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS

H200 = KNOWN_TARGETS["sm_90"]
(PRODUCT,) = kernels_of(empty(1024, 1024, dtype="float16") @ empty(1024, 1024, dtype="float16"))
MATMUL, LOOKUP = Region((kernel_of(PRODUCT),)), example_region("embedding")


def works_of(calls: Sequence[WorkloadCall]) -> list[RegionWork]:
    """With the spaces of one NVIDIA H200, which need no GPU."""
    works = [RegionWork(call, space_of(call.region, H200)) for call in calls]
    for work in works:
        for name in other_kinds(work.call.region, H200):
            found = kind_named(name).space(work.call.region, H200)
            if not isinstance(found, Unsupported):
                work.others[name] = found
    return works


def first_programs(works: Sequence[RegionWork]) -> dict[str, list[Future[Schedule]]]:
    """As if all of them compiled."""
    found: dict[str, list[Future[Schedule]]] = {}
    for work in works:
        for space in work.others.values():
            (one := Future[Schedule]()).set_result(space.start())
            found.setdefault(work.id, []).append(one)
    return found


def fails(works: Sequence[RegionWork]) -> dict[str, list[Future[Schedule]]]:
    (bad := Future[Schedule]()).set_exception(TimeoutError())
    return {work.id: [bad] for work in works}


def chosen(works: Sequence[RegionWork], *, programs: Any = first_programs, until: float | None = None) -> list[str]:
    """The kernels over whose Opts a beam went, by id."""
    asked = list[str]()

    def draft(work: RegionWork) -> list[Schedule]:
        asked.append(work.call.region.id)
        return [RAW, work.space.baseline()]

    device: Any = SimpleNamespace(first_programs=programs)
    done = list[int]()
    was_time = expecting.expect_kernels(works, Roofline(), draft, device=device, until=until, show=done.append)
    assert was_time == (until is None) and done == ([*range(1, len(works) + 1)] if was_time else [])
    return asked


def test_a_program_that_is_expected_to_be_faster_than_tinygrads_own_is_chosen() -> None:
    (work,) = works_of([WorkloadCall(MATMUL, 3)])
    assert chosen([work]) == []
    assert [one.kind for one in work.found] == [ScheduleKind.TILE] and 0 < work.best_s < work.baseline_s
    assert all(seen.binary_hash.startswith(EXPECTED) for known in work.seen.values() for seen in known.values())
    assert work.as_searched(work.space.baseline()).cold_s == 0, "nothing was seen of it"


def test_a_beam_goes_over_opts_where_no_other_program_compiles_or_is_expected_to_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (work,) = works_of([WorkloadCall(MATMUL, 1)])
    assert chosen([work], programs=fails) == [MATMUL.id] and RAW in work.known
    (work,) = works_of([WorkloadCall(MATMUL, 1)])
    monkeypatch.setattr(expecting, "firsts_of", lambda work, *_, until: {work.others["tile"].start(): 1e3})
    assert chosen([work]) == [MATMUL.id]


def test_what_is_expected_to_take_little_keeps_tinygrads_own_schedule() -> None:
    works = works_of([WorkloadCall(MATMUL, 10_000), WorkloadCall(LOOKUP, 1)])
    assert chosen(works, programs=fails) == [MATMUL.id]
    assert works[1].known.keys() == {works[1].space.baseline()} and not works[1].found


def test_what_was_seen_in_an_earlier_run_is_not_replaced() -> None:
    """Times that were measured do not stand beside what is expected of others."""
    (work,) = works_of([WorkloadCall(MATMUL, 1)])
    seen = Observation(work.space.baseline(), Status.OK, 4e-5, "binary")
    work.keep(seen)
    assert chosen([work]) == [] and not work.is_expected and work.known == {seen.schedule: seen} and not work.by_kind
    expecting.know(work, {seen.schedule: 1e-9})
    assert work.known == {seen.schedule: seen}


def test_what_is_expected_is_no_outlook_of_a_search() -> None:
    (work,) = works_of([WorkloadCall(MATMUL, 3)])
    chosen([work])
    row: Any = SimpleNamespace(region=MATMUL, calls=3)
    assert work.saving_s > 0 and outlook_of([work], {}, [row], {}).unjudged == 0


def test_where_the_budget_ends_the_rest_is_not_looked_at() -> None:
    (work,) = works_of([WorkloadCall(MATMUL, 1)])
    assert chosen([work], until=0.0) == [] and not work.known


@pytest.mark.slow
def test_regions_of_flux_are_chosen_by_what_is_expected_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small part of its kernels, so that looking for programs takes seconds: the best expected plan has some, and
    is expected to be faster than every kernel alone."""
    flux = captured("flux", "1024")
    everything = propose(flux)
    few = sorted(everything.candidates.items(), key=lambda one: -everything.calls[one[0]])[:4]
    kernels = {kernel.id for _, candidate in few for kernel in candidate.region.kernels}
    works = works_of([call for call in flux.calls if call.region.id in kernels])
    chosen(works)
    proposals = among(everything, {candidate.region for _, candidate in few}.__contains__)
    monkeypatch.setattr(proposing.Proposing, "found", lambda self, until=None: (everything, proposals))
    log: Any = SimpleNamespace(jobs=SimpleNamespace(doing=lambda *what: contextlib.nullcontext()), warn=pytest.fail)
    device: Any = SimpleNamespace(
        plan=lambda workload: works_of(workload.calls),
        journal=None,
        service=SimpleNamespace(target=H200),
    )
    estimates: Any = SimpleNamespace(captured=SimpleNamespace(workload=flux), regions_until=lambda: None)
    monkeypatch.setattr(region_search, "with_regions", lambda _, found: SimpleNamespace(works=[*works, *found]))
    device.first_programs = device.starts = first_programs
    whole = region_search.expect_regions(Candidates(works), estimates, Roofline(), device=device, log=log)
    assert whole is not None
    has, asked = region_search.needed_by_plans(whole)({}), list[str]()
    bad = next(candidate.region for _, candidate in few if candidate.region.id in has)

    def all_but_one(wanted: Sequence[RegionWork]) -> dict[str, list[Future[Schedule]]]:
        asked.extend(work.call.region.id for work in wanted)
        return first_programs(wanted) | fails([work for work in wanted if work.call.region == bad])

    device.first_programs = all_but_one
    found = region_search.expect_regions(Candidates(works), estimates, Roofline(), device=device, log=log)
    assert found is not None and found.timed
    needed = region_search.needed_by_plans(found)({})
    assert needed and needed | {bad.id} <= set(asked) <= needed | has, "of others no program is compiled"
    assert bad not in {work.call.region for work in found.works}, "its program does not compile"
    assert all(candidate.region != bad for candidate in found.proposals.candidates.values())
    assert all("is expected to be faster" in judging._claim(work) and work.is_expected for work in found.timed)
    for work in found.timed:
        assert work.proposed and work.best_s < min(one.time_s for one in work.known.values()) <= work.baseline_s
    assert needed <= {work.call.region.id for work in found.timed}
    assert sum(work.saving_s for work in found.timed if work.call.region.id in needed) < (total_s(works) or 0.0)
