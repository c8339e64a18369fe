"""What a store has is judged as any finalist before the search, used only where it proves true, and never searched.

Verification is real; samples are given, since no test may depend on time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.cli import counted
from kcg.errors import DataError, ExitCode
from kcg.judge.paired import Comparisons
from kcg.kernel.kinds import kind_of
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.measure.jobs import CompileOutcome, PairedJob, PairedOutcome
from kcg.measure.service import MeasureService
from kcg.optimize import region_search
from kcg.optimize.budget import Budget
from kcg.optimize.search import share_efforts
from kcg.optimize.settings import EFFORTS, Settings
from kcg.optimize.stored import Stored, covered
from kcg.optimize.work import Candidates, RegionWork, missing_share
from kcg.report.result import read_result
from kcg.search.problem import Observation
from kcg.store.entry import Entry, Nothing, Timed
from kcg.store.folder import Store, file_name
from kcg.store.location import open_store
from kcg.types import RegionResult, Result, Schedule, ScheduleKind, Status, content_id
from tests.optimize_run import Begun, begun, optimized
from tests.small_result import unlike_baseline

SCRIPT = Path(__file__).parents[1] / "scripts" / "two_layers.py"
NORM = SCRIPT.with_name("norm_steps.py")
ARGUMENTS = ("--measurements", "4", "--search", "random", "--no-script-check", "--device")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A run whose kernels are planned."""
    folder = tmp_path_factory.mktemp("out")
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, script_args=("8",))
    with begun(settings) as started:
        yield started


@pytest.fixture
def works(opened: Begun) -> list[RegionWork]:
    return [RegionWork(work.call, work.space) for work in opened.works]


@pytest.fixture(autouse=True)
def twice_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is right is twice as fast as tinygrad's own, to the nanosecond."""
    really = MeasureService.compare_paired

    def compare_paired(service: MeasureService, job: PairedJob, **given: Any) -> Future[PairedOutcome]:
        seen, asked = Future[PairedOutcome](), really(service, job, **given)
        asked.add_done_callback(lambda done: seen.set_result(_given(done.result())))
        return seen

    monkeypatch.setattr(MeasureService, "compare_paired", compare_paired)


def _given(outcome: PairedOutcome) -> PairedOutcome:
    if outcome.finalist_verification is None or not outcome.finalist_verification.passed:
        return outcome
    slow, fast = (2e-6,) * 9, (1e-6,) * 9
    return replace(
        outcome,
        noisy="",
        baseline_cold_s=slow,
        again_cold_s=slow,
        finalist_cold_s=fast,
        baseline_warm_s=slow,
        finalist_warm_s=fast,
    )


def entry_of(opened: Begun, work: RegionWork, schedule: Schedule | None = None, *, claim: float = 2.0) -> Entry:
    """What a store has of a region: a schedule that is said to be so many times as fast as tinygrad's own."""
    target, toolchain = opened.device.service.facts
    chosen = unlike_baseline(work.space) if schedule is None else schedule  # type: ignore[arg-type]
    return Entry(
        region=work.call.region,
        ends=work.bindings,
        target=target,
        toolchain=toolchain,
        baseline=Timed(work.space.baseline(), 2e-6, (2e-6, 2e-6)),
        chosen=Timed(chosen, 2e-6 / claim, (2e-6 / claim, 2e-6 / claim)),
        name="r_8_8",
        rules=("a rule",),
        seeds=3,
        kcg_version="0.1.0",
        revision="",
        dirty=None,
        created="2026-11-26T12:00:00+00:00",
    )


def store_of(folder: Path, *entries: Entry) -> Store:
    store = open_store(str(folder / "tuned"), new=True)
    assert all(store.add(entry) for entry in entries)
    return store


def verified(opened: Begun, works: list[RegionWork], store: Store) -> tuple[dict[str, RegionResult], Stored, list[str]]:
    """What was judged of what a store has, and what was said."""
    judged, stored, before = dict[str, RegionResult](), Stored(store, allow_tf32=False), len(opened.log.warnings)
    estimates = opened.estimates(opened.untimed())
    stored.verify(works, estimates, device=opened.device, log=opened.log, judged=judged)
    return judged, stored, opened.log.warnings[before:]


