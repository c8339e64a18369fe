"""How to reach a scheduler: whether one is there, and what it tells of its hosts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

from kcg.errors import UsageError
from kcg.fleet.security import parts_of, require_scheduler, security_for
from kcg.nouns import Document, Malformed, decode

CONNECT_S = 10.0
UNREADABLE: Final = "says what kcg cannot read"
NOT_YET: Final = {"device": "", "pid": 0, "ready": False}
"""Of a worker that has told nothing yet."""

_TEXTS: Final = tuple[str, ...]
_OPENING: Final[dict[str, Any]] = {"device": str, "pid": int, "ready": bool}
_COMPILING: Final = {**_OPENING, "compiles_only": bool, "compiled": int}
_MEASURING: Final = {
    **_OPENING,
    "run_id": str,
    "model": str,
    "target": str,
    "compiler": str,
    "rows": int,
    "rows_per_s": float,
    "checked_unix_s": float,
    "fault": str,
    "running": _TEXTS,
}


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
    """The workers of a scheduler, by address: their `resources`, and what each says of itself, checked field by field.

    One that says what cannot be read is not `ready`, and has a `problem`. Raises OSError where the scheduler is gone,
    UsageError where it is none: workers speak alike.
    """
    found: dict[str, dict[str, Any]] | None = (await scheduler.identity()).get("workers")
    if found is None:
        raise UsageError("a worker of a fleet answers there, no scheduler: give the scheduler's port")
    return {address: _host(worker) for address, worker in found.items()}


def _host(worker: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**state_of(worker.get("metrics")), "resources": _resources(worker.get("resources"))}
    except (Malformed, ValueError, TypeError):
        return {**NOT_YET, "resources": {}, "problem": UNREADABLE}


def state_of(metrics: Any) -> dict[str, Any]:
    """What a worker says of itself with its heartbeat. Fields that this kcg does not know are left out: its check finds
    the other version. Raises Malformed where it is nothing that a host says."""
    if not isinstance(metrics, dict):
        raise Malformed("metrics", "an object is expected")
    if (state := metrics.get("kcg")) is None:
        return dict(NOT_YET)
    if not isinstance(state, dict):
        raise Malformed("kcg", "an object is expected")
    known = _OPENING if state.get("ready") is False else _COMPILING if "compiles_only" in state else _MEASURING
    if missing := known.keys() - state.keys():
        raise Malformed("kcg", f"{min(missing)} is missing")
    return {name: _field(state[name], kind, name) for name, kind in known.items()}


def _field(value: Any, kind: Any, name: str) -> Any:
    if kind is _TEXTS:
        if not isinstance(value, list | tuple):  # what Dask makes of a list depends on the way
            raise Malformed(name, "a list is expected")
        return [_field(one, str, name) for one in value]
    if kind is float and isinstance(value, str):
        raise Malformed(name, "a number is expected")
    return decode(value, kind, name, of=Document())


def _resources(found: Any) -> dict[str, float]:
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise Malformed("resources", "an object is expected")
    for name, value in found.items():
        _field(value, float, name)
    return found
