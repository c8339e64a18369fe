"""The sum of a vector by hand, at three levels: tinygrad's UOps, CUDA source, PTX. Float32; no order ever varies.

Each makes partial sums in one pass over the vector, every thread with several wide loads in flight, and sums these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygrad import Tensor, UOp

from kcg.compat.tiny import AxisType, Device, KernelInfo, Ops
from kcg.errors import UsageError
from kcg.workloads.registry import Step

from .cases import values_of
from .serving import Prepared

BLOCK = 256  # threads
BLOCKS_PER_CORE = 8  # of BLOCK threads: all that a multiprocessor of 2,048 threads holds
WIDE = 4  # float32 of one load
IN_FLIGHT = 4  # loads of one thread
PARTIALS = (1 << 19, 1 << 12)  # of the UOp kernel: so many threads that every multiprocessor is full, then few
SOURCES = {"cuda": "sum.cu", "ptx": "sum.ptx"}
FOLDER = Path(__file__).parent / "kernels"


def strided_sums(out: UOp, x: UOp) -> UOp:
    """out[i] = x[i] + x[n + i] + x[2n + i] + …, with n the length of `out`; the length of x is a multiple of 4n."""
    n = int(out.shape[0])
    turns = int(x.shape[0]) // n
    if Device[Device.DEFAULT].renderer.has_local:
        ranges = [UOp.range(n // WIDE // BLOCK, 0, AxisType.GLOBAL), UOp.range(BLOCK, 1, AxisType.LOCAL)]
        thread = ranges[0] * BLOCK + ranges[1]
    else:
        ranges = [UOp.range(n // WIDE, 0, AxisType.LOOP)]
        thread = ranges[0]
    lane = UOp.range(WIDE, 2, AxisType.UPCAST)
    turn, load = UOp.range(turns // IN_FLIGHT, 3, AxisType.REDUCE), UOp.range(IN_FLIGHT, 4, AxisType.UNROLL)
    at = thread * WIDE + lane
    total = x[(turn * IN_FLIGHT + load) * n + at].reduce(turn, load, arg=Ops.ADD)
    info = KernelInfo(name="strided_sums", opts_to_apply=())
    return out[at].store(total).end(*ranges, lane).sink(arg=info)


def in_uops(x: Tensor) -> Tensor:
    """The sum by `strided_sums`, as often as it shortens the vector fourfold; tinygrad adds what is left."""
    for length in PARTIALS:
        if int(x.shape[0]) % (IN_FLIGHT * length) == 0:
            x = Tensor.empty(length, dtype=x.dtype, device=x.device).custom_kernel(x, fxn=strided_sums)[0]
    return x.sum()


def by_cuda_code(name: str, x: Tensor) -> Callable[[], Tensor]:
    """A launch of the kernel in `kernels/`: over the vector, then over its partial sums. Gives the sum's tensor.

    Raises UsageError on other devices than CUDA.
    """
    from kcg.compat.events import CudaCode
    from kcg.compat.hardware import cuda_properties

    if Device.DEFAULT != "CUDA":
        raise UsageError(f"{SOURCES[name]} runs on CUDA only")
    signature = (("out", "float32"), ("x", "float32"), ("wide", "int32"))
    kernel = CudaCode("partial_sums", (FOLDER / SOURCES[name]).read_text(), signature, pointers=2)
    blocks = cuda_properties()["cores"] * BLOCKS_PER_CORE
    partials, out = Tensor.empty(blocks).contiguous().realize(), Tensor.empty(1).contiguous().realize()
    wide = int(x.shape[0]) // WIDE

    def launch() -> Tensor:
        kernel(partials, x, wide, grid=blocks, block=BLOCK)
        kernel(out, partials, blocks // WIDE, grid=1, block=BLOCK)
        return out

    return launch


def hand_written(how: str, step: Step) -> Prepared | None:
    """The sum of a step's `x` by CUDA code; by `uops` what replaces its run: None."""
    if how == "uops":
        return None
    launch = by_cuda_code(how, step.inputs["x"])
    return Prepared(launch, lambda: values_of(launch().numpy()))


def run_of(how: str, step: Step) -> Callable[..., Any]:
    """What is captured."""
    return in_uops if how == "uops" else step.run
