"""How many steps a second the environment makes on one core, in states that are new and in states visited before.

    python -m evaluation.search.bench_env                  # the shipped checkpoint, on kernels of datasets/h200

Kernels of Flux and of others are walked at random, twice: the second time every state is known. One network of the
checkpoint judges, as in a training by PPO, and then all of it. Writes results/bench_env.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import command_text, record_results, run_script

ROOT = Path(__file__).parents[2]
OUT = ROOT / "evaluation" / "results" / "bench_env.json"
SHIPPED = ROOT / "kcg" / "predictor" / "checkpoints" / "cuda.safetensors"


def main(
    checkpoint: Annotated[Path, typer.Option(help="a predictor's file")] = SHIPPED,
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    kernels: Annotated[int, typer.Option(help="of Flux, and as many of others, drawn at random", min=1)] = 12,
    episodes: Annotated[int, typer.Option(help="of each kernel", min=1)] = 30,
    seed: Annotated[int, typer.Option(help="of kernels and steps")] = 0,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure and write the results."""
    from evaluation.search.env_speed import speed_of

    entry = speed_of(checkpoint, dataset, kernels=kernels, episodes=episodes, seed=seed)
    entry["command"] = command_text("evaluation.search.bench_env")
    light = entry["one network"]
    headline = {"env_steps_per_s": light["known_steps_per_s"], "env_steps_per_s_uncached": light["new_steps_per_s"]}
    record_results(out, dataset.name, entry, headline)
    typer.echo(json.dumps(entry, indent=1))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    run_script(main)
