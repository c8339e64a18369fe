"""How much of a target's own data does a predictor of another target need?

    python -m evaluation.predictor.transfer
    python -m evaluation.predictor.transfer --dataset datasets/cpu --shares 0,0.01 --seeds 1 --docs ""

The shipped CUDA networks are fine-tuned on shares of the CPU's dataset, beside new ones trained on the same rows.
Writes results/transfer_predictor.json, and the table into the document. A run that was cut goes on.

Every share is trained for the same number of steps, and the last network counts: who has few rows of a target has no
validation part to stop by. All are judged on the test part of the split by workload.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from evaluation.documents import write_into
from evaluation.predictor.intervals import half_width
from evaluation.predictor.places import RESULTS, ROOT, SHIPPED, WORK, command
from kcg.cli import record_results, run_script
from kcg.dataset.reading import read_export
from kcg.dataset.splits import TEST
from kcg.errors import DataError, UsageError
from kcg.predictor.checkpoint import Checkpoint, read
from kcg.predictor.metrics import Floors, floors_of
from kcg.predictor.training_data import TrainingData, load, pool_rows
from kcg.training.fit import Fit, FitSettings, judge, rows_of_kernels
from kcg.training.network import Net, predicted
from kcg.training.predictor import devices_of

SHARES = (0.0, 0.01, 0.05, 0.1)
STEPS = 300
TUNED_RATE = 1e-3  # learning rate of what is trained already
AVERAGE = 0.98  # a mean over fewer steps: with that of a whole training the first weights would still count a fifth
FIGURES = ("pairwise", "kendall_tau", "top1_mean", "top5_mean", "log_error")
TUNED, FRESH = "fine-tuned", "from nothing"

Log = Callable[[str], None]


def transfer(
    dataset: Path,
    checkpoint: Checkpoint,
    work: Path,
    *,
    shares: Sequence[float] = SHARES,
    seeds: int = 3,
    steps: int = STEPS,
    device: str = "cpu",
    log: Log = lambda line: None,
) -> dict[str, Any]:
    """The figures of every share, for networks that begin as those of the checkpoint and for new ones, over seeds.

    What is trained stays in `work`, so that a run that was cut goes on. Raises DataError where the dataset cannot be
    read, or has nothing to train or to judge on.
    """
    export, data = read_export(dataset), load(dataset, log=log)
    floors, index = floors_of(export), pool_rows(data, "workload", TEST)
    if not len(index):
        raise DataError(f"{dataset} has no test part under the split by workload")
    nets = [Net.of(net) for net in checkpoint.nets]
    made: dict[str, Any] = {"from": checkpoint.about.name, "to": dataset.name, "steps": steps, "shares": {}}
    for share in shares:
        kernels = len(_rows(data, share)) if share else 0
        row: dict[str, Any] = {"kernels": kernels, "rows": int(sum(map(len, _rows(data, share)))) if share else 0}
        for how, starts in ((TUNED, nets), (FRESH, [])):
            if not share and how == FRESH:
                continue
            each = []
            for seed in range(seeds):
                begins = starts[seed % len(starts)] if starts else None
                trained = _Trained(share, seed, steps, nets[0] if begins is None else begins, begins is not None)
                folder = work / f"{how.replace(' ', '-')}-{share:g}-{seed}"
                fit = _fit(data, trained, folder, floors, device=device)
                net = fit.run() if share else fit.averaged
                each.append(judge(data, predicted(net, fit.graphs, index), index, floors))
            row[how] = {name: [values[name] for values in each] for name in FIGURES}
            log(f"{share:.0%} of {dataset.name}, {how}: pairwise {sum(row[how]['pairwise']) / seeds:.3f}")
        made["shares"][f"{share:g}"] = row
    return made


def _rows(data: TrainingData, share: float) -> list[Any]:
    return rows_of_kernels(data, FitSettings(share=share))


@dataclass(frozen=True)
class _Trained:
    """One network that is trained."""

    share: float  # of the training kernels
    seed: int
    steps: int
    like: Net
    tuned: bool  # it begins as `like`; otherwise it is a new one of its shape


def _fit(data: TrainingData, trained: _Trained, folder: Path, floors: Floors, *, device: str) -> Fit:
    usual, share, like, tuned = FitSettings(), trained.share, trained.like, trained.tuned
    kernels = len(_rows(data, share or 1.0))
    epochs = max(1, math.ceil(trained.steps / math.ceil(kernels / usual.kernels_a_step)))
    settings = replace(
        usual,
        seed=trained.seed,
        share=share or 1.0,
        epochs=epochs,
        validate_every=epochs,
        average=AVERAGE,
        net=like.settings,
        learning_rate=TUNED_RATE if tuned else usual.learning_rate,
    )
    torch.manual_seed(trained.seed)
    return Fit(data, settings, folder, floors=floors, device=device, start=like if tuned else None)


def table_of(made: dict[str, Any]) -> list[str]:
    """The Markdown table."""
    lines = ["| share of the kernels | rows | | pairwise | Kendall τ | top-1, unweighted | error |", "|---" * 7 + "|"]
    for share, row in made["shares"].items():
        for how in (TUNED, FRESH):
            if how in row:
                cells = [_cell(row[how][name]) for name in ("pairwise", "kendall_tau", "top1_mean", "log_error")]
                lines.append(f"| {float(share):.0%} | {row['rows']:,} | {how} | " + " | ".join(cells) + " |")
    seeds = len(next(iter(made["shares"].values()))[TUNED]["pairwise"])
    note = (
        f"From {made['from']} to the dataset {made['to']}: {made['steps']} steps each, mean and 95 % interval over "
        f"{seeds} seeds; error is the root mean square of log-seconds."
    )
    return [*lines, "", note]


def _cell(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f} ± {half_width(values):.3f}"


def main(
    dataset: Annotated[Path, typer.Option(help="an export of the other target")] = ROOT / "datasets" / "cpu",
    checkpoint: Annotated[Path, typer.Option(help="what is trained already")] = SHIPPED,
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "transfer_predictor.json",
    work: Annotated[Path, typer.Option(help="folder of what is being trained")] = WORK / "transfer",
    docs: Annotated[str, typer.Option(help="the document whose table is written; empty: none")] = str(
        ROOT / "docs/experiments/2026-11-22-predictor-on-another-machine.md"
    ),
    shares: Annotated[str, typer.Option(help="of the training kernels, with commas")] = "0,0.01,0.05,0.1",
    seeds: Annotated[int, typer.Option(help="trainings of each", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="of each training", min=1)] = STEPS,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N")] = "auto",
) -> None:
    """Train, judge and write down."""
    try:
        wanted = sorted({float(share) for share in shares.split(",")})
    except ValueError:
        wanted = []
    if not wanted or not all(0 <= share <= 1 for share in wanted):
        raise UsageError(f"--shares {shares}: write numbers from 0 to 1, for example 0,0.01,0.1")
    made = transfer(
        dataset,
        read(checkpoint),
        work,
        shares=wanted,
        seeds=seeds,
        steps=steps,
        device=devices_of(device)[0],
        log=lambda line: typer.echo(line, err=True),
    )
    made["command"] = command("transfer")
    found = {
        f"pairwise at {share}": sum(row["fine-tuned"]["pairwise"]) / seeds for share, row in made["shares"].items()
    }
    record_results(out, f"{made['from']} to {dataset.name}", made, found)
    if docs and Path(docs).is_file():
        write_into(Path(docs), {"transfer": table_of(made)})
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    run_script(main)
