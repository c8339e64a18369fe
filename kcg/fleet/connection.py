"""How to reach a scheduler: whether one is there, and what it tells of its hosts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from kcg.errors import UsageError
from kcg.fleet.security import parts_of, require_scheduler, security_for

CONNECT_S = 10.0


def is_there(address: str) -> bool:
    """Whether anything listens at an address."""
    _, host, port = parts_of(address)
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            return True
    except OSError:
        return False


def checked(address: str, certificates: Path | None, role: str = "client") -> Any:
    """What Dask is to use for a scheduler (a `Security`, or None), once it is known that something listens there.

    Raises:
        UsageError: nothing does, or it may not be talked to.
    """
    security = security_for(address, certificates)
    require_scheduler(address, security, role)
    return security


async def hosts_of(scheduler: Any) -> dict[str, dict[str, Any]]:
    """What a scheduler knows of its workers, by address. Raises OSError where it is gone, UsageError where it is none:
    workers speak alike."""
    found: dict[str, dict[str, Any]] | None = (await scheduler.identity()).get("workers")
    if found is None:
        raise UsageError("a worker of a fleet answers there, no scheduler: give the scheduler's port")
    return found
