"""How to reach a scheduler: whether one is there, and what it tells of its hosts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from kcg.errors import UsageError
from kcg.fleet.security import require_scheduler, security_for

CONNECT_S = 10.0


def host_and_port(address: str) -> tuple[str, int]:
    """Of `tls://host:8786`. Raises UsageError."""
    scheme, found, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme not in ("tcp", "tls") or not found or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{address}: no address of a scheduler: give tls://HOST:PORT, or tcp://127.0.0.1:PORT")
    return host.strip("[]"), int(port)


def is_there(address: str) -> bool:
    """Whether anything listens at an address."""
    try:
        with socket.create_connection(host_and_port(address), timeout=CONNECT_S):
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
    """What a scheduler knows of its workers, by address. Raises OSError where it is gone."""
    found: dict[str, dict[str, Any]] = (await scheduler.identity(n_workers=-1))["workers"]
    return found
