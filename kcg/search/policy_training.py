"""A policy's whole training: self-play over the predictor, learning from its visits, then PPO; resumable throughout.

The folder of a training holds `metrics.jsonl`, what self-play found (one file of arrays a kernel), `policy.safetensors`
as it is now, and `progress.json`. The same call goes on where it was cut. No device is needed, and no measurement is
made: the predictor stands for both, and neither it nor the policy sees a kernel of Flux.
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

import torch

from kcg.dataset.reading import Export, read_export
from kcg.dataset.splits import TRAIN, VALIDATION
from kcg.env import STARTS, Cost, Reading, Task, learned
from kcg.errors import DataError, ScheduleError, UnknownName, UsageError
from kcg.files import write_whole
from kcg.kernel.space import KernelSpace
from kcg.predictor.checkpoint import read
from kcg.predictor.kernel_jobs import keep, kept
from kcg.predictor.learned import LearnedPredictor
from kcg.predictor.tracking import Tracker, Tracking
from kcg.predictor.views import Viewer
from kcg.predictor.workers import workers as processes
from kcg.provenance import provenance
from kcg.search.draft import draft
from kcg.search.interface import Ledger, Problem
from kcg.search.policy import Policy, PolicyAbout, PolicyNet, read_policy, save_policy
from kcg.search.policy_learning import Judged, LearningSettings, learn
from kcg.search.ppo import PpoSettings, divided, environments
from kcg.search.ppo import train as train_ppo
from kcg.search.replay import ReplayTable
from kcg.search.self_play import Examples, SelfPlaySettings, as_arrays, from_arrays, games, together
from kcg.search.tables import RecordedKernel
from kcg.search.tables import kernels_of as recorded_kernels
from kcg.types import Region, Schedule, Target

log = logging.getLogger(__name__)

POLICY: Final = "policy.safetensors"
PROGRESS: Final = "progress.json"

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
class KernelOf:
    """A kernel to be played, as a process is given it."""

    region: Region
    target: Target
    predictor: Path
    members: int | None = None  # networks of the predictor that are asked; all by default

    def opened(self) -> tuple[Viewer, LearnedPredictor]:
        """Its views and its judge. Raises ScheduleError."""
        return Viewer(KernelSpace(self.region, self.target)), _predictor(self.predictor, self.members)


@functools.lru_cache(maxsize=2)
def _predictor(path: Path, members: int | None) -> LearnedPredictor:
    torch.set_num_threads(1)
    checkpoint = read(path)
    return LearnedPredictor(checkpoint if members is None else replace(checkpoint, nets=checkpoint.nets[:members]))


@functools.lru_cache(maxsize=2)
def _policy(path: Path, _changed: float) -> Policy:
    return read_policy(path)


def kernels_of(export: Export, predictor: Path, part: str, count: int, seed: int) -> list[KernelOf]:
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
    return [KernelOf(region, targets[0], predictor.resolve()) for region in regions[:count]]


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
    kernel: KernelOf
    settings: SelfPlaySettings
    seed: int


def _played(game: _Game) -> Examples | None:
    try:
        viewer, predictor = game.kernel.opened()
    except ScheduleError as error:
        log.warning("kernel %s is left out: %s", game.kernel.region.id[:12], error)
        return None
    return games(viewer, predictor.of(viewer.space).predict, game.settings, seed=game.seed)


def self_play(
    kernels: Sequence[KernelOf], folder: Path, settings: SelfPlaySettings, *, workers: int, seed: int = 0,
    told: Callable[[int], None] = lambda done: None, deadline: float = math.inf,
) -> Examples:  # fmt: skip
    """Plays every kernel and keeps what it taught, a file each; those that are there already are not played again."""
    files = {kernel.region.id: folder / f"{kernel.region.id[:24]}.npz" for kernel in kernels}
    waiting = [k for k in kernels if not files[k.region.id].exists()]
    if waiting and time.monotonic() < deadline:
        jobs = [_Game(kernel, settings, seed) for kernel in waiting]
        for i, (place, found) in enumerate(_each(_played, jobs, workers, deadline=deadline), 1):
            keep(as_arrays(found) if found is not None else {}, files[waiting[place].region.id])
            told(i)
    loaded = [kept(path, lambda arrays: from_arrays(arrays) if arrays else None) for path in files.values()]
    examples = [part for part in loaded if part is not None and len(part)]
    if not examples:
        raise DataError(
            f"{folder} holds nothing to learn from: no kernel has a legal step, or the time was up before the first"
        )
    return together(examples)


@dataclass(frozen=True)
class _Rollout:
    kernel: KernelOf
    policy: Path
    changed: float


def _rolled(job: _Rollout) -> tuple[float, float, float] | None:
    """Log-seconds as predicted: of tinygrad's own schedule, of the policy's end, of the best that a draft finds."""
    try:
        viewer, predictor = job.kernel.opened()
    except ScheduleError:
        return None
    judge = predictor.of(viewer.space)
    problem = Problem(viewer.space, judge.predict, lambda batch: [], Ledger(), random.Random(0))
    best, ends = draft(problem)[0], rollouts(_policy(job.policy, job.changed), viewer)
    said = [p.log_runtime for p in judge.predict([viewer.space.baseline(), best, *ends])]
    return said[0], min(said[2:]), min(said[1], said[0])


def rollouts(policy: Policy, viewer: Viewer, *, most_steps: int = 10) -> list[Schedule]:
    """Where the policy ends if it takes its likeliest step each time, from raw and from the hand-coded schedule."""
    ends = []
    for schedule in (viewer.space.start(), viewer.space.baseline()):
        for _ in range(most_steps):
            view = viewer.view(schedule)
            proposal = policy.propose([view])[0]
            best = max(range(len(proposal.steps)), key=proposal.steps.__getitem__, default=-1)
            if best < 0 or proposal.stop >= proposal.steps[best]:
                break
            schedule = view.steps[best].schedule
        ends.append(schedule)
    return ends


def judged(kernels: Sequence[KernelOf], policy: Path, *, workers: int) -> dict[str, float]:
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


def train_policy(
    data: Path, predictor: Path, out: Path, settings: PolicyTrainingSettings, *, from_mcts: bool, device: str = "cpu",
    workers: int = 1, wandb: str = "disabled", budget_s: float = math.inf, start: Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """Train, or go on; the figures on held-out kernels. A new one begins as the policy `start`, or as one that knows
    nothing but has the predictor's network. Raises DataError and UsageError."""
    if not from_mcts and settings.ppo.steps < 1 and settings.table_steps < 1:
        asked = "self-play (--from-mcts), PPO (ppo.steps above 0) nor PPO on recorded tables (table_steps above 0)"
        raise UsageError(f"nothing to do: neither {asked} is asked for")
    _check(settings)
    deadline = time.monotonic() + budget_s
    export, told = read_export(data), read(predictor).about
    ours = kernels_of(export, predictor, TRAIN, settings.kernels, settings.seed)
    others = kernels_of(export, predictor, VALIDATION, settings.held_out, settings.seed)
    for part, kernels in ((TRAIN, ours), (VALIDATION, others)):
        if not kernels:
            raise DataError(f"{data} has no kernel of the {part} part of the split by {told.split}")
    ours, others = ([replace(k, members=settings.networks) for k in kernels] for kernels in (ours, others))
    config = {"settings": asdict(settings), "datasets": dict(told.datasets), "predictor": told.name,
              **provenance()}  # fmt: skip
    about = PolicyAbout(
        out.name,
        tuple(t["fingerprint"] for t in told.targets),
        told.datasets,
        told.split,
        settings=asdict(settings),
        **provenance(),
    )
    given = {"datasets": dict(told.datasets), "predictor": told.name, "kernels of": dict(export.checksums)}
    state = _Progress(out / PROGRESS, asdict(settings) | given)
    with Tracker(out, Tracking(wandb, out.name, config), name=out.name, key="") as tracker:
        path = out / POLICY
        if not path.exists():
            net = read_policy(start).net if start is not None else PolicyNet(trunk=read(predictor).nets[0])
            save_policy(Policy(net, about), path)
        if from_mcts and not state.done.get("self_play", 0):
            examples = [
                self_play(
                    some, out / "self-play", settings.self_play, workers=workers, seed=settings.seed,
                    deadline=deadline, told=functools.partial(_say, len(some)),
                )
                for some in (others, ours)  # what judges first: the budget may end what there is to learn from
            ]  # fmt: skip
            tracker.log({"stage": "self-play", "examples": len(examples[1])})

            def heard(epoch: int, loss: float, found: Judged | None) -> None:
                tracker.log({"epoch": epoch, "loss": loss} | (asdict(found) if found else {}))

            net = read_policy(path).net
            learn(net, examples[1], examples[0], settings.learning, device=device, told=heard)
            save_policy(Policy(net.cpu(), about), path)
            state.write(self_play=1)
            tracker.log({"stage": "learned", **judged(others, path, workers=workers)})
        parallel = divided(len(ours), workers)
        # one network: each step is a batch of one
        makers = [functools.partial(_tasks, [replace(ours[i], members=1) for i in places]) for places in parallel]
        run = functools.partial(_ppo, path, about, state, tracker, device=device, deadline=deadline)
        run(makers, settings.ppo, "ppo")
        if settings.table_steps > 0:
            recorded = [k.region.id for k in recorded_kernels(export, TRAIN)]
            shares = divided(len(recorded), workers)
            tables = [functools.partial(_table_tasks, data, [recorded[i] for i in places]) for places in shares]
            run(tables, replace(settings.ppo, steps=settings.table_steps, curriculum=0.0), "tables")
        found = judged(others, path, workers=workers)
        save_policy(Policy(read_policy(path).net, replace(about, metrics=found)), path)
        tracker.log({"stage": "done", **found})
        tracker.artifact(path, out.name)
    return found


