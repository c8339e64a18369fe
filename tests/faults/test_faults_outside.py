"""What befalls kcg's processes from outside: a server is stopped or killed, a child is killed, a pool breaks."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.errors import DeviceError, ExitCode
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.measure import pools
from kcg.measure.isolated import IsolatedProcess, Overdue
from kcg.measure.lifetime import guardians_of
from kcg.measure.pools import Killed
from kcg.measure.service import MeasureService
from kcg.optimize import run as run_module
from kcg.optimize.__main__ import run
from kcg.optimize.device import Device
from kcg.optimize.work import RegionWork
from kcg.report.result import read_result
from kcg.types import Measurement, Status, Workload
from tests.faults import bad_jobs
from tests.faults.processes import alive, below, fork_servers
from tests.faults.relu import DEV, request
from tests.faults.test_faults_canary import Flight
from tests.faults.test_faults_lost import KERNELS, SCRIPTED
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are fork servers on Linux only")


@pytest.fixture
def service() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="outside", compile_workers=1) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_failures_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever became of the servers of other tests, and when."""
    monkeypatch.setattr(pools._server, "_failed", 0)
    monkeypatch.setattr(pools._server, "_killed_s", -math.inf)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody continues what is stopped here."""
    monkeypatch.setattr(pools, "STOPPED_S", 0.3)
    monkeypatch.setattr(pools, "REPORT_S", 0.1)


def server() -> int:
    """The fork server of this process."""
    (found,) = fork_servers(below(os.getpid()))
    return found


def assert_goes_on(service: MeasureService, trial: int = 0) -> None:
    (future,) = service.measure([request(trial=trial)])
    row = future.result(timeout=PATIENCE_S)
    assert (row.status, row.reason) == (Status.OK, "")


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_stopped_fork_server_is_replaced(service: MeasureService) -> None:
    """While children live that it forked, and when the next one is wanted of it."""
    assert_goes_on(service)
    old = server()
    os.kill(old, signal.SIGSTOP)
    service.fresh_child()
    assert_goes_on(service, trial=1)
    assert server() != old and not alive({old})


@pytest.mark.usefixtures("soon")
def test_end_of_a_child_is_seen_though_its_server_is_stopped(service: MeasureService) -> None:
    """A stopped server buries nobody, and tells nobody how a child ended."""
    child = service._device.submit(bad_jobs.nap, 0.0, timeout_s=PATIENCE_S)
    child.result(timeout=PATIENCE_S)
    old = server()
    os.kill(old, signal.SIGSTOP)
    killed = service._device.submit(
        bad_jobs.kill_itself, None, timeout_s=bad_jobs.FOR_EVER_S
    )  # its own time says nothing
    with pytest.raises(Killed, match="SIGKILL"):
        killed.result(timeout=PATIENCE_S)
    assert server() != old


@pytest.mark.slow
def test_stopped_fork_server_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Ctrl-C ends all, the stopped server too."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.busy_service", "stopped"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    family = below(process.pid)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "Traceback" not in printed
    assert wait_until(lambda: not alive(family)), alive(family)


@pytest.mark.slow
def test_killed_parent_of_a_stopped_fork_server_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.busy_service", "busy"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    family = below(process.pid)
    (stopped,) = fork_servers(family)
    os.kill(stopped, signal.SIGSTOP)
    process.kill()
    assert wait_until(lambda: not alive(family)), alive(family)
    process.communicate()


def test_killed_fork_server_is_replaced() -> None:
    """At the start, and while a child that it forked is at work: the job gets another child."""
    with MeasureService(DEV, run_id="outside", compile_workers=1) as service:
        assert wait_until(lambda: bool(fork_servers(below(os.getpid()))))
        first = server()
        os.kill(first, signal.SIGKILL)
        assert service.target
        second = server()
        assert second != first
        job = service._device.submit(bad_jobs.nap, 0.5, timeout_s=PATIENCE_S)
        assert wait_until(lambda: service._device._busy is not None and service._device._busy.running())
        os.kill(second, signal.SIGKILL)
        assert job.result(timeout=PATIENCE_S) > 0
        assert_goes_on(service)


@pytest.mark.slow
def test_server_that_fails_again_and_again_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools._server, "_failed", pools.SERVERS)
    with MeasureService(DEV, run_id="outside", compile_workers=1) as service:
        assert_goes_on(service)
        assert type(service._device._pool._pool_manager.worker_manager.mp_context) is pools._Spawning


@pytest.fixture
def flight(tmp_path: Path) -> Iterator[Flight]:
    opened = Flight(tmp_path)
    opened.measure().result(timeout=PATIENCE_S)
    opened.plan("1")
    yield opened
    opened.pool.close()


def test_killed_child_gets_another_chance_before_its_job_is_blamed(flight: Flight) -> None:
    folder = str(flight.folder)
    assert flight.submit(bad_jobs.note_and_be_killed, folder, 1).result(timeout=PATIENCE_S)
    assert flight.log == ["killed 0", "canary 1", "killed 1"]
    flight.plan("1")
    with pytest.raises(Killed, match="its process died of SIGKILL"):
        flight.submit(bad_jobs.note_and_be_killed, folder, 9).result(timeout=PATIENCE_S)
    assert flight.log == ["killed 0", "canary 1", "killed 1"], "twice, and no more"


def test_killed_compiler_gets_another_chance(service: MeasureService, tmp_path: Path) -> None:
    job = service._compile(bad_jobs.note_and_be_killed, str(tmp_path), 1)
    assert job.result(timeout=PATIENCE_S) and (tmp_path / "log").read_text().count("killed") == 2


def break_pool(pool: Any) -> None:
    """As a pool breaks by itself: it cannot talk to its processes any more."""
    pool._pool_manager.worker_manager.close_channels()


def test_pool_that_breaks_judges_nothing(service: MeasureService) -> None:
    """Nor is the moment in which it does."""
    assert_goes_on(service)
    for breaks in (break_pool, lambda pool: setattr(pool._context, "status", type(pool._context.status).ERROR)):
        for pool in (service._device._pool, service._compilers._pool):
            breaks(pool)
        assert_goes_on(service, trial=1)
    job = service._device.submit(bad_jobs.nap, 0.5, timeout_s=PATIENCE_S)
    assert wait_until(lambda: service._device._busy is not None and service._device._busy.running())
    break_pool(service._device._pool)
    assert job.result(timeout=PATIENCE_S) > 0


def test_where_no_process_can_be_started_the_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no kernel: the run ends, and can go on."""
    with MeasureService(DEV, run_id="outside", compile_workers=1) as service:
        assert service.target
        monkeypatch.setattr(pools, "_Pool", lambda **_: Unstartable())
        row = service.measure([request()])[0].result(timeout=PATIENCE_S)
        assert row.status is Status.WORKER_DIED and "no process can be started that compiles" in row.reason
        assert isinstance(service.device_error, DeviceError)
        assert service.device_error.exit_code == ExitCode.DEVICE_UNUSABLE


