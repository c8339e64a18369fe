"""How many steps a second the environment makes, in new states and in those visited before, and where the time goes.

Every kernel is walked at random, and then once more with the same steps: the first time a step leads to a new state it
has to be planned, drawn as a graph and judged; the second time all of it is known. The time to read a kernel and to
begin an episode is left out, and so is what a process does once: every kernel is walked for one episode before.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluation.laps import laps
from kcg.dataset.reading import Export, read_export
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.checkpoint import read
from kcg.predictor.features import encode, graphs
from kcg.predictor.learned import LearnedPredictor
from kcg.rl.env import KernelScheduleEnv, Task, learned, padded
from kcg.rl.observation import Observer
from kcg.types import Region, Schedule, Target

NEW, KNOWN = "new", "known"
Seconds = dict[str, list[float]]


def episode(env: KernelScheduleEnv, episodes: int, *, seed: int, visited: dict[Schedule, None]) -> Seconds:
    """Seconds of each step, by whether it led to a state that is not among `visited`; these are added in order."""
    rng, spent = random.Random(seed), {NEW: list[float](), KNOWN: list[float]()}
    for episode in range(episodes):
        env.reset(seed=seed + episode)
        visited.setdefault(env.observed.schedule)
        over = False
        while not over:
            action = rng.choice(env.action_masks().nonzero()[0].tolist())
            begin = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            seconds = time.perf_counter() - begin
            spent[KNOWN if env.observed.schedule in visited else NEW].append(seconds)
            visited.setdefault(env.observed.schedule)
            over = terminated or truncated
    return spent


def profile(
    region: Region, target: Target, predictor: LearnedPredictor, schedules: Sequence[Schedule]
) -> dict[str, float]:
    """Microseconds of a new state by what is done for it, in a space that knows only the first of `schedules`."""
    observations = Observer(KernelSpace(region, target)).observe_all(schedules)
    space, spent = KernelSpace(region, target), dict[str, float]()
    space.actions(schedules[0])
    lap = laps(spent)
    for schedule, observation in zip(schedules[1:], observations[1:], strict=True):
        nests = space.loop_nests([schedule])
        lap("axis table, micro-operations")
        graphs(encode(nests), target)
        lap("graph")
        steps = space.actions(schedule)
        lap("legal actions")
        space.action_features(schedule, steps)
        lap("rows of actions")
        predictor.predict_features([observation])
        lap("network")
        padded(observation)
        lap("observation")
    return {name: 1e6 * seconds / (len(schedules) - 1) for name, seconds in spent.items()}


def drawn(export: Export, kernels: int, rng: random.Random) -> dict[str, list[Region]]:
    """So many kernels of Flux and as many of others, fewer where there are no more."""
    flux = {call.region.id for w in export.workloads() if w.name == "flux" for call in w.calls}
    single = [(name in flux, region) for name, region in sorted(export.regions().items()) if len(region.kernels) == 1]
    found = {}
    for family, wanted in (("flux", True), ("other", False)):
        of_it = [region for is_flux, region in single if is_flux == wanted]
        found[family] = rng.sample(of_it, min(kernels, len(of_it)))
    return found


def speed_of(checkpoint: Path, dataset: Path, *, kernels: int, episodes: int, seed: int) -> dict[str, Any]:
    """The figures of kernels drawn at random, with one network of a checkpoint and with all that it has."""
    export, whole = read_export(dataset), read(checkpoint)
    (target, *_) = export.targets().values()
    families = drawn(export, kernels, random.Random(seed))
    asked = {"one network": replace(whole, nets=whole.nets[:1]), "whole checkpoint": whole}
    entry: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "threads": 1,
        "target": target.model,
        "checkpoint": whole.about.name,
        "kernels": {family: [region.id[:12] for region in regions] for family, regions in families.items()},
    }
    for name, part in asked.items():
        predictor, total = LearnedPredictor(part), {NEW: list[float](), KNOWN: list[float]()}
        entry[name] = {}
        for region in (region for regions in families.values() for region in regions):  # what a process does once
            episode(_env_of(region, target, predictor), 1, seed=seed + episodes, visited={})
        for family, regions in families.items():
            spent, profiles = {NEW: list[float](), KNOWN: list[float]()}, list[dict[str, float]]()
            for region in regions:
                env, visited = _env_of(region, target, predictor), dict[Schedule, None]()
                spent[NEW] += episode(env, episodes, seed=seed, visited=visited)[NEW]
                spent[KNOWN] += episode(env, episodes, seed=seed, visited=visited)[KNOWN]
                if len(visited) > 1:
                    profiles.append(profile(region, target, predictor, list(visited)))
            entry[name][family] = rates(spent) | {
                "microseconds_of_a_new_state": {
                    what: round(statistics.mean(one[what] for one in profiles), 1) for what in profiles[0]
                }
            }
            for what, seconds in spent.items():
                total[what] += seconds
        entry[name] |= rates(total)
    return entry


def _env_of(region: Region, target: Target, predictor: LearnedPredictor) -> KernelScheduleEnv:
    """An environment of one kernel that knows nothing of it yet."""
    observer = Observer(KernelSpace(region, target))
    return KernelScheduleEnv([Task(region.id, observer.space, observer, learned(predictor, observer))], start="either")


def rates(spent: Seconds) -> dict[str, float]:
    """Steps a second and how many they were."""
    found: dict[str, float] = {}
    for what, seconds in spent.items():
        found[f"{what}_steps"] = len(seconds)
        found[f"{what}_steps_per_s"] = round(len(seconds) / sum(seconds), 1) if seconds else 0.0
    return found
