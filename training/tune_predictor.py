"""Tune the runtime predictor: an optuna study over the validation families, kept and gone on with.

    python training/tune_predictor.py --data datasets/h200 --out training/runs/tuning --trials 40 --jobs 4 --budget 2h
    python training/train_predictor.py --data datasets/h200 --out training/runs/best \
        --settings training/runs/tuning/best.json

The study is `study.jsonl` of the folder, the best settings are `best.json`, and every trial keeps its metrics.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import run_script


def main(
    data: Annotated[Path, typer.Option(help="the dataset: a folder that kcg.dataset exported")],
    out: Annotated[Path, typer.Option(help="folder of the study; what is there is gone on with")],
    trials: Annotated[int, typer.Option(help="trials in all, those of earlier runs included", min=1)] = 30,
    budget: Annotated[str | None, typer.Option(help="time, e.g. 2h; no limit by default")] = None,
    epochs: Annotated[int | None, typer.Option(help="of each trial at most; 60 by default")] = None,
    seed: Annotated[int | None, typer.Option(help="of networks and of the sampler; 0 by default")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or a list; trials take them in turn")] = "auto",
    jobs: Annotated[int, typer.Option(help="trials at once", min=1)] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value of what is not tried; repeatable")] = None,
) -> None:
    """Try settings until there are so many trials, or the time is over."""
    from kcg.cli import parse_budget
    from kcg.training.extra import need

    need("optuna")
    budget_s = parse_budget(budget) if budget is not None else None
    from kcg.training.predictor import TrainingSettings, devices_of, parsed, with_values
    from kcg.training.tuning import tune

    values = parsed(set_ or []) | {k: v for k, v in {"epochs": epochs, "seed": seed}.items() if v is not None}
    settings = with_values(TrainingSettings(), values)
    found = tune(data, out, settings, trials=trials, budget_s=budget_s, devices=devices_of(device), jobs=jobs)
    typer.echo(found.line())


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("kcg").setLevel(logging.INFO)
    run_script(main)
