"""No child outlives its service, however that ends, and no child prints on Ctrl-C."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.errors import DeviceError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import opts_of
from kcg.measure.jobs import TinyBeamJob
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import MeasureService, ServiceSettings
from kcg.types import Measurement, Region, Status
from tests.faults import bad_jobs, busy_service, machine_code
from tests.faults.processes import alive, below, descendants, fork_servers, guardians, holding
from tests.faults.relu import COUNT, DEV, REGION, REQUEST, binary, compiled_by, compiled_relu, request
from tests.kernels import empty, kernels_of
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def start(mode: str, folder: Path) -> subprocess.Popen[str]:
    """A measuring process in a session of its own; what it cannot tidy up when it is killed stays in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.busy_service", *mode.split()],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize(
    "mode",
    [
        "native",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("busy", "busy afresh", "native afresh", "beam")),
    ],
)
def test_killed_parent_leaves_no_child(mode: str, tmp_path: Path) -> None:
    process = start(mode, tmp_path)
    children = set(json.loads(first_line(process)))
    assert len(children) >= 4 and alive(children) == children
    children |= (servers := fork_servers(below(process.pid)))
    assert len(servers) == ("afresh" not in mode)
    process.kill()
    assert wait_until(lambda: not alive(children)), alive(children)
    process.communicate()


@pytest.mark.parametrize("mode", ["busy", pytest.param("busy afresh", marks=pytest.mark.slow)])
def test_interrupt_ends_it_quietly(mode: str, tmp_path: Path) -> None:
    process = start(mode, tmp_path)
    children = set(json.loads(first_line(process)))
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, printed) == (130, "")
    assert wait_until(lambda: not alive(children)), "a guardian sees the end of its child a moment later"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["starting", "starting afresh"])
def test_interrupt_while_children_start_prints_nothing(mode: str, tmp_path: Path) -> None:
    process = start(mode, tmp_path)
    _, printed = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, printed) == (130, "")


def test_close_in_the_middle_ends_every_future_and_child() -> None:
    before = descendants(os.getpid())
    recorded: list[Measurement] = []
    with MeasureService(
        DEV, run_id="close", compile_workers=1, settings=ServiceSettings(compile_timeout_s=bad_jobs.FOR_EVER_S)
    ) as service:
        relu, endless = compiled_relu(service), replace(REQUEST, timeout_s=bad_jobs.FOR_EVER_S)
        service.on_measurement = recorded.append
        device = [
            service.measure_compiled(endless, binary(code, relu))
            for code in (machine_code.HANG, machine_code.right(COUNT), machine_code.HANG)
        ]
        compiling = [compiled_by(service, bad_jobs.loop_in_python, None) for _ in range(3)]
        paired: Future[object] = service._device.submit(bad_jobs.nap, 0.0, timeout_s=PATIENCE_S)
        assert wait_until(lambda: service._device._busy is not None and service._device._busy.running())
        time.sleep(0.2)
    assert not service._device._thread.is_alive(), "it did not wait for what never ends"
    for future in device + compiling:
        row = future.result(timeout=PATIENCE_S)
        assert row.status is Status.WORKER_DIED and "closed" in row.reason
    assert recorded == [], "what was never measured is not a failure of the schedule"
    with pytest.raises(ServiceClosed):
        paired.result(timeout=PATIENCE_S)
    assert not descendants(os.getpid()) - before

    (late,) = service.measure([request()])
    assert "closed" in late.result(timeout=PATIENCE_S).reason
    service.close()


def test_close_at_once() -> None:
    service = MeasureService(DEV, run_id="close", compile_workers=1)
    service.close()
    assert not service._device._thread.is_alive()
    with pytest.raises(ServiceClosed):
        _ = service.target


@pytest.mark.slow
def test_device_that_does_not_open() -> None:
    """It says so at once: who is waited for in vain `did not open within` some time."""
    with (
        MeasureService("METAL", run_id="absent") as service,
        pytest.raises(DeviceError, match=r"^METAL does not open: "),
    ):
        _ = service.target


@pytest.fixture
def compilers_of_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tinygrad's BEAM compile in processes of its own here too."""
    monkeypatch.setenv("PARALLEL", "2")


