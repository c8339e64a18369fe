"""What calls in children are as jobs: how they ended, and what they show that a program saves."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from kcg.errors import VerificationError
from kcg.measure.calls import Call
from kcg.measure.child import context_job, joint_job, nan_job, paired_job, stress_job, time_job
from kcg.measure.job_rows import job_of
from kcg.measure.jobs import ContextOutcome, JointOutcome, NanOutcome, PairedOutcome, StressOutcome, TimeOutcome
from kcg.measure.pools import CompilePool, ServiceClosed
from kcg.measure.verify import first_references_job
from kcg.types import JobKind, JobOutcome, Verification
from tests.conftest import CPU
from tests.faults import bad_jobs
from tests.waiting import PATIENCE_S

RIGHT, WRONG, UNJUDGED = Verification(True), Verification(False), Verification(False, unjudged=True)


def pair(baseline_s: float, finalist_s: float, *, noisy: str = "") -> PairedOutcome:
    times = {"baseline_cold_s": (baseline_s,), "again_cold_s": (baseline_s + 1e-6,), "finalist_cold_s": (finalist_s,)}
    return PairedOutcome(RIGHT, RIGHT, noisy=noisy, **times)  # type: ignore[arg-type]


JOINT = JointOutcome((pair(5.0, 4.0), pair(5.0, 2.0), pair(4.0, 2.0)))


@pytest.mark.parametrize(
    ("function", "result", "kind", "outcome", "saving_s", "sampled_s"),
    [
        (time_job, TimeOutcome((1.0, 2.0), ""), JobKind.TIME, JobOutcome.OK, None, 3.0),
        (time_job, TimeOutcome((), "", wrong="1 is not 2"), JobKind.TIME, JobOutcome.WRONG, None, None),
        (time_job, TimeOutcome((), "", unjudged="too large"), JobKind.TIME, JobOutcome.UNJUDGED, None, None),
        (time_job, TimeOutcome((), "", noisy="hot"), JobKind.TIME, JobOutcome.NOISY, None, None),
        (paired_job, pair(5.0, 4.0), JobKind.PAIRED, JobOutcome.OK, 1.0, 14.000001),
        (paired_job, pair(5.0, 4.0, noisy="hot"), JobKind.PAIRED, JobOutcome.NOISY, 1.0, 14.000001),
        (paired_job, PairedOutcome(RIGHT, WRONG), JobKind.PAIRED, JobOutcome.WRONG, None, None),
        (paired_job, PairedOutcome(UNJUDGED), JobKind.PAIRED, JobOutcome.UNJUDGED, None, None),
        (joint_job, JOINT, JobKind.JOINT, JobOutcome.OK, 3.0, 5.0 + 5.000001 + 4.0 + 4.000001 + 2.0),
        (joint_job, JointOutcome(()), JobKind.JOINT, JobOutcome.FAILED, None, None),
        (nan_job, NanOutcome(("", "gives 0")), JobKind.NAN, JobOutcome.WRONG, None, None),
        (context_job, ContextOutcome((3.0,), (1.0,)), JobKind.IN_CONTEXT, JobOutcome.OK, 2.0, 4.0),
        (context_job, ContextOutcome(reason="hot"), JobKind.IN_CONTEXT, JobOutcome.NOISY, None, None),
        (stress_job, StressOutcome("differs"), JobKind.STRESS, JobOutcome.WRONG, None, None),
        (first_references_job, VerificationError("none"), JobKind.REFERENCE, JobOutcome.UNJUDGED, None, None),
        (time_job, TimeoutError(), JobKind.TIME, JobOutcome.LATE, None, None),
        (time_job, ServiceClosed(), JobKind.TIME, JobOutcome.STOPPED, None, None),
        (time_job, RuntimeError(), JobKind.TIME, JobOutcome.FAILED, None, None),
        (bad_jobs.hold_interpreter, 1, "hold interpreter", JobOutcome.OK, None, None),
        (None, None, JobKind.PROCESSES, JobOutcome.OK, None, None),
    ],
)
def test_a_call_is_a_job(function, result, kind, outcome, saving_s, sampled_s) -> None:  # type: ignore[no-untyped-def]
    error, result = (result, None) if isinstance(result, Exception) else (None, result)
    job = job_of(Call(function, (), 1.0, 3.5, result, error), "device:0")
    assert (job.kind, job.outcome, job.start_s, job.seconds) == (kind, outcome, 1.0, 2.5)
    assert (job.saving_s, job.sampled_s) == (pytest.approx(saving_s), pytest.approx(sampled_s))


def test_a_pool_says_when_a_child_took_a_job_and_how_it_ended(tmp_path: Path) -> None:
    calls: list[Call] = []
    initargs = (CPU, os.getpid(), str(tmp_path / "cache.db"), "", ())
    pool = CompilePool(initargs, workers=1, before=lambda: None, called=calls.append)
    try:
        sent = time.monotonic()
        futures: list[Future[object]] = [
            pool.submit(bad_jobs.nap, 0.0, timeout_s=PATIENCE_S),
            pool.submit(int, "x", timeout_s=PATIENCE_S),
            pool.submit(bad_jobs.loop_in_python, None, timeout_s=0.2),
        ]
        for count, future in enumerate(futures, 2):
            future.exception(timeout=PATIENCE_S)
            assert len(calls) >= count, "before its future is done"
    finally:
        pool.close()
    starting, *done = calls
    assert starting.function is None and [call.function for call in done] == [
        bad_jobs.nap,
        int,
        bad_jobs.loop_in_python,
    ]
    outcomes = [job_of(call, "core").outcome for call in done]
    assert outcomes == [JobOutcome.OK, JobOutcome.FAILED, JobOutcome.LATE]
    times = [sent, *(at for call in done for at in (call.begin_s, call.end_s))]
    assert times == sorted(times), "one child does one after the other"


def test_what_is_patient_lets_all_else_go_first(tmp_path: Path) -> None:
    calls: list[Call] = []
    initargs = (CPU, os.getpid(), str(tmp_path / "cache.db"), "", ())
    pool = CompilePool(initargs, workers=1, before=lambda: None, called=calls.append)
    try:
        first = pool.submit(bad_jobs.nap, 0.3, timeout_s=PATIENCE_S)
        patient = [pool.submit(abs, -n, timeout_s=PATIENCE_S, patient=True) for n in range(2)]
        others = [pool.submit(int, f"{n}", timeout_s=PATIENCE_S) for n in range(3)]
        for future in (first, *patient, *others):
            future.result(timeout=PATIENCE_S)
    finally:
        pool.close()
    assert [call.function for call in calls[1:]] == [bad_jobs.nap, int, int, int, abs, abs]


def test_a_compiling_child_multiplies_with_one_thread(tmp_path: Path) -> None:
    """References are products of NumPy, and there is a child for every core."""
    pool = CompilePool((CPU, os.getpid(), str(tmp_path / "cache.db"), "", ()), workers=1, before=lambda: None)
    try:
        found = pool.submit(threadpool_info, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    finally:
        pool.close()
    assert {one["num_threads"] for one in found if one["user_api"] == "blas"} == {1}
