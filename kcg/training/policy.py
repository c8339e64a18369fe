"""A policy's whole training: self-play over the predictor, learning from its visits, then PPO; resumable throughout.

The folder of a training holds `metrics.jsonl`, what self-play found (one file of arrays a kernel), `policy.safetensors`
as it is now, and `progress.json`. The same call goes on where it was cut: PPO with the network as the last rollout
found it and the steps done, but with a new optimizer and other draws, so that its figures are not those of one that was
not cut. No device is needed, and no measurement is made: the predictor stands for both, and neither it nor the policy
sees a kernel of Flux.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import operator
import random
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import TRAIN, VALIDATION
from kcg.errors import DataError, ScheduleError, UnknownName, UsageError
from kcg.files import read_limited, write_whole
from kcg.kernel.kinds import space_of
from kcg.predictor.checkpoint import read
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.tracking import Tracker, Tracking
from kcg.predictor.training_data import keep, kept
from kcg.provenance import provenance
from kcg.rl.env import STARTS, Task, learned, recorded
from kcg.rl.observation import Observer
from kcg.rl.policy import Policy, PolicyAbout, PolicyNumbers, likeliest_ends, read_policy, save_policy
from kcg.search.beam import draft
from kcg.search.problem import Ledger, Problem, Trials
from kcg.search.replay import RecordedKernel
from kcg.search.replay import kernels_of as recorded_kernels
from kcg.training.network import GraphSet, Net, owners
from kcg.training.policy_network import PolicyBatch, PolicyNet, log_softmax, placed
from kcg.training.ppo import PpoSettings, divided, environments
from kcg.training.ppo import train as train_ppo
from kcg.training.predictor import workers as processes
from kcg.training.self_play import Examples, SelfPlaySettings, as_arrays, from_arrays, games, together
from kcg.types import Region, Target

# ---- Teaching a policy what searches found: cross-entropy to the shares of their visits, and the value beside it.

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LearningSettings:
    """How a policy learns from examples."""

    epochs: int = 12
    batch: int = 256  # schedules
    learning_rate: float = 1e-3  # at its highest; it rises for a tenth of the steps and falls to nothing (OneCycleLR)
    trunk_rate: float = 0.3  # of the learning rate, for what the predictor brought
    weight_decay: float = 1e-4
    value: float = 0.3  # weight of the loss of the value
    seed: int = 0


class ExampleSet(GraphSet):
    """Examples on one device; `chosen` gathers any of them there."""

    def __init__(self, examples: Examples, device: str | torch.device = "cpu") -> None:
        every = np.arange(len(examples.kernel_x))
        super().__init__(examples.graphs, examples.kernel, examples.kernel_x, examples.target_x, every, device)
        n_rows = torch.from_numpy(examples.n_rows).to(device)
        for name in ("rows", "chances"):
            self._fields[name], self._counts[name] = torch.from_numpy(getattr(examples, name)).to(device), n_rows
            self._starts[name] = torch.cumsum(n_rows, 0) - n_rows
        self._fields["row axes"], self._counts["row axes"] = torch.from_numpy(examples.axes).to(device), n_rows
        self._starts["row axes"] = self._starts["rows"]
        self.value = torch.from_numpy(examples.value).to(device)
        self.weight = torch.from_numpy(examples.weight).to(device)

    def chosen(self, index: Tensor) -> tuple[PolicyBatch, Tensor, Tensor, Tensor]:
        """The batch of the examples at `index`, the chances of its rows, values and weights."""
        index = index.to(self.device)
        graphs = self.batch(index)
        owner = owners(self._counts["rows"][index])
        axes = placed(self._gathered("row axes", index), owner, self._counts["axes"][index])
        made = PolicyBatch(graphs, self._gathered("rows", index), axes, owner)
        return made, self._gathered("chances", index), self.value[index], self.weight[index]


@dataclass(frozen=True)
class ExampleScores:
    """What a policy makes of examples that it may not have seen."""

    cross_entropy: float  # nats above the entropy of the shares: 0 is perfect
    agreement: float  # how much of the visits went where the policy would go first
    value_error: float  # root mean square, log-speedup


def losses(net: PolicyNet, chosen: tuple[PolicyBatch, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """(n,) each: cross-entropy of the policy, and the loss of the value."""
    batch, chances, value, _ = chosen
    logits, hoped = net(batch)
    chance = log_softmax(logits, batch.owner, len(batch))
    cross = logits.new_zeros(len(batch)).scatter_add(0, batch.owner, -chances * chance)
    return cross, torch.nn.functional.smooth_l1_loss(hoped, value, reduction="none")


def judge(net: PolicyNet, data: ExampleSet, *, batch: int = 512) -> ExampleScores:
    """How well a policy foretells the visits of some examples."""
    cross, sure, error, n = 0.0, 0.0, 0.0, len(data)
    with torch.no_grad():
        for part in torch.split(torch.arange(n), batch):
            chosen = data.chosen(part)
            made, chances, value, _ = chosen
            logits, hoped = net(made)
            chance = log_softmax(logits, made.owner, len(made))
            entropy = -(chances * chances.clamp(min=1e-9).log()).sum()
            cross += float(-(chances * chance).sum() - entropy)
            top = logits.new_full((len(made),), -math.inf).scatter_reduce(0, made.owner, logits, "amax")
            first = logits == top[made.owner]
            ties = logits.new_zeros(len(made)).scatter_add(0, made.owner, first.to(logits.dtype))
            sure += float((chances * first / ties[made.owner]).sum())
            error += float((hoped - value).square().sum())
    return ExampleScores(cross / n, sure / n, math.sqrt(error / n))


def learn(
    net: PolicyNet,
    examples: Examples,
    held_out: Examples | None,
    settings: LearningSettings,
    *,
    device: str = "cpu",
    report: Callable[[int, float, ExampleScores | None], None] = lambda epoch, loss, judged: None,
) -> PolicyNet:
    """Teach `net` in place, and return it. `told` hears after each epoch what it lost and how it is judged."""
    torch.manual_seed(settings.seed)
    net = net.to(device)
    data = ExampleSet(examples, device)
    judged_on = ExampleSet(held_out, device) if held_out is not None else None
    trunk = list(net.trunk.parameters())
    known = {id(p) for p in trunk}
    fresh = [p for p in net.parameters() if id(p) not in known]
    rates = [settings.learning_rate * settings.trunk_rate, settings.learning_rate]
    optimizer = torch.optim.AdamW(
        [{"params": trunk}, {"params": fresh}], lr=rates[1], weight_decay=settings.weight_decay
    )
    steps = settings.epochs * math.ceil(len(data) / settings.batch)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=max(steps, 2), pct_start=0.1)
    for epoch in range(settings.epochs):
        net.train()
        total = 0.0
        for part in torch.split(torch.randperm(len(data)), settings.batch):
            picked = data.chosen(part)
            cross, value = losses(net, picked)
            weight = picked[3] / picked[3].sum()
            loss = (weight * (cross + settings.value * value)).sum()
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            plan.step()
            total += float(loss.detach()) * len(part)
        net.eval()
        report(epoch, total / len(data), judge(net, judged_on) if judged_on is not None else None)
    return net


POLICY: Final = "policy.safetensors"
PROGRESS: Final = "progress.json"
SELF_PLAY: Final = "self-play"

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True)
class PolicyTrainingSettings:
    """Everything that decides what a training gives, but the dataset and the predictor."""

    kernels: int = 1000  # of the training part, drawn at random
    held_out: int = 60  # of the validation part
    networks: int = 5  # of the predictor that judge in self-play, at most; PPO asks one
    self_play: SelfPlaySettings = field(default_factory=SelfPlaySettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    ppo: PpoSettings = field(default_factory=PpoSettings)
    table_steps: int = 0  # of PPO after that, on the recorded tables of the training part, paid by what was measured
    seed: int = 0


@dataclass(frozen=True)
class TrainingKernel:
    """A kernel to be scheduled, as a process is given it."""

    region: Region
    target: Target
    predictor: Path
    members: int | None = None  # networks of the predictor that are asked; all by default

    def opened(self) -> tuple[Observer, LearnedPredictor]:
        """What observes it, and its judge. Raises ScheduleError."""
        return Observer(space_of(self.region, self.target)), _predictor(self.predictor, self.members)


@functools.lru_cache(maxsize=2)
def _predictor(path: Path, members: int | None) -> LearnedPredictor:
    checkpoint = read(path)
    return LearnedPredictor(checkpoint if members is None else replace(checkpoint, nets=checkpoint.nets[:members]))


@functools.lru_cache(maxsize=2)
def _policy(path: Path, _changed: float) -> Policy:
    return read_policy(path)


def kernels_of(export: Export, predictor: Path, part: str, count: int, seed: int) -> list[TrainingKernel]:
    """Some kernels of a part of the predictor's split, on the target that it was trained on, in a random order."""
    about = read(predictor).about
    known = {target["fingerprint"] for target in about.targets}
    targets = [target for fingerprint, target in sorted(export.targets().items()) if fingerprint in known]
    if not targets:
        raise DataError(f"{predictor.name} was trained on no target of {export.folder}")
    rows = export.kernels_table(["id", f"split_{about.split}"]).to_pylist()
    wanted = {row["id"] for row in rows if row[f"split_{about.split}"] == part}
    regions = [r for _, r in sorted(export.regions().items()) if len(r.kernels) == 1 and r.kernel.id in wanted]
    random.Random(f"{seed}:{part}").shuffle(regions)
    return [TrainingKernel(region, targets[0], predictor.resolve()) for region in regions[:count]]


