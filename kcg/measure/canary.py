"""When a child of the device is trusted: after which errors no more, and what its canary must show first.

The canary is a kernel of known result and known time that every child runs before its first job. A small one, of known
result, is run by a child whose device another process used meanwhile.

After a fault a device may compute wrongly or run slowly, and what is measured then is worse than no measurement. The
canary of the first child is the reference; a later one must be exactly right and about as fast.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled
    from kcg.types import Region, Target

SAMPLES = 7
WARM_S = 0.05  # launches before the samples: a GPU that idles runs at lower clocks

CPU_BYTES = 4 << 20
GLANCE_BYTES = 1 << 20  # of each buffer of the small one
DEVICE_BYTES = 64 << 20  # of each of its two buffers: over the last-level cache, and some 40 µs on the fastest GPUs

CPU_TOLERANCE = 3.0
"""A CPU is shared with all that runs on the machine: twice the time is an ordinary day."""
DEVICE_TOLERANCE = 1.3
"""What copies memory is not slowed by a power cap; a device that lost a third of its speed is not the same device."""

PAUSES_S = (0.5, 1.0, 1.5, 2.5, 4.0)
"""Before a canary that was slow flies again: 10 s in all, in which a driver's reset or a neighbour's work may end."""
FAILURES = 2  # canaries that may be wrong or die in a row, each in a fresh child, before the device is given up
TIMEOUT_S = 30.0

# of these the driver's manual says: "To continue using CUDA, the process must be terminated and relaunched"
LOST_CONTEXT = frozenset({226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})
# the driver is not there any more for this process, its context is gone, or the hardware erred (ECC, NVLink)
LOST_DEVICE = frozenset({3, 4, 46, 100, 101, 201, 214, 220, 709, 802, 999})
STICKY_FAULTS = LOST_CONTEXT | LOST_DEVICE
"""CUDA's error codes (`CUresult`) after which nothing of this process is to be trusted.

Not among them, since they say something of one kernel only: 1 invalid value, 2 out of memory, 200 invalid image,
218 invalid PTX, 701 launch out of resources, 720 grid too large.
"""
_CUDA_CODE = re.compile(r"\b(?:CUDA Error|module load failed with status code) (\d+)\b")


def is_sticky(error: BaseException) -> bool:
    """Whether an error in tinygrad's words means that the process that raised it has lost the device."""
    return any(int(code) in STICKY_FAULTS for code in _CUDA_CODE.findall(str(error)))


@dataclass(frozen=True)
class CompiledCanary:
    """The canary as one child compiled it: a later one on the same target loads it, and is there a third sooner."""

    target: Target
    region: Region
    compiled: Compiled


@dataclass(frozen=True)
class CanaryReading:
    """What one canary showed. `wrong` says in one line what of its output is not as it must be."""

    seconds: float  # the median
    samples_s: tuple[float, ...]
    wrong: str = ""
    compiled: CompiledCanary | None = field(default=None, repr=False, compare=False)

    def fault(self) -> str:
        """Why nothing of this child is to be trusted; empty if the canary is right."""
        if self.wrong or 0 < self.seconds < math.inf:
            return self.wrong
        return f"its clock says {self.seconds} s"


def tolerance(dev: str) -> float:
    """How many times the reference a canary may take."""
    return CPU_TOLERANCE if dev.startswith("CPU") else DEVICE_TOLERANCE


def _elements(target: Target) -> int:
    return (CPU_BYTES if target.device == "CPU" else DEVICE_BYTES) // 4


def _compile(target: Target, elements: int) -> CompiledCanary:
    """Three times each element, and seven: of integers, so that there is one right answer, another for each element."""
    from tinygrad import Tensor, dtypes

    from kcg.kernel.codec import kernel_of
    from kcg.kernel.compile import compile_schedule
    from kcg.kernel.kinds import baseline_of
    from kcg.types import Region

    source = Tensor.empty(elements, dtype=dtypes.int32, device=target.device)
    region = Region((kernel_of((source * 3 + 7).schedule_linear().src[0].src[0]),))
    return CompiledCanary(target, region, compile_schedule(region, baseline_of(region, target), target))


class _Prepared:
    """A canary on buffers of its own, with its input in them."""

    def __init__(self, target: Target, canary: CompiledCanary) -> None:
        import numpy as np

        from kcg.measure.workbench import Workbench

        self.canary, self._bench = canary, Workbench(canary.region, target)
        (self._output,) = (info.slot for info in self._bench.buffers if info.is_output)
        (source,) = (info for info in self._bench.buffers if not info.is_output)
        values = np.arange(source.nbytes // 4, dtype=np.int32)
        self._bench.inputs, self._expected = {source.slot: values}, values * 3 + 7
        self._bench.restore_inputs()
        self.poison()
        self.launch = self._bench.launcher(canary.compiled)

    def poison(self) -> None:
        """Let nothing that is right be in its output before it runs."""
        from kcg.measure.workbench import NAN_POISON

        self._bench.poison(NAN_POISON)

    def wrong(self) -> str:
        """What of the output is not as it must be, in one line."""
        import numpy as np

        found, expected = self._bench.read(self._output), self._expected
        if (different := np.flatnonzero(found != expected)).size:
            at, count = int(different[0]), expected.size
            return f"{different.size} of {count} elements are wrong, element {at} is {found[at]}, not {expected[at]}"
        return "it wrote outside its buffers" if self._bench.guards_intact() is not None else ""


def canary_job(dev: str, known: CompiledCanary | None = None) -> CanaryReading:
    """Run the canary on the device that `DEV=dev` selects and compare every element of its output. Runs in a child.

    One that is `known` and of this very target is not compiled again.
    """
    from kcg.kernel.kinds import ACTION_SPACE_VERSION
    from kcg.measure.device_info import detect
    from kcg.measure.workbench import free_cached_memory

    target, _ = detect(dev, ACTION_SPACE_VERSION)
    on_cpu, elements = target.device == "CPU", _elements(target)
    prepared = _Prepared(target, _compile(target, elements) if known is None or known.target != target else known)
    begin = time.perf_counter()
    prepared.launch()
    while not on_cpu and time.perf_counter() - begin < WARM_S:
        prepared.launch()
    samples, wrong, compiled = tuple(prepared.launch() for _ in range(SAMPLES)), prepared.wrong(), prepared.canary
    del prepared
    free_cached_memory(target)
    return CanaryReading(statistics.median(samples), samples, wrong, compiled)


_kept: dict[str, _Prepared] = {}  # the small one of this child, by device


def glance_job(dev: str, known: CompiledCanary | None = None) -> CanaryReading:
    """Run the small canary once and compare every element of its output. Runs in a child, which keeps its buffers: two
    milliseconds but for the first time. The `compiled` one is told then only."""
    from kcg.kernel.kinds import ACTION_SPACE_VERSION
    from kcg.measure.device_info import detect

    if is_new := dev not in _kept:
        target, _ = detect(dev, ACTION_SPACE_VERSION)
        made = known if known is not None and known.target == target else _compile(target, GLANCE_BYTES // 4)
        _kept[dev] = _Prepared(target, made)
    prepared = _kept[dev]
    prepared.poison()
    seconds = prepared.launch()
    return CanaryReading(seconds, (seconds,), prepared.wrong(), prepared.canary if is_new else None)
