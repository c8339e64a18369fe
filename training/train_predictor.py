"""Train the runtime predictor on a dataset: networks, how sure they are together, and one checkpoint.

    python training/train_predictor.py --data datasets/h200 --out training/runs/h200
    python training/train_predictor.py --data datasets/h200 --out training/runs/wide --set net.hidden=128 --members 2

The same command goes on where it was cut; what is trained already is not trained again. With several GPUs each trains
its own networks. Metrics are in `metrics.jsonl` of each folder, and in Weights & Biases (offline by default).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import goes_on, run_script

Seed = Annotated[int | None, typer.Option(help="of the first network; the others have the next ones; 0 by default")]


def main(
    data: Annotated[Path, typer.Option(help="the dataset: a folder that kcg.dataset exported")],
    out: Annotated[Path, typer.Option(help="folder of this training; what is there is gone on with")],
    members: Annotated[int | None, typer.Option(help="how many networks; 5 by default")] = None,
    epochs: Annotated[int | None, typer.Option(help="passes over all kernels at most; 60 by default")] = None,
    split: Annotated[str | None, typer.Option(help="workload (by default), kernel or twin")] = None,
    seed: Seed = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or a list: one process for each")] = "auto",
    settings: Annotated[Path | None, typer.Option(help="JSON of settings by name, as tuning writes it")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value, e.g. net.hidden=96; repeatable")] = None,
    wandb: Annotated[str | None, typer.Option(help="online, offline or disabled; offline by default")] = None,
    name: Annotated[str, typer.Option(help="of the predictor; that of the folder by default")] = "",
) -> None:
    """Train a predictor. Options win over `--set`, and that over `--settings`."""
    from kcg.predictor.tracking import wanted_mode

    mode = wanted_mode(wandb)
    from kcg.training.predictor import TrainingSettings, devices_of, parsed, read_settings, train, with_values

    options = {"members": members, "epochs": epochs, "split": split, "seed": seed}
    values = read_settings(settings) if settings is not None else {}
    values |= parsed(set_ or []) | {key: value for key, value in options.items() if value is not None}
    chosen, devices = with_values(TrainingSettings(), values), devices_of(device)
    goes_on("the same command goes on from the last epoch")
    typer.echo(train(data, out, chosen, devices=devices, wandb=mode, name=name).line())


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("kcg").setLevel(logging.INFO)
    run_script(main)
