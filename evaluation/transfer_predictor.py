"""How much of a target's own data does a predictor of another target need?

    python evaluation/transfer_predictor.py
    python evaluation/transfer_predictor.py --dataset datasets/cpu --shares 0,0.01 --seeds 1 --docs ""

The shipped CUDA networks are fine-tuned on shares of the CPU's dataset, beside new ones trained on the same rows.
Writes results/transfer_predictor.json, and the table into the document. A run that was cut goes on.
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


def main(
    dataset: Annotated[Path, typer.Option(help="an export of the other target")] = ROOT / "datasets" / "cpu",
    checkpoint: Annotated[Path, typer.Option(help="what is trained already")] = ROOT
    / "kcg/predictor/checkpoints/cuda.safetensors",
    out: Annotated[Path, typer.Option(help="the results file")] = HERE / "results" / "transfer_predictor.json",
    work: Annotated[Path, typer.Option(help="folder of what is being trained")] = ROOT / "kcg-out" / "transfer",
    docs: Annotated[str, typer.Option(help="the document whose table is written; empty: none")] = str(
        ROOT / "docs/experiments/2026-11-22-predictor-on-another-machine.md"
    ),
    shares: Annotated[str, typer.Option(help="of the training kernels, with commas")] = "0,0.01,0.05,0.1",
    seeds: Annotated[int, typer.Option(help="trainings of each", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="of each training", min=1)] = 300,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N")] = "auto",
) -> None:
    """Train, judge and write down."""
    from kcg.errors import UsageError
    from kcg.predictor.checkpoint import read
    from kcg.predictor.figures_text import write_into
    from kcg.predictor.training import devices_of
    from kcg.predictor.transfer import table_of, transfer

    try:
        wanted = sorted({float(share) for share in shares.split(",")})
    except ValueError:
        wanted = []
    if not wanted or not all(0 <= share <= 1 for share in wanted):
        raise UsageError(f"--shares {shares}: write numbers from 0 to 1, for example 0,0.01,0.1")
    told = transfer(
        dataset, read(checkpoint), work, shares=wanted, seeds=seeds, steps=steps, device=devices_of(device)[0],
        say=lambda line: typer.echo(line, err=True),
    )  # fmt: skip
    told["command"] = " ".join(["python", *sys.argv])
    found = {
        f"pairwise at {share}": sum(row["fine-tuned"]["pairwise"]) / seeds for share, row in told["shares"].items()
    }
    record_results(out, f"{told['from']} to {dataset.name}", told, found)
    if docs and Path(docs).is_file():
        write_into(Path(docs), {"transfer": table_of(told)})
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
