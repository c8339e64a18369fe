"""Tile programs beside Opts, as far as no GPU is needed: what is judged first, in what turns, and what becomes of it.

Where a tile program has to run, its schedule stands for a program of Opts that was compiled before: so inputs,
verification and timing are real. Where one has to win or lose, the samples are given, since no test may depend on time.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.cli import pip_install
from kcg.judge.finalists import Judge, without
from kcg.judge.kept import Side
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import Unsupported, describe, kind_named, made_by
from kcg.kernel.tile import targets
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.parameters import CONTRACTION, PIPELINED, TMA, TileParameters
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.measure import stress
from kcg.measure.jobs import CompileOutcome, PairedOutcome, StressOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService
from kcg.optimize.ahead import Ahead
from kcg.optimize.estimates import Estimates, Pace
from kcg.optimize.judging import Judging, as_judged
from kcg.optimize.search import HOPELESS, _Search
from kcg.optimize.settings import Settings, check_search
from kcg.optimize.work import Candidates, RegionWork
from kcg.predictor.roofline import Roofline
from kcg.search.allocation import Allocator, Limits
from kcg.search.problem import Ledger, Observation
from kcg.types import Measurement, Region, Schedule, Status, Variables, Verification
from tests.faults import bad_jobs
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.optimize_run import Begun, begun

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"
RIGHT = Verification(True, rules=("float64 reference at sampled points",), seeds=3)
PLAIN = TileParameters(CONTRACTION, ((0,), (1,)), (16, 16), reduce_tile=16, fast_math=False)
FAST, PLAIN_TILE, BY_TMA = map(schedule_of, (replace(PLAIN, fast_math=True), PLAIN, replace(PLAIN, loads=TMA)))

IN_GLUON = schedule_of(replace(PLAIN, form=PIPELINED, loads=TMA, persistent=1))


class Tiles:
    """As much of a space of tile programs as judging asks for."""

    def exact(self, schedule: Schedule) -> Schedule | None:
        p = TileParameters.from_json(schedule.body)
        return schedule_of(replace(p, fast_math=False)) if p.fast_math and schedule == FAST else None

    def tile(self, schedule: Schedule) -> tuple[int, ...]:
        return TileParameters.from_json(schedule.body).tile

    def legend(self, schedule: Schedule) -> str:
        return "matmul; tiles of 16 × 16"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """A run whose baselines are timed."""
    folder = tmp_path_factory.mktemp("out")
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=folder, script_args=("16",))
    with begun(settings) as started:
        started.measured()
        yield started


@pytest.fixture
def work(opened: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RegionWork:
    """A region of which a search has found faster Opts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(opened.device, "failed_under_stress", {})
    of = opened.works[0]
    known = {of.space.baseline(): of.known[of.space.baseline()]}
    fresh = RegionWork(of.call, of.space, {"tile": Tiles()}, {of.kind: known}, own=of.own)  # type: ignore[dict-item]
    fresh.keep(seen(opts_of(fresh), 0.5 * of.baseline_s, "opts"))
    return fresh


def opts_of(work: RegionWork) -> Schedule:
    steps = [action.schedule for action in work.space.actions(work.space.start())]
    return next(s for s in steps if s != work.space.baseline())


def seen(schedule: Schedule, seconds: float, binary: str, status: Status = Status.OK) -> Observation:
    return Observation(schedule, status, seconds if status == Status.OK else None, binary_hash=binary)


def found_tile(opened: Begun, work: RegionWork, schedule: Schedule, *, share: float = 0.1) -> None:
    """A search found it to take that share of the baseline's time; its program is one of Opts."""
    work.keep(seen(schedule, share * work.baseline_s, schedule.id))
    stand_in(opened, work, schedule)


def stand_in(opened: Begun, work: RegionWork, schedule: Schedule) -> None:
    count = sum(s.kind == "tile" for _, s in opened.device.service._kept) + 1
    steps = [a.schedule for a in work.space.actions(work.space.start()) if a.schedule not in work.known]
    compiled = compile_schedule(work.call.region, steps[count % len(steps)], opened.device.service.target)
    opened.device.service._keep((work.call.region.id, schedule), CompileOutcome(compiled, 0.1))


