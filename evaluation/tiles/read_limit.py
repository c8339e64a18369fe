"""How fast a kernel can be that only reads, beside a copy of as many bytes.

    python -m evaluation.tiles.read_limit

The rows of `bench_tiles` are compared with a copy. A copy reads half of its bytes, and what it writes may stay in the
cache; a reduction reads all of them, and drives out what the flush before it wrote. Timed are maxima of rows of 1,024
bfloat16 numbers by small Triton kernels written by hand, of many shapes, PyTorch's own reductions, and copies, in
turns, by the clock of the comparison; once as there, after a flush that wrote, and once after one that read last.
Writes evaluation/results/read_limit.json.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import triton
import triton.language as tl
import typer

from evaluation.pytorch.in_pytorch import TorchClock
from evaluation.rows import rounded, this_command
from kcg.cli import record_results, run_script
from kcg.errors import DeviceError

OUT = Path(__file__).parents[1] / "results" / "read_limit.json"
COLUMNS = 1024
SIZES_MB = (33, 67, 134, 268)
ROWS, WARPS, RESIDENT = (1, 2, 4, 8, 16), (2, 4, 8), (2, 4, 8)  # of a program; programs that stay on a multiprocessor
SCREENED = 6  # shapes that are timed to the end
Call = Callable[[], Any]


@triton.jit
def maxima(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program for each block of rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    values = tl.load(x + rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
    tl.store(out + rows, tl.max(values.to(tl.float32), 1))


@triton.jit
def resident_maxima(x, out, blocks, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr):
    """Programs that stay, and load blocks of rows ahead."""
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        rows = block * ROWS + tl.arange(0, ROWS)
        values = tl.load(x + rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :])
        tl.store(out + rows, tl.max(values.to(tl.float32), 1))


class CleanClock(TorchClock):
    """After a flush the cache holds what was read, and nothing that is still to be written."""

    def flush(self) -> None:
        super().flush()
        self._flush.sum()


def shapes(x: torch.Tensor, out: torch.Tensor, cores: int) -> dict[str, Call]:
    """Maxima of the rows of `x` (rows, COLUMNS), by name."""
    found: dict[str, Call] = {}
    for rows, warps in product(ROWS, WARPS):
        if not 8 <= rows * COLUMNS // (32 * warps) <= 128:  # numbers of a thread
            continue
        blocks = x.shape[0] // rows
        found[f"{rows} rows, {warps} warps"] = lambda r=rows, w=warps, b=blocks: maxima[(b,)](
            x, out, r, COLUMNS, num_warps=w
        )
        for many, stages in product(RESIDENT, (1, 2, 4)):
            if many * warps > 64 or stages * rows * COLUMNS * 2 * many > 200_000:
                continue
            found[f"{rows} rows, {warps} warps, resident x{many}, {stages} stages"] = (
                lambda r=rows, w=warps, b=blocks, m=many, s=stages: resident_maxima[(cores * m,)](
                    x, out, b, r, COLUMNS, s, num_warps=w
                )
            )
    return found


def timed(clock: TorchClock, calls: dict[str, Call], samples: int) -> dict[str, float]:
    """Seconds of each, cold, the median of some turns."""
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(samples):
        for name, call in calls.items():
            seen[name].append(clock.seconds(call, "cold", 50e-6))
    return {name: statistics.median(taken) for name, taken in seen.items()}


def limit(megabytes: int, cores: int) -> dict[str, Any]:
    """The times of one size."""
    rows = megabytes * 1_000_000 // (2 * COLUMNS) // max(ROWS) * max(ROWS)
    x, out = torch.randn(rows, COLUMNS, device="cuda").to(torch.bfloat16), torch.empty(rows, device="cuda")
    half = x.view(-1)[: x.numel() // 2]
    copy = torch.empty_like(half)
    beside: dict[str, Call] = {
        "copy": lambda: copy.copy_(half), "PyTorch's maxima": lambda: x.amax(1), "PyTorch's sum": lambda: x.sum(),
    }  # fmt: skip
    ours = shapes(x, out, cores)
    expected = x.amax(1).float()
    for name, call in ours.items():
        out.zero_()
        call()
        if not torch.equal(out, expected):
            raise DeviceError(f"{name}: its maxima are wrong")
    found: dict[str, Any] = {"bytes": 2 * x.numel(), "shapes": len(ours)}
    for flush, clock in (("written", TorchClock("cuda")), ("read", CleanClock("cuda"))):
        first = timed(clock, ours, 3)
        kept = {name: ours[name] for name in sorted(first, key=first.__getitem__)[:SCREENED]}
        times = timed(clock, {**beside, **kept}, 15)
        best = min(kept, key=times.__getitem__)
        found[flush] = {
            **{name: rounded(times[name]) for name in beside},
            "fastest read": rounded(times[best]),
            "shape": best,
            "of_copy": rounded(times["copy"] / times[best]),
        }
    return found


def main(out: Annotated[Path, typer.Option(help="the results file")] = OUT) -> None:
    """Time all sizes, and write them down."""
    if not torch.cuda.is_available():
        raise DeviceError("it needs an NVIDIA GPU, and PyTorch with CUDA")
    properties = torch.cuda.get_device_properties(0)
    sizes = {f"{size} MB": limit(size, properties.multi_processor_count) for size in SIZES_MB}
    for name, found in sizes.items():
        typer.echo(f"{name}: {found}")
    figures = {f"of_copy_{name.split()[0]}_mb": found["written"]["of_copy"] for name, found in sizes.items()}
    made_with = {"gpu": properties.name, "torch": torch.__version__, "triton": triton.__version__}
    run = properties.name.replace(" ", "_").lower()
    record_results(out, run, {"command": this_command(), **made_with, "sizes": sizes}, figures)


if __name__ == "__main__":
    run_script(main)
