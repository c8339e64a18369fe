"""The timing protocol, and the service that compiles and times: each binary once, every outcome with a status."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg.dataset.noise import noise_floors, spreads
from kcg.errors import CodecError, DeviceError, ScheduleError, UnknownName
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import compile_schedule
from kcg.kernel.lowered import Lowered
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure import lifetime
from kcg.measure.device_info import detect, first_line
from kcg.measure.jobs import CompileOutcome, JointJob, PairedJob
from kcg.measure.protocol import (
    MIN_SAMPLES,
    MOST_SAMPLES,
    PROTOCOL,
    SAMPLING_S,
    SEARCH_SAMPLES,
    flush_bytes,
    median,
    median_interval,
    samples_for,
    spread,
)
from kcg.measure.service import MeasureService, Request, ServiceSettings, paired_rows
from kcg.measure.verify import references_job
from kcg.measure.workbench import CacheFlusher
from kcg.types import CacheState, Job, JobKind, JobOutcome, Measurement, Region, Status
from tests.kernels import empty, example_region, kernels_of
from tests.waiting import PATIENCE_S

DEV = "CPU:X86"

# -- protocol


@pytest.mark.parametrize("early_stop", [False, True])
def test_short_kernels_get_many_samples_and_long_ones_few(early_stop: bool) -> None:
    times = np.logspace(-8, 2, 200)
    counts = [samples_for(float(t), early_stop=early_stop) for t in times]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == ((SEARCH_SAMPLES[0][1], 3) if early_stop else (MOST_SAMPLES[0][1], MIN_SAMPLES))
    if not early_stop:
        assert all(c == MIN_SAMPLES or c * t <= SAMPLING_S for c, t in zip(counts, times, strict=True))


def test_slow_flush_costs_samples_and_not_time() -> None:
    assert samples_for(15e-6, flush_s=0.02, early_stop=True, careful=True) == 9, "no more where flushing takes long"
    assert samples_for(1e-6, flush_s=0.009) == 11 and samples_for(1e-6, flush_s=1.0) == MIN_SAMPLES


def test_spread_of_the_same_binary() -> None:
    assert spread([1.0, 1.1, 1.0], [1.05, 1.05, 9.0]) == pytest.approx(0.05) == spread([1.05], [1.0])


@pytest.mark.parametrize("count", [6, 9, 20, 30])
def test_interval_of_the_median_covers_it(count: int) -> None:
    rng = np.random.default_rng(count)
    inside = 0
    for samples in rng.exponential(1.0, (2000, count)):
        low, high = median_interval(samples.tolist())
        assert low <= median(samples.tolist()) <= high
        inside += low <= np.log(2) <= high
    assert 0.94 <= inside / 2000 <= 0.995


def test_the_interval_has_the_ranks_that_scipy_gives() -> None:
    from scipy.stats import binom  # a second or two, which every worker would take

    for count in (*range(6, 60), 2000):
        low = max(int(binom.ppf(0.025, count, 0.5)) - 1, 0)
        assert median_interval(range(count)) == (low, count - 1 - low), count


def test_interval_of_few_samples_is_their_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([2.0]) == (2.0, 2.0)


def test_flush_writes_well_over_the_cache() -> None:
    assert flush_bytes("CUDA", 60 << 20) >= 200 << 20
    assert flush_bytes("CPU", 1 << 20) == 64 << 20
    for device in ("CPU", "CUDA", "METAL"):
        for cache in (0, 32 << 20, 1 << 30):
            assert flush_bytes(device, cache) >= 2 * cache


@pytest.mark.parametrize("told", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["told", "own"])
def test_all_of_the_cache_is_flushed(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """Of the size that the tests are told of, and of this machine's own."""
    if not told:
        monkeypatch.delenv("KCG_CACHE_BYTES")
    target = detect(DEV, 1)[0]
    flusher = CacheFlusher(target)
    assert flusher._host is not None and flusher._host.nbytes == flusher.size >= 2 * target.cache_bytes > 0
    flusher.flush()
    assert flusher._host.min() == flusher._host.max() == 2, "every byte of it is written"


# -- service

MATMUL = example_region("matmul_f32")


