"""After a fault nothing is measured until a canary was right and in time; a device that stays strange is given up."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg.errors import DeviceError
from kcg.kernel import compile as compiler
from kcg.kernel.program import Compiled
from kcg.measure import canary, service
from kcg.measure.canary import STICKY_FAULTS, CanaryReading, canary_job, is_sticky
from kcg.measure.pools import ChildDied, DevicePool, ServiceClosed
from kcg.measure.service import MeasureService
from kcg.types import Measurement, Status
from tests.faults import bad_jobs, machine_code
from tests.faults.processes import alive
from tests.faults.relu import COUNT, DEV, REQUEST, binary, compiled_relu, time_code
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kills as Linux does")


class Flight:
    """A pool whose canaries fly as planned, and the log of what ran in which process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan("1")
        job = partial(bad_jobs.planned_canary, str(folder))
        initargs = (DEV, os.getpid(), str(folder / "cache.db"))
        self.pool = DevicePool(DEV, initargs, open_timeout_s=PATIENCE_S, canary_job=job)

    def plan(self, plan: str) -> None:
        (self.folder / "plan").write_text(plan)
        (self.folder / "log").write_text("")

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return self.pool.submit(function, *args, timeout_s=PATIENCE_S)

    def measure(self) -> Future[Any]:
        """A job that leaves `job` in the log and gives its process."""
        return self.submit(bad_jobs.note, str(self.folder), "job")

    def crash(self) -> Future[Any]:
        return self.submit(bad_jobs.note_and_die, str(self.folder))

    @property
    def log(self) -> list[str]:
        """What ran since the last plan, each with the number of its process among those in the log."""
        rows = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        order = list(dict.fromkeys(pid for _, pid in rows))
        return [f"{what} {order.index(pid)}" for what, pid in rows]


@pytest.fixture(scope="module")
def flight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flight]:
    opened = Flight(tmp_path_factory.mktemp("flight"))
    opened.measure().result(timeout=PATIENCE_S)
    try:
        yield opened
    finally:
        opened.pool.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "PAUSES_S", (0.02,) * len(canary.PAUSES_S))


def test_canary_is_right_and_takes_a_moment() -> None:
    reading = canary_job(DEV)
    assert reading.wrong == reading.fault() == ""
    assert len(reading.samples_s) == canary.SAMPLES and reading.seconds == np.median(reading.samples_s)
    assert 0 < reading.seconds < math.inf and canary.CPU_BYTES <= 4 << 20, "a millisecond, where nothing else runs"
    assert CanaryReading(float("nan"), ()).fault() and CanaryReading(0.0, ()).fault()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (machine_code.RETURN, "1048576 of 1048576 elements are wrong, element 0 is -1, not 7"),
        (machine_code.zeros((1 << 20) + 1), "1048576 of 1048576 elements are wrong, element 0 is 0, not 7"),
    ],
)
def test_canary_sees_what_a_broken_device_computes(monkeypatch: pytest.MonkeyPatch, code: bytes, words: str) -> None:
    compile_right = compiler.compile_schedule

    def broken(*args: Any, **kwargs: Any) -> Compiled:
        return replace(compile_right(*args, **kwargs), binary=code)

    monkeypatch.setattr(compiler, "compile_schedule", broken)
    reading = canary_job(DEV)
    assert reading.wrong == reading.fault() == words


