"""Small programs recorded exhaustively on a GPU: candidates of every part all measured and judged, and plans timed.

    python -m evaluation.plans.record --device CUDA --out evaluation/plans/recorded
    python -m evaluation.plans.record --programs gpt2/mini-f16,vit/tiny-16-f32 --device CUDA --out FOLDER

Of each program the kernels that take most of its time and the regions of several that a search would look at first get
candidates: the first choices of the analytic cost, then legal programs drawn uniformly. All are compiled and timed as a
search does; the four fastest of each part are judged in turns with tinygrad's own schedule, and those that need it run
under stress. Then the whole step is timed by plans: the best by what was judged, the best that is expected before
anything is measured, that without any region, that of regions alone, and others with parts and candidates drawn at
random. What each job took is that of the run's own journal; of one that compares several programs a pair's share. A
program that is recorded already is left out, so the same command goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from evaluation.rows import this_command
from kcg.cli import run_script
from kcg.errors import UsageError
from kcg.judge.kept import KeptResults
from kcg.judge.paired import Comparisons
from kcg.judge.whole import Runner
from kcg.judge.whole_model import Model
from kcg.kernel.kinds import Space
from kcg.kernel.repeats import blocks_of_workload
from kcg.measure import stress
from kcg.measure.job_rows import HASH_DIGITS, schedule_digits
from kcg.optimize.baselines import measure_baselines
from kcg.optimize.console import progress
from kcg.optimize.device import Device
from kcg.optimize.estimates import Estimates
from kcg.optimize.log import RunLog
from kcg.optimize.region_plans import Proposals
from kcg.optimize.region_search import Proposed, propose_regions, variants
from kcg.optimize.run import Ended, begin, build_result, capture
from kcg.optimize.settings import Settings
from kcg.optimize.wholes import child_of, runner_of
from kcg.optimize.work import Candidates, Captured, RegionResults, RegionWork
from kcg.predictor.cost import guiding
from kcg.predictor.interface import Judge, judge_of
from kcg.provenance import provenance
from kcg.rl.plan_recording import (
    COMPILING,
    JUDGING,
    STRESSING,
    TIMING,
    Candidate,
    Part,
    PlanRecording,
    TimedPlan,
    write_recording,
)
from kcg.search.problem import Observation
from kcg.search.uniform import SLOWEST_S, Legal
from kcg.types import Job, JobKind, JobOutcome, RegionResult, Result, Schedule, Status
from kcg.workloads.registry import find

PROGRAMS: Final = (
    "quantize/llama-decoding,gpt2/small,mlp_mixer/base-32-bf16,t5/small,bert/medium,mamba/130m-step-b64,mlp_train/mnist-f16,"
    "vit/tiny-16-f32,dit/small-2,moe/mini-f16,llama/smollm-135m,clip/base-32"
)
SAMPLER: Final = "recorded"
OF_PRIOR: Final = 4  # candidates that are the cost's first choices
COVERED: Final = 0.98  # of the program's time, of the kernels that get candidates
JUDGED: Final = 4  # of a part, the fastest: others would be judged only if all of these failed
TRIES: Final = 200  # draws until a candidate is new
WHOLE_S: Final = 240.0  # for the plans of one program


@dataclass(frozen=True)
class Limits:
    """How much of a program is recorded."""

    kernels: int = 12
    regions: int = 12
    candidates: int = 8
    plans: int = 16


@dataclass
class Tried:
    """One candidate of a part, and what became of it."""

    schedule: Schedule
    expected_s: float
    seen: Observation | None = None
    row: RegionResult | None = None  # it was judged and is right, faster or not
    fails: str = ""
    binary: str = ""


@dataclass
class Looked:
    """A part with its candidates."""

    work: RegionWork
    form: str
    places: tuple[tuple[int, ...], ...]
    tried: list[Tried] = field(default_factory=list)

    @property
    def right(self) -> list[int]:
        """Numbers of the candidates that passed all, the fastest first as they were judged."""
        found = [number for number, one in enumerate(self.tried) if one.row is not None and not one.fails]
        return sorted(found, key=lambda number: _judged_s(self.tried[number]))


def _timed_s(one: Tried) -> float:
    assert one.seen is not None and one.seen.runtime_s is not None
    return one.seen.runtime_s


def _judged_s(one: Tried) -> float:
    assert one.row is not None
    return one.row.chosen.cold_s


def record(settings: Settings, limits: Limits, *, seed: int) -> PlanRecording:
    """One program, recorded in this process and its children. Raises KcgError where the device is unusable."""
    log, budget = begin(settings, progress(quiet=True), started=time.monotonic())
    with Device(settings, log, budget) as device, contextlib.ExitStack() as children:
        if (child := child_of(settings, device)) is not None:
            children.enter_context(child)
        captured = capture(settings, device, budget=budget, log=log, seen=device.compile_ahead)
        device.open_journal(captured.workload)
        works = device.plan(captured.workload)
        kept, runner = KeptResults(device, resumed=False), runner_of(settings, captured, device, works, child)
        begun_s = time.monotonic() - log.started
        measured = measure_baselines(works, device, budget=budget, log=log)
        device.use_others(works)
        estimates = Estimates(settings, captured, measured, device, budget, kept, runner)
        proposed = _proposed(Candidates(works), estimates, device, log)
        parts = _parts(works, proposed, limits)
        rng = random.Random(f"{settings.workload}:{settings.preset}:{seed}")
        _measure(parts, device, rng, limits)
        _judge(parts, proposed.estimates, kept, device)
        device.close_children()
        if child is not None and isinstance(runner, Model):
            runner.ahead()
            runner.steady_s = 0.0  # their steps are timed, not stressed
        plans, checks_s, own_step_s = _timed_plans(
            parts,
            rng,
            limits,
            lambda rows: build_result(
                Ended(settings, captured, works, Candidates(works), _planned(rows, proposed, captured), {}, "roofline"),
                device=device,
                budget=budget,
                log=log,
            ),
            runner,
        )
        device.jobs.write()
        assert device.journal is not None
        took = Took(device.journal.jobs())
        calls, _ = _calls(captured)
        first_s, further_s = checks_s
        return PlanRecording(
            workload=captured.workload.name,
            preset=captured.workload.preset,
            calls=calls,
            parts=tuple(_part(one, took) for one in parts),
            plans=plans,
            own_step_s=own_step_s,
            plan_job_s=further_s,
            first_plan_job_s=first_s,
            begin_s=begun_s,
            cores=device.service.compile_workers,
            device=device.service.target.model,
            about=this_command(),
            **provenance(),
        )


# ---- which parts, and which candidates


def _calls(captured: Captured) -> tuple[tuple[tuple[str, float], ...], list[int]]:
    """The calls of a program, as `PlanRecording.calls`; and the number of the first one of each sequence."""
    found: list[tuple[str, float]] = []
    begins: list[int] = []
    for blocks in blocks_of_workload(captured.workload):
        begins.append(len(found))
        for place, call in enumerate(blocks.sequence.calls):
            weight = blocks.weight((place,)) * blocks.sequence.executions
            found.append((call.kernel.id if call.kernel is not None else "", weight))
    return tuple(found), begins


def _proposed(found: Candidates, estimates: Estimates, device: Device, log: RunLog) -> Proposed:
    """The regions of several kernels that a search would look at; none where there is no program for any."""
    proposed = propose_regions(found, estimates, device=device, log=log)
    if proposed is not None:
        return proposed
    return Proposed(Proposals(estimates.captured.workload, ()), (), estimates, found)


def _parts(works: Sequence[RegionWork], proposed: Proposed, limits: Limits) -> list[Looked]:
    """All kernels and the regions that get candidates, with where they may run."""
    calls, begins = _calls(proposed.estimates.captured)
    of_kernel: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for number, (kernel, _) in enumerate(calls):
        of_kernel[kernel].append((number,))
    of_region: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    forms: dict[str, str] = {}
    for begin_at, (_, candidates) in zip(begins, proposed.proposals.sequences, strict=False):
        for candidate in candidates:
            if not candidate.again:
                forms[candidate.region.id] = str(candidate.form)
                of_region[candidate.region.id] += [
                    tuple(begin_at + place for place in places) for places in candidate.places
                ]
    found = [Looked(work, "", tuple(of_kernel[work.call.region.id])) for work in works]
    timed = [work for work in proposed.timed if work.call.region.id in forms][: limits.regions]
    return found + [Looked(w, forms[w.call.region.id], tuple(of_region[w.call.region.id])) for w in timed]


def _that_matter(parts: Sequence[Looked], limits: Limits) -> list[Looked]:
    """Those that get candidates: regions, and the kernels that take most."""
    kernels = sorted((one for one in parts if not one.form), key=lambda one: -one.work.before_s)
    total_s, covered_s, chosen = sum(one.work.before_s for one in kernels), 0.0, list[Looked]()
    for one in kernels[: limits.kernels]:
        if covered_s < COVERED * total_s and one.work.baseline_s:
            chosen.append(one)
        covered_s += one.work.before_s
    return chosen + [one for one in parts if one.form]


def _drawn(work: RegionWork, count: int, rng: random.Random) -> list[Tried]:
    """Candidates of a part: of each space the cost's first choices, then uniform ones."""
    found: dict[Schedule, Tried] = {}
    spaces: Iterable[Space] = work.others.values() or [work.space]
    for space in spaces:
        judge = judge_of(guiding(space, None), space)
        first = [space.start(), *space.prior()] if work.others else [space.start()]
        legal = Legal(space)

        def add(schedule: Schedule, most_s: float, space: Space = space, judge: Judge = judge) -> None:
            (expected,) = judge.predict([schedule])
            if expected.runtime_s <= most_s and schedule not in found and schedule != space.baseline():
                found[schedule] = Tried(schedule, expected.runtime_s)

        for schedule in first:
            if len(found) < OF_PRIOR:
                add(schedule, math.inf)
        for _ in range(TRIES):
            if len(found) >= count:
                break
            if (one := legal.draw(rng)) is not None:
                add(one, min(SLOWEST_S, 20 * max(work.baseline_s, 1e-5)))
    return list(found.values())


