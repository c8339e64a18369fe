"""The table of where each millisecond of a step is."""

from __future__ import annotations

import math
import re

from .flux_gap import OURS, SUMMED, Gap


def markdown(found: list[Gap]) -> list[str]:
    """The table, with its sums."""
    lines = [
        "| part (rows × outputs × inputs) | calls | hand-coded | kcg | of its roof | PyTorch | of its roof | behind |",
        "|---|" + "--:|" * 7,
    ]
    for gap in found:
        ours, theirs = (_percent(gap.roof_ms / ms) if ms else "" for ms in (gap.kcg_ms, gap.torch_ms))
        before, after = (_shown(ms) if gap.calls else "" for ms in (gap.hand_coded_ms, gap.kcg_ms))
        torch, lost = _shown(gap.torch_ms), _shown(gap.lost_ms)
        name = part_words(gap.name)
        lines.append(f"| {name} | {gap.calls or ''} | {before} | {after} | {ours} | {torch} | {theirs} | {lost} |")
    whole = not math.isnan(found[-1].torch_ms)  # without the rest, PyTorch's sum is not that of a step
    sums = {key: sum(ms for gap in found if not math.isnan(ms := getattr(gap, key))) for key in SUMMED}
    before, after, torch, lost = (_shown(sums[key] if whole or key in OURS else math.nan) for key in SUMMED)
    lines.append(f"| **together** | | {before} | {after} | | {torch} | | {lost} |")
    return lines


def part_words(name: str) -> str:
    """A part of `flux_part_of` as a reader sees it: `linear gated 4608 × 3072 × 15360`."""
    return re.sub(r"(?<=\d)x(?=\d)", " × ", name.replace("_", " "))


def _shown(ms: float) -> str:
    return "" if math.isnan(ms) else f"{ms:,.1f}"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"
