"""What was learned of tile programs, on families that it never saw: networks, each trained without some of them.

    python -m evaluation.predictor.left_out train datasets/h200-tiles --out training/runs/left-out
    python -m evaluation.predictor.left_out judge datasets/h200-tiles training/runs/left-out
    python -m evaluation.predictor.on_lattices datasets/h200-tiles --learned training/runs/left-out

The families are dealt into as many parts as are asked for, in an order by chance; a part's networks are trained on the
others, a sixth of which says how far off they are expected to be. The frozen families are in no part's training: every
part's networks may be asked about them, the first part's are, once, with `--frozen`. Training goes on where it was cut.

`judge` asks about rows that were drawn uniformly: of two programs of a region that differ by more than the noise, how
often the faster one is told, over all pairs and over those within 1.5 times of the region's best; how often a time lies
in the interval that was told; and how well failures are told from what ran, as the average precision. Means over
regions; intervals hold 95 % of bootstrap samples of regions. Updates evaluation/results/eval_tiles.json, run
`uniform rows`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.dataset.record import FROZEN
from evaluation.predictor.intervals import ratio_interval
from evaluation.rows import rounded, this_command
from kcg.cli import command_app, guarded, record_results
from kcg.dataset.choices import UNIFORM
from kcg.dataset.reading import read_export
from kcg.dataset.sources import place_of
from kcg.dataset.splits import PARTS, TRAIN, VALIDATION
from kcg.errors import DataError, UsageError
from kcg.predictor.checkpoint import About, Checkpoint, read, save
from kcg.predictor.ensemble import averaged, outputs_by, trusting
from kcg.predictor.features import Array, operations_of
from kcg.predictor.metrics import COVERAGE, Floors, floors_of, kernel_scores
from kcg.predictor.training_data import TrainingData, load
from kcg.provenance import provenance
from kcg.types import ScheduleKind

OUT = Path(__file__).parents[1] / "results" / "eval_tiles.json"
NEAR: Final = 1.5  # times the fastest of a region
LEAST_ROWS: Final = 3  # of a region, drawn uniformly
HELD: Final = 6  # one training family in so many says how far off the networks are

app = command_app(no_args_is_help=True)


def parts_of(families: Sequence[str], count: int) -> dict[str, int]:
    """The part of each family but the frozen ones."""
    names = sorted(set(families) - set(FROZEN))
    Random("left out").shuffle(names)
    return {name: place % count for place, name in enumerate(names)}


def checkpoint_of(folder: Path, part: int) -> Path:
    """The networks of one part."""
    return folder / f"without-{part}.safetensors"


def trained_without(data: TrainingData, parts: dict[str, int], part: int) -> TrainingData:
    """The data for training without a part: each family in training, in validation, or in neither."""
    others = [name for name, own in parts.items() if own != part]
    role = {name: VALIDATION if place % HELD == 0 else TRAIN for place, name in enumerate(others)}
    inside = np.array([family in role for family in data.families])
    places = [PARTS.index(role.get(family, TRAIN)) for family in data.families]
    as_told = replace(data, parts=np.repeat(np.array(places)[:, None], data.parts.shape[1], 1))
    return as_told.take(inside[data.kernel])


def rows_of_target(data: TrainingData, models: Mapping[str, str], name: str) -> Array:
    """(n,) bool: the rows of GPUs whose name has this in it. Raises UsageError where there are none."""
    found: Array = np.array([name in models[one] for one in data.targets])[data.target[data.kernel]]
    if not found.any():
        raise UsageError(f"no GPU of the dataset has {name!r} in its name: {', '.join(sorted(models.values()))}")
    return found


@app.command()
def train(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    out: Annotated[Path, typer.Option(help="folder of the networks")],
    parts: Annotated[int, typer.Option(help="of the families")] = 3,
    members: Annotated[int, typer.Option(help="networks of each part")] = 2,
    epochs: Annotated[int, typer.Option(help="passes over all regions")] = 30,
    without: Annotated[str, typer.Option(help="part of a GPU's name, whose rows are left out: other_gpu asks")] = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value, as of train_predictor")] = None,
) -> None:
    """Train the networks of each part."""
    from kcg.training.fit import Fit
    from kcg.training.predictor import TrainingSettings, calibrated, parsed, with_values, with_widths

    export = read_export(place_of(source))
    data, floors = load(export.folder, kind=ScheduleKind.TILE, log=typer.echo), floors_of(export)
    dealt = parts_of(data.families, parts)
    values = {"net.kind": str(ScheduleKind.TILE), "members": members, "epochs": epochs, **parsed(set_ or [])}
    settings = with_widths(with_values(TrainingSettings(), values))
    regions, targets = export.regions(), export.targets()
    if without:
        data = data.take(~rows_of_target(data, {name: one.model for name, one in targets.items()}, without))
    for part in range(parts):
        if checkpoint_of(out, part).exists():
            continue
        mine = trained_without(data, dealt, part)
        nets = []
        for member in range(members):
            folder = out / f"without-{part}-{member}"
            folder.mkdir(parents=True, exist_ok=True)

            def tell(values: dict[str, Any], name: str = folder.name) -> None:
                shown = (f"{key} {value:.4f}" for key, value in values.items() if key.endswith(("loss", "pairwise")))
                logging.getLogger("kcg").info("%s epoch %d: %s", name, values["epoch"], ", ".join(shown))

            nets.append(Fit(mine, replace(settings.fit, seed=member), folder, floors=floors, log=tell).run())
        seen = frozenset[str]().union(*(operations_of(regions[mine.region_ids[k]]) for k in np.unique(mine.kernel)))
        about = About(
            name=f"without part {part}",
            targets=tuple({"fingerprint": one, "model": targets[one].model, "device": targets[one].device,
                           "renderer": targets[one].renderer}
                          for place, one in enumerate(mine.targets) if (mine.target[mine.kernel] == place).any()),
            datasets=mine.checksums, split=settings.fit.split, operations=tuple(sorted(seen)),
            settings={"left out": sorted(name for name, own in dealt.items() if own == part), "without": without},
            **provenance(),
        )  # fmt: skip
        about = calibrated(about, nets, mine, floors)
        save(Checkpoint(about, tuple(net.network() for net in nets)), checkpoint_of(out, part))
        reached = json.dumps({name: rounded(value) for name, value in about.metrics.items()})
        typer.echo(f"{checkpoint_of(out, part)}: trust {about.trust}, {reached}")


def left_out_by(folder: Path) -> list[tuple[Checkpoint, frozenset[str]]]:
    """The networks of each part, and the families that they never saw. Raises DataError where there are none."""
    found = [read(path) for path in sorted(folder.glob("without-*.safetensors"))]
    if not found:
        raise DataError(f"{folder} has no networks: train them first")
    return [(one, frozenset(one.about.settings["left out"])) for one in found]


@app.command()
def judge(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    folder: Annotated[Path, typer.Argument(help="what train wrote")],
    frozen: Annotated[bool, typer.Option("--frozen", help="of the frozen families instead: once, at the end")] = False,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Ask each part's networks about the families that they never saw, and write the figures."""
    export = read_export(place_of(source))
    data, floors = load(export.folder, kind=ScheduleKind.TILE), floors_of(export)
    families = np.array(data.families)[data.kernel]
    asked, said = np.zeros(len(data), bool), {name: np.zeros(len(data)) for name in ("rank", "log_sigma", "failure")}
    for place, (checkpoint, never) in enumerate(left_out_by(folder)):
        if frozen and place:
            break
        rows = np.flatnonzero(np.isin(families, FROZEN if frozen else sorted(never)))
        outputs = trusting(outputs_by(checkpoint.nets, data, rows), data.base[rows], checkpoint.about.trust)
        found = averaged(outputs, checkpoint.about.spread_scale)
        for name, values in said.items():
            values[rows] = found[name]
        asked[rows] = True
    entry = figures_of(data.take(asked), {name: values[asked] for name, values in said.items()}, floors)
    headline = {} if frozen else {name: entry[name] for name in HEADLINE}
    record_results(out, "frozen rows" if frozen else "uniform rows", {**entry, "command": this_command()}, headline)
    typer.echo(json.dumps(entry, indent=1))


