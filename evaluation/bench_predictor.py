"""How many candidate schedules a second the predictor judges, end to end, on one core: from Opts to a prediction.

    python evaluation/bench_predictor.py                      # the shipped checkpoint, on Flux of datasets/h200
    python evaluation/bench_predictor.py --checkpoint FILE

Every candidate is new to the planner and to the predictor, as in a search. Writes results/bench_predictor.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from kcg.commandline import guarded, record_results

ROOT = Path(__file__).parent.parent
OUT = Path(__file__).parent / "results" / "bench_predictor.json"
SHIPPED = ROOT / "kcg" / "predictor" / "checkpoints" / "cuda.safetensors"


def main(
    checkpoint: Annotated[Path, typer.Option(help="a predictor's file")] = SHIPPED,
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    family: Annotated[str, typer.Option(help="whose kernels")] = "flux",
    schedules: Annotated[int, typer.Option(help="candidates of each kernel")] = 512,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Measure and write the results."""
    from kcg.predictor.speed import speed_of

    entry = speed_of(checkpoint, dataset, family, schedules)
    entry["command"] = "python evaluation/bench_predictor.py"
    headline = {name: entry[name] for name in ("candidates_per_s", "worst_candidates_per_s")}
    record_results(out, f"{family}", entry, headline)
    typer.echo(json.dumps(entry, indent=1))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
