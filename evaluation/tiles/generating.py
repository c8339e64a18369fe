"""What generating and compiling tile programs costs, on processors alone: seconds of one core for each program."""

from __future__ import annotations

import os
import random
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.rows import rounded
from evaluation.tiles.cases import Case
from kcg.compat.scheduling import simplified
from kcg.kernel.codec import ast_of
from kcg.kernel.kinds import Unsupported, kind_named, space_of
from kcg.kernel.reading.kernel import read_ast
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.space import TileSpace
from kcg.measure.device_info import first_line, usable_cores
from kcg.measure.pools import CompilePool
from kcg.types import Region, ScheduleKind, Target, WorkloadCall

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Cost:
    """What one program cost. `failure` says why it has no machine code."""

    key: str
    number: int  # 0 is the program that a search begins with
    generate_s: float = 0.0
    compile_s: float = 0.0
    failure: str = ""


def sample(cases: Sequence[Case], target: Target, *, programs: int) -> Iterator[Cost]:
    """The costs of each program as it is done: of every case the start and some neighbours, `programs` in all."""
    jobs = {(case.key, number): (cost, case.region, target) for case in cases for number in range(programs)}
    yield from results_of(jobs, target, lost=lambda job, reason: Cost(*job, failure=reason))


def shares(calls: Sequence[tuple[str, WorkloadCall]], target: Target) -> dict[str, Any]:
    """`generated_share`: of the time of some kernels' calls with tinygrad's own schedule, as predicted without any
    measurement, what falls on those that tile programs are generated for; and why not the others."""
    jobs = {(name, call.calls): (part, call.region, target) for name, call in calls}
    parts: list[Part] = list(results_of(jobs, target, lost=lambda job, reason: Part(*job, refused=reason)))
    total_s = sum(one.calls * one.hand_coded_s for one in parts)
    generated_s = sum(one.calls * one.hand_coded_s for one in parts if not one.refused)
    return {
        "generated_share": rounded(generated_s / total_s) if total_s else 0.0,
        "kernels": len(parts),
        "kernels_generated": sum(not one.refused for one in parts),
        "refused": dict(Counter(one.refused for one in parts if one.refused)),
    }


@dataclass(frozen=True)
class Part:
    """A kernel's share of a workload."""

    name: str
    calls: int
    hand_coded_s: float = 0.0  # of one call, as the roofline predicts
    refused: str = ""


def part(name: str, calls: int, region: Region, target: Target) -> Part:
    """Predict tinygrad's own schedule of a kernel, and generate the program that a search would begin with."""
    from kcg.predictor.roofline import Roofline

    opts = space_of(region, target)
    (prediction,) = Roofline().predict(opts, [opts.baseline()])
    try:
        space = kind_named(ScheduleKind.TILE).space(region, target)
        refused = space.reason if isinstance(space, Unsupported) else ""
        if not isinstance(space, Unsupported):
            space.key(space.start())
    except Exception as error:  # any: it was not generated
        refused = f"{type(error).__name__}: {first_line(error)}"[:200]
    return Part(name, calls, prediction.runtime_s, refused)


def results_of(
    jobs: dict[tuple[Any, ...], tuple[Any, ...]],
    target: Target,
    *,
    lost: Callable[..., Any],
    workers: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[Any]:
    """What each job gives as it ends, or `lost` of its key with the reason. A job is a function and what it takes
    behind the key; jobs run in children that may be killed, with an empty cache of compiled programs."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="kcg-tiles-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # of the children, which begin with the first job
        initargs = (target.device, os.getpid(), str(Path(folder) / "tinygrad.db"))
        pool = CompilePool(initargs, workers=workers or usable_cores(), before=lambda: None)
        try:
            waiting = {
                pool.submit(function, *key, *rest, timeout_s=timeout_s): key for key, (function, *rest) in jobs.items()
            }
            for future in as_completed(waiting):
                error = future.exception()
                yield future.result() if error is None else lost(waiting[future], first_line(error)[:200])
        finally:
            pool.close()
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def cost(key: str, number: int, region: Region, target: Target) -> Cost:
    """Generate and compile one program of a kernel, in a child."""
    space = kind_named(ScheduleKind.TILE).space(region, target)
    if isinstance(space, Unsupported):
        return Cost(key, number, failure=space.reason)
    assert isinstance(space, TileSpace)
    start, rng = space.start(), random.Random(f"{key}:{number}")
    schedule = start if number == 0 else rng.choice(space.neighbours(start))
    p = space.parameters(schedule)
    begin = time.process_time()
    generate_kernel(read_ast(simplified(ast_of(region.kernel))), target, p)  # `read_kernel` keeps what it read
    generate_s, begin, failure = time.process_time() - begin, processor_s(), ""
    try:
        space.compile(schedule)
    except Exception as error:  # Triton's own kinds
        failure = f"{type(error).__name__}: {first_line(error)}"[:200]
    return Cost(key, number, generate_s, processor_s() - begin, failure)


def processor_s() -> float:
    """Seconds that this process and those that it started and that ended have computed."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def summed(costs: Sequence[Cost]) -> dict[str, Any]:
    """Medians and extremes, and how many of the cases generate."""
    starts = [cost for cost in costs if cost.number == 0]
    generated_ms = [1e3 * cost.generate_s for cost in costs if cost.generate_s]
    compiled_s = [cost.compile_s for cost in costs if cost.compile_s and not cost.failure]
    entry: dict[str, Any] = {
        "programs": len(costs),
        "compiled": len(compiled_s),
        "cases": len(starts),
        "cases_generated": sum(bool(cost.generate_s) for cost in starts),
        "failures": dict(Counter(cost.failure for cost in costs if cost.failure)),
    }
    for name, values in (("generate_ms", generated_ms), ("compile_s", compiled_s)):
        if values:
            entry |= {name: rounded(statistics.median(values)), f"{name}_max": rounded(max(values))}
    return entry
