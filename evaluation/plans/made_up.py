"""Made-up programs with the structure of recorded ones, for tests and before there are recordings.

    python -m evaluation.plans.made_up FOLDER --programs 20

Times are log-normal about what is expected, with an offset of each form and of each part; regions share calls; steps
gain a little less than sums, off by a hundredth; a few candidates fail. Nothing found on them says anything of a GPU.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from kcg.cli import run_script
from kcg.rl.plan_env import Steps
from kcg.rl.plan_recording import JOBS, Candidate, Part, PlanRecording, TimedPlan, write_recording

DEVICE: Final = "made up"
FORMS: Final = {"": 0.1, "product": 0.15, "attention": -0.1, "rows": 0.3}  # and the offset of log-times
FAILING: Final = {"compile": 0.03, "time": 0.02, "judge": 0.08, "stress": 0.01}


def made_up(seed: int, *, kernels: int = 6, regions: int = 4, candidates: int = 8, plans: int = 16) -> PlanRecording:
    """A program of a family that it shares with the next one."""
    rng = random.Random(f"made up {seed}")
    calls = tuple((f"k{rng.randrange(kernels)}" if n >= kernels else f"k{n}", 4.0) for n in range(2 * kernels))
    own_s = {f"k{n}": math.exp(rng.gauss(math.log(4e-5), 0.9)) for n in range(kernels)}
    parts = [_part(rng, (kernel,), "", own_s[kernel], calls, candidates) for kernel in own_s]
    for _ in range(10 * regions):
        begin, length = rng.randrange(len(calls) - 2), rng.choice((2, 2, 3))
        names = tuple(kernel for kernel, _ in calls[begin : begin + length])
        if len(parts) < kernels + regions and all(part.kernels != names for part in parts):
            whole_s = 0.9 * sum(own_s[name] for name in names)
            parts.append(_part(rng, names, rng.choice([*FORMS][1:]), whole_s, calls, candidates))
    own_step_s = 1.05 * sum(weight * own_s[kernel] for kernel, weight in calls)
    made = PlanRecording(
        workload=f"family{seed // 2}", preset=f"p{seed % 2}", calls=calls, parts=tuple(parts), plans=(),
        own_step_s=own_step_s, plan_job_s=rng.uniform(1.0, 3.0), first_plan_job_s=rng.uniform(10.0, 30.0),
        begin_s=rng.uniform(10.0, 20.0), cores=8, device=DEVICE, about=f"made up, seed {seed}",
    )  # fmt: skip
    return replace(made, plans=tuple(_plans(rng, made, plans)))


def _part(
    rng: random.Random,
    kernels: tuple[str, ...],
    form: str,
    own_s: float,
    calls: tuple[tuple[str, float], ...],
    candidates: int,
) -> Part:
    names = [kernel for kernel, _ in calls]
    length = len(kernels)
    places = tuple(
        tuple(range(n, n + length)) for n in range(len(calls) - length + 1) if (*names[n : n + length],) == kernels
    )
    offset = FORMS[form] + rng.gauss(0.0, 0.25)
    own_job_s = 0.1 + 200 * own_s * rng.uniform(0.8, 1.2)
    found = []
    for number in range(candidates):
        expected_s = own_s * math.exp(rng.gauss(-0.5 + 0.1 * number, 0.3))
        timed_s = expected_s * math.exp(offset + rng.gauss(0.0, 0.2))
        fails = next((job for job in JOBS if rng.random() < FAILING[job]), "")
        job_s = (rng.uniform(1.0, 4.0), own_job_s * rng.uniform(0.7, 1.3), own_job_s * rng.uniform(4, 8) + 0.5)
        stress_s = rng.choice((0.0, 2.0)) if form else 0.0
        reached = JOBS.index(fails) if fails else len(JOBS)
        found.append(
            Candidate(
                schedule=f"tile:{number}",
                expected_s=expected_s,
                job_s=(*job_s, stress_s),
                timed_s=timed_s if reached > 1 else None,
                judged_s=timed_s * math.exp(rng.gauss(0.01, 0.03)) if reached > 2 else None,
                fails=fails,
            )
        )
    part_id = "+".join(kernels) + form
    return Part(part_id, kernels, form, own_s, own_s * 1.01, own_job_s, places, tuple(found))


def _plans(rng: random.Random, made: PlanRecording, count: int) -> list[TimedPlan]:
    """The best plan by what was judged, and others of parts and candidates that pass."""
    steps = Steps(made)
    parts, program = steps.parts, steps.program
    factor, found = rng.gauss(0.95, 0.03), dict[tuple[tuple[str, int], ...], TimedPlan]()
    passing = [[n for n, one in enumerate(part.candidates) if not one.fails] for part in parts]
    for number in range(4 * count):
        chosen, savings = dict[int, int](), np.zeros(len(parts))
        for place, part in enumerate(parts):
            order = sorted(passing[place], key=lambda n, part=part: part.candidates[n].judged_s or math.inf)
            if order and (number == 0 or rng.random() < 0.6):
                chosen[place] = order[0] if number == 0 else rng.choice(order[:4])
                savings[place] = steps.savings[place, chosen[place]]
        weights = program.places.weights(savings[None])[0]
        key = tuple((parts[place].id, which) for place, which in chosen.items() if weights[place] > 0.0)
        if key and len(found) < count:
            log_speedup = factor * float(program.log_speedup(float(weights @ savings)))
            step_s = made.own_step_s * math.exp(-log_speedup + rng.gauss(0.0, 0.01))
            found.setdefault(key, TimedPlan(key, step_s, True))
    return [*found.values()]


def main(
    folder: Annotated[Path, typer.Argument(help="where to write them")],
    programs: Annotated[int, typer.Option(help="how many")] = 20,
) -> None:
    """Write made-up programs."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(programs):
        write_recording(made := made_up(seed), folder / f"{made.name.replace('/', '_')}.json")


if __name__ == "__main__":
    run_script(main)
