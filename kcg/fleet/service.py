"""The driver's side of a fleet: which hosts it uses, and what is sent to which.

A task is a batch of requests of one kernel for one host. It goes to the host that has the kernel already, unless
others have less to do; and to another one when its host is gone. Whatever comes back first counts, what comes later is
dropped: a batch may run twice, its rows are there once. A host is used while its checks pass, see `kcg.fleet.trust`.
Everything of Dask happens in one thread with an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcg.campaign.sampling import DrawJob, Drawn, draw_timed
from kcg.campaign.tables import LatticeDrawn, LatticeJob
from kcg.cli import counted
from kcg.dataset.journal import Doubt, unix_now_s
from kcg.errors import DataError, DeviceError, KcgError, UsageError
from kcg.fleet import tasks, trust
from kcg.fleet.binaries import SENT
from kcg.fleet.connection import CONNECT_S, checked, hosts_of
from kcg.fleet.payload import (
    Binaries,
    BinariesWanted,
    Binary,
    Checked,
    Compilations,
    CompilerFacts,
    CompileTask,
    HostFacts,
    Made,
    Measured,
    MeasureJob,
    pack,
    resource_of,
    unpack,
)
from kcg.fleet.settings import SETTLE_S, configure
from kcg.fleet.trust import HostReport
from kcg.measure.job_rows import HASH_DIGITS
from kcg.measure.jobs import CompileOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import COMPILE_TIMEOUT_S, Request
from kcg.nouns import plain
from kcg.types import Measurement, Schedule, Status, Target, Toolchain, content_id

POLL_S = 0.5  # between looks at the scheduler's hosts
CLOSE_S = 5.0
READY_S = 300.0  # in which the first host must have opened its device and passed its check
ALONE_S = 180.0  # without any host of a target
CHECK_S = 900.0  # in which a host answers a check, which waits for what other drivers have it do
MOST_HOSTS_LOST = 5  # over one batch
MOST_HOSTS_UNABLE = 3  # to do one task, of those that did others like it: then it is the task
MOST_TASKS_UNABLE = 3  # that others did and one host could not: then it is the host
SLACK = 1  # batches more than others have that a host may get of a kernel that it has already
SHARE = 1 / 64  # of a device that a batch takes: the host's own service gives them their turns
SEND_S = 0.005  # in which tasks of one host are collected, to be sent as one graph
LONGEST_REASON, LONGEST_LINE = 200, 1000  # characters of what a host says
KERNELS_KEPT = 512  # of which it is known who measured them, and what

_RowKey = tuple[Any, ...]

GO_ON = "what was measured is kept: run the same command again to go on"


@dataclass(eq=False)
class _Host:
    """An admitted host, and what it has in hand."""

    address: str
    facts: HostFacts
    flying: set[_Work] = field(default_factory=set)
    unchecked: bool = False  # it measured since it was checked last
    checking: bool = False  # it gets nothing until its check came back
    recheck: asyncio.Task[None] | None = None
    binaries: OrderedDict[str, None] = field(default_factory=OrderedDict)  # that were sent there, the last ones
    known: OrderedDict[str, set[_RowKey]] = field(default_factory=OrderedDict)  # binaries that it knows, by kernel
    runs_sent: set[str] = field(default_factory=set)  # of rows: it may answer with them
    did: set[str] = field(default_factory=set)  # kinds of tasks
    failed: bool = False  # a task, which was said
    others_did: int = 0  # tasks that it could not do


@dataclass(eq=False)
class _Compiler:
    """A host that only compiles, and how many schedules it has in hand."""

    address: str
    facts: CompilerFacts
    asked: int = 0
    unfit: set[FleetService] = field(default_factory=set)  # whose toolchain it has not
    gone: asyncio.Event = field(default_factory=asyncio.Event)


_Elsewhere = tuple[tuple[Made, ...], tuple[Binary, ...]]
"""What compiling a batch's schedules came to on another host, and the binaries that its host lacks."""


@dataclass(eq=False)
class _Work:
    """One task."""

    service: FleetService
    function: Callable[[bytes], bytes]
    region_id: str
    identity: str  # of what is asked, on every machine
    payload: Callable[[_Host, _Elsewhere], bytes]
    done: Callable[[_Host, bytes], None]  # raises DataError where the answer cannot be trusted
    failed: Callable[[KcgError], None]
    requests: Sequence[Request] = ()  # to measure
    hosts_lost: int = 0
    unable: dict[str, str] = field(default_factory=dict)  # hosts that live and could not do it, by address: why
    sound_unable: int = 0  # of these, those that did others like it
    stuck_since: float | None = None  # that no host is there but those
    running: asyncio.Task[None] | None = None

    @property
    def kind(self) -> str:
        return self.function.__name__


@dataclass(eq=False)
class _Outgoing:
    """Tasks of one host that are sent together, and Dask's futures of their answers once they are."""

    sent: asyncio.Future[dict[str, Any]]
    tasks: dict[str, Any] = field(default_factory=dict)