@pytest.mark.slow
@pytest.mark.usefixtures("compilers_of_beam")
def test_beam_ends_in_time_with_all_its_processes() -> None:
    with MeasureService(DEV, run_id="beam", compile_workers=1) as service:
        small = service.tiny_beam(TinyBeamJob(REGION, service.target, 1), timeout_s=PATIENCE_S).result(
            timeout=PATIENCE_S
        )
        assert small.binaries >= 1 and opts_of(small.schedule) is not None and small.wall_s > 0
        assert wait_until(lambda: not holding(b"kcg-beam-"))  # what is killed takes a moment to end
        (row,) = (f.result(timeout=PATIENCE_S) for f in service.measure([request(schedule=small.schedule)]))
        assert row.status is Status.OK

        (ast,) = kernels_of(empty(64, 96) @ empty(96, 64))
        job = TinyBeamJob(Region((kernel_of(ast),)), service.target, busy_service.WIDTH)
        for limit_s in (2.0, 14.0, 140.0):  # a longer one where this machine is busy: BEAM starts compilers
            late = service.tiny_beam(job, timeout_s=limit_s)
            compiles = wait_until(lambda: len(holding(b"kcg-beam-")) >= 3, seconds=limit_s)
            with pytest.raises(TimeoutError, match=rf"BEAM={job.width} did not finish in {limit_s:.3g} s"):
                late.result(timeout=PATIENCE_S)
            assert wait_until(lambda: not holding(b"kcg-beam-"))
            if compiles:
                break
        assert compiles

        stopped = service.tiny_beam(job, timeout_s=PATIENCE_S)
        assert wait_until(lambda: bool(holding(b"kcg-beam-")))
    with pytest.raises(ServiceClosed):
        stopped.result(timeout=PATIENCE_S)
    assert wait_until(lambda: not holding(b"kcg-beam-"))


# -- guardians

GUARDED = """
import atexit, os, signal, subprocess, sys, threading, time
from kcg.measure import lifetime
how, watch = sys.argv[1:]
if watch == "pipe":
    del os.pidfd_open
threading.Thread(target=time.sleep, args=(36_000,), daemon=True).start()
atexit.register(print, "atexit")
os.setpgid(0, 0)
print("unwritten", end=" ")  # in a buffer that the guardian has a copy of
try:
    lifetime.guard()
finally:
    print("guarded by", len(lifetime.guardians_of([os.getpid()])))
process = subprocess.Popen(["sleep", "36000"])
sys.stdout.flush()
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["kill", "return"])
@pytest.mark.parametrize("watch", ["pidfd", "pipe"])
def test_guardian_ends_what_its_child_started_and_nothing_else_of_it_runs(how: str, watch: str) -> None:
    """Also where threads run, of which newer Pythons warn. It is there before anything is started."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", GUARDED, how, watch],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # ends when nobody can write there any more: neither the guardian nor the process that it ends
    printed, errors = process.communicate(timeout=PATIENCE_S)
    assert errors == ""
    assert printed == "unwritten guarded by 1\n" + ("atexit\n" if how == "return" else "")
    assert process.returncode == (-signal.SIGKILL if how == "kill" else 0)


def test_a_guardian_that_is_stopped_ends_with_the_service(tmp_path: Path) -> None:
    with MeasureService(DEV, run_id="stopped guardian", compile_workers=1) as service:
        family = service._device.submit(bad_jobs.start_family, str(tmp_path / "asked"), timeout_s=PATIENCE_S).result()
        stopped = guardians(os.getpid())
        assert stopped & family
        for guardian in stopped:
            os.kill(guardian, signal.SIGSTOP)
    assert wait_until(lambda: not alive(family | stopped)), alive(family | stopped)


def test_device_child_takes_with_it_what_it_started(tmp_path: Path) -> None:
    with MeasureService(DEV, run_id="family", compile_workers=1) as service:
        family = service._device.submit(bad_jobs.start_family, str(tmp_path / "asked"), timeout_s=PATIENCE_S).result()
        assert alive(family) == family and len(family) == 4
        service.fresh_child()
        assert wait_until(lambda: not alive(family)), alive(family)

        for limit_s in (1.5, 15.0, PATIENCE_S):  # a longer one where this machine is busy
            stuck = service._device.submit(bad_jobs.start_family_and_hold, str(tmp_path / "stuck"), timeout_s=limit_s)
            with pytest.raises(TimeoutError):
                stuck.result()
            if (tmp_path / "stuck").exists():
                break
        held = set(json.loads((tmp_path / "stuck").read_text()))
        assert wait_until(lambda: not alive(held)), alive(held)


def test_guardian_is_not_talked_into_ending() -> None:
    with MeasureService(DEV, run_id="guardian", compile_workers=1) as service:
        assert service.target
        found = guardians(os.getpid())
        assert found, "of the device's child, and of a compiler that has begun"
        for guardian, number in itertools.product(found, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            os.kill(guardian, number)
        time.sleep(0.1)
        assert alive(found) == found
        for guardian in found:
            assert os.getsid(guardian) == guardian
            held = [path.readlink() for path in Path(f"/proc/{guardian}/fd").iterdir()]
            assert len(held) <= 4 and all("pipe:" in str(h) or "pidfd" in str(h) for h in held), held
    assert wait_until(lambda: not alive(found))


def test_children_have_groups_of_their_own_and_no_terminal() -> None:
    with MeasureService(DEV, run_id="group", compile_workers=1) as service:
        for future in (
            service._device.submit(bad_jobs.surroundings, timeout_s=PATIENCE_S),
            service._compile(bad_jobs.surroundings),
        ):
            seen = future.result(timeout=PATIENCE_S)
            assert seen["group"] == seen["inner group"] == seen["pid"] != os.getpgid(0)
            assert seen["stdin"] == seen["inner stdin"] == os.devnull
