"""What disqualifies a sample: a thermal or hardware slow-down, and a time that the hardware cannot reach."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.compat.green import part_used, wanted
from kcg.compat.tiny import dtypes
from kcg.errors import DeviceError
from kcg.kernel.compile import compile_schedule
from kcg.kernel.opts.schedule import RAW
from kcg.measure import child, device_info
from kcg.measure.device_info import LinuxCpuSensors, Neighbours, NoSensors, describe, detect, sensors_for
from kcg.measure.jobs import TimeJob
from kcg.measure.service import floor_s
from kcg.measure.verify import FINAL_SEEDS, CheckedBench
from kcg.types import CacheState, Target
from tests.kernels import empty, example_asts, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET: Target = detect("CPU:X86", 1)[0]
REGION = example_region("matmul_f32")


class Hot:
    """Sensors of a device that is too hot for the first `times` sets of samples."""

    def __init__(self, times: int) -> None:
        self.left, self.sets, self.looks = times, 0, 0

    def begin(self) -> None:
        self.sets += 1

    def look(self) -> None:
        self.looks += 1

    def readings(self) -> tuple[tuple[str, float], ...]:
        return (("temperature_c", 90.0),)

    def slowdown(self) -> str:
        self.left -= 1
        return "thermal slow-down by the driver, at 345 MHz" if self.left >= 0 else ""


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(child, "SLOWDOWN_WAITS_S", (0.0, 0.0, 0.0))
    yield
    child._sensors.clear()
    child._benches.clear()


def time_it(**fields: float) -> child.TimeOutcome:
    return child.time_job(TimeJob(REGION, compile_schedule(REGION, RAW, TARGET), TARGET, samples=5, **fields))  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_waiting")
def test_samples_of_a_slowed_down_device_are_taken_again() -> None:
    hot = child._sensors[TARGET.fingerprint] = Hot(2)
    outcome = time_it()
    assert hot.sets == 3 and hot.looks >= 15
    assert len(outcome.samples_s) == 5 and outcome.noisy == "" and outcome.clocks == (("temperature_c", 90.0),)


@pytest.mark.usefixtures("no_waiting")
def test_a_slow_down_during_the_check_counts_too() -> None:
    hot = child._sensors[TARGET.fingerprint] = Hot(1)
    outcome = time_it(stop_above_s=1e-12, early_stop=True)
    assert len(outcome.samples_s) == 1 and hot.sets == 2, "the first set of samples was thrown away"


@pytest.mark.usefixtures("no_waiting")
def test_a_device_that_stays_slow_is_noisy() -> None:
    hot = child._sensors[TARGET.fingerprint] = Hot(99)
    outcome = time_it()
    assert hot.sets == 4 and outcome.samples_s == () and not outcome.wrong
    assert outcome.noisy == "thermal slow-down by the driver, at 345 MHz"


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0, ""),
        (0x1, ""),
        (0x4, ""),
        (0x10, ""),
        (0x20, "thermal"),
        (0x40, "by the hardware"),
        (0x80, "power brake"),
        (0x8, "hardware slow-down"),
        (0x4 | 0x20, "thermal"),
    ],
)
def test_a_power_cap_disqualifies_nothing(reasons: int, words: str) -> None:
    report = describe(reasons, 1200.0)
    assert (words in report and report.endswith("at 1200 MHz")) if words else report == ""


def test_sensors_of_this_cpu_and_of_an_unknown_device() -> None:
    device_info = sensors_for(TARGET)
    if isinstance(device_info, LinuxCpuSensors):
        device_info.begin()
        assert {name for name, _ in device_info.readings()} >= {"throttle_events"}
        assert device_info.slowdown() == ""
    assert isinstance(sensors_for(replace(TARGET, device="METAL")), NoSensors)


# -- which GPU it is about

BUS_ID = "00000000:3B:00.0"


@pytest.mark.parametrize(
    ("bus_id", "visible", "asked"),
    [
        (BUS_ID, None, BUS_ID),
        (BUS_ID, "1,0", BUS_ID),
        ("", "3,1", "3"),
        ("", "GPU-8a5b0e2c", "GPU-8a5b0e2c"),
        ("", None, "0"),
    ],
)
def test_nvidia_smi_is_asked_about_the_gpu_that_cuda_shows_first(
    bus_id: str, visible: str | None, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its place on the bus, else as the visible GPUs are listed: the tool itself hides none of them."""
    answer_as(f'echo "$@" > {tmp_path}/asked; echo "580.95.05, 700.00, 1980"', tmp_path, monkeypatch)
    monkeypatch.setattr("kcg.compat.hardware.cuda_bus_id", lambda: bus_id)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_info._nvidia_smi() == ("580.95.05", 700.0, 1980.0)
    *_, last = (tmp_path / "asked").read_text().split()
    assert last == f"--id={asked}"


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('echo "580.95.05, [N/A], 1980"', ("580.95.05", None, 1980.0)),
        ('echo "580.95.05, 700.00, [N/A]"', ("580.95.05", 700.0, None)),
        ('echo "No devices were found"', ("", None, None)),
        ('echo "580.95.05, 700.00, 1980"; exit 6', ("", None, None)),
        ("", ("", None, None)),
    ],
)
def test_what_nvidia_smi_does_not_tell_is_left_out(
    script: str, found: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_as(script, tmp_path, monkeypatch)
    monkeypatch.setattr("kcg.compat.hardware.cuda_bus_id", lambda: BUS_ID)
    assert device_info._nvidia_smi() == found


def answer_as(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a shell script be the machine's `nvidia-smi`."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# -- too good to be true

H200 = replace(
    KNOWN_TARGETS["sm_90"], cores=132, clock_limit_mhz=1980.0, bandwidth_bytes_s=4.8e12, cache_bytes=60 << 20
)


def busy(load: float | None, steal: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a machine with 4 cores, this load and so many of 100 ticks of steal time; None: it tells none."""

    def load_average() -> tuple[float, float, float]:
        if load is None:
            raise OSError("not told")
        return load, 0.0, 0.0

    ticks = iter([] if load is None else [[10] * 8, [110 - steal, *[10] * 6, 10 + steal]])
    monkeypatch.setattr(device_info.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(device_info.os, "getloadavg", load_average, raising=False)
    monkeypatch.setattr(device_info, "_cpu_ticks", lambda: next(ticks, []))
    return Neighbours().words()


@pytest.mark.parametrize(
    ("load", "steal", "says"),
    [
        (3.9, 4, ""),
        (4.1, 0, "its load average was 4.1 on 4 cores"),
        (0.0, 7, "its hypervisor gave 7% of its time to others"),
        (9.0, 50, "its load average was 9.0 on 4 cores, and its hypervisor gave 50% of its time to others"),
        (None, 0, ""),
    ],
)
def test_a_busy_machine_is_noticed(load: float | None, steal: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert busy(load, steal, monkeypatch) == says


def test_a_machine_that_has_no_load_average_is_not_called_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(device_info.os, "getloadavg", raising=False)
    monkeypatch.setattr(device_info, "_cpu_ticks", list)
    assert Neighbours().words() == ""


def test_floor_of_a_matmul_is_its_arithmetic() -> None:
    (ast,) = kernels_of(empty(4096, 4096, dtype=dtypes.bfloat16) @ empty(4096, 4096, dtype=dtypes.bfloat16))
    assert floor_s(ast, H200) == pytest.approx(2 * 4096**3 / (132 * 8192 * 1.98e9))
    assert floor_s(ast, H200) < 2 * 4096**3 / 990e12, "below what the data sheet promises"


def test_floor_of_a_sum_is_its_traffic_beyond_the_cache() -> None:
    (ast,) = kernels_of(empty(1 << 28) + empty(1 << 28))
    moved = 3 * 4 * (1 << 28)
    assert floor_s(ast, H200) == pytest.approx((moved - H200.cache_bytes) / 4.8e12)
    assert floor_s(ast, H200, CacheState.WARM) < floor_s(ast, H200)
    (small,) = kernels_of(empty(1 << 20) + 1)
    assert floor_s(small, H200) == 0.0


def test_no_floor_where_nothing_is_known() -> None:
    ast = example_asts()["matmul_f32"]
    assert floor_s(ast, TARGET) == floor_s(ast, replace(H200, clock_limit_mhz=None)) == 0.0
    assert floor_s(example_asts()["embedding"], H200) == 0.0, "a gather reads only what it selects"


def test_no_floor_where_the_shapes_promise_more_than_is_done() -> None:
    assert floor_s(example_asts()["symbolic"], H200) == 0.0, "a variable may be small"
    (grouped,) = kernels_of(empty(8, 1 << 22).reshape(8, 1, 1 << 22).expand(8, 4, 1 << 22).reshape(32, 1 << 22) + 1)
    moved = 4 * (1 << 22) * (8 + 32)
    assert floor_s(grouped, H200) <= (moved - H200.cache_bytes) / 4.8e12 + 1e-12, "what is repeated is read once"


@pytest.mark.usefixtures("no_waiting")
def test_faster_than_the_hardware_is_rejected_and_surprisingly_fast_is_verified() -> None:
    outcome = time_it(floor_s=1.0)
    assert outcome.samples_s == () and outcome.wrong.startswith("faster than the device can be: ")
    outcome = time_it(recheck_below_s=1.0)
    assert outcome.wrong == "" and len(outcome.samples_s) >= 5
    assert "suspicion" in dict(outcome.spent_s) and "suspicion" not in dict(time_it().spent_s)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("most", "rules"), [(1 << 24, [True]), (0, [False])])
def test_what_is_surprisingly_fast_has_every_rule_where_its_reference_is_short(
    most: int, rules: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, check = list[bool](), CheckedBench.check

    def checked(bench: CheckedBench, launch: Any, variables: Any, **how: Any) -> Any:
        if len(tuple(how["seeds"])) == len(FINAL_SEEDS):
            seen.append(how["thorough"])
        return check(bench, launch, variables, **how)

    monkeypatch.setattr(CheckedBench, "check", checked)
    monkeypatch.setattr(child, "SUSPECTED_TERMS", most)
    assert time_it(recheck_below_s=1.0).wrong == "" and seen == rules


def test_who_has_a_part_of_a_machine_says_how_large_its_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCG_CACHE_BYTES", str(8 << 20))
    ours = detect("CPU:X86", 1)[0]
    assert ours == replace(TARGET, cache_bytes=8 << 20) and ours.fingerprint != TARGET.fingerprint
    monkeypatch.delenv("KCG_CACHE_BYTES")
    assert detect("CPU:X86", 1)[0].cache_bytes > 0, "what the system says"
    for wrong in ("8M", "-1", "0"):
        monkeypatch.setenv("KCG_CACHE_BYTES", wrong)
        with pytest.raises(DeviceError, match=f"KCG_CACHE_BYTES={wrong}: write the bytes"):
            detect("CPU:X86", 1)


def test_who_asks_for_a_part_of_a_gpu_writes_how_many_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wanted() is None
    monkeypatch.setenv("KCG_MULTIPROCESSORS", "80")
    assert wanted() == 80
    assert detect("CPU:X86", 1)[0] == TARGET and part_used() is None, "a CPU has none"
    for wrong in ("half", "-8", "0"):
        monkeypatch.setenv("KCG_MULTIPROCESSORS", wrong)
        with pytest.raises(DeviceError, match=f"KCG_MULTIPROCESSORS={wrong}: write how many"):
            wanted()
