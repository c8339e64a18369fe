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
- `oracle`: the best first.
- Ways that learn nothing of other families, or little: `arms.py` has them.
- Searches of kcg's, and tinygrad's BEAM: `searches.py`.

Beside that, what an arm has after so many seconds of the region, `after_seconds`: choosing, compiling and measuring, as
`equal_seconds.py` says. There `random` is drawn, and `measured` is how many programs were.

Means are geometric, over lattices; the intervals hold 95 % of bootstrap samples of lattices. `headroom closed` is the
share of what the corrected formula leaves, in logarithms, that the corrected networks do not: after as many
measurements. Arms that only some lattices have are in `on_some`, with the formula on the same lattices. Updates
evaluation/results/eval_tiles.json, run `lattices`.
"""

from __future__ import annotations

import gc
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.dataset.record import FROZEN, LEAST, group_of
from evaluation.predictor.arms import SEEDS, WAYS, Elsewhere, Programs, recorded, ways_of
from evaluation.predictor.equal_seconds import (
    CACHED_S,
    CORES,
    SECONDS,
    Costs,
    FormCosts,
    Timeline,
    costs_of,
    form_of,
    timeline_of,
)
from evaluation.predictor.intervals import share_figure
from evaluation.predictor.left_out import left_out_by
from evaluation.predictor.searches import BY_LEARNED, SEARCHES, searches_of
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
BY_MODELS: Final = ("learned", "learned, corrected", BY_LEARNED)
ORACLE: Final = "oracle"
ARMS: Final = ("analytic", "corrected", "learned", "learned, corrected", *WAYS, *SEARCHES, "random", ORACLE)

Choose = Callable[[Sequence[int], Mapping[int, float]], int]
"""Which of the programs that are left is measured next, knowing the seconds of those that were."""


@dataclass(frozen=True)
class Lattice:
    """A region's programs, the seconds that each takes, and those of making and measuring it, where they are known."""

    region: Region
    target: Target
    family: str
    schedules: tuple[Schedule, ...]
    seconds: tuple[float, ...]
    costs: Costs | None = None


def lattices_of(export: Export, *, least: int = LEAST, usual: Mapping[str, FormCosts] | None = None) -> list[Lattice]:
    """All of a dataset, by the id of their region. A program that was timed again takes the median of those times, the
    others theirs times the median of what these changed by. With what is `usual` by form, what each costs is known."""
    first: dict[tuple[str, str], dict[Schedule, float]] = defaultdict(dict)
    compile_s: dict[tuple[str, str, Schedule], float] = {}
    again: dict[tuple[str, str, Schedule], list[float]] = defaultdict(list)
    for row in export.measurements(PROTOCOL):
        if row.schedule.kind != ScheduleKind.TILE or row.status != Status.OK or row.variables:
            continue
        if row.sampler == RETIMED:
            again[row.region_id, row.target, row.schedule].append(row.median_s)
        elif row.sampler in (UNIFORM, REST) and not row.trial:
            first[row.region_id, row.target][row.schedule] = row.median_s
            compile_s[row.region_id, row.target, row.schedule] = row.compile_s
    regions, targets, families = export.regions(), export.targets(), families_of(export.workloads())
    found = []
    for (region, target), times in sorted(first.items()):
        if len(times) >= least:
            later = {one: median(some) for one in times if (some := again.get((region, target, one)))}
            level = median([later[one] / times[one] for one in later] or [1.0])
            timed = {one: later.get(one, seconds * level) for one, seconds in times.items()}
            made = [compile_s[region, target, one] for one in timed]
            costs = None if usual is None else costs_by(list(timed), made, usual)
            family = families.get(region, "")
            found.append(Lattice(regions[region], targets[target], family, (*timed,), (*timed.values(),), costs))
    return found


def costs_by(schedules: Sequence[Schedule], compile_s: Sequence[float], usual: Mapping[str, FormCosts]) -> Costs:
    """What programs cost that took so long to compile: `equal_seconds.py`."""
    by_form = [usual.get(form_of(one), usual[""]) for one in schedules]
    compiled = [own if own >= CACHED_S else one.compile_s for own, one in zip(compile_s, by_form, strict=True)]
    return Costs(compiled, [one.measure_s for one in by_form])


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


