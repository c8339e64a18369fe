"""What is computed of the schedules of many kernels: shared between processes, and kept in the user's cache."""

from __future__ import annotations

import functools
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kcg.errors import CodecError, DataError, ScheduleError
from kcg.files import whole
from kcg.kernel.space import KernelSpace
from kcg.measure.target import usable_cores
from kcg.predictor.encode import Array
from kcg.types import Region, Schedule, ScheduleKind, Target

log = logging.getLogger(__name__)

CHUNK = 32  # kernels of one job of a process

T = TypeVar("T")


@dataclass(frozen=True)
class KernelJob:
    """Schedules of one kernel."""

    region: Region
    target: Target
    bodies: tuple[str, ...]

    def each(self, make: Callable[[KernelSpace, Schedule], T]) -> tuple[list[T], Array]:
        """What `make` gives for each schedule that applies, and which ones these are: (n,) bool.

        Raises DataError where the kernel cannot be read.
        """
        try:
            space = KernelSpace(self.region, self.target)
        except (CodecError, ScheduleError) as error:
            raise DataError(f"kernel {self.region.id[:12]}: {error}") from error
        found, applies = [], np.zeros(len(self.bodies), bool)
        for i, body in enumerate(self.bodies):
            try:
                found.append(make(space, Schedule(ScheduleKind.OPTS, body)))
                applies[i] = True
            except ScheduleError as error:
                log.warning("%s of %s is left out: %s", body, self.region.id[:12], error)
        return found, applies


def in_processes(work: Callable[[KernelJob], T], jobs: Sequence[KernelJob], workers: int | None) -> Iterator[T]:
    """`work`, a function of a module, on each job, in order; in one process for each core where `workers` is None."""
    chunks = [jobs[i : i + CHUNK] for i in range(0, len(jobs), CHUNK)]
    workers, done = min(workers or usable_cores(), len(chunks)), 0
    if workers > 1:
        try:
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                for part in pool.map(functools.partial(_all, work), chunks):
                    yield from part
                    done += 1
        except BrokenProcessPool as error:  # out of memory, or a script that does its work at import
            log.warning("the graphs are computed in one process: %s", error)
    for chunk in chunks[done:]:
        yield from _all(work, chunk)


def _all(work: Callable[[KernelJob], T], jobs: Sequence[KernelJob]) -> list[T]:
    return [work(job) for job in jobs]


def cache_folder(name: str) -> Path:
    """A folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kcg" / name


def keep(arrays: Mapping[str, Any], path: Path) -> None:
    """Write arrays, whole or not at all. A cache that cannot be written costs the next load its time."""
    try:
        with whole(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        log.warning("the graphs are not kept for the next time: %s", error)


def kept(path: Path, build: Callable[[dict[str, Any]], T]) -> T | None:
    """What `build` makes of kept arrays; None where there are none, or none that can be read."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return build({name: file[name] for name in file.files})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        log.warning("%s cannot be read and is made again: %s", path, error)
        return None
