"""tinygrad's own BEAM on one region, in a process of its own that can be killed: what kcg is compared with.

Alone and not in a pool's worker, because BEAM starts compile processes of its own: `python -m kcg.measure.tiny_beam`.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict

from kcg.errors import ScheduleError
from kcg.measure import isolated
from kcg.measure.jobs import TinyBeamJob, TinyBeamOutcome
from kcg.types import Kernel, Region, Schedule, Target


def run(job: TinyBeamJob, *, timeout_s: float, stop: threading.Event | None = None) -> TinyBeamOutcome:
    """Search with BEAM of `job.width`.

    Raises TimeoutError after killing all of it, ServiceClosed if `stop` was set meanwhile, ScheduleError if it fails.
    """
    row = {"asts": [k.ast_json for k in job.region.kernels], "target": asdict(job.target), "width": job.width}
    name = f"tinygrad's BEAM={job.width}"
    ended = isolated.run_isolated(
        "kcg.measure.tiny_beam",
        row,
        dev=job.target.tinygrad_device,
        timeout_s=timeout_s,
        name=name,
        label="beam",
        stop=stop,
    )
    if ended.returncode != 0:
        raise ScheduleError(f"{name} failed: {ended.last_words}")
    found = json.loads(ended.out[-1])
    return TinyBeamOutcome(Schedule(found["kind"], found["body"]), found["binaries"], found["wall_s"])


def main() -> None:
    """Read a job, one line of standard input; write the outcome as the last line of standard output."""
    row = isolated.receive()
    row["target"]["tensor_cores"] = tuple(row["target"]["tensor_cores"])
    target = Target(**row["target"])
    from kcg.compat.device import prepare

    prepare(target.tinygrad_device)
    from kcg.compat.beam import run_beam
    from kcg.kernel.codec import ast_of
    from kcg.kernel.kinds import OfTinygrad, kind_named, own_kind

    begin = time.perf_counter()
    region = Region(tuple(Kernel(text) for text in row["asts"]))
    opts, binaries = run_beam(ast_of(region.kernel), row["width"])
    kind = kind_named(own_kind(region))
    assert isinstance(kind, OfTinygrad)
    schedule = kind.of_opts(opts)
    wall_s = time.perf_counter() - begin
    isolated.answer({"kind": schedule.kind, "body": schedule.body, "binaries": binaries, "wall_s": wall_s})


if __name__ == "__main__":
    main()
