"""Dask's scheduler, worker and nanny as a fleet runs them: with the operations that a fleet uses, each for the roles
that use it, and with `kcg.fleet.unpickling` for what they unpickle.

Dask lets whoever connects to a scheduler call all of its operations, which include running functions on it, writing
files, and sending code to workers; and a worker's stream may hold what only a driver's should.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from distributed.comm import Comm, CommClosedError
from distributed.nanny import Nanny
from distributed.scheduler import Scheduler
from distributed.spans import SpansSchedulerExtension
from distributed.utils import has_keyword
from distributed.worker import Worker

from kcg.fleet import unpickling
from kcg.fleet.certificates import DRIVER, SCHEDULER, WORKER
from kcg.fleet.tls import peer_role

logger = logging.getLogger("distributed.fleet")  # shown as Dask's own are

WITHOUT_DASHBOARD: Final = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Dask always listens for HTTP: without routes, and within this machine."""

ANYONE: Final = {"identity", "retire_workers"}
OF_WORKERS: Final = {
    "register-worker",
    "register_nanny",
    "unregister",
    "heartbeat_worker",
    "set_resources",
    "log_event",
}
OF_DRIVERS: Final = {
    *(
        "register-client",
        "gather",
        "scatter",
        "ncores",
        "ncores_running",
        "who_has",
        "has_what",
        "processing",
        "nbytes",
    ),
    *("versions", "retry", "get_task_status", "get_task_prefix_states", "events", "restart_workers"),
}
STREAM_OF_WORKERS: Final = {
    *("task-finished", "task-erred", "release-worker-data", "add-keys", "long-running", "reschedule", "keep-alive"),
    *("log-event", "worker-status-change", "request-refresh-who-has"),
}
STREAM_OF_DRIVERS: Final = {
    *("update-graph", "client-desires-keys", "update-data", "report-key", "client-releases-keys", "heartbeat-client"),
    *("close-client", "subscribe-topic", "unsubscribe-topic", "cancel-keys"),
}
ANNOTATIONS: Final = {"workers", "allow_other_workers", "resources", "retries", "priority"}
"""What a driver may say of the tasks of a graph. Dask calls what it finds there if it can be called."""
OF_A_WORKER: Final = {
    "identity",
    "get_data",
    "update_data",
    "free_keys",
    "terminate",
    "ping",
    "keys",
    "versions",
    "gather",
}
"""What a scheduler may ask of a worker, beside what it sends on the stream: there it sends tasks."""
OF_A_NANNY: Final = {"identity", "instantiate", "kill", "restart", "terminate", "close_gracefully"}


class FleetScheduler(Scheduler):  # type: ignore[misc]  # Dask has no types
    """A scheduler that does for a certificate what its role may ask; on plain loopback, what any role may."""

    handlers: dict[str, Callable[..., Any]]

    def __init__(self, **settings: Any) -> None:
        unpickling.install()
        extensions = {"spans": SpansSchedulerExtension}  # the others have operations of their own
        super().__init__(**{**settings, **WITHOUT_DASHBOARD}, extensions=extensions)
        roles = {name: {WORKER, DRIVER} for name in ANYONE}
        roles |= {name: {WORKER} for name in OF_WORKERS} | {name: {DRIVER} for name in OF_DRIVERS}
        self.handlers = _narrowed(self.handlers, roles)

    async def handle_stream(self, comm: Comm, extra: dict[str, Any] | None = None) -> None:
        allowed = STREAM_OF_DRIVERS if "client" in (extra or {}) else STREAM_OF_WORKERS
        await super().handle_stream(_CheckedStream(comm, allowed, extra or {}), extra)


class FleetWorker(Worker):  # type: ignore[misc]
    """A worker that runs the fixed functions of `kcg.fleet.tasks` for its scheduler, and nothing else."""

    handlers: dict[str, Callable[..., Any]]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        unpickling.install()
        super().__init__(*arguments, **{**settings, **WITHOUT_DASHBOARD})
        roles = {name: {SCHEDULER, WORKER} for name in OF_A_WORKER}
        self.handlers = _narrowed(self.handlers, roles)


class FleetNanny(Nanny):  # type: ignore[misc]
    """Starts a `FleetWorker` again that died. It runs nothing itself."""

    handlers: dict[str, Callable[..., Any]]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        unpickling.install()
        super().__init__(*arguments, worker_class=FleetWorker, **settings)
        roles = {name: {SCHEDULER, WORKER} for name in OF_A_NANNY}
        self.handlers = _narrowed(self.handlers, roles)


class _CheckedStream:
    """A stream of messages, each of which is one that its sender may send, in its own name only."""

    def __init__(self, comm: Comm, allowed: set[str], sender: dict[str, Any]) -> None:
        self._comm, self._allowed, self._sender = comm, allowed, sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def read(self) -> Any:
        messages = await self._comm.read()
        for message in messages if isinstance(messages, tuple | list) else (messages,):
            if not isinstance(message, dict) or (op := message.get("op")) == "close-stream":
                continue
            if op not in self._allowed or any(message.get(key, name) != name for key, name in self._sender.items()):
                await self._refuse(f"{op!r} is not for its role or sender")
            if not _are_plain(message.get("annotations")):
                await self._refuse(f"{op!r} with annotations that a fleet does not send")
        return messages

    async def _refuse(self, why: str) -> None:
        await self._comm.close()
        logger.warning("a message from %s was refused: %s", self._comm.peer_address, why)
        raise CommClosedError("a message was refused")


def _are_plain(annotations: Any) -> bool:
    """Whether annotations are those that a fleet's drivers send: known names, with values that are data."""

    def is_data(value: Any) -> bool:
        if type(value) is dict:
            return all(map(is_data, (*value, *value.values())))
        if type(value) in (list, tuple, set, frozenset):
            return all(map(is_data, value))
        return value is None or type(value) in (str, int, float, bool)

    return annotations is None or (
        type(annotations) is dict and annotations.keys() <= ANNOTATIONS and is_data(annotations)
    )


def _narrowed(handlers: dict[str, Callable[..., Any]], roles: dict[str, set[str]]) -> dict[str, Callable[..., Any]]:
    """Dask's handlers of operations, for the roles that may ask for each; the others refuse."""
    return {name: _for_roles(name, handler, roles.get(name, set())) for name, handler in handlers.items()}


def _for_roles(name: str, handler: Callable[..., Any], roles: set[str]) -> Callable[..., Any]:
    takes_comm = has_keyword(handler, "comm")

    def checked(comm: Comm, **message: Any) -> Any:
        certificate = comm.extra_info.get("peercert")
        if not roles or (certificate is not None and peer_role(certificate) not in roles):
            peer = peer_role(certificate) if certificate is not None else "peer without certificate"
            raise PermissionError(f"{name} is refused to a {peer}")
        return handler(comm, **message) if takes_comm else handler(**message)

    return checked