# ---- what a search leaves


def test_on_a_cpu_only_opts_are_searched(opened: Begun) -> None:
    assert all(not work.others and not work.searched for work in opened.works)


def test_behind_those_that_differ_in_little_stands_one_with_another_tile(work: RegionWork) -> None:
    warps = [schedule_of(replace(PLAIN, num_warps=count)) for count in (1, 2, 4, 8)]
    other = [schedule_of(replace(PLAIN, tile=(32, 16), num_warps=count)) for count in (2, 4)]
    for place, schedule in enumerate((*warps, *other)):
        work.keep(seen(schedule, (0.1 + 0.05 * place) * work.baseline_s, schedule.id))
    assert work.other_candidates == [*warps[:2], other[0]], "all of a tile may be wrong alike"


def test_the_exact_program_stands_behind_one_of_less_accurate_functions(opened: Begun, work: RegionWork) -> None:
    assert work.firsts == [work.space.baseline(), opts_of(work)] and work.other_candidates == []
    work.keep(seen(FAST, 0.1 * work.baseline_s, "fast"))
    work.keep(seen(BY_TMA, 0.2 * work.baseline_s, "tma"))
    assert work.other_candidates == [FAST, PLAIN_TILE, BY_TMA], "also one that was not measured"
    assert work.firsts == [work.space.baseline(), opts_of(work), FAST]
    assert work.best_s == 0.1 * work.baseline_s and work.saving_s == pytest.approx(
        work.call.calls * 0.9 * work.baseline_s
    )
    work.keep(seen(FAST, math.nan, "fast", Status.WRONG))
    assert work.other_candidates == [BY_TMA]
    work.keep(seen(BY_TMA, 0.6 * work.baseline_s, "tma"))
    assert work.other_candidates == [], "slower than the Opts"
    name, legend = work.named(BY_TMA)
    assert name == work.space.name(work.space.baseline()) and legend == "matmul; tiles of 16 × 16"


def test_nothing_that_was_not_verified_is_in_the_result_of_a_run_that_ended_early(
    opened: Begun, work: RegionWork
) -> None:
    work.keep(seen(BY_TMA, 0.1 * work.baseline_s, "tma"))
    (row,) = as_judged([work], {}, why="interrupted").rows
    assert row.chosen == row.baseline and row.chosen.schedule == work.space.baseline() and row.outcome == "undecided"
    assert row.note == f"{describe(BY_TMA)} was 10.00× as fast in the search; interrupted: not verified"
    assert as_judged([work], {work.id: (known := replace(row, note="judged"))}, why="").rows == (known,)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize(("named", "many"), [("mcts", 6), ("prior", 6), ("opts=random,tile=hand-coded", 1)])
