"""What each part of the predictor is worth: variants of its settings, each trained from several seeds.

    python -m evaluation.predictor.ablate --jobs 8 --devices cuda:0,cuda:1 --budget 3h
    python -m evaluation.predictor.ablate --only base,no-messages --seeds 2 --epochs 20 --devices cpu --docs ""

The same command goes on where it was cut. Writes results/ablate_predictor.json after each training, and the table into
the document.

All are judged on the validation part of the split by workload; the test part is never looked at. Every (variant, seed)
is a training of its own in a folder of its own, several at once in processes of their own: one process cannot prepare
batches fast enough for a GPU. What is in the results file is not trained again, and what was cut goes on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from evaluation.documents import write_into
from evaluation.predictor.intervals import half_width
from evaluation.predictor.places import RESULTS, ROOT, WORK
from evaluation.predictor.trees import TreeSettings, grown, tree_rows
from evaluation.predictor.variants import TREES, VARIANTS, Variant
from kcg.cli import parse_budget, record_results, run_script
from kcg.dataset.reading import read_export
from kcg.errors import DataError, DeviceError, KcgError, UnknownName
from kcg.measure.device_info import usable_cores
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.metrics import Floors, floors_of, scores, summary
from kcg.predictor.tracking import Tracker
from kcg.predictor.training_data import TrainingData, load
from kcg.training.fit import STATE, Fit, judge, validation_rows
from kcg.training.network import predicted
from kcg.training.predictor import (
    TrainingSettings,
    dataset_of,
    devices_of,
    names_of,
    read_settings,
    with_values,
    workers,
)
from kcg.types import canonical_json, content_id

TIMED_ROWS, TIMED_S = 256, 0.2  # of each timing of a network, which is the best of several
DECIDES = ("pairwise", "top1_mean")  # whose sum is the score
SHOWN = {
    "pairwise": "pairwise",
    "kendall_tau": "Kendall τ",
    "top1_mean": "top-1",
    "top5_mean": "top-5",
    "log_error": "error",
}

Log = Callable[[str], None]


@dataclass(frozen=True)
class Ablation:
    """What is to be trained, and where. `out` is the results file, `work` the folder of what is not finished."""

    dataset: Path
    out: Path
    work: Path
    base: TrainingSettings
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: int = 5
    trees: TreeSettings = field(default_factory=TreeSettings)


@dataclass(frozen=True)
class _Task:
    """One training."""

    name: str
    seed: int
    settings: TrainingSettings
    form: str
    dataset: Path
    folder: Path
    floors: Floors
    ends_s: float
    trees: TreeSettings
    device: str = "cpu"
    threads: int = 1


class _OutOfTime(Exception):
    """The budget ended within a training, which goes on the next time."""


OUT_OF_TIME = "the time was over"


def ablate(
    ablation: Ablation,
    *,
    devices: Sequence[str] = ("cpu",),
    jobs: int = 1,
    budget_s: float | None = None,
    log: Log = lambda line: None,
) -> dict[str, Any]:
    """Train what is missing, write each result as it comes, and return the entry of the results file.

    `jobs` trainings at once, on the devices in turn. Raises UnknownName for a variant, and DataError where the dataset
    cannot be read or has no validation part, or where `out` holds results of other settings or another dataset, and
    DeviceError where a process died.
    """
    for name in ablation.variants:
        if name not in VARIANTS:
            raise UnknownName("variant", name, list(VARIANTS))
    ends = time.monotonic() + (math.inf if budget_s is None else budget_s)
    export, data = read_export(ablation.dataset), load(ablation.dataset, log=log)
    if not len(validation_rows(data, ablation.base.fit.split)):
        raise DataError(f"{ablation.dataset} has no validation part to judge by")
    entry = _entry(ablation, data)
    floors = floors_of(export)
    tasks = [task for task in _tasks(ablation, floors, ends) if not _known(entry, task)]
    left = len(tasks)
    for task, found in _outcomes(tasks, devices, min(jobs, len(tasks))):
        if isinstance(found, str):
            log(f"{task.name}, seed {task.seed}: {found}")
            continue
        left -= 1
        variant = VARIANTS[task.name]
        known = entry["variants"].setdefault(task.name, {"seeds": {}})
        known |= {**_described(variant), "says": variant.says}
        known["seeds"][str(task.seed)] = found
        _write(ablation, entry)
        log(f"{task.name}, seed {task.seed}: " + ", ".join(f"{k} {found[k]:.4f}" for k in DECIDES if k in found))
    if left:
        log(f"{left} of {len(tasks)} trainings are not done: run the same command again to go on")
    return entry


# ---- what is known and what is to be done ----


def _identity(ablation: Ablation, data: TrainingData) -> dict[str, Any]:
    """What all results of an entry have in common."""
    described = {"settings": names_of(ablation.base), "datasets": dict(data.checksums), "features": FEATURES_VERSION}
    found: dict[str, Any] = json.loads(canonical_json(described))
    return found


def _entry(ablation: Ablation, data: TrainingData) -> dict[str, Any]:
    """What the results file has, or a new entry. Raises DataError where it cannot go on with it."""
    identity = _identity(ablation, data)
    try:
        report = json.loads(ablation.out.read_text()) if ablation.out.exists() else {"runs": {}}
        entry: dict[str, Any] = report["runs"].get(ablation.dataset.name) or {**identity, "variants": {}}
        # entries of before name settings of the trees, too, which no network depends on
        known = entry | {"settings": {k: v for k, v in entry["settings"].items() if not k.startswith("trees.")}}
        same = {name: known.get(name) for name in identity} == identity
        kept = {name: v for name, v in entry["variants"].items() if name in VARIANTS and _same(v, VARIANTS[name])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{ablation.out} cannot be read as results: remove it to begin again") from error
    if not same:
        raise DataError(f"{ablation.out} holds results of other settings or another dataset: name another file")
    return {**entry, "variants": kept}


def _described(variant: Variant) -> dict[str, Any]:
    return {"changes": dict(variant.changes), "form": variant.form}


def _same(known: dict[str, Any], variant: Variant) -> bool:
    described = _described(variant)
    return {name: known.get(name) for name in described} == described


def _known(entry: dict[str, Any], task: _Task) -> bool:
    return str(task.seed) in entry["variants"].get(task.name, {}).get("seeds", {})


def _tasks(ablation: Ablation, floors: Floors, ends_s: float) -> Iterator[_Task]:
    """All of one seed before the next, so that what is cut can still be compared."""
    first = ablation.base.fit.seed
    for seed in range(first, first + ablation.seeds):
        for name in ablation.variants:
            variant = VARIANTS[name]
            if variant.form == TREES and seed != first:
                continue
            settings = with_values(ablation.base, {**variant.changes, "seed": seed})
            described = content_id([names_of(settings), variant.form])
            folder = ablation.work / f"{name}-{seed}-{described[:8]}"
            yield _Task(name, seed, settings, variant.form, ablation.dataset, folder, floors, ends_s, ablation.trees)


def _write(ablation: Ablation, entry: dict[str, Any]) -> None:
    name, score = best_of(entry)
    record_results(ablation.out, ablation.dataset.name, entry, {"best": name, "score": score})


# ---- several at once ----


def _outcomes(
    tasks: Sequence[_Task], devices: Sequence[str], jobs: int
) -> Iterator[tuple[_Task, dict[str, float] | str]]:
    """Every training with its figures, or why it has none, as they end. None is begun once the time is over."""
    threads = max(1, usable_cores() // max(jobs, 1))
    waiting = [replace(task, device=devices[0], threads=threads) for task in reversed(tasks)]
    if jobs <= 1:
        while waiting and time.monotonic() < waiting[-1].ends_s:
            task = waiting.pop()
            yield task, _trained(task)
        return
    free = [devices[i % len(devices)] for i in reversed(range(jobs))]
    running: dict[Future[dict[str, float] | str], _Task] = {}
    with workers(jobs) as pool:
        try:
            while True:
                while waiting and free and time.monotonic() < waiting[-1].ends_s:
                    task = replace(waiting.pop(), device=free.pop())
                    running[pool.submit(_trained, task)] = task
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    task = running.pop(future)
                    free.append(task.device)
                    yield task, future.result()
        except BrokenProcessPool as error:
            raise DeviceError("a process that trained a variant died: run the same command again to go on") from error
        finally:
            for future in running:
                future.cancel()


def _trained(task: _Task) -> dict[str, float] | str:
    """The figures of one training, or why there are none. What one variant cannot do does not end the others."""
    torch.set_num_threads(task.threads)
    try:
        return _of_trees(task) if task.form == TREES else _of_net(task)
    except _OutOfTime:
        return OUT_OF_TIME
    except (KcgError, RuntimeError) as error:  # PyTorch's own are RuntimeErrors, one of no more memory among them
        return f"failed: {(str(error).splitlines() or [type(error).__name__])[0]}"


def _of_net(task: _Task) -> dict[str, float]:
    data, settings = dataset_of(task.dataset), task.settings.fit
    with Tracker(task.folder) as tracker:

        def report(values: dict[str, Any]) -> None:
            tracker.log(values)
            if time.monotonic() > task.ends_s:
                raise _OutOfTime

        fit = Fit(data, settings, task.folder, floors=task.floors, device=task.device, log=report)
        net = fit.run()
    index = fit.validation
    figures = judge(data, predicted(net, fit.graphs, index), index, task.floors)
    figures |= {"epochs": float(fit.progress.epoch), "spent_s": round(fit.progress.spent_s, 1)}
    batch = fit.graphs.batch(torch.from_numpy(index[:TIMED_ROWS]))
    batch = type(batch)(**{f.name: getattr(batch, f.name).cpu() for f in fields(batch)})
    net = net.cpu()
    with torch.inference_mode():
        figures["candidates_per_s"] = _rate(lambda: net(batch), len(batch))
    (task.folder / STATE).unlink(missing_ok=True)  # the metrics stay
    return _finite(figures)


def _of_trees(task: _Task) -> dict[str, float]:
    data, settings = dataset_of(task.dataset), task.settings.fit
    index = validation_rows(data, settings.split)
    began = time.monotonic()
    trees = grown(data, settings, task.trees, threads=task.threads)
    spent = time.monotonic() - began
    log_s, rank = data.log_s[index], trees.predict(tree_rows(data, index))
    figures = summary(scores(rank, log_s, data.kernel[index], data.run[index], task.floors), data.calls)
    figures["log_error"] = float(np.sqrt(np.nanmean((rank - log_s) ** 2)))
    rows = tree_rows(data, index[:TIMED_ROWS])
    return _finite(
        {**figures, "spent_s": round(spent, 1), "candidates_per_s": _rate(lambda: trees.predict(rows), len(rows))}
    )


def _rate(once: Callable[[], Any], rows: int) -> float:
    """Rows a second on one thread, at best: other trainings run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    once()
    end, best = time.perf_counter() + TIMED_S, math.inf
    while time.perf_counter() < end or best == math.inf:
        began = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - began)
    torch.set_num_threads(threads)
    return rows / best


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


