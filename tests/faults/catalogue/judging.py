"""Judging the kernels of the catalogue as an optimisation judges a user's: lowered and compiled in a child, checked and
timed as in a search, then verified by every rule and timed in turns with tinygrad's own schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.program import Compiled
from kcg.kernel.source.kernels import lower, view_of
from kcg.kernels import collecting, handwritten
from kcg.measure.jobs import PairedJob
from kcg.measure.service import MeasureService, Request
from kcg.types import Schedule, Status, Target, Toolchain
from tests.faults.catalogue import CKernel
from tests.faults.catalogue.programs import PROGRAMS, region_of

SAMPLES = 3  # here nobody asks which one is faster
TIMEOUT_S = 600.0
SEARCH, FINALS = "search", "finals"


class Service(MeasureService):
    """As if the last-level cache were small: a flush of 900 MB before each sample would take most of the time."""

    @property
    def facts(self) -> tuple[Target, Toolchain]:
        target, toolchain = super().facts
        return replace(target, cache_bytes=0), toolchain


@dataclass(frozen=True)
class Judged:
    """What became of a kernel: refused in the search or in the finals, or by neither."""

    kernel: CKernel
    refused_in: str  # empty where it passed
    reason: str = ""

    @property
    def fault(self) -> str:
        """Why this verdict is a wrong one; empty where it is not."""
        if self.kernel.result == "right" and self.refused_in:
            return f"{self.kernel.id} is right and was refused in the {self.refused_in}: {self.reason}"
        if self.kernel.result == "wrong" and not self.refused_in:
            return f"{self.kernel.id} passed ({self.kernel.kind}): {self.kernel.description}"
        return ""


def schedule_of(kernel: CKernel, target: Target) -> Schedule:
    """The kernel as a user's file would offer it."""

    def text(view: object) -> str:
        return PROGRAMS[kernel.program].defines + kernel.source

    text.__name__ = kernel.name
    with collecting() as found:
        handwritten.c(matches=lambda view: True)(text)
    return lower(found[0], view_of(region_of(kernel.program), target))


def baseline_of(service: MeasureService, program: str) -> Compiled:
    """tinygrad's own schedule of a program, compiled."""
    region = region_of(program)
    baseline = KernelSpace(region, service.target).baseline()
    compiled: Compiled = service.compiled(region, baseline).result(timeout=TIMEOUT_S).compiled
    return compiled


def judge(service: MeasureService, kernel: CKernel) -> Judged:
    """The verdict on one kernel. Raises AssertionError where the kernel cannot be judged at all."""
    region, schedule = region_of(kernel.program), schedule_of(kernel, service.target)
    request = Request(region, schedule, sampler="hand-written", samples=SAMPLES)
    row = service.measure([request])[0].result(timeout=TIMEOUT_S)
    assert row.status not in (Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT), f"{kernel.id}: {row.reason}"
    assert row.status != Status.UNJUDGED, f"{kernel.id}: {row.reason}"
    if row.status != Status.OK:
        return Judged(kernel, SEARCH, f"{row.status}: {row.reason}")
    mine = service.compiled(region, schedule).result(timeout=TIMEOUT_S).compiled
    job = PairedJob(region, baseline_of(service, kernel.program), mine, service.target, samples=SAMPLES)
    try:
        outcome = service.compare_paired(job, timeout_s=TIMEOUT_S).result(timeout=TIMEOUT_S)
    except Exception as error:  # a kernel that takes its process down
        return Judged(kernel, FINALS, f"{type(error).__name__}: {error}")
    assert outcome.baseline_verification.passed, f"{kernel.program}: {outcome.baseline_verification.reason}"
    result = outcome.finalist_verification
    assert result is not None
    if not result.passed:
        return Judged(kernel, FINALS, f"wrong: {result.reason}")
    return Judged(kernel, "", outcome.noisy)