def _each(
    work: Callable[[J], R], jobs: Sequence[J], workers: int, *, deadline: float = math.inf
) -> Generator[tuple[int, R]]:
    """The place of each job and what `work` makes of it, as they are done; one worker works in this process. From the
    deadline on (by `time.monotonic`) none is begun, and what is running still comes."""
    if workers == 1:
        for place, job in enumerate(jobs):
            if time.monotonic() >= deadline:
                return
            yield place, work(job)
        return
    with processes(min(workers, len(jobs))) as pool:
        running = {pool.submit(work, job): place for place, job in enumerate(jobs)}
        try:
            for done in as_completed(running):
                if not done.cancelled():
                    yield running[done], done.result()
                if time.monotonic() >= deadline:
                    _cancel(running)
        finally:
            _cancel(running)


def _cancel(futures: Iterable[Future[Any]]) -> None:
    """Begin none of them. (`shutdown(cancel_futures=True)` forgets them where it does not wait, and they run on.)"""
    for future in futures:
        future.cancel()


@dataclass(frozen=True)
class _Game:
    kernel: TrainingKernel
    settings: SelfPlaySettings
    seed: int


def _games_of(kernel: TrainingKernel, folder: Path) -> Path:
    """The file of what a kernel taught."""
    return folder / f"{kernel.region.id[:24]}.npz"


