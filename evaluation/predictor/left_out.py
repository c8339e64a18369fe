"""What was learned of tile programs, on families that it never saw: networks, each trained without some of them.

    python -m evaluation.predictor.left_out train datasets/h200-tiles --out training/runs/left-out
    python -m evaluation.predictor.left_out judge datasets/h200-tiles training/runs/left-out
    python -m evaluation.predictor.on_lattices datasets/h200-tiles --learned training/runs/left-out

The families are dealt into as many parts as are asked for, in an order by chance; a part's networks are trained on the
others, a sixth of which says how far off they are expected to be. The frozen families are in no part's training: every
part's networks may be asked about them, the first part's are, once, with `--frozen`. Training goes on where it was cut.

`judge` asks about rows that were drawn uniformly: of two programs of a region that differ by more than the noise, how
often the faster one is told, over all pairs and over those within 1.5 times of the region's best; how often a time lies
in its interval, over all and by kind; and how well failures are told from what ran, as the average precision, over all
and by class. An interval is conformal: so many of the told standard deviations as hold the nominal share of the rows of
the other parts' families, of which every region counts alike (split conformal prediction with folds by family; Vovk,
2015). Means over regions; other intervals hold 95 % of bootstrap samples of regions. Updates
evaluation/results/eval_tiles.json, run `uniform rows`.
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

from evaluation.dataset.record import FROZEN, group_of
from evaluation.predictor.intervals import ratio_interval
from evaluation.rows import rounded, this_command
from kcg.cli import command_app, guarded, record_results
from kcg.dataset.choices import UNIFORM
from kcg.dataset.reading import Export, read_export
from kcg.dataset.sources import place_of
from kcg.dataset.splits import PARTS, TRAIN, VALIDATION
from kcg.errors import DataError, UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.checkpoint import About, Checkpoint, read, save
from kcg.predictor.ensemble import averaged, outputs_by, trusting
from kcg.predictor.features import Array, operations_of
from kcg.predictor.metrics import COVERAGE, Floors, floors_of, kernel_scores
from kcg.predictor.training_data import TrainingData, load
from kcg.provenance import provenance
from kcg.types import ScheduleKind, Status

OUT = Path(__file__).parents[1] / "results" / "eval_tiles.json"
UNASKED: Final = frozenset({*FROZEN, ""})
"""Families that no network learns of: the frozen ones, and that of regions of which no workload is known, which may be
of any."""
NEAR: Final = 1.5  # times the fastest of a region
LEAST_ROWS: Final = 3  # of a region, drawn uniformly
HELD: Final = 6  # one training family in so many says how far off the networks are

app = command_app(no_args_is_help=True)


def parts_of(families: Sequence[str], count: int) -> dict[str, int]:
    """The part of each family that is learned of."""
    names = sorted(set(families) - UNASKED)
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
        if (made := checkpoint_of(out, part)).exists():
            if read(made).about.settings.get("without", "") != without:
                raise DataError(f"{out} has networks that were trained with another --without: name another folder")
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
    part = np.zeros(len(data), np.int64)
    for place, (checkpoint, never) in enumerate(left_out_by(folder)):
        if frozen and place:
            break
        rows = np.flatnonzero(np.isin(families, FROZEN if frozen else sorted(never)))
        outputs = trusting(outputs_by(checkpoint.nets, data, rows), data.base[rows], checkpoint.about.trust)
        found = averaged(outputs, checkpoint.about.spread_scale)
        for name, values in said.items():
            values[rows] = found[name]
        asked[rows], part[rows] = True, place
    some, told = data.take(asked), {name: values[asked] for name, values in said.items()}
    entry = figures_of(some, told, floors)
    if not frozen:
        entry |= coverage_of(some, told, part[asked], kinds_of(some, export))
    statuses = export.table(PROTOCOL, ["status"])["status"].to_numpy()[some.row]
    entry["failures"] = failures_of(told["failure"], statuses)
    headline = {} if frozen else {name: entry[name] for name in HEADLINE}
    record_results(out, "frozen rows" if frozen else "uniform rows", {**entry, "command": this_command()}, headline)
    typer.echo(json.dumps(entry, indent=1))


def kinds_of(data: TrainingData, export: Export) -> Array:
    """(n,) which kind of work each row's region is, as lattices are grouped."""
    regions, targets = export.regions(), export.targets()
    of = {
        k: group_of(regions[data.region_ids[k]], targets[data.targets[data.target[k]]]) for k in np.unique(data.kernel)
    }
    return np.array([of[k] or "others" for k in data.kernel])


def coverage_of(data: TrainingData, said: dict[str, Array], part: Array, kinds: Array) -> dict[str, Any]:
    """How many uniform rows lie in their conformal intervals: see the module."""
    uniform = np.array([name == UNIFORM for name in data.samplers])[data.sampler] & np.isfinite(data.log_s)
    z = np.abs(said["rank"] - data.log_s) * np.exp(-said["log_sigma"])
    entry: dict[str, Any] = {"coverage_by_kind": {kind: {} for kind in np.unique(kinds[uniform]).tolist()}}
    for share, _ in COVERAGE:
        within = np.zeros(len(data), bool)
        for own in np.unique(part):
            others = uniform & (part != own)
            if others.any():
                within |= (part == own) & (z <= limit_of(z[others], data.kernel[others], share))
        name = f"coverage_{share:.0%}"[:-1]
        each = [(within[rows].sum(), len(rows)) for rows in _by_region(data, uniform)]
        entry[name] = rounded(float(within[uniform].mean()))
        entry[f"{name}_interval"] = [rounded(float(end)) for end in ratio_interval(each)]
        for kind, found in entry["coverage_by_kind"].items():
            found[f"{share:.0%}"[:-1]] = rounded(float(within[uniform & (kinds == kind)].mean()))
    return entry


def limit_of(z: Array, regions: Array, share: float) -> float:
    """The least number that so large a share of some |z| does not exceed, every region counting alike."""
    _, inverse, counts = np.unique(regions, return_inverse=True, return_counts=True)
    order, weight = np.argsort(z), 1 / counts[inverse]
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(z[order][min(int(np.searchsorted(reached, share)), len(z) - 1)])


def _by_region(data: TrainingData, chosen: Array) -> list[Array]:
    return [np.flatnonzero(chosen & (data.kernel == kernel)) for kernel in np.unique(data.kernel[chosen])]


def failures_of(scored: Array, statuses: Array) -> dict[str, Any]:
    """Of each class of failures, how many there are and how well they are told from all that ran."""
    ran = statuses == Status.OK
    found: dict[str, Any] = {}
    for status in sorted({*statuses.tolist()} - {Status.OK}):
        own = statuses == status
        precision = average_precision(scored[own | ran], own[own | ran])
        found[str(status)] = {"rows": int(own.sum()), "average_precision": precision}
    return found


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
        held = sum(float((np.abs(one) <= limit).sum()) for one in z)
        entry[f"coverage_{share:.0%}_as_told".replace("%", "")] = rounded(held / max(sum(map(len, z)), 1))
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
