"""What regions save among their neighbours: whether it can be told beforehand from what they save alone.

    python -m evaluation.plans.neighbours evaluation/plans/recorded

A region or a kernel is judged alone, cold, beside tinygrad's own schedule; in a step its inputs may be in L2, launches
overlap and fewer of them wait for each other. Of each recorded plan the step is predicted by what its parts save alone:

- `sums`: a step is as many times faster as the sum of its calls is.
- `factor`: log speedup of the sums times a factor, as it is of other families.
- `by kind`: a factor of what kernels, tile programs and forms of regions save each, and so much for each launch that a
  region takes away: ridge regression on other families, which shrinks to the sums; its penalty has the least error when
  each of these families is left out in turn.

Each program is predicted by recordings of other families. Errors are root mean squares of log(predicted / timed) over
plans; *pairs* is how often the faster one of two plans of a program is told, where these differ by a hundredth or more.
Means are over programs, with 95 % intervals. Updates evaluation/results/eval_tiles.json, run `neighbours`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.plans.beliefs import fitted
from evaluation.predictor.intervals import half_width
from evaluation.rows import rounded, this_command
from kcg.cli import record_results, run_script
from kcg.errors import UsageError
from kcg.rl.plan_env import OWN, Array, Replay, read_recordings

OUT = Path(__file__).parents[1] / "results" / "eval_tiles.json"
PENALTIES: Final = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
LAUNCHES = "launches"
LAUNCH_S: Final = 1e-6  # the unit in which launches count
LEAST_LEFT: Final = 0.01  # of a step, whatever is predicted
ALIKE: Final = 0.01  # by which plans have to differ to be a pair
WAYS: Final = ("sums", "factor", "by kind")

Predict = Callable[["Plans"], Array]
"""(N,) seconds of the steps of a program's plans."""


@dataclass(frozen=True, eq=False)
class Plans:
    """The recorded plans of a program, N of them."""

    replay: Replay
    steps_s: Array  # (N,) as timed
    sums_s: Array  # (N,) saved in a step by all parts, as judged alone
    shares: Mapping[str, Array]  # by group of parts: (N,) of the sum of all calls; of `LAUNCHES` microseconds

    @property
    def own_s(self) -> float:
        return self.replay.program.own_step_s

    @property
    def saved(self) -> Array:
        """(N,) of the sum of all calls, by what parts save alone."""
        return self.sums_s / self.replay.program.total_s


def plans_of(replay: Replay) -> Plans:
    """What was timed, and what its parts save alone."""
    steps, program = replay.steps, replay.program
    kernels = [len(part.kernels) for part in steps.parts]
    timed = {plan: step_s for plan, (step_s, passed) in steps.timed.items() if plan != OWN and passed}
    shares: dict[str, list[float]] = {group: [0.0] * len(timed) for group in (*program.groups, LAUNCHES)}
    for row, plan in enumerate(timed):
        savings = np.zeros(len(steps.parts))
        for part, number in plan:
            savings[part] = steps.savings[part, number]
        weights = program.places.of_plan(savings, [part for part, _ in plan])
        for part in np.flatnonzero(weights).tolist():
            shares[program.groups[part]][row] += weights[part] * savings[part] / program.total_s
            shares[LAUNCHES][row] += weights[part] * (kernels[part] - 1) * LAUNCH_S / program.total_s
    return Plans(
        replay,
        np.array([*timed.values()]),
        np.array([steps.sum_s(plan) for plan in timed]),
        {group: np.array(found) for group, found in shares.items()},
    )


# ---- ways to predict


def by_sums(plans: Plans) -> Array:
    return _of_shares(plans, plans.saved)


def by_factor(others: Sequence[Plans]) -> Predict:
    """With the mean factor of a log speedup of other programs (`evaluation.plans.beliefs`)."""
    mean, _, _ = fitted([one.replay for one in others]).factor

    def predict(plans: Plans) -> Array:
        return plans.own_s * np.exp(-mean * plans.replay.program.log_speedup(plans.sums_s))

    return predict


