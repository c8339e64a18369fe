"""tinygrad's own BEAM on one region, in a process of its own that can be killed: what kcg is compared with.

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
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from kcg.errors import ScheduleError
from kcg.measure.jobs import TinyBeamJob, TinyBeamOutcome
from kcg.measure.pools import ServiceClosed
from kcg.types import Kernel, Region, Schedule, Target

POLL_S = 0.05


def run(job: TinyBeamJob, *, timeout_s: float, stop: threading.Event | None = None) -> TinyBeamOutcome:
    """Search with BEAM of `job.width`.

    Raises TimeoutError after killing all of it, ServiceClosed if `stop` was set meanwhile, ScheduleError if it fails.
    """
    row = {"asts": [k.ast_json for k in job.region.kernels], "target": asdict(job.target), "width": job.width}
    with tempfile.TemporaryDirectory(prefix="kcg-beam-") as folder:
        environment = {**os.environ, "DEV": job.target.tinygrad_device, "DEBUG": "0"}
        environment["CACHEDB"] = str(Path(folder) / "tinygrad-cache.db")  # never the user's own
        environment.pop("BEAM", None)
        # files and not pipes: a process that BEAM leaves behind would hold a pipe open, and the reader with it
        with (Path(folder) / "out").open("w+") as out, (Path(folder) / "err").open("w+") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "kcg.measure.tiny_beam"], env=environment, start_new_session=True,
                stdin=subprocess.PIPE, stdout=out, stderr=err,
            )  # fmt: skip
            try:
                _wait(process, json.dumps(row) + "\n", job.width, timeout_s, stop)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its compilers too
                process.wait()
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            texts = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().strip().splitlines() or ["no message"])
    if process.returncode != 0:
        raise ScheduleError(f"tinygrad's BEAM={job.width} failed: {texts[1][-1]}")
    found = json.loads(texts[0][-1])
    return TinyBeamOutcome(Schedule(found["kind"], found["body"]), found["binaries"], found["wall_s"])


def _wait(
    process: subprocess.Popen[bytes], line: str, width: int, timeout_s: float, stop: threading.Event | None
) -> None:
    """Send the job and wait. Its pipe stays open: its end tells the process that this one is gone."""
    deadline = time.monotonic() + timeout_s
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code and its last words say more
        process.stdin.write(line.encode())
        process.stdin.flush()
    while process.poll() is None:
        if stop is not None and stop.is_set():
            raise ServiceClosed
        if time.monotonic() > deadline:
            raise TimeoutError(f"tinygrad's BEAM={width} did not finish in {timeout_s:g} s")
        time.sleep(POLL_S)


def _die_with_parent() -> None:
    """Kill this process and the compilers of its BEAM when the parent's end of standard input closes."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Read a job, one line of standard input; write the outcome as the last line of standard output."""
    row = json.loads(sys.stdin.readline())
    _die_with_parent()
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
