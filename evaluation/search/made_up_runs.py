"""Runs that are made up of what was measured of Flux on H100s, where no journal with jobs of such a run is at hand.

Measured, and read from `evaluation/results/`: the seconds of every kernel and region of a plan before and after, what
each region saves beside its kernels alone (`optimize_flux.json`, runs `1024_cuda_regions` and `768_cuda_regions`); how
many programs a search timed of each region, and how much slower the first was than the best (`first_choice.json`).

Drawn by a seed, so that sums are those that were measured: how a region's own time and that of its kernels alone is
divided among these; the programs between the first and the best; what jobs take. A whole run of today's phases
takes 328 s at 1024, where the measured one took 449 without the check of the whole (`phases_s`): proposing regions and
joining parts are no jobs here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.search.job_runs import Part, Program, Run

RESULTS = Path(__file__).parents[1] / "results"
CORES = 16
WRONG = 1 / 300  # of the programs that were timed: 2 of 551 at 1024, 1 at 768
REFUSED = 1 / 60  # of what is judged: 1 of 67 kernels and regions
COMPILE_S = 1.5  # of a core, for a tile program
JUDGE_S = 0.8  # of a comparison, beside its samples: 67 took 100 s with the waiting for references
TIME_S = 0.12  # of a measurement, beside its samples
SAMPLES = 16  # of tinygrad's own schedule, in a comparison
REFERENCE_S = {"attention": 45.0, "matmul": 6.0, "other": 0.8}
"""Of a core: nine of attention took 30 s of 16 cores."""
LAUNCHES, HOST_S, ALONE_AND_BESIDE = 10_000, 6e-5, 1.5  # as `kcg.measure.stress.expected_s`
RUNS = {"flux_1024": "1024_cuda_regions", "flux_768": "768_cuda_regions"}


def made_up(name: str, *, seed: int = 0) -> Run:
    """One run with the structure of `RUNS[name]`."""
    stored = json.loads((RESULTS / "optimize_flux.json").read_text())["runs"][RUNS[name]]
    first = json.loads((RESULTS / "first_choice.json").read_text())["runs"]["768_cuda"]["regions"]
    rng = random.Random(f"{name} {seed}")
    phases = dict(stored["phases"])
    saved = [region["saved_s"] for region in stored["plan"]]
    parts: list[Part] = []
    for row in stored["kernels"]:
        names = row["name"].partition(": ")[2].split("; ") if " kernels: " in row["name"] else []
        own_s, best_s = row["before_s"] / row["calls"], row["after_s"] / row["calls"]
        if names:
            alone_s = best_s + saved[sum(not part.is_kernel for part in parts)]
            parts += _region(len(parts), row["calls"], names, (own_s, alone_s, best_s), first, rng)
        else:
            parts.append(_kernel(f"k{len(parts)}", row["calls"], own_s, best_s, row["name"], first, rng))
    begin_s = phases["starting"] + phases["capturing"] + phases["opening"]
    about = f"made up of {RUNS[name]} in optimize_flux.json and of first_choice.json, seed {seed}"
    return Run(f"{name}_{seed}", True, CORES, False, begin_s, tuple(parts), about)


def phases_s(name: str) -> dict[str, float]:
    """How long each phase of the measured run took."""
    stored = json.loads((RESULTS / "optimize_flux.json").read_text())["runs"][RUNS[name]]
    return dict(stored["phases"])


def _region(
    number: int,
    calls: float,
    names: Sequence[str],
    seconds: tuple[float, float, float],
    first: Sequence[Mapping[str, Any]],
    rng: random.Random,
) -> list[Part]:
    """A region, behind the kernels in whose place it runs. A matmul has most of the time of its region."""
    own_s, alone_s, best_s = seconds
    distinct = list(dict.fromkeys(names))
    weights = [names.count(one) * _weight(one) * rng.uniform(0.7, 1.4) for one in distinct]
    shares = [weight / sum(weights) for weight in weights]
    kernels = []
    for place, (one, share) in enumerate(zip(distinct, shares, strict=True)):
        times = names.count(one)
        key = f"k{number + place}"
        own, alone = own_s * share / times, min(alone_s, own_s) * share / times
        kernels.append((_kernel(key, calls * times, own, alone, one, first, rng), float(times)))
    like = "attention" if len(names) == 5 and names[1].startswith("r_") and names[3] == names[1] else _like(names[0])
    programs = _programs(best_s, own_s, _similar(len(names), best_s, first), rng, stressed=like != "other")
    takes = tuple((part.id, times) for part, times in kernels)
    reference_s = REFERENCE_S[like] * rng.uniform(0.7, 1.4)
    region = Part(f"r{number + len(kernels)}", calls, reference_s, programs, takes=takes)
    return [*(part for part, _ in kernels), region]


def _kernel(
    key: str,
    calls: float,
    own_s: float,
    best_s: float,
    name: str,
    first: Sequence[Mapping[str, Any]],
    rng: random.Random,
) -> Part:
    like = _like(name)
    programs = _programs(best_s, own_s, _similar(1, best_s, first), rng, stressed=like != "other")
    timing_s = TIME_S + 3 * own_s
    return Part(key, calls, REFERENCE_S[like] * rng.uniform(0.7, 1.4), programs, own_s=own_s, timing_s=timing_s)


def _weight(name: str) -> float:
    return {"matmul": 20.0, "other": 1.0}[_like(name)]


def _like(name: str) -> str:
    """Whether a kernel is a matmul on tensor cores, by tinygrad's name of it: four loops and more besides."""
    return "matmul" if name.startswith("r_") and name.count("_") >= 9 else "other"


def _similar(kernels: int, best_s: float, first: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """How many programs of a region were timed, and how much slower the first was: of that which is most alike."""
    like = min(first, key=lambda row: (min(abs(row["kernels"] - kernels), 1), abs(row["best_s"] / best_s - 1.0)))
    return int(like["programs"]), like["first_s"] / like["best_s"]


def _programs(
    best_s: float, own_s: float, similar: tuple[int, float], rng: random.Random, *, stressed: bool
) -> tuple[Program, ...]:
    count, slower = similar
    best_at = 0 if slower <= 1.0 else rng.randrange(1, count) if count > 1 else 0
    found = []
    for place in range(count):
        seconds = best_s * (1.0 if place == best_at else slower if place == 0 else slower * rng.uniform(1.0, 1.6))
        fails = "time" if rng.random() < WRONG else "judge" if rng.random() < REFUSED else ""
        found.append(
            Program(
                seconds=seconds,
                compile_s=COMPILE_S * rng.uniform(0.5, 2.0),
                time_s=TIME_S * rng.uniform(0.7, 1.5) + 9 * seconds,
                judge_s=JUDGE_S * rng.uniform(0.6, 1.7) + SAMPLES * (own_s + seconds),
                stress_s=LAUNCHES * ALONE_AND_BESIDE * max(1.15 * seconds, HOST_S) if stressed else 0.0,
                fails=fails,
            )
        )
    return tuple(found)
