"""A compiler that hangs, crashes or eats the memory ends with the right status, and the next schedule is measured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.measure.jobs import CompileJob
from kcg.measure.service import COMPILE_TIMEOUT_S, MeasureService, ServiceSettings
from kcg.types import Measurement, Region, Schedule, Status
from tests.faults import bad_jobs
from tests.faults.processes import alive, descendants, kill
from tests.faults.relu import DEV, REGION, compiled_by, request
from tests.kernels import empty, kernels_of
from tests.waiting import PATIENCE_S, wait_until

TIMEOUT_S = 1.5
"""How long what never ends may compile. All else has the service's own time, since this machine may be busy."""


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="faults", compile_workers=2) as opened:
        yield opened


def compile_with(
    service: MeasureService, function: Callable[..., Any], *args: Any, timeout_s: float = COMPILE_TIMEOUT_S
) -> Measurement:
    """The measurement of a schedule for whose compiling `function` stands."""
    service.compile_timeout_s = timeout_s
    try:
        future = compiled_by(service, function, *(args or (None,)))
    finally:
        service.compile_timeout_s = COMPILE_TIMEOUT_S
    return future.result(timeout=PATIENCE_S)


def timed_out_with(service: MeasureService, file: Path, function: Callable[..., Any], *args: Any) -> Measurement:
    """The same where `function` writes a file before it never ends; on a busy machine it has more time for that."""
    for timeout_s in (2 * TIMEOUT_S, 20 * TIMEOUT_S, PATIENCE_S):
        row = compile_with(service, function, *args, timeout_s=timeout_s)
        if file.exists():
            break
    return row


