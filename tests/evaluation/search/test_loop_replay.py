"""Replays of a run's jobs: what a journal says of a run, the best plan, and what no order exceeds."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.search.job_orders import Hindsight, Phases, area, best_possible_s, bound, loop
from evaluation.search.job_replay import Errors, Estimates, replayed
from evaluation.search.job_runs import Part, Program, Run, read_run, recorded, solver, write_run
from evaluation.search.loop_replay import RECORDED
from evaluation.search.made_up_runs import made_up
from kcg.dataset.journal import Journal
from kcg.dataset.journal import Run as JournalRun
from kcg.errors import DataError
from kcg.measure.job_rows import HASH_DIGITS
from kcg.report.result import write_result
from kcg.types import Job, JobKind, JobOutcome, Region, Status
from tests.chains import region_of
from tests.dataset.test_journal import TARGET, TOOLCHAIN, measurement
from tests.kernels import empty
from tests.sample_result import sample_result


def small_run(seed: int = 0) -> Run:
    """Four kernels and two regions of them, one of which has a long reference."""
    rng = random.Random(seed)

    def programs(best_s: float) -> tuple[Program, ...]:
        fails = ("", "", "judge" if rng.random() < 0.3 else "")
        factors = (1.2, 1.0, 0.95)
        return tuple(
            Program(f * best_s, 1.0, 0.2, rng.uniform(0.5, 3.0), rng.choice((0.0, 2.0)), fails=why)
            for f, why in zip(factors, fails, strict=True)
        )

    kernels = [Part(f"k{n}", 10, 2.0, programs(0.02), own_s=0.1 * (n + 1), timing_s=0.3) for n in range(4)]
    regions = [
        Part("r0", 10, 20.0, programs(0.015), takes=(("k0", 1.0), ("k1", 1.0))),
        Part("r1", 10, 3.0, programs(0.01), takes=(("k1", 1.0), ("k2", 1.0))),
    ]
    return Run("small", True, 4, False, 5.0, (*kernels, *regions))


def test_the_best_plan_is_that_of_all_sets() -> None:
    run, rng = small_run(), random.Random(1)
    parts, solve = {part.id: part for part in run.parts}, solver(small_run())
    for _ in range(50):
        seconds = {name: rng.uniform(0.01, 0.3) for name in parts}
        totals = []
        for chosen in ((), ("r0",), ("r1",)):  # both take k1
            taken = {kernel for name in chosen for kernel, _ in parts[name].takes}
            alone = [name for name in parts if parts[name].is_kernel and name not in taken]
            totals.append(sum(10 * seconds[name] for name in (*alone, *chosen)))
        assert solve(seconds).seconds == pytest.approx(min(totals))


@pytest.mark.parametrize("errors", ["exact", "predicted", "wrong"])
def test_estimates_change_when_and_never_what_is_verified(errors: Errors) -> None:
    run = small_run()
    replay = replayed(run, loop, Estimates(errors, seed=3))
    assert replay.points[-1][1] == pytest.approx(best_possible_s(run))
    failing = {f"{part.id} {n}" for part in run.parts for n, one in enumerate(part.programs) if one.fails}
    assert not replay.verified & failing


@pytest.mark.parametrize("seed", range(4))
def test_no_order_exceeds_the_bound(seed: int) -> None:
    run = small_run(seed)
    best_s, until_s = best_possible_s(run), 60.0
    found = [area(replayed(run, policy, Estimates()), run, best_s, until_s) for policy in (loop, Phases(run))]
    hindsight, _ = Hindsight(run, until_s).found([], tries=60)
    assert max(*found, hindsight) <= bound(run, until_s)
    assert found[0] >= found[1], "the loop is no worse than phases"


def test_hindsight_is_the_best_of_all_orders_of_a_few() -> None:
    run = small_run()
    search = Hindsight(run, 60.0)
    names = sorted(search._firsts)
    every = max(search._value(order) for n in range(len(names) + 1) for order in itertools.permutations(names, n))
    assert search.found([], tries=400)[0] == pytest.approx(every, rel=0.01)


def test_what_is_not_over_at_the_deadline_is_lost() -> None:
    run = small_run()
    replay = replayed(run, loop, Estimates(), deadline=20.0)
    assert replay.ended_s <= 20.0 and all(at <= 20.0 for at, _ in replay.points)


def test_made_up_runs_have_the_sums_that_were_measured() -> None:
    run = made_up("flux_1024")
    kernels = [part for part in run.parts if part.is_kernel]
    assert sum(part.calls * part.own_s for part in kernels) == pytest.approx(2.3288, rel=1e-3)
    assert (len(kernels), len(run.parts) - len(kernels)) == (55, 14)
    assert best_possible_s(run) == pytest.approx(0.1056, rel=0.03)
    assert 500 < run.programs < 600


def test_a_run_is_kept_whole(tmp_path: Path) -> None:
    write_run(small_run(), tmp_path / "run.json")
    assert read_run(tmp_path / "run.json") == small_run()
    (tmp_path / "run.json").write_text('{"name": "half"')
    with pytest.raises(DataError, match="no recorded run"):
        read_run(tmp_path / "run.json")


def test_a_run_is_read_from_its_journal_and_result(tmp_path: Path) -> None:
    """Of one kernel three programs were timed: one failed there, one was judged wrong, one right, and stressed."""
    row = sample_result().regions[0]
    own, fast, wrong, failed = row.baseline.binary_hash, "aa" * 32, "bb" * 32, "cc" * 32
    write_result(sample_result(), tmp_path / "RESULT.json")

    def job(kind: JobKind, at: float, seconds: float, *binaries: str, outcome: JobOutcome = JobOutcome.OK) -> Job:
        digits = tuple(one[:HASH_DIGITS] for one in binaries)
        return Job(kind, row.region.id, "device:0", at, seconds, outcome, binaries=digits, run_id="r1")

    jobs = [
        Job(JobKind.CAPTURE, "flux/mini", "main", 0.0, 4.0, JobOutcome.OK, run_id="r1"),
        job(JobKind.TIME, 5.0, 0.5, own),
        *(job(JobKind.COMPILE, 6.0, 1.5, one) for one in (fast, wrong)),
        job(JobKind.TIME, 8.0, 0.25, wrong),
        job(JobKind.TIME, 9.0, 0.2, fast),
        job(JobKind.TIME, 10.0, 0.1, failed, outcome=JobOutcome.WRONG),
        job(JobKind.REFERENCE, 10.0, 6.0),
        job(JobKind.PAIRED, 16.0, 2.0, own, wrong, outcome=JobOutcome.WRONG),
        job(JobKind.PAIRED, 18.0, 3.0, own, fast),
        job(JobKind.STRESS, 21.0, 7.0, fast),
        Job(JobKind.RUN, "r1", "main", 0.0, 30.0, JobOutcome.OK, run_id="r1"),
    ]
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        journal.add_target(TARGET)
        journal.add_toolchain(TOOLCHAIN)
        journal.add_region(row.region)
        journal.add_run(JournalRun("r1", "2026-11-28T00:00:00+00:00", "kcg", {"cores": 16}))
        for binary, seconds in ((own, 4e-4), (fast, 1e-4), (wrong, 2e-4)):
            timed = measurement(0, region_id=row.region.id, binary_hash=binary, samples_s=(seconds,) * 3)
            journal.record(replace(timed, variables=(("n", len(binary) + ord(binary[0])),)))
        bad = measurement(0, region_id=row.region.id, binary_hash=failed, samples_s=(), status=Status.WRONG)
        journal.record(replace(bad, reason="differs"))
        journal.add_jobs(jobs)
    run = recorded(tmp_path, name="one")
    part, *others = run.parts
    assert (run.made_up, run.cores, run.quiet, run.begin_s) == (False, 16, False, 4.0)
    assert (part.calls, part.own_s, part.timing_s, part.reference_s) == (row.calls, row.baseline.cold_s, 0.5, 6.0)
    assert not any(other.programs for other in others), "nothing is known of what has no jobs"
    assert part.programs == (
        Program(2e-4, 1.5, 0.25, 2.5, 0.0, "judge"),
        Program(1e-4, 1.5, 0.2, 2.5, 7.0),
        Program(row.baseline.cold_s, 0.0, 0.1, 2.5, 0.0, "time"),
    )


def test_a_region_of_a_recorded_run_takes_the_calls_of_its_kernels(tmp_path: Path) -> None:
    """Its kernels have all of their calls again: those beside it, and those in whose place it runs."""
    sample, x = sample_result(), empty(64, 64)
    region = region_of(x.exp().contiguous() @ x)
    kernels = [Region((kernel,)) for kernel in region.kernels]
    one, other = (replace(row, region=k) for row, k in zip(sample.regions[:2], kernels, strict=True))
    parts, fused = "aa" * 32, "bb" * 32
    made = replace(one, region=region, calls=5, baseline=replace(one.baseline, binary_hash=parts), opts=None)
    write_result(replace(sample, regions=(one, other, made), expectations=()), tmp_path / "RESULT.json")

    def job(kind: JobKind, seconds: float, binary: str = "") -> Job:
        return Job(
            kind, region.id, "device:0", 9.0, seconds, JobOutcome.OK, binaries=(binary[:HASH_DIGITS],), run_id="r1"
        )

    with Journal.open(tmp_path / "journal.sqlite") as journal:
        journal.add_target(TARGET)
        journal.add_toolchain(TOOLCHAIN)
        journal.add_region(region)
        journal.add_run(JournalRun("r1", "2026-11-28T00:00:00+00:00", "kcg", {"cores": 16}))
        journal.record(measurement(0, region_id=region.id, binary_hash=fused, samples_s=(2e-5,) * 3))
        journal.add_jobs(
            [
                *(job(JobKind.TIME, 0.5, binary) for binary in (parts, fused)),
                job(JobKind.REFERENCE, 20.0),
                job(JobKind.JOINT, 6.0, fused),
                Job(JobKind.RUN, "r1", "main", 0.0, 30.0, JobOutcome.OK, run_id="r1"),
            ]
        )
    found = {part.id: part for part in recorded(tmp_path).parts}
    first, second = (found[row.region.id[:HASH_DIGITS]] for row in (one, other))
    part = found[region.id[:HASH_DIGITS]]
    assert (first.calls, second.calls) == (one.calls + 5, other.calls + 5)
    assert part.takes == ((first.id, 1.0), (second.id, 1.0)) and (part.calls, part.reference_s) == (5, 20.0)
    assert part.programs == (Program(2e-5, 0.0, 0.5, 6.0),), "its kernels one after the other are no program of it"


def test_what_was_recorded_is_read() -> None:
    for path in RECORDED.glob("*.json"):
        run = read_run(path)
        assert not run.made_up and run.quiet == path.stem.endswith("_cpu") and run.programs
        assert best_possible_s(run) < sum(part.calls * part.own_s for part in run.parts)
