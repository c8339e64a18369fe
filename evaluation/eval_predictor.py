"""Every table and plot of docs/predictor.md, from the committed dataset and checkpoints, on a plain CPU.

    python evaluation/eval_predictor.py
    python evaluation/eval_predictor.py --dataset datasets/h200 --checkpoint FILE --out results.json --docs ""

Under each split: the pool of the test part, fixed before training; rankings within kernels; 95 % intervals over
kernels (over seeds for single networks). Writes results/eval_predictor.json, and the tables into the document between
its marks.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.commandline import guarded, record_results
from kcg.errors import DataError

HERE = Path(__file__).parent
ROOT = HERE.parent
CHECKPOINTS = HERE / "checkpoints"
HEADLINE = ("pairwise", "kendall_tau", "top1", "top5")
SHIPPED_ROW = "GNNs and LightGBM (shipped)"


def run(dataset: Path, shipped: Path, say: Any, *, speed: bool) -> dict[str, Any]:
    """All figures of one dataset."""
    import bench_predictor
    import numpy as np
    import predictor_figures as figures
    import torch

    from kcg.dataset.reading import read_export
    from kcg.dataset.splits import SPLITS, TEST
    from kcg.kernel.compiler import UOPS_MAX
    from kcg.predictor.checkpoint import read
    from kcg.predictor.data import load
    from kcg.predictor.ensemble import blend_of, blended, said_by_checkpoint
    from kcg.predictor.features import SCHEDULE_FEATURES
    from kcg.predictor.floors import floors_of
    from kcg.predictor.learned import LearnedPredictor
    from kcg.search.tables import read_tables

    began = time.monotonic()
    torch.manual_seed(0)
    export, data = read_export(dataset), load(dataset, say=say)
    floors, spaces = floors_of(export), figures.Spaces(export)
    checkpoint = read(shipped)
    told: dict[str, Any] = {
        "dataset": dataset.name, "rows": len(data), "floors": {"within": floors.within, "across": floors.across},
        "noise ceiling": figures.noise_ceiling(export, floors), "checkpoint": checkpoint.about.name, "splits": {},
    }  # fmt: skip
    for split in SPLITS:
        path = shipped if split == checkpoint.about.split else CHECKPOINTS / f"{dataset.name}-{split}.safetensors"
        if not path.is_file():
            say(f"no checkpoint of the split by {split}: {path.name}")
            continue
        one, pool = read(path), figures.pool_of(data, split, floors)
        if dict(one.about.datasets) != dict(data.checksums):
            say(f"{path.name} was trained on another version of {dataset.name}: its splits still hold")
        mlp = CHECKPOINTS / f"{dataset.name}-{split}-mlp.safetensors"
        roofline = spaces.roofline(data, pool.index)
        told["splits"][split] = {
            "all": figures.table(pool, one, roofline, read(mlp) if mlp.is_file() else None),
            "schedules": len(pool.index),
        }
        said = said_by_checkpoint(one, data, pool.index)
        rank = blended(said, blend_of(one))["rank"]
        if split == "workload":
            for name, chosen in (("twin in training", data.twin), ("no twin in training", ~data.twin)):
                part = pool.where(chosen)
                if len(part.index):
                    kept = chosen[data.kernel[pool.index]]
                    told["splits"][split][name] = {SHIPPED_ROW: figures.line(part, rank[kept])}
            uops = data.graphs.schedule[:, SCHEDULE_FEATURES.index("uops")] > np.log2(UOPS_MAX)
            told["failure"] = figures.failure_auc(data, split, one, uops)
            told["certainty"] = figures.certainty(pool, said, blend_of(one), pool.index)
            told["worst"] = figures.worst_kernels(pool, rank, spaces)
        else:
            told["splits"][split]["families"] = figures.by_family(pool, rank)
        say(f"split by {split}: {time.monotonic() - began:.0f} s")
    tests = {data.region_ids[k] for k in set(data.kernel[data.part("workload", TEST)])}
    calls = {region: int(n) for region, n in zip(data.region_ids, data.calls, strict=True)}
    tables = read_tables(dataset) if (dataset / "replay.parquet").is_file() else []
    told["tables"] = figures.on_tables(tables, LearnedPredictor(checkpoint), spaces, tests, calls)
    if speed:
        family = "flux"
        told["speed"] = bench_predictor.run(shipped, dataset, family, 256)
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


# ---- as text ----


def scores_table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A Markdown table of figures with intervals."""
    shown = {
        "pairwise": "pairwise", "kendall_tau": "Kendall τ", "top1": "top-1", "top1_mean": "top-1, unweighted",
        "top5": "top-5", "top5_mean": "top-5, unweighted",
    }  # fmt: skip
    lines = ["| | " + " | ".join(shown.values()) + " |", "|---|" + "---|" * len(shown)]
    for name, row in rows.items():
        cells = []
        for figure in shown:
            low, high = row["intervals"][figure]
            cells.append(f"{row[figure]:.3f} ({low:.3f}–{high:.3f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    first = next(iter(rows.values()))
    lines += ["", f"{first['kernels']:.0f} kernels, {first['schedules']:.0f} schedules."]
    return lines


def sections(told: dict[str, Any]) -> dict[str, list[str]]:
    """The generated parts of the document, by the name of their mark."""
    made = {f"split-{split}": scores_table(values["all"]) for split, values in told["splits"].items()}
    twins = {k: v[SHIPPED_ROW] for k, v in told["splits"].get("workload", {}).items() if k.endswith("in training")}
    if twins:
        made["twins"] = scores_table(twins)
        made["twins"][-1] = ", ".join(f"{name}: {row['kernels']:.0f} kernels" for name, row in twins.items()) + "."
    if families := told["splits"].get("kernel", {}).get("families"):
        made["families"] = [
            "| family | kernels | pairwise | Kendall τ | top-1 | top-5 |",
            "|---|---|---|---|---|---|",
        ] + [
            f"| {name} | {v['kernels']:.0f} | {v['pairwise']:.3f} | {v['kendall_tau']:.3f} | {v['top1_mean']:.3f} | "
            f"{v['top5_mean']:.3f} |"
            for name, v in families.items()
        ]
    if "certainty" in told:
        c = told["certainty"]
        made["calibration"] = [
            "| tenth of the schedules, by expected error | expected | found |", "|---|---|---|",
            *(
                f"| {i} | {a:.3f} | {b:.3f} |"
                for i, (a, b) in enumerate(zip(c["expected error by decile"], c["error by decile"], strict=True), 1)
            ),
            "", "Root mean squares of log-seconds. Of all errors "
            + ", ".join(f"{c[f'within {n} %']:.0%} lie in the interval meant for {n} %" for n in (50, 80, 95)) + ".",
        ]  # fmt: skip
        f = told["failure"]
        made["failure"] = [
            f"AUC {f['failure_auc']:.3f} over {f['failures']:.0f} failures of the test part (the network's head alone: "
            f"{f['head alone']:.3f})."
        ]
    if "worst" in told:
        made["worst"] = ["| kernel | top-1 | picked | takes | best | takes |", "|---|---|---|---|---|---|"] + [
            f"| `{w['kernel']}` ({w['region']}) | {w['top1']:.2f} | {_opts(w['picked'])} | {w['picked_us']:.1f} µs, "
            f"expected {w['picked_predicted_us']:.1f} | {_opts(w['best'])} | {w['best_us']:.1f} µs, expected "
            f"{w['best_predicted_us']:.1f} |"
            for w in told["worst"]
        ]
    if told["tables"].get("tables"):
        t = told["tables"]
        made["tables"] = ["| measured | best of the first predicted | best of random ones |", "|---|---|---|"] + [
            f"| {k} | {t[f'top{k}']:.3f} ({t[f'top{k}_mean']:.3f} unweighted) | {t[f'random{k}']:.3f} "
            f"({t[f'random{k}_mean']:.3f}) |"
            for k in (1, 5, 16, 64)
        ]
        made["tables"] += ["", f"{t['tables']} lattices of Flux's kernels; 1 is the lattice's optimum."]
    if told["noise ceiling"]:
        n = told["noise ceiling"]
        made["ceiling"] = [
            f"The same schedules, timed again on another machine, rank themselves with pairwise {n['pairwise']:.3f}, "
            f"τ {n['kendall_tau']:.3f} ({n['schedules']:.0f} schedules of {n['kernels']:.0f} kernels)."
        ]
    if "speed" in told:
        s = told["speed"]
        made["speed"] = ["| phase | µs a candidate | in the worst kernel |", "|---|---|---|"] + [
            f"| {name} | {value:.0f} | {s['microseconds_of_the_worst'][name]:.0f} |"
            for name, value in s["microseconds"].items()
        ]
        made["speed"] += [
            "", f"{s['candidates_per_s']:.0f} candidates a second on one core in the median kernel of Flux, "
            f"{s['worst_candidates_per_s']:.0f} in the worst.",
        ]  # fmt: skip
    return made


def _opts(opts: list[str]) -> str:
    return "`" + " ".join(opts) + "`" if opts else "unoptimised"


def write_into(document: Path, made: dict[str, list[str]]) -> None:
    """Put each part between its marks. Raises DataError where a mark has no end."""
    text = document.read_text()
    end = "<!-- end -->"
    for name, lines in made.items():
        before, mark, after = text.partition(f"<!-- generated: {name} -->")
        if mark:
            _, closed, rest = after.partition(end)
            if not closed:
                raise DataError(f"{document}: the mark {name} has no end")
            text = before + mark + "\n".join(["", "", *lines, "", ""]) + end + rest
    document.write_text(text)


def main(
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    checkpoint: Annotated[Path, typer.Option(help="a predictor's file")] = ROOT
    / "kcg/predictor/checkpoints/cuda.safetensors",
    out: Annotated[Path, typer.Option(help="the results file")] = HERE / "results" / "eval_predictor.json",
    docs: Annotated[str, typer.Option(help="the document whose tables are written; empty: none")] = str(
        ROOT / "docs/predictor.md"
    ),
    speed: Annotated[bool, typer.Option(help="measure candidates a second, too")] = True,
) -> None:
    """Evaluate a predictor and write down the figures."""
    told = run(dataset, checkpoint, lambda text: typer.echo(text, err=True), speed=speed)
    told["command"] = "python evaluation/eval_predictor.py"
    found = headline(told)
    record_results(out, dataset.name, told, found)
    if docs and Path(docs).is_file():
        write_into(Path(docs), sections(told))
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