def _played(game: _Game) -> Examples | None:
    try:
        observer, predictor = game.kernel.opened()
    except ScheduleError as error:
        log.warning("kernel %s is left out: %s", game.kernel.region.id[:12], error)
        return None
    return games(observer, predictor.of(observer.space).predict, game.settings, seed=game.seed)


def self_play(
    kernels: Sequence[TrainingKernel],
    folder: Path,
    settings: SelfPlaySettings,
    *,
    workers: int,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
    deadline: float = math.inf,
) -> Examples:
    """Plays every kernel and keeps what it taught, a file each; those that are there already are not played again."""
    files = {kernel.region.id: _games_of(kernel, folder) for kernel in kernels}
    waiting = [k for k in kernels if not files[k.region.id].exists()]
    if waiting and time.monotonic() < deadline:
        jobs = [_Game(kernel, settings, seed) for kernel in waiting]
        for i, (place, found) in enumerate(_each(_played, jobs, workers, deadline=deadline), 1):
            keep(as_arrays(found) if found is not None else {}, files[waiting[place].region.id])
            report(i)
    loaded = [kept(path, lambda arrays: from_arrays(arrays) if arrays else None) for path in files.values()]
    examples = [part for part in loaded if part is not None and len(part)]
    if not examples:
        raise DataError(
            f"{folder} holds nothing to learn from: no kernel has a legal step, or the time was up before the first"
        )
    return together(examples)


@dataclass(frozen=True)
class _Rollout:
    kernel: TrainingKernel
    policy: Path
    changed: float


def _rolled(job: _Rollout) -> tuple[float, float, float] | None:
    """Log-seconds as predicted: of tinygrad's own schedule, of the policy's end, of the best that a draft finds."""
    try:
        observer, predictor = job.kernel.opened()
    except ScheduleError:
        return None
    judge = predictor.of(observer.space)
    problem = Problem(observer.space, judge.predict, lambda batch: [], Ledger(), random.Random(0))
    best, ends = draft(Trials(problem))[0], likeliest_ends(_policy(job.policy, job.changed), observer)
    predicted = [p.log_runtime for p in judge.predict([observer.space.baseline(), best, *ends])]
    return predicted[0], min(predicted[2:]), min(predicted[1], predicted[0])


def against_search(kernels: Sequence[TrainingKernel], policy: Path, *, workers: int) -> dict[str, float]:
    """How far the policy alone gets on kernels, by what the predictor says, beside a search over the predictor."""
    jobs = [_Rollout(kernel, policy, policy.stat().st_mtime) for kernel in kernels]
    rows = sorted(_each(_rolled, jobs, workers), key=operator.itemgetter(0))
    found = [row for _, row in rows if row is not None]
    count = max(len(found), 1)
    return {
        "policy_log_speedup": sum(base - ours for base, ours, _ in found) / count,
        "search_log_speedup": sum(base - best for base, _, best in found) / count,
        "behind_search": sum(ours - best for _, ours, best in found) / count,
        "kernels": float(len(found)),
    }