def test_tile_programs_are_searched_as_named_from_what_they_are_expected_to_gain(
    opened: Begun, monkeypatch: pytest.MonkeyPatch, named: str, many: int
) -> None:
    """A matmul of a GPU, of which tinygrad's own schedule took 50 ms; the device that measures is the analytic cost."""
    region = Region((kernel_of(kernels_of(empty(512, 1024, dtype="float16") @ empty(1024, 768, dtype="float16"))[0]),))
    space, tiles = (kind_named(kind).space(region, KNOWN_TARGETS["sm_90"]) for kind in ("opts", "tile"))
    assert isinstance(tiles, TileSpace) and not isinstance(space, Unsupported)
    work = RegionWork(replace(opened.works[0].call, region=region, calls=3), space, {"tile": tiles})
    own = seen(space.baseline(), 0.05, "own")
    work.keep(own)

    def measure(
        of: RegionWork, batch: Sequence[Schedule], *, stop_above_s: float | None, known_s: float | None
    ) -> list[Future[Observation]]:
        futures = []
        assert known_s is not None and known_s <= of.best_s, "what its cost expected is no surprise"
        for schedule in batch:
            assert stop_above_s == HOPELESS * of.best_s
            future: Future[Observation] = Future()
            future.set_result(
                seen(schedule, predicted_seconds(tiles.kernel, tiles.target, tiles.parameters(schedule)), schedule.id)
            )
            futures.append(future)
            opened.budget.charge(measurements=1)
        return futures

    monkeypatch.setattr(opened.device, "measure", measure)
    monkeypatch.setattr(opened.guide, "predictor", Roofline())
    search = _Search(opened.estimates(opened.untimed()), opened.guide, opened.device, opened.log)
    search.settings = replace(search.settings, search=check_search(named))
    ledger = Ledger(max_measurements=6 + search.ledger.measurements, measurements=search.ledger.measurements)
    monkeypatch.setattr(opened.budget, "ledger", ledger)
    search.ledger = ledger
    allocator = Allocator(ledger, Limits())
    search._enter_other(allocator, work, "tile", place=0, index=0)
    (entry,) = allocator.entries
    assert 0.9 < entry.gain < 1.0, "the cost of its start beside 50 ms"
    allocator.run()
    assert next(iter(work.seen["tile"])) == tiles.start() and len(work.seen["tile"]) == many == work.tried
    if named == "prior":
        chosen = [one for one in work.seen["tile"] if one in tiles.prior()]
        assert chosen == tiles.prior()[: len(chosen)] and len(chosen) >= 5, "one in twenty is drawn"
    assert work.known == {space.baseline(): own}, "the search of Opts knows nothing of them"
    assert entry.best_s == work.best_s == min(o.time_s for o in work.seen["tile"].values())


# ---- one comparison of all kinds


