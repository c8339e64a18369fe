"""What tests plant in the children of a service or of a host: jobs for the one that owns the device, and compilers;
and in a host itself: what its tasks come to.

`python -m tests.fleet.slow_hosts SCHEDULER DEVICE JOB FACTOR` is a host of a fleet in whose child one is planted, or in
itself where it is one of `SICK`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distributed import Worker

from kcg.errors import ExitCode
from kcg.fleet import host, tasks
from kcg.fleet.local import _end_with_parent
from kcg.fleet.settings import configure
from kcg.fleet.status import read_status
from tests.fleet.processes import ROOT
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from kcg.measure.workbench import Workbench


def slow_clock(factor: float) -> None:
    """Every launch in this process takes `factor` times as long from now on, by its clock."""
    from kcg.measure.workbench import Workbench

    launcher = Workbench.launcher

    def slow(self: Workbench, runs: Any, **options: Any) -> Callable[[], float]:
        launch = launcher(self, runs, **options)
        return lambda: factor * launch()

    Workbench.launcher = slow  # type: ignore[method-assign]


def wrong_reading() -> None:
    """Every buffer that this process reads back from now on has one element that was not computed."""
    from kcg.measure.workbench import Workbench

    read = Workbench.read

    def one_wrong(self: Workbench, slot: int) -> Any:
        found = read(self, slot).copy()
        found.flat[7] = 0
        return found

    Workbench.read = one_wrong  # type: ignore[method-assign]


def loops(job: object) -> None:
    """A compiler that does not end."""
    time.sleep(36_000)


def aborts(job: object) -> None:
    """A compiler that fails an assertion of its own."""
    os.abort()


def slow_after_work(factor: float) -> None:
    """From the first candidate on that this process times its clock is slow."""
    from kcg.measure import child

    time_job = child.time_job

    def first(job: Any) -> Any:
        child.time_job = time_job
        slow_clock(factor)
        return time_job(job)

    child.time_job = first


def cannot_measure() -> None:
    """Every batch of this host ends with an error, which is its answer."""

    def full(host: object, job: object) -> Any:
        raise OSError(28, FULL)

    tasks._measure_here = tasks._measure_nothing = full


def cannot_draw() -> None:
    """The same of what is drawn."""

    def full(payload: bytes) -> Any:
        raise OSError(28, FULL)

    tasks._draw = full


def cannot_answer() -> None:
    """Every batch and draw of this host ends with an error of Dask's: it has no answer."""
    answer = tasks._answer

    def broken(act: Callable[[], Any]) -> bytes:
        answered = answer(act)
        if any(noun in answered for noun in (b'"Measured"', b'"Drawn"')):
            raise RuntimeError(FULL)
        return answered

    tasks._answer = broken


def dies() -> None:
    """Every batch kills this host, whose nanny starts it again."""

    def dead(host: object, job: object) -> Any:
        os._exit(1)

    tasks._measure_here = tasks._measure_nothing = dead


FULL = "nothing is left of the disk"
SICK = {job.__name__: job for job in (cannot_measure, cannot_draw, cannot_answer, dies)}


class SlowHost(host.HostPlugin):
    """A host with a job of this module planted in the child that measures."""

    def __init__(self, device: host.HostDevice, job: str, factor: float) -> None:
        super().__init__(device)
        self._job, self._factor = job, factor

    async def setup(self, worker: Worker) -> None:
        opened = host.opened

        def planted(device: host.HostDevice) -> tasks.Host:
            made = opened(device)
            if self._job in SICK:
                SICK[self._job]()
                return made
            made.service._device.submit(globals()[self._job], self._factor, timeout_s=PATIENCE_S).result()
            return made

        host.opened = planted
        await super().setup(worker)


@contextmanager
def slow_host(address: str, device: str, job: Callable[..., None], factor: float = 1.0) -> Iterator[None]:
    """A host of one core that has joined a scheduler, until the end of the block."""
    before = _ready(address)
    words = [sys.executable, "-m", "tests.fleet.slow_hosts", address, device, job.__name__, str(factor)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, text=True)
    try:
        while not _ready(address) - before:
            assert process.poll() is None
            time.sleep(0.1)
        yield
    finally:
        process.communicate()  # whose end of its input is its end


def _ready(address: str) -> set[str]:
    """The runs of the hosts that have opened their devices."""
    return {found["run_id"] for found in read_status(address, None)["hosts"] if found["ready"]}


def main() -> ExitCode:
    address, device, job, factor = sys.argv[1:]
    from tests.fleet.slow_hosts import SlowHost

    host.HostPlugin = lambda device: SlowHost(device, job, float(factor))  # type: ignore[assignment, misc]
    return host.serve(address, None, [host.HostDevice(device, cores=1)])


if __name__ == "__main__":
    _end_with_parent()
    configure()
    main()
