"""What generating and compiling tile programs costs, on processors alone: seconds of one core for each program."""

from __future__ import annotations

import os
import random
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.rows import rounded
from evaluation.tiles.cases import Case
from kcg.compat.scheduling import simplified
from kcg.kernel.codec import ast_of
from kcg.kernel.kinds import Refusal, kind_named
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.ir import read_ast
from kcg.kernel.tile.space import TileSpace
from kcg.measure.device_info import first_line, usable_cores
from kcg.measure.pools import CompilePool
from kcg.types import Region, ScheduleKind, Target

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
    """The costs of each program as it is done: of every case the start and random others, `programs` in all.

    They are compiled in children that may be killed, with an empty cache.
    """
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="kcg-tiles-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # of the children, which begin with the first job
        initargs = (target.device, os.getpid(), str(Path(folder) / "tinygrad.db"))
        pool = CompilePool(initargs, workers=usable_cores(), before=lambda: None)
        try:
            waiting = {
                pool.submit(cost, case.key, case.region, target, number, timeout_s=TIMEOUT_S): (case.key, number)
                for case in cases
                for number in range(programs)
            }
            for future in as_completed(waiting):
                error = future.exception()
                yield future.result() if error is None else Cost(*waiting[future], failure=first_line(error)[:200])
        finally:
            pool.close()
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def cost(key: str, region: Region, target: Target, number: int) -> Cost:
    """Generate and compile one program of a kernel, in a child."""
    space = kind_named(ScheduleKind.TILE).space(region, target)
    if isinstance(space, Refusal):
        return Cost(key, number, failure=space.reason)
    assert isinstance(space, TileSpace)
    schedule = space.start() if number == 0 else space.random(random.Random(f"{key}:{number}"))
    p = space.parameters(schedule)
    begin = time.process_time()
    generate_kernel(read_ast(simplified(ast_of(region.kernel))), target, p)  # `read_kernel` keeps what it read
    generate_s, begin, failure = time.process_time() - begin, _processor_s(), ""
    try:
        space.compile(schedule)
    except Exception as error:  # Triton's own kinds
        failure = f"{type(error).__name__}: {first_line(error)}"[:200]
    return Cost(key, number, generate_s, _processor_s() - begin, failure)


def _processor_s() -> float:
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