def assert_goes_on(service: MeasureService) -> None:
    (future,) = service.measure([request()])
    row = future.result(timeout=PATIENCE_S)
    assert (row.status, row.reason) == (Status.OK, "")


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        (bad_jobs.loop_in_python, Status.COMPILE_TIMEOUT, "no result within 1.5 s"),
        (bad_jobs.hold_interpreter, Status.COMPILE_TIMEOUT, "no result within 1.5 s"),
        (bad_jobs.wait_in_native_code, Status.COMPILE_TIMEOUT, "no result within 1.5 s"),
        (bad_jobs.segfault, Status.WORKER_DIED, "SIGSEGV"),
        (bad_jobs.kill_itself, Status.WORKER_DIED, "SIGKILL"),
        (bad_jobs.leave, Status.WORKER_DIED, "exit code 3"),
        (bad_jobs.exit_politely, Status.COMPILE_ERROR, "SystemExit"),
        (bad_jobs.allocate, Status.RESOURCE, "out of memory"),
        (bad_jobs.map_memory, Status.RESOURCE, "Cannot allocate memory"),
        (bad_jobs.recurse, Status.COMPILE_ERROR, "Error: "),  # a RecursionError; of CPython 3.11 once a SystemError
        (bad_jobs.raise_two_arguments, Status.COMPILE_ERROR, "TwoArguments: bad register in line 3"),
        (bad_jobs.raise_unpicklable, Status.COMPILE_ERROR, "HoldsFunction: holds a function"),
        (bad_jobs.raise_long_text, Status.COMPILE_ERROR, "ValueError: first line"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_compiler_that_fails(service: MeasureService, function: Callable[..., Any], status: Status, words: str) -> None:
    never_ends = status is Status.COMPILE_TIMEOUT
    row = compile_with(service, function, timeout_s=TIMEOUT_S if never_ends else COMPILE_TIMEOUT_S)
    assert row.status is status and words in row.reason, row.reason
    assert "\n" not in row.reason and len(row.reason) <= 320
    assert row.samples_s == () and row.binary_hash == ""
    assert_goes_on(service)


def test_what_a_search_has_no_time_to_compile_is_kept_as_no_failure(
    service: MeasureService, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Measurement] = []
    monkeypatch.setattr(service, "on_measurement", kept.append)
    hurried = request(compile_s=TIMEOUT_S)
    row = compiled_by(service, bad_jobs.loop_in_python, None, asked=hurried).result(timeout=PATIENCE_S)
    assert row.status is Status.COMPILE_TIMEOUT and kept == []
    row = compiled_by(service, bad_jobs.raise_two_arguments, None, asked=hurried).result(timeout=PATIENCE_S)
    assert row.status is Status.COMPILE_ERROR and kept == [row], "another failure is its own"
    assert_goes_on(service)


def test_triton_that_aborts_is_a_compiler_that_fails(service: MeasureService) -> None:
    pytest.importorskip("triton", reason="needs Triton, which is not here")
    row = compile_with(service, bad_jobs.abort_in_triton)
    assert row.status is Status.COMPILE_ERROR and "SIGABRT" in row.reason, row.reason
    assert_goes_on(service)


def test_compiler_that_is_a_process_of_its_own_ends_too(service: MeasureService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    row = timed_out_with(service, pid_file, bad_jobs.wait_for_compiler, str(pid_file))
    assert row.status is Status.COMPILE_TIMEOUT
    pid = int(pid_file.read_text())
    assert wait_until(lambda: not alive({pid}))


@pytest.mark.parametrize(
    ("function", "status", "count"),
    [
        (bad_jobs.start_family_and_hold, Status.COMPILE_TIMEOUT, 4),  # no Python of the child runs any more
        (bad_jobs.start_family_and_die, Status.WORKER_DIED, 4),  # as the OOM killer ends it
        (bad_jobs.fork_and_die, Status.WORKER_DIED, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_compiler_ends_with_all_that_it_started(
    service: MeasureService, tmp_path: Path, function: Callable[..., Any], status: Status, count: int
) -> None:
    """A process, and another one that this one started."""
    file = tmp_path / "pids"
    if status is Status.COMPILE_TIMEOUT:
        row = timed_out_with(service, file, function, str(file))
    else:
        row = compile_with(service, function, str(file))
    assert row.status is status
    family = set(json.loads(file.read_text()))
    assert len(family) == count
    assert wait_until(lambda: not alive(family)), alive(family)
    assert_goes_on(service)


def test_idle_children_may_die(service: MeasureService) -> None:
    assert_goes_on(service)
    kill(descendants(os.getpid()))
    assert_goes_on(service)  # at once: the pools have not even noticed
    kill(descendants(os.getpid()))
    time.sleep(0.5)
    assert_goes_on(service)


def test_pool_outlives_the_thread_that_first_used_it() -> None:
    with MeasureService(DEV, run_id="thread", compile_workers=1) as service:
        assert service.target
        thread = Thread(target=lambda: service.compile(REGION, RAW).result(timeout=PATIENCE_S))
        thread.start()
        thread.join()
        time.sleep(0.2)
        children = descendants(os.getpid())
        assert service.compile(REGION, RAW).result(timeout=PATIENCE_S)
        assert children <= descendants(os.getpid()), "a child ended with the thread"


def test_schedules_that_do_not_compile(service: MeasureService) -> None:
    illegal = schedule_of([Opt("UPCAST", 7, 4)])
    unknown = Schedule("tile", "{}")
    rows = [f.result(timeout=PATIENCE_S) for f in service.measure([request(schedule=s) for s in (illegal, unknown)])]
    job = CompileJob(REGION, RAW, service.target)
    rows.append(compile_with(service, bad_jobs.compile_too_long_a_kernel, job))
    assert [r.status for r in rows] == [Status.COMPILE_ERROR, Status.COMPILE_ERROR, Status.RESOURCE]
    assert "micro-operations" in rows[2].reason
    assert all(r.reason and "\n" not in r.reason for r in rows)
    assert_goes_on(service)


def test_schedule_that_compiles_for_too_long() -> None:
    (ast,) = kernels_of(empty(64, 96) @ empty(96, 64))
    unrolled = schedule_of([Opt("UPCAST", 0, 8), Opt("UPCAST", 1, 8), Opt("UNROLL", 0, 32)])
    with MeasureService(
        DEV, run_id="slow", compile_workers=1, settings=ServiceSettings(compile_timeout_s=0.5)
    ) as service:
        (future,) = service.measure([request(Region((kernel_of(ast),)), unrolled)])
        assert future.result(timeout=PATIENCE_S).status is Status.COMPILE_TIMEOUT
        service.compile_timeout_s = COMPILE_TIMEOUT_S
        assert_goes_on(service)


def test_nothing_compiles_while_the_device_of_a_cpu_is_timed(service: MeasureService) -> None:
    timing = service._device.submit(bad_jobs.nap, 1.0, timeout_s=PATIENCE_S)
    compiling = service._compile(bad_jobs.nap, 0.0)
    assert compiling.result(timeout=PATIENCE_S) > timing.result(timeout=0)
