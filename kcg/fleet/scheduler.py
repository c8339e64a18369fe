"""`kcg fleet scheduler`: a Dask scheduler in this process, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from pathlib import Path
from typing import Any, Final

from kcg import shell
from kcg.errors import UsageError
from kcg.fleet.security import parts_of, security_for
from kcg.fleet.settings import SETTLE_S, configure, quiet

CLOSE_S: Final = 10.0
"""How long open connections may take to end."""


def run(listen: str, certificates: Path | None) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Raises:
        UsageError: the address is not this machine's, is taken, or may not be without certificates.
    """
    scheme, host, port = parts_of(listen)
    security = security_for(listen, certificates)
    if security is not None:
        security.get_listen_args("scheduler")  # a folder without the scheduler's files is said here
    configure()
    for name in ("distributed.comm", "distributed.fleet"):  # who was refused, a line each
        logging.getLogger(name).setLevel(logging.WARNING)
    host = f"[{host}]" if ":" in host else host  # IPv6, as Dask puts an address together
    asyncio.run(_serve({"protocol": f"{scheme}://", "host": host, "port": port, "security": security}))


def how_to_join(address: str) -> str:
    """The command of a worker; behind it what a driver takes."""
    driver = shell.command("--fleet", address)
    return f"{shell.command('kcg fleet worker', address)}  # on each worker; a driver takes {driver}"


async def _serve(settings: dict[str, Any]) -> None:
    from kcg.fleet.servers import FleetScheduler

    quiet(asyncio.get_running_loop())
    scheduler, ended = FleetScheduler(**settings), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        await scheduler
    except RuntimeError as error:  # Dask's own, of what went wrong
        reason = getattr(error.__cause__, "strerror", None) or error.__cause__ or error
        where = f"{settings['protocol']}{settings['host']}:{settings['port']}"
        raise UsageError(f"cannot listen on {where}: {reason}: give another --listen") from error
    print(how_to_join(scheduler.address), flush=True)
    await ended.wait()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(scheduler.close(), CLOSE_S)
    await asyncio.sleep(SETTLE_S)