class Recorder:
    """What the service reports, and a failure of the listener on demand."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []
        self.fails = False

    def __call__(self, row: Measurement) -> None:
        self.rows.append(row)
        if self.fails:
            raise OSError("disk full")


@pytest.fixture(scope="module")
def opened() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="run-1", compile_workers=2) as service:
        yield service


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def service(opened: MeasureService, recorder: Recorder) -> Iterator[MeasureService]:
    """The module's service as if no kernel had been measured yet."""
    opened._by_binary.clear()
    opened._kept.clear()
    opened.on_measurement = recorder
    yield opened
    opened.on_measurement = lambda row: None


def one(service: MeasureService, request: Request) -> Measurement:
    (future,) = service.measure([request])
    return future.result(timeout=PATIENCE_S)


def test_what_was_lowered_elsewhere_is_not_compiled_and_costs_what_it_took_there(service: MeasureService) -> None:
    made = compile_schedule(MATMUL, RAW, service.target)
    service.use_lowered(MATMUL, Lowered(RAW, made, "", 1.25))
    compilations, compiled_s = service.compilations, service.spent_s["compile"]
    row = one(service, Request(MATMUL, RAW, in_search=True))
    assert (row.status, row.compile_s, row.binary_hash) == (Status.OK, 1.25, made.binary_hash)
    assert (service.compilations, service.spent_s["compile"]) == (compilations, compiled_s)


def test_facts(service: MeasureService) -> None:
    target, toolchain = service.facts
    assert (target.device, target.renderer, target.tinygrad_device) == ("CPU", "X86", DEV)
    assert target.cores >= 1 and target.cache_bytes > 0 and target.memory_bytes > 1 << 30
    assert toolchain.tinygrad == "0.14.0" and toolchain.compiler == "tinygrad X86 assembler"