# ---- what is measured of them


def _measure(parts: Sequence[Looked], device: Device, rng: random.Random, limits: Limits) -> None:
    """Have all candidates compiled and timed, as a search does."""
    sent = []
    for one in _that_matter(parts, limits):
        one.tried = _drawn(one.work, limits.candidates, rng)
        futures = device.measure(one.work, [tried.schedule for tried in one.tried], sampler=SAMPLER)
        sent += list(zip(itertools.repeat(one), one.tried, futures, strict=False))
    wait([future for *_, future in sent])
    for one, tried, future in sent:
        tried.seen = future.result()
        one.work.keep(tried.seen)
        tried.binary = tried.seen.binary_hash
        if tried.seen.status != Status.OK or tried.seen.runtime_s is None:
            tried.fails = TIMING if tried.seen.binary_hash else COMPILING


def _judge(parts: Sequence[Looked], estimates: Estimates, kept: KeptResults, device: Device) -> None:
    """Have all candidates that ran judged, those of a part in one comparison, and run under stress what needs it."""
    due = [one for one in parts if any(not tried.fails for tried in one.tried)]
    comparisons = Comparisons(device, estimates, kept)
    device.service.fresh_child()
    comparisons.ask_for_references([one.work for one in due])
    for one in sorted(due, key=lambda one: -one.work.before_s):
        comparisons.first_ready([one.work])
        own = comparisons.side(one.work, one.work.space.baseline())
        sides = {}
        ran = [number for number, tried in enumerate(one.tried) if not tried.fails]
        for number in sorted(ran, key=lambda number: _timed_s(one.tried[number]))[:JUDGED]:
            if not isinstance(side := comparisons.side(one.work, one.tried[number].schedule), str):
                sides[number] = side
        if isinstance(own, str) or comparisons.why_unjudged(one.work):
            for number in sides:
                one.tried[number].fails = JUDGING
            continue
        unique = {side.compiled.binary_hash: side for side in (own, *sides.values())}
        comparisons.compare_jointly(one.work, [*unique.values()])
        for number, side in sides.items():
            tried = one.tried[number]
            if side.compiled.binary_hash == own.compiled.binary_hash:
                tried.fails = JUDGING  # tinygrad's own by another name
                continue
            seen = comparisons.compare(one.work, own, side)
            outcome = seen.outcome
            verified = outcome.finalist_verification if outcome is not None else None
            if outcome is None or verified is None or not verified.passed or not outcome.baseline_verification.passed:
                tried.fails = JUDGING
                continue
            tried.row = one.work.result(
                seen.finalist_before(one.work), seen.finalist_after(one.work), "improved", "", seen.noise
            )
            if comparisons.stress(one.work, tried.schedule, launches=stress.PROVISIONAL):
                tried.fails = STRESSING


