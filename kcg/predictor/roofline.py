"""The analytic predictor: a roofline over instructions, memory traffic and occupancy, read off the axis table.

It needs no data and no training. Its absolute times are rough; within a kernel it ranks by what an engineer counts:
loads saved by keeping values in registers, vector width, loop overhead, register pressure, coalescing, full waves.
The roofline model: Williams, Waterman and Patterson, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcg.errors import ScheduleError
from kcg.kernel.loop_nest import GRID, HELD, INNER, LANES, LOOPS, REDUCING, WORKGROUP, Access, AxisTable
from kcg.predictor.interface import Judge
from kcg.types import Prediction, Schedule, Target

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space

LINE_BYTES = 64
WARP_THREADS = 32

CPU_TERMS = ("load", "store", "simple", "function", "trip", "accumulator", "reload", "line", "start")
"""What the CPU's estimate counts; see `cpu_counts`."""

CPU_SECONDS: dict[str, tuple[float, ...]] = {
    "X86": (0.2e-9, 0.02e-9, 0.0, 5.5e-9, 1.3e-9, 0.1e-9, 0.137e-9, 2e-9, 20e-6),
    "CLANG": (0.087e-9, 0.0, 0.0, 0.2e-9, 0.19e-9, 0.02e-9, 0.0114e-9, 4.9e-9, 16e-6),
}
"""Seconds per event of each term by renderer, on one core of about 3 GHz. `evaluation.predictor.fit_roofline` fits them
and says how well they rank. tinygrad's X86 assembler does not vectorise and keeps accumulators in memory."""

FUNCTIONS = ("EXP2", "LOG2", "SIN", "SQRT", "RECIPROCAL", "POW", "FDIV", "THREEFRY")
CPU_RESIDENT = 24
"""Values that one trip of the inner code can hold without cost: 16 registers, and a few whose reload hides behind other
work. Of 8, 14, 24, 32 and 48, the number that ranks best on kernels left out of the fit."""

CPU_L1_BYTES = 32 << 10

GPU_PEAK_FLOPS_PER_CORE = 256 * 1.7e9  # one multiprocessor, plain float32
GPU_TENSOR_CORE_GAIN = 8.0
GPU_BYTES_S = 4.0e12
GPU_L2_BYTES_S = 8.0e12
GPU_LAUNCH_S = 5e-6
GPU_THREADS_PER_CORE = 2048
GPU_REGISTERS = 128

USUAL_FAILURES = 0.02


class Roofline:
    """The analytic predictor for CPUs and GPUs."""

    name = "roofline"

    def predict(self, space: Space, schedules: Sequence[Schedule]) -> list[Prediction]:
        predictions = []
        for schedule in schedules:
            try:
                (table,), (refused,) = space.loop_nests([schedule]), space.refusals([schedule])
            except ScheduleError:
                predictions.append(Prediction(0.0, uncertainty=10.0, failure_probability=1.0))
                continue
            predictions.append(
                Prediction(
                    math.log(estimate(table, space.target)),
                    uncertainty=0.7,
                    failure_probability=max(refused, USUAL_FAILURES),
                )
            )
        return predictions

    def of(self, space: Space) -> Judge:
        """What it says of one kernel. It learns nothing from measurements."""
        return Judge(lambda schedules: self.predict(space, schedules))


def estimate(table: AxisTable, target: Target) -> float:
    """Expected seconds of one run."""
    return _gpu_seconds(table, target) if target.has_local else _cpu_seconds(table, target.renderer)