@pytest.mark.parametrize(
    "steps_s",
    [
        pytest.param((600.0,), marks=pytest.mark.slow, id="ahead"),
        pytest.param((-600.0,), marks=pytest.mark.slow, id="back"),
        pytest.param((600.0, -600.0, 0.0), id="zigzag"),
    ],
)
def test_a_step_of_the_wall_clock_is_no_timeout(
    service: MeasureService, steps_s: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While kernels are compiled and timed: NTP, a virtual machine that goes on, a user."""
    real, steps = time.time, itertools.cycle(steps_s)
    baseline, replaced = KernelSpace(MATMUL, service.target).baseline(), service._device.replaced
    futures = service.measure([Request(MATMUL, s, sampler="x", samples=100) for s in (baseline, RAW)])
    monkeypatch.setattr(time, "time", lambda: real() + next(steps))
    assert [f.result(timeout=300).status for f in futures] == [Status.OK, Status.OK]
    assert service._device.replaced == replaced


@pytest.mark.parametrize("cache_state", list(CacheState))
def test_measurement_is_complete(service: MeasureService, recorder: Recorder, cache_state: CacheState) -> None:
    schedule = KernelSpace(MATMUL, service.target).baseline()
    row = one(service, Request(MATMUL, schedule, sampler="hand-coded", cache_state=cache_state))
    assert row.status is Status.OK and row.checked and not row.early_stop and row.reason == ""
    assert MIN_SAMPLES <= len(row.samples_s) <= MOST_SAMPLES[0][1] and all(s > 0 for s in row.samples_s)
    assert (row.region_id, row.schedule, row.sampler, row.run_id) == (MATMUL.id, schedule, "hand-coded", "run-1")
    assert (row.protocol, row.cache_state, row.input_recipe) == (PROTOCOL, cache_state, "normal-v2:seed=0")
    assert (row.target, row.toolchain) == tuple(fact.fingerprint for fact in service.facts)
    assert len(row.binary_hash) == 64 and row.compile_s > 0 and len(row.launch[0]) == 3
    assert recorder.rows == [row]


def test_a_kernel_that_the_reference_cannot_judge_is_unjudged_and_not_wrong(service: MeasureService) -> None:
    (ast,) = kernels_of((-(empty(64).abs()) - 1).log())  # NaN whatever the input
    region = Region((kernel_of(ast),))
    row = one(service, Request(region, RAW))
    assert (row.status, row.samples_s) == (Status.UNJUDGED, ())
    assert row.reason == "most outputs are not numbers (seed 0)" and row.checked
    compiled = service.compiled(region, RAW).result(timeout=PATIENCE_S).compiled
    paired = service.compare_paired(PairedJob(region, compiled, compiled, service.target), timeout_s=PATIENCE_S).result(
        timeout=PATIENCE_S
    )
    for result in (paired.baseline_verification, paired.finalist_verification):
        assert result is not None and result.unjudged and not result.passed and not result.wrong


def test_samples_and_early_stop(service: MeasureService) -> None:
    row = one(service, Request(MATMUL, RAW, samples=3))
    assert len(row.samples_s) == 3 and row.early_stop
    service._by_binary.clear()
    assert len(one(service, Request(MATMUL, RAW, samples=3, stop_above_s=1e-12)).samples_s) == 1


def test_samples_of_a_search(service: MeasureService) -> None:
    row = one(service, Request(MATMUL, RAW, in_search=True))
    assert row.early_stop and 3 <= len(row.samples_s) <= SEARCH_SAMPLES[0][1]


def test_what_the_machine_reports_is_recorded(service: MeasureService) -> None:
    readings = dict(one(service, Request(MATMUL, RAW, samples=3)).clocks)
    assert readings["throttle_events"] == 0 and 0 <= readings.get("steal_share", 0) <= 1


def test_symbolic_kernel(service: MeasureService) -> None:
    region = example_region("symbolic")
    row = one(service, Request(region, RAW, (("length", 20),), samples=3))
    assert row.status is Status.OK and row.checked, row.reason


def test_same_binary_costs_one_timing(service: MeasureService, recorder: Recorder) -> None:
    same_binary = [schedule_of([Opt("UPCAST", 0, 4)]), schedule_of([Opt("UPCAST", 0, 4), Opt("UPCAST", 0, 1)])]
    (ast,) = kernels_of(empty(64) + 1)
    region = Region((kernel_of(ast),))
    timed, compiled = service.binaries_timed, service.compilations
    futures = service.measure(
        [Request(region, s, sampler=f"s{i}", samples=3) for i, s in enumerate([*same_binary, same_binary[0]])]
    )
    rows = [future.result(timeout=PATIENCE_S) for future in futures]
    assert service.compilations == compiled + 3
    done = [row for row in rows if row.status is Status.OK]
    assert len(done) >= 2 and service.binaries_timed == timed + len({row.binary_hash for row in done})
    first, last = rows[0], rows[2]
    assert first.samples_s == last.samples_s and first.binary_hash == last.binary_hash
    assert [row.schedule for row in rows] == [*same_binary, same_binary[0]] and [row.sampler for row in rows] == [
        "s0",
        "s1",
        "s2",
    ]
    assert sorted(r.sampler for r in recorder.rows) == ["s0", "s1", "s2"], "each request is reported once"


def test_full_and_early_timings_are_not_mixed(service: MeasureService) -> None:
    timed = service.binaries_timed
    short, full = one(service, Request(MATMUL, RAW, samples=3)), one(service, Request(MATMUL, RAW))
    assert service.binaries_timed == timed + 2
    assert short.binary_hash == full.binary_hash and len(full.samples_s) >= MIN_SAMPLES > len(short.samples_s)


def test_remembered_measurement_is_not_made_again(service: MeasureService) -> None:
    row = one(service, Request(MATMUL, RAW, samples=3, sampler="first"))
    old = replace(row, run_id="run-0", samples_s=(1.0, 2.0, 3.0))
    service._by_binary.clear()
    service.remember(old)
    service.remember(replace(old, binary_hash=""))  # a failed compile: nothing to go by
    timed = service.binaries_timed
    again = one(service, Request(MATMUL, RAW, samples=3, sampler="second"))
    assert service.binaries_timed == timed
    assert again == replace(old, sampler="second", compile_s=again.compile_s)
    assert one(service, Request(MATMUL, RAW)).samples_s != old.samples_s


def test_compiled_binary_is_kept(service: MeasureService) -> None:
    one(service, Request(MATMUL, RAW, samples=3))
    compiled = service.compilations
    outcome = service.compiled(MATMUL, RAW).result(timeout=PATIENCE_S)
    assert service.compilations == compiled and outcome.compiled.binary
    service._kept.clear()
    assert service.compiled(MATMUL, RAW).result(timeout=PATIENCE_S).compiled.binary_hash == outcome.compiled.binary_hash
    assert service.compilations == compiled + 1


def test_what_is_compiled_ahead_is_not_compiled_again(service: MeasureService, recorder: Recorder) -> None:
    compiled = service.compilations
    for _ in range(2):
        service.compile_ahead(MATMUL, RAW)
    row = one(service, Request(MATMUL, RAW, samples=3))
    assert service.compilations == compiled + 1 and row.status is Status.OK and row.compile_s > 0
    assert recorder.rows == [row] and service.has_compiled(MATMUL, RAW)


def test_what_is_given_up_while_it_compiles_is_not_timed(service: MeasureService, recorder: Recorder) -> None:
    """The child has not one job of it, nothing is recorded, and what is asked for afterwards is timed."""
    outcome, compiling = service.compiled(MATMUL, RAW).result(timeout=PATIENCE_S), Future[CompileOutcome]()
    timed, request = service.binaries_timed, Request(MATMUL, RAW, samples=3)
    (waiting,) = service.measure([request], made={RAW: compiling})
    service.give_up()
    compiling.set_result(outcome)
    assert service.binaries_timed == timed and recorder.rows == []
    row = one(service, request)
    assert row.status is Status.OK and service.binaries_timed == timed + 1
    assert recorder.rows == [row] and not waiting.done(), "it counts as nothing, not as what failed"


def test_a_rehearsal_is_a_job_like_any_other(service: MeasureService) -> None:
    done: list[Job] = []
    before, service.on_job = service.on_job, done.append
    try:
        service.rehearse()
        row = one(service, Request(MATMUL, RAW, samples=3))
    finally:
        service.on_job = before
    (rehearsal,) = (job for job in done if job.kind == JobKind.PROCESSES and job.sampled_s)
    assert rehearsal.outcome == JobOutcome.OK and row.status is Status.OK


def test_listener_that_fails_keeps_nobody_waiting(
    service: MeasureService, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.fails = True
    illegal = schedule_of([Opt("UPCAST", 9, 4)])
    futures = service.measure([Request(MATMUL, s, samples=3) for s in (illegal, RAW, RAW)])
    assert [f.result(timeout=PATIENCE_S).status for f in futures] == [Status.COMPILE_ERROR, Status.OK, Status.OK]
    assert "disk full" in caplog.text


def test_futures_are_not_the_callers_to_cancel(service: MeasureService) -> None:
    first, same = service.measure([Request(MATMUL, RAW, samples=3)] * 2)
    assert not first.cancel()
    assert first.result(timeout=PATIENCE_S).status is same.result(timeout=PATIENCE_S).status is Status.OK


def test_many_callers_at_once(service: MeasureService) -> None:
    schedules = [schedule_of([Opt("UPCAST", axis, amount)]) for axis in (0, 1) for amount in (2, 4, 8)]
    with ThreadPoolExecutor(3) as threads:
        rows = list(threads.map(lambda s: one(service, Request(MATMUL, s, samples=3)), schedules))
    assert [row.schedule for row in rows] == schedules
    assert {row.status for row in rows} == {Status.OK}


def test_nothing_to_measure(service: MeasureService) -> None:
    assert service.measure([]) == []


def test_region_that_is_no_kernel(service: MeasureService) -> None:
    broken = Region((replace(MATMUL.kernel, ast_json="{}"),))
    row = one(service, Request(broken, RAW, samples=3))
    assert row.status is Status.COMPILE_ERROR and row.reason and "\n" not in row.reason


def test_joint_comparison(service: MeasureService) -> None:
    """Of three sides three pairs, each as a comparison of two; where one side is wrong nothing is said."""
    steps = [RAW, *(action.schedule for action in KernelSpace(MATMUL, service.target).actions(RAW))][:3]
    sides = tuple(service.compiled(MATMUL, s).result(timeout=PATIENCE_S).compiled for s in steps)
    job = JointJob(MATMUL, sides, service.target, samples=5)
    outcome = service.compare_jointly(job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    first, across, second = outcome.pairs
    assert first.baseline_cold_s == across.baseline_cold_s and first.again_cold_s == across.again_cold_s
    assert first.finalist_cold_s == second.baseline_cold_s and across.finalist_cold_s == second.finalist_cold_s
    assert second.again_cold_s and second.again_cold_s != second.baseline_cold_s, "the second one is timed twice too"
    assert all(len(s) == 5 for s in (second.again_cold_s, second.baseline_warm_s, second.finalist_warm_s))
    assert all(p.baseline_verification.passed and p.finalist_verification for p in outcome.pairs)
    few = Region((kernel_of(kernels_of(empty(16) + empty(16))[0]),))
    wrong = compile_schedule(few, RAW, service.target)
    job = JointJob(MATMUL, (*sides[:2], wrong), service.target, samples=5)
    assert service.compare_jointly(job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S).pairs == ()


def test_paired_comparison(service: MeasureService) -> None:
    schedules = (RAW, KernelSpace(MATMUL, service.target).baseline())
    baseline, finalist = (service.compiled(MATMUL, s).result(timeout=PATIENCE_S).compiled for s in schedules)
    service.fresh_child()
    report = service.beside(references_job, MATMUL, (), (1, 2, 3), timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    job = PairedJob(MATMUL, baseline, finalist, service.target, references=report)
    outcome = service.compare_paired(job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    assert outcome.baseline_verification.passed and outcome.baseline_verification.seeds == 3
    assert outcome.finalist_verification is not None and outcome.finalist_verification.passed
    assert len(outcome.baseline_cold_s) == len(outcome.finalist_cold_s) >= MIN_SAMPLES
    assert len(outcome.baseline_warm_s) == len(outcome.finalist_warm_s) >= MIN_SAMPLES
    assert len(outcome.again_cold_s) == len(outcome.baseline_cold_s) and outcome.input_recipe == "normal-v2:seed=0"
    rows = paired_rows(job, outcome, *schedules, toolchain=lambda _: "t", run_id="r")
    assert [(r.trial, str(r.cache_state), r.schedule) for r in rows] == [
        (1, "cold", RAW),
        (2, "cold", RAW),
        (1, "warm", RAW),
        (1, "cold", schedules[1]),
        (1, "warm", schedules[1]),
    ]
    assert all(r.status is Status.OK and not r.early_stop and r.checked for r in rows)
    ((first, noise),) = spreads(rows)
    assert first == rows[0] and noise == spread(outcome.baseline_cold_s, outcome.again_cold_s)
    (floor,) = noise_floors(rows)
    assert (floor.kernels, floor.median, floor.p90) == (1, noise, noise) and floor.target == rows[0].target


def test_cache_folder_is_the_callers_or_is_removed(tmp_path: Path) -> None:
    service = MeasureService(DEV, run_id="x", compile_workers=1)
    assert service._temporary is not None
    folder = Path(service._temporary.name)
    service.close()
    assert not folder.exists()
    with MeasureService(DEV, run_id="x", compile_workers=1, settings=ServiceSettings(cache_dir=tmp_path)):
        pass
    assert tmp_path.exists()


# -- what crosses the border of a process


NVRTC_LOG = """Nvrtc Error 6, NVRTC_ERROR_COMPILATION
ptxas info : 0 bytes gmem
ptxas error : kernel uses too much shared data"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo", "one"),
        ("", "ValueError"),
        ("no \x1b[34m8\x1b[0m of \x1b[90m_\x1b[0m", "no 8 of _"),
        ("x" * 999, "x" * 300),
        (NVRTC_LOG, "ptxas error : kernel uses too much shared data"),
        ("Nvrtc Error 6, NVRTC_ERROR_COMPILATION\n", "Nvrtc Error 6, NVRTC_ERROR_COMPILATION"),
    ],
)
def test_first_line_says_what_is_wrong(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


def raised_by_child(error: BaseException) -> BaseException:
    def fail() -> Any:
        raise error

    with pytest.raises(BaseException) as caught:
        lifetime.call(fail, ())
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ScheduleError("does not apply"), ScheduleError, "does not apply"),
        (CodecError("first\nsecond"), CodecError, "first"),
        (DeviceError("gone"), DeviceError, "gone"),
        (UnknownName("workload", "x", ["y"]), RuntimeError, "UnknownName: unknown workload 'x': choose one of y"),
        (MemoryError(), MemoryError, "out of memory"),
        (OSError(12, "Cannot allocate memory"), MemoryError, "[Errno 12] Cannot allocate memory"),
        (TimeoutError("from inside"), RuntimeError, "TimeoutError: from inside"),
        (KeyboardInterrupt(), RuntimeError, "KeyboardInterrupt"),
        (KeyError("x"), RuntimeError, "KeyError: 'x'"),
    ],
)
def test_errors_of_a_child_are_plain(error: BaseException, kind: type[BaseException], text: str) -> None:
    caught = raised_by_child(error)
    assert type(caught) is kind and str(caught) == text
    assert caught.__cause__ is None and caught.__suppress_context__
