"""A host of a fleet: for each device a process of Dask with one service, started again when it dies.

A device is offered to the scheduler once it is open and its canary was right. The processes end with this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.security import Security

from kcg.cli import collect_rarely
from kcg.errors import DeviceError, ExitCode, KcgError
from kcg.fleet import tasks
from kcg.fleet.connection import is_there
from kcg.fleet.servers import FleetNanny
from kcg.fleet.settings import quiet
from kcg.measure.device_info import first_line

if TYPE_CHECKING:
    from kcg.fleet.compiling import Compilers

TASKS_AT_ONCE = 64  # most of them wait for their turn on the device, or at the compilers
NOT_LIMITED = 0  # Dask's limit of a worker's memory: what takes memory are the children, which have their own
NO_DEVICE = "none"
DEATH_S = 60.0  # without an answer of the scheduler, at the start
ANSWER_S = 2.0  # that the last answers have to get away before a lost device ends its process


@dataclass(frozen=True)
class HostDevice:
    """One device of this machine."""

    dev: str  # as `DEV` selects it; `NO_DEVICE`: it only compiles
    gpu: str = ""  # which of the GPUs, as CUDA_VISIBLE_DEVICES names it
    cores: int | None = None  # compilers; None: one a core
    takes_binaries: bool = False  # runs what other hosts compiled


class HostPlugin(WorkerPlugin):  # type: ignore[misc]
    """Opens the service in a worker's process, and tells the scheduler of it."""

    name = "kcg-host"

    def __init__(self, device: HostDevice) -> None:
        self._device = device
        self._host: tasks.Host | None = None
        self._compilers: Compilers | None = None

    async def setup(self, worker: Worker) -> None:
        """Begin to open the device; the worker is there meanwhile, and offers nothing."""
        quiet(asyncio.get_running_loop())
        collect_rarely()  # no command began this process
        self._worker = worker
        worker.metrics["kcg"] = self._state
        self._opening = asyncio.create_task(self._open())

    async def teardown(self, worker: Worker) -> None:
        """Close the service."""
        self._opening.cancel()
        tasks.install(None)
        tasks.install_compilers(None)
        if self._host is not None:
            await asyncio.to_thread(self._host.service.close)
        if self._compilers is not None:
            await asyncio.to_thread(self._compilers.close)

    def _state(self, worker: Worker) -> dict[str, Any]:
        """What the scheduler hears of it with each heartbeat."""
        host, device = self._host, f"{self._device.dev}{' ' + self._device.gpu if self._device.gpu else ''}"
        if (compilers := self._compilers) is not None:
            state = {"device": device, "pid": os.getpid(), "ready": True, "compiles_only": True}
            return {**state, "compiled": compilers.compiled}
        if host is None:
            return {"device": device, "pid": os.getpid(), "ready": False}
        return {
            "device": device,
            "pid": os.getpid(),
            "ready": True,
            "run_id": host.facts.run_id,
            "model": host.facts.target.model,
            "target": host.facts.target.fingerprint,
            "compiler": host.facts.toolchain.compiler,
            "rows": host.rows,
            "rows_per_s": host.rows_per_s,
            "checked_unix_s": host.checked_unix_s,
            "fault": host.fault,
            "running": list(host.running.values()),
        }

    async def _open(self) -> None:
        if self._device.dev == NO_DEVICE:
            from kcg.fleet.compiling import Compilers

            self._compilers = compilers = await asyncio.to_thread(Compilers, self._device.cores)
            tasks.install_compilers(compilers)
            await self._worker.set_resources(compile=compilers.facts.cores)
            await self._worker.heartbeat()
            return
        try:
            self._host = host = await asyncio.to_thread(opened, self._device)
        except KcgError as error:
            await self._end(error)
            return
        loop = asyncio.get_running_loop()

        def lost(error: DeviceError) -> None:
            asyncio.run_coroutine_threadsafe(self._end(error, ANSWER_S), loop)

        host.on_failure = lost
        tasks.install(host)
        await self._worker.set_resources(**{host.facts.resource: 1, "compile": host.facts.compile_workers})
        await self._worker.heartbeat()

    async def _end(self, error: KcgError, after_s: float = 0.0) -> None:
        """Leave the fleet for good."""
        sys.stderr.write(f"kcg: {error}\n")
        await asyncio.sleep(after_s)
        await self._worker.close(nanny=True, reason="kcg-device-lost")


def opened(device: HostDevice) -> tasks.Host:
    """The open service of a device, whose canary was right. Raises DeviceError."""
    from kcg.compat.device import prepare
    from kcg.fleet.payload import HostFacts
    from kcg.measure.service import MeasureService

    prepare(device.dev)
    service = MeasureService(device.dev, run_id=uuid.uuid4().hex, compile_workers=device.cores)
    try:
        target, toolchain = service.facts
    except BaseException:
        service.close()
        raise
    facts = HostFacts(service.run_id, device.dev, target, toolchain, service.compile_workers, device.takes_binaries)
    return tasks.Host(service, facts, time.time())


def devices_here(requested: str, cores: int | None) -> list[HostDevice]:
    """Each GPU of this machine, or its CPU, as `--device` says. `cores` are shared by all. Raises DeviceError."""
    from kcg.compat.device import choose_device, cuda_count, visible_gpu
    from kcg.measure.device_info import usable_cores

    dev = choose_device(requested).dev
    if dev != "CUDA":
        return [HostDevice(dev, cores=cores)]
    count = max(cuda_count(), 1)
    return [HostDevice(dev, visible_gpu(gpu), max(1, (cores or usable_cores()) // count)) for gpu in range(count)]


def serve(address: str, security: Security | None, devices: Sequence[HostDevice]) -> ExitCode:
    """Measure for the drivers of a scheduler until the scheduler ends, or every device is lost."""
    asyncio.run(_serve(address, security, devices))
    if is_there(address):
        return ExitCode.DEVICE_UNUSABLE  # which was said where it was seen
    raise DeviceError(f"the scheduler at {address} is gone: start this again when it is there")


async def _serve(address: str, security: Security | None, devices: Sequence[HostDevice]) -> None:
    quiet(asyncio.get_running_loop())
    async with contextlib.AsyncExitStack() as stack:
        try:
            nannies = [await stack.enter_async_context(_nanny(address, security, device)) for device in devices]
        except RuntimeError as error:  # Dask's own, of what went wrong
            why = first_line(error.__cause__ or error)
            raise DeviceError(
                f"this worker cannot join {address}: {why}: look at the scheduler's own output"
            ) from error
        await asyncio.gather(*(nanny.finished() for nanny in nannies))


def _nanny(address: str, security: Security | None, device: HostDevice) -> FleetNanny:
    environment = {} if device.dev == NO_DEVICE else {"DEV": device.dev}
    environment |= {"CUDA_VISIBLE_DEVICES": device.gpu} if device.gpu else {}
    return FleetNanny(
        address,
        security=security,
        nthreads=TASKS_AT_ONCE,
        memory_limit=NOT_LIMITED,
        env=environment,
        plugins=(HostPlugin(device),),
        local_directory=tempfile.gettempdir(),
        death_timeout=DEATH_S,
    )
