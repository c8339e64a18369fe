"""Regret of ways to choose what to time, to judge and to time as plans, and when to stop; and the gate of rollouts.

    python -m evaluation.plans.regret evaluation/plans/recorded

Replays recorded programs in `kcg/Plan-v0`, without a device. Programs are split by family, frozen ones by a hash of the
family's name, after families of which nothing may be looked at anywhere. Beliefs are fitted on training programs, for
those themselves on the other families of them. Every arm of `evaluation.plans.arms` that has something to tune tries as
many settings, its defaults and some drawn from the same ranges, on training programs at some horizons; the one of the
least geometric mean cost stands. Then come all horizons, of training programs and, last, of frozen ones.

*Regret* is the cost by that of hindsight, less 1: the least cost found of any set of candidates that pass, who are
alone compiled, timed, judged and stressed, and deployed by the greedy plan. It is found by local search, one part after
the other, from several beginnings, so it is an upper bound of the optimum, not a lower one of costs; it knows how each
plan's step was timed, noise included, which no arm can.

The unit is the program: of each the geometric mean over horizons and seeds, then means of logarithms over programs with
a t interval. What is detected with a power of 80 % at 5 % follows from the training programs and is printed before a
frozen one is replayed. The gate: the heuristic's cost is at least 1.03 of that of rollouts. Updates
evaluation/results/eval_tiles.json, run `plans`; of made-up programs, no headline.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from threadpoolctl import threadpool_limits

from evaluation.dataset.record import FROZEN
from evaluation.plans.arms import ARMS, Setting
from evaluation.plans.beliefs import Belief, fitted
from evaluation.plans.made_up import DEVICE
from evaluation.predictor.intervals import half_width
from evaluation.rows import rounded, this_command
from kcg.cli import record_results, run_script
from kcg.errors import DataError
from kcg.rl.plan_env import COMPILE, OWN, STOP, Array, Replay, read_recordings, step_errors
from kcg.rl.plan_recording import PlanRecording

OUT = Path(__file__).parents[1] / "results" / "eval_tiles.json"
GATE: Final = 1.03
UNKNOWN: Final = 0.2
"""Programs are left out, before anything is replayed, whose plans that were not timed are predicted worse than that:
the root mean square of leave-one-out errors, in logarithms. What an arm costs there would be the model's."""
FROZEN_PROGRAMS: Final = 8
ENOUGH: Final = 20  # programs, from which so many are frozen; of fewer a share
FROZEN_SHARE: Final = 0.4
HORIZONS: Final = tuple(float(10**power) for power in np.linspace(2, 6, 9))
TUNED_AT: Final = HORIZONS[1::3]
TUNED: Final = ("random", "heuristic", "gradient", "rollouts")
TRAINING, HELD_OUT = "training", "frozen"
MOST_ACTIONS: Final = 2000  # of one episode


# ---- split, settings


def frozen_families(families: Sequence[str]) -> set[str]:
    """Of the family of each program: those that are frozen. Families that hold too many programs stay in training."""
    sizes = Counter(families)
    left = FROZEN_PROGRAMS if len(families) >= ENOUGH else round(FROZEN_SHARE * len(families))
    found = set()
    for name in sorted(sizes, key=lambda name: (name not in FROZEN, hashlib.sha256(f"plans {name}".encode()).digest())):
        if name in FROZEN or sizes[name] <= left:
            found.add(name)
            left -= sizes[name]
    return found


def settings(count: int) -> list[Setting]:
    """The defaults, and others drawn from the ranges of what is tuned; the same ones for every arm."""
    rng = np.random.default_rng(61)
    return [Setting()] + [
        Setting(
            optimism=float(rng.uniform(-0.5, 1.0)),
            threshold=float(np.exp(rng.uniform(np.log(0.3), np.log(4.0)))),
            replaced=float(rng.uniform(0.0, 1.0)),
            stopping=float(np.exp(rng.uniform(np.log(0.003), np.log(0.5)))),
            width=int(rng.integers(2, 7)),
        )
        for _ in range(count - 1)
    ]


# ---- hindsight