_LEAST: Final = {
    "kernels": 1, "held_out": 1, "networks": 1, "self_play.simulations": 1, "self_play.alpha": 1e-3,
    "self_play.most_steps": 1, "self_play.games": 1, "learning.epochs": 1, "learning.batch": 1, "ppo.rollout": 2,
    "ppo.batch": 2, "ppo.epochs": 1, "ppo.most_steps": 1,
}  # fmt: skip


def _check(settings: PolicyTrainingSettings) -> None:
    """Raises UsageError for a value that cannot be meant."""
    for name, least in _LEAST.items():
        if (value := operator.attrgetter(name)(settings)) < least:
            raise UsageError(f"{name}={value}: it has to be at least {least:g}")
    if settings.ppo.start not in STARTS:
        raise UnknownName("ppo.start", settings.ppo.start, list(STARTS))
    if settings.self_play.noise > 1:
        raise UsageError(f"self_play.noise={settings.self_play.noise}: it is a share, at most 1")


def _ppo(
    path: Path, about: PolicyAbout, state: _Progress, tracker: Tracker,
    makers: Sequence[Callable[[], list[Task]]], settings: PpoSettings, stage: str, *, device: str, deadline: float,
) -> None:  # fmt: skip
    """One stage of PPO, an environment for each maker of tasks; what is done of it already is not done again."""
    counted = f"{stage}_steps"
    done = state.done.get(counted, 0)
    if done >= settings.steps:
        return
    net = read_policy(path).net
    envs = environments(makers, settings, here=len(makers) == 1)

    def kept_on(steps: int) -> bool:
        save_policy(Policy(net, about), path)
        state.write(**{counted: steps})
        return time.monotonic() < deadline

    try:
        train_ppo(
            net, envs, settings, device=device, done=done, keep=kept_on,
            tell=lambda line: tracker.log({"stage": stage, **line}),
        )  # fmt: skip
    finally:
        envs.close()
    save_policy(Policy(net.cpu(), about), path)


