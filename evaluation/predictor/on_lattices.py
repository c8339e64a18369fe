"""What a choice is worth on lattices: regions of which 300 programs are all timed, drawn uniformly, or those of fewest
steps where few were met so.

    python -m evaluation.predictor.on_lattices datasets/h200-tiles
    python -m evaluation.predictor.on_lattices datasets/h200-tiles --learned FOLDER   # of evaluation.predictor.left_out

An arm puts a lattice's programs in an order. Its share after n measurements is the time of the fastest of all over that
of the fastest of its first n; after none, over that of the first one. The fastest ten were timed again in turns, and
those times stand (`kcg dataset retime --best 10 --trials 3`): the least of 300 noisy times is too low. On another
occasion all of a region may take more or less (a kernel of 17 µs took 12), so the others count by that much more or
less, too.

- `analytic`: by the formula that a search begins with, as it stands before anything is measured.
- `corrected`: the same, corrected by what was measured of the lattice so far, as a search does.
- `learned`, `learned, corrected`: the same two by networks that never saw the region's family.
- `random`: any order, each as likely; its shares are expectations, not draws.
- Ways that learn nothing of other families, or little: `arms.py` has them.

Means are geometric, over lattices; the intervals hold 95 % of bootstrap samples of lattices. `headroom closed` is the
share of what the corrected formula leaves, in logarithms, that the corrected networks do not: after as many
measurements. Updates
evaluation/results/eval_tiles.json, run `lattices`.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.dataset.record import FROZEN, LEAST, group_of
from evaluation.predictor.arms import WAYS, Elsewhere, Programs, recorded, ways_of
from evaluation.predictor.intervals import share_figure
from evaluation.predictor.left_out import left_out_by
from evaluation.rows import rounded, this_command
from kcg.campaign.sampling import REST
from kcg.cli import record_results, run_script
from kcg.dataset.choices import UNIFORM
from kcg.dataset.noise import RETIMED
from kcg.dataset.reading import Export, read_export
from kcg.dataset.sources import place_of
from kcg.dataset.splits import families_of
from kcg.errors import UsageError
from kcg.kernel.kinds import space_of
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.cost import KnownCost
from kcg.predictor.interface import Judge
from kcg.predictor.plans import PlanPredictor
from kcg.types import Region, Schedule, ScheduleKind, Status, Target

OUT = Path(__file__).parents[1] / "results" / "eval_tiles.json"
AFTER: Final = (0, 1, 2, 4, 16)  # measurements
CORRECTED: Final = {"analytic": "corrected", "learned": "learned, corrected"}
BY_MODELS: Final = ("learned", "learned, corrected")
ARMS: Final = ("analytic", "corrected", *BY_MODELS, *WAYS, "random")

Choose = Callable[[Sequence[int], Mapping[int, float]], int]
"""Which of the programs that are left is measured next, knowing the seconds of those that were."""


@dataclass(frozen=True)
class Lattice:
    """A region's programs, and the seconds that each takes."""

    region: Region
    target: Target
    family: str
    schedules: tuple[Schedule, ...]
    seconds: tuple[float, ...]


def lattices_of(export: Export, *, least: int = LEAST) -> list[Lattice]:
    """All of a dataset, by the id of their region. A program that was timed again takes the median of those times, the
    others theirs times the median of what these changed by."""
    first: dict[tuple[str, str], dict[Schedule, float]] = defaultdict(dict)
    again: dict[tuple[str, str, Schedule], list[float]] = defaultdict(list)
    for row in export.measurements(PROTOCOL):
        if row.schedule.kind != ScheduleKind.TILE or row.status != Status.OK or row.variables:
            continue
        if row.sampler == RETIMED:
            again[row.region_id, row.target, row.schedule].append(row.median_s)
        elif row.sampler in (UNIFORM, REST) and not row.trial:
            first[row.region_id, row.target][row.schedule] = row.median_s
    regions, targets, families = export.regions(), export.targets(), families_of(export.workloads())
    found = []
    for (region, target), times in sorted(first.items()):
        if len(times) >= least:
            later = {one: median(some) for one in times if (some := again.get((region, target, one)))}
            level = median([later[one] / times[one] for one in later] or [1.0])
            timed = {one: later.get(one, seconds * level) for one, seconds in times.items()}
            found.append(
                Lattice(regions[region], targets[target], families.get(region, ""), (*timed,), (*timed.values(),))
            )
    return found


def order_by(choose: Choose, seconds: Sequence[float], count: int) -> list[int]:
    """The first programs that an arm measures, each chosen by what those before it took."""
    known: dict[int, float] = {}
    while len(known) < min(count, len(seconds)):
        left = [place for place in range(len(seconds)) if place not in known]
        known[place] = seconds[place := choose(left, known)]
    return [*known]


def shares_of(order: Sequence[int], seconds: Sequence[float]) -> dict[int, float]:
    """An arm's share after each number of measurements, of the order in which it measures."""
    best = min(seconds)
    return {n: best / min(seconds[place] for place in order[: max(n, 1)]) for n in AFTER}


def random_shares(seconds: Sequence[float]) -> dict[int, float]:
    """The geometric mean of the shares of all orders. Of the i-th fastest of m, i from 0, the chance to be the fastest
    of n is C(m - 1 - i, n - 1) / C(m, n)."""
    ordered, m = sorted(seconds), len(seconds)
    found = {}
    for n in AFTER:
        drawn = min(max(n, 1), m)
        chances = [math.comb(m - 1 - place, drawn - 1) / math.comb(m, drawn) for place in range(m)]
        logs = (chance * math.log(ordered[0] / one) for chance, one in zip(chances, ordered, strict=True))
        found[n] = math.exp(sum(logs))
    return found


