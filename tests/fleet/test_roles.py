"""What each certificate is good for: a hostile client, a stolen worker's key, a scheduler that sends code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dask._expr import LLGExpr
from dask._task_spec import Task
from distributed import Client, Nanny, Scheduler, Worker
from distributed.comm import connect
from distributed.protocol import to_serialize
from distributed.protocol.serialize import ToPickle
from distributed.security import Security
from distributed.spans import SpansSchedulerExtension

from kcg.errors import UsageError
from kcg.fleet import servers
from kcg.fleet.certificates import make
from kcg.fleet.security import require_scheduler, security_for
from kcg.fleet.servers import WITHOUT_DASHBOARD
from tests.commands import python
from tests.fleet import fixed_tasks
from tests.fleet.processes import address_of, started
from tests.slow import first

LOCAL = "tls://127.0.0.1:0"
ANSWER_S = 300.0
LISTENS: dict[str, Any] = {"protocol": "tls://", "host": "127.0.0.1", "port": 0, **WITHOUT_DASHBOARD}
"""For Dask's own scheduler, as somebody else would start it."""


@dataclass(frozen=True)
class Fleet:
    """A scheduler and a worker, each in its process, and the certificates of all roles."""

    scheduler: str
    worker: str
    keys: Path
    process: subprocess.Popen[str]

    def security(self, name: str) -> Any:
        return security_for(LOCAL, self.keys / name)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    keys = tmp_path_factory.mktemp("fleet") / "keys"
    make(keys, days=2, hosts=["gpu1", "gpu2"])
    with started("scheduler", LOCAL, keys / "scheduler") as scheduler:
        address = address_of(scheduler)
        with started("worker", address, keys / "gpu1") as worker:
            yield Fleet(address, address_of(worker), keys, scheduler)