# ---- plans


def _planned(rows: Sequence[RegionResult], proposed: Proposed, captured: Captured) -> RegionResults:
    """The results by the best plan of these rows."""
    results = RegionResults(tuple(rows))
    if not proposed.proposals.sequences:
        return results
    return variants(results, proposed, captured.workload, most=1)[0]


def _rows(parts: Sequence[Looked], chosen: Mapping[str, int]) -> list[RegionResult]:
    """A row of every part: with the chosen candidate, or as tinygrad schedules it."""
    rows = []
    for one in parts:
        number = chosen.get(one.work.id)
        row = one.tried[number].row if number is not None else None
        if row is None:
            base = one.work.as_searched(one.work.space.baseline())
            row = one.work.result(base, base, "kept", "")
        rows.append(row)
    return rows


def choices_of(parts: Sequence[Looked], rng: random.Random) -> Iterable[dict[str, int]]:
    """What plans are made of: the number of a candidate, by part."""
    able = [one for one in parts if one.right]
    best = {one.work.id: one.right[0] for one in able}
    yield best
    yield {one.work.id: number for one in able if (number := _expected_first(one)) is not None}
    yield {one.work.id: one.right[0] for one in able if not one.form}
    yield {one.work.id: one.right[0] for one in able if one.form}
    while True:
        share = rng.choice((0.3, 0.5, 0.8))
        yield {one.work.id: rng.choice(one.right) for one in able if rng.random() < share}


