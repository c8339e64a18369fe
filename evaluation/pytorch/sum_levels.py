"""The sum of 1 GiB of float32 at each level of abstraction, against what a copy of it moves.

tinygrad's expression as it schedules it, with BEAM=2 and with kcg; by hand in UOps, CUDA source and PTX, launched by
tinygrad; and PyTorch. What runs on CUDA only says so elsewhere.

The kernels by hand make partial sums in one pass over the vector, every thread with several wide loads in flight, and
sum these; no order ever varies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygrad import Tensor, UOp

from evaluation.pytorch.kind import Case, Comparison, Entry, Kind, Rows, values_of
from evaluation.pytorch.plots import Bar, Group, bars_svg, in_order, rate, rate_axis, reason
from evaluation.pytorch.reports import write_report
from evaluation.pytorch.serving import Prepared
from evaluation.pytorch.turns import IN_TINYGRAD, IN_TORCH, TINYGRAD, Contender
from kcg.compat.tiny import AxisType, Device, KernelInfo, Ops
from kcg.errors import UsageError
from kcg.report.formats import format_seconds
from kcg.workloads.family import Step

SUM, COPY = "sum", "copy"
ELEMENTS = {"full": 1 << 28, "mini": 1 << 18}
HAND = ("uops", "cuda", "ptx")
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
    from kcg.compat.hardware import cuda_properties
    from kcg.compat.programs import CudaCode

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


def entries(size: str) -> list[Entry]:
    """The copy, in PyTorch alone, then the sum."""
    case = {"elements": ELEMENTS[size], "dtype": "float32"}
    return [Entry(key, {"kind": key, **case}, only=only) for key, only in ((COPY, "torch"), (SUM, ""))]


def _shapes(case: Case) -> dict[str, tuple[int, ...]]:
    return {"x": (case["elements"],)}


def write(rows: Rows, out: Path, run: str) -> None:
    """GB/s of the sum at each level of abstraction, beside that of a copy."""
    copied = rows.get(COPY, {"contenders": {}})["contenders"].get("torch", {"status": "failed", "reason": "not timed"})
    mark = (f"copy: {copied['gb_s']:,.0f} GB/s", copied["gb_s"]) if copied["status"] == "ok" else None
    levels = rows.get(SUM, {"contenders": {}})["contenders"]
    group = Group("" if mark else f"copy: {reason(copied)}", [_level(name, levels[name]) for name in in_order(levels)])
    title = "Sum of float32, L2 flushed: GB/s at each level of abstraction; intervals of 95 %"
    write_report("Sum", rows, {"": bars_svg(title, "GB/s", [group], rate_axis, 0.0, mark)}, out, run)


def _level(name: str, found: dict[str, Any]) -> Bar:
    if found["status"] != "ok":
        return Bar(name, reason(found), None)
    return Bar(name, f"{found['gb_s']:,.0f} GB/s, {format_seconds(found['cold_s'])}", rate(found))


KINDS = {
    SUM: Kind(
        shapes=_shapes,
        reference=lambda case, x: [float(x.sum())],
        in_tinygrad=lambda case: lambda x: x.sum(),
        in_torch=lambda: lambda x: x.sum(),
        mean=1.0,  # a sum that does not cancel
        reduces=True,
    ),
    COPY: Kind(
        shapes=_shapes,
        reference=lambda case, x: values_of(x),
        in_tinygrad=lambda case: lambda x: x.clone(),
        in_torch=lambda: lambda x: x.clone(),
    ),
}
COMPARISON = Comparison(
    name="sum_levels",
    entries=entries,
    contenders=(
        *TINYGRAD,
        *(Contender(how, IN_TINYGRAD, {"how": how}) for how in HAND),
        Contender("torch", IN_TORCH, {"how": "eager"}),
    ),
    usual=",".join(("tinygrad,BEAM=2,kcg", *HAND, "torch")),
    write=write,
    figures=(("s", "cold_s"), ("gb_s", "gb_s")),
)