# ---- what is reported ----


def best_of(entry: dict[str, Any]) -> tuple[str, float]:
    """The variant with the best mean score, and its score."""
    found = {
        name: float(np.mean([sum(figures.get(key, 0.0) for key in DECIDES) for figures in known["seeds"].values()]))
        for name, known in entry["variants"].items()
        if known["seeds"]
    }
    if not found:
        return "", 0.0
    name = max(found, key=lambda name: found[name])
    return name, found[name]


def table_of(entry: dict[str, Any]) -> list[str]:
    """The Markdown table."""
    lines = ["| variant | " + " | ".join(SHOWN.values()) + " | candidates a second |", "|---" * (len(SHOWN) + 2) + "|"]
    seeds = set()
    for name in sorted(entry["variants"], key=list(VARIANTS).index):
        known = list(entry["variants"][name]["seeds"].values())
        if VARIANTS[name].form != TREES:
            seeds.add(len(known))
        cells = [_cell([f[figure] for f in known if figure in f]) for figure in SHOWN]
        rates = [f["candidates_per_s"] for f in known if "candidates_per_s" in f]
        cells.append(f"{float(f'{max(rates):.2g}'):,.0f}" if rates else "–")
        lines.append(f"| {VARIANTS[name].says} | " + " | ".join(cells) + " |")
    if seeds:
        number = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        each = "a network has 1 seed" if seeds == {1} else f"mean and 95 % interval over {number} seeds (trees: one)"
        described = [f"Validation families, {each}; error is the root mean square of log-seconds;"]
        described.append("candidates a second are of the network alone on one thread, without making its input.")
        lines += ["", " ".join(described)]
    return lines


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"