def by_kind(others: Sequence[Plans]) -> Predict:
    """With factors of kinds of parts, and of launches, by ridge regression on other programs."""
    kinds = sorted({kind for plans in others for kind in plans.shares})
    families = sorted({plans.replay.program.family for plans in others})

    def error(penalty: float) -> float:
        found = []
        for family in families:
            inside = [one for one in others if one.replay.program.family != family]
            weights = _ridge(inside, kinds, penalty)
            found += [rms(_of_kinds(one, kinds, weights), one) for one in others if one not in inside]
        return sum(found) / len(found)

    penalty = min(PENALTIES, key=error) if len(families) > 1 else PENALTIES[-1]
    weights = _ridge(others, kinds, penalty)
    return lambda plans: _of_kinds(plans, kinds, weights)


def _rows(plans: Plans, kinds: Sequence[str]) -> Array:
    nothing = np.zeros(len(plans.steps_s))
    return np.stack([plans.shares.get(kind, nothing) for kind in kinds], axis=1)


def _ridge(some: Sequence[Plans], kinds: Sequence[str], penalty: float) -> Array:
    """What to add to the sums, by kind: least squares of shares of a step, each program with the same weight."""
    rows = np.concatenate([_rows(one, kinds) / math.sqrt(len(one.steps_s)) for one in some])
    off = np.concatenate([
        (1 - one.steps_s / one.own_s - one.saved) / math.sqrt(len(one.steps_s)) for one in some
    ])  # fmt: skip
    return np.asarray(np.linalg.solve(rows.T @ rows + penalty * np.eye(len(kinds)), rows.T @ off))


def _of_kinds(plans: Plans, kinds: Sequence[str], weights: Array) -> Array:
    return _of_shares(plans, plans.saved + _rows(plans, kinds) @ weights)


def _of_shares(plans: Plans, saved: Array) -> Array:
    return plans.own_s * np.maximum(1 - saved, LEAST_LEFT)


# ---- how well


def rms(predicted_s: Array, plans: Plans) -> float:
    """The root mean square of log(predicted / timed)."""
    return float(np.sqrt(np.mean(np.log(predicted_s / plans.steps_s) ** 2)))


def pairs(predicted_s: Array, plans: Plans) -> float | None:
    """The share of pairs of plans that are told apart rightly; None where none differ."""
    right = count = 0
    for a, b in itertools.combinations(range(len(predicted_s)), 2):
        timed = math.log(plans.steps_s[a] / plans.steps_s[b])
        if abs(timed) >= ALIKE:
            count += 1
            right += (predicted_s[a] - predicted_s[b]) * timed > 0
    return right / count if count else None


def figures(programs: Sequence[Plans]) -> dict[str, Any]:
    """The entry. Raises UsageError where there are fewer than two families."""
    if len({one.replay.program.family for one in programs}) < 2:
        raise UsageError("programs of two families or more are needed: one is predicted by the others")
    errors: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    told: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    for one in programs:
        name, family = one.replay.program.name, one.replay.program.family
        others = [other for other in programs if other.replay.program.family != family]
        for way, predict in zip(WAYS, (by_sums, by_factor(others), by_kind(others)), strict=True):
            predicted_s = predict(one)
            errors[way][name] = rms(predicted_s, one)
            if (share := pairs(predicted_s, one)) is not None:
                told[way][name] = share
    less = [errors["by kind"][name] - errors["sums"][name] for name in errors["sums"]]
    return {
        "plans": sum(len(one.steps_s) for one in programs),
        "programs": {
            one: {
                way: {"error": rounded(errors[way][one]), "pairs": rounded(told[way].get(one, math.nan))}
                for way in WAYS
            }
            for one in errors["sums"]
        },
        "error": {way: _mean([*errors[way].values()]) for way in WAYS},
        "pairs": {way: _mean([*told[way].values()]) for way in WAYS},
        "error_by_kind_less_sums": _mean(less),
    }


def _mean(values: Sequence[float]) -> dict[str, float]:
    mean, half = sum(values) / len(values), half_width(values)
    return {"mean": rounded(mean), "low": rounded(mean - half), "high": rounded(mean + half)}


def main(
    folder: Annotated[Path, typer.Argument(help="of recorded programs")],
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Predict all plans, and keep the rows."""
    entry = figures([plans_of(Replay(one)) for one in read_recordings(folder)])
    record_results(out, "neighbours", {**entry, "command": this_command()}, {})
    typer.echo(json.dumps(entry, indent=1))


if __name__ == "__main__":
    run_script(main)
