"""What `kcg calibrate` is worth on a GPU that nothing was learned of: fifty of its rows, and errors on other families.

    python -m evaluation.predictor.calibrating datasets/h200-tiles --gpu "80 of 132"

Of a recorded GPU that the shipped predictor of Opts never saw, fifty rows of half of the families, drawn anew for each
of forty seeds, fit the line of `kcg.predictor.calibrated`; the median of |measured - predicted|, in log-seconds, is
that of the rows of the other half, without the line and with it. The same of tile programs by their formula. Updates
evaluation/results/eval_tiles.json, run `calibrated`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.predictor.left_out import OUT
from evaluation.rows import rounded, this_command
from kcg.calibrate import predictions_of
from kcg.cli import record_results, run_script
from kcg.dataset.noise import RETIMED
from kcg.dataset.reading import Export, read_export
from kcg.dataset.sources import place_of
from kcg.dataset.splits import families_of
from kcg.errors import UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.calibrated import fitted
from kcg.predictor.choice import AUTO, choose_predictor
from kcg.predictor.features import Array
from kcg.types import ScheduleKind, Status

ROWS: Final = 50
SEEDS: Final = 40
KINDS: Final = (ScheduleKind.OPTS, ScheduleKind.TILE)


def predictions_on(export: Export, gpu: str) -> dict[str, list[tuple[float, float, str]]]:
    """By kind: predicted and measured log-seconds of the rows of single kernels on a GPU, and their families."""
    regions, families = export.regions(), families_of(export.workloads())
    there = [target for target in export.targets().values() if gpu in target.model]
    if len(there) != 1:
        raise UsageError(f"{len(there)} GPUs of the dataset have {gpu!r} in their names: name one")
    (target,) = there
    usable = (
        row
        for row in export.measurements(PROTOCOL)
        if row.target == target.fingerprint and row.sampler != RETIMED and row.status == Status.OK
        if not row.variables and len(regions[row.region_id].kernels) == 1
    )
    return predictions_of(usable, regions, families, choose_predictor(AUTO, target), target)


def errors_of(predicted: Array, measured: Array, families: Array) -> dict[str, Any]:
    """Median errors before and after, over seeds, with their 95 % range."""
    names, pairs = np.unique(families), []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        inside = np.isin(families, rng.permutation(names)[: len(names) // 2])
        drawn = rng.choice(np.flatnonzero(inside), min(ROWS, int(inside.sum())), replace=False)
        line = fitted(predicted[drawn], measured[drawn])
        left = measured[~inside] - predicted[~inside]
        shifted = left - [line.shift(one) for one in predicted[~inside]]
        pairs.append((np.median(np.abs(left)), np.median(np.abs(shifted))))
    before, after = np.array(pairs).T
    low, high = np.quantile(after - before, (0.025, 0.975))
    return {
        "rows": len(predicted),
        "families": len(names),
        "before": rounded(float(before.mean())),
        "after": rounded(float(after.mean())),
        "change_95": [rounded(float(low)), rounded(float(high))],
    }


def main(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    gpu: Annotated[str, typer.Option(help="part of the name of a GPU that no checkpoint saw")],
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Fit and ask, and write the figures."""
    export = read_export(place_of(source))
    predictions, entry = predictions_on(export, gpu), dict[str, dict[str, Any]]()
    for kind in map(str, KINDS):
        if not predictions[kind]:
            raise UsageError(f"the dataset has no rows of kind {kind} of that GPU")
        entry[kind] = errors_of(*map(np.array, zip(*predictions[kind], strict=True)))
    record_results(out, "calibrated", {**entry, "gpu": gpu, "command": this_command()}, {})
    typer.echo(json.dumps(entry, indent=1))


if __name__ == "__main__":
    run_script(main)
