"""Where each millisecond of a step is: kcg's kernels of every part beside PyTorch's same part, and both beside what
this device could do at best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .figures import rounded

if TYPE_CHECKING:
    from .flux_kernels import Timed

Row = dict[str, Any]
STEP = "step "
OWN = ("tinygrad", "kcg")  # a step in tinygrad by the same protocol: as it schedules it, and with a result of kcg's
REST = "the rest of PyTorch's step, not measured alone"
OURS = ("hand_coded_ms", "kcg_ms")
SUMMED = (*OURS, "torch_ms", "lost_ms")


@dataclass(frozen=True)
class Gap:
    """One part of a step; milliseconds of all its calls. What is not known is not a number."""

    name: str
    calls: int
    hand_coded_ms: float
    kcg_ms: float
    torch_ms: float  # the faster of eager and compiled
    roof_ms: float  # at the rate of this device's best matmul, or of its copy
    lost_ms: float  # kcg's without PyTorch's


def _best_s(row: Row) -> float:
    """Seconds of the fastest of PyTorch's contenders."""
    of_torch = [found for name, found in row["contenders"].items() if name != "kcg" and found["status"] == "ok"]
    return min((found["cold_s"] for found in of_torch), default=math.nan)


def _roof_s(row: Row) -> float:
    """Seconds of the part at the roof, from a contender's share of it."""
    shares = [(f["cold_s"], f["roofline_share"]) for f in row["contenders"].values() if "roofline_share" in f]
    return max((seconds * share for seconds, share in shares), default=math.nan)


def gaps(rows: dict[str, Row], kernels: Sequence[Timed], preset: str) -> list[Gap]:
    """Of every part that kcg's kernels make up, the largest gap first; then kcg's kernels that PyTorch has no measured
    part for; then what is left of PyTorch's fastest whole step, which those stand against."""
    from .flux_part_of import ENDS, JOINED

    found = []
    for key, row in rows.items():
        ours = row.get("contenders", {}).get("kcg")
        if ours is not None:
            per_call = (ours["hand_coded_s"], ours["cold_s"], _best_s(row), _roof_s(row))
            before, after, theirs, roof = (1e3 * row["calls"] * s for s in per_call)
            found.append(Gap(key.removeprefix("region "), row["calls"], before, after, theirs, roof, after - theirs))
    found.sort(key=lambda gap: (math.isnan(gap.lost_ms), -gap.lost_ms))
    alone = [_without_torch(name, rows, kernels, preset) for name in (JOINED, ENDS)]
    others = [row for key, row in rows.items() if key.startswith(STEP) and key[len(STEP) :] not in OWN]
    step_ms = 1e3 * min((row["cold_s"] for row in others if row["status"] == "ok"), default=math.nan)
    # what PyTorch's part takes that was not timed is not known to be a part or the rest
    rest_ms = step_ms - sum(gap.torch_ms for gap in found)
    lost_ms = sum(gap.kcg_ms for gap in alone) - rest_ms
    return [*found, *(gap for gap in alone if gap.kcg_ms), Gap(REST, 0, 0.0, 0.0, rest_ms, math.nan, lost_ms)]


def _without_torch(name: str, rows: dict[str, Row], kernels: Sequence[Timed], preset: str) -> Gap:
    """kcg's kernels of a part that was not timed in PyTorch. Its roof is the sum of theirs: each one's least bytes, or
    its arithmetic."""
    from kcg.kernel.contractions import contractions, least_bytes
    from kcg.workloads.flux import PRESETS

    from .flux_part_of import part_of
    from .flux_regions import COPY, MATMUL, ceiling

    mine = [kernel for kernel in kernels if part_of(kernel.ast, PRESETS[preset]) == name]
    peak, bandwidth = ceiling(rows, MATMUL, "tflop_s") * 1e12, ceiling(rows, COPY, "gb_s") * 1e9
    roof_s = 0.0 if peak and bandwidth else math.nan
    for kernel in mine if peak and bandwidth else ():
        operations = sum(c.needed for c in contractions(kernel.ast))
        roof_s += kernel.calls * max(operations / peak, least_bytes(kernel.ast) / bandwidth)
    before_s, after_s = sum(k.hand_coded_s for k in mine), sum(k.kcg_s for k in mine)
    return Gap(name, sum(k.calls for k in mine), 1e3 * before_s, 1e3 * after_s, math.nan, 1e3 * roof_s, math.nan)


def as_row(found: list[Gap]) -> Row:
    """The same for a results file."""
    return {
        "parts": [
            {"name": gap.name, "calls": gap.calls}
            | {k: rounded(v) for k, v in vars(gap).items() if k.endswith("_ms") and not math.isnan(v)}
            for gap in found
        ]
    }