def test_a_later_child_loads_what_the_first_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled for another target is not loaded."""
    first = canary_job(DEV).compiled
    assert first is not None
    elsewhere = replace(first, target=replace(first.target, model="another"))

    def none(*args: Any, **kwargs: Any) -> Compiled:
        raise AssertionError("it compiles")

    monkeypatch.setattr(compiler, "compile_schedule", none)
    again = canary_job(DEV, first)
    assert again.fault() == "" and again.compiled is first
    with pytest.raises(AssertionError, match="it compiles"):
        canary_job(DEV, elsewhere)


def test_healthy_run_pays_one_canary() -> None:
    with MeasureService(DEV, run_id="healthy", compile_workers=1) as opened:
        relu = compiled_relu(opened)
        for variant in range(3):
            assert time_code(opened, machine_code.right(COUNT, variant), relu).status is Status.OK
        assert opened._device.canaries == 1 and opened._device.last_recovery_s is None

        assert time_code(opened, machine_code.SEGFAULT, relu).status is Status.WORKER_DIED
        assert time_code(opened, machine_code.right(COUNT, 3), relu).status is Status.OK
        assert time_code(opened, machine_code.zeros(COUNT + 1), relu).status is Status.WRONG  # writes past the end
        assert opened._device.canaries >= 2, "none flies before there is something to measure"
        flown = opened._device.canaries
        assert time_code(opened, machine_code.right(COUNT, 4), relu).status is Status.OK
        assert opened._device.canaries > flown
        assert opened._device.last_recovery_s is not None and opened._device.last_recovery_s > 0


def test_every_child_flies_its_canary_first(flight: Flight) -> None:
    flight.plan("1")
    replaced, canaries = flight.pool.replaced, flight.pool.canaries
    waiting = [flight.measure(), flight.crash(), flight.measure(), flight.measure()]
    assert isinstance(waiting[1].exception(timeout=PATIENCE_S), ChildDied)
    assert waiting[2].result(timeout=PATIENCE_S) == waiting[3].result(timeout=PATIENCE_S) != waiting[0].result()
    recovered = flight.pool.last_recovery_s
    assert recovered is not None and recovered > 0

    # no fault: a fresh child was asked for
    flight.pool.submit_here(flight.pool.replace_child).result(timeout=PATIENCE_S)
    flight.measure().result(timeout=PATIENCE_S)
    assert flight.pool.last_recovery_s == recovered

    # an idle child that ends as if it was meant to: the pool below starts another one by itself
    left = flight.submit(bad_jobs.leave_quietly, str(flight.folder / "asked")).result(timeout=PATIENCE_S)
    (flight.folder / "asked").touch()
    assert wait_until(lambda: not alive({left}))
    time.sleep(0.5)
    flight.measure().result(timeout=PATIENCE_S)
    assert flight.log == [
        "job 0",
        "crash 0",
        "canary 1",
        "job 1",
        "job 1",
        "canary 2",
        "job 2",
        "canary 3",
        "job 3",
    ]
    assert (flight.pool.canaries, flight.pool.replaced) == (canaries + 3, replaced + 3)


@pytest.mark.usefixtures("short_pauses")
def test_slow_canary_is_waited_for(flight: Flight) -> None:
    flight.plan("3.1 9 2.9 1")
    flight.crash().exception(timeout=PATIENCE_S)
    flight.measure().result(timeout=PATIENCE_S)
    assert flight.log == ["crash 0", "canary 1", "canary 1", "canary 1", "job 1"]


def test_canary_that_fails_gets_one_more_child(flight: Flight) -> None:
    for fault in ("wrong", "raise"):
        flight.plan(f"{fault} 1")
        flight.crash().exception(timeout=PATIENCE_S)
        flight.measure().result(timeout=PATIENCE_S)
        assert flight.log == ["crash 0", "canary 1", "canary 2", "job 2"], fault


def test_canary_that_fails_twice_is_the_end(flight: Flight) -> None:
    flight.plan("die wrong")
    flight.crash().exception(timeout=PATIENCE_S)
    with pytest.raises(DeviceError, match=r"^CPU:X86 cannot be trusted: its canary is wrong: element 7 is 0, not 28$"):
        flight.measure().result(timeout=PATIENCE_S)
    assert flight.log == ["crash 0", "canary 1", "canary 2"]
    flight.plan("1")
    assert flight.measure().result(timeout=PATIENCE_S), "a later request gets a chance of its own"


@pytest.mark.usefixtures("short_pauses")
def test_device_that_stays_slow_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits then fails at once and is no row of the journal."""
    (tmp_path / "plan").write_text("1 50")
    job = partial(bad_jobs.planned_canary, str(tmp_path))
    monkeypatch.setattr(service, "DevicePool", partial(DevicePool, canary_job=job))
    recorded: list[Measurement] = []
    with MeasureService(DEV, run_id="given up", compile_workers=1) as opened:
        relu = compiled_relu(opened)
        opened.on_measurement = recorded.append
        codes = [machine_code.SEGFAULT, *(machine_code.right(COUNT, variant) for variant in range(3))]
        rows = [
            f.result(timeout=PATIENCE_S) for f in [opened.measure_compiled(REQUEST, binary(c, relu)) for c in codes]
        ]
        assert [row.status for row in rows] == [Status.WORKER_DIED] * 4
        slow = "its canary takes 50 ms, and not 1 ms as in the first child (at most 3 times that)"
        assert {row.reason for row in rows[1:]} == {f"CPU:X86 cannot be trusted: {slow}"}
        assert recorded == rows[:1], "only the crash says something of its schedule"
        assert str(opened.device_error) == rows[1].reason
        assert opened._device.canaries == 1 + 1 + len(canary.PAUSES_S)