def oracle(seconds: Sequence[float]) -> Choose:
    """The best first."""
    return lambda left, known: min(left, key=lambda place: seconds[place])


def drawn(count: int, seed: int) -> Choose:
    """Any order."""
    ranks = random.Random(seed).sample(range(count), count)
    return lambda left, known: min(left, key=lambda place: ranks[place])


class Arms:
    """All arms on one lattice."""

    def __init__(self, lattice: Lattice, learned: PlanPredictor | None, elsewhere: Elsewhere | None) -> None:
        self.lattice, self._elsewhere = lattice, elsewhere
        space = self._space = space_of(lattice.region, lattice.target, ScheduleKind.TILE)
        self._judges: dict[str, Callable[[], Judge]] = (
            {} if learned is None else {"learned": partial(learned.of, space)}
        )
        self._judges["analytic"] = partial(KnownCost().of, space)
        # networks first: of a plan that they looked at the formula is worked out faster
        self._judging_s = {name: self._judged(judge) for name, judge in self._judges.items()}
        self.searches = searches_of(space, lattice.schedules, lattice.seconds, self._judges, SEEDS)
        self._programs: Programs | None = None
        if elsewhere is not None:
            predicted = self._judges["analytic"]().predict(lattice.schedules)
            began = time.process_time()
            self._programs = Programs(space, lattice.schedules, [math.exp(one.log_runtime) for one in predicted])
            self._looking_s = time.process_time() - began

    def _judged(self, judge: Callable[[], Judge]) -> float:
        began = time.process_time()
        judge().predict(self.lattice.schedules)
        return time.process_time() - began

    def ways(self) -> dict[str, list[Choose]]:
        """Those that choose one program after the other, as they are before they chose any."""
        lattice, found = self.lattice, dict[str, list[Choose]]()
        for name, judge in self._judges.items():
            found[name] = [by_judge(judge(), lattice.schedules, corrected=False)]
            found[CORRECTED[name]] = [by_judge(judge(), lattice.schedules, corrected=True)]
        if self._programs is not None and self._elsewhere is not None:
            found |= ways_of(self._programs, self._elsewhere, lattice.region, self._space, lattice.family)
        return found | {ORACLE: [oracle(lattice.seconds)]}

    def shares(self) -> dict[str, dict[int, float]]:
        """Of each after so many measurements."""
        seconds, most = self.lattice.seconds, max(AFTER)
        orders = {name: [order_by(one, seconds, most) for one in ways] for name, ways in self.ways().items()}
        orders |= {name: [one.order(most) for one in some] for name, some in self.searches.items()}
        found = {"random": random_shares(seconds)}
        for name, some in orders.items():
            of_each = [shares_of(order, seconds) for order in some]
            found[name] = {n: geometric([shares[n] for shares in of_each]) for n in AFTER}
        return found

    def timelines(self, costs: Costs) -> dict[str, list[Timeline]]:
        """What each does in time."""
        seconds = self.lattice.seconds
        found = {
            name: [timeline_of(one, seconds, costs, begins_s=self.begins_s(name)) for one in ways]
            for name, ways in (self.ways() | {"random": [drawn(len(seconds), seed) for seed in range(SEEDS)]}).items()
        }
        searches = self.searches.items()  # of these one seed: they take longest, and the clock draws beside it
        return found | {name: [one.timeline(costs, begins_s=self.begins_s(name))] for name, (one, *_) in searches}

    def begins_s(self, arm: str) -> float:
        """When it has judged all programs, by the model that it has."""
        if arm in ("random", ORACLE):
            return 0.0
        judged = self._judging_s["learned" if arm in BY_MODELS else "analytic"]
        return judged + (self._looking_s if arm in WAYS else 0.0)


def geometric(shares: Sequence[float]) -> float:
    """Their mean."""
    return math.exp(fmean(map(math.log, shares)))