def _tasks(kernels: Sequence[KernelOf]) -> list[Task]:
    """A task for each kernel that can be scheduled, paid by the predictor."""
    found = []
    for kernel in kernels:
        try:
            viewer, predictor = kernel.opened()
        except ScheduleError as error:
            log.warning("kernel %s is left out: %s", kernel.region.id[:12], error)
            continue
        found.append(Task(kernel.region.id[:12], viewer.space, viewer, learned(predictor, viewer)))
    return found


def _table_tasks(data: Path, region_ids: Sequence[str]) -> list[Task]:
    """A task for each recorded kernel: the steps of its table, paid by what measuring showed."""
    return [
        Task(kernel.region.id[:12], kernel.table, _viewer(kernel), recorded(kernel.table))
        for kernel in recorded_kernels(read_export(data), TRAIN)
        if kernel.region.id in region_ids
    ]


def _viewer(kernel: RecordedKernel) -> Viewer:
    return Viewer(KernelSpace(kernel.region, kernel.target), kernel.table.actions)


def recorded(table: ReplayTable) -> Cost:
    """The cost that was measured."""

    def cost(schedule: Schedule) -> Reading:
        found = table.records[schedule].observation
        if found.runtime_s is None:
            return Reading(math.nan, found.reason or str(found.status))
        return Reading(math.log(found.runtime_s))

    return cost


def _say(count: int, done: int) -> None:
    if done % 50 == 0 or done == count:
        log.info("%d of %d kernels played", done, count)


class _Progress:
    """What is done of a training, in a file. Raises DataError where the folder is another training's."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.done: dict[str, int] = {}
        if path.exists():
            told = json.loads(path.read_text())
            if told.get("settings") != self.settings:
                others = "with other settings, or of another predictor"
                raise DataError(f"{path.parent} holds a training {others}: choose another folder")
            self.done = told["done"]
        else:
            self.write()

    def write(self, **done: int) -> None:
        """Note what is done, whole or not at all."""
        self.done |= done
        write_whole(self.path, json.dumps({"settings": self.settings, "done": self.done}))
