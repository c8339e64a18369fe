"""What a plan is worth that was chosen before anything was measured: recorded programs, steps of whole plans.

    python -m evaluation.plans.unmeasured evaluation/plans/recorded
    python -m evaluation.plans.unmeasured evaluation/plans/recorded --learned FOLDER   # of left_out

*First choices*: of each part the candidate that the analytic cost expects to be fastest, where it is expected to be
faster than tinygrad's own schedule was timed to be; the plan of these is that of what was judged, and its whole step
was timed in turns with the other plans of the program. Only the four fastest of eight candidates of a part were judged:
where the first choice is none of these, the plan that was timed has the next one, and the step is taken to be longer by
what the first one, or tinygrad's own schedule where that is faster or the first one is wrong, takes more, each timed
alone.

*As `--measurements 0` chooses*: only regions of the best plan by what is expected are judged, and put in where they
turn out to be faster. Most of these plans were not timed: their steps are as `kcg.rl.plan_env.Steps` predicts them.
What is expected is what the cost of today says, of the candidates that were recorded: its first choice of all there are
may not be among them.

Shares are of the fastest that is known of a program: of plans that were timed, and for the second way of all that are
compared. The cost was fitted on none of these programs; Opts are not among the candidates. With networks, each asked
about families that it never saw, what they choose is compared with what the cost does, the second way. Updates
evaluation/results/eval_tiles.json, runs `unmeasured plans` and `unmeasured plans, learned`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.dataset.record import TARGET
from evaluation.predictor.intervals import half_width
from evaluation.predictor.left_out import left_out_by
from evaluation.rows import rounded, this_command
from kcg.cli import record_results, run_script
from kcg.compat.device import prepare
from kcg.errors import DataError, ScheduleError
from kcg.kernel.kinds import Space, kind_named, space_of
from kcg.kernel.targets import target_named
from kcg.optimize.region_plans import propose
from kcg.predictor.cost import KnownCost
from kcg.predictor.plans import PlanPredictor
from kcg.rl.plan_env import Array, Steps, parts_of, program_of, read_recordings
from kcg.rl.plan_recording import Part, PlanRecording, TimedPlan
from kcg.types import Region, Schedule, Target
from kcg.workloads.registry import spec_of

OUT = Path(__file__).parents[1] / "results" / "eval_tiles.json"


def first_choices(part: Part) -> tuple[int | None, int]:
    """The number of the candidate that is expected to be fastest of those that were judged and are right, None where
    that is not expected to be faster than what tinygrad does; and that of all."""
    right = [
        (one.expected_s, one.judged_s, number)
        for number, one in enumerate(part.candidates)
        if not one.fails and one.judged_s is not None
    ]
    least = min(right, default=(math.inf, None, None))
    chosen = least[2] if least[0] < part.own_s else None
    first = min(range(len(part.candidates)), key=lambda number: part.candidates[number].expected_s)
    if chosen is not None and part.candidates[first].expected_s == part.candidates[chosen].expected_s:
        first = chosen
    return chosen, first


def plan_of_expected(recording: PlanRecording) -> TimedPlan:
    """The plan of these: the recorder times that of what was judged best first, then this one, and each once. Raises
    DataError where neither is it."""
    choice = {part.id: first_choices(part)[0] for part in recording.parts if part.candidates}
    for plan in recording.plans[:2]:
        if all(choice[part] == number for part, number in plan.chosen):
            return plan
    raise DataError(f"{recording.name} has no plan of what was expected: record it again")


def longer_s(recording: PlanRecording, plan: TimedPlan) -> float:
    """What a step takes more where first choices were not judged, in seconds."""
    program, chosen, more_s = program_of(recording), dict(plan.chosen), 0.0
    for number, part in enumerate(parts_of(recording)):
        if part.id not in chosen or (first := first_choices(part)[1]) == chosen[part.id]:
            continue
        wanted, used = part.candidates[first], part.candidates[chosen[part.id]]
        wanted_s = part.own_s if wanted.fails or wanted.timed_s is None else min(wanted.timed_s, part.own_s)
        more_s += program.places.alone[number] * max(wanted_s - (used.timed_s or 0.0), 0.0)
    return more_s


def figures(
    recordings: list[PlanRecording], expected_s: Mapping[str, Array] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows, and the headline; with (P, C) seconds that are expected of a program's candidates, by its name, where
    not those that were as it was recorded."""
    rows = {}
    for one in recordings:
        plan = plan_of_expected(one)
        step_s = plan.step_s + (more_s := longer_s(one, plan))
        best_s = min(plan.step_s for plan in one.plans if plan.passed is not False)
        steps = Steps(one)
        chosen_s = step_of(steps, (expected_s or {}).get(one.name, steps.program.expected_s))
        rows[one.name] = {
            "own_step_s": one.own_step_s, "step_s": step_s, "of_these_not_timed_s": more_s, "best_s": best_s,
            "share": best_s / step_s, "outputs_agree": plan.passed, "plans": len(one.plans),
            "as_chosen_s": chosen_s, "as_chosen_share": least_s(steps, [chosen_s]) / chosen_s,
        }  # fmt: skip
    logs = [math.log(row["share"]) for row in rows.values()]
    mean, half = sum(logs) / len(logs), half_width(logs)
    chosen = [math.log(row["as_chosen_share"]) for row in rows.values()]
    shown = {
        name: {key: rounded(value) if isinstance(value, float) else value for key, value in row.items()}
        for name, row in rows.items()
    }
    interval = [rounded(math.exp(mean - half)), rounded(min(math.exp(mean + half), 1.0))]
    first = {
        "geomean": rounded(math.exp(mean)),
        "interval": interval,
        "min": min(row["share"] for row in shown.values()),
    }
    entry = {"programs": shown, "first_choices": first}
    headline = {
        "zero_measurement_geomean": rounded(math.exp(sum(chosen) / len(chosen))),
        "zero_measurement_min": rounded(math.exp(min(chosen))),
    }
    return entry, headline


