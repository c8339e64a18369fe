"""Hand-written kernels in child processes: the user's file is imported here and nowhere else.

The jobs are of the compiling children of a `MeasureService`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kcg.errors import ScheduleError
from kcg.kernel.source.body import source_body
from kcg.kernel.source.kernels import file_digest, lower, raised, read_kernels, view_of
from kcg.types import Kernel, Region, Schedule, ScheduleKind, Target

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled
    from kcg.kernels import HandwrittenKernel


@dataclass(frozen=True)
class KernelFile:
    """A user's file of kernels, and what it held when a run began."""

    path: Path  # absolute
    digest: str


def kernel_file(path: Path) -> KernelFile:
    """A file as it is now. Raises UsageError where it cannot be read."""
    return KernelFile(path, file_digest(path))


@dataclass(frozen=True)
class Described:
    """A kernel of a file, without its code."""

    file: KernelFile
    name: str
    kind: str


def describe_job(file: KernelFile) -> tuple[Described, ...]:
    """What a file registers. Raises UsageError, see `kcg.kernel.source.kernels.read_kernels`."""
    return tuple(Described(file, kernel.name, kernel.kind) for kernel in read_kernels(file.path, file.digest))


def match_job(kernel: Described, regions: Sequence[Region], target: Target) -> tuple[int, ...]:
    """The places of the regions that a kernel is for. Raises ScheduleError where its predicate raises."""
    found = []
    for place, region in enumerate(regions):
        try:
            view = view_of(region, target)
        except ScheduleError:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):
                if _registered(kernel).wants(view):
                    found.append(place)
        except Exception as error:  # the user's predicate
            raise ScheduleError(f"its predicate raised {raised(error, kernel.file.path)}") from None
    return tuple(found)


def lower_job(kernel: Described, region: Region, target: Target) -> Schedule:
    """The schedule that a kernel is for a region. Raises ScheduleError, see `kcg.kernel.source.kernels.lower`."""
    return lower(_registered(kernel), view_of(region, target), kernel.file.path)


def _registered(kernel: Described) -> HandwrittenKernel:
    return next(k for k in read_kernels(kernel.file.path, kernel.file.digest) if k.name == kernel.name)


def made_again(ast_json: str, body: str, kernels: Mapping[str, Described], target: Target) -> Compiled | str:
    """The binary of a schedule of a stored result, from the kernels of files by name; or why there is none."""
    from kcg.kernel.compile import compile_schedule

    region, wanted = Region((Kernel(ast_json),)), Schedule(ScheduleKind.SOURCE, body)
    try:
        if (kernel := kernels.get(source_body(wanted).name)) is None:
            return "the files have no kernel of that name"
        if lower_job(kernel, region, target) != wanted:
            return "the file gives another kernel than the one that was verified"
        return compile_schedule(region, wanted, target)
    except Exception as error:  # the user's code, or a compiler
        return " ".join(str(error).split())[:300] or type(error).__name__
