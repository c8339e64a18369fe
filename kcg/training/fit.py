"""Training a network: every step some schedules of some kernels, every so often a look at the validation part.

A run that was cut goes on where it was: after every epoch its whole state is written, tensors as safetensors and the
rest as JSON. What an epoch draws depends on the seed and its number only.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from kcg.dataset.splits import TRAIN, VALIDATION
from kcg.errors import DataError
from kcg.files import whole
from kcg.predictor.features import Array
from kcg.predictor.metrics import COVERAGE, Floors, auc, calibration, log_error, score_of, scores, summary
from kcg.predictor.network import NetSettings
from kcg.predictor.training_data import TrainingData, pool_rows
from kcg.training.loss import Truth, Weights, loss_of
from kcg.training.network import GraphSet, Net, Output, predicted

STATE = "state.safetensors"
LEAST_ROWS = 20  # from which a scale of spreads is taken
SCALE_ROWS = 8192  # rows from which the features' means and spreads are taken
CLIP = 1.0

Log = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class FitSettings:
    """How a network is trained: the best trial of `docs/experiments/2026-11-22-predictor-ablation.md`, rounded."""

    split: str = "workload"
    seed: int = 0
    epochs: int = 60
    kernels_a_step: int = 48
    schedules_a_kernel: int = 32
    learning_rate: float = 2.8e-3
    weight_decay: float = 0.03
    warm_up: float = 0.05  # share of all steps
    average: float = 0.995  # of the weights, over steps
    patience: int = 20  # epochs without a better validation score
    validate_every: int = 2
    share: float = 1.0  # of the training kernels
    net: NetSettings = field(default_factory=NetSettings)
    weights: Weights = field(default_factory=Weights)


@dataclass
class _Progress:
    """Where a run is."""

    epoch: int = 0
    best_score: float = -math.inf
    best_epoch: int = -1
    spent_s: float = 0.0


def validation_rows(data: TrainingData, split: str) -> Array:
    """(n,) the rows that decide: the pool of the validation part. The test part is never among them."""
    return pool_rows(data, split, VALIDATION)


def spread_scale(found: dict[str, Array], log_s: Array) -> float:
    """By what the expected errors have to be multiplied so that 50, 80 and 95 % of the errors lie within what a normal
    distribution has there; the geometric mean of the three, which a few wild errors do not move. 1 for few rows."""
    timed = np.isfinite(log_s)
    if timed.sum() < LEAST_ROWS:
        return 1.0
    z = np.abs(found["rank"] - log_s)[timed] * np.exp(-found["log_sigma"][timed])
    scales = [max(float(np.quantile(z, share)) / limit, 1e-3) for share, limit in COVERAGE]
    return math.prod(scales) ** (1 / len(scales))


def judge(data: TrainingData, found: dict[str, Array], index: Array, floors: Floors) -> dict[str, float]:
    """Every figure of some rows: `metrics.summary`, the failure head's AUC, and the calibration of the spread."""
    log_s, kernel, run = data.log_s[index], data.kernel[index], data.run[index]
    values = summary(scores(found["rank"], log_s, kernel, run, floors), data.calls)
    timed = np.isfinite(log_s)
    error = found["rank"][timed] - log_s[timed]
    values["failure_auc"] = auc(found["failure"], ~timed)
    values["log_error"] = log_error(error)
    within = calibration(error * np.exp(-found["log_sigma"][timed]))
    return values | {f"within_{name}": value for name, value in within.items()}