# ---- what networks would choose


def step_of(steps: Steps, expected_s: Array) -> float:
    """What a step takes by the second way of the module, where (P, C) seconds of a call are expected of candidates."""
    program = steps.program
    firsts = expected_s.argmin(axis=1)
    rows = np.arange(len(firsts))
    expected = np.maximum(program.own_s - expected_s[rows, firsts], 0.0)
    judged = np.array([
        0.0 if steps.parts[part].candidates[number].fails else max(steps.savings[part, number], 0.0)
        for part, number in enumerate(firsts.tolist())
    ])  # fmt: skip
    wanted = program.is_kernel | (program.places.weights(expected[None])[0] > 0.0)
    weights = program.places.weights(np.where(wanted & (expected > 0.0), judged, 0.0)[None])[0]
    return steps.step_s(frozenset((part, int(firsts[part])) for part in np.flatnonzero(weights > 0.0).tolist()))


def least_s(steps: Steps, compared_s: Iterable[float]) -> float:
    """The fastest that is known: of the plans that were timed, of the best candidates, and of these."""
    best = np.where(steps.savings > 0.0, steps.program.own_s[:, None] - steps.savings, np.inf)
    timed = (step_s for step_s, passed in steps.timed.values() if passed)
    return min(step_of(steps, best), *timed, *compared_s)


@cache
def _regions_of(name: str, preset: str) -> dict[str, Region]:
    """The kernels of a program, and the regions that its plans may have, by id."""
    workload = spec_of(name).capture(preset)
    regions = {call.region.id: call.region for call in workload.calls}
    for _, candidates in propose(workload).sequences:
        regions |= {candidate.region.id: candidate.region for candidate in candidates}
    return regions


def predicted_s(
    recording: PlanRecording, predictor: PlanPredictor | KnownCost, target: Target, shape: tuple[int, int]
) -> Array:
    """(P, C): what a predictor says of all candidates, in seconds of a call; infinite where today's rules have none.
    Captures the program, once."""
    regions = _regions_of(recording.workload, recording.preset)
    found = np.full(shape, np.inf)
    for number, part in enumerate(parts_of(recording)):
        kind, _, _ = part.candidates[0].schedule.partition(":")
        schedules = [kind_named(kind).parse(one.schedule.partition(":")[2]) for one in part.candidates]
        space = space_of(regions[part.id], target, kind)
        expected = zip(schedules, predictor.of(space).predict(schedules), strict=True)
        found[number, : len(schedules)] = [one.runtime_s if is_legal(space, s) else math.inf for s, one in expected]
    return found


def is_legal(space: Space, schedule: Schedule) -> bool:
    """Whether a schedule that was recorded is one of today's space."""
    try:
        space.check(schedule)
    except ScheduleError:
        return False
    return True


def expected_today(recordings: list[PlanRecording]) -> dict[str, Array]:
    """What the cost says today of all candidates, by the name of their program."""
    prepare("CPU")  # to capture
    target, cost = target_named(TARGET), KnownCost()
    return {one.name: predicted_s(one, cost, target, program_of(one).shape) for one in recordings}


def compared(recordings: list[PlanRecording], folder: Path) -> dict[str, Any]:
    """The shares of what the cost and what networks choose, of programs of families that some never saw."""
    prepare("CPU")  # to capture
    nets, target = left_out_by(folder), target_named(TARGET)
    today_s = expected_today(recordings)
    rows: dict[str, dict[str, float]] = {}
    for one in recordings:
        if (mine := next((found for found, never in nets if one.family in never), None)) is None:
            continue
        steps = Steps(one)
        learned_s = predicted_s(one, PlanPredictor(mine), target, steps.program.shape)
        ways = {"analytic": step_of(steps, today_s[one.name]), "learned": step_of(steps, learned_s)}
        best_s = least_s(steps, ways.values())
        rows[one.name] = {name: best_s / step_s for name, step_s in ways.items()}
    logs = {name: [math.log(row[name]) for row in rows.values()] for name in ("analytic", "learned")}
    ratio = [learned - analytic for analytic, learned in zip(logs["analytic"], logs["learned"], strict=True)]
    mean, half = sum(ratio) / len(ratio), half_width(ratio)
    return {
        "programs": {name: {way: rounded(share) for way, share in row.items()} for name, row in rows.items()},
        **{name: rounded(math.exp(sum(some) / len(some))) for name, some in logs.items()},
        "learned_vs_analytic": rounded(math.exp(mean)),
        "learned_vs_analytic_interval": [rounded(math.exp(mean - half)), rounded(math.exp(mean + half))],
    }


def main(
    folder: Annotated[Path, typer.Argument(help="of recorded programs")],
    learned: Annotated[Path | None, typer.Option(help="networks that left_out trained: what they choose")] = None,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Compare, and keep the rows."""
    if learned is not None:
        entry = compared(read_recordings(folder), learned)
        record_results(out, "unmeasured plans, learned", {**entry, "command": this_command()}, {})
        typer.echo(json.dumps(entry, indent=1))
        return
    recordings = read_recordings(folder)
    entry, headline = figures(recordings, expected_today(recordings))
    record_results(out, "unmeasured plans", {**entry, "command": this_command()}, headline)
    typer.echo(json.dumps({**headline, "first_choices": entry["first_choices"]}))


if __name__ == "__main__":
    run_script(main)