class Unstartable(pools.ProcessPool):  # type: ignore[misc]
    """A pool on a system that forks no more."""

    def _start_pool(self) -> None:
        raise pools.BrokenProcessPool from OSError(11, "Resource temporarily unavailable")


def test_process_that_reads_nothing_is_ended_in_time() -> None:
    """A job that is larger than what a pipe holds, for one that was stopped."""
    with IsolatedProcess("tests.faults.busy_service", dev=DEV, label="stopped") as process:
        os.kill(process._process.pid, signal.SIGSTOP)
        with pytest.raises(Overdue, match=r"the job did not finish in 0.2 s"):
            process.run({"long": "x" * (1 << 20)}, timeout_s=0.2, name="the job")


class Deleting(Device):
    """A device whose journal somebody deletes when its first kernel is measured, on a machine with much to do."""

    def plan(self, workload: Workload) -> list[RegionWork]:
        self._neighbours._load = 1e3
        return super().plan(workload)

    def _record(self, measurement: Measurement) -> None:
        super()._record(measurement)
        (self.folder / "journal.sqlite").unlink(missing_ok=True)


def test_deleted_journal_and_busy_machine_are_reported_and_the_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "Device", Deleting)
    settings = replace(SCRIPTED, folder=tmp_path, measurements=KERNELS + 1)
    code = run(settings, dry_run=False, json_mode=False, quiet=False)
    assert code in (ExitCode.OK, ExitCode.NOTHING_IMPROVED)
    printed, result = capfd.readouterr().err.splitlines(), read_result(tmp_path / "RESULT.json")
    for words in (f"the journal {tmp_path}/journal.sqlite was deleted", "this machine is busy (its load average was"):
        assert [line for line in printed if words in line] == [f"kcg: {w}" for w in result.warnings if words in w], (
            printed
        )
        assert sum(words in line for line in printed) == 1, printed
    assert printed.index(next(s for s in printed if "busy" in s)) < printed.index(
        next(s for s in printed if "searching" in s)
    )


STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` is respected
from kcg.cli import guarded
def body():
    try:
        print("ready", flush=True)
        time.sleep(36_000)
    finally:
        print("cleaning", flush=True)
        time.sleep(36_000)
guarded(body)
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_second_interrupt_ends_at_once(first: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(first)
    process.send_signal(first)  # `timeout` tells the process, and then its group
    assert process.stdout.readline() == "cleaning\n"

    def ended() -> bool:
        process.send_signal(signal.SIGINT)  # a third is no more than a second: it may come too soon to be one
        return process.poll() is not None

    assert wait_until(ended)
    assert process.returncode == ExitCode.INTERRUPTED
    assert process.communicate()[1] == "kcg: interrupted again: ended at once\n"


@pytest.mark.parametrize("which", ["device", "compiler"])
@pytest.mark.usefixtures("soon")
def test_a_stopped_child_is_replaced_and_its_job_not_blamed(
    service: MeasureService, which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the deadline of the job, which a child that was stopped while it was idle never began."""
    monkeypatch.setattr(service, "compile_timeout_s", bad_jobs.FOR_EVER_S)
    monkeypatch.setattr(service, "timing_timeout_s", bad_jobs.FOR_EVER_S)
    assert_goes_on(service)
    pool = service._device if which == "device" else service._compilers
    (pid,) = pool._pool._pool_manager.worker_manager.workers
    stopped = {pid, *guardians_of([pid])}  # its guardian too
    assert len(stopped) == 2
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    other = schedule_of([Opt("UPCAST", 0, 4)])  # to be compiled, and timed
    (future,) = service.measure([request(schedule=other)])
    row = future.result(timeout=PATIENCE_S)
    assert (row.status, row.reason) == (Status.OK, "")
    assert "a child process is stopped: it is killed" in caplog.text
    assert wait_until(lambda: not alive(stopped))
