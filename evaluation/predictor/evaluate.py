r"""Every table of docs/predictor.md, from the committed dataset and checkpoints, on a plain CPU.

    python -m evaluation.predictor.evaluate
    python -m evaluation.predictor.evaluate --dataset datasets/cpu \
        --checkpoint kcg/predictor/checkpoints/cpu.safetensors

Under each split: the pool of the test part, fixed before training; rankings within kernels; 95 % intervals over
kernels (over seeds for single networks). Writes results/eval_predictor.json, and the tables into the document between
its marks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.documents import write_into
from evaluation.predictor.bench import speed_of
from evaluation.predictor.figures import (
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
from evaluation.predictor.figures_text import sections
from evaluation.predictor.places import CHECKPOINTS, DOCUMENT, RESULTS, ROOT, SHIPPED, command
from evaluation.predictor.trees import read_trees
from kcg.cli import record_results, run_script
from kcg.dataset.reading import read_export
from kcg.dataset.splits import SPLITS, TEST, TEST_FAMILY
from kcg.predictor.checkpoint import read
from kcg.predictor.ensemble import averaged, outputs_by
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.metrics import floors_of
from kcg.predictor.training_data import load
from kcg.search.replay import FILE, read_tables

MAIN = "h200"  # the dataset that the document is about
HEADLINE = ("pairwise", "kendall_tau", "top1", "top5")
SPEED_SCHEDULES = 256

Log = Callable[[str], None]


def evaluate(
    dataset: Path, shipped: Path, others: Path, tables: Sequence[Any], *, log: Log, speed: bool
) -> dict[str, Any]:
    """All figures of one dataset. `others` is the folder of the checkpoints of the other splits; `tables` are the
    dataset's replay tables."""
    began = time.monotonic()
    export, data = read_export(dataset), load(dataset, log=log)
    floors, spaces = floors_of(export), Spaces(export)
    checkpoint = read(shipped)
    report: dict[str, Any] = {
        "dataset": dataset.name,
        "rows": len(data),
        "floors": {"within": floors.within, "across": floors.across},
        "noise ceiling": noise_ceiling(export, floors),
        "checkpoint": checkpoint.about.name,
        "splits": {},
    }
    for split in SPLITS:
        path = shipped if split == checkpoint.about.split else others / f"{dataset.name}-{split}.safetensors"
        if not path.is_file():
            log(f"no checkpoint of the split by {split}: {path.name}")
            continue
        one, pool = read(path), pool_of(data, split, floors)
        if dict(one.about.datasets) != dict(data.checksums):
            log(f"{path.name} was trained on another version of {dataset.name}: its splits still hold")
        mlp, trees = (others / f"{dataset.name}-{split}-{what}.safetensors" for what in ("mlp", "trees"))
        outputs = outputs_by(one.nets, data, pool.index)
        rank = averaged(outputs)["rank"]
        report["splits"][split] = {
            "all": table(
                pool,
                outputs,
                spaces.roofline(data, pool.index),
                read(mlp) if mlp.is_file() else None,
                read_trees(trees) if trees.is_file() else None,
            ),
            "schedules": len(pool.index),
        }
        if split == "workload":
            for name, chosen in (("twin in training", data.twin), ("no twin in training", ~data.twin)):
                part = pool.where(chosen)
                if len(part.index):
                    kept = chosen[data.kernel[pool.index]]
                    report["splits"][split][name] = {SHIPPED_ROW: line(part, rank[kept])}
            report["failure"] = failure_auc(data, split, one, spaces)
            report["certainty"] = certainty(pool, outputs, one.about.spread_scale)
            report["worst"] = worst_kernels(pool, rank, spaces)
        else:
            report["splits"][split]["families"] = by_family(pool, rank)
        log(f"split by {split}: {time.monotonic() - began:.0f} s")
    tests = {data.region_ids[k] for k in set(data.kernel[data.part("workload", TEST)])}
    calls = {region: int(n) for region, n in zip(data.region_ids, data.calls, strict=True)}
    report["tables"] = on_tables(tables, LearnedPredictor(checkpoint), spaces, tests, calls)
    if speed:
        report["speed"] = speed_of(shipped, dataset, TEST_FAMILY, SPEED_SCHEDULES)
    report["spent_s"] = time.monotonic() - began
    return report


def headline(report: dict[str, Any]) -> dict[str, float]:
    """What is compared with the targets: the split with Flux held out."""
    row = report["splits"]["workload"]["all"][SHIPPED_ROW]
    found = {name: row[name] for name in HEADLINE}
    found["failure_auc"] = report["failure"]["failure_auc"]
    if report["tables"].get("tables"):
        found["tables_top16"] = report["tables"]["top16"]
    if "speed" in report:
        found["candidates_per_s"] = report["speed"]["candidates_per_s"]
        found["worst_candidates_per_s"] = report["speed"]["worst_candidates_per_s"]
    return found


def main(
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / MAIN,
    checkpoint: Annotated[Path, typer.Option(help="a predictor's file")] = SHIPPED,
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "eval_predictor.json",
    docs: Annotated[str, typer.Option(help="the document whose tables are written; empty: none")] = str(DOCUMENT),
    speed: Annotated[bool, typer.Option(help="measure candidates a second, too")] = True,
) -> None:
    """Evaluate a predictor and write down the figures."""
    tables = read_tables(dataset) if (dataset / FILE).is_file() else []
    report = evaluate(
        dataset, checkpoint, CHECKPOINTS, tables, log=lambda text: typer.echo(text, err=True), speed=speed
    )
    report["command"] = command("evaluate")
    before = "" if dataset.name == MAIN else f"{dataset.name}_"  # the headline proper is that of the H200
    found = {before + name: value for name, value in headline(report).items()}
    record_results(out, dataset.name, report, found)
    if docs and Path(docs).is_file():
        write_into(Path(docs), {before.replace("_", "-") + name: lines for name, lines in sections(report).items()})
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    run_script(main)
