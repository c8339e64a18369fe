"""kcg predictor show | score | push | pull"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kcg import shell
from kcg.cli import command_group, examples, guarded, run_app, table_console
from kcg.commands import command_name
from kcg.errors import ExitCode, UnknownName, UsageError
from kcg.hub.commands import Branch, Commit, Message, ModelRepo, Out, Private, say_pulled, say_pushed

app = command_group("kcg predictor show", "kcg predictor COMMAND --help")


@app.callback()
def commands() -> None:
    """Trained predictors of runtimes, and policies: look at, compare, share."""


@app.command(epilog=examples("kcg predictor show", "kcg predictor show predictor.safetensors --json"))
def show(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="a checkpoint, or a folder of some; those that come with kcg by default"),
    ] = None,
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object for each")] = False,
) -> None:
    """Show what a checkpoint says of itself. Name, features, targets, datasets, split, metrics, size."""
    import json
    from dataclasses import asdict

    from kcg.predictor.choice import SHIPPED
    from kcg.predictor.features import FEATURES_VERSION
    from kcg.rl.publish import kind_of

    source = checkpoint or SHIPPED
    paths = sorted(source.glob("*.safetensors")) if checkpoint is None or source.is_dir() else [source]
    if not paths:
        where = f"{source} holds" if checkpoint is not None else "this kcg comes with"
        raise UsageError(
            f"{where} no checkpoint: train one with training/train_predictor.py of a checkout, or pull one"
        )
    console = table_console()
    for path in paths:
        kind = kind_of(path)
        found, size = kind.read(path), path.stat().st_size
        if json_mode:
            report = {"path": str(path), "bytes": size, "features_version": FEATURES_VERSION, **asdict(found.about)}
            sys.stdout.write(json.dumps(report, sort_keys=True) + "\n")
        else:
            console.print(kind.table(str(path), found, size))


@app.command(
    epilog=examples("kcg predictor score mine.parquet", "kcg predictor score mine.csv --dataset cpu --json"),
)
def score(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Parquet or CSV: region_id, schedule_body, variables, target as there, and predicted_us",
        ),
    ],
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="in a checkout, a path, or OWNER/NAME@REVISION of the Hub")
    ] = "h200",
    split: Annotated[
        str, typer.Option(metavar="NAME", help="whose test part: workload, kernel, twin or alike")
    ] = "workload",
    json_mode: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Score predictions on the test part of a dataset. Beside them the predictor that comes with kcg is scored."""
    import json

    from kcg.dataset.sources import place_of
    from kcg.dataset.splits import SPLITS
    from kcg.predictor.scoring import finite, match, pool_of, read_predictions, shipped_scores, table

    if split not in SPLITS:
        raise UnknownName("split", split, list(SPLITS))
    given = read_predictions(predictions)  # what is wrong with it is told before the dataset is read
    pool = pool_of(place_of(dataset), split)
    matched = match(pool, given, predictions)
    found = {predictions.name: pool.scored(matched.log_s)}
    shipped, reached = shipped_scores(pool, split)
    if reached is not None:
        found[shipped] = reached
    for note in (*matched.notes, *(() if reached else (shipped,))):
        typer.echo(f"kcg: {note}", err=True)
    title = f"{dataset}, test part of the split by {split}: {len(pool.rows):,} schedules"
    if json_mode:
        report = {"dataset": dataset, "split": split, "schedules": len(pool.rows), "scores": finite(found)}
        sys.stdout.write(json.dumps(report, sort_keys=True) + "\n")
        return
    table_console().print(table(title, found))


@app.command(epilog=examples("kcg predictor push predictor.safetensors OWNER/NAME --private"))
def push(
    checkpoint: Annotated[Path, typer.Argument(metavar="FILE", help="a predictor or a policy, a .safetensors file")],
    repo: ModelRepo,
    revision: Branch = "main",
    message: Message = "",
    private: Private = False,
) -> None:
    """Upload to the Hugging Face Hub in one commit. With a card; the token is HF_TOKEN. Prints the commit."""
    from kcg.rl.publish import CHECKPOINTS

    commit = CHECKPOINTS.push(checkpoint, repo, branch=revision, message=message, private=private)
    say_pushed(
        repo, commit, shell.command(command_name("predictor"), "pull", repo, "--revision", commit, "--out", "FOLDER")
    )


@app.command(epilog=examples("kcg predictor pull OWNER/NAME --revision COMMIT --out FOLDER"))
def pull(repo: ModelRepo, revision: Commit, out: Out) -> None:
    """Download one commit from the Hugging Face Hub. It arrives whole: checksums are compared, and it is read."""
    from kcg.rl.publish import CHECKPOINTS

    say_pulled(out, CHECKPOINTS.pull(repo, out, revision=revision))


def main() -> ExitCode:
    return run_app(app, command_name("predictor"))


if __name__ == "__main__":
    guarded(main)
