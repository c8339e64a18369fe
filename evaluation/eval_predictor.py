"""Every table and plot of docs/predictor.md, from the committed dataset and checkpoints, on a plain CPU.

    python evaluation/eval_predictor.py
    python evaluation/eval_predictor.py --dataset datasets/cpu --checkpoint kcg/predictor/checkpoints/cpu.safetensors

Under each split: the pool of the test part, fixed before training; rankings within kernels; 95 % intervals over
kernels (over seeds for single networks). Writes results/eval_predictor.json, and the tables into the document between
its marks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg.commandline import guarded, record_results

HERE = Path(__file__).parent
ROOT = HERE.parent
MAIN = "h200"  # the dataset that the document is about


def main(
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    checkpoint: Annotated[Path, typer.Option(help="a predictor's file")] = ROOT
    / "kcg/predictor/checkpoints/cuda.safetensors",
    out: Annotated[Path, typer.Option(help="the results file")] = HERE / "results" / "eval_predictor.json",
    docs: Annotated[str, typer.Option(help="the document whose tables are written; empty: none")] = str(
        ROOT / "docs/predictor.md"
    ),
    speed: Annotated[bool, typer.Option(help="measure candidates a second, too")] = True,
) -> None:
    """Evaluate a predictor and write down the figures."""
    from kcg.predictor.evaluation import evaluate, headline
    from kcg.predictor.figures_text import sections, write_into
    from kcg.search.tables import FILE, read_tables

    tables = read_tables(dataset) if (dataset / FILE).is_file() else []
    told = evaluate(
        dataset, checkpoint, HERE / "checkpoints", tables, say=lambda text: typer.echo(text, err=True), speed=speed
    )
    told["command"] = " ".join(["python", *sys.argv])
    before = "" if dataset.name == MAIN else f"{dataset.name}_"  # the headline proper is that of the H200
    found = {before + name: value for name, value in headline(told).items()}
    record_results(out, dataset.name, told, found)
    if docs and Path(docs).is_file():
        write_into(Path(docs), {before.replace("_", "-") + name: lines for name, lines in sections(told).items()})
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
