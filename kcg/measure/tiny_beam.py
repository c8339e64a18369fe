"""tinygrad's own BEAM on one region, in a process of its own that can be killed: the baseline that kcg is compared with.

A plain subprocess and not a pool's worker, because BEAM starts compile processes of its own, which a daemon may not.
The job and the outcome travel as JSON: `python -m kcg.measure.tiny_beam < job.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

from kcg.errors import DeviceError
from kcg.measure.jobs import TinyBeamJob, TinyBeamOutcome
from kcg.types import Kernel, Region, Schedule, Target


def run(job: TinyBeamJob, *, timeout_s: float) -> TinyBeamOutcome:
    """Search with BEAM of `job.width`. Raises TimeoutError after killing all of it, DeviceError if it fails."""
    text = json.dumps(
        {"asts": [k.ast_json for k in job.region.kernels], "target": asdict(job.target), "width": job.width}
    )
    environment = {**os.environ, "DEV": job.target.tinygrad_device, "DEBUG": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "kcg.measure.tiny_beam"], env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(text, timeout=timeout_s)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"tinygrad's BEAM={job.width} did not finish in {timeout_s:.0f} s") from None
        raise
    if process.returncode != 0:
        raise DeviceError(f"tinygrad's BEAM={job.width} failed: {(err.strip().splitlines() or ['no message'])[-1]}")
    row = json.loads(out.splitlines()[-1])
    return TinyBeamOutcome(Schedule(row["kind"], row["body"]), row["binaries"], row["wall_s"])


def main() -> None:
    """Read a job from standard input, write the outcome as the last line of standard output."""
    row = json.load(sys.stdin)
    row["target"]["tensor_cores"] = tuple(row["target"]["tensor_cores"])
    target = Target(**row["target"])
    from kcg.compat.device import prepare

    prepare(target.tinygrad_device)
    from kcg.compat.beam import run_beam
    from kcg.kernel.codec import ast_of

    begin = time.perf_counter()
    region = Region(tuple(Kernel(text) for text in row["asts"]))
    schedule, binaries = run_beam(ast_of(region.kernel), row["width"])
    wall_s = time.perf_counter() - begin
    print(json.dumps({"kind": schedule.kind, "body": schedule.body, "binaries": binaries, "wall_s": wall_s}))


if __name__ == "__main__":
    main()
