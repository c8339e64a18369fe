"""How much of a target's own data a predictor of another target needs: fine-tuned on shares of it, beside from nothing.

Every share is trained for the same number of steps, and the last network counts: who has few rows of a target has no
validation part to stop by. All are judged on the test part of the split by workload.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kcg.dataset.reading import read_export
from kcg.dataset.splits import TEST
from kcg.errors import DataError
from kcg.predictor.checkpoint import Checkpoint
from kcg.predictor.data import TrainingData, load
from kcg.predictor.fit import Fit, FitSettings, judge, pool_rows, predicted, rows_of_kernels
from kcg.predictor.floors import floors_of
from kcg.predictor.gnn import Net
from kcg.predictor.metrics import Floors, half_width

SHARES = (0.0, 0.01, 0.05, 0.1)
STEPS = 300
TUNED_RATE = 1e-3  # learning rate of what is trained already
AVERAGE = 0.98  # a mean over fewer steps: with that of a whole training the first weights would still count a fifth
FIGURES = ("pairwise", "kendall_tau", "top1_mean", "top5_mean", "log_error")
TUNED, FRESH = "fine-tuned", "from nothing"

Say = Callable[[str], None]


def transfer(
    dataset: Path, checkpoint: Checkpoint, work: Path, *, shares: Sequence[float] = SHARES, seeds: int = 3,
    steps: int = STEPS, device: str = "cpu", say: Say = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """The figures of every share, for networks that begin as those of the checkpoint and for new ones, over seeds.

    What is trained stays in `work`, so that a run that was cut goes on. Raises DataError where the dataset cannot be
    read, has nothing to train or to judge on, or the checkpoint has no network.
    """
    if not checkpoint.nets:
        raise DataError(f"{checkpoint.about.name} has no network that could be trained on")
    export, data = read_export(dataset), load(dataset, say=say)
    floors, index = floors_of(export), pool_rows(data, "workload", TEST)
    if not len(index):
        raise DataError(f"{dataset} has no test part under the split by workload")
    told: dict[str, Any] = {"from": checkpoint.about.name, "to": dataset.name, "steps": steps, "shares": {}}
    for share in shares:
        kernels = len(_rows(data, share)) if share else 0
        row: dict[str, Any] = {"kernels": kernels, "rows": int(sum(map(len, _rows(data, share)))) if share else 0}
        for how, starts in ((TUNED, checkpoint.nets), (FRESH, ())):
            if not share and how == FRESH:
                continue
            each = []
            for seed in range(seeds):
                start = starts[seed % len(starts)] if starts else None
                folder = work / f"{how.replace(' ', '-')}-{share:g}-{seed}"
                fit = _fit(
                    data, start or checkpoint.nets[0], share, seed, steps, start is not None, folder, floors, device
                )
                net = fit.run() if share else fit.averaged
                each.append(judge(data, predicted(net, fit.graphs, index), index, floors))
            row[how] = {name: [values[name] for values in each] for name in FIGURES}
            say(f"{share:.0%} of {dataset.name}, {how}: pairwise {sum(row[how]['pairwise']) / seeds:.3f}")
        told["shares"][f"{share:g}"] = row
    return told


def _rows(data: TrainingData, share: float) -> list[Any]:
    return rows_of_kernels(data, FitSettings(share=share))


def _fit(
    data: TrainingData, like: Net, share: float, seed: int, steps: int, tuned: bool, folder: Path, floors: Floors,
    device: str,
) -> Fit:  # fmt: skip
    usual = FitSettings()
    kernels = len(_rows(data, share or 1.0))
    epochs = max(1, math.ceil(steps / math.ceil(kernels / usual.kernels_a_step)))
    settings = replace(
        usual, seed=seed, share=share or 1.0, epochs=epochs, validate_every=epochs, average=AVERAGE, net=like.settings,
        learning_rate=TUNED_RATE if tuned else usual.learning_rate,
    )  # fmt: skip
    torch.manual_seed(seed)
    return Fit(data, settings, folder, floors=floors, device=device, start=like if tuned else None)


def table_of(told: dict[str, Any]) -> list[str]:
    """The Markdown table."""
    lines = ["| share of the kernels | rows | | pairwise | Kendall τ | top-1, unweighted | error |", "|---" * 7 + "|"]
    for share, row in told["shares"].items():
        for how in (TUNED, FRESH):
            if how in row:
                cells = [_cell(row[how][name]) for name in ("pairwise", "kendall_tau", "top1_mean", "log_error")]
                lines.append(f"| {float(share):.0%} | {row['rows']:,} | {how} | " + " | ".join(cells) + " |")
    seeds = len(next(iter(told["shares"].values()))[TUNED]["pairwise"])
    said = (
        f"From {told['from']} to the dataset {told['to']}: {told['steps']} steps each, mean and 95 % interval over "
        f"{seeds} seeds; error is the root mean square of log-seconds."
    )
    return [*lines, "", said]


def _cell(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f} ± {half_width(values):.3f}"
