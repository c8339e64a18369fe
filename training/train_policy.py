"""Train the policy that proposes Opts: from what MCTS visits over the predictor, then by PPO against the predictor.

    python training/train_policy.py --data datasets/h200 --out training/runs/policy --from-mcts
    python training/train_policy.py --data datasets/h200 --out training/runs/ppo --set ppo.steps=50000

No device is needed. The same command goes on where it was cut. Metrics are in `metrics.jsonl` of the folder, and in
Weights & Biases (offline by default).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import run_script

ROOT = Path(__file__).parent.parent


def main(
    data: Annotated[Path, typer.Option(help="the dataset whose kernels are scheduled: a folder of an export")],
    out: Annotated[Path, typer.Option(help="folder of this training; what is there is gone on with")],
    predictor: Annotated[Path, typer.Option(help="the checkpoint that judges")] = ROOT
    / "kcg/predictor/checkpoints/cuda.safetensors",
    from_mcts: Annotated[bool, typer.Option("--from-mcts", help="self-play and learning before PPO")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N, for the policy's network")] = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="processes; one for each core by default")] = None,
    seed: Annotated[int, typer.Option(help="of everything")] = 0,
    start: Annotated[Path | None, typer.Option(help="a policy to begin as, instead of the predictor's network")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value, e.g. ppo.steps=50000")] = None,
    budget: Annotated[str | None, typer.Option(help="time, e.g. 30m; what is done by then is kept")] = None,
    wandb: Annotated[str | None, typer.Option(help="online, offline or disabled; offline by default")] = None,
) -> None:
    """Train a policy."""
    from kcg.cli import parse_budget
    from kcg.predictor.tracking import wanted_mode
    from kcg.training.extra import need

    need("sb3_contrib", "stable_baselines3")
    mode, budget_s = wanted_mode(wandb), parse_budget(budget) if budget is not None else None
    from kcg.measure.device_info import usable_cores
    from kcg.training.policy import PolicyTrainingSettings, TrainingRun, train_policy
    from kcg.training.predictor import changed, devices_of, parsed

    settings = changed(PolicyTrainingSettings(), parsed(set_ or []) | {"seed": seed})
    found = train_policy(
        data,
        predictor,
        out,
        settings,
        from_mcts=from_mcts,
        start=start,
        run=TrainingRun(
            device=devices_of(device)[0],
            workers=workers or usable_cores(),
            wandb=mode,
            budget_s=budget_s if budget_s is not None else float("inf"),
        ),
    )
    typer.echo(", ".join(f"{name} {value:.4g}" for name, value in found.items()))


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("kcg").setLevel(logging.INFO)
    run_script(main)
