"""What each part of the predictor is worth: variants of its settings, trained and judged on the validation families.

    python evaluation/ablate_predictor.py --jobs 8 --devices cuda:0,cuda:1 --budget 3h
    python evaluation/ablate_predictor.py --only base,no-messages --seeds 2 --epochs 20 --devices cpu --docs ""

The same command goes on where it was cut. Writes results/ablate_predictor.json after each training, and the table into
the document.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kcg.commandline import guarded

HERE = Path(__file__).parent
ROOT = HERE.parent


def main(
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    out: Annotated[Path, typer.Option(help="the results file")] = HERE / "results" / "ablate_predictor.json",
    work: Annotated[Path, typer.Option(help="folder of what is being trained")] = ROOT / "kcg-out" / "ablation",
    docs: Annotated[str, typer.Option(help="the document whose table is written; empty: none")] = str(
        ROOT / "docs/experiments/2026-11-22-predictor-ablation.md"
    ),
    only: Annotated[str, typer.Option(help="variants by name, with commas; all by default")] = "",
    seeds: Annotated[int, typer.Option(help="trainings of each variant", min=1)] = 5,
    jobs: Annotated[int, typer.Option(help="trainings at once", min=1)] = 1,
    devices: Annotated[str, typer.Option(help="auto, cpu, cuda, or a list; trainings take them in turn")] = "auto",
    epochs: Annotated[int | None, typer.Option(help="passes over all kernels at most")] = None,
    share: Annotated[float | None, typer.Option(help="of the training kernels, 0 to 1")] = None,
    sample: Annotated[int, typer.Option(help="training rows of the variants on a sample", min=1)] = 20_000,
    settings: Annotated[Path | None, typer.Option(help="JSON of settings by name, of which variants are made")] = None,
    budget: Annotated[str | None, typer.Option(help="time, e.g. 2h; no limit by default")] = None,
) -> None:
    """Train what is missing and write down the figures."""
    from kcg.optimize.settings import parse_budget

    budget_s = parse_budget(budget) if budget is not None else None
    from kcg.predictor.ablation import Ablation, ablate, best_of, table_of
    from kcg.predictor.figures_text import write_into
    from kcg.predictor.settings import TrainingSettings, read_settings, with_values
    from kcg.predictor.training import devices_of
    from kcg.predictor.variants import VARIANTS

    values = read_settings(settings) if settings is not None else {}
    values |= {k: v for k, v in {"epochs": epochs, "share": share}.items() if v is not None}
    names = tuple(name.strip() for name in only.split(",") if name.strip()) or tuple(VARIANTS)
    ablation = Ablation(dataset, out, work, with_values(TrainingSettings(), values), names, seeds, sample)
    entry = ablate(
        ablation, devices=devices_of(devices), jobs=jobs, budget_s=budget_s, say=lambda line: typer.echo(line, err=True)
    )
    if docs and Path(docs).is_file():
        write_into(Path(docs), {"ablation": table_of(entry)})
    name, score = best_of(entry)
    typer.echo(json.dumps({"best": name, "score": score}))


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