@pytest.mark.usefixtures("short_pauses")
def test_device_is_looked_at_for_a_process_that_failed_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow CPU is one that others use; one that fails or hangs is lost, and no more time is spent on it."""
    plan = tmp_path / "plan"
    plan.write_text("1")
    job = partial(bad_jobs.planned_canary, str(tmp_path))
    monkeypatch.setattr(service, "DevicePool", partial(DevicePool, canary_job=job))
    with MeasureService(DEV, run_id="looked at", compile_workers=1) as opened:
        assert opened.facts and opened._device.reference is not None
    plan.write_text("50")
    opened.check_device()
    with monkeypatch.context() as patched:
        patched.setattr(opened, "_on_cpu", False)  # as of a GPU, which nobody else uses
        with pytest.raises(DeviceError, match="its canary takes 50 ms, and not 1 ms as in the first child"):
            opened.check_device()
    plan.write_text("wrong")
    with pytest.raises(DeviceError, match=f"^{DEV} cannot be trusted: its canary is wrong: element 7 is 0, not 28"):
        opened.check_device()
    plan.write_text("hang")
    monkeypatch.setattr(opened, "_open_timeout_s", 3.0)
    monkeypatch.setattr(canary, "TIMEOUT_S", bad_jobs.FOR_EVER_S)
    with pytest.raises(
        DeviceError, match=f"^{DEV} (cannot be trusted: a new child did not answer|did not open) within 3 s"
    ):
        opened.check_device()


def test_pool_closes_while_it_waits_for_a_slow_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "PAUSES_S", (60.0,))
    flight = Flight(tmp_path)
    flight.plan("1 50")
    flight.crash().exception(timeout=PATIENCE_S)
    late = flight.measure()
    assert wait_until(lambda: flight.log[-1] == "canary 1")
    flight.pool.close()
    with pytest.raises(ServiceClosed):
        late.result(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("text", "sticky"),
    [
        ("CUDA Error 700, an illegal memory access was encountered", True),
        ("RuntimeError: CUDA Error 702, the launch timed out and was terminated", True),
        ("CUDA Error 716, misaligned address", True),
        ("CUDA Error 719, unspecified launch failure", True),
        ("CUDA Error 999, unknown error", True),
        ("CUDA Error 46, CUDA-capable device(s) is/are busy or unavailable", True),
        ("module load failed with status code 700: CUDA_ERROR_ILLEGAL_ADDRESS", True),
        ("module load failed with status code 200: CUDA_ERROR_INVALID_IMAGE", False),
        ("CUDA Error 7001, no such error", False),
        ("CUDA Error 70, no such error", False),
        ("CUDA Error 1, invalid argument", False),
        ("CUDA Error 2, out of memory", False),
        ("CUDA Error 701, too many resources requested for launch", False),
        ("element 700 of buffer 0 is nan", False),
    ],
)
def test_which_errors_spoil_the_child(text: str, sticky: bool) -> None:
    assert is_sticky(RuntimeError(text)) is sticky


def test_codes_are_those_of_the_driver() -> None:
    from tinygrad.runtime.autogen import cuda

    names = cuda.enum_cudaError_enum
    assert {226, 721} | set(names) >= STICKY_FAULTS  # these two are younger than tinygrad's list
    for name in ("OUT_OF_MEMORY", "INVALID_VALUE", "INVALID_IMAGE", "LAUNCH_OUT_OF_RESOURCES", "INVALID_PTX"):
        assert getattr(cuda, f"CUDA_ERROR_{name}") not in STICKY_FAULTS


def test_lost_context_replaces_the_child_and_a_refused_launch_does_not(flight: Flight) -> None:
    flight.plan("1")
    for text in ("CUDA Error 701, too many resources requested", "CUDA Error 700, an illegal memory access"):
        flight.measure().result(timeout=PATIENCE_S)
        assert text in str(flight.submit(bad_jobs.raise_text, text).exception(timeout=PATIENCE_S))
    flight.measure().result(timeout=PATIENCE_S)
    assert flight.log == ["job 0", "job 0", "canary 1", "job 1"]
