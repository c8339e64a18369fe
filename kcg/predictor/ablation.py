"""What each part of the predictor is worth: variants of its settings, each trained from several seeds.

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
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kcg.commandline import record_results
from kcg.dataset.reading import read_export
from kcg.errors import DataError, DeviceError, KcgError, UnknownName
from kcg.measure.target import usable_cores
from kcg.predictor.ast_graphs import AST_VERSION, for_rows
from kcg.predictor.data import TrainingData, load
from kcg.predictor.encode import Array
from kcg.predictor.ensemble import Blend, judged, said_by, tree_rows, validation_rows
from kcg.predictor.features import FEATURES_VERSION
from kcg.predictor.fit import STATE, Fit, FitSettings, judge, predicted, rows_of_kernels
from kcg.predictor.floors import floors_of
from kcg.predictor.metrics import Floors, half_width
from kcg.predictor.settings import TrainingSettings, names_of, with_values
from kcg.predictor.tracking import Tracker
from kcg.predictor.training import grown
from kcg.predictor.variants import AST, TREES, VARIANTS, Variant
from kcg.predictor.workers import dataset_of, workers
from kcg.types import canonical_json, content_id

TIMED_ROWS, TIMED_S = 256, 0.2  # of each timing of a network, which is the best of several
DECIDES = ("pairwise", "top1_mean")  # whose sum is the score
SHOWN = {
    "pairwise": "pairwise", "kendall_tau": "Kendall τ", "top1_mean": "top-1", "top5_mean": "top-5",
    "log_error": "error",
}  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ablation:
    """What is to be trained, and where. `out` is the results file, `work` the folder of what is not finished."""

    dataset: Path
    out: Path
    work: Path
    base: TrainingSettings
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: int = 5
    sample: int = 20_000  # training rows of the variants that are trained on a sample


@dataclass(frozen=True)
class _Task:
    """One training."""

    name: str
    seed: int
    settings: TrainingSettings
    form: str
    sample: int  # 0: all rows
    dataset: Path
    folder: Path
    floors: Floors
    ends_unix_s: float
    device: str = "cpu"
    threads: int = 1


class _OutOfTime(Exception):
    """The budget ended within a training, which goes on the next time."""


OUT_OF_TIME = "the time was over"


def ablate(
    ablation: Ablation, *, devices: Sequence[str] = ("cpu",), jobs: int = 1, budget_s: float | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Train what is missing, write each result as it comes, and return the entry of the results file.

    `jobs` trainings at once, on the devices in turn. Raises UnknownName for a variant, and DataError where the dataset
    cannot be read or has no validation part, or where `out` holds results of other settings or another dataset, and
    DeviceError where a process died.
    """
    for name in ablation.variants:
        if name not in VARIANTS:
            raise UnknownName("variant", name, list(VARIANTS))
    ends = time.time() + (math.inf if budget_s is None else budget_s)
    export, data = read_export(ablation.dataset), load(ablation.dataset, say=say)
    if not len(validation_rows(data, ablation.base.fit.split)):
        raise DataError(f"{ablation.dataset} has no validation part to judge by")
    entry = _entry(ablation, data)
    floors = floors_of(export)
    tasks = [task for task in _tasks(ablation, floors, ends) if not _known(entry, task)]
    if any(task.sample for task in tasks):
        say("computing the scheduled ASTs of the sample, once")
        for_rows(export, data, sample_of(data, ablation.base.fit, ablation.sample))
    left = len(tasks)
    for task, found in _outcomes(tasks, devices, min(jobs, len(tasks))):
        if isinstance(found, str):
            say(f"{task.name}, seed {task.seed}: {found}")
            continue
        left -= 1
        variant = VARIANTS[task.name]
        known = entry["variants"].setdefault(task.name, {"seeds": {}})
        known |= {**_told(variant), "says": variant.says}
        known["seeds"][str(task.seed)] = found
        _write(ablation, entry)
        say(f"{task.name}, seed {task.seed}: " + ", ".join(f"{k} {found[k]:.4f}" for k in DECIDES if k in found))
    if left:
        say(f"{left} of {len(tasks)} trainings are not done: run the same command again to go on")
    return entry


def sample_of(data: TrainingData, settings: FitSettings, count: int) -> Array:
    """The rows of the variants trained on a sample: `count` of the training rows, always the same, and the pool of the
    validation part, ascending."""
    training = np.concatenate([np.zeros(0, np.int64), *rows_of_kernels(data, settings)])
    some = np.random.default_rng(0).permutation(training)[:count]
    return np.unique(np.concatenate([some, validation_rows(data, settings.split)]))


# ---- what is known and what is to be done ----


def _identity(ablation: Ablation, data: TrainingData) -> dict[str, Any]:
    """What all results of an entry have in common."""
    told = {
        "settings": names_of(ablation.base), "datasets": dict(data.checksums), "sample": ablation.sample,
        "features": FEATURES_VERSION, "ast features": AST_VERSION,
    }  # fmt: skip
    found: dict[str, Any] = json.loads(canonical_json(told))
    return found


