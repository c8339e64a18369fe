"""What online correction is worth: the best schedule that is known after 0, 4, 8 and 16 measurements of a kernel.

    python -m evaluation.predictor.evaluate_correction CHECKPOINT
    python -m evaluation.predictor.evaluate_correction CHECKPOINT --part test \
        --docs docs/experiments/2026-11-23-correction.md

Scores are geometric means over kernels, in pools of the dataset and in its replay tables;
`evaluation.search.correcting` says what is measured and how it is judged. Writes
evaluation/results/eval_correction.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.documents import write_into
from evaluation.predictor.places import RESULTS, command
from evaluation.search.correcting import BUDGETS, METHODS, ORDERS, Pool, replay, steps_of, table_of
from kcg.cli import record_results, run_script
from kcg.dataset.reading import read_export
from kcg.dataset.splits import PARTS
from kcg.errors import UnknownName
from kcg.kernel.opts.traits import traits_of
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.checkpoint import Checkpoint, read
from kcg.predictor.ensemble import Ensemble, averaged
from kcg.predictor.features import Array
from kcg.predictor.training_data import TrainingData, evaluation_pool, load
from kcg.search.replay import FILE, read_tables
from kcg.types import Schedule, ScheduleKind

LEAST, RESAMPLES = 32, 2000  # schedules of a pool: of fewer, 16 measurements are half; draws for an interval


def pools_of(checkpoint: Checkpoint, data: TrainingData, bodies: Array, groups: list[Array]) -> Iterator[Pool]:
    """Some rows of each kernel, with what the checkpoint says of them."""
    asked = Ensemble(checkpoint.nets)
    for rows in groups:
        some = data.take(rows)
        said, hidden = asked(some.graphs, some.kernel_x[some.kernel], some.target_x[some.target[some.kernel]])
        outputs, embedding = averaged(said, checkpoint.about.spread_scale), hidden.astype(np.float64)
        opts = [Schedule(ScheduleKind.OPTS, body) for body in bodies[rows]]
        inputs = (outputs["rank"], np.exp(outputs["log_sigma"]), embedding, data.log_s[rows])
        yield Pool(*inputs, steps_of(opts), np.array([traits_of(schedule) for schedule in opts], np.int64))


def groups_of(data: TrainingData, bodies: Array, inside: Array, dataset: Path) -> dict[str, list[Array]]:
    """The rows of each kernel: those that no predictor drew, and those of its replay table, each schedule once."""
    tables = {t.region_id: t.table for t in read_tables(dataset)} if (dataset / FILE).exists() else {}
    found: dict[str, list[Array]] = {"pools": [], "tables": []}
    drawn = evaluation_pool(data)
    for k in np.unique(data.kernel[inside]):
        ours = np.flatnonzero(inside & (data.kernel == k))
        found["pools"].append(ours[drawn[ours]])
        if (table := tables.get(data.region_ids[k])) is not None:
            listed = {schedule.body for schedule in table.records}
            found["tables"].append(np.array(sorted({bodies[i]: i for i in ours if bodies[i] in listed}.values())))
    timed = np.isfinite(data.log_s)
    return {kind: [rows for rows in groups if timed[rows].sum() >= LEAST] for kind, groups in found.items()}


def entry_of(scores: dict[str, Array]) -> dict[str, Any]:
    """Geometric means, and 95 % intervals over kernels of what each correction gains on none; (kernels, budgets)."""
    rng, found = np.random.default_rng(0), {}
    for name, values in scores.items():
        logs = np.log(values)
        gain = logs - np.log(scores["none"])
        drawn = gain[rng.integers(0, len(gain), (RESAMPLES, len(gain)))].mean(1)
        low, high = np.exp(np.quantile(drawn, (0.025, 0.975), axis=0))
        found[name] = {
            f"top1_after_{budget}": {
                "score": round(float(np.exp(logs[:, i].mean())), 4),
                "gain_on_none": [round(float(low[i]), 4), round(float(high[i]), 4)],
            }
            for i, budget in enumerate(BUDGETS)
        }
    return found


def main(
    checkpoint: Annotated[Path, typer.Argument(help="a .safetensors file of kcg.predictor")],
    dataset: Annotated[Path, typer.Option(help="an export")] = Path("datasets/h200"),
    part: Annotated[str, typer.Option(help="of the checkpoint's split: validation, test …")] = "validation",
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "eval_correction.json",
    docs: Annotated[Path | None, typer.Option(help="a document whose table is written")] = None,
) -> None:
    """Replay every pool, then write the results."""
    if part not in PARTS:
        raise UnknownName("part", part, list(PARTS))
    export, predictor, data = read_export(dataset), read(checkpoint), load(dataset)
    bodies = np.array(export.table(PROTOCOL, ["schedule_body"])["schedule_body"].to_pylist(), object)[data.row]
    entry: dict[str, Any] = {"command": command("evaluate_correction"), "checkpoint": predictor.about.name}
    headline: dict[str, float] = {}
    for kind, groups in groups_of(data, bodies, data.part(predictor.about.split, part), dataset).items():
        pools = list(pools_of(predictor, data, bodies, groups))
        entry[kind] = {"kernels": len(pools), "schedules": sum(len(rows) for rows in groups)}
        for order in ORDERS if pools else ():
            scores = {
                name: np.array([replay(pool, method, order=order, seed=i) for i, pool in enumerate(pools)])
                for name, method in METHODS.items()
            }
            entry[kind][order] = entry_of(scores)
            for name, values in entry[kind][order].items():
                sys.stderr.write(f"{kind}, {order}, {name}: {[v['score'] for v in values.values()]}\n")
                if order == "greedy":
                    headline |= {f"{part}_{kind}_{name}_{key}": v["score"] for key, v in values.items()}
    record_results(out, f"{dataset.name} {part}", entry, headline)
    if docs is not None:
        write_into(docs, {"correction": table_of(entry)})


if __name__ == "__main__":
    run_script(main)
