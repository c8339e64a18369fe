"""When a child of the device is trusted: after which errors no more, and what its canary must show first.

The canary is a kernel of known result and known time that every child runs before its first job.

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


def _compile(target: Target) -> CompiledCanary:
    """Three times each element, and seven: of integers, so that there is one right answer, another for each element."""
    from tinygrad import Tensor, dtypes

    from kcg.kernel.codec import kernel_of
    from kcg.kernel.compile import compile_schedule
    from kcg.kernel.kinds import baseline_of
    from kcg.types import Region

    source = Tensor.empty(_elements(target), dtype=dtypes.int32, device=target.device)
    region = Region((kernel_of((source * 3 + 7).schedule_linear().src[0].src[0]),))
    return CompiledCanary(target, region, compile_schedule(region, baseline_of(region, target), target))


def canary_job(dev: str, known: CompiledCanary | None = None) -> CanaryReading:
    """Run the canary on the device that `DEV=dev` selects and compare every element of its output. Runs in a child.

    One that is `known` and of this very target is not compiled again.
    """
    import numpy as np

    from kcg.kernel.kinds import ACTION_SPACE_VERSION
    from kcg.measure.device_info import detect
    from kcg.measure.workbench import NAN_POISON, Workbench, free_cached_memory

    target, _ = detect(dev, ACTION_SPACE_VERSION)
    canary = known if known is not None and known.target == target else _compile(target)
    on_cpu, elements = target.device == "CPU", _elements(target)
    bench = Workbench(canary.region, target)
    (output,) = (info.slot for info in bench.buffers if info.is_output)
    (source,) = (info.slot for info in bench.buffers if not info.is_output)
    values = np.arange(elements, dtype=np.int32)
    bench.inputs = {source: values}
    bench.restore_inputs()
    bench.poison(NAN_POISON)
    launch = bench.launcher(canary.compiled)
    begin = time.perf_counter()
    launch()
    while not on_cpu and time.perf_counter() - begin < WARM_S:
        launch()
    samples = tuple(launch() for _ in range(SAMPLES))

    found, expected = bench.read(output), values * 3 + 7
    wrong = ""
    if (different := np.flatnonzero(found != expected)).size:
        at = int(different[0])
        wrong = f"{different.size} of {elements} elements are wrong, element {at} is {found[at]}, not {expected[at]}"
    elif bench.guards_intact() is not None:
        wrong = "it wrote outside its buffers"
    del bench, launch
    free_cached_memory(target)
    return CanaryReading(statistics.median(samples), samples, wrong, canary)
