"""The work of `MeasureService.measure` without isolation, to see what that costs: not for anything else.

Compilers in a plain pool of the standard library, as those of tinygrad's BEAM; kernels in this process. One that hangs
or crashes takes all with it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kcg.measure import child
from kcg.measure.jobs import CompileJob, CompileOutcome, TimeJob
from kcg.types import Region, Schedule, Target


def _start(dev: str, cache_db: str) -> None:
    os.environ["CACHEDB"] = cache_db
    from kcg.compat.device import prepare

    prepare(dev)
    import kcg.kernel.compile  # noqa: F401


def _compile(job: CompileJob) -> CompileOutcome | None:
    try:
        return child.compile_job(job)
    except Exception:  # what does not compile is skipped, as in BEAM
        return None


class Unisolated:
    """Compiles and times schedules. Use as a context manager."""

    def __init__(self, dev: str, target: Target, *, workers: int, cache_db: str) -> None:
        self._target = target
        context = multiprocessing.get_context("spawn")
        self._pool: Any = context.Pool(workers, initializer=_start, initargs=(dev, cache_db))

    def __enter__(self) -> Unisolated:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def measure(self, work: Sequence[tuple[Region, Schedule]], stop_above_s: Mapping[str, float]) -> int:
        """How many of `work` got a time: each is compiled, checked on one seed, and timed as in a search.

        `stop_above_s` holds, by region id, above which time one sample is enough. On a CPU no sample is
        taken while a compiler runs, and a binary is timed once, as in the service.
        """
        jobs = [CompileJob(region, schedule, self._target) for region, schedule in work]
        outcomes = self._pool.imap(_compile, jobs)
        if self._target.device == "CPU":
            outcomes = list(outcomes)
        timed = 0
        seen: dict[tuple[str, str], bool] = {}
        for (region, _), outcome in zip(work, outcomes, strict=True):
            if outcome is None:
                continue
            key = (region.id, outcome.compiled.binary_hash)
            if key not in seen:
                limit = stop_above_s.get(region.id)
                job = TimeJob(region, outcome.compiled, self._target, early_stop=True, stop_above_s=limit)
                seen[key] = bool(child.time_job(job).samples_s)
            timed += seen[key]
        return timed
