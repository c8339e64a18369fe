"""On an NVIDIA GPU: a kernel that hangs, faults, wants too much or computes something else, and what comes after it.

Each test records how long the fault took and how long until the next correct kernel was measured; those figures are
kept by `evaluation/measure/faults_gpu.py`. This process opens no GPU: all of it happens in the children of the service.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.program import Compiled
from kcg.measure import child
from kcg.measure.inputs import RECIPE, make_inputs, to_values
from kcg.measure.jobs import TimeJob
from kcg.measure.service import MeasureService, ServiceSettings
from kcg.types import CacheState, Measurement, Region, Schedule, Status
from tests.faults import cuda_code
from tests.faults.cuda_code import DEV, Code, binary
from tests.faults.processes import alive, descendants
from tests.faults.relu import COUNT, REQUEST, compiled_by, compiled_relu, request, sampled_elements
from tests.kernels import empty, kernels_of
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.gpu

TIMEOUT_S = 8.0  # a fresh child compiles what empties the cache before its first sample
RECOVERED_S = 30.0  # what kcg promises, from the end of a fault to the next measurement
SAMPLES = 10
RELU = replace(REQUEST, samples=SAMPLES)
Record = Callable[[str, object], None]
_variants = count(1)


class Bench:
    """A service and the fault kernels that its compilers made."""

    def __init__(self, service: MeasureService) -> None:
        assert cuda_code.COUNT == COUNT
        self.service = service
        self.like: Compiled = compiled_relu(service)
        self._compiled: dict[tuple[str, bool], tuple[bytes, bytes]] = {}

    def make(self, code: Code) -> Compiled:
        """A binary of `code` that was not measured before."""
        key = (code.source, code.virtual)
        if key not in self._compiled:
            future = self.service._compile(cuda_code.compile_code, code, self.service.target)
            self._compiled[key] = future.result(timeout=PATIENCE_S)
        return binary(code, self._compiled[key], self.like, variant=next(_variants))

    def time(self, code: Code) -> Future[Measurement]:
        return self.service.measure_compiled(RELU, self.make(code))

    def assert_right(self) -> float:
        """A correct binary that was not measured before is measured; the median in seconds."""
        row = self.time(cuda_code.RIGHT).result(timeout=PATIENCE_S)
        assert (row.status, row.reason, row.checked, len(row.samples_s)) == (Status.OK, "", True, SAMPLES)
        assert all(0 < sample < 0.05 for sample in row.samples_s), "4096 elements take microseconds"
        return row.median_s

    def judge(self, name: str, record: Record, provoke: Callable[[], Measurement]) -> Measurement:
        """Provoke a fault, see a correct kernel measured after it, and record how long both took."""
        begin = time.monotonic()
        row = provoke()
        failed = time.monotonic()
        self.assert_right()
        recovered = time.monotonic()
        facts = {"fault": name, "status": str(row.status), "reason": row.reason}
        for key, value in {**facts, "fault_s": failed - begin, "recovery_s": recovered - failed}.items():
            record(key, value if isinstance(value, str) else f"{value:.3f}")
        assert row.reason and "\n" not in row.reason and len(row.reason) <= 320
        assert row.samples_s == ()
        assert recovered - failed < RECOVERED_S
        return row


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with MeasureService(
        DEV, run_id="faults", compile_workers=2, settings=ServiceSettings(timing_timeout_s=TIMEOUT_S)
    ) as service:
        warm = Bench(service)
        warm.assert_right()
        yield warm


def test_what_it_runs_on(bench: Bench, record_property: Record) -> None:
    target, toolchain = bench.service.facts
    assert (target.device, target.renderer) == ("CUDA", "CUDA")
    for name, value in (("model", target.model), ("driver", toolchain.driver), ("compiler", toolchain.compiler)):
        record_property(name, value)


def test_hand_written_code_is_right(bench: Bench) -> None:
    bench.assert_right()
    text_alone = replace(bench.make(cuda_code.RIGHT), image=b"")
    assert bench.service.measure_compiled(RELU, text_alone).result(timeout=PATIENCE_S).status is Status.OK


@dataclass(frozen=True)
class Fault:
    """What a kernel must end with. `replaced`: whether what it ran in is not to be trusted any more."""

    code: Code
    status: tuple[Status, ...]
    words: str
    replaced: bool


SAMPLED = max(sampled_elements() - {0, COUNT - 1})
UNSAMPLED = [i for i in range(1, COUNT - 1) if i not in sampled_elements()]
NAN = "__int_as_float(0x7fc00000)"
LAUNCH, WRONG = (Status.LAUNCH_ERROR,), (Status.WRONG,)

FAULTS = {
    "infinite loop": Fault(cuda_code.HANG, (Status.TIMEOUT,), "no result within 8 s", True),
    "infinite loop on every processor": Fault(
        cuda_code.HANG_EVERYWHERE, (Status.TIMEOUT,), "no result within 8 s", True
    ),
    "illegal address, written": Fault(cuda_code.WRITE_NOWHERE, LAUNCH, "CUDA Error 700", True),
    "illegal address, read": Fault(cuda_code.READ_NOWHERE, LAUNCH, "CUDA Error 700", True),
    "illegal address, far away": Fault(cuda_code.WRITE_FAR, LAUNCH, "CUDA Error 7", True),
    "misaligned access": Fault(cuda_code.MISALIGNED, LAUNCH, "CUDA Error 716", True),
    "trap instruction": Fault(cuda_code.TRAP, LAUNCH, "CUDA Error 71", True),
    "fails on its fifth launch": Fault(cuda_code.FIFTH_LAUNCH, LAUNCH, "CUDA Error 700", True),
    "too many threads": Fault(cuda_code.TOO_MANY_THREADS, (*LAUNCH, Status.RESOURCE), "CUDA Error", False),
    "too many blocks": Fault(cuda_code.TOO_MANY_BLOCKS, (*LAUNCH, Status.RESOURCE), "CUDA Error", False),
    "too many registers": Fault(cuda_code.TOO_MANY_REGISTERS, (Status.RESOURCE,), "CUDA Error 701", False),
    "too much shared memory, seen by the driver": Fault(
        # all that the driver says is that the text is not valid
        replace(cuda_code.TOO_MUCH_SHARED, virtual=True), (*LAUNCH, Status.RESOURCE), "module load failed", False,
    ),
    "writes nothing": Fault(cuda_code.NOTHING, WRONG, "is nan, not", False),
    "half the grid": Fault(cuda_code.HALF, WRONG, "is nan, not", False),
    "all zeros": Fault(cuda_code.ZEROS, WRONG, "is 0, not", False),
    "skips a sampled element": Fault(cuda_code.skips(SAMPLED), WRONG, f"element {SAMPLED} of buffer 0 is nan", False),
    "skips another element": Fault(cuda_code.skips(UNSAMPLED[0]), WRONG, f"never wrote element {UNSAMPLED[0]} ", False),
    "NaN": Fault(cuda_code.sets(SAMPLED, NAN), WRONG, f"element {SAMPLED} of buffer 0 is nan", False),
    "one wrong element": Fault(cuda_code.sets(SAMPLED, "-1.0f"), WRONG, f"element {SAMPLED} of buffer 0 is -1", False),
    "writes past the end": Fault(cuda_code.PAST_THE_END, WRONG, "wrote outside buffer 0", True),
    "writes before the start": Fault(cuda_code.BEFORE_THE_START, WRONG, "wrote outside buffer 0", True),
    "writes past the end of its input": Fault(cuda_code.PAST_THE_INPUT, WRONG, "wrote outside buffer 1", True),
    "changes its input": Fault(cuda_code.CHANGES_INPUT, WRONG, "changed its input in buffer 1", False),
    "the clock": Fault(cuda_code.clock(UNSAMPLED[1]), WRONG, "differ", False),
    "a race between blocks": Fault(cuda_code.race(UNSAMPLED[2:10]), WRONG, "differ", False),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault(bench: Bench, record_property: Record, name: str) -> None:
    fault, service = FAULTS[name], bench.service
    compiled, replaced = bench.make(fault.code), service.children_replaced
    after = []

    def provoke() -> Measurement:
        row = service.measure_compiled(RELU, compiled).result(timeout=PATIENCE_S)
        after.append(service.children_replaced)
        return row

    row = bench.judge(name, record_property, provoke)
    assert row.status in fault.status and fault.words in row.reason, (row.status, row.reason)
    assert row.binary_hash == compiled.binary_hash
    assert after == [replaced + fault.replaced]
    assert service.children_replaced == after[0], "the correct kernel replaced its child"
    timed = service.binaries_timed
    assert service.measure_compiled(RELU, compiled).result(timeout=1).status is row.status
    assert service.binaries_timed == timed, "a binary that failed is not run again"


def test_out_of_memory(bench: Bench, record_property: Record) -> None:
    (ast,) = kernels_of(empty(1 << 38).relu())  # 1 TiB in, 1 TiB out
    region = Region((kernel_of(ast),))
    row = bench.judge(
        "out of memory", record_property, lambda: bench.service.measure([request(region)])[0].result(timeout=PATIENCE_S)
    )
    assert row.status is Status.RESOURCE and "Allocation of" in row.reason, row.reason


def test_too_much_shared_memory_seen_by_the_compiler(bench: Bench, record_property: Record) -> None:
    service = bench.service
    job = (cuda_code.compile_outcome, cuda_code.TOO_MUCH_SHARED, service.target, bench.like)
    row = bench.judge(
        "too much shared memory, seen by the compiler",
        record_property,
        lambda: compiled_by(service, *job).result(timeout=PATIENCE_S),
    )
    assert row.status is Status.RESOURCE and "too much shared data" in row.reason, row.reason


def test_killed_child(bench: Bench, record_property: Record) -> None:
    service = bench.service
    pid = service._device.submit(child.ping, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    assert pid in descendants(os.getpid())
    future, replaced = bench.time(cuda_code.HANG), service.children_replaced
    time.sleep(1.0)

    def provoke() -> Measurement:
        os.kill(pid, signal.SIGKILL)
        return future.result(timeout=PATIENCE_S)

    # who killed it may have wanted its memory: the job gets another child, in which it hangs as before
    row = bench.judge("its process is killed", record_property, provoke)
    assert row.status is Status.TIMEOUT, row.reason
    assert service.children_replaced == replaced + 2
    assert wait_until(lambda: not alive({pid}), seconds=10)


@pytest.mark.parametrize("name", ["illegal address, written", "infinite loop", "writes past the end"])
def test_fault_in_the_middle_of_a_queue(bench: Bench, record_property: Record, name: str) -> None:
    service = bench.service
    queue = [bench.make(FAULTS[name].code if place == 10 else cuda_code.RIGHT) for place in range(20)]
    replaced, begin = service.children_replaced, time.monotonic()
    futures = [service.measure_compiled(RELU, compiled) for compiled in queue]
    rows = [future.result(timeout=PATIENCE_S) for future in futures]
    record_property("queue_of_20_s", f"{time.monotonic() - begin:.3f}")
    bad = rows.pop(10)
    assert bad.status in FAULTS[name].status and bad.samples_s == ()
    assert [row.reason for row in rows if row.status is not Status.OK] == []
    assert all(row.checked and len(row.samples_s) == SAMPLES for row in rows)
    assert service.children_replaced == replaced + 1


def test_fault_after_fault(bench: Bench, record_property: Record) -> None:
    replaced = bench.service.children_replaced
    futures = [bench.time(cuda_code.MISALIGNED) for _ in range(3)]
    rows: list[Measurement] = []

    def provoke() -> Measurement:
        rows.extend(future.result(timeout=PATIENCE_S) for future in futures)
        return rows[-1]

    bench.judge("three faults in a row", record_property, provoke)
    assert [row.status for row in rows] == [Status.LAUNCH_ERROR] * 3
    assert bench.service.children_replaced == replaced + 3


def test_cold_and_warm_are_measured_apart(bench: Bench, record_property: Record) -> None:
    (ast,) = kernels_of(empty(1 << 22).relu())  # 16 MiB in and out: less than an H200's second-level cache
    region, service = Region((kernel_of(ast),)), bench.service
    schedule, timed = KernelSpace(region, service.target).baseline(), service.binaries_timed
    for state in (CacheState.COLD, CacheState.WARM):
        (future,) = service.measure([request(region, schedule, samples=20, cache_state=state)])
        row = future.result(timeout=PATIENCE_S)
        assert (row.status, row.reason, row.cache_state) == (Status.OK, "", state)
        record_property(f"{state}_us", f"{row.median_s * 1e6:.1f}")
    assert service.binaries_timed == timed + 2


TWO_LOCALS = schedule_of([Opt("TC", 0, (-1, 2, 1)), Opt("LOCAL", 0, 2), Opt("LOCAL", 1, 2)])
THREE_LOCALS = schedule_of([*opts_of(TWO_LOCALS), Opt("LOCAL", 2, 2)])


@pytest.mark.parametrize("schedule", [TWO_LOCALS, THREE_LOCALS], ids=["two", "three"])
def test_tensor_cores_with_local_axes(bench: Bench, record_property: Record, schedule: Schedule) -> None:
    """With three LOCAL axes beside the warp the kernel is wrong: kcg says what NumPy says, and does not offer it."""
    a, b = empty(4, 512, 128, dtype="bfloat16"), empty(4, 128, 512, dtype="bfloat16")
    (ast,) = kernels_of(a @ b)
    region, service = Region((kernel_of(ast),)), bench.service
    (future,) = service.measure([request(region, schedule)])
    row = future.result(timeout=PATIENCE_S)
    compiled = service.compiled(region, schedule).result(timeout=PATIENCE_S).compiled
    job = TimeJob(region, compiled, service.target)
    got = to_values(
        service._device.submit(cuda_code.output_of, job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S), "__bf16"
    )
    is_right = np.allclose(got.reshape(4, 512, 512), _product(ast), atol=0.5)  # a bf16 of 50 is exact to 0.125
    record_property("status", str(row.status))
    record_property("reason", row.reason)
    assert row.status is (Status.OK if is_right else Status.WRONG), row.reason
    assert is_right or schedule == THREE_LOCALS
    if schedule == THREE_LOCALS:
        offered = KernelSpace(region, service.target).actions(TWO_LOCALS)
        assert offered and schedule not in {action.schedule for action in offered}
    bench.assert_right()


def _product(ast: Any) -> np.ndarray[Any, Any]:
    """The batched product of the inputs of seed 0 in float64."""
    inputs, count = make_inputs(ast, 0, recipe=RECIPE), np.arange(4 * 512 * 128)
    a, b = (to_values(inputs[slot][count], "__bf16").astype(np.float64) for slot in (1, 2))
    result: np.ndarray[Any, Any] = a.reshape(4, 512, 128) @ b.reshape(4, 128, 512)
    return result


def test_schedules_of_a_search_after_a_fault(bench: Bench) -> None:
    """Compilers and device at once: real schedules around a kernel that faults."""
    (ast,) = kernels_of(empty(256, 256) @ empty(256, 256))
    region, service = Region((kernel_of(ast),)), bench.service
    space = KernelSpace(region, service.target)
    steps = [action.schedule for action in space.actions(RAW) if action.label.startswith(("LOCAL", "UPCAST"))]
    schedules = [RAW, space.baseline(), *steps[:10]]
    bad = bench.time(cuda_code.WRITE_NOWHERE)
    futures = service.measure([request(region, schedule) for schedule in schedules])
    assert bad.result(timeout=PATIENCE_S).status is Status.LAUNCH_ERROR
    assert {future.result(timeout=PATIENCE_S).status for future in futures} == {Status.OK}


def test_two_services_one_after_another() -> None:
    before = descendants(os.getpid())
    for _ in range(2):
        with MeasureService(
            DEV, run_id="twice", compile_workers=1, settings=ServiceSettings(timing_timeout_s=TIMEOUT_S)
        ) as service:
            own = Bench(service)
            own.assert_right()
            assert own.time(cuda_code.WRITE_NOWHERE).result(timeout=PATIENCE_S).status is Status.LAUNCH_ERROR
            own.assert_right()
        assert wait_until(lambda: not descendants(os.getpid()) - before, seconds=10)


def test_close_while_a_kernel_hangs(record_property: Record) -> None:
    before = descendants(os.getpid())
    with MeasureService(
        DEV, run_id="close", compile_workers=1, settings=ServiceSettings(timing_timeout_s=PATIENCE_S)
    ) as service:
        future = Bench(service).time(cuda_code.HANG_EVERYWHERE)
        time.sleep(2.0)
        begin = time.monotonic()
    record_property("close_s", f"{time.monotonic() - begin:.3f}")
    assert time.monotonic() - begin < RECOVERED_S
    row = future.result(timeout=1)
    assert row.status is Status.WORKER_DIED and "closed" in row.reason
    assert wait_until(lambda: not descendants(os.getpid()) - before, seconds=10)


def test_killed_parent_leaves_no_child_on_the_device(bench: Bench, record_property: Record, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.cuda_code"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "it ended before its kernel ran"
        children = set(json.loads(line))
        assert len(children) >= 2 and alive(children) == children
        process.kill()
        begin = time.monotonic()
        assert wait_until(lambda: not alive(children), seconds=25), alive(children)
        record_property("children_end_s", f"{time.monotonic() - begin:.3f}")
        bench.assert_right()
    finally:
        process.kill()
        process.communicate()