def test_a_joint_comparison_serves_every_pair_and_is_kept(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_tile(opened, work, PLAIN_TILE)
    comparisons = opened.comparisons(opened.estimates(opened.untimed()))
    sides = [comparisons.side(work, schedule) for schedule in work.firsts]
    assert all(isinstance(side, Side) for side in sides)
    whole = [side for side in sides if isinstance(side, Side)]
    comparisons.compare_jointly(work, whole)
    found = dict(comparisons._seen)
    assert len(found) == 4, "three pairs, and the baseline alone"
    for before, after in [*itertools.combinations(whole, 2), (whole[0], None)]:
        outcome = comparisons.compare(work, before, after).outcome
        assert outcome is not None and outcome in found.values(), "no other one was made"
        assert outcome.baseline_verification.passed and len(outcome.again_cold_s) == len(outcome.baseline_cold_s)
        assert (outcome.finalist_verification is None) == (after is None)
    again = opened.comparisons(opened.estimates(opened.untimed(), resumed=True))
    assert again._kept.holds_first(work)
    again.compare_jointly(work, whole)
    assert again._seen == {}, "a run that goes on takes over what this one kept"
    assert not again.compare(work, whole[1], whole[2]).late and again.made == set()
    target, toolchain = opened.device.service.facts
    other = replace(toolchain, assembler="ptxas 13.9.1")
    monkeypatch.setattr(opened.device.service, "_facts", (target, other))
    assert not again._kept.holds(work, work.firsts[1:]) and not again._kept.holds_first(work), "of another assembler"


# ---- who is chosen


def outcome_of(before_s: float, after_s: float | None, *, wrong: str = "") -> PairedOutcome:
    """Samples of two sides that differ from themselves by a thousandth."""

    def samples(seconds: float) -> tuple[float, ...]:
        return tuple(seconds * (1 + 1e-3 * (i % 2)) for i in range(10))

    verified = replace(RIGHT, passed=not wrong, reason=wrong)
    if wrong or after_s is None:
        return PairedOutcome(RIGHT, verified if wrong else None, *([samples(before_s)] * 3 if not wrong else []))
    return PairedOutcome(
        RIGHT, verified, samples(before_s), samples(before_s), samples(before_s), samples(after_s), samples(after_s)
    )


def judged(opened: Begun, work: RegionWork, seconds: dict[Schedule, float], *, wrong: Sequence[Schedule] = ()) -> Judge:
    """A judge that has seen how long each schedule takes, and which are wrong."""
    judge = opened.judge(opened.estimates(opened.untimed())).judge
    values: Variables = work.bounds[0].variables
    for before, after in itertools.permutations(seconds, 2):
        why = "element 0 is NaN" if after in wrong else ""
        judge._comparisons._seen[work.id, values, (before, after)] = outcome_of(
            seconds[before], seconds[after], wrong=why
        )
    return judge


def stressing(opened: Begun, monkeypatch: pytest.MonkeyPatch, wrong: str = "") -> list[Any]:
    """Stress that takes no time; what was asked for."""
    asked: list[Any] = []

    def run(job: Any, *, timeout_s: float) -> Future[StressOutcome]:
        asked.append(job)
        future: Future[StressOutcome] = Future()
        future.set_result(StressOutcome(wrong))
        return future

    monkeypatch.setattr(opened.device.service, "stress", run)
    return asked


def test_where_a_tile_program_wins_the_best_opts_stay(opened: Begun, work: RegionWork) -> None:
    found_tile(opened, work, PLAIN_TILE)
    own, opts = work.space.baseline(), opts_of(work)
    judge = judged(opened, work, {own: 4e-3, opts: 2e-3, PLAIN_TILE: 1e-3})
    row = judge.with_offers(work, judge.compare_found(work), [])
    assert (row.outcome, row.chosen.schedule) == ("improved", PLAIN_TILE)
    assert row.opts is not None and row.opts.schedule == opts and row.opts.verification.passed
    assert row.chosen.name == row.baseline.name, "the kernel's name, not the schedule's"
    assert row.chosen.cold_s == pytest.approx(1e-3, rel=0.01) and row.baseline.cold_s == pytest.approx(4e-3, rel=0.01)


def test_a_tile_program_that_is_no_faster_than_the_opts_is_not_chosen(opened: Begun, work: RegionWork) -> None:
    found_tile(opened, work, PLAIN_TILE)
    own, opts = work.space.baseline(), opts_of(work)
    judge = judged(opened, work, {own: 4e-3, opts: 2e-3, PLAIN_TILE: 2.5e-3})
    row = judge.with_offers(work, judge.compare_found(work), [])
    assert row.chosen.schedule == opts and row.opts is None and "lost to" in row.note


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [("element 7 of buffer 0 is -4.3557e+30, not -inf (seed 3)", "unjudged"), ("", "quarantined"),
     ("element 8 of buffer 0 is 1, not -inf (seed 3)", "quarantined")],
)  # fmt: skip
def test_what_the_unoptimised_kernel_makes_alike_is_no_proof(
    opened: Begun, work: RegionWork, raw: str, outcome: str
) -> None:
    """On wide data the reference may be wrong itself: tinygrad multiplies in another order."""
    reason = "element 7 of buffer 0 is -4.3556e+30, not -inf (seed 3)"
    judge, own, start = (
        opened.judge(opened.estimates(opened.untimed())).judge,
        work.space.baseline(),
        work.space.start(),
    )
    for schedule, why in ((own, reason), (start, raw)):
        found = PairedOutcome(replace(RIGHT, passed=not why, reason=why))
        judge._comparisons._seen[work.id, work.bounds[0].variables, (schedule,)] = found
    row = judge.decide(work, judge._comparisons.compare(work, judge._comparisons.side(work, own), None), [])
    assert row is not None and row.outcome == outcome and row.chosen.schedule == own
    assert reason in row.note and ("makes the same" in row.note) == (outcome == "unjudged")
    assert ("on the same data" in row.note) == (not raw)
    assert row.chosen.verification.wrong == (outcome == "quarantined")


