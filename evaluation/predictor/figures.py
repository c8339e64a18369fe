"""The figures of `docs/predictor.md`: what each way to predict scores on kernels that it has never seen.

Every function answers one question from a dataset and a checkpoint; `evaluation.predictor.evaluate` asks them all.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluation.predictor.intervals import half_width, interval
from evaluation.predictor.trees import Trees, tree_rows
from kcg.dataset.noise import RETIMED
from kcg.dataset.reading import Export
from kcg.dataset.splits import TEST
from kcg.kernel.opts.schedule import opts_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.checkpoint import Checkpoint
from kcg.predictor.ensemble import Outputs, averaged, outputs_by
from kcg.predictor.features import Array
from kcg.predictor.metrics import Floors, KernelScores, auc, calibration, expected_best, kernel_scores, scores, summary
from kcg.predictor.roofline import Roofline
from kcg.predictor.training_data import TrainingData, pool_rows
from kcg.types import CacheState, Region, Schedule, ScheduleKind, Status, Target

SHIPPED_ROW = "ensemble"
SHOWN = ("pairwise", "kendall_tau", "top1", "top1_mean", "top5", "top5_mean")


@dataclass(frozen=True)
class Pool:
    """The rows of one part of a split on which rankings are judged, and how to judge them."""

    data: TrainingData
    index: Array  # (m,)
    floors: Floors

    def scored(self, rank: Array) -> list[KernelScores]:
        d, i = self.data, self.index
        return scores(rank, d.log_s[i], d.kernel[i], d.run[i], self.floors)

    def where(self, chosen: Array) -> Pool:
        """Only the rows of some kernels: `chosen` is (K,) bool."""
        return replace(self, index=self.index[chosen[self.data.kernel[self.index]]])


def pool_of(data: TrainingData, split: str, floors: Floors, part: str = TEST) -> Pool:
    """The pool of a part: fixed before training, and without a row that a predictor picked."""
    return Pool(data, pool_rows(data, split, part), floors)


def line(pool: Pool, rank: Array) -> dict[str, Any]:
    """One row of a table: every shown figure with its interval over kernels."""
    found = pool.scored(rank)
    values = summary(found, pool.data.calls)
    bounds = {name: interval(found, pool.data.calls, name) for name in SHOWN}
    return {**values, "intervals": bounds}


def seeds_line(pool: Pool, outputs: Outputs) -> dict[str, Any]:
    """The mean over single networks, with an interval over their seeds (Student's t)."""
    each = [summary(pool.scored(rank), pool.data.calls) for rank in outputs.rank]
    values = {name: statistics.fmean(v[name] for v in each) for name in each[0]}
    bounds = {}
    for name in SHOWN:
        half = half_width([v[name] for v in each])
        bounds[name] = (values[name] - half, values[name] + half)
    return {**values, "intervals": bounds, "seeds": len(each)}


def table(
    pool: Pool, outputs: Outputs, roofline: Array, mlp: Checkpoint | None, trees: Trees | None
) -> dict[str, dict[str, Any]]:
    """All ways to predict on one pool, by name; `outputs` is what the networks of the checkpoint say of its rows. `mlp`
    and `trees` are trained beside it."""
    rng = np.random.default_rng(0)
    rows = {"random": line(pool, rng.normal(size=len(pool.index))), "roofline": line(pool, roofline)}
    if mlp is not None:
        rows["MLP, one seed"] = seeds_line(pool, outputs_by(mlp.nets, pool.data, pool.index))
    if trees is not None:
        rows["LightGBM"] = line(pool, trees.predict(tree_rows(pool.data, pool.index)))
    rows["GNN, one seed"] = seeds_line(pool, outputs)
    rows[SHIPPED_ROW] = line(pool, averaged(outputs)["rank"])
    return rows


class Spaces:
    """The action spaces of a dataset's kernels, and the schedules of its rows."""

    def __init__(self, export: Export) -> None:
        self.regions: dict[str, Region] = export.regions()
        self.targets: dict[str, Target] = export.targets()
        self._bodies = export.table(PROTOCOL, ["schedule_body"])["schedule_body"]
        self._made: dict[tuple[str, str], KernelSpace] = {}

    def schedule(self, row: int) -> Schedule:
        return Schedule(ScheduleKind.OPTS, str(self._bodies[int(row)].as_py()))

    def of(self, region_id: str, target: str) -> KernelSpace:
        key = (region_id, target)
        if key not in self._made:
            self._made[key] = KernelSpace(self.regions[region_id], self.targets[target])
        return self._made[key]

    def scheduled(self, data: TrainingData, row: Any) -> tuple[KernelSpace, Schedule]:
        """The space and the schedule of a row of `data`."""
        kernel = data.kernel[row]
        return self.of(data.region_ids[kernel], data.targets[data.target[kernel]]), self.schedule(data.row[row])

    def roofline(self, data: TrainingData, index: Array) -> Array:
        """(m,) what the analytic model says of some rows."""
        found = np.zeros(len(index))
        by_kernel: dict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(index):
            by_kernel[int(data.kernel[row])].append(place)
        for kernel, places in by_kernel.items():
            space = self.of(data.region_ids[kernel], data.targets[data.target[kernel]])
            schedules = [self.schedule(data.row[index[place]]) for place in places]
            found[places] = [p.log_runtime for p in Roofline().predict(space, schedules)]
        return found


def noise_ceiling(export: Export, floors: Floors) -> dict[str, float]:
    """How well the same schedules, timed again on another occasion, rank themselves."""
    first: dict[tuple[str, str], tuple[float, str]] = {}
    again: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for record in export.records(PROTOCOL):
        m = record.measurement
        if m.status != Status.OK or m.cache_state != CacheState.COLD or m.trial:
            continue
        if m.sampler == RETIMED:
            again[m.region_id].append((m.binary_hash, m.median_s))
        else:
            first.setdefault((m.region_id, m.binary_hash), (m.median_s, m.run_id))
    found = []
    for number, (region, timed) in enumerate(sorted(again.items())):
        pairs = [(first[region, binary], seconds) for binary, seconds in timed if (region, binary) in first]
        if len(pairs) > 1:
            runs = {run: i for i, run in enumerate(sorted({run for (_, run), _ in pairs}))}
            log_s = np.log([seconds for (seconds, _), _ in pairs])
            run = np.array([runs[run] for (_, run), _ in pairs])
            found.append(kernel_scores(number, np.log([s for _, s in pairs]), log_s, run, floors))
    return summary(found, np.ones(len(again) + 1)) if found else {}


def by_family(pool: Pool, rank: Array) -> dict[str, dict[str, float]]:
    """The scores of each family of a pool."""
    families = np.array(pool.data.families)
    found = {}
    for family in sorted(set(families[pool.data.kernel[pool.index]])):
        chosen = families == family
        part = pool.where(chosen)
        values = summary(part.scored(rank[chosen[pool.data.kernel[pool.index]]]), pool.data.calls)
        found[str(family)] = {k: values[k] for k in ("kernels", "schedules", *SHOWN)}
    return found


def certainty(pool: Pool, outputs: Outputs, scale: float) -> dict[str, Any]:
    """Whether spreads are what they say over the pool, of which `outputs` is; `scale` is that of the checkpoint."""
    found = averaged(outputs, scale)
    log_s = pool.data.log_s[pool.index]
    timed = np.isfinite(log_s)
    z = (found["rank"] - log_s)[timed] * np.exp(-found["log_sigma"][timed])
    errors, sigma = np.abs((found["rank"] - log_s)[timed]), np.exp(found["log_sigma"][timed])
    order = np.argsort(sigma)
    deciles = np.array_split(order, 10)
    return {
        **{f"within {name} %": share for name, share in calibration(z).items()},
        "expected error by decile": [float(np.sqrt((sigma[d] ** 2).mean())) for d in deciles],
        "error by decile": [float(np.sqrt((errors[d] ** 2).mean())) for d in deciles],
        "log error": float(np.sqrt((errors**2).mean())),
    }


def failure_auc(data: TrainingData, split: str, checkpoint: Checkpoint, spaces: Spaces) -> dict[str, float]:
    """How well failures are told from successes over every row of the test part, with the rules on what is refused."""
    index = np.flatnonzero(data.part(split, TEST))
    logits = averaged(outputs_by(checkpoint.nets, data, index))["failure"]
    failed = data.failed[index]
    refused = np.array([space.refusals([s])[0] for space, s in (spaces.scheduled(data, row) for row in index)])
    with_rules = np.maximum(1 / (1 + np.exp(-logits)), refused)
    return {
        "failure_auc": auc(with_rules, failed),
        "failures": float(failed.sum()),
        "head alone": auc(logits, failed),
        "rules alone": auc(refused, failed),
    }


def worst_kernels(pool: Pool, rank: Array, spaces: Spaces, count: int = 10) -> list[dict[str, Any]]:
    """The kernels whose best-predicted schedule is furthest from the best, with both schedules."""
    found = sorted(pool.scored(rank), key=lambda s: s.best_s / s.top_s[0])[:count]
    report = []
    for one in found:
        rows = np.flatnonzero(pool.data.kernel[pool.index] == one.kernel)
        rows = rows[np.isfinite(pool.data.log_s[pool.index[rows]])]
        log_s = pool.data.log_s[pool.index[rows]]
        picked, best = rows[np.argmin(rank[rows])], rows[np.argmin(log_s)]
        region, target = pool.data.region_ids[one.kernel], pool.data.targets[pool.data.target[one.kernel]]
        space = spaces.of(region, target)
        schedules = {
            name: spaces.schedule(pool.data.row[pool.index[i]]) for name, i in (("picked", picked), ("best", best))
        }
        report.append(
            {
                "kernel": space.name(space.baseline()),
                "family": pool.data.families[one.kernel],
                "region": region[:12],
                "schedules": one.schedules,
                "top1": one.best_s / one.top_s[0],
                "pairwise": one.pairwise,
                "picked": [str(o) for o in opts_of(schedules["picked"])],
                "best": [str(o) for o in opts_of(schedules["best"])],
                "picked_us": 1e6 * math.exp(pool.data.log_s[pool.index[picked]]),
                "best_us": 1e6 * one.best_s,
                "picked_predicted_us": 1e6 * math.exp(rank[picked]),
                "best_predicted_us": 1e6 * math.exp(rank[best]),
            }
        )
    return report


def on_tables(
    named: Sequence[Any],
    predictor: Any,
    spaces: Spaces,
    wanted: set[str],
    calls: dict[str, int],
    tops: Sequence[int] = (1, 5, 16, 64),
) -> dict[str, Any]:
    """On complete lattices of some kernels: the best of the first k predicted over the lattice's optimum, and what k
    random ones reach in expectation."""
    rows = []
    for one in named:
        if one.region_id not in wanted:
            continue
        records = list(one.table.records.values())
        space = spaces.of(one.region_id, one.target)
        times = np.array([r.observation.time_s for r in records])
        outputs = predictor.predict(space, [r.observation.schedule for r in records])
        order = np.argsort([p.log_runtime + 10 * (p.failure_probability > 0.5) for p in outputs], kind="stable")
        ranked = np.sort(times[np.isfinite(times)])
        rows.append(
            {
                "region": one.region_id[:12],
                "schedules": len(records),
                "calls": calls.get(one.region_id, 1),
                "best_us": 1e6 * float(ranked[0]),
                **{f"top{k}": float(ranked[0] / times[order[:k]].min()) for k in tops},
                **{f"random{k}": float(ranked[0] / expected_best(ranked, k)) for k in tops},
            }
        )
    totals: dict[str, Any] = {"tables": len(rows), "rows": rows}
    for name in [f"{what}{k}" for what in ("top", "random") for k in tops]:
        if rows:
            weights = np.array([r["calls"] * r["best_us"] for r in rows])
            totals[name] = float(weights.sum() / (weights / np.array([r[name] for r in rows])).sum())
            totals[f"{name}_mean"] = float(np.exp(np.mean([math.log(r[name]) for r in rows])))
    return totals