def main(
    dataset: Annotated[Path, typer.Option(help="an export")] = ROOT / "datasets" / "h200",
    out: Annotated[Path, typer.Option(help="the results file")] = RESULTS / "ablate_predictor.json",
    work: Annotated[Path, typer.Option(help="folder of what is being trained")] = WORK / "ablation",
    docs: Annotated[str, typer.Option(help="the document whose table is written; empty: none")] = str(
        ROOT / "docs/experiments/2026-11-22-predictor-ablation.md"
    ),
    only: Annotated[str, typer.Option(help="variants by name, with commas; all by default")] = "",
    seeds: Annotated[int, typer.Option(help="trainings of each variant", min=1)] = 5,
    jobs: Annotated[int, typer.Option(help="trainings at once", min=1)] = 1,
    devices: Annotated[str, typer.Option(help="auto, cpu, cuda, or a list; trainings take them in turn")] = "auto",
    epochs: Annotated[int | None, typer.Option(help="passes over all kernels at most")] = None,
    share: Annotated[float | None, typer.Option(help="of the training kernels, 0 to 1")] = None,
    settings: Annotated[Path | None, typer.Option(help="JSON of settings by name, of which variants are made")] = None,
    budget: Annotated[str | None, typer.Option(help="time, e.g. 2h; no limit by default")] = None,
) -> None:
    """Train what is missing and write down the figures."""
    budget_s = parse_budget(budget) if budget is not None else None
    values = read_settings(settings) if settings is not None else {}
    values |= {k: v for k, v in {"epochs": epochs, "share": share}.items() if v is not None}
    names = tuple(name.strip() for name in only.split(",") if name.strip()) or tuple(VARIANTS)
    ablation = Ablation(dataset, out, work, with_values(TrainingSettings(), values), names, seeds)
    entry = ablate(
        ablation, devices=devices_of(devices), jobs=jobs, budget_s=budget_s, log=lambda line: typer.echo(line, err=True)
    )
    if docs and Path(docs).is_file():
        write_into(Path(docs), {"ablation": table_of(entry)})
    name, score = best_of(entry)
    typer.echo(json.dumps({"best": name, "score": score}))


if __name__ == "__main__":
    run_script(main)
