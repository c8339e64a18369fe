"""Where each millisecond of a step is: kcg's kernels of every matmul and of attention beside PyTorch's same part, and
both beside what this device could do at best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .figures import rounded

if TYPE_CHECKING:
    from kcg.types import Result

Row = dict[str, Any]
STEP = "step "
OWN = ("tinygrad", "kcg")  # a step in tinygrad by the same protocol: as it schedules it, and with a result of kcg's


@dataclass(frozen=True)
class Gap:
    """One part of a step; milliseconds of all its calls. What is not known is not a number."""

    name: str
    calls: int
    hand_coded_ms: float
    kcg_ms: float
    torch_ms: float  # the faster of eager and compiled
    roof_ms: float  # at the rate of this device's best matmul, or of its copy

    @property
    def lost_ms(self) -> float:
        return self.kcg_ms - self.torch_ms


def _best_s(row: Row) -> float:
    """Seconds of the fastest of PyTorch's contenders."""
    of_torch = [found for name, found in row["contenders"].items() if name != "kcg" and found["status"] == "ok"]
    return min((found["cold_s"] for found in of_torch), default=math.nan)


def _roof_s(row: Row) -> float:
    """Seconds of the part at the roof, from a contender's share of it."""
    shares = [(f["cold_s"], f["roofline_share"]) for f in row["contenders"].values() if "roofline_share" in f]
    return max((seconds * share for seconds, share in shares), default=math.nan)


def gaps(rows: dict[str, Row], result: Result) -> list[Gap]:
    """Of every part that kcg's kernels make up, the largest gap first; then all other kernels together, beside what is
    left of PyTorch's fastest whole step."""
    found = []
    for key, row in rows.items():
        ours = row.get("contenders", {}).get("kcg")
        if ours is not None:
            per_call = (ours["hand_coded_s"], ours["cold_s"], _best_s(row), _roof_s(row))
            found.append(Gap(key.removeprefix("region "), row["calls"], *(1e3 * row["calls"] * s for s in per_call)))
    found.sort(key=lambda gap: (math.isnan(gap.lost_ms), -gap.lost_ms))
    others = [row for key, row in rows.items() if key.startswith(STEP) and key[len(STEP) :] not in OWN]
    steps = [row["cold_s"] for row in others if row["status"] == "ok"]
    step_ms = 1e3 * min(steps, default=math.nan)
    before_ms, after_ms = 1e3 * result.total_before_s, 1e3 * result.total_after_s
    for gap in found:  # what PyTorch's part takes that was not timed is not known to be a part or the rest
        before_ms, after_ms, step_ms = before_ms - gap.hand_coded_ms, after_ms - gap.kcg_ms, step_ms - gap.torch_ms
    rest = Gap("everything else", 1, before_ms, after_ms, step_ms, math.nan)
    return [*found, rest]


def as_row(found: list[Gap]) -> Row:
    """The same for a results file."""
    return {
        "parts": [
            {"name": gap.name, "calls": gap.calls}
            | {k: rounded(v) for k, v in vars(gap).items() if k.endswith("_ms") and not math.isnan(v)}
            for gap in found
        ]
    }


def markdown(found: list[Gap]) -> list[str]:
    """The table, with its sums."""
    lines = [
        "| part (rows × outputs × inputs) | calls | hand-coded | kcg | of its roof | PyTorch | of its roof | behind |",
        "|---|" + "--:|" * 7,
    ]
    for gap in found:
        name = gap.name.replace("_", " ").replace("x", " × ")
        known = not math.isnan(gap.roof_ms)
        ours, theirs = (f"{gap.roof_ms / ms:.0%}" if known else "" for ms in (gap.kcg_ms, gap.torch_ms))
        calls = gap.calls if known else ""
        spent = (gap.hand_coded_ms, gap.kcg_ms, gap.torch_ms, gap.lost_ms)
        before, after, torch, lost = ("" if math.isnan(ms) else f"{ms:,.1f}" for ms in spent)
        lines.append(f"| {name} | {calls} | {before} | {after} | {ours} | {torch} | {theirs} | {lost} |")
    sums = [sum(getattr(gap, name) for gap in found) for name in ("hand_coded_ms", "kcg_ms", "torch_ms", "lost_ms")]
    before, after, torch, lost = ("" if math.isnan(ms) else f"{ms:,.1f}" for ms in sums)
    lines.append(f"| **together** | | {before} | {after} | | {torch} | | {lost} |")
    return lines