HEADLINE: Final = (
    "pairwise_uniform", "pairwise_near_best", "analytic_pairwise_uniform", "failure_ap", "coverage_50", "coverage_80",
    "coverage_95",
)  # fmt: skip


def figures_of(data: TrainingData, said: dict[str, Array], floors: Floors) -> dict[str, Any]:
    """The figures of rows of families that were never seen, from what was `said` of each."""
    uniform = np.array([name == UNIFORM for name in data.samplers])[data.sampler]
    whole: dict[str, list[float]] = {"learned": [], "analytic": []}
    near: dict[str, list[float]] = {"learned": [], "analytic": []}
    z, regions = [], 0
    for kernel in np.unique(data.kernel):
        rows = np.flatnonzero((data.kernel == kernel) & uniform & np.isfinite(data.log_s))
        if len(rows) < LEAST_ROWS:
            continue
        regions += 1
        log_s, run = data.log_s[rows], data.run[rows]
        z.append((said["rank"][rows] - log_s) * np.exp(-said["log_sigma"][rows]))
        best = log_s < log_s.min() + np.log(NEAR)
        for name, predicted in (("learned", said["rank"][rows]), ("analytic", data.base[rows])):
            for pool, chosen in ((whole, np.ones(len(rows), bool)), (near, best)):
                if chosen.sum() > 1:
                    one = kernel_scores(int(kernel), predicted[chosen], log_s[chosen], run[chosen], floors)
                    pool[name] += [one.pairwise] if one.pairs else []
    failed = np.isnan(data.log_s)
    entry: dict[str, Any] = {"regions": regions, "rows": int(sum(map(len, z))), "failed": int(failed.sum())}
    for name, values in (
        ("pairwise_uniform", whole["learned"]), ("analytic_pairwise_uniform", whole["analytic"]),
        ("pairwise_near_best", near["learned"]), ("analytic_pairwise_near_best", near["analytic"]),
    ):  # fmt: skip
        entry[name] = rounded(float(np.mean(values)))
        entry[f"{name}_interval"] = [rounded(float(end)) for end in ratio_interval([(one, 1.0) for one in values])]
    for share, limit in COVERAGE:
        within = [(float((np.abs(one) <= limit).sum()), float(len(one))) for one in z]
        name = f"coverage_{share:.0%}"[:-1]
        entry[name] = rounded(sum(a for a, _ in within) / max(sum(b for _, b in within), 1))
        entry[f"{name}_interval"] = [rounded(float(end)) for end in ratio_interval(within)]
    entry["failure_ap"] = average_precision(said["failure"], failed)
    entry["failed_share"] = rounded(float(failed.mean()))
    return entry


def average_precision(scored: Array, positive: Array) -> float | None:
    """The mean, over positive rows, of the share of positive ones among all that score as high; None without any."""
    if not positive.any():
        return None
    hits = positive[np.argsort(-scored, kind="stable")]
    return rounded(float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean()))


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("kcg").setLevel(logging.INFO)
    guarded(lambda: app(standalone_mode=False))
