"""Hyper-parameters by trial: an optuna study over the validation part, kept in a folder and gone on with.

Every trial is one network. Its score after each look at the validation part goes to the study, which ends what is worse
than the median of the trials so far (Golovin et al. 2017); the next trial is drawn by TPE (Bergstra et al. 2011).
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kcg.dataset.reading import read_export
from kcg.errors import DataError, DeviceError, UsageError
from kcg.files import write_whole
from kcg.measure.device_info import usable_cores
from kcg.predictor.metrics import Floors, floors_of, score_of, scores
from kcg.predictor.tracking import Tracker
from kcg.predictor.training_data import TrainingData, load
from kcg.training.extra import need
from kcg.training.fit import STATE, Fit, validation_rows
from kcg.training.predictor import TrainingSettings, dataset_of, names_of, with_values, workers
from kcg.types import canonical_json, content_id

log = logging.getLogger(__name__)

STUDY, BEST, NAME = "study.jsonl", "best.json", "predictor"
FIRST_TRIALS = 5  # before any is ended early, and before the sampler trusts what it saw

SPACE: dict[str, Callable[[Any], Any]] = {
    "net.hidden": lambda t: t.suggest_categorical("net.hidden", [32, 48, 64]),
    "net.layers": lambda t: t.suggest_int("net.layers", 2, 4),
    "net.dropout": lambda t: t.suggest_float("net.dropout", 0.0, 0.2),
    "learning_rate": lambda t: t.suggest_float("learning_rate", 3e-4, 6e-3, log=True),
    "weight_decay": lambda t: t.suggest_float("weight_decay", 1e-5, 3e-2, log=True),
    "average": lambda t: t.suggest_categorical("average", [0.98, 0.99, 0.995, 0.998]),
    "kernels_a_step": lambda t: t.suggest_categorical("kernels_a_step", [12, 24, 48]),
    "schedules_a_kernel": lambda t: t.suggest_categorical("schedules_a_kernel", [16, 24, 32]),
    "weights.listwise": lambda t: t.suggest_float("weights.listwise", 0.0, 1.0),
    "weights.time": lambda t: t.suggest_float("weights.time", 0.1, 1.0),
}
"""What is tried, by the name of the setting. Wider or deeper networks answer fewer than 1,000 candidates a second, four
of them together on one core (`evaluation/predictor/bench.py`)."""


@dataclass(frozen=True)
class Tuned:
    """The best of a study."""

    path: Path  # the settings, for `--settings`
    values: dict[str, Any]
    score: float
    trials: int

    def line(self) -> str:
        """One line for the user."""
        tried = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in self.values.items())
        return f"{self.path}: best of {self.trials} trials has pairwise + top-1 {self.score:.4f}: {tried}"


class _OutOfTime(Exception):
    """The budget ended within a trial, which is gone on with the next time."""


def tune(
    data: Path,
    out: Path,
    settings: TrainingSettings,
    *,
    trials: int = 30,
    budget_s: float | None = None,
    devices: Sequence[str] = ("cpu",),
    jobs: int = 1,
) -> Tuned:
    """Go on with the study in `out` until it has so many trials or the time is over; `out/best.json` has the best.

    `jobs` trials at once, in processes of their own, on the devices in turn. `settings` are those that are not tried.
    Raises DataError where the export cannot be read, has no validation part, or `out` holds a study of other settings
    or another dataset, UsageError without optuna or without one trial, and DeviceError where a process died.
    """
    need("optuna")
    import optuna

    end = time.monotonic() + (math.inf if budget_s is None else budget_s)
    export, rows = read_export(data), load(data, log=log.info)
    floors = floors_of(export)
    if not _ranks_something(rows, settings.fit.split, floors):
        where = f"{data} has no validation part under the split by {settings.fit.split}"
        raise DataError(f"{where} that ranks anything: nothing to tune by")
    study = _study(out, settings, dict(rows.checksums))
    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    known = len(study.get_trials(deepcopy=False))
    threads = max(1, usable_cores() // jobs)
    wanted = [
        _Trial(
            data, out, settings, floors, devices[i % len(devices)], threads, settings.fit.seed + 1000 * known + i, end
        )
        for i in range(trials - len(study.get_trials(deepcopy=False, states=ended)))
    ]
    if jobs <= 1:
        for one in wanted:
            _try(one)
    elif wanted:
        try:
            with workers(min(jobs, len(wanted))) as pool:
                list(pool.map(_try, wanted))
        except BrokenProcessPool as error:
            raise DeviceError("a process that trained a trial died: run the same command again to go on") from error
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        raise UsageError(f"no trial was completed: give --budget more time, then run again to go on with {out}")
    best = study.best_trial
    write_whole(out / BEST, json.dumps(best.params, indent=1, sort_keys=True) + "\n")
    return Tuned(out / BEST, dict(best.params), float(best.value), len(study.get_trials(deepcopy=False, states=ended)))


def _ranks_something(data: TrainingData, split: str, floors: Floors) -> bool:
    """Whether the validation part has two schedules of a kernel whose times differ by more than noise: without, `Fit`
    takes the last epoch for the best, and its score says nothing."""
    index = validation_rows(data, split)
    found = scores(np.zeros(len(index)), data.log_s[index], data.kernel[index], data.run[index], floors)
    return any(kernel.pairs for kernel in found)


@dataclass(frozen=True)
class _Trial:
    """One trial that is to be drawn and run."""

    data: Path
    out: Path
    settings: TrainingSettings
    floors: Floors
    device: str
    threads: int
    seed: int  # of what is drawn
    ends_s: float  # by `time.monotonic`, which all processes of a machine share


def _try(one: _Trial) -> None:
    """Draw a trial and run it, unless the time is over."""
    import optuna

    if time.monotonic() > one.ends_s:
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(one.threads)
    rows = dataset_of(one.data)

    def objective(trial: Any) -> float:
        values = {name: suggest(trial) for name, suggest in SPACE.items()}
        folder = one.out / "trials" / content_id(values)[:16]
        with Tracker(folder) as tracker:

            def report(line: dict[str, Any]) -> None:
                tracker.log(line)
                if "validation/pairwise" in line:
                    score = score_of({name.removeprefix("validation/"): value for name, value in line.items()})
                    if math.isfinite(score):
                        trial.report(score, line["epoch"])
                    if trial.should_prune():
                        raise optuna.TrialPruned
                if time.monotonic() > one.ends_s:
                    raise _OutOfTime

            settings = with_values(one.settings, values).fit
            fit = Fit(rows, settings, folder, floors=one.floors, device=one.device, log=report)
            fit.run()
        (folder / STATE).unlink(missing_ok=True)  # the metrics stay
        log.info("trial %d: %.4f %s", trial.number, fit.progress.best_score, canonical_json(values))
        return fit.progress.best_score

    # others are under way: what is drawn keeps away from them. The seed is each time another, or a study that goes on
    # would begin with the draws that it began with
    sampler = optuna.samplers.TPESampler(n_startup_trials=FIRST_TRIALS, seed=one.seed, constant_liar=True)
    study = optuna.load_study(
        study_name=NAME,
        storage=_storage(one.out),
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(FIRST_TRIALS, n_warmup_steps=one.settings.fit.epochs // 8),
    )
    trial = study.ask()
    try:
        study.tell(trial, objective(trial))
    except optuna.TrialPruned:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    except _OutOfTime:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _storage(out: Path) -> Any:
    """Lines of a file, which several processes may write."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(out / STUDY)))