class Fleet:
    """A driver's connection to a scheduler and its hosts. Use as a context manager.

    Raises UsageError where there is no scheduler, or it may not be talked to.
    """

    def __init__(
        self,
        address: str,
        *,
        certificates: Path | None = None,
        log: Callable[[str], None] = lambda line: None,
        measure: Callable[[bytes], bytes] = tasks.measure,
        alone_s: float = ALONE_S,
        check_s: float = CHECK_S,
        earlier: Sequence[HostReport] = (),
    ) -> None:
        """`measure` is the task that measures: `tasks.echo` measures nothing. Work waits for a host for `alone_s`, a
        check for its answer for `check_s`.
        `earlier` are what hosts had to agree with before, see `trust.references_of`."""
        security = checked(address, certificates)
        configure()
        self.address, self.run_id, self.measure_task = address, uuid.uuid4().hex, measure
        self.error: DeviceError | None = None  # why nothing more is measured
        self._versions = trust.versions()
        self._admission = trust.Admission(self._versions, trust.RECHECK_S, earlier)
        self._log: Callable[[str], None] = lambda line: log(plain(line, LONGEST_LINE))  # hosts may say anything
        self._services: dict[tuple[str, str], FleetService] = {}
        self._alone_s, self._check_s = alone_s, check_s
        self._sealed = False  # no more targets
        self._hosts: dict[str, _Host] = {}  # admitted, by address
        self._compilers: dict[str, _Compiler] = {}  # admitted, by address
        self._asked: dict[str, asyncio.Task[None]] = {}  # hosts that were asked what they are, by address
        self._refused: dict[str, str] = {}  # address -> why
        self._turns: dict[str, asyncio.Lock] = {}  # of hosts that share a CPU, by machine
        self._sent = 0  # tasks
        self._outgoing: dict[tuple[str, str], _Outgoing] = {}  # by host and resource
        self._pending = 1  # hosts of which it is not known yet what becomes of them; one until they were looked at
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._background: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kcg-fleet", daemon=True)
        self._thread.start()
        try:
            self._call(self._connect(security), CONNECT_S * 2)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | TimeoutError):
                raise UsageError(f"the scheduler at {address} does not answer: {_line(error)}") from None
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the fleet. What is still asked of it ends."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):
            self._call(self._leave(), CLOSE_S * 2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def services(self, hosts: int = 1, *, alive: Callable[[], None] = lambda: None) -> list[FleetService]:
        """One service for each target and toolchain of the hosts that are there, once so many are admitted and none is
        still opening its device. Targets that join later are not used.

        `alive` is asked meanwhile, and raises where no more hosts can come. Raises UsageError where none can be used.
        """
        deadline = time.monotonic() + READY_S
        with self._changed:
            while len(self._hosts) < hosts or self._pending:
                alive()
                if self.error is not None:
                    raise self.error
                if self._refused and not self._pending and len(self._hosts) + len(self._refused) >= hosts:
                    break
                if time.monotonic() > deadline:
                    break
                self._changed.wait(POLL_S)
            if not self._hosts:
                why = "; ".join(sorted(set(self._refused.values())))
                raise UsageError(
                    f"no host of {self.address} can be used: {why}"
                    if why
                    else f"no host of {self.address} was ready in {READY_S:g} s: start one with kcg fleet worker"
                )
            self._sealed = True
            return list(self._services.values())

    # ---- in the loop's thread ----

    def _call(self, act: Coroutine[Any, Any, Any], timeout_s: float | None) -> Any:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(timeout_s)

    def _start(self, act: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(act)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What goes wrong in the background ends the run: whoever waits for it would wait for ever."""
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(DeviceError(f"this driver failed ({type(error).__name__}: {_line(error)}); {GO_ON}"))

    async def _connect(self, security: Any) -> None:
        from distributed import Client
        from distributed.core import rpc

        arguments = {} if security is None else security.get_connection_args("client")
        async with rpc(self.address, connection_args=arguments) as scheduler:
            await asyncio.wait_for(hosts_of(scheduler), CONNECT_S)
        self._client = Client(
            self.address, asynchronous=True, security=security, timeout=CONNECT_S, set_as_default=False, name="kcg"
        )
        await self._client
        self._start(self._watch())

    async def _leave(self) -> None:
        self._fail(DeviceError(f"this run left the fleet; {GO_ON}"))
        try:
            while background := tuple(self._background):  # one of them may have started another meanwhile
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
            await asyncio.wait_for(self._client.close(timeout=CLOSE_S), CLOSE_S)
        finally:
            await asyncio.sleep(SETTLE_S)

    def _is_cut_off(self) -> bool:
        """Whether the scheduler hung up."""
        comm = self._client.scheduler_comm
        return comm is None or comm.closed()

    async def _watch(self) -> None:
        """See which hosts come and go."""
        alone_since: float | None = None
        while self.error is None:
            try:
                if self._is_cut_off():
                    raise OSError
                workers = await asyncio.wait_for(hosts_of(self._client.scheduler), CONNECT_S)
            except (OSError, TimeoutError):
                self._fail(DeviceError(f"the scheduler at {self.address} is gone; {GO_ON}"))
                return
            if self.error is not None:  # `wait_for` takes no notice of being cancelled as its answer comes
                return
            for address in self._hosts.keys() - workers.keys():
                self._gone(self._hosts[address], "is gone")
            for address in self._compilers.keys() - workers.keys():
                self._compilers.pop(address).gone.set()
                self._count()
            for address in self._asked.keys() - workers.keys():
                self._asked.pop(address).cancel()  # no answer comes from there
            opening = 0
            for address, host in workers.items():
                if problem := host.get("problem"):  # nobody waits for it
                    self._doubt_state(address, problem)
                elif not host["ready"]:
                    opening += 1
                elif address not in self._asked:
                    self._refused.pop(address, None)  # it could not be read before
                    compiles, on_cpu = host.get("compiles_only"), host["device"].startswith("CPU")
                    asking = self._admit_compiler(address) if compiles else self._admit(address, on_cpu)
                    self._asked[address] = self._start(asking)
            with self._changed:
                known = self._hosts.keys() | self._compilers.keys() | self._refused.keys()
                self._pending = opening + len(self._asked.keys() - known)
                self._changed.notify_all()
            waiting = any(service.waiting and not service.hosts for service in self._services.values())
            alone_since = (alone_since or time.monotonic()) if waiting else None
            if alone_since is not None and time.monotonic() - alone_since > self._alone_s:
                self._fail(DeviceError(f"no host was there for {self._alone_s:g} s; {GO_ON}"))
            self._give_up_stuck()
            self._check_due()
            await asyncio.sleep(POLL_S)

    def _doubt_state(self, address: str, problem: str) -> None:
        """Say once that a worker is not used as long as it says such things of itself."""
        if address not in self._asked and address not in self._refused:
            with self._changed:
                self._refuse(address, f"worker {address} {problem}")

    async def _admit(self, address: str, on_cpu: bool) -> None:
        """Have a host check itself, and use it or not."""
        try:
            async with self._turn(address, on_cpu):
                asked_unix_s = unix_now_s()
                found = unpack(await self._check(address), Checked)
        except Exception as error:  # also Dask's own, of a host that dies meanwhile
            if not self._is_cut_off():  # then that is what is to be said
                with self._changed:
                    self._refuse(address, f"worker {address} was not checked: {_line(error)}")
            return
        facts, report = found.facts, found.report
        key = (facts.target.fingerprint, facts.toolchain.fingerprint)
        with self._changed:
            if self._sealed and key not in self._services:
                why = f"{facts.target.model} was not there when this run began: the next one uses it"
            elif facts.run_id in self._admission.hosts:
                why = f"worker {address} says that it is another one"
            else:
                why = self._admission.join(address, report, asked_unix_s=asked_unix_s)
            if why:
                self._refuse(address, why)
                return
            if key not in self._services:
                self._services[key] = FleetService(self, facts.target, facts.toolchain)
            service = self._services[key]
            self._hosts[address] = host = _Host(address, facts)
            service.join(host, report, self._admission.reference_of(report.target))
            self._changed.notify_all()
        self._place_waiting()

    def _refuse(self, address: str, why: str) -> None:
        """Not use a host, for this run; `_changed` is held."""
        self._refused[address] = why = plain(why, LONGEST_LINE)
        self._log(f"a host is not used: {why}")
        self._changed.notify_all()

    def _place_waiting(self) -> None:
        """Have hosts do what waits for one."""
        for service in self._services.values():
            waiting = tuple(service.waiting)
            service.waiting.clear()
            for work in waiting:  # whose host is not there yet waits on
                self._place(work)

    # ---- checks of hosts, in the loop's thread ----

    async def _check(self, address: str) -> bytes:
        """`Checked`, of a host as it is now. Raises DataError where it lives and does not answer."""
        asked = self._submit(tasks.check, b"", f"check-{uuid.uuid4().hex}", address)
        try:
            return await asyncio.wait_for(asked, self._check_s)
        except TimeoutError:
            raise DataError(f"it has not answered for {self._check_s:g} s") from None

    def _turn(self, address: str, on_cpu: bool) -> contextlib.AbstractAsyncContextManager[Any]:
        """Inside, no other host of its machine is checked, if it has the same CPU."""
        if not on_cpu:
            return contextlib.nullcontext()
        return self._turns.setdefault(_machine(address), asyncio.Lock())

    def _check_due(self) -> None:
        due = {admitted.address for admitted in self._admission.due(unix_now_s())}
        for host in self._hosts.values():
            if host.address in due:
                self._begin_recheck(host)

    def _begin_recheck(self, host: _Host) -> asyncio.Task[None]:
        if host.recheck is None or host.recheck.done():
            host.recheck = self._start(self._recheck(host))
        return host.recheck

    async def _recheck(self, host: _Host) -> None:
        """Have a host check itself again, once it has done what it has in hand, and use it further or not."""
        async with self._turn(host.address, host.facts.target.device == "CPU"):
            host.checking = True
            while in_hand := [w.running for w in host.flying if w.running is not None and not w.running.done()]:
                await asyncio.wait(in_hand)
            asked_unix_s = unix_now_s()
            try:
                found = unpack(await self._check(host.address), Checked)
                if found.facts.run_id != host.facts.run_id:
                    raise DataError("it says that it is another one")
            except Exception as error:  # it is there no more, or its device is not
                host.recheck = None  # which is not to be cancelled from here
                if self._is_cut_off():
                    return
                self._gone(host, f"is not used any more: {_line(error)}")
                return
            if (doubt := self._admission.recheck(found.report, asked_unix_s=asked_unix_s)) is not None:
                await self._drain(host, doubt)
        self._service_of(host).forgot(host)
        host.unchecked, host.checking, host.recheck = False, False, None
        self._place_waiting()

    async def _drain(self, host: _Host, doubt: Doubt) -> None:
        """Use a host no more, and have it known that its rows are doubtful."""
        service = self._service_of(host)
        service.distrust(doubt.run_id)
        try:
            await asyncio.to_thread(service.on_doubt, doubt.run_id, doubt.since_unix_s, doubt.why)
        except KcgError as error:
            self._fail(DeviceError(f"{_line(error)}; {GO_ON}"))
        host.recheck = None
        self._gone(host, f"is drained, and its rows since its last check are doubtful: {doubt.why}")

    def _service_of(self, host: _Host) -> FleetService:
        return self._services[host.facts.target.fingerprint, host.facts.toolchain.fingerprint]

    def settle(self, service: FleetService) -> None:
        """Have every host of a service checked that measured since its last check, and wait for it. From any thread
        but the loop's."""
        self._call(self._settle(service), None)

    async def _settle(self, service: FleetService) -> None:
        while self.error is None and (hosts := [host for host in service.hosts if host.unchecked]):
            await asyncio.wait([self._begin_recheck(host) for host in hosts])

    # ---- hosts that only compile ----

    async def _admit_compiler(self, address: str) -> None:
        try:
            name = f"compiler-{uuid.uuid4().hex}"
            facts = unpack(await self._submit(tasks.compiler, b"", name, address), CompilerFacts)
            why = trust.other_version(facts.versions, self._versions, compiles_only=True)
        except Exception as error:  # also Dask's own, of a host that dies meanwhile
            why = _line(error)
        if why:
            with self._changed:
                self._refused[address] = f"worker {address} {why}"
                self._changed.notify_all()
            self._log(f"a host that compiles is not used: worker {address} {why}")
            return
        self._compilers[address] = _Compiler(address, facts)
        self._count()

    def _count(self) -> None:
        for service in self._services.values():
            service.count()

    def cores_for(self, service: FleetService) -> int:
        """Of the hosts that only compile, and can for a service."""
        return sum(one.facts.cores for one in self._compilers.values() if service not in one.unfit)

    def _compiler_for(self, work: _Work, host: _Host) -> _Compiler | None:
        """Who compiles a batch in the place of its host: one that is idle, or has less to do than the host's own
        compilers. None where these do."""
        fit = [compiler for compiler in self._compilers.values() if work.service not in compiler.unfit]
        if not work.requests or not fit or not host.facts.takes_binaries:
            return None
        least = min(fit, key=lambda compiler: compiler.asked / compiler.facts.cores)
        waiting = sum(len(one.requests) for one in host.flying)  # with this batch
        less = least.asked / least.facts.cores < waiting / host.facts.compile_workers
        return least if least.asked < least.facts.cores or less else None

    async def _elsewhere(self, work: _Work, host: _Host, key: str) -> _Elsewhere:
        """Have a batch compiled by another host than the one that will measure it, where that is quicker. What goes
        wrong with that other host is no more than that: the measuring host compiles."""
        if (compiler := self._compiler_for(work, host)) is None:
            return (), ()
        requests, service = work.requests, work.service
        task = CompileTask(
            requests[0].region,
            tuple(dict.fromkeys(request.schedule for request in requests)),
            tuple(dict.fromkeys(request.variables for request in requests)),
            service.target,
            service.toolchain,
            COMPILE_TIMEOUT_S,
        )
        compiler.asked += len(task.schedules)
        try:
            answer = await self._answer(compiler, tasks.compile, pack(task), f"compile-{key}")
            made = unpack(answer, Compilations).made
            if len(made) != len(task.schedules):
                raise DataError("it has not an answer for every schedule")
            lacks = tuple(dict.fromkeys(m.binary for m in made if m.binary and m.binary not in host.binaries))
            binaries: tuple[Binary, ...] = ()
            if lacks:
                answer = await self._answer(compiler, tasks.blob, pack(BinariesWanted(lacks)), f"blob-{key}")
                binaries = unpack(answer, Binaries).binaries
            if tuple(binary.id for binary in binaries) != lacks:
                raise DataError("a binary is not the one of its hash")
        except Exception as error:  # also Dask's own, of a host that dies
            if compiler.address in self._compilers and service not in compiler.unfit:
                compiler.unfit.add(service)
                service.count()
                self._log(f"a host does not compile for {service.target.model}: {_line(error)}")
            return (), ()
        finally:
            compiler.asked -= len(task.schedules)
        for name in lacks:
            host.binaries[name] = None
        while len(host.binaries) > SENT:
            host.binaries.popitem(last=False)
        return made, binaries

    async def _answer(self, compiler: _Compiler, function: Callable[[bytes], bytes], payload: bytes, key: str) -> bytes:
        """The answer of a host that compiles. Raises OSError where it is gone: Dask would wait for it to come back."""
        answer = asyncio.ensure_future(self._submit(function, payload, key, compiler.address))
        gone = asyncio.ensure_future(compiler.gone.wait())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() or answer.cancelled():
                raise OSError("it is gone")
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()

    async def _submit(
        self, function: Callable[[bytes], bytes], payload: bytes, key: str, address: str, resource: str = ""
    ) -> bytes:
        """The answer of a task of one host, which takes a share of a resource there."""
        from dask._task_spec import Task

        if (outgoing := self._outgoing.get((address, resource))) is None:
            outgoing = self._outgoing[address, resource] = _Outgoing(self._loop.create_future())
            self._loop.call_later(SEND_S, self._send, address, resource)
        outgoing.tasks[key] = Task(key, function, payload)
        sent = await asyncio.shield(outgoing.sent)  # that one of them is cancelled is not the others'
        answer: bytes = await sent.pop(key)
        return answer

    def _send(self, address: str, resource: str) -> None:
        """Send what was collected for a host as one graph: a graph costs the scheduler more than a task in it."""
        from dask._expr import LLGExpr

        outgoing = self._outgoing.pop((address, resource))
        keys = list(outgoing.tasks)
        graph = LLGExpr(outgoing.tasks, _determ_token=keys[0])  # without one Dask would hash it all
        resources = {resource: SHARE} if resource else None
        try:
            futures = self._client.get(graph, keys, workers=[address], resources=resources, sync=False)
        except Exception as error:  # of a client whose scheduler is gone
            outgoing.sent.set_exception(error)
            outgoing.sent.exception()  # whoever waited for it may have been cancelled
        else:
            outgoing.sent.set_result(dict(zip(keys, futures, strict=True)))

    def post(self, work: _Work) -> None:
        """Have a task done by some host. From any thread."""
        self._loop.call_soon_threadsafe(self._place, work)

    def _place(self, work: _Work) -> None:
        service = work.service
        if (error := service.device_error) is not None:
            work.failed(error)
        elif (host := service.choose(work)) is None:
            service.waiting.append(work)
        else:
            work.stuck_since = None
            host.flying.add(work)
            host.unchecked |= work.function is self.measure_task
            work.running = self._start(self._run(work, host))

    async def _run(self, work: _Work, host: _Host) -> None:
        # Dask gives two tasks of one key one answer: the key has all that is asked, of whom, by whom, and which time
        self._sent += 1
        target = work.service.target
        key = f"{work.kind}-{work.identity}-{target.fingerprint[:16]}-{self.run_id[:8]}-{self._sent}"
        try:
            elsewhere = await self._elsewhere(work, host, key)
            payload = work.payload(host, elsewhere)
            answer = await self._submit(work.function, payload, key, host.address, resource_of(target))
        except asyncio.CancelledError:
            return  # the host is gone, or the scheduler: who noticed does the rest
        except Exception as error:  # Dask's own words, for a host that died or a task that failed there
            there = await self._is_there(host)
            host.flying.discard(work)
            if self.error is not None:
                work.failed(self.error)
            elif there:
                self._elsewhere_again(work, host, _line(error))
            else:
                self._gone(host, "is gone")
                self._again(work, host, _line(error))
            return
        host.flying.discard(work)
        try:
            work.done(host, answer)
        except (DeviceError, DataError) as error:
            self._gone(host, f"is not used any more: {error}")
            self._again(work, host, str(error))
        except KcgError as error:
            self._elsewhere_again(work, host, _line(error))
        else:
            host.did.add(work.kind)
            self._count_unable(work)

    async def _is_there(self, host: _Host) -> bool:
        """Whether the scheduler still knows a host. Where there is no scheduler the run ends."""
        try:
            return host.address in await asyncio.wait_for(hosts_of(self._client.scheduler), CONNECT_S)
        except (OSError, TimeoutError):
            self._fail(DeviceError(f"the scheduler at {self.address} is gone; {GO_ON}"))
            return False

    def _elsewhere_again(self, work: _Work, host: _Host, why: str) -> None:
        """Have another host do what one that lives could not, unless so many could not that it is the task."""
        work.unable[host.address] = why
        work.sound_unable += work.kind in host.did
        if not host.failed:
            host.failed = True
            self._log(f"a host ({host.facts.target.model}, {host.address}) could not do a task: {why}")
        others = work.service.others_than(work.unable) or len(work.unable) < work.service.most_hosts
        if others and work.sound_unable < MOST_HOSTS_UNABLE:
            self._place(work)
        else:
            self._give_up(work)

    def _give_up(self, work: _Work) -> None:
        """End a task that no host that is there can do."""
        *others, (address, why) = work.unable.items()
        so_did = f" (and so {counted(len(others), 'other')})" if others else ""
        work.failed(KcgError(f"worker {address}{so_did}: {why}"))

    def _give_up_stuck(self) -> None:
        """End what has waited long enough for other hosts than those that could not do it."""
        now = time.monotonic()
        for service in self._services.values():
            for work in service.stuck():
                work.stuck_since = work.stuck_since or now
                if now - work.stuck_since > self._alone_s and self.error is None:
                    service.waiting.remove(work)
                    self._give_up(work)

    def _count_unable(self, work: _Work) -> None:
        """Use those hosts no more that could not do many tasks that others did."""
        for address, why in work.unable.items():
            if (host := self._hosts.get(address)) is None:
                continue
            host.others_did += 1
            if host.others_did >= MOST_TASKS_UNABLE:
                what = f"others did {counted(host.others_did, 'task')} that it could not (the last one: {why})"
                self._gone(host, f"is not used any more: {what}")

    def _gone(self, host: _Host, what: str) -> None:
        """A host that is there no more, or not used any more: others do what it had in hand."""
        if self._hosts.pop(host.address, None) is None:
            return
        self._refused[host.address] = what
        for service in self._services.values():
            service.leave(host)
        self._admission.left(host.facts.run_id)
        if host.recheck is not None:
            host.recheck.cancel()
        lost, host.flying = host.flying, set()
        in_hand = f"; {counted(len(lost), 'batch', 'batches')} in hand" if lost else ""
        self._log(f"a host ({host.facts.target.model}, {host.address}) {what}{in_hand}")
        for work in lost:
            if work.running is not None:
                work.running.cancel()
            self._again(work, host, what)

    def _again(self, work: _Work, host: _Host, why: str) -> None:
        work.hosts_lost += 1
        if work.hosts_lost < MOST_HOSTS_LOST:
            self._place(work)
        else:
            what = f"{MOST_HOSTS_LOST} hosts were lost over the kernel {work.region_id[:12]} (the last one {why})"
            self._fail(DeviceError(f"{what}; {GO_ON}"))
            work.failed(self.error or DeviceError(what))

    def _fail(self, error: DeviceError) -> None:
        """Nothing more is measured."""
        if self.error is None:
            self.error = error
        for service in self._services.values():
            service.end_all(error)
        for host in self._hosts.values():
            if host.recheck is not None:
                host.recheck.cancel()
        with self._changed:
            self._changed.notify_all()


class FleetService:
    """The hosts of one target and one toolchain as one service: `kcg.measure.interface.Measures`."""

    def __init__(self, fleet: Fleet, target: Target, toolchain: Toolchain) -> None:
        self._fleet, self.target, self.toolchain = fleet, target, toolchain
        self.run_id = fleet.run_id
        self.hosts: list[_Host] = []
        self.waiting: deque[_Work] = deque()  # no host is there for them
        self._closed: DeviceError | None = None
        self._lock = threading.Lock()
        self.on_doubt: Callable[[str, float, str], None] = lambda run_id, since_unix_s, why: None
        # every host that there was as it joined, and what it agreed with, by run
        self._joined: dict[str, tuple[Checked, HostReport]] = {}
        self._doubtful: set[str] = set()  # runs of hosts that were drained
        self._homes: OrderedDict[str, _Host] = OrderedDict()  # who has a kernel
        self._rows: OrderedDict[str, dict[_RowKey, Measurement]] = OrderedDict()  # one of each binary, by kernel
        self._compile_workers, self._devices = 1, 1  # as they were when there were any
        self.most_hosts = 1  # that there were at once
        self._spent_s: Counter[str] = Counter()

    # ---- what a campaign asks ----

    @property
    def device_error(self) -> DeviceError | None:
        return self._fleet.error or self._closed

    @property
    def devices(self) -> int:
        return self._devices

    @property
    def compile_workers(self) -> int:
        return self._compile_workers

    @property
    def spent_s(self) -> Mapping[str, float]:
        with self._lock:
            return Counter(self._spent_s)

    def run_facts(self, run_id: str) -> dict[str, Any]:
        if (joined := self._joined.get(run_id)) is None:
            return {"fleet_hosts": self.devices} if run_id == self.run_id else {}
        checked, reference = joined
        facts, report = checked.facts, checked.report
        return {
            "device": facts.device,
            "compile_workers": facts.compile_workers,
            "python": report.versions.python,
            "fleet": True,
            "report": report.facts,
            trust.REFERENCE: reference.whole,
        }

    def settle(self) -> None:
        """Have every host checked that measured since its last check: `on_doubt` was told of those that do not pass."""
        self._fleet.settle(self)

    def close(self) -> None:
        self._closed = self._closed or DeviceError(f"the run ended; {GO_ON}")
        error = self._closed
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all that was asked with it
            self._fleet._loop.call_soon_threadsafe(self.end_all, error)

    def remember(self, row: Measurement) -> None:
        if row.binary_hash:
            with self._lock:
                self._rows_of(row.region_id)[_row_key(row)] = row

    def measure(
        self,
        requests: Sequence[Request],
        *,
        together: bool = False,
        made: Mapping[Schedule, Future[CompileOutcome]] | None = None,
    ) -> list[Future[Measurement]]:
        """See `MeasureService.measure`. Requests of one kernel are one task, which times them together. What was `made`
        here is not sent: the hosts compile."""
        futures: list[Future[Measurement]] = [Future() for _ in requests]
        for future in futures:
            future.set_running_or_notify_cancel()
        by_kernel: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            by_kernel.setdefault(request.region.id, []).append(place)
        for places in by_kernel.values():
            self._measure([requests[i] for i in places], [futures[i] for i in places])
        return futures

    def beside(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Draw a campaign's next schedules on one of the hosts; its own limit of time holds there."""
        if function is not draw_timed or len(args) != 2 or not isinstance(args[1], DrawJob | LatticeJob):
            raise TypeError(f"a fleet draws schedules; it does not run {function.__name__}")
        job = args[1]
        future: Future[Drawn] = Future()
        future.set_running_or_notify_cancel()
        payload = pack(job)

        def done(host: _Host, answer: bytes) -> None:
            drawn = unpack(answer, LatticeDrawn if isinstance(job, LatticeJob) else Drawn)
            if len(drawn.keys) != len(job.known):
                raise DataError("it has not a key for every schedule")
            _resolve(future, drawn)

        self._fleet.post(
            _Work(
                self,
                tasks.draw,
                job.region.id,
                hashlib.sha256(payload).hexdigest(),
                lambda host, elsewhere: payload,
                done,
                lambda error: _refuse(future, error),
            )
        )
        return future

    # ---- tasks ----

    def _measure(self, requests: Sequence[Request], futures: Sequence[Future[Measurement]]) -> None:
        region_id = requests[0].region.id

        def payload(host: _Host, elsewhere: _Elsewhere) -> bytes:
            with self._lock:
                known = host.known.setdefault(region_id, set())
                host.known.move_to_end(region_id)
                if len(host.known) > KERNELS_KEPT:
                    host.known.popitem(last=False)
                new = [row for key, row in self._rows.get(region_id, {}).items() if key not in known]
                known.update(map(_row_key, new))
                host.runs_sent.update(row.run_id for row in new)
                doubtful = tuple(sorted(self._doubtful))
            return pack(MeasureJob(tuple(requests), tuple(new), *elsewhere, doubtful, self._fleet.run_id))

        def done(host: _Host, answer: bytes) -> None:
            measured = unpack(answer, Measured)
            self._check(host, requests, measured.rows)
            with self._lock:
                rows, known = self._rows_of(region_id), host.known.setdefault(region_id, set())
                for row in measured.rows:
                    if row.binary_hash and row.run_id not in self._doubtful:
                        rows.setdefault(_row_key(row), row)
                        known.add(_row_key(row))
                self._spent_s.update(dict(measured.spent_s))
            for future, row in zip(futures, measured.rows, strict=True):
                _resolve(future, row)

        def failed(error: KcgError) -> None:
            if not isinstance(error, DeviceError):  # it says nothing of the schedules, and would come again
                self._fleet._fail(DeviceError(f"no host can measure {region_id[:12]}: {error}; {GO_ON}"))
            for request, future in zip(requests, futures, strict=True):
                _resolve(future, self._unmeasured(request, error))

        function, identity = self._fleet.measure_task, _identity(requests)
        self._fleet.post(_Work(self, function, region_id, identity, payload, done, failed, requests))

    def _check(self, host: _Host, requests: Sequence[Request], rows: Sequence[Measurement]) -> None:
        """Raises DataError where the rows of a host are not those that were asked for."""
        if len(rows) != len(requests):
            raise DataError(f"{counted(len(rows), 'row')} for {counted(len(requests), 'request')}")
        for request, row in zip(requests, rows, strict=True):
            asked = (request.region.id, request.schedule, request.variables, request.early_stop, request.trial)
            if asked != (row.region_id, row.schedule, row.variables, row.early_stop, row.trial):
                raise DataError("a row of another schedule than the one that was asked for")
            if row.target != self.target.fingerprint or row.toolchain not in self.toolchain.fingerprints:
                raise DataError("a row of another target or toolchain")
            if row.protocol != PROTOCOL or row.cache_state != request.cache_state:
                raise DataError("a row of another protocol or cache state")
            if row.run_id != host.facts.run_id and row.run_id not in host.runs_sent:
                raise DataError("a row of another run")
            if row.status == Status.OK and not row.samples_s:
                raise DataError("a row without samples")

    def _unmeasured(self, request: Request, error: KcgError) -> Measurement:
        """What stands for a row that there will never be; it is not to be recorded."""
        return Measurement(
            request.region.id,
            request.schedule,
            self.target.fingerprint,
            self.toolchain.fingerprint,
            PROTOCOL,
            Status.WORKER_DIED,
            request.cache_state,
            request.variables,
            reason=str(error),
            run_id=self.run_id,
        )

    def _rows_of(self, region_id: str) -> dict[_RowKey, Measurement]:
        rows = self._rows.setdefault(region_id, {})
        self._rows.move_to_end(region_id)
        if len(self._rows) > KERNELS_KEPT:
            self._rows.popitem(last=False)
        return rows

    # ---- its hosts, in the loop's thread ----

    def join(self, host: _Host, report: HostReport, reference: HostReport) -> None:
        """Use a host that agreed with the reference."""
        self.hosts.append(host)
        self._joined[host.facts.run_id] = Checked(host.facts, report), reference
        self.count()

    def forgot(self, host: _Host) -> None:
        """A host knows no timings any more, as after a check."""
        with self._lock:
            host.known.clear()

    def distrust(self, run_id: str) -> None:
        """Have no timing of a run stand for another schedule's any more, here or on a host."""
        with self._lock:
            self._doubtful.add(run_id)
            for region_id, rows in self._rows.items():
                self._rows[region_id] = {key: row for key, row in rows.items() if row.run_id != run_id}
            for host in self.hosts:
                host.known.clear()

    def leave(self, host: _Host) -> None:
        """Use a host no more."""
        if host in self.hosts:
            self.hosts.remove(host)
            self.count()

    def count(self) -> None:
        """See how many devices and compilers there are now."""
        if self.hosts:
            self._devices = len(self.hosts)
            self.most_hosts = max(self.most_hosts, self._devices)
            takes = any(host.facts.takes_binaries for host in self.hosts)
            others = self._fleet.cores_for(self) if takes else 0
            self._compile_workers = sum(host.facts.compile_workers for host in self.hosts) + others

    def stuck(self) -> list[_Work]:
        """What waits though hosts are there: none of them could do it."""
        return [work for work in self.waiting if self.hosts and not self.others_than(work.unable)]

    def others_than(self, unable: Collection[str]) -> list[_Host]:
        """The hosts but those at some addresses."""
        return [host for host in self.hosts if host.address not in unable]

    def choose(self, work: _Work) -> _Host | None:
        """The host for a task; None where there is none, or all are checked. What another one could not do is rather
        for one that did its like, that could do all it was given, and that is on another machine."""
        region_id, unable = work.region_id, work.unable
        free = [host for host in self.others_than(unable) if not host.checking]
        if not free:
            return None
        if unable:
            machines = set(map(_machine, unable))
            doubts = [(work.kind not in host.did, host.failed, _machine(host.address) in machines) for host in free]
            free = [host for host, doubt in zip(free, doubts, strict=True) if doubt == min(doubts)]
        least = min(free, key=lambda host: len(host.flying))
        home = self._homes.get(region_id)
        if home not in free or len(home.flying) > len(least.flying) + SLACK:
            home = least
        self._homes[region_id] = home
        self._homes.move_to_end(region_id)
        if len(self._homes) > KERNELS_KEPT:
            self._homes.popitem(last=False)
        return home

    def end_all(self, error: DeviceError) -> None:
        """Let all that is asked end with an error."""
        works = [*self.waiting, *(work for host in self.hosts for work in host.flying)]
        self.waiting.clear()
        for host in self.hosts:
            host.flying.clear()
        for work in works:
            if work.running is not None:
                work.running.cancel()
            work.failed(error)


def _row_key(row: Measurement) -> _RowKey:
    """What a service knows the timing of a binary by, within one kernel; see `MeasureService.remember`."""
    binary = row.binary_hash[:HASH_DIGITS]
    return (row.variables, str(row.cache_state), row.early_stop, binary, row.schedule.kind, row.trial)


def _identity(requests: Sequence[Request]) -> str:
    """Of what is asked: the parts of the identities of the rows that it will have."""
    parts = [
        (r.region.id, r.schedule.kind, r.schedule.body, r.variables, str(r.cache_state), r.early_stop, r.trial)
        for r in requests
    ]
    return content_id(parts)


def _resolve(future: Future[Any], value: Any) -> None:
    if not future.done():  # the first answer counts
        future.set_result(value)


def _refuse(future: Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _machine(address: str) -> str:
    return address.rpartition(":")[0]


def _line(error: BaseException) -> str:
    return plain(" ".join(str(error).split()) or type(error).__name__, LONGEST_REASON)