def test_what_proves_true_is_a_result_and_is_not_searched(
    opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    work, *others = works
    store = store_of(tmp_path, entry := entry_of(opened, work))
    judged, _, said = verified(opened, works, store)
    assert not said and set(judged) == {work.id}
    row = judged[work.id]
    assert row is work.stored and row.outcome == "improved" and row.chosen.schedule == entry.chosen.schedule
    assert row.store == store.location and row.note.startswith(f"from the store {store.location}; 2.00×")
    assert row.chosen.verification.passed and len(row.chosen.verification.rules) > 4, "every rule of a finalist"
    assert work.is_timed and work.best_s == row.chosen.cold_s, "known by what was measured"
    assert not opened.estimates(opened.untimed()).is_due(work)
    assert not any(other.stored or other.known for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["chosen", "baseline"])
def test_a_sealed_entry_that_cannot_be_read_is_one_warning_and_its_region_is_searched(
    side: str, opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    work, other, *_ = works
    store = store_of(tmp_path, entry := entry_of(opened, work), entry_of(opened, other))
    file = store.folder / entry.key / file_name(entry)
    document = json.loads(file.read_text())
    document[side]["schedule"] = {"kind": "parts", "body": "garbage"}
    document["id"] = content_id({name: value for name, value in document.items() if name != "id"})
    file.write_text(json.dumps(document))
    judged, _, (line,) = verified(opened, works, store)
    assert str(file) in line and f"{side}.schedule" in line and "\n" not in line
    assert set(judged) == {other.id} and work.stored is None and opened.estimates(opened.untimed()).is_due(work)


POISON = {
    "slower than it claims": (1000.0, None, "slower than claimed"),
    "no schedule of this kernel": (2.0, schedule_of((Opt("UPCAST", 7, 64),)), "does not apply"),
}


@pytest.mark.parametrize("name", POISON)
def test_a_poisoned_entry_is_one_warning_and_its_region_as_if_there_were_none(
    name: str, opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    claim, schedule, words = POISON[name]
    work = works[0]
    store = store_of(tmp_path, entry := entry_of(opened, work, schedule, claim=claim))
    judged, stored, said = verified(opened, works, store)
    (line,) = said
    assert words in line and "\n" not in line and str(store.folder / entry.key / file_name(entry)) in line
    assert not judged and work.stored is None and not work.known, "nothing of its claims is left"
    assert stored.refuted[work.id] == [store.folder / entry.key / file_name(entry)]


def test_a_wrong_schedule_is_refuted(
    opened: Begun, works: list[RegionWork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(outcome: PairedOutcome) -> PairedOutcome:
        right = outcome.finalist_verification
        return (
            outcome
            if right is None
            else replace(
                outcome,
                finalist_verification=replace(right, passed=False, reason="output 3 is 0.5 and not 0.7"),
                baseline_cold_s=(),
                finalist_cold_s=(),
            )
        )

    monkeypatch.setitem(globals(), "_given", wrong)
    judged, _, said = verified(opened, works, store_of(tmp_path, entry_of(opened, works[0])))
    assert len(said) == 1 and "is wrong: output 3 is 0.5 and not 0.7" in said[0]
    assert not judged and not works[0].known


def test_noise_refutes_nothing_and_the_search_goes_on_from_there(
    opened: Begun, works: list[RegionWork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(outcome: PairedOutcome) -> PairedOutcome:
        return replace(_given_before(outcome), again_cold_s=(7e-6,) * 9, finalist_cold_s=(1e-6, 3e-6, 4e-6) * 3)

    _given_before = _given
    monkeypatch.setitem(globals(), "_given", noisy)
    entry = entry_of(opened, works[0])
    judged, stored, said = verified(opened, works, store_of(tmp_path, entry))
    assert said == ["1 schedule of the store could not be told from tinygrad's own: the search goes on from there"]
    assert not judged and not stored.refuted and not works[0].known
    stored.measure_unclear(works, device=opened.device)
    assert set(works[0].known) == {entry.chosen.schedule}, "by a measurement of its own"


def test_what_was_found_and_verified_is_added_and_takes_the_place_of_what_was_not_true(
    opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    work = works[0]
    store = store_of(tmp_path, entry_of(opened, work, claim=1000.0))
    _, stored, _ = verified(opened, works, store)
    true = entry_of(opened, work, schedule := work.space.actions(work.space.start())[0].schedule)
    judged, again, _ = verified(opened, works, store_of(tmp_path / "other", true))
    row = replace(judged[work.id], store="")
    result: Result = opened.result(None, _results(works))
    assert again.add(result, judged, log=opened.log) == 0, "what came from a store is there"
    assert stored.add(result, {work.id: row}, log=opened.log) == 1
    (kept,) = [one.entry for one in store.all()]
    assert kept is not None and kept.chosen.schedule == schedule and kept.speed_up == pytest.approx(2)
    read_only = Stored(replace(store, writable=False), allow_tf32=False)
    assert read_only.add(result, {work.id: row}, log=opened.log) == 0


def test_a_hit_that_was_provisional_is_completed_and_kept_as_verified_or_refuted(
    opened: Begun, works: list[RegionWork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = works[0]
    entry = replace(entry_of(opened, work), launches=1000, launches_due=10_000)
    store = store_of(tmp_path, entry)
    judged, stored, _ = verified(opened, works, store)
    row, result = judged[work.id], opened.result(None, _results(works))
    assert row is work.stored and stored.add(result, judged, log=opened.log) == 0
    passed = replace(row, chosen=replace(row.chosen, launches=10_000, launches_due=10_000))
    assert stored.add(result, {work.id: passed}, log=opened.log) == 1
    (kept,) = [one.entry for one in store.all()]
    assert kept is not None and kept.chosen.schedule == entry.chosen.schedule and not kept.provisional
    work.refuse(entry.chosen.schedule, "wrong under stress: element 7")
    with monkeypatch.context() as gone:  # as a network share: no run ends for that
        gone.setattr(Store, "_of_key", unreadable)
        stored.refute({work.id: entry.chosen.schedule}, works, log=opened.log)
    stored.refuted.clear()
    stored.refute({work.id: entry.chosen.schedule}, works, log=opened.log)
    assert len(stored.refuted[work.id]) == 1 and "wrong under stress: element 7" in opened.log.warnings[-1]
    assert not list(store.paths()), "the next one to use the store may not see that launch"


def unreadable(store: Store, key: str) -> list[Path]:
    raise DataError(f"cannot read the store {store.location}: Stale file handle")


def _results(works: list[RegionWork]) -> Any:
    from kcg.optimize.judging import as_judged

    return as_judged(works, {}, why="a test")


@pytest.mark.slow
def test_a_search_has_the_share_of_what_is_missing(opened: Begun, works: list[RegionWork], tmp_path: Path) -> None:
    assert missing_share(works) == 1.0
    verified(opened, works, store_of(tmp_path, *(entry_of(opened, work) for work in works)))
    assert missing_share(works) == 0.0
    works[0].stored = None
    assert 0 < missing_share(works) < 1


# ---- that nothing was found


def nothing_of(opened: Begun, work: RegionWork, search_s: float, share: float = 1.0) -> Nothing:
    target, toolchain = opened.device.service.facts
    place = {"region": work.call.region, "ends": work.bindings, "target": target, "toolchain": toolchain}
    made = {"kcg_version": "0.1.0", "revision": "", "dirty": None, "created": "2026-11-26T12:00:00+00:00"}
    return Nothing(**place, **made, search_s=search_s, share=share, tried=7, search="mcts", allow_tf32=False)


def timed(works: list[RegionWork]) -> None:
    for work in works:
        work.keep(Observation(work.space.baseline(), Status.OK, 2e-6, binary_hash="own"))


def left_out(
    opened: Begun, works: list[RegionWork], folder: Path, search_s: float, share: float = 1.0, **budget: float
) -> list[bool]:
    """Which kernels are left out of a search where a store has that one of so long found nothing for any."""
    store = open_store(str(folder / f"{search_s} {share} {budget}"), new=True)
    assert all(store.add_nothing(nothing_of(opened, work, search_s, share)) for work in works)
    stored, settings = Stored(store, allow_tf32=False), opened.settings
    stored.look_for_nothing(works, settings, device=opened.device, log=opened.log)
    assert set(stored.claims) == {work.id for work in works}
    estimates = opened.estimates(opened.untimed())
    if budget:
        given = replace(settings, **budget)  # type: ignore[arg-type]
        now = Budget(started=time.monotonic(), limit_s=given.budget_s, measurements=None)
        estimates = replace(estimates, settings=given, budget=now)
    stored.leave_out(works, estimates, log=opened.log)
    return [bool(work.nothing) for work in works]


def test_a_kernel_is_left_out_unless_it_would_be_searched_for_longer(
    opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    timed(works)
    default_s = EFFORTS["normal"].search_s
    assert not any(left_out(opened, works, tmp_path, default_s / 2))
    assert not any(left_out(opened, works, tmp_path, default_s, share=1e-3)), "where it took little"
    assert missing_share(works) == 1.0
    assert not any(left_out(opened, works, tmp_path, default_s, budget_s=1e6)), "a longer budget searches again"
    assert all(left_out(opened, works, tmp_path, 0.9 * default_s))
    assert missing_share(works) == 0.0 and not any(work.is_missing for work in works)
    assert all("an earlier search found nothing faster among 7 others" in work.nothing for work in works)


def test_what_a_search_of_a_part_stands_for_is_as_of_the_whole(works: list[RegionWork]) -> None:
    timed(works)
    share_efforts(works, 30.0)
    assert {work.search_s for work in works} == {30.0} and sum(work.share for work in works) == pytest.approx(1.0)
    part, *rest = works
    for work in rest:
        work.nothing = "a store says so"
    share_efforts(works, 30.0 * part.share)
    assert part.search_s == pytest.approx(30.0) and part.share < 1


def test_a_run_that_counts_its_measurements_does_not_ask_for_how_long_was_searched(
    opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    store = open_store(str(tmp_path / "tuned"), new=True)
    store.add_nothing(nothing_of(opened, works[0], 1e6))
    stored, counting = Stored(store, allow_tf32=False), replace(opened.settings, measurements=4)
    stored.look_for_nothing(works, counting, device=opened.device, log=opened.log)
    assert not stored.claims


def test_only_what_was_searched_and_clearly_has_nothing_is_kept_as_such(
    opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    work, *others = works
    timed(works)
    share_efforts(works, 30.0)
    result: Result = opened.result(None, _results(works))
    rows = {work.id: row for work, row in zip(works, result.regions, strict=True)}
    faster = unlike_baseline(work.space)  # type: ignore[arg-type]
    work.keep(Observation(faster, Status.OK, 1e-6, binary_hash="faster"))

    def kept(high: float, *, noisy: str = "", left: bool = False) -> set[str]:
        """Which kernels have nothing, where the candidate of the first was compared with that high end."""
        store = open_store(str(tmp_path / f"{high}{noisy}{left}"), new=True)
        seen = SimpleNamespace(
            outcome=SimpleNamespace(noisy=noisy, finalist_cold_s=(1e-6,)), speed_up=(0.9, 1.0, high), is_faster=False
        )
        judged = {name: replace(row, outcome="kept", note="") for name, row in rows.items()}
        settings, compared = opened.settings, {(work.id, faster): seen}
        if left:
            compared.clear()
        stored = Stored(store, allow_tf32=False)
        stored.add_nothing(result, works, settings, judged=judged, seen=compared, log=opened.log)  # type: ignore[arg-type]
        return {one.nothing.region.id for one in store.all() if one.nothing is not None}

    rest = {other.call.region.id for other in others}
    assert kept(1.01) == rest | {work.call.region.id}
    assert kept(1.3) == kept(1.01, noisy="it slowed down") == kept(1.0, left=True) == rest
    others[0].nothing = "a store says so"
    assert kept(1.02) == rest - {others[0].call.region.id} | {work.call.region.id}, "only what this run searched"


def test_a_region_that_what_the_store_has_leaves_no_calls_for_is_covered(works: list[RegionWork]) -> None:
    kernels, region = works, RegionWork(works[0].call, works[0].space, proposed=True)
    assert not covered(region, kernels)
    held = RegionWork(works[0].call, works[0].space, proposed=True)
    held.stored = object()  # type: ignore[assignment]
    assert covered(region, [*kernels, held])


class Tiles:
    """As much of a space of tile programs as judging asks for."""

    def check(self, schedule: Schedule) -> None:
        pass

    def tile(self, schedule: Schedule) -> tuple[int, ...]:
        return TileParameters.from_json(schedule.body).tile

    def legend(self, schedule: Schedule) -> str:
        return "rows"


@pytest.mark.slow
def test_a_region_of_several_kernels_is_verified_before_others_are_searched_and_planned_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in of the same parts takes the place of its program, which a CPU has none of."""
    settings = Settings(str(NORM), device=os.environ["DEV"], measurements=5, folder=tmp_path / "out", regions=True)
    tile = Schedule(ScheduleKind.TILE, TileParameters("rows", ((0,),), (16,), reduce_tile=128).to_json())
    monkeypatch.setattr(Comparisons, "compare_jointly", lambda *_: True)  # two by two, with the samples given here
    propose = region_search.works_of
    with begun(settings) as run:
        estimates, chosen = run.estimates(run.measured(meanwhile=run.guide.read)), list[str]()

        def works(*given: Any, **more: Any) -> list[RegionWork]:
            made = propose(*given, **more)
            largest = max(made, key=lambda work: len(work.call.region.kernels))
            largest.others["tile"] = Tiles()  # type: ignore[assignment]
            region, own = largest.call.region, largest.space.baseline()
            compiled = kind_of(own).compile(region, largest.space.neighbours(own)[0], run.device.service.target)
            run.device.service._keep((region.id, tile), CompileOutcome(compiled, 0.1))
            store.add(entry_of(run, largest, tile))
            chosen.append(largest.id)
            return made

        store, judged = open_store(str(tmp_path / "tuned"), new=True), dict[str, RegionResult]()
        monkeypatch.setattr(region_search, "works_of", works)
        totals = list[float | None]()
        monkeypatch.setattr(run.log.progress, "update", lambda **shown: totals.append(shown["total_s"]))
        stored = Stored(store, allow_tf32=False)
        kernels = Candidates(run.works)
        proposed = region_search.propose_regions(
            kernels, estimates, device=run.device, log=run.log, usable=bool, store=stored, judged=judged
        )
        assert proposed is not None and not run.log.warnings, run.log.warnings
        proposed = region_search.search_regions(proposed, run.guide, device=run.device, log=run.log)
        (held,) = [work for work in proposed.works if work.stored]
        assert [held.id] == chosen == list(judged)
        assert totals and 0.0 not in totals, "regions alone are no whole workload"
        row = judged[held.id]
        assert row.store == store.location and row.chosen.schedule == tile and row.chosen.verification.passed
        results = run.judge(proposed.estimates, proposed.candidates).run()
        assert row in results.rows, "and it is not judged again"
        plan, *_ = region_search.variants(results, proposed, run.captured.workload)
        assert {one.region.id for one in plan.rows if one.store} == {row.region.id}


@pytest.mark.slow
def test_regions_that_a_store_has_nothing_for_are_timed_and_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(str(NORM), device=os.environ["DEV"], folder=tmp_path / "out", regions=True)
    propose = region_search.works_of
    store = open_store(str(tmp_path / "tuned"), new=True)
    with begun(settings) as run:
        estimates = run.estimates(run.measured(meanwhile=run.guide.read))

        def works(*given: Any, **more: Any) -> list[RegionWork]:
            made = propose(*given, **more)
            for work in made:
                store.add_nothing(nothing_of(run, work, 1e6))
            return made

        monkeypatch.setattr(region_search, "works_of", works)
        judged: dict[str, RegionResult] = {}
        proposed = region_search.propose_regions(
            Candidates(run.works), estimates, device=run.device, log=run.log, usable=bool,
            store=Stored(store, allow_tf32=False), judged=judged,
        )  # fmt: skip
        assert proposed is not None and not run.log.warnings, run.log.warnings
        proposed = region_search.search_regions(proposed, run.guide, device=run.device, log=run.log)
        assert proposed.works and all(work.baseline_s and work.nothing for work in proposed.works)
        assert not any(work.tried for work in proposed.works)
        assert not any(work.nothing for work in run.works) and not judged


def test_of_a_region_of_several_kernels_nothing_is_found_where_nothing_beats_these(
    opened: Begun, works: list[RegionWork], tmp_path: Path
) -> None:
    work = works[0]
    work.proposed = True
    timed(works)
    share_efforts([work], 30.0)
    result: Result = opened.result(None, _results(works))
    own = result.regions[0]
    parts, tile = (Schedule(kind, "[]") for kind in (work.kind, ScheduleKind.TILE))
    as_parts = replace(own, outcome="improved", chosen=replace(own.chosen, schedule=parts))
    as_tile = replace(as_parts, chosen=replace(own.chosen, schedule=tile))
    work.keep(Observation(unlike_baseline(work.space), Status.OK, 1e-6, binary_hash="as its parts"))  # type: ignore[arg-type]

    def compared(high: float) -> Any:
        outcome = SimpleNamespace(noisy="", finalist_cold_s=(1e-6,))
        return SimpleNamespace(outcome=outcome, speed_up=(0.9, 1.0, high), is_faster=high > 2)

    def kept(row: RegionResult, **highs: float) -> bool:
        seen = {(work.id, {"parts": parts, "tile": tile}[name]): compared(high) for name, high in highs.items()}
        store = open_store(str(tmp_path / f"{row.chosen.schedule.kind} {row.outcome} {highs}"), new=True)
        stored = Stored(store, allow_tf32=False)
        stored.add_nothing(result, [work], opened.settings, judged={work.id: row}, seen=seen, log=opened.log)
        return bool([one for one in store.all() if one.nothing is not None])

    assert kept(replace(own, outcome="kept", note="")), "its parts are what a program of it has to beat"
    work.keep(Observation(tile, Status.OK, 5e-7, binary_hash="a program"))
    assert kept(as_parts, parts=3.0, tile=1.01)
    assert not kept(as_parts, parts=3.0, tile=1.3) and not kept(as_parts, parts=1.0), "noise says nothing"
    assert not kept(as_tile, parts=1.0, tile=1.0)
    assert not kept(replace(own, outcome="not judged", note=""))


def test_what_a_store_cannot_take_is_one_line_and_the_rest_is_there(
    opened: Begun, works: list[RegionWork], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is a schedule or that there is none."""
    timed(works)
    share_efforts(works, 30.0)
    result: Result = opened.result(None, _results(works))
    judged = {work.id: replace(row, outcome="kept", note="") for work, row in zip(works, result.regions, strict=True)}
    store, lines = open_store(str(tmp_path / "tuned"), new=True), list[str]()
    add, first = Store.add_nothing, works[0].call.region.id

    def fails(store: Store, one: Nothing, **more: Any) -> bool:
        if one.region.id == first:
            raise DataError("no place for it")
        return add(store, one, **more)

    monkeypatch.setattr(Store, "add_nothing", fails)
    monkeypatch.setattr(opened.log.progress, "line", lambda line, **_: lines.append(line))
    Stored(store, allow_tf32=False).add_nothing(result, works, opened.settings, judged=judged, seen={}, log=opened.log)
    assert {one.nothing.region.id for one in store.all() if one.nothing} == {w.call.region.id for w in works[1:]}
    assert lines == ["kcg: the store does not get for what nothing was found: no place for it"]


# ---- a run


@pytest.mark.slow
def test_a_run_uses_a_store_and_says_so(opened: Begun, tmp_path: Path) -> None:
    entry = entry_of(opened, opened.works[0])
    store = store_of(tmp_path, entry)
    done = optimized(
        SCRIPT, *ARGUMENTS, os.environ["DEV"], "--store", store.location, "--report", tmp_path / "out", "--", "8"
    )
    assert done.returncode == ExitCode.UNCHECKED, done.stderr
    result = read_result(tmp_path / "out" / "RESULT.json")
    (row,) = [row for row in result.regions if row.store]
    assert row.region == entry.region and row.chosen.schedule == entry.chosen.schedule
    assert row.chosen.verification.passed and row.measurements == 0, "it was not searched"
    many = counted(len(result.regions) - 1, "kernel")
    assert f"timing {many} as tinygrad schedules them" in done.stderr, "the one of the store is timed already"
    assert f"1 schedule from the store {store.location}, verified here" in " ".join(done.stdout.split())
    assert f"from the store {store.location}" in (tmp_path / "out" / "report.html").read_text()
    assert entry in [one.entry for one in store.all()]


@pytest.mark.slow
def test_a_run_does_not_search_what_a_store_says_has_nothing_and_a_wrong_one_costs_no_more_than_a_gain(
    opened: Begun, tmp_path: Path
) -> None:
    """Whatever a store says: tinygrad's own schedules stay, with the times of this run."""
    store = open_store(str(tmp_path / "tuned"), new=True)
    for one in opened.works:
        store.add_nothing(nothing_of(opened, one, 1e6))
    script = (SCRIPT, "--no-script-check", "--device", os.environ["DEV"], "--store", store.location)
    done = optimized(*script, "--report", tmp_path / "out", "--", "8")
    assert done.returncode == ExitCode.NOTHING_IMPROVED, done.stderr
    result = read_result(tmp_path / "out" / "RESULT.json")
    assert result.complete and result.predictor == "", "nothing was missing, so nothing that guides a search was read"
    for row in result.regions:
        assert (row.outcome, row.measurements) == ("kept", 1) and "nothing faster among 7 others" in row.note
        assert row.chosen == row.baseline and row.baseline.cold_s > 0
    assert {one.nothing.search_s for one in store.all() if one.nothing is not None} == {1e6}, "none is added"


@pytest.mark.parametrize("location", ["hf://owner/name", "file"])
def test_a_location_that_is_no_store_ends_a_run_before_it_begins(location: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    named = location if location.startswith("hf") else tmp_path / location
    done = optimized(SCRIPT, "--store", named, "--report", tmp_path / "out")
    assert done.returncode == 2 and done.stderr.count("kcg: ") == 1 and not (tmp_path / "out").exists()