def _expected_first(one: Looked) -> int | None:
    """The candidate that is expected to be fastest of those that are right, if it is expected to be faster."""
    number = min(one.right, key=lambda number: one.tried[number].expected_s)
    return number if one.tried[number].expected_s < one.work.baseline_s else None


def _timed_plans(
    parts: Sequence[Looked],
    rng: random.Random,
    limits: Limits,
    made: Callable[[Sequence[RegionResult]], Result],
    runner: Runner,
) -> tuple[tuple[TimedPlan, ...], tuple[float, float], float]:
    """The plans, each once as its result has it, with what their whole steps took; what comparing took, of the first
    and of each further one; and the step as tinygrad schedules it."""
    numbers = {
        (one.work.call.region.id, tried.schedule): number for one in parts for number, tried in enumerate(one.tried)
    }
    results: dict[tuple[tuple[str, int], ...], Result] = {}
    if any(one.right for one in parts):
        for choice in itertools.islice(choices_of(parts, rng), 4 * limits.plans):
            result = made(_rows(parts, choice))
            key = tuple(
                sorted(
                    (row.region.id, numbers[row.region.id, row.chosen.schedule])
                    for row in result.regions
                    if (row.region.id, row.chosen.schedule) in numbers
                )
            )
            if key and len(results) < limits.plans:
                results.setdefault(key, result)
    if not results:
        return (), (0.0, 0.0), 0.0
    some = list(results.items())
    began = time.monotonic()
    runner.checks([some[0][1]], timeout_s=WHOLE_S)  # for what it takes
    first_s, began = time.monotonic() - began, time.monotonic()
    checks = runner.checks([result for _, result in some], timeout_s=WHOLE_S)
    further_s = max(time.monotonic() - began - first_s, 0.0) / max(len(some) - 1, 1)
    plans, own_s = list[TimedPlan](), 0.0
    for (key, result), check in zip(some, checks, strict=True):
        if check.after_s is None or check.passed is False:
            typer.echo(f"a plan of {result.workload}: {check.reason}", err=True)
        if check.after_s is not None:
            plans.append(TimedPlan(key, check.after_s, check.passed))
            own_s = own_s or check.before_s or 0.0
    return tuple(plans), (first_s, further_s), own_s


# ---- what jobs took