class Fit:
    """One training run in a folder of its own."""

    def __init__(
        self,
        data: TrainingData,
        settings: FitSettings,
        folder: Path,
        *,
        floors: Floors,
        device: str = "cpu",
        log: Log = lambda values: None,
        start: Net | None = None,
    ) -> None:
        """With `start`, a network of the same shape, training begins with its numbers.

        Raises DataError where the split leaves nothing to train on.
        """
        self.data, self.settings, self.folder, self.floors, self.log = data, settings, folder, floors, log
        self.device = torch.device(device)
        self.rows = rows_of_kernels(data, settings)
        if not self.rows:
            raise DataError(f"the split by {settings.split} leaves no kernel to train on")
        self.validation = pool_rows(data, settings.split, VALIDATION)
        self.graphs = GraphSet(data.graphs, data.kernel, data.kernel_x, data.target_x, data.target, device, data.base)
        torch.manual_seed(settings.seed)
        self.net, self.averaged = Net(settings.net).to(device), Net(settings.net).to(device)
        if not (settings.weights.pairs or settings.weights.listwise):
            self.net.rank_by_time()
        self.started_from = ""
        if start is not None:
            self.net.load_state_dict(start.state_dict())
            self.started_from = _hash_of(start)
        else:
            self._fit_scale()
        self.averaged.load_state_dict(self.net.state_dict())
        self.mean = get_ema_multi_avg_fn(settings.average)  # type: ignore[no-untyped-call]
        self.best: dict[str, Tensor] = {}
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.steps_an_epoch = math.ceil(len(self.rows) / settings.kernels_a_step)
        self.progress = _Progress()

    def run(self) -> Net:
        """Train to the end, or until nothing gets better; the network of the best epoch."""
        self._resume()
        settings, progress = self.settings, self.progress
        while progress.epoch < settings.epochs and (
            progress.best_epoch < 0 or progress.epoch - progress.best_epoch <= settings.patience
        ):
            began = time.monotonic()
            parts = self._epoch(progress.epoch)
            values: dict[str, Any] = {"epoch": progress.epoch, **{f"train/{k}": v for k, v in parts.items()}}
            last = progress.epoch + 1 == settings.epochs
            if last or progress.epoch % settings.validate_every == settings.validate_every - 1:
                values |= self._validate()
            progress.spent_s += time.monotonic() - began
            progress.epoch += 1
            self.log(
                {
                    **values,
                    "learning_rate": self._learning_rate(progress.epoch * self.steps_an_epoch),
                    "spent_s": round(progress.spent_s, 3),
                }
            )
            self._keep()
        if self.best:
            self.averaged.load_state_dict(self.best)
        return self.averaged.eval()

    def _validate(self) -> dict[str, float]:
        if not len(self.validation):  # nothing to stop by: the last epoch is the best
            score, values = float(self.progress.epoch), {}
        else:
            values = judge(
                self.data, predicted(self.averaged, self.graphs, self.validation), self.validation, self.floors
            )
            score = score_of(values)
            if not math.isfinite(score):  # a validation part that ranks nothing decides nothing
                score = float(self.progress.epoch)
        if score > self.progress.best_score:
            self.progress.best_score, self.progress.best_epoch = score, self.progress.epoch
            self.best = {name: value.clone() for name, value in self.averaged.state_dict().items()}
        return {f"validation/{name}": value for name, value in values.items()}

    def _fit_scale(self) -> None:
        rng = np.random.default_rng(self.settings.seed)
        some = np.concatenate([rng.permutation(rows)[: self.settings.schedules_a_kernel] for rows in self.rows])
        index = rng.permutation(some)[:SCALE_ROWS]
        log_s = torch.from_numpy(self.data.log_s[index] - self.data.base[index]).float()
        timed = torch.isfinite(log_s)
        mean = log_s[timed] if timed.any() else torch.zeros(1)
        self.net.fit_scale(self.graphs.batch(torch.from_numpy(index)), mean.to(self.device))

    def _learning_rate(self, step: int) -> float:
        total = self.settings.epochs * self.steps_an_epoch
        warm = max(1, int(self.settings.warm_up * total))
        if step < warm:
            return self.settings.learning_rate * (step + 1) / warm
        return self.settings.learning_rate * (
            0.01 + 0.99 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm))) / 2
        )

    def _epoch(self, epoch: int) -> dict[str, float]:
        """One pass over all kernels; the means of the losses."""
        rng = np.random.default_rng([self.settings.seed, epoch])
        order = rng.permutation(len(self.rows))
        torch.manual_seed(int(rng.integers(2**62)))  # of dropout
        sums: dict[str, Tensor | float] = {}
        self.net.train()
        for step in range(self.steps_an_epoch):
            chosen = order[step * self.settings.kernels_a_step : (step + 1) * self.settings.kernels_a_step]
            for group in self.optimizer.param_groups:
                group["lr"] = self._learning_rate(epoch * self.steps_an_epoch + step)
            index = _padded([self._draw(self.rows[k], rng) for k in chosen])
            there = torch.from_numpy(index >= 0)
            output = self.net(self.graphs.batch(torch.from_numpy(index[index >= 0])))
            loss, parts = loss_of(_unflattened(output, there), self._truth(index), self.settings.weights)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
            if torch.isfinite(norm):
                self.optimizer.step()
                self._average()
            for name, value in {"loss": loss, **parts}.items():
                sums[name] = sums.get(name, 0.0) + value.detach()  # stays on the device, which is not waited for
        return {name: float(value) / self.steps_an_epoch for name, value in sums.items()}

    def _draw(self, rows: Array, rng: np.random.Generator) -> Array:
        """Some schedules of one kernel; of what was chosen as many as it weighs."""
        most, weight = self.settings.schedules_a_kernel, self.data.weight[rows]
        if (weight < weight.max()).any():
            rows = rows[rng.random(len(rows)) < weight / weight.max()]
        return rows if len(rows) <= most else rng.choice(rows, most, replace=False)

    def _truth(self, index: Array) -> Truth:
        there = index >= 0
        log_s, run = self.data.log_s[index], self.data.run[index]
        timed = there & np.isfinite(log_s)
        log_s = np.where(timed, log_s, 0.0)
        floor = np.stack(
            [self.floors.of_pairs(row, same[:, None] == same[None]) for row, same in zip(log_s, run, strict=True)]
        )
        values = (log_s.astype(np.float32), timed, there, run, floor.astype(np.float32))
        return Truth(*(torch.from_numpy(value).to(self.device) for value in values))

    def _average(self) -> None:
        with torch.no_grad():  # all tensors in one launch
            self.mean(list(self.averaged.parameters()), list(self.net.parameters()), 0)

    # ---- resuming ----

    def _keep(self) -> None:
        from safetensors.torch import save_file

        tensors = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        tensors |= {f"averaged.{k}": v for k, v in self.averaged.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
        identity = {"progress": asdict(self.progress), **self._identity()}
        with whole(self.folder / STATE) as temporary:
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, {"progress": json.dumps(identity)})

    def _identity(self) -> dict[str, Any]:
        identity = {"settings": asdict(self.settings), "data": self.data.checksums, "form": "Net"}
        return identity | ({"start": self.started_from} if self.started_from else {})

    def _resume(self) -> None:
        """Take up what an earlier run of the same settings left. Raises DataError where it was of others."""
        from safetensors import SafetensorError, safe_open

        path = self.folder / STATE
        if not path.exists():
            return
        try:
            with safe_open(path, framework="pt", device=str(self.device)) as file:
                identity = json.loads(file.metadata()["progress"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): remove it to begin again") from error
        if identity.get("form") not in (None, "Net"):
            raise DataError(f"{path} is of a kind of network that this kcg has not: remove it, or name another folder")
        mine = json.loads(json.dumps(self._identity()))
        if {name: identity.get(name, "") for name in (*mine, "start")} != {"start": "", **mine}:
            raise DataError(f"{path} is of other settings or another dataset: remove it, or name another folder")
        self.progress = _Progress(**identity["progress"])

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.net.load_state_dict(part("net."))
        self.averaged.load_state_dict(part("averaged."))
        self.best = part("best.")
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in part("optimizer.").items():
            number, _, field_name = name.partition(".")
            state.setdefault(int(number), {})[field_name] = value.cpu() if field_name == "step" else value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def rows_of_kernels(data: TrainingData, settings: FitSettings) -> list[Array]:
    """The rows of each training kernel; with a share below 1 of some kernels only, always the same ones."""
    index = np.flatnonzero(data.part(settings.split, TRAIN))
    index = index[np.argsort(data.kernel[index], kind="stable")]
    if not len(index):
        return []
    found = np.split(index, np.flatnonzero(np.diff(data.kernel[index])) + 1)
    if settings.share < 1.0:
        rng = np.random.default_rng(0)  # the same kernels whatever the seed
        wanted = max(1, round(settings.share * len(found)))
        found = [found[i] for i in sorted(rng.permutation(len(found))[:wanted])]
    return found


def _hash_of(net: Net) -> str:
    """Identity of a network's numbers."""
    digest = hashlib.sha256()
    for name, values in sorted(net.state_dict().items()):
        digest.update(name.encode() + values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _padded(rows: list[Array]) -> Array:
    """(k, s) the rows of each kernel, -1 where there are no more."""
    made = np.full((len(rows), max(len(row) for row in rows)), -1)
    for place, row in zip(made, rows, strict=True):
        place[: len(row)] = row
    return made


def _unflattened(output: Output, there: Tensor) -> Output:
    """(n,) as (k, s), 0 where there is nothing."""
    there = there.to(output.rank.device)

    def spread(values: Tensor) -> Tensor:
        made = values.new_zeros(there.shape)
        return made.masked_scatter(there, values)

    return Output(*(spread(getattr(output, name)) for name in Output.__dataclass_fields__))