def _study(out: Path, settings: TrainingSettings, checksums: dict[str, str]) -> Any:
    """The study of a folder, new or gone on with; trials that were cut stand in line again. Raises DataError."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    fixed = {name: value for name, value in names_of(settings).items() if name not in SPACE}
    identity = canonical_json({"settings": fixed, "datasets": checksums, "space": sorted(SPACE)})
    try:
        study = optuna.create_study(storage=_storage(out), study_name=NAME, direction="maximize", load_if_exists=True)
        known = study.get_trials(deepcopy=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{out / STUDY} cannot be read as a study ({error}): remove it") from error
    if study.user_attrs.get("identity", identity) != identity:
        raise DataError(f"{out} holds a study of other settings or another dataset: name another folder")
    study.set_user_attr("identity", identity)
    state = optuna.trial.TrialState
    tried: list[Any] = [trial.params for trial in known if trial.state in (state.COMPLETE, state.PRUNED)]
    tried += [trial.system_attrs.get("fixed_params") for trial in known if trial.state == state.WAITING]
    for trial in known:
        if trial.state == state.RUNNING:
            study.tell(trial.number, state=state.FAIL)
        if trial.state in (state.RUNNING, state.FAIL) and trial.params and trial.params not in tried:
            study.enqueue_trial(trial.params)
            tried.append(trial.params)
    return study
