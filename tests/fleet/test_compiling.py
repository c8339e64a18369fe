"""Hosts that only compile: the rows are those of a host that compiled by itself, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kcg.errors import DataError
from kcg.fleet import tasks
from kcg.fleet.__main__ import main as fleet_command
from kcg.fleet.compiling import Compilers
from kcg.fleet.host import NO_DEVICE, HostDevice
from kcg.fleet.local import LocalFleet
from kcg.fleet.payload import (
    Binaries,
    BinariesWanted,
    Binary,
    Compilations,
    CompileTask,
    HostFacts,
    Made,
    MeasureJob,
    pack,
    unpack,
)
from kcg.fleet.service import Fleet, FleetService
from kcg.fleet.status import read_status
from kcg.kernel.kinds import baseline_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure import child
from kcg.measure.service import MeasureService, Request
from kcg.types import Measurement, Schedule, Status
from tests.commands import ended
from tests.conftest import CPU
from tests.fleet import regions, slow_hosts
from tests.waiting import PATIENCE_S, waited

NOT_LEGAL = Schedule("opts", '[["UPCAST",0,1000]]')


region_of = partial(regions.region_of, columns=6)


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(CPU, run_id="own", compile_workers=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def compilers(service: MeasureService) -> Iterator[Compilers]:
    made = Compilers(1)
    tasks.install_compilers(made)
    yield made
    tasks.install_compilers(None)
    made.close()


@pytest.fixture
def host(service: MeasureService) -> tasks.Host:
    """One that has no binaries yet."""
    facts = HostFacts("own", CPU, *service.facts, 1, takes_binaries=True)
    return tasks.Host(service, facts, 0.0)


def task_of(service: MeasureService, *schedules: Schedule, timeout_s: float = 60.0) -> CompileTask:
    return CompileTask(region_of(7), schedules, ((),), *service.facts, timeout_s)


def rows(futures: list[Future[Measurement]]) -> list[Measurement]:
    return [future.result(PATIENCE_S) for future in futures]


def as_own(row: Measurement) -> Measurement:
    """Without what differs from one time to the next."""
    return replace(row, samples_s=(), compile_s=0.0, clocks=(), run_id="")


def test_a_row_is_the_one_of_a_host_that_compiles_itself(
    service: MeasureService, compilers: Compilers, host: tasks.Host
) -> None:
    """Its binary, its launch, its seconds of compiling; and of what does not compile its status and reason."""
    schedules = [baseline_of(region_of(7), service.target), NOT_LEGAL]
    made = unpack(tasks.compile(pack(task_of(service, *schedules))), Compilations).made
    (binary,) = unpack(tasks.blob(pack(BinariesWanted((made[0].binary,)))), Binaries).binaries
    requests = tuple(Request(region_of(7), schedule, in_search=True, trial=1) for schedule in schedules)
    before = service.compilations
    elsewhere = tasks._measure_here(host, unpack(pack(MeasureJob(requests, (), made, (binary,))), MeasureJob))
    assert service.compilations == before, "nothing was compiled here"
    again = tasks._measure_here(host, MeasureJob(requests, (), made))
    assert [row.status for row in again] == [Status.OK, Status.COMPILE_ERROR]
    assert service.compilations == before, "its binary stays here"
    other = region_of(8)
    task = CompileTask(other, (baseline_of(other, service.target),), ((),), *service.facts, PATIENCE_S)
    wanted = (Request(other, task.schedules[0], in_search=True),)
    lost = tasks._measure_here(host, MeasureJob(wanted, (), unpack(tasks.compile(pack(task)), Compilations).made))
    assert lost[0].status == Status.OK and service.compilations == before + 1, "a binary that is not here is compiled"
    own = rows(service.measure([replace(request, trial=2) for request in requests], together=True))
    assert [row.status for row in own] == [Status.OK, Status.COMPILE_ERROR]
    assert [as_own(row) for row in elsewhere] == [replace(as_own(row), trial=1) for row in own]
    assert elsewhere[0].compile_s == made[0].compile_s > 0


@pytest.mark.parametrize(
    ("compiler", "timeout_s", "status"),
    [(slow_hosts.loops, 0.3, Status.COMPILE_TIMEOUT), (slow_hosts.aborts, PATIENCE_S, Status.COMPILE_ERROR)],
)
def test_a_compiler_that_loops_or_aborts_is_what_it_is_on_a_measuring_host(
    compiler: Callable[..., None],
    timeout_s: float,
    status: Status,
    service: MeasureService,
    compilers: Compilers,
    host: tasks.Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child, "compile_job", compiler)
    made = unpack(tasks.compile(pack(task_of(service, NOT_LEGAL, timeout_s=timeout_s))), Compilations).made
    (row,) = tasks._measure_here(host, MeasureJob((Request(region_of(7), NOT_LEGAL),), (), made))
    (own,) = rows(own_way(service, monkeypatch, timeout_s))
    assert row.status == status and as_own(row) == as_own(own)


def own_way(service: MeasureService, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> list[Future[Measurement]]:
    """The same on a host that compiles itself."""
    monkeypatch.setattr(service, "compile_timeout_s", timeout_s)
    return service.measure([Request(region_of(7), NOT_LEGAL)])


def test_a_host_with_another_toolchain_does_not_compile(service: MeasureService, compilers: Compilers) -> None:
    task = task_of(service, NOT_LEGAL)
    for other, words in (
        (replace(task, toolchain=replace(task.toolchain, compiler="clang 3")), "its compiler is"),
        (replace(task, target=replace(task.target, model="another CPU")), "the measuring hosts another CPU"),
    ):
        with pytest.raises(Exception, match=words):
            unpack(tasks.compile(pack(other)), Compilations)


def test_a_binary_is_what_its_hash_says(service: MeasureService) -> None:
    schedule = baseline_of(region_of(7), service.target)
    compiled = service.compiled(region_of(7), schedule).result(PATIENCE_S).compiled
    binary = Binary.of(compiled)
    (found,) = unpack(pack(Binaries((binary,))), Binaries).binaries
    assert found.executable == compiled and found.id == binary.id
    for change in ({"binary": compiled.binary + b"x"}, {"global_size": (9, 1, 1)}, {"function_name": "other"}):
        assert Binary.of(replace(compiled, **change)).id != binary.id
    with pytest.raises(DataError, match="a kernel's or a program"):
        unpack(pack(Binaries((Binary(None, None),))), Binaries)


# ---- with a driver


@pytest.fixture(scope="module")
def local() -> Iterator[LocalFleet]:
    """A host that runs only what it compiled, one that runs what others did, and one that compiles."""
    with LocalFleet(CPU, 1, cores=1) as fleet:
        fleet.add_host(HostDevice(CPU, cores=1, takes_binaries=True))
        fleet.add_host(HostDevice(NO_DEVICE, cores=1))
        yield fleet


def compiling_host(local: LocalFleet) -> dict[str, Any]:
    return next(host for host in read_status(local.address, None)["hosts"] if host.get("compiles_only"))


def asked(service: FleetService, size: int, count: int = 4) -> list[Request]:
    region = region_of(size)
    space = KernelSpace(region, service.target)
    near = [space.start(), *(action.schedule for action in space.actions(space.start()))][: count - 1]
    return [Request(region, schedule, in_search=True) for schedule in (*near, NOT_LEGAL)]


@pytest.mark.slow
@pytest.mark.usefixtures("neighbours")
def test_a_host_without_a_device_compiles_for_those_that_take_it(local: LocalFleet) -> None:
    waited(lambda: sum(host["ready"] for host in read_status(local.address, None)["hosts"]) == 3)
    with Fleet(local.address) as fleet:
        (service,) = fleet.services(2, alive=local.check)
        waited(lambda: service.compile_workers == 3)
        assert service.devices == 2, "what only compiles is no device"
        assert compiling_host(local)["resources"] == {"compile": 1}
        assert "compiles only: 0 done" in ended(fleet_command, "status", local.address).stdout
        takes = {host.facts.takes_binaries: host for host in service.hosts}
        sent = [asked(service, size) for size in (20, 21, 22, 23)]
        for requests in sent:
            service._homes[requests[0].region.id] = takes[requests is not sent[0]]
        found = [rows(service.measure(requests, together=True)) for requests in sent]
        for some in found:
            assert [row.status for row in some] == [*[Status.OK] * (len(some) - 1), Status.COMPILE_ERROR]
        assert {row.run_id for row in found[0]} == {takes[False].facts.run_id}
        assert {row.run_id for some in found[1:] for row in some} == {takes[True].facts.run_id}
        done = sum(map(len, sent[1:]))
        waited(lambda: compiling_host(local)["compiled"] == done)
        known = dict(takes[True].binaries)
        assert 0 < len(known) < done and not takes[False].binaries
        again = rows(service.measure([replace(one, trial=1) for one in sent[1]], together=True))
        assert dict(takes[True].binaries) == known and again[0].status == Status.OK, "a binary goes to a host once"

        os.kill(compiling_host(local)["pid"], signal.SIGKILL)
        rest = rows(service.measure(asked(service, 24), together=True))
        assert [row.status for row in rest] == [*[Status.OK] * (len(rest) - 1), Status.COMPILE_ERROR]
        assert service.device_error is None and len(service.hosts) == 2


def test_a_host_that_was_not_told_to_runs_no_binary_of_another(service: MeasureService, host: tasks.Host) -> None:
    host.facts = replace(host.facts, takes_binaries=False)
    requests = (Request(region_of(7), NOT_LEGAL),)
    with pytest.raises(DataError, match="only what it compiled: start it with --take-binaries"):
        tasks._measure_here(host, MeasureJob(requests, (), (Made(failure="RuntimeError", reason="x"),)))