@dataclass(frozen=True)
class TrainingRun:
    """Where and how long it trains; of the settings that make the policy it is none."""

    device: str = "cpu"  # as PyTorch names it
    workers: int = 1  # processes that play
    wandb: str = "disabled"  # the mode
    budget_s: float = math.inf


def train_policy(
    data: Path,
    predictor: Path,
    out: Path,
    settings: PolicyTrainingSettings,
    *,
    from_mcts: bool,
    start: Path | None = None,
    run: TrainingRun | None = None,
) -> dict[str, float]:
    """Train, or go on; the figures on held-out kernels. A new one begins as the policy `start`, or as one that knows
    nothing but has the predictor's network. Raises DataError and UsageError."""
    if not from_mcts and settings.ppo.steps < 1 and settings.table_steps < 1:
        asked = "self-play (--from-mcts), PPO (ppo.steps above 0) nor PPO on recorded tables (table_steps above 0)"
        raise UsageError(f"nothing to do: neither {asked} is asked for")
    _check(settings)
    run = TrainingRun() if run is None else run
    workers, deadline = run.workers, time.monotonic() + run.budget_s
    export, guide = read_export(data), read(predictor).about
    ours = kernels_of(export, predictor, TRAIN, settings.kernels, settings.seed)
    others = kernels_of(export, predictor, VALIDATION, settings.held_out, settings.seed)
    for part, kernels in ((TRAIN, ours), (VALIDATION, others)):
        if not kernels:
            raise DataError(f"{data} has no kernel of the {part} part of the split by {guide.split}")
    ours, others = ([replace(k, members=settings.networks) for k in kernels] for kernels in (ours, others))
    config = {"settings": asdict(settings), "datasets": dict(guide.datasets), "predictor": guide.name, **provenance()}
    about = PolicyAbout(
        out.name,
        tuple(t["fingerprint"] for t in guide.targets),
        guide.datasets,
        guide.split,
        settings=asdict(settings),
        **provenance(),
    )
    given = {"datasets": dict(guide.datasets), "predictor": guide.name, "kernels of": dict(export.checksums)}
    state = _Progress(out / PROGRESS, asdict(settings) | given)
    with Tracker(out, Tracking(run.wandb, out.name, config), name=out.name, key="") as tracker:
        path = out / POLICY
        if not path.exists():
            save_policy(Policy(_begun(start, predictor), about), path)
            state.done.clear()  # of a policy that is not there any more
        if from_mcts and not state.done.get("self_play", 0):
            examples = [
                self_play(
                    some,
                    out / SELF_PLAY,
                    settings.self_play,
                    workers=workers,
                    seed=settings.seed,
                    deadline=deadline,
                    report=functools.partial(_log, len(some)),
                )
                for some in (others, ours)  # what judges first: the budget may end what there is to learn from
            ]
            tracker.log({"stage": "self-play", "examples": len(examples[1])})

            def heard(epoch: int, loss: float, found: ExampleScores | None) -> None:
                tracker.log({"epoch": epoch, "loss": loss} | (asdict(found) if found else {}))

            net = PolicyNet.of(read_policy(path).network)
            learn(net, examples[1], examples[0], settings.learning, device=run.device, report=heard)
            save_policy(Policy(net.network(), about), path)
            if all(_games_of(kernel, out / SELF_PLAY).exists() for kernel in (*others, *ours)):
                state.write(self_play=1)
            tracker.log({"stage": "learned", **against_search(others, path, workers=workers)})
        parallel = divided(len(ours), workers)
        # one network: each step is a batch of one
        makers = [functools.partial(_tasks, [replace(ours[i], members=1) for i in places]) for places in parallel]
        training = _Training(path, about, state, tracker, run.device, deadline)
        _ppo(training, makers, settings.ppo, "ppo")
        if settings.table_steps > 0:
            recorded = [k.region.id for k in recorded_kernels(export, TRAIN, split=guide.split)]
            shares = divided(len(recorded), workers)
            tables = [functools.partial(_table_tasks, data, [recorded[i] for i in places]) for places in shares]
            _ppo(training, tables, replace(settings.ppo, steps=settings.table_steps, curriculum=0.0), "tables")
        found = against_search(others, path, workers=workers)
        save_policy(Policy(read_policy(path).network, replace(about, metrics=found)), path)
        tracker.log({"stage": "done", **found})
        tracker.artifact(path, out.name)
    return found