def hindsight_s(replay: Replay, horizon: float) -> float:
    """The least cost found, of the jobs of the chosen candidates alone: see the module."""
    options = [
        (part, number)
        for part, one in enumerate(replay.parts)
        for number, candidate in enumerate(one.candidates)
        if not candidate.fails and replay.steps.savings[part, number] > 0.0
    ]
    best = horizon * replay.program.own_step_s + replay.program.begin_s
    for start in _starts(replay, options):
        best = min(best, _local_search(replay, horizon, start, options))
    return best


def _starts(replay: Replay, options: Sequence[tuple[int, int]]) -> list[Array]:
    """(P,) candidates, -1 for none: nothing, the best of all parts, those of kernels alone, and the fastest plan."""
    parts, savings = len(replay.program.parts), replay.steps.savings
    nothing = np.full(parts, -1)
    all_best = nothing.copy()
    for part, number in options:
        if all_best[part] < 0 or savings[part, number] > savings[part, all_best[part]]:
            all_best[part] = number
    kernels = np.where(replay.program.is_kernel, all_best, -1)
    timed = {plan: step_s for plan, (step_s, passed) in replay.steps.timed.items() if passed and {*options} >= plan}
    recorded = nothing.copy()
    for part, number in min(timed, key=lambda plan: timed[plan], default=OWN):
        recorded[part] = number
    return [nothing, all_best, kernels, recorded]


def _local_search(replay: Replay, horizon: float, start: Array, options: Sequence[tuple[int, int]]) -> float:
    """The best change of one part, until there is none. Parts without calls in the plan are dropped."""
    moves = [*options, *((part, -1) for part in range(len(start)))]
    now, cost = start, math.inf
    while True:
        tried = np.repeat(now[None], len(moves) + 1, 0)
        for row, (part, number) in enumerate(moves):
            tried[row, part] = number
        costs, kept = _costs_s(replay, horizon, tried)
        best = int(costs.argmin())
        if costs[best] >= cost * (1 - 1e-12):
            return float(cost)
        now, cost = kept[best], costs[best]


def _costs_s(replay: Replay, horizon: float, chosen: Array) -> tuple[Array, Array]:
    """(n,) what candidates (n, P) cost, and those of them that have calls in the plan."""
    parts = np.arange(chosen.shape[1])
    savings = np.where(chosen >= 0, replay.steps.savings[parts, np.maximum(chosen, 0)], 0.0)
    kept = np.where(replay.program.places.weights(savings) > 0.0, chosen, -1)
    jobs_s = np.zeros(replay.program.shape)
    for part, one in enumerate(replay.parts):
        for number, candidate in enumerate(one.candidates):
            jobs_s[part, number] = sum(candidate.job_s) - candidate.job_s[COMPILE] * (1 - 1 / replay.program.cores)
    spent = np.where(kept >= 0, jobs_s[parts, np.maximum(kept, 0)], 0.0).sum(1)
    steps = [
        replay.steps.step_s(frozenset((int(part), int(row[part])) for part in np.flatnonzero(row >= 0))) for row in kept
    ]
    return replay.program.begin_s + spent + horizon * np.array(steps), kept


# ---- episodes


@dataclass(frozen=True)
class Task:
    """Episodes of one program."""

    program: int
    arm: str  # or `HINDSIGHT`
    setting: Setting
    horizons: tuple[float, ...]
    seeds: int = 1


HINDSIGHT: Final = "hindsight"


