"""A process that measures, to be killed or interrupted: `python -m tests.faults.busy_service MODE [afresh]`.

It writes the process ids of its children once all are busy. Modes: `busy` has a kernel that never ends on the device
and two compilers that never end; `native` has compilers whose native code lets no Python run, one of which started
processes of its own; `starting` interrupts its own group while its children start; `beam` runs tinygrad's
BEAM; `stopped` has a fork server that is stopped, and waits for a child of it.
With `afresh` its children are not forked by a server, as those of a GPU are not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from kcg.compat.device import prepare
from kcg.kernel.codec import kernel_of
from kcg.measure import pools
from kcg.measure.jobs import TinyBeamJob
from kcg.measure.pools import _server
from kcg.measure.service import MeasureService, ServiceSettings
from kcg.types import Region
from tests.faults import bad_jobs, machine_code
from tests.faults.bad_jobs import FOR_EVER_S
from tests.faults.processes import below, descendants, fork_servers, guardians
from tests.faults.relu import DEV, REQUEST, binary, compiled_relu
from tests.kernels import empty, kernels_of
from tests.waiting import PATIENCE_S, wait_until

WIDTH = 32  # of a BEAM that takes minutes: nothing of it is gone because it was done


def start_beam(service: MeasureService) -> None:
    """Have a BEAM run that compiles in two processes of its own, another one if one ends before that is seen."""
    os.environ["PARALLEL"] = "2"
    (ast,) = kernels_of(empty(64, 96) @ empty(96, 64))
    job = TinyBeamJob(Region((kernel_of(ast),)), service.target, WIDTH)

    def compiling() -> bool:
        return len(descendants(os.getpid()) - guardians(os.getpid())) >= 4  # the device's child, BEAM, two of BEAM's

    while True:
        beam = service.tiny_beam(job, timeout_s=PATIENCE_S)
        wait_until(lambda: beam.done() or compiling())  # noqa: B023 - called before the next round
        if not beam.done():
            return
        beam.result()


def main(mode: str) -> int:
    prepare(DEV)
    with MeasureService(
        DEV, run_id="busy", compile_workers=2, settings=ServiceSettings(compile_timeout_s=FOR_EVER_S)
    ) as service:
        try:
            if mode == "starting":
                service._compile(bad_jobs.loop_in_python, None)
                time.sleep(0.12)
                os.killpg(0, signal.SIGINT)
            elif mode == "beam":
                start_beam(service)
            elif mode == "stopped":
                assert service.target
                (server,) = fork_servers(below(os.getpid()))
                pools.START_S = FOR_EVER_S  # whoever waits for that one does not end
                os.kill(server, signal.SIGSTOP)
                service.fresh_child()
                service.measure([REQUEST])
            elif mode == "native":
                with tempfile.TemporaryDirectory() as folder:
                    pid_file = Path(folder) / "pids"
                    service._compile(bad_jobs.start_family_and_hold, str(pid_file))
                    service._compile(bad_jobs.hold_interpreter, None)
                    assert wait_until(pid_file.exists)
                    time.sleep(0.3)
            else:
                compiled, endless = compiled_relu(service), replace(REQUEST, timeout_s=FOR_EVER_S)
                with tempfile.TemporaryDirectory() as folder:
                    pid_file = Path(folder) / "pid"
                    service._compile(bad_jobs.wait_for_compiler, str(pid_file))
                    service._compile(bad_jobs.loop_in_python, None)
                    assert wait_until(pid_file.exists)
                    service.measure_compiled(endless, binary(machine_code.HANG, compiled))
                    assert wait_until(lambda: service._device._busy is not None and service._device._busy.running())
                    time.sleep(0.1)
            print(json.dumps(sorted(descendants(os.getpid()))), flush=True)
            time.sleep(FOR_EVER_S)
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    if "afresh" in sys.argv:
        _server.may_fork()
        os.environ["ANOTHER"] = "environment than the server's"
    sys.exit(main(sys.argv[1]))
