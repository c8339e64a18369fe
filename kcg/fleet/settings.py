"""How Dask is set in every process of a fleet, and kept quiet. Call `configure` before anything of it is imported."""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from importlib.util import find_spec

from kcg.cli import pip_install
from kcg.errors import UsageError

HERE = r"local(?::(\d{1,4}))?"  # of `--fleet`: this machine, and how many hosts
QUIET = ("distributed", "distributed.client", "distributed.gc", "distributed.core", "tornado", "tornado.application")

SETTINGS = {
    "distributed.scheduler.work-stealing": False,  # a measurement stays with the host that it was given to
    "distributed.scheduler.allowed-failures": 3,  # hosts that may die of one task
    "distributed.scheduler.worker-ttl": "60s",  # a host that is not heard of for so long is lost
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.daemon": False,  # a host has children
    "distributed.worker.profile.enabled": False,  # it would sample threads while kernels are timed
    "distributed.worker.memory.terminate": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "1s",  # at its 20 ms each process takes 1 % of a core beside what is timed
    "distributed.comm.retry.count": 0,
    "distributed.diagnostics.computations.nframes": 0,  # a driver sends none of its source
}


SETTLE_S = 0.05
"""From the end of the last connection of a loop to the loop's own end. Dask's sender waits up to 10 ms between two
messages, with a time-out; where the loop ends in that moment asyncio prints that nobody took it."""


def quiet(loop: asyncio.AbstractEventLoop) -> None:
    """Have what Dask leaves behind in a loop go to its log, in the processes that are Dask's own: a nanny may end its
    worker's loop before `SETTLE_S`."""
    log = logging.getLogger("distributed.core")
    loop.set_exception_handler(
        lambda loop, context: log.error("%s", context.get("message"), exc_info=context.get("exception"))
    )


def configure() -> None:
    """Set Dask. Its own log goes nowhere unless `DASK_LOGGING__DISTRIBUTED` names a level.

    Raises UsageError where it is not installed."""
    if find_spec("distributed") is None:
        raise UsageError(f"a fleet needs Dask distributed: {pip_install('fleet')}")
    level = os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")  # for the processes that this one starts
    import dask

    dask.config.set({**SETTINGS, "logging.distributed": level})
    import distributed  # noqa: F401  # which sets the levels of its loggers

    warnings.filterwarnings("ignore", "get_ipv6 is deprecated", FutureWarning)  # Dask's own call of it
    for name in QUIET:
        logging.getLogger(name).setLevel(level.upper())