def test_where_fast_functions_are_wrong_the_exact_ones_get_their_turn(opened: Begun, work: RegionWork) -> None:
    found_tile(opened, work, FAST)
    stand_in(opened, work, PLAIN_TILE)
    own, opts = work.space.baseline(), opts_of(work)
    judge = judged(opened, work, {own: 4e-3, opts: 2e-3, FAST: 1e-3, PLAIN_TILE: 1.1e-3}, wrong=[FAST])
    row = judge.with_offers(work, judge.compare_found(work), [])
    assert row.chosen.schedule == PLAIN_TILE and "rejected: wrong: element 0 is NaN" in row.note


@pytest.mark.parametrize(
    ("plain_s", "near", "chosen"),
    [(1e-3, True, PLAIN_TILE), (1.02e-3, True, IN_GLUON), (1e-3, False, IN_GLUON)],
    ids=["as fast", "slower", "slower in the search"],
)
def test_a_program_in_gluon_is_chosen_where_it_is_clearly_faster_than_the_plain_one(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch, plain_s: float, near: bool, chosen: Schedule
) -> None:
    stressing(opened, monkeypatch)
    found_tile(opened, work, IN_GLUON)
    found_tile(opened, work, PLAIN_TILE, share=0.102 if near else 0.11)
    own, opts = work.space.baseline(), opts_of(work)
    judge = judged(opened, work, {own: 4e-3, opts: 2e-3, IN_GLUON: 1e-3, PLAIN_TILE: plain_s})
    row = judge.with_offers(work, judge.compare_found(work), [])
    assert row.chosen.schedule == chosen and row.opts is not None and row.opts.schedule == opts


# ---- stress


@pytest.fixture
def delicate(opened: Begun, work: RegionWork) -> Callable[[], Any]:
    found_tile(opened, work, BY_TMA)
    own, opts = work.space.baseline(), opts_of(work)

    def run() -> Any:
        judge = judged(opened, work, {own: 4e-3, opts: 2e-3, BY_TMA: 1e-3})
        judges.append(judge)
        return judge.with_offers(work, judge.compare_found(work), [])

    judges = list[Judge]()
    run.judges = judges  # type: ignore[attr-defined]
    return run