def by_judge(judge: Judge, schedules: Sequence[Schedule], *, corrected: bool) -> Choose:
    """The program that is expected to be fastest, corrected by what was measured, or not."""
    expected = [one.log_runtime for one in judge.predict(schedules)]

    def choose(left: Sequence[int], known: Mapping[int, float]) -> int:
        if corrected and known:
            measured = [(schedules[place], seconds) for place, seconds in known.items()]
            assert judge.correct is not None
            found = judge.correct([schedules[place] for place in left], measured)
            return left[int(np.argmin([one.log_runtime for one in found]))]
        return min(left, key=lambda place: expected[place])

    return choose


def row_of(
    lattice: Lattice, learned: PlanPredictor | None = None, elsewhere: Elsewhere | None = None
) -> dict[str, Any]:
    """The shares of all arms on one lattice; `learned` never saw its family, and of `elsewhere` no more is asked than
    of others."""
    space = space_of(lattice.region, lattice.target, ScheduleKind.TILE)
    arms = {"random": random_shares(lattice.seconds)}
    judges = {"analytic": KnownCost().of(space), **({} if learned is None else {"learned": learned.of(space)})}
    for name, judge in judges.items():
        for corrected in (False, True):
            choose = by_judge(judge, lattice.schedules, corrected=corrected)
            arm = name if not corrected else CORRECTED[name]
            arms[arm] = shares_of(order_by(choose, lattice.seconds, max(AFTER)), lattice.seconds)
    if elsewhere is not None:
        expected_s = [math.exp(one.log_runtime) for one in judges["analytic"].predict(lattice.schedules)]
        programs = Programs(space, lattice.schedules, expected_s)
        for name, ways in ways_of(programs, elsewhere, lattice.region, space, lattice.family).items():
            drawn = [shares_of(order_by(one, lattice.seconds, max(AFTER)), lattice.seconds) for one in ways]
            arms[name] = {n: math.exp(fmean(math.log(shares[n]) for shares in drawn)) for n in AFTER}
    return {
        "region": lattice.region.id[:12], "family": lattice.family, "group": group_of(lattice.region, lattice.target),
        "programs": len(lattice.seconds), "best_s": rounded(min(lattice.seconds)),
        "median_to_best": rounded(median(lattice.seconds) / min(lattice.seconds)),
        **{name: {str(n): rounded(share) for n, share in shares.items()} for name, shares in arms.items()},
    }  # fmt: skip


def headroom_closed(figures: Mapping[str, Any], n: int) -> float:
    """See the module."""
    prior, left = (figures[arm][str(n)]["share"] for arm in CORRECTED.values())
    return rounded(1 - math.log(left) / math.log(prior)) if prior < 1 else 0.0


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each arm and number of measurements: the mean share, its interval, and the tenth percentile."""
    found: dict[str, Any] = {}
    for arm in (one for one in ARMS if all(one in row for row in rows)):
        for n in map(str, AFTER):
            found.setdefault(arm, {})[n] = share_figure(np.log([row[arm][n] for row in rows]).tolist())
    return found


def main(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    frozen: Annotated[
        bool, typer.Option("--frozen", help="those of the frozen families, too: once, at the end")
    ] = False,
    learned: Annotated[Path | None, typer.Option(help="networks that left families out")] = None,
    ways: Annotated[bool, typer.Option(help="other ways to choose beside them: some minutes")] = True,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Compare the arms, and write the figures."""
    export = read_export(place_of(source))
    found = lattices_of(export)
    elsewhere = None
    if ways and found:
        known = [one for one in recorded(export, families_of(export.workloads())) if one.family not in FROZEN]
        elsewhere = Elsewhere(known, found[0].target)
    parts = [(PlanPredictor(one), never) for one, never in left_out_by(learned)] if learned is not None else []

    def unseen(family: str) -> PlanPredictor | None:
        return next((one for one, never in parts if family in never), parts[0][0] if parts else None)

    rows = [row_of(one, unseen(one.family), elsewhere) for one in found if frozen or one.family not in FROZEN]
    if not rows:
        raise UsageError(f"{source} has no lattice: evaluation.dataset.record says how to make some")
    figures = figures_of(rows)
    headline = {
        "analytic_unmeasured": figures["analytic"]["0"]["share"],
        "analytic_unmeasured_p10": figures["analytic"]["0"]["p10"],
        "analytic_at_4": figures["corrected"]["4"]["share"],
        "random_at_4": figures["random"]["4"]["share"],
    }
    if learned is not None:
        headline |= {
            "unmeasured": figures["learned"]["0"]["share"],
            "unmeasured_p10": figures["learned"]["0"]["p10"],
            "at_4": figures["learned, corrected"]["4"]["share"],
            "at_4_p10": figures["learned, corrected"]["4"]["p10"],
            "headroom_closed_0": headroom_closed(figures, 0),
            "headroom_closed_4": headroom_closed(figures, 4),
        }
    for n in ("0", "4"):
        others = [figures[arm][n]["share"] for arm in figures if arm not in BY_MODELS]
        headline[f"best_baseline_at_{n}"] = max(others)
    groups = dict(Counter(row["group"] for row in rows))
    entry = {"command": this_command(), "lattices": rows, "groups": groups, **figures}
    record_results(out, "lattices", entry, headline)
    typer.echo(json.dumps({"groups": groups, **figures}, indent=1))


if __name__ == "__main__":
    run_script(main)
