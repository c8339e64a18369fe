"""The kernel whose machine code the fault tests replace, and a service that measures it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.program import Compiled
from kcg.kernel.reference import sample_points
from kcg.measure.service import MeasureService, Request, _Asked
from kcg.measure.verify import POINTS
from kcg.types import Measurement, Region, Schedule
from tests.kernels import empty, kernels_of
from tests.waiting import PATIENCE_S

COUNT = 4096
DEV = "CPU:X86"

(AST,) = kernels_of(empty(COUNT).relu())
REGION = Region((kernel_of(AST),))
REQUEST = Request(REGION, RAW, sampler="test", samples=3)


def request(region: Region = REGION, schedule: Schedule = RAW, **fields: Any) -> Request:
    return replace(REQUEST, region=region, schedule=schedule, **fields)


def binary(code: bytes, like: Compiled) -> Compiled:
    """The compiled kernel with other machine code, which stands for what a compiler got wrong."""
    return replace(like, binary=code)


def compiled_relu(service: MeasureService) -> Compiled:
    compiled: Compiled = service.compile(REGION, RAW).result(timeout=PATIENCE_S).compiled
    return compiled


def compiled_by(
    service: MeasureService, function: Callable[..., Any], *args: Any, asked: Request = REQUEST
) -> Future[Measurement]:
    """The measurement of a schedule for whose compiling `function` stands."""
    future: Future[Measurement] = Future()
    future.set_running_or_notify_cancel()
    service._measure([_Asked(asked, future, 0)], compiler=(function, *args))
    return future


def time_code(service: MeasureService, code: bytes, like: Compiled, *, timeout_s: float | None = None) -> Measurement:
    """The measurement of machine code; without `timeout_s` it has the service's own time."""
    return service.measure_compiled(replace(REQUEST, timeout_s=timeout_s), binary(code, like)).result(
        timeout=PATIENCE_S
    )


def sampled_elements(seed: int = 0) -> set[int]:
    """The outputs that the reference looks at under `seed`."""
    (points,) = sample_points(AST, POINTS, np.random.default_rng(seed))
    return {int(p) for p in points[:, 0]}


def unsampled_element(seed: int = 0) -> int:
    return next(i for i in range(1, COUNT - 1) if i not in sampled_elements(seed))
