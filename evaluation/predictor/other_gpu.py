"""What networks say of a GPU that they never saw: with none of its measurements, and with fifty.

    python -m evaluation.predictor.left_out train datasets/h200-tiles --without "80 of 132" --out FOLDER
    python -m evaluation.predictor.other_gpu datasets/h200-tiles FOLDER

Asked about are the programs of that GPU of families that the networks never saw either; `seen` are those of families
that they were trained on, on another GPU. A region's share is the time of the fastest of its programs over that of the
one that is chosen; means are geometric, over regions, and intervals hold 95 % of bootstrap samples of regions. Fifty
rows of that GPU, of other families, drawn anew for each of five seeds, correct what the networks say in their last
hidden states (`kcg.predictor.correction`): no row of a region that is asked about. Beside them stand the formula that a
search begins with, which knows the GPU's numbers, and any choice. Updates evaluation/results/eval_tiles.json, run
`other gpu`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.dataset.record import FROZEN
from evaluation.predictor.intervals import share_figure
from evaluation.predictor.left_out import OUT, left_out_by, rows_of_target
from evaluation.rows import this_command
from kcg.cli import record_results, run_script
from kcg.dataset.noise import RETIMED
from kcg.dataset.reading import read_export
from kcg.dataset.sources import place_of
from kcg.errors import DataError
from kcg.predictor.correction import Correction
from kcg.predictor.ensemble import Ensemble, averaged, trusting
from kcg.predictor.features import Array
from kcg.predictor.training_data import TrainingData, load
from kcg.types import ScheduleKind

LEAST_ROWS: Final = 4  # of a region
MEASURED: Final = 50
SEEDS: Final = 5


def shares_of(data: TrainingData, rows: Array, predicted: Array) -> list[float]:
    """Of each region of these rows, in log-seconds: the fastest over the one that is predicted to be."""
    found = []
    for kernel in np.unique(data.kernel[rows]):
        inside = data.kernel[rows] == kernel
        log_s = data.log_s[rows][inside]
        if len(log_s) >= LEAST_ROWS:
            found.append(float(log_s.min() - log_s[np.argmin(predicted[inside])]))
    return found


def kernels_of(data: TrainingData, rows: Array) -> list[int]:
    """The regions of which `shares_of` says something."""
    kernels, counts = np.unique(data.kernel[rows], return_counts=True)
    return [int(kernel) for kernel in kernels[counts >= LEAST_ROWS]]


def any_choice(data: TrainingData, rows: Array) -> list[float]:
    """The same of a program that is drawn, in expectation."""
    each = (data.log_s[rows][data.kernel[rows] == kernel] for kernel in np.unique(data.kernel[rows]))
    return [float(log_s.min() - log_s.mean()) for log_s in each if len(log_s) >= LEAST_ROWS]


def main(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    folder: Annotated[Path, typer.Argument(help="what `left_out train --without` wrote")],
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Ask, and write the figures."""
    export = read_export(place_of(source))
    data, models = load(export.folder, kind=ScheduleKind.TILE), {k: one.model for k, one in export.targets().items()}
    families, retimed = np.array(data.families)[data.kernel], np.array([one == RETIMED for one in data.samplers])
    usable = np.isfinite(data.log_s) & ~retimed[data.sampler] & ~np.isin(families, FROZEN)
    logs: dict[str, list[float]] = {name: [] for name in ("formula", "learned", "learned, 50 measured", "any")}
    seen: dict[str, dict[int, float]] = {"formula": {}, "learned": {}}  # by region, in the first part that has it
    gpus, rows_asked = set[str](), 0
    for checkpoint, never in left_out_by(folder):
        if not (without := str(checkpoint.about.settings.get("without", ""))):
            raise DataError(f"{folder} has networks that left no GPU out: train them with --without")
        gpus.add(without)
        there = rows_of_target(data, models, without) & usable
        rows, others = (
            np.flatnonzero(there & (np.isin(families, sorted(never)) == inside)) for inside in (True, False)
        )
        (rank, sigma, hidden), (known, _, states) = (_said(checkpoint, data, some) for some in (rows, others))
        logs["formula"] += shares_of(data, rows, data.base[rows])
        logs["learned"] += shares_of(data, rows, rank)
        logs["any"] += any_choice(data, rows)
        for name, predicted in (("formula", data.base[others]), ("learned", known)):
            some = zip(kernels_of(data, others), shares_of(data, others, predicted), strict=True)
            seen[name] = {**dict(some), **seen[name]}
        corrected = []
        for seed in range(SEEDS):
            drawn = np.random.default_rng(seed).choice(len(others), min(MEASURED, len(others)), replace=False)
            correction = Correction(states[drawn])
            correction.observe(states[drawn], known[drawn], data.log_s[others[drawn]])
            corrected.append(shares_of(data, rows, correction.corrected(hidden, rank, sigma)[0]))
        logs["learned, 50 measured"] += [float(one) for one in np.mean(corrected, 0)]
        rows_asked += len(rows)
    figures: dict[str, Any] = {name: share_figure(each) for name, each in logs.items()}
    figures["seen"] = {name: share_figure([*each.values()]) for name, each in seen.items()}
    entry = {"without": sorted(gpus), "regions": len(logs["formula"]), "rows": rows_asked, **figures}
    headline = {
        "other_gpu_top1_at_0": figures["learned"]["share"],
        "other_gpu_top1_at_50": figures["learned, 50 measured"]["share"],
        "other_gpu_top1_formula": figures["formula"]["share"],
        "other_gpu_top1_seen_families": figures["seen"]["learned"]["share"],
    }
    record_results(out, "other gpu", {**entry, "command": this_command()}, headline)
    typer.echo(json.dumps(entry, indent=1))


def _said(checkpoint: Any, data: TrainingData, rows: Array) -> tuple[Array, Array, Array]:
    """Log-seconds, their standard deviations, and last hidden states of some rows."""
    some, about = data.take(rows), checkpoint.about
    outputs, hidden = Ensemble(checkpoint.nets)(
        some.graphs, some.kernel_x[some.kernel], some.target_x[some.target[some.kernel]]
    )
    outputs.rank[...] += some.base
    found = averaged(trusting(outputs, some.base, about.trust), about.spread_scale)
    return found["rank"], np.exp(found["log_sigma"]), hidden.astype(np.float64)


if __name__ == "__main__":
    run_script(main)
