"""Everything that `docs/predictor.md` tells of a predictor, from a dataset and checkpoints, on a plain CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kcg.dataset.reading import read_export
from kcg.dataset.splits import SPLITS, TEST, TEST_FAMILY
from kcg.predictor.checkpoint import read
from kcg.predictor.data import load
from kcg.predictor.ensemble import blend_of, blended, said_by_checkpoint
from kcg.predictor.figures import (
    SHIPPED_ROW,
    Spaces,
    by_family,
    certainty,
    failure_auc,
    line,
    noise_ceiling,
    on_tables,
    pool_of,
    table,
    worst_kernels,
)
from kcg.predictor.floors import floors_of
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.speed import speed_of

HEADLINE = ("pairwise", "kendall_tau", "top1", "top5")
SPEED_SCHEDULES = 256

Say = Callable[[str], None]


def evaluate(
    dataset: Path, shipped: Path, others: Path, tables: Sequence[Any], *, say: Say, speed: bool
) -> dict[str, Any]:
    """All figures of one dataset. `others` is the folder of the checkpoints of the other splits; `tables` are the
    dataset's replay tables."""
    began = time.monotonic()
    torch.manual_seed(0)
    export, data = read_export(dataset), load(dataset, say=say)
    floors, spaces = floors_of(export), Spaces(export)
    checkpoint = read(shipped)
    told: dict[str, Any] = {
        "dataset": dataset.name, "rows": len(data), "floors": {"within": floors.within, "across": floors.across},
        "noise ceiling": noise_ceiling(export, floors), "checkpoint": checkpoint.about.name, "splits": {},
    }  # fmt: skip
    for split in SPLITS:
        path = shipped if split == checkpoint.about.split else others / f"{dataset.name}-{split}.safetensors"
        if not path.is_file():
            say(f"no checkpoint of the split by {split}: {path.name}")
            continue
        one, pool = read(path), pool_of(data, split, floors)
        if dict(one.about.datasets) != dict(data.checksums):
            say(f"{path.name} was trained on another version of {dataset.name}: its splits still hold")
        mlp, trees = (others / f"{dataset.name}-{split}-{what}.safetensors" for what in ("mlp", "trees"))
        roofline = spaces.roofline(data, pool.index)
        said, blend = said_by_checkpoint(one, data, pool.index), blend_of(one)
        rank = blended(said, blend)["rank"]
        told["splits"][split] = {
            "all": table(pool, said, blend, roofline, *(read(p) if p.is_file() else None for p in (mlp, trees))),
            "schedules": len(pool.index),
            "tree share": blend.tree_share,
        }
        if split == "workload":
            for name, chosen in (("twin in training", data.twin), ("no twin in training", ~data.twin)):
                part = pool.where(chosen)
                if len(part.index):
                    kept = chosen[data.kernel[pool.index]]
                    told["splits"][split][name] = {SHIPPED_ROW: line(part, rank[kept])}
            told["failure"] = failure_auc(data, split, one, spaces)
            told["certainty"] = certainty(pool, said, blend)
            told["worst"] = worst_kernels(pool, rank, spaces)
        else:
            told["splits"][split]["families"] = by_family(pool, rank)
        say(f"split by {split}: {time.monotonic() - began:.0f} s")
    tests = {data.region_ids[k] for k in set(data.kernel[data.part("workload", TEST)])}
    calls = {region: int(n) for region, n in zip(data.region_ids, data.calls, strict=True)}
    told["tables"] = on_tables(tables, LearnedPredictor(checkpoint), spaces, tests, calls)
    if speed:
        told["speed"] = speed_of(shipped, dataset, TEST_FAMILY, SPEED_SCHEDULES)
    told["spent_s"] = time.monotonic() - began
    return told


def headline(told: dict[str, Any]) -> dict[str, float]:
    """What is compared with the targets: the split with Flux held out."""
    row = told["splits"]["workload"]["all"][SHIPPED_ROW]
    found = {name: row[name] for name in HEADLINE}
    found["failure_auc"] = told["failure"]["failure_auc"]
    if told["tables"].get("tables"):
        found["tables_top16"] = told["tables"]["top16"]
    if "speed" in told:
        found["candidates_per_s"] = told["speed"]["candidates_per_s"]
        found["worst_candidates_per_s"] = told["speed"]["worst_candidates_per_s"]
    return found
