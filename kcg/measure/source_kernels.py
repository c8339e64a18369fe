"""Hand-written kernels of a result, made again for a process that is to run them: a program of its own, which reads a
job from its standard input and imports the user's file (`kcg.kernel.handwritten`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.errors import KcgError, MismatchError, UsageError
from kcg.kernel.kinds import describe
from kcg.measure import isolated
from kcg.types import Region, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled

CHILD = "kcg.measure.source_kernels"
REBUILD_TIMEOUT_S = 300.0


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
    from kcg.kernel.handwritten import describe_job, kernel_file, made_again
    from kcg.kernel.program import compiled_values

    def made(ast_json: str, body: str) -> dict[str, Any]:
        again = made_again(ast_json, body, kernels, target)
        return {"error": again} if isinstance(again, str) else compiled_values(again)

    try:
        files = [kernel_file(Path(path)) for path in job["paths"]]
        kernels = {kernel.name: kernel for file in files for kernel in describe_job(file)}
    except KcgError as error:
        isolated.answer({"usage": str(error)})
        return
    isolated.answer({"made": [made(*wanted) for wanted in job["wanted"]]})


if __name__ == "__main__":
    main()
