"""Spaces of schedules for tests of search without a device: a tiny one with a valley, recorded ones, and small shapes.

The tiny one: two axes and a reduction. Each of five steps is taken at most once, at most four in all: UPCAST and LOCAL
on both axes, UNROLL of the reduction. That makes 276 kernels reached by 3,420 orders of steps. The runtime is a formula
in which steps interact:

- Fewer than 256 threads make it up to 1.8 times slower, 256 make it 5 times faster, and these take two steps: the
  valley. A search that goes on only from what is fastest so far ends on its near side.
- UPCAST and UNROLL help a little alone and more together.
- Too large a register tile fails to compile; too many threads with it fails to launch.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import statistics
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path

from kcg.kernel.kinds import StepSpace
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.search.problem import Action, Observation, Predict
from kcg.search.replay import Record, ReplayTable, oracle_predict, read_tables
from kcg.types import Prediction, Schedule, Status

STEPS = [
    *(Opt("UPCAST", 0, n) for n in (2, 4, 8)),
    *(Opt("UPCAST", 1, n) for n in (2, 4)),
    *(Opt("LOCAL", 0, n) for n in (4, 16)),
    *(Opt("LOCAL", 1, n) for n in (4, 16)),
    *(Opt("UNROLL", 0, n) for n in (4, 8)),
]
DEPTH = 4
KERNELS = 276
BASELINE = schedule_of([Opt("UPCAST", 0, 4), Opt("UNROLL", 0, 4)])
"""Like a hand-coded schedule: better than nothing, and on the near side of the valley."""

DATASET = Path(__file__).parent.parent / "datasets" / "h200"
RECORDED = {
    "gpt2": "2ba8d6322d4a54ae3f68b303fa7b10011ce0235d86e20ba3b34a423b49185455",
    "rope": "5115110b04f4b7b470fa3750823fb6bb3b32a91d0ee3dc1db0713ac6b23c140b",
    "flux": "0a079ae19f2f8fe6c1cee313020bdebcffbc6e68db0d4159a5d03f2ab6f60a06",
}
"""Of 600 schedules each; 2 of rope's and 20 of flux's fail."""


def _observe(opts: tuple[Opt, ...]) -> Observation:
    """The formula: 100 µs for the unoptimised kernel, with a spread of 2 % that depends on the kernel only."""
    schedule = schedule_of(opts)
    sizes = {(o.op, o.axis): o.arg for o in opts if isinstance(o.arg, int)}

    def size(op: str, axis: int) -> int:
        return sizes.get((op, axis), 1)

    tile = size("UPCAST", 0) * size("UPCAST", 1)
    threads = size("LOCAL", 0) * size("LOCAL", 1)
    unroll = size("UNROLL", 0)
    if tile * unroll > 128:
        return Observation(schedule, Status.COMPILE_ERROR, None, "", "out of registers")
    if tile == 1:  # unrolling by 4 or 8 gives the same binary where nothing is upcast
        unroll = min(unroll, 4)
    binary = hashlib.sha256(repr((sorted((k, v) for k, v in sizes.items() if k != ("UNROLL", 0)), unroll)).encode())
    if threads * tile > 2048:
        return Observation(schedule, Status.LAUNCH_ERROR, None, binary.hexdigest(), "too many resources requested")
    microseconds = 100.0
    microseconds *= {1: 1.0, 4: 1.3, 16: 1.8, 64: 1.4, 256: 0.2}[threads]
    microseconds *= {1: 1.0, 2: 0.85, 4: 0.7, 8: 0.6, 16: 0.75, 32: 1.1}[tile]
    if unroll > 1:
        microseconds *= {1: 0.98, 2: 0.92, 4: 0.85, 8: 0.75 if unroll == 4 else 0.7}.get(tile, 1.1)
    if threads == 256:
        microseconds *= 2.0 if tile < 8 else 0.9
    microseconds *= 1.0 + 0.02 * binary.digest()[0] / 255
    return Observation(schedule, Status.OK, microseconds * 1e-6, binary.hexdigest())


@cache
def synthetic_table(deepest: int = DEPTH) -> ReplayTable:
    """The whole space, every order of steps recorded."""
    records = []
    for depth in range(deepest + 1):
        for opts in itertools.permutations(STEPS, depth):
            taken = {(o.op, o.axis) for o in opts}
            if len(taken) < depth:
                continue
            following = [o for o in STEPS if depth < deepest and (o.op, o.axis) not in taken]
            actions = tuple(Action(str(o), schedule_of([*opts, o])) for o in following)
            key = " ".join(sorted(str(o) for o in opts))
            records.append(Record(key, _observe(opts), actions))
    return ReplayTable(records, start=schedule_of(()), baseline=BASELINE)


def chain_table(runtimes_s: list[float | None], *, baseline: int = 0) -> ReplayTable:
    """A space that is a single road: one action from each schedule to the next; None is a failure."""
    schedules = [schedule_of([Opt("UNROLL", 0, 2)] * i) for i in range(len(runtimes_s))]
    records = []
    for i, (schedule, runtime_s) in enumerate(zip(schedules, runtimes_s, strict=True)):
        status = Status.OK if runtime_s is not None else Status.COMPILE_ERROR
        actions = tuple(Action("UNROLL(0,2)", s) for s in schedules[i + 1 : i + 2])
        records.append(Record(str(i), Observation(schedule, status, runtime_s, f"b{i}" if runtime_s else ""), actions))
    return ReplayTable(records, start=schedules[0], baseline=schedules[baseline])


def tree_table(runtimes: dict[str, tuple[float, str]]) -> ReplayTable:
    """A tree: `ab` is the child of `a` by a step `b`; of each the runtime in µs and the binary. It begins at ``."""

    def schedule(path: str) -> Schedule:
        return schedule_of([Opt("SWAP", 0, ord(c)) for c in path])

    records = []
    for path, (microseconds, binary) in runtimes.items():
        seen = Observation(schedule(path), Status.OK, microseconds * 1e-6, binary)
        steps = [p for p in runtimes if len(p) == len(path) + 1 and p.startswith(path)]
        actions = tuple(Action(str(opts_of(schedule(p[-1]))[0]), schedule(p)) for p in steps)
        records.append(Record(path, seen, actions))
    return ReplayTable(records, start=RAW, baseline=RAW)


@cache
def _recorded() -> dict[str, ReplayTable]:
    return {named.region_id: named.table for named in read_tables(DATASET, regions=RECORDED.values())}


def recorded(name: str) -> ReplayTable:
    return _recorded()[RECORDED[name]]


class Wrapped:
    """A space behind another one, which changes what a test is about."""

    def __init__(self, space: StepSpace) -> None:
        self.space = space

    def start(self) -> Schedule:
        return self.space.start()

    def baseline(self) -> Schedule:
        return self.space.baseline()

    def prior(self) -> list[Schedule]:
        return self.space.prior()

    def actions(self, schedule: Schedule) -> list[Action]:
        return self.space.actions(schedule)

    def variants(self, schedule: Schedule) -> list[Schedule]:
        return self.space.variants(schedule)

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        return self.space.neighbours(schedule)

    def key(self, schedule: Schedule) -> str:
        return self.space.key(schedule)

    def alike(self, schedule: Schedule) -> str:
        return self.space.alike(schedule)

    def groups(self, schedule: Schedule) -> Hashable:
        return self.space.groups(schedule)

    def tile(self, schedule: Schedule) -> Hashable:
        return self.space.tile(schedule)


# Predictors that are wrong


def inverted_predict(table: ReplayTable) -> Predict:
    """Ranks backwards: what is as much faster than the mean (of logarithms) is predicted that much slower."""
    logs = [math.log(r.observation.runtime_s) for r in table.records.values() if r.observation.runtime_s is not None]
    oracle, mean = oracle_predict(table), statistics.fmean(logs) if logs else 0.0

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        return [Prediction(2 * mean - p.log_runtime, 0.0, 1 - p.failure_probability) for p in oracle(schedules)]

    return predict


def noisy_predict(table: ReplayTable, *, sigma: float, seed: int) -> Predict:
    """The truth with normal noise of deviation `sigma` in log-seconds, the same for a kernel whenever asked."""
    oracle = oracle_predict(table)

    def noise(schedule: Schedule) -> float:
        return random.Random(f"{seed}:{table.key(schedule)}").gauss(0.0, sigma)

    def predict(schedules: Sequence[Schedule]) -> list[Prediction]:
        known = zip(schedules, oracle(schedules), strict=True)
        return [Prediction(p.log_runtime + noise(s), sigma, p.failure_probability) for s, p in known]

    return predict