def test_what_is_chosen_of_delicate_programs_runs_under_stress_once(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = stressing(opened, monkeypatch)
    row = delicate()
    assert row.chosen.schedule == BY_TMA and len(asked) == 1
    assert row.chosen.verification.rules[-1] == f"{stress.PROVISIONAL} launches under stress bitwise equal"
    assert row.chosen.provisional
    assert (row.chosen.launches, row.chosen.launches_due) == (stress.PROVISIONAL, stress.LAUNCHES)
    assert not row.baseline.provisional and row.opts is not None and not row.opts.provisional
    assert delicate().chosen.schedule == BY_TMA and len(asked) == 1, "a pass is kept"


def test_what_fails_under_stress_is_not_chosen(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = stressing(opened, monkeypatch, "of 3000 launches one left another element 7 of buffer 0")
    row = delicate()
    assert row.chosen.schedule == opts_of(work) and row.opts is None
    assert "rejected: wrong under stress: of 3000 launches" in row.note
    assert delicate().chosen.schedule == opts_of(work) and len(asked) == 1, "a failure is kept"


def test_what_failed_under_stress_is_wrong_for_a_run_that_goes_on(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, (target, toolchain) = opened.device, opened.device.service.facts
    binary = device.compiled(work, BY_TMA).binary_hash
    searched = Measurement(
        work.call.region.id,
        BY_TMA,
        target.fingerprint,
        made_by(toolchain, BY_TMA),
        PROTOCOL,
        Status.OK,
        samples_s=(1e-6,),
        binary_hash=binary,
        early_stop=True,
        run_id=device.run_id,
    )
    twin = replace(searched, schedule=IN_GLUON)  # the same program by another name
    device.record([searched, twin])
    asked = stressing(opened, monkeypatch, "of 3000 launches one left another element 7 of buffer 0")
    delicate()
    opened.estimates(opened.untimed()).kept.forget()  # since a whole was wrong, say
    device.failed_under_stress.clear()
    later = RegionWork(work.call, work.space, {"tile": Tiles()}, {}, own=work.own)  # type: ignore[dict-item]
    device._resume([later], opened.journal)
    for schedule in (BY_TMA, IN_GLUON):
        known = later.observed(schedule)
        assert known is not None and known.status == Status.WRONG and "wrong under stress: of 3000" in known.reason
        assert schedule not in later.found
    assert delicate().chosen.schedule == opts_of(work) and len(asked) == 1, "nor is it launched, whoever proposes it"


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        ("killed", "not judged: stress was ended before its 1000 launches: Killed: its process died of SIGKILL"),
        pytest.param(
            "hangs",
            "not judged: stress was ended before its 1000 launches: TimeoutError: no result within 5 s",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "memory",
            "not judged: stress was ended before its 1000 launches: MemoryError: no memory for a copy",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "faults", "rejected: failed under stress: ChildDied: its process died of SIGSEGV", marks=pytest.mark.slow
        ),
    ],
)
def test_what_ends_stress_from_outside_says_nothing_of_the_program(
    opened: Begun,
    work: RegionWork,
    delicate: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    happens: str,
    words: str,
) -> None:
    """It is not chosen, and not called wrong. What its own process does to itself is its own."""
    device = opened.device.service._device
    timeout_s = 5 if happens == "hangs" else 300

    def run(job: Any, **_: Any) -> Future[StressOutcome]:
        return device.submit(bad_jobs.under_stress, job, happens, timeout_s=timeout_s)

    monkeypatch.setattr(opened.device.service, "stress", run)
    monkeypatch.setattr("kcg.optimize.budget.Budget.patience_s", lambda self, expected_s: 600.0)
    row = delicate()
    assert row.chosen.schedule == opts_of(work) and words in row.note, row.note
    device.submit_here(device.replace_child)


def test_what_the_budget_leaves_no_time_to_stress_is_not_chosen(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    never: Future[StressOutcome] = Future()
    monkeypatch.setattr(opened.device.service, "stress", lambda job, *, timeout_s: never)
    monkeypatch.setattr("kcg.optimize.budget.Budget.patience_s", lambda self, expected_s: 0.0)
    row = delicate()
    assert row.chosen.schedule == opts_of(work) and "the budget was over before its" in row.note


def test_stress_that_would_outlast_the_budget_is_not_begun_and_the_opts_are_judged(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, estimates = stressing(opened, monkeypatch), opened.estimates(opened.untimed())
    monkeypatch.setattr(Estimates, "launch_s", lambda self, of, schedule: 1e3)
    monkeypatch.setattr(opened.budget, "limit_s", 1e5)
    assert estimates.comparing_s(work) > 1e5 and Pace(estimates).allows(work, improved=False)
    row = delicate()
    assert not asked and row.chosen.schedule == opts_of(work)
    assert f"not judged: the budget left no time for {stress.PROVISIONAL} launches" in row.note


def test_the_seconds_of_stress_are_reserved_until_it_is_provisional(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = opened.estimates(opened.untimed())
    without_s = estimates.comparing_s(work)
    found_tile(opened, work, PLAIN_TILE)
    plain_s = estimates.comparing_s(work)
    found_tile(opened, work, BY_TMA, share=0.05)
    stress_s = estimates.stress_s(work, BY_TMA)
    assert without_s < plain_s and stress_s >= 0.99 * stress.PROVISIONAL * stress.HOST_S
    assert estimates.stress_s(work, BY_TMA, stress.LAUNCHES) == pytest.approx(stress_s * 10)
    assert estimates.comparing_s(work) > stress_s and estimates.stress_s(work, PLAIN_TILE) == 0.0
    service = opened.device.service
    for values in work.bindings:
        stress.keep_pass(work.call.region, BY_TMA.id, *service.facts, values, launches=stress.PROVISIONAL)
    assert estimates.stress_s(work, BY_TMA) == 0.0
    assert estimates.stress_s(work, BY_TMA, stress.LAUNCHES) == pytest.approx(stress_s * 9)
    for values in work.bindings:
        stress.keep_pass(work.call.region, BY_TMA.id, *service.facts, values)
    assert estimates.stress_s(work, BY_TMA, stress.LAUNCHES) == 0.0


# ---- what is provisional has the rest of its launches later


class Late:
    """Stress that takes no time, as it is asked for; what it finds in launches after so many."""

    def __init__(self, opened: Begun, monkeypatch: pytest.MonkeyPatch, wrong_after: float = math.inf) -> None:
        self.pieces = list[tuple[int, int]]()  # the first launch and the last one of each

        def run(job: Any, *, timeout_s: float) -> Future[StressOutcome]:
            self.pieces.append((job.before + 1, job.before + job.count))
            future: Future[StressOutcome] = Future()
            is_wrong = job.before + job.count > wrong_after
            future.set_result(StressOutcome("one left another element 7 of buffer 0" if is_wrong else ""))
            return future

        monkeypatch.setattr(opened.device.service, "stress", run)
        monkeypatch.setattr(Estimates, "launch_s", lambda self, of, schedule: 1 / 4000)


def provisional_judging(opened: Begun, work: RegionWork, delicate: Callable[[], Any]) -> Judging:
    """A run's judging that has judged this region and nothing else."""
    row = delicate()
    judging = opened.judge(opened.estimates(opened.untimed()), Candidates([work]))
    judging.judge._comparisons._seen = delicate.judges[-1]._comparisons._seen  # type: ignore[attr-defined]
    judging._judged[work.id] = row
    return judging


def test_a_provisional_finalist_has_the_rest_of_its_launches_in_pieces_of_a_second(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(opened, monkeypatch)
    judging = provisional_judging(opened, work, delicate)
    assert late.pieces == [(1, 1000)] and judging._judged[work.id].chosen.provisional
    assert judging._completed([]) == []
    assert late.pieces == [(1, 1000), (1001, 5000), (5001, 9000), (9001, 10_000)]
    one = judging._judged[work.id].chosen
    assert one.schedule == BY_TMA and not one.provisional and one.launches == one.launches_due == stress.LAUNCHES
    assert [r for r in one.verification.rules if stress.UNDER_STRESS in r] == [
        stress.rule(opened.device.service.target)
    ]
    assert delicate().chosen.launches == stress.LAUNCHES and len(late.pieces) == 4, "another run takes it over"


def test_what_fails_in_a_later_launch_falls_back_to_what_else_is_verified(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(opened, monkeypatch, wrong_after=6000)
    judging = provisional_judging(opened, work, delicate)
    assert judging._completed([]) == []
    row = judging._judged[work.id]
    assert (row.outcome, row.chosen.schedule) == ("improved", opts_of(work)) and not row.chosen.provisional
    assert "wrong under stress: one left another element 7" in row.note and judging.failed == {work.id: BY_TMA}
    assert any("is left out: wrong under stress" in line for line in opened.log.warnings)
    assert late.pieces[-1] == (5001, 9000), "it is not asked again"
    key = (work.call.region, row.chosen.binary_hash, *opened.device.service.facts, work.bounds[0].variables)
    assert stress.passed(*key) == 0 and BY_TMA not in work.other_candidates


def test_what_the_budget_leaves_no_time_for_stays_provisional_and_keeps_what_it_passed(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(opened, monkeypatch)
    judging = provisional_judging(opened, work, delicate)
    times = iter([math.inf, math.inf, -math.inf])
    further = judging.judge.further
    monkeypatch.setattr(judging.judge, "further", lambda *a, **k: further(*a, **{**k, "until": next(times)}))
    assert judging._completed([]) == []
    one = judging._judged[work.id].chosen
    assert one.schedule == BY_TMA and one.provisional and one.launches == 9000 and len(late.pieces) == 3
    assert delicate().chosen.launches == 9000, "another run goes on from there"


def beside_a_search(opened: Begun, work: RegionWork, delicate: Callable[[], Any]) -> Ahead:
    """What judges while a search goes on, and has judged this region."""
    estimates = opened.estimates(replace(opened.untimed(), works=[work]))
    ahead = Ahead(opened.device, estimates, log=opened.log, judged={})
    row = ahead.rows[work.id] = ahead._judged[work.id] = delicate()
    ahead._judge = delicate.judges[-1]  # type: ignore[attr-defined]
    assert row.chosen.provisional
    return ahead


def test_while_a_search_leaves_the_device_idle_what_is_provisional_has_more_of_its_launches(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late, idle = Late(opened, monkeypatch), [True, True, False]
    monkeypatch.setattr(MeasureService, "has_device_alone", property(lambda service: idle.pop(0) if idle else True))
    ahead = beside_a_search(opened, work, delicate)
    assert [ahead._further() for _ in range(3)] == [True, True, False], "it is busy"
    assert late.pieces == [(1, 1000), (1001, 2000), (2001, 3000)], "pieces for which a search hardly waits"
    assert ahead.rows[work.id].chosen.launches == 3000 and not ahead._news, "nothing to write"
    while ahead._further():
        pass
    assert not ahead.rows[work.id].chosen.provisional and ahead._news and ahead._verdicts == 0
    work.keep(seen(IN_GLUON, 0.01 * work.baseline_s, "gluon"))
    assert ahead.rows[work.id].chosen.schedule == BY_TMA and not ahead._further()


def test_what_fails_while_a_search_goes_on_gives_way_at_once(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Late(opened, monkeypatch, wrong_after=1500)
    ahead = beside_a_search(opened, work, delicate)
    ahead._beside = True
    assert ahead._further() and not ahead._further()
    row = ahead.rows[work.id]
    assert row.chosen.schedule == opts_of(work) and ahead._news and ahead._verdicts == 1
    assert ahead.failed == {work.id: BY_TMA} and ahead._tried[work.id] == tuple(work.firsts), "it is judged"


def test_without_what_was_chosen_a_region_has_its_best_opts_or_tinygrads_own(
    opened: Begun, work: RegionWork, delicate: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Late(opened, monkeypatch)
    row = delicate()
    opts = without(row, "rejected: wrong under stress: element 7")
    assert (opts.outcome, opts.chosen, opts.opts) == ("improved", row.opts, None) and "element 7" in opts.note
    own = without(replace(row, opts=row.baseline), "")
    assert (own.outcome, own.chosen) == ("kept", row.baseline)


def test_no_seconds_of_stress_are_reserved_for_what_runs_none(
    opened: Begun, work: RegionWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for the parts of a region: what is of the baseline's kind is only compared, whatever is in it."""
    estimates = opened.estimates(opened.untimed())
    assert work.candidates and not work.by_kind
    expected_s = estimates.comparing_s(work)
    monkeypatch.setattr("kcg.optimize.estimates.needs_stress", lambda region, schedule, target: True)
    assert estimates.stress_s(work, work.candidates[0]) > 0 and estimates.comparing_s(work) == expected_s


def test_a_run_says_why_it_searches_opts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that could have tile programs; elsewhere there is nothing to get."""
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=tmp_path / "out", script_args=("16",))
    monkeypatch.setattr(targets, "triton_version", lambda: "")
    with begun(settings) as run:
        run.device.notice_missing_kinds()
        assert not run.log.warnings
        own = run.device.service
        monkeypatch.setattr(run.device, "service", SimpleNamespace(target=KNOWN_TARGETS["sm_90"], close=own.close))
        run.device.notice_missing_kinds()
        monkeypatch.setattr(run.device, "service", own)
        assert run.log.warnings == [
            f"Opts alone are searched, and no tile programs: Triton is not installed: {pip_install('gpu')}"
        ]
