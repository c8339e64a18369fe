"""Where each millisecond of a step is: kcg's kernels of every part beside PyTorch's same part, and both beside what
this device could do at best."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluation.pytorch.kind import ITEM_BYTES
from evaluation.rows import Row, Rows, rounded, run_of, speed
from kcg.compat.tiny import UOp
from kcg.errors import UnknownName, UsageError
from kcg.kernel.codec import ast_of
from kcg.workloads.flux import PRESETS

OPTIMIZED = Path(__file__).parent.parent / "results" / "optimize_flux.json"


@dataclass(frozen=True)
class Timed:
    """A kernel of a step, and the seconds of all its calls with tinygrad's own schedule and with kcg's."""

    ast: UOp
    name: str
    calls: int
    hand_coded_s: float
    kcg_s: float


def of_result(path: Path, preset: str, device: str) -> list[Timed]:
    """The kernels of a RESULT.json. Raises UsageError where it is of something else, or of regions."""
    from kcg.report.result import read_result

    result = read_result(path)
    made = (result.workload, result.preset, result.target.device)
    if made != ("flux", preset, device.partition(":")[0]):
        raise UsageError(f"{path} is of {made[0]} {made[1]} on {made[2]}: give the result of flux {preset} on {device}")
    if any(len(row.region.kernels) > 1 for row in result.regions):
        raise UsageError(f"{path} has regions of several kernels, which no part of a step has alone: take another one")
    return [Timed(ast_of(r.region.kernel), r.chosen.name, r.calls, r.before_s, r.after_s) for r in result.regions]


def of_run(preset: str, device: str, path: Path = OPTIMIZED) -> list[Timed]:
    """The kernels of a run in the results of `evaluation.flux.optimize`: no ASTs, but in the order of a step's first
    calls, which is that of a model with one block of each kind.

    Raises UnknownName where there is no such run, UsageError where its kernels are not those of the present model.
    """
    from kcg.workloads import flux
    from kcg.workloads.capture import lazy_workload

    runs = json.loads(path.read_text())["runs"]
    if (run := run_of(preset, device)) not in runs:
        raise UnknownName("run", run, list(runs))
    model, inputs = flux.build(preset, double_blocks=1, single_blocks=1)
    captured, kept = lazy_workload("flux", preset, flux.step(model, inputs)).calls, runs[run]["kernels"]
    if len(captured) != len(kept):
        raise UsageError(f"{path} has {len(kept)} kernels of {run}, the model has {len(captured)}: give --result")
    return [
        Timed(ast_of(call.region.kernel), group["name"], group["calls"], group["before_s"], group["after_s"])
        for call, group in zip(captured, kept, strict=True)
    ]


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
    from evaluation.flux.parts import ENDS, JOINED

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
    from evaluation.flux.parts import COPY, MATMUL, ceiling, part_of
    from kcg.kernel.analysis import contractions, least_bytes
    from kcg.workloads.flux import PRESETS

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
    """A part of `parts.part_of` as a reader sees it: `linear gated 4608 × 3072 × 15360`."""
    return re.sub(r"(?<=\d)x(?=\d)", " × ", name.replace("_", " "))


def _shown(ms: float) -> str:
    return "" if math.isnan(ms) else f"{ms:,.1f}"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.0%}"


def beside(kernels: Sequence[Timed], preset: str) -> dict[str, Row]:
    """Part of PyTorch's -> seconds of one call with kcg's schedules and with tinygrad's own, and its kernels.

    The times are those of the run's own finals: kernels alone, cold, not in turns with PyTorch.
    """
    from evaluation.flux.parts import part_of, parts

    config = PRESETS[preset]
    known, found = parts(config), dict[str, Row]()
    for kernel in kernels:
        name = part_of(kernel.ast, config)
        if name in known:
            group = found.setdefault(name, {"cold_s": 0.0, "hand_coded_s": 0.0, "kernels": [], "status": "ok"})
            group["cold_s"] += kernel.kcg_s / known[name].calls
            group["hand_coded_s"] += kernel.hand_coded_s / known[name].calls
            group["kernels"].append(f"{kernel.calls} × {kernel.name}")
    for name, group in found.items():
        moved = known[name].values * ITEM_BYTES[config.dtype]
        group.update(cold_s=rounded(group["cold_s"]), hand_coded_s=rounded(group["hand_coded_s"]))
        group.update(speed(group["cold_s"], operations=known[name].operations, bytes=moved))
    return found


def put_beside(rows: Rows, kernels: Sequence[Timed], preset: str, document: Path | None = None) -> None:
    """Put kcg's kernels into the rows of the parts that are there; and where the time of a step is, of which `document`
    gets a table."""
    from evaluation.documents import write_into

    for name, group in beside(kernels, preset).items():
        if (key := f"region {name}") in rows.rows:
            rows.rows[key]["contenders"]["kcg"] = group
    found = gaps(rows.rows, kernels, preset)
    rows.add("where the time is", as_row(found))
    if document is not None:
        write_into(document, {f"flux-gap-{preset}": markdown(found)})