def _begun(start: Path | None, predictor: Path) -> PolicyNumbers:
    """What a training begins with."""
    if start is not None:
        return read_policy(start).network
    return PolicyNet(trunk=Net.of(read(predictor).nets[0])).network()


_LEAST: Final = {
    "kernels": 1,
    "held_out": 1,
    "networks": 1,
    "self_play.simulations": 1,
    "self_play.alpha": 1e-3,
    "self_play.most_steps": 1,
    "self_play.games": 1,
    "learning.epochs": 1,
    "learning.batch": 1,
    "ppo.rollout": 2,
    "ppo.batch": 2,
    "ppo.epochs": 1,
    "ppo.most_steps": 1,
}
_MOST: Final = {
    "self_play.noise": 1,
    "self_play.uniform": 1,
    "learning.learning_rate": 1,
    "learning.weight_decay": 10,
    "ppo.learning_rate": 1,
    "ppo.discount": 1,
    "ppo.curriculum": 1,
}


def _check(settings: PolicyTrainingSettings) -> None:
    """Raises UsageError for a value that cannot be meant."""
    for name, least in _LEAST.items():
        if (value := operator.attrgetter(name)(settings)) < least:
            raise UsageError(f"{name}={value}: it has to be at least {least:g}")
    if settings.ppo.start not in STARTS:
        raise UnknownName("ppo.start", settings.ppo.start, list(STARTS))
    for name, most in _MOST.items():
        if (value := operator.attrgetter(name)(settings)) > most:
            raise UsageError(f"{name}={value}: it has to be at most {most:g}")


@dataclass(frozen=True)
class _Training:
    """What the stages of a training have in common."""

    path: Path  # of the policy, which each makes better
    about: PolicyAbout
    state: _Progress
    tracker: Tracker
    device: str
    deadline: float


def _ppo(training: _Training, makers: Sequence[Callable[[], list[Task]]], settings: PpoSettings, stage: str) -> None:
    """One stage of PPO, an environment for each maker of tasks; what is done of it already is not done again."""
    path, about, state, tracker = training.path, training.about, training.state, training.tracker
    counted = f"{stage}_steps"
    done = state.done.get(counted, 0)
    if done >= settings.steps:
        return
    net = PolicyNet.of(read_policy(path).network)
    envs = environments(makers, settings, here=len(makers) == 1)

    def kept_on(steps: int) -> bool:
        save_policy(Policy(net.network(), about), path)
        state.write(**{counted: steps})
        return time.monotonic() < training.deadline

    try:
        train_ppo(
            net,
            envs,
            settings,
            device=training.device,
            done=done,
            keep=kept_on,
            report=lambda line: tracker.log({"stage": stage, **line}),
        )
    finally:
        envs.close()
    save_policy(Policy(net.network(), about), path)


def _tasks(kernels: Sequence[TrainingKernel]) -> list[Task]:
    """A task for each kernel that can be scheduled, paid by the predictor."""
    found = []
    for kernel in kernels:
        try:
            observer, predictor = kernel.opened()
        except ScheduleError as error:
            log.warning("kernel %s is left out: %s", kernel.region.id[:12], error)
            continue
        found.append(Task(kernel.region.id[:12], observer.space, observer, learned(predictor, observer)))
    return found


def _table_tasks(data: Path, region_ids: Sequence[str]) -> list[Task]:
    """A task for each recorded kernel: the steps of its table, paid by what measuring showed."""
    return [
        Task(kernel.region.id[:12], kernel.table, _observer(kernel), recorded(kernel.table))
        for kernel in recorded_kernels(read_export(data), "all")
        if kernel.region.id in region_ids
    ]


def _observer(kernel: RecordedKernel) -> Observer:
    return Observer(space_of(kernel.region, kernel.target), kernel.table.actions)


def _log(count: int, done: int) -> None:
    if done % 50 == 0 or done == count:
        log.info("%d of %d kernels played", done, count)


class _Progress:
    """What is done of a training, in a file. Raises DataError where the folder is another training's."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.done: dict[str, int] = {}
        if path.exists():
            try:
                batch = json.loads(read_limited(path, most_bytes=16 << 20))
                found, self.done = batch["settings"], {str(name): int(n) for name, n in batch["done"].items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{path} cannot be read ({error}): choose another folder") from error
            if found != self.settings:
                others = "with other settings, or of another predictor"
                raise DataError(f"{path.parent} holds a training {others}: choose another folder")
        else:
            self.write()

    def write(self, **done: int) -> None:
        """Note what is done, whole or not at all."""
        self.done |= done
        write_whole(self.path, json.dumps({"settings": self.settings, "done": self.done}))