@dataclass(eq=False)
class Bench:
    """Programs, their split, and what is believed of each."""

    recordings: Sequence[PlanRecording]
    replays: list[Replay] = field(init=False)
    training: list[int] = field(init=False)
    frozen: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Raises DataError where programs are too few to be split."""
        self.replays = [Replay(one) for one in self.recordings]
        families = [one.family for one in self.recordings]
        held_out = frozen_families(families)
        self.frozen = [number for number, family in enumerate(families) if family in held_out]
        self.training = [number for number, family in enumerate(families) if family not in held_out]
        if not self.frozen or len({families[number] for number in self.training}) < 2:
            raise DataError(f"{len(families)} programs of {len({*families})} families are too few: record others")
        self._beliefs: dict[str, Belief] = {}

    def belief(self, program: int) -> Belief:
        """By training programs of other families."""
        family = self.recordings[program].family
        if family not in self._beliefs:
            others = [self.replays[one] for one in self.training if self.recordings[one].family != family]
            self._beliefs[family] = fitted(others)
        return self._beliefs[family]

    def costs_s(self, task: Task) -> list[float]:
        """Of each horizon: what the episode cost, the geometric mean over seeds."""
        replay = self.replays[task.program]
        if task.arm == HINDSIGHT:
            return [hindsight_s(replay, horizon) for horizon in task.horizons]
        return [
            math.exp(np.mean([math.log(self._episode_s(task, horizon, seed)) for seed in range(task.seeds)]))
            for horizon in task.horizons
        ]

    def _episode_s(self, task: Task, horizon: float, seed: int) -> float:
        replay, belief = self.replays[task.program], self.belief(task.program)
        rng = np.random.default_rng([seed, task.program, round(1000 * math.log(horizon))])
        seen = replay.begin(horizon)
        for _ in range(MOST_ACTIONS):
            action = ARMS[task.arm](seen, belief, task.setting, rng)
            if action == STOP:
                break
            replay.act(seen, action)
        return replay.cost(seen)


Run = Callable[[Sequence[Task]], list[list[float]]]
_bench: Bench | None = None


def known(folder: Path) -> tuple[list[PlanRecording], list[str]]:
    """The recorded programs of a folder, and the names of those that are left out (`UNKNOWN`)."""
    found = read_recordings(folder)
    out = [one.name for one in found if step_errors(one).fitted > UNKNOWN]
    return [one for one in found if one.name not in out], out


def _begin(folder: Path) -> None:
    global _bench
    threadpool_limits(1)  # its arrays are small
    _bench = Bench(known(folder)[0])


def _costs(task: Task) -> list[float]:
    assert _bench is not None
    return _bench.costs_s(task)


@contextmanager
def in_processes(folder: Path, count: int) -> Iterator[Run]:
    """Tasks of the recordings of a folder, in so many processes."""
    context = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(folder,)) as pool:
        yield lambda tasks: list(pool.map(_costs, tasks))


# ---- the experiment


@dataclass(frozen=True)
class Budget:
    """How much is tried."""

    settings: int = 12
    seeds: int = 1
    horizons: tuple[float, ...] = HORIZONS
    tuned_at: tuple[float, ...] = TUNED_AT


def tuned(bench: Bench, run: Run, budget: Budget) -> dict[str, Setting]:
    """Of each arm the setting of the least geometric mean cost over training programs."""
    tried = settings(budget.settings)
    tasks = [
        Task(program, arm, setting, budget.tuned_at) for arm in TUNED for setting in tried for program in bench.training
    ]
    costs = np.log(run(tasks)).reshape(len(TUNED), len(tried), -1).mean(2)
    best = {arm: tried[int(found.argmin())] for arm, found in zip(TUNED, costs, strict=True)}
    return {arm: best.get(arm, Setting()) for arm in ARMS}


def all_costs(programs: Sequence[int], chosen: Mapping[str, Setting], run: Run, budget: Budget) -> dict[str, Array]:
    """(programs, horizons) of each arm and of hindsight: log-costs."""
    arms = {**chosen, HINDSIGHT: Setting()}
    tasks = [
        Task(program, arm, setting, budget.horizons, budget.seeds)
        for arm, setting in arms.items()
        for program in programs
    ]
    costs = np.log(run(tasks)).reshape(len(arms), len(programs), -1)
    return dict(zip(arms, costs, strict=True))


def compared(costs: Mapping[str, Array], arm: str, other: str) -> Array:
    """(programs,) logarithms of what an arm costs by what another one does, means over horizons."""
    found: Array = (costs[arm] - costs[other]).mean(1)
    return found


def figure(logs: Array, *, less: float = 0.0) -> dict[str, Any]:
    """A geometric mean over programs and its 95 % interval."""
    mean, half = float(logs.mean()), half_width(logs.tolist())
    return {
        "value": rounded(math.exp(mean) - less),
        "interval": [rounded(math.exp(mean - half) - less), rounded(math.exp(mean + half) - less)],
    }


def detectable(logs: Array, programs: int) -> float:
    """The smallest ratio that so many programs detect, as a share beyond 1, with a power of 80 % at 5 %, if logarithms
    of them vary as these do. Infinite for one."""
    from scipy.special import stdtrit

    if programs < 2 or len(logs) < 2:
        return math.inf
    error = float(np.std(logs, ddof=1)) / math.sqrt(programs)
    return math.expm1(float(stdtrit(programs - 1, 0.975) + stdtrit(programs - 1, 0.8)) * error)


def experiment(bench: Bench, run: Run, budget: Budget, *, log: Callable[[str], None]) -> dict[str, Any]:
    """All of it, frozen programs last."""
    chosen = tuned(bench, run, budget)
    costs = {TRAINING: all_costs(bench.training, chosen, run, budget)}
    least = detectable(compared(costs[TRAINING], "heuristic", "rollouts"), len(bench.frozen))
    log(f"{len(bench.frozen)} frozen programs detect a difference of {least:.2%} (80 % power, 5 %)")
    costs[HELD_OUT] = all_costs(bench.frozen, chosen, run, budget)
    ratio = figure(compared(costs[HELD_OUT], "heuristic", "rollouts"))
    programs = {TRAINING: bench.training, HELD_OUT: bench.frozen}
    return {
        "arms": {
            arm: {
                "setting": {name: rounded(value) for name, value in asdict(setting).items()} if arm in TUNED else {},
                **{
                    part: {
                        "regret": figure(compared(found, arm, HINDSIGHT), less=1.0),
                        "by_stopping": figure(compared(found, arm, "stop")),
                        "regret_by_horizon": [
                            rounded(float(np.expm1(one))) for one in (found[arm] - found[HINDSIGHT]).mean(0)
                        ],
                    }
                    for part, found in costs.items()
                },
            }
            for arm, setting in chosen.items()
        },
        "programs": {
            bench.recordings[number].name: {
                "part": part,
                "parts": len(bench.replays[number].program.parts),
                "plans": bench.replays[number].steps.errors.plans,
                "step_error": rounded(bench.replays[number].steps.errors.fitted),
                "step_error_of_sums": rounded(bench.replays[number].steps.errors.sums),
                "regret": {arm: rounded(float(np.expm1(compared(costs[part], arm, HINDSIGHT)[row]))) for arm in chosen},
            }
            for part, numbers in programs.items()
            for row, number in enumerate(numbers)
        },
        "horizons": list(budget.horizons),
        "settings_tried": budget.settings,
        "seeds": budget.seeds,
        "detectable": rounded(least) if math.isfinite(least) else None,
        "rollouts_vs_heuristic": {
            HELD_OUT: ratio,
            TRAINING: figure(compared(costs[TRAINING], "heuristic", "rollouts")),
        },
        "gate": GATE,
        "passed": ratio["value"] >= GATE,
    }


def main(
    folder: Annotated[Path, typer.Argument(help="of recorded programs")],
    settings_: Annotated[int, typer.Option("--settings", help="that each arm is tuned with")] = 12,
    seeds: Annotated[int, typer.Option(help="of each episode")] = 1,
    workers: Annotated[int, typer.Option(help="processes")] = 2,
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Tune all arms, replay all programs, and write the figures."""
    recordings, left_out = known(folder)
    bench = Bench(recordings)
    with in_processes(folder, workers) as run:
        entry = experiment(bench, run, Budget(settings_, seeds), log=typer.echo)
    entry["left_out"] = left_out
    entry["devices"] = sorted({one.device for one in bench.recordings})
    headline = {
        "rollouts_vs_heuristic": entry["rollouts_vs_heuristic"][HELD_OUT]["value"],
        "heuristic_regret": entry["arms"]["heuristic"][HELD_OUT]["regret"]["value"],
    }
    is_real = DEVICE not in entry["devices"]
    record_results(out, "plans", {**entry, "command": this_command()}, headline if is_real else {})
    for arm, row in entry["arms"].items():
        shown = (
            f"{part} {row[part]['regret']['value']:.4f} {row[part]['regret']['interval']}"
            for part in (TRAINING, HELD_OUT)
        )
        typer.echo(f"{arm}: regret {', '.join(shown)}")
    typer.echo(json.dumps({"rollouts_vs_heuristic": entry["rollouts_vs_heuristic"], "passed": entry["passed"]}))


if __name__ == "__main__":
    run_script(main)
