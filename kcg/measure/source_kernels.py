"""Hand-written kernels in child processes: the user's file is imported here and nowhere else.

The first three functions are jobs of the compiling children of a `MeasureService`. As a program of its own, which
reads a job from its standard input, it makes the kernels of a result again for a process that is to run them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.errors import KcgError, MismatchError, ScheduleError, UsageError
from kcg.kernel.kinds import describe
from kcg.measure import isolated
from kcg.types import Region, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled
    from kcg.kernels import HandwrittenKernel

CHILD = "kcg.measure.source_kernels"
REBUILD_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class KernelFile:
    """A user's file of kernels, and what it held when a run began."""

    path: Path  # absolute
    digest: str


@dataclass(frozen=True)
class Described:
    """A kernel of a file, without its code."""

    file: KernelFile
    name: str
    kind: str


def describe_job(file: KernelFile) -> tuple[Described, ...]:
    """What a file registers. Raises UsageError, see `kcg.kernel.source.kernels.read_kernels`."""
    from kcg.kernel.source.kernels import read_kernels

    return tuple(Described(file, kernel.name, kernel.kind) for kernel in read_kernels(file.path, file.digest))


def match_job(kernel: Described, regions: Sequence[Region], target: Target) -> tuple[int, ...]:
    """The places of the regions that a kernel is for. Raises ScheduleError where its predicate raises."""
    from kcg.kernel.source.kernels import raised, view_of

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
    from kcg.kernel.source.kernels import lower, view_of

    return lower(_registered(kernel), view_of(region, target), kernel.file.path)


def _registered(kernel: Described) -> HandwrittenKernel:
    from kcg.kernel.source.kernels import read_kernels

    return next(k for k in read_kernels(kernel.file.path, kernel.file.digest) if k.name == kernel.name)


# ---- for a process that is to run them ----


def rebuilt(
    wanted: Mapping[Region, Schedule], paths: Sequence[Path], target: Target, *, timeout_s: float = REBUILD_TIMEOUT_S
) -> dict[Region, Compiled]:
    """The binaries of hand-written schedules, made anew from the user's own files in a child.

    What a result holds is only compared: no code of a result is ever run.

    Raises:
        UsageError: a file cannot be imported.
        MismatchError: the files do not give a schedule that is wanted, or it does not compile any more.
    """
    from kcg.kernel.program import compiled_from

    job = {
        "paths": [str(path.absolute()) for path in paths],
        "target": asdict(target),
        "wanted": [[region.kernel.ast_json, schedule.body] for region, schedule in wanted.items()],
    }
    dev = target.tinygrad_device
    try:
        ended = isolated.run_isolated(
            CHILD, job, dev=dev, timeout_s=timeout_s, name="making the kernels", label="kernels"
        )
    except isolated.Overdue as error:
        raise MismatchError(f"the hand-written kernels cannot be made: {error}") from None
    if ended.returncode != 0 or not ended.out:
        raise MismatchError(f"the hand-written kernels cannot be made: {ended.last_words}")
    import json

    answer = json.loads(ended.out[-1])
    if "usage" in answer:
        raise UsageError(answer["usage"])
    found = {}
    for (region, schedule), made in zip(wanted.items(), answer["made"], strict=True):
        if "error" in made:
            raise MismatchError(
                f"{describe(schedule)}: {made['error']}: give the file that the search had, or run the search again"
            )
        found[region] = compiled_from(made)
    return found


def main() -> None:
    """Read a job, one line of standard input; answer with the binaries."""
    job = isolated.receive()
    from kcg.compat.device import prepare

    prepare(os.environ["DEV"])
    target = Target(**{**job["target"], "tensor_cores": tuple(job["target"]["tensor_cores"])})
    from kcg.kernel.source.kernels import file_digest

    try:
        files = [KernelFile(Path(path), file_digest(Path(path))) for path in job["paths"]]
        kernels = {kernel.name: kernel for file in files for kernel in describe_job(file)}
    except KcgError as error:
        isolated.answer({"usage": str(error)})
        return
    isolated.answer({"made": [_made(ast_json, body, kernels, target) for ast_json, body in job["wanted"]]})


def _made(ast_json: str, body: str, kernels: Mapping[str, Described], target: Target) -> dict[str, Any]:
    from kcg.kernel.compile import compile_schedule
    from kcg.kernel.program import compiled_values
    from kcg.kernel.source.body import source_body
    from kcg.types import Kernel, ScheduleKind

    region, wanted = Region((Kernel(ast_json),)), Schedule(ScheduleKind.SOURCE, body)
    try:
        if (kernel := kernels.get(source_body(wanted).name)) is None:
            return {"error": "the files have no kernel of that name"}
        if lower_job(kernel, region, target) != wanted:
            return {"error": "the file gives another kernel than the one that was verified"}
        compiled = compile_schedule(region, wanted, target)
    except Exception as error:  # the user's code, or a compiler
        return {"error": " ".join(str(error).split())[:300] or type(error).__name__}
    return compiled_values(compiled)


if __name__ == "__main__":
    main()