def row_of(
    lattice: Lattice, learned: PlanPredictor | None = None, elsewhere: Elsewhere | None = None
) -> dict[str, Any]:
    """The shares of all arms on one lattice; `learned` never saw its family, and of `elsewhere` no more is asked than
    of others."""
    arms = Arms(lattice, learned, elsewhere)
    shares = arms.shares()
    row = {
        "region": lattice.region.id[:12], "family": lattice.family, "group": group_of(lattice.region, lattice.target),
        "programs": len(lattice.seconds), "best_s": rounded(min(lattice.seconds)),
        "median_to_best": rounded(median(lattice.seconds) / min(lattice.seconds)),
        **{name: {str(n): rounded(share) for n, share in found.items()} for name, found in shares.items()},
    }  # fmt: skip
    if lattice.costs is not None:
        unknown = shares["random"][0]
        row["after_seconds"] = {
            name: {
                f"{after:g}": {
                    "share": rounded(geometric([one.share(after, lattice.seconds, unknown) for one in some])),
                    "measured": rounded(fmean(one.measured(after) for one in some)),
                }
                for after in SECONDS
            }
            for name, some in arms.timelines(lattice.costs).items()
        }
    return row


def headroom_closed(figures: Mapping[str, Any], n: int) -> float:
    """See the module."""
    prior, left = (figures[arm][str(n)]["share"] for arm in CORRECTED.values())
    return rounded(1 - math.log(left) / math.log(prior)) if prior < 1 else 0.0


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each arm that all have, and number of measurements: the mean share, its interval, and the tenth percentile."""
    found: dict[str, Any] = {}
    for arm in (one for one in ARMS if all(one in row for row in rows)):
        for n in map(str, AFTER):
            found.setdefault(arm, {})[n] = share_figure(np.log([row[arm][n] for row in rows]).tolist())
    return found


def figures_in_seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same of each arm after so many seconds, and how many programs it measured by then."""
    found: dict[str, Any] = {}
    timed = [row["after_seconds"] for row in rows if "after_seconds" in row]
    for arm in (one for one in ARMS if timed and all(one in row for row in timed)):
        for after in (f"{one:g}" for one in SECONDS):
            of_each = [row[arm][after] for row in timed]
            figure = share_figure(np.log([one["share"] for one in of_each]).tolist())
            measured = rounded(fmean(one["measured"] for one in of_each))
            found.setdefault(arm, {})[after] = {**figure, "measured": measured}
    return found


def figures_on_some(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each arm that only some lattices have: all its figures there, and those of the formula."""
    found: dict[str, Any] = {}
    for arm in ARMS:
        some = [row for row in rows if arm in row]
        if 0 < len(some) < len(rows):
            by_number, by_seconds = figures_of(some), figures_in_seconds(some)
            own = {"lattices": len(some), **{one: by_number[one] for one in (arm, "analytic")}}
            found[arm] = own | {"after_seconds": {one: by_seconds[one] for one in (arm, "analytic") if by_seconds}}
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
    usual = costs_of(export.records(PROTOCOL), export.runs())
    found = lattices_of(export, usual=usual)
    elsewhere = None
    if ways and found:
        known = [one for one in recorded(export, families_of(export.workloads())) if one.family not in FROZEN]
        elsewhere = Elsewhere(known, found[0].target)
    parts = [(PlanPredictor(one), never) for one, never in left_out_by(learned)] if learned is not None else []

    gc.freeze()  # so that what arms take is not spent on looking through the dataset again

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
        others = [figures[arm][n]["share"] for arm in figures if arm not in (*BY_MODELS, ORACLE)]
        headline[f"best_baseline_at_{n}"] = max(others)
    groups = dict(Counter(row["group"] for row in rows))
    figures |= {
        "after_seconds": figures_in_seconds(rows), "on_some": figures_on_some(rows),
        "costs": {"cores": CORES, **{form or "any": asdict(one) for form, one in usual.items()}},
    }  # fmt: skip
    kept = [{name: value for name, value in row.items() if name != "after_seconds"} for row in rows]  # half a megabyte
    entry = {"command": this_command(), "lattices": kept, "groups": groups, **figures}
    record_results(out, "lattices", entry, headline)
    typer.echo(json.dumps({"groups": groups, **figures}, indent=1))


if __name__ == "__main__":
    run_script(main)