class Took:
    """What the jobs of the run took, by what they were about."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._compiling = {(job.subject, job.schedule): job.seconds for job in jobs if job.kind == JobKind.COMPILE}
        self._by_binary: dict[tuple[str, str], float] = {}
        for job in jobs:
            if job.kind in (JobKind.TIME, JobKind.STRESS) and job.binaries:
                key = job.kind, job.binaries[0]
                self._by_binary[key] = self._by_binary.get(key, 0.0) + job.seconds
        self._joint: dict[str, float] = {}
        for job in jobs:
            if job.kind == JobKind.JOINT and job.outcome != JobOutcome.STOPPED and job.binaries:
                self._joint[job.subject] = 2 * job.seconds / len(job.binaries)
            if job.kind == JobKind.PAIRED:
                self._joint.setdefault(job.subject, job.seconds)

    def compiling(self, region: str, schedule: Schedule) -> float:
        return self._compiling.get((region, schedule_digits(schedule)), 0.0)

    def of(self, kind: JobKind, binary: str) -> float:
        return self._by_binary.get((kind, binary[:HASH_DIGITS]), 0.0)

    def judging(self, region: str) -> float:
        return self._joint.get(region, 0.0)


def _part(one: Looked, took: Took) -> Part:
    work = one.work
    own = work.observed(work.space.baseline())
    rows = [tried.row for tried in one.tried if tried.row is not None]
    own_s = work.baseline_s
    return Part(
        id=work.call.region.id,
        kernels=tuple(kernel.id for kernel in work.call.region.kernels),
        form=one.form,
        own_s=own_s,
        judged_own_s=rows[0].baseline.cold_s if rows else own_s,
        own_job_s=took.of(JobKind.TIME, own.binary_hash) if own is not None else 0.0,
        places=one.places,
        candidates=tuple(
            Candidate(
                schedule=f"{tried.schedule.kind}:{tried.schedule.body}",
                expected_s=tried.expected_s,
                job_s=(
                    took.compiling(work.call.region.id, tried.schedule),
                    took.of(JobKind.TIME, tried.binary),
                    took.judging(work.call.region.id),
                    took.of(JobKind.STRESS, tried.binary),
                ),
                timed_s=tried.seen.runtime_s
                if tried.seen is not None and tried.fails not in (COMPILING, TIMING)
                else None,
                judged_s=_judged_s(tried) if tried.row is not None else None,
                fails=tried.fails,
            )
            for tried in one.tried
        ),
    )


def main(
    out: Annotated[Path, typer.Option(help="folder of the recordings")],
    programs: Annotated[str, typer.Option(help="NAME/PRESET, separated by commas")] = PROGRAMS,
    device: Annotated[str, typer.Option(help="as of kcg optimize")] = "auto",
    budget: Annotated[float, typer.Option(help="seconds after which no other program is begun")] = math.inf,
    candidates: Annotated[int, typer.Option(help="of each part")] = 8,
    plans: Annotated[int, typer.Option(help="of each program")] = 16,
    regions: Annotated[int, typer.Option(help="of several kernels, of each program")] = 12,
    kernels: Annotated[int, typer.Option(help="with candidates, of each program")] = 12,
    seed: Annotated[int, typer.Option(help="of what is drawn")] = 0,
) -> None:
    """Record programs, each into a file of its own. Ends with 1 where some could not be."""
    began, limits, failed = time.monotonic(), Limits(kernels, regions, candidates, plans), list[str]()
    names = programs.split(",")
    for name in names:
        workload, _, preset = name.partition("/")
        find(workload, preset or "auto", device)  # raises in one line
        if not preset:
            raise UsageError(f"--programs {name}: name a preset too, as {name}/mini")
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = out / f"{name.replace('/', '_')}.json"
        if path.exists() or time.monotonic() - began > budget:
            continue
        workload, preset = name.split("/")
        at = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kcg-plans-") as folder:
            settings = Settings(workload=workload, preset=preset, device=device, folder=Path(folder) / "run", seed=seed)
            try:
                found = record(settings, limits, seed=seed)
            except Exception:
                typer.echo(f"{name} after {time.monotonic() - at:.0f} s: {traceback.format_exc()}", err=True)
                failed.append(name)
                continue
        write_recording(found, path)
        tried = [one for part in found.parts for one in part.candidates]
        best_s = min((plan.step_s for plan in found.plans), default=found.own_step_s)
        typer.echo(
            f"{name}: {time.monotonic() - at:.0f} s, {len(found.parts)} parts, {len(tried)} candidates, "
            f"{sum(not one.fails for one in tried)} right, {len(found.plans)} plans, "
            f"{1e3 * found.own_step_s:.3f} to {1e3 * best_s:.3f} ms"
        )
    if failed:
        typer.echo(f"not recorded: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    run_script(main)
