"""Checkpoints of before, in which trees had a share of the ranking, as their networks alone: nothing is trained.

    python -m evaluation.predictor.without_trees kcg/predictor/checkpoints/cpu.safetensors --dataset datasets/cpu
    python -m evaluation.predictor.without_trees FILE --dataset datasets/h200 --trees TREES.safetensors

The weights of the networks stay as they are, bit by bit. What the trees had a part in is made anew on the validation
part of the checkpoint's split: the scale of expected errors, and the figures. The checkpoint says so of itself. With
`--trees` the trees go to a file of their own, for the baseline.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kcg.cli import run_script
from kcg.dataset.reading import read_export
from kcg.errors import UsageError
from kcg.predictor.checkpoint import TREE_SHARE, TREES, Checkpoint, read, save
from kcg.predictor.header import read_tensors, save_tensors
from kcg.predictor.metrics import floors_of
from kcg.predictor.training_data import load
from kcg.provenance import provenance
from kcg.training.network import Net
from kcg.training.predictor import calibrated

READS_TREES = "kcg.predictor.checkpoint"  # whose line about them is what this is for


def main(
    checkpoint: Annotated[Path, typer.Argument(help="a checkpoint with networks and trees, which is written anew")],
    dataset: Annotated[Path, typer.Option(help="an export of what it was trained on")],
    trees: Annotated[Path | None, typer.Option(help="a file for the trees")] = None,
) -> None:
    """Take the trees out of a checkpoint."""
    logging.getLogger(READS_TREES).setLevel(logging.ERROR)
    header, tensors = read_tensors(checkpoint, "checkpoint")
    if TREES not in tensors:
        raise UsageError(f"{checkpoint} holds no trees: it stays as it is")
    old = read(checkpoint)
    if trees is not None:
        save_tensors(trees, {TREES: tensors[TREES]}, header | {"nets": []})
    made_by = provenance()
    since = (
        f"trees with a share of {header['about'][TREE_SHARE]:.0%} of the ranking were taken out; the networks are as "
        "they were; errors and figures fitted anew on the validation part "
        f"(code {made_by['revision']}{', with changes that were not committed' if made_by['dirty'] else ''})"
    )
    nets = [Net.of(net) for net in old.nets]
    about = calibrated(replace(old.about, since=since), nets, load(dataset), floors_of(read_export(dataset)))
    save(Checkpoint(about, old.nets), checkpoint)
    changes = {"spread_scale": (old.about.spread_scale, about.spread_scale)} | {
        name: (old.about.metrics.get(name), value) for name, value in about.metrics.items()
    }
    typer.echo(json.dumps(changes, indent=1))


if __name__ == "__main__":
    run_script(main)