def _vector_width(table: AxisTable, access: Access, widest_bytes: int) -> int:
    """How many elements one instruction moves: the contiguous run along the inner axes, in powers of two."""
    widest = max(1, widest_bytes // access.itemsize)
    for extent, kind, stride in zip(table.extents, table.kinds, access.strides, strict=True):
        if kind in INNER and stride == 1:
            width = 1
            while width * 2 <= widest and extent % (width * 2) == 0:
                width *= 2
            return width
    return 1


def _scope(table: AxisTable, access: Access) -> tuple[bool, ...]:
    """The axes over which an access is executed: all it varies with, and every loop around it."""
    own = _own_reductions(table, access)
    return tuple(
        used or (kind not in INNER and (axis in own or kind not in REDUCING))
        for axis, (used, kind) in enumerate(zip(access.used, table.kinds, strict=True))
    )


def _own_reductions(table: AxisTable, access: Access) -> frozenset[int]:
    """The axes of the reductions that an access is part of."""
    some = [one for one in table.reductions if any(access.used[axis] for axis in one)]
    return frozenset().union(*some)


def cpu_counts(table: AxisTable) -> tuple[float, ...]:
    """The events of one run on one core, in the order of `CPU_TERMS`."""
    loads = stores = lines = 0.0
    for access in table.accesses:
        executed = float(table.span(_scope(table, access)))
        if access.is_store:
            stores += executed
        else:
            loads += executed
        lines += _missed_lines(table, access)
    simple = sum(float(table.span(used)) for op, used in table.operations if op not in FUNCTIONS)
    functions = sum(float(table.span(used)) for op, used in table.operations if op in FUNCTIONS)
    outer = tuple(k for k in table.kinds if k not in INNER)
    trips = float(table.turns(*{k for k in table.kinds if k not in INNER}))
    reduces = any(k in REDUCING for k in table.kinds)
    held = table.product(*HELD) + sum(table.span(a.used, skip=outer) for a in table.accesses if not a.is_store)
    return (
        loads,
        stores,
        simple,
        functions,
        trips,
        trips * table.product(*HELD) if reduces else 0.0,
        max(0.0, 1.0 - CPU_RESIDENT / max(held, 1)) * simple,
        lines,
        1.0,
    )


def _missed_lines(table: AxisTable, access: Access) -> float:
    """Cache lines brought in: compulsory ones, times how often the loops outside push them out again."""
    unique = min(access.elements, table.span(access.used))
    others: frozenset[int] = frozenset()  # axes of reductions before or after, which it is not executed in
    if len(table.reductions) > 1:
        others = frozenset().union(*table.reductions) - _own_reductions(table, access)
    order = [i for i, k in enumerate(table.kinds) if k not in INNER and i not in others]
    footprint = float(access.itemsize * table.span(access.used, skip=tuple(k for k in table.kinds if k not in INNER)))
    lines = 1.0
    # from the innermost loop outwards: once the footprint passes the first-level cache, an outer loop reloads it
    for i in reversed(order):
        extent, stride = table.extents[i], abs(access.strides[i]) * access.itemsize
        if access.used[i]:
            lines *= extent * min(1.0, max(stride, 1) / LINE_BYTES) if stride < LINE_BYTES else extent
            footprint *= extent
        elif footprint > CPU_L1_BYTES:
            lines *= extent
    return max(lines, unique * access.itemsize / LINE_BYTES)


def _cpu_seconds(table: AxisTable, renderer: str) -> float:
    costs = CPU_SECONDS.get(renderer, CPU_SECONDS["CLANG"])
    return sum(c * n for c, n in zip(costs, cpu_counts(table), strict=True))


def _gpu_seconds(table: AxisTable, target: Target) -> float:
    cores = max(target.cores, 1)  # 0 where the device does not tell
    blocks = table.product(*GRID)
    threads = table.product(*WORKGROUP)
    warps = math.ceil(threads / WARP_THREADS)
    lanes_idle = warps * WARP_THREADS / max(threads, 1)
    per_core = max(1, min(32, GPU_THREADS_PER_CORE // (warps * WARP_THREADS)))
    held = table.product(*HELD)
    per_core = max(1, min(per_core, (65536 // (warps * WARP_THREADS)) // max(16, min(255, held + 16))))
    waves = math.ceil(blocks / (cores * per_core))
    wave_loss = waves * cores * per_core / max(blocks, 1) if blocks >= cores else cores / blocks
    # latency is hidden by threads in flight and by independent work in each
    in_flight = per_core * warps * min(8, max(1, held // 2))
    hiding = min(1.0, in_flight / 32)
    spill = max(1.0, held / GPU_REGISTERS) ** 2

    operations = sum(float(table.span(used)) for _, used in table.operations)
    peak = GPU_PEAK_FLOPS_PER_CORE * cores * (GPU_TENSOR_CORE_GAIN if table.tensor_core else 1.0)
    compute = operations / peak

    device_bytes = l2_bytes = instructions = 0.0
    for access in table.accesses:
        executed = float(table.span(_scope(table, access)))
        width = _vector_width(table, access, 16)
        instructions += executed / width
        l2_bytes += executed * access.itemsize * _coalescing_loss(table, access, width)
        device_bytes += min(access.elements, table.span(access.used)) * access.itemsize
    issue = instructions / (32 * 1.7e9 * cores)
    traffic = max(device_bytes / GPU_BYTES_S, l2_bytes / 16 / GPU_L2_BYTES_S)
    loops = table.turns(*LOOPS) * 20e-9 * waves
    busy = max(compute, traffic, issue) + 0.3 * (compute + traffic + issue)
    return busy * lanes_idle * min(wave_loss, 8.0) / hiding * spill + loops * 0.05 + GPU_LAUNCH_S


def _coalescing_loss(table: AxisTable, access: Access, width: int) -> float:
    """Bytes moved over bytes used by one warp: 1 when neighbouring threads read neighbouring elements."""
    for kind_wanted in LANES:
        for extent, kind, stride in zip(table.extents, table.kinds, access.strides, strict=True):
            if kind == kind_wanted and extent > 1:
                if stride == 0:
                    return 1.0 / min(extent, WARP_THREADS)
                if stride <= width:
                    return 1.0
                return min(32.0 / (access.itemsize * width), float(stride) / width)
    return 32.0 / (access.itemsize * width)