def _entry(ablation: Ablation, data: TrainingData) -> dict[str, Any]:
    """What the results file has, or a new entry. Raises DataError where it cannot go on with it."""
    identity = _identity(ablation, data)
    try:
        report = json.loads(ablation.out.read_text()) if ablation.out.exists() else {"runs": {}}
        entry: dict[str, Any] = report["runs"].get(ablation.dataset.name) or {**identity, "variants": {}}
        same = {name: entry.get(name) for name in identity} == identity
        kept = {name: v for name, v in entry["variants"].items() if name in VARIANTS and _same(v, VARIANTS[name])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{ablation.out} cannot be read as results: remove it to begin again") from error
    if not same:
        raise DataError(f"{ablation.out} holds results of other settings or another dataset: name another file")
    return {**entry, "variants": kept}


def _told(variant: Variant) -> dict[str, Any]:
    return {"changes": dict(variant.changes), "form": variant.form, "sampled": variant.sampled}


def _same(known: dict[str, Any], variant: Variant) -> bool:
    told = _told(variant)
    return {name: known.get(name) for name in told} == told


def _known(entry: dict[str, Any], task: _Task) -> bool:
    return str(task.seed) in entry["variants"].get(task.name, {}).get("seeds", {})


def _tasks(ablation: Ablation, floors: Floors, ends_unix_s: float) -> Iterator[_Task]:
    """All of one seed before the next, so that what is cut can still be compared."""
    first = ablation.base.fit.seed
    for seed in range(first, first + ablation.seeds):
        for name in ablation.variants:
            variant = VARIANTS[name]
            if variant.form == TREES and seed != first:
                continue
            settings = with_values(ablation.base, {**variant.changes, "seed": seed})
            sample = ablation.sample if variant.sampled else 0
            told = content_id([names_of(settings), variant.form, sample])
            folder = ablation.work / f"{name}-{seed}-{told[:8]}"
            yield _Task(name, seed, settings, variant.form, sample, ablation.dataset, folder, floors, ends_unix_s)


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
        while waiting and time.time() < waiting[-1].ends_unix_s:
            task = waiting.pop()
            yield task, _trained(task)
        return
    free = [devices[i % len(devices)] for i in reversed(range(jobs))]
    running: dict[Future[dict[str, float] | str], _Task] = {}
    with workers(jobs) as pool:
        try:
            while True:
                while waiting and free and time.time() < waiting[-1].ends_unix_s:
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
    data, settings, asts = dataset_of(task.dataset), task.settings.fit, None
    if task.sample:
        index, made = for_rows(read_export(task.dataset), data, sample_of(data, settings, task.sample), workers=1)
        data, asts = data.take(index), made if task.form == AST else None
        settings = replace(settings, share=1.0)  # the sample has that share of the kernels
    with Tracker(task.folder) as tracker:

        def tell(values: dict[str, Any]) -> None:
            tracker.log(values)
            if time.time() > task.ends_unix_s:
                raise _OutOfTime

        fit = Fit(data, settings, task.folder, floors=task.floors, device=task.device, log=tell, asts=asts)
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
    data, settings = dataset_of(task.dataset), task.settings
    index = validation_rows(data, settings.fit.split)
    began = time.monotonic()
    trees = grown(data, settings, threads=task.threads)
    spent = time.monotonic() - began
    figures = judged(said_by((), trees, data, index), Blend(1.0), data, index, task.floors)["trees"]
    for name in [name for name in figures if name == "failure_auc" or name.startswith("within_")]:
        del figures[name]  # trees say nothing of these
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


# ---- what is told ----


def best_of(entry: dict[str, Any]) -> tuple[str, float]:
    """The variant with the best mean score, of those trained on all rows where there are any, and its score."""
    found = {
        name: float(np.mean([sum(figures.get(key, 0.0) for key in DECIDES) for figures in known["seeds"].values()]))
        for name, known in entry["variants"].items() if known["seeds"]
    }  # fmt: skip
    found = {k: v for k, v in found.items() if not entry["variants"][k]["sampled"]} or found
    if not found:
        return "", 0.0
    name = max(found, key=lambda name: found[name])
    return name, found[name]


def table_of(entry: dict[str, Any]) -> list[str]:
    """The Markdown table: variants on all rows, then those on the sample."""
    lines = ["| variant | " + " | ".join(SHOWN.values()) + " | candidates a second |", "|---" * (len(SHOWN) + 2) + "|"]
    seeds = set()
    for name in sorted(entry["variants"], key=lambda name: (VARIANTS[name].sampled, list(VARIANTS).index(name))):
        known = list(entry["variants"][name]["seeds"].values())
        if VARIANTS[name].form != TREES:
            seeds.add(len(known))
        cells = [_cell([f[figure] for f in known if figure in f]) for figure in SHOWN]
        rates = [f["candidates_per_s"] for f in known if "candidates_per_s" in f]
        cells.append(f"{float(f'{max(rates):.2g}'):,.0f}" if rates else "–")
        mark = " (sample)" if VARIANTS[name].sampled else ""
        lines.append(f"| {VARIANTS[name].says}{mark} | " + " | ".join(cells) + " |")
    if seeds:
        number = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        each = "a network has 1 seed" if seeds == {1} else f"mean and 95 % interval over {number} seeds (trees: one)"
        told = [f"Validation families, {each}; error is the root mean square of log-seconds;"]
        told.append("candidates a second are of the network alone on one thread, without making its input.")
        if any(known["sampled"] for known in entry["variants"].values()):
            told.append(f"Rows marked (sample) were trained on {entry['sample']:,} rows, the same for all of them.")
        lines += ["", " ".join(told)]
    return lines


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{np.mean(values):.3f} ± {half_width(values):.3f}"