def test_a_driver_runs_fixed_functions_and_no_others(fleet: Fleet, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    async def drive() -> None:
        async with Client(fleet.scheduler, asynchronous=True, security=fleet.security("driver")) as client:
            assert await client.submit(fixed_tasks.shout, b"abc", workers=[fleet.worker], retries=1) == b"ABC"
            with pytest.raises(ValueError, match="no such kernel"):
                await client.submit(fixed_tasks.fail, b"no such kernel")
            with pytest.raises(RuntimeError):  # of its scheduler, which reads the graph
                await client.submit(os.system, f"touch {mark}")
            for refused in (
                client.run(os.system, f"touch {mark}"),
                client.run_on_scheduler(os.system, f"touch {mark}"),
                client.scheduler.dump_cluster_state_to_url(url=f"file://{mark}", exclude=[], format="msgpack"),
                client.scheduler.terminate(),
                client.scheduler.feed(function=b"", setup=b"", interval=1),
            ):
                with pytest.raises(PermissionError, match="is refused to a driver"):
                    await refused
            assert await client.submit(fixed_tasks.shout, b"still here", pure=False) == b"STILL HERE"

    asyncio.run(drive())
    assert not mark.exists()


@pytest.mark.parametrize("hostile", first(1, ["a member of a module", "a function", "a name that no driver sends"]))
def test_annotations_of_a_driver_run_nothing_on_the_scheduler(fleet: Fleet, hostile: str, tmp_path: Path) -> None:
    """Dask calls an annotation that can be called with the task's key, which may be any text."""
    mark = tmp_path / "ran"
    key = f"touch {mark}"
    annotations = {
        "a member of a module": {
            "x": {"__Enum__": True, "__module__": "distributed.nanny", "__name__": "os", "name": "system"}
        },
        "a function": ToPickle({"workers": fixed_tasks.shout}),
        "a name that no driver sends": {"x": "text"},
    }[hostile]

    async def drive() -> None:
        async with Client(fleet.scheduler, asynchronous=True, security=fleet.security("driver")) as client:
            send = client._send_to_scheduler

            def changed(message: dict[str, Any]) -> None:
                send({**message, "annotations": annotations} if message["op"] == "update-graph" else message)

            client._send_to_scheduler = changed
            graph = LLGExpr({key: Task(key, fixed_tasks.shout, b"x")}, _determ_token=key)
            (answer,) = client.get(graph, [key], sync=False)
            await asyncio.wait([asyncio.ensure_future(answer.result())], timeout=1)
        async with Client(fleet.scheduler, asynchronous=True, security=fleet.security("driver")) as client:
            assert await client.submit(fixed_tasks.shout, b"still here", pure=False) == b"STILL HERE"

    asyncio.run(drive())
    assert not mark.exists()


async def ask(address: str, security: Security, role: str, **message: Any) -> Any:
    """The answer to one message of an operation."""
    comm = await connect(address, timeout=ANSWER_S, **security.get_connection_args(role))
    try:
        await comm.write({**message, "reply": True})
        return await asyncio.wait_for(comm.read(), ANSWER_S)
    finally:
        comm.abort()


def test_a_workers_key_is_not_a_drivers(fleet: Fleet) -> None:
    async def refused() -> None:
        for operation in ("register-client", "scatter", "update_data", "gather", "restart_workers", "broadcast"):
            answer = await ask(fleet.scheduler, fleet.security("gpu2"), "worker", op=operation)
            assert f"{operation} is refused to a worker" in answer["exception_text"]
        answer = await ask(fleet.scheduler, fleet.security("driver"), "client", op="register-worker")
        assert "register-worker is refused to a driver" in answer["exception_text"]

    asyncio.run(refused())


def test_a_worker_cannot_send_what_only_drivers_send(fleet: Fleet) -> None:
    """On its stream, where Dask's own scheduler would take it: the scheduler hangs up."""

    async def send(**message: Any) -> None:
        security = fleet.security("gpu2")
        async with Worker(fleet.scheduler, security=security, nthreads=1, **WITHOUT_DASHBOARD) as worker:
            worker.reconnect = False
            worker.batched_send({"op": "keep-alive"})
            worker.batched_send(message)
            await asyncio.wait_for(worker.finished(), ANSWER_S)

    asyncio.run(send(op="client-releases-keys", keys=["a"], client="x"))
    asyncio.run(send(op="release-worker-data", key="a", worker=fleet.worker))


def test_nobody_takes_a_workers_certificate_for_a_schedulers(fleet: Fleet) -> None:
    """Nor a driver's: neither workers nor drivers send anything to what listens with one."""

    async def look(stolen: str) -> list[str]:
        refusals = []
        listens = fleet.security(stolen)
        plain = Security(
            require_encryption=True,
            tls_ca_file=listens.tls_ca_file,
            tls_scheduler_cert=listens.tls_worker_cert,
            tls_scheduler_key=listens.tls_worker_key,
        )
        async with Scheduler(**LISTENS, security=plain) as false:
            for role, name in (("worker", "gpu1"), ("client", "driver")):
                with pytest.raises(UsageError, match="a certificate of worker, not of a scheduler") as error:
                    await asyncio.to_thread(require_scheduler, false.address, fleet.security(name), role)
                refusals.append(str(error.value))
                with pytest.raises(OSError):
                    await connect(false.address, timeout=2, **fleet.security(name).get_connection_args(role))
        return refusals

    assert all("\n" not in refusal for refusal in asyncio.run(look("gpu2")))


def test_a_worker_talks_to_no_driver_and_no_other_worker(fleet: Fleet) -> None:
    async def knock() -> None:
        for name, role in (("driver", "driver"), ("gpu2", "worker")):
            key = fleet.keys / name / f"{role}.key"
            stock = Security(
                require_encryption=True,
                tls_ca_file=str(fleet.keys / name / "ca.pem"),
                tls_client_cert=str(key.with_suffix(".pem")),
                tls_client_key=str(key),
            )
            with pytest.raises(OSError):
                await ask(fleet.worker, stock, "client", op="identity")
        for name, role in (("scheduler", "scheduler"), ("gpu1", "worker")):  # its own nanny has its own certificate
            answer = await ask(fleet.worker, fleet.security(name), role, op="identity")
            assert answer["type"] == "FleetWorker"

    asyncio.run(knock())


DRIVER = """
import asyncio, sys
from pathlib import Path
from distributed import Client
from kcg.fleet import unpickling
from kcg.fleet.security import security_for
from tests.commands import python
from tests.fleet import fixed_tasks

async def ask(mark):
    security = security_for(address, Path(keys))
    async with Client(address, asynchronous=True, security=security) as client:
        return await client.submit(fixed_tasks.hostile, f"touch {mark}".encode(), workers=[worker], pure=False)

address, worker, keys, before, after = sys.argv[1:]
asyncio.run(ask(before))
unpickling.install()
try:
    asyncio.run(ask(after))
except TypeError as error:
    print(error)
"""
"""Asks a worker for an answer that is a pickle of a call, as Dask's driver and as ours."""


def test_a_driver_runs_no_code_for_its_workers(fleet: Fleet, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    done = python("-W", "ignore", "-c", DRIVER, fleet.scheduler, fleet.worker, fleet.keys / "driver", before, after)
    assert done.stdout == "a fleet unpickles no posix.system\n", done.stderr
    assert before.exists() and not after.exists()


def test_a_worker_runs_no_code_for_its_own_scheduler(fleet: Fleet, tmp_path: Path) -> None:
    """A scheduler that somebody took over: Dask's own, with the scheduler's key."""
    mark = tmp_path / "ran"
    touch = f"touch {mark}"

    async def attack() -> None:
        security = fleet.security("scheduler")
        async with Scheduler(**LISTENS, security=security, extensions={"spans": SpansSchedulerExtension}) as taken:
            with started("worker", taken.address, fleet.keys / "gpu1") as process:
                address = await asyncio.to_thread(address_of, process)
                for message in (
                    {"op": "run", "function": to_serialize(b""), "args": (), "kwargs": {}},
                    {"op": "upload_file", "filename": "code.py", "data": to_serialize(touch.encode()), "load": True},
                    {"op": "plugin-add", "plugin": b"", "name": "plugin"},
                    {"op": "actor_execute", "actor": "a", "function": "b", "args": (), "kwargs": {}},
                ):
                    answer = await ask(address, security, "scheduler", **message)
                    assert "is refused to a scheduler" in answer["exception_text"]
                async with Client(taken.address, asynchronous=True, security=fleet.security("driver")) as client:
                    assert await client.submit(fixed_tasks.shout, b"abc") == b"ABC"
                    code = client.submit(os.system, touch)
                    _, says = await asyncio.to_thread(process.communicate, timeout=ANSWER_S)
                    assert "a fleet unpickles no posix.system" in says  # and it leaves such a scheduler
                    assert not code.done()

    asyncio.run(attack())
    assert not mark.exists()


@pytest.mark.slow
def test_every_operation_that_is_admitted_is_one_of_dasks() -> None:
    """Another version of Dask may name them otherwise: here is seen which."""

    async def handlers() -> tuple[set[str], set[str], set[str], set[str]]:
        async with Scheduler(port=0, **WITHOUT_DASHBOARD) as scheduler:
            worker, nanny = Worker(scheduler.address), Nanny(scheduler.address)
            return {*scheduler.handlers}, {*scheduler.stream_handlers}, {*worker.handlers}, {*nanny.handlers}

    of_scheduler, of_streams, of_worker, of_nanny = asyncio.run(handlers())
    assert of_scheduler >= servers.ANYONE | servers.OF_WORKERS | servers.OF_DRIVERS
    assert of_streams >= servers.STREAM_OF_WORKERS | servers.STREAM_OF_DRIVERS
    assert of_worker >= servers.OF_A_WORKER
    assert of_nanny >= servers.OF_A_NANNY


@pytest.mark.slow
def test_a_worker_that_dies_is_started_again(fleet: Fleet) -> None:
    """By its nanny, with which it shares a certificate."""

    async def die() -> None:
        with started("nanny", fleet.scheduler, fleet.keys / "gpu2") as nanny:
            first = await asyncio.to_thread(address_of, nanny)
            async with Client(fleet.scheduler, asynchronous=True, security=fleet.security("driver")) as client:
                pid = await client.submit(fixed_tasks.process, b"", workers=[first], pure=False)
                os.kill(int(pid), signal.SIGKILL)
                others: set[str] = set()
                while not others:
                    now = await client.scheduler.identity(n_workers=-1)
                    others = {*now["workers"]} - {first, fleet.worker}
                again = await client.submit(fixed_tasks.process, b"", workers=[*others], pure=False)
                assert again != pid

    asyncio.run(asyncio.wait_for(die(), ANSWER_S))
