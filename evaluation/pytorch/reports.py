"""Tables of a comparison in Markdown, and what the profilers of PyTorch and of kcg said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.pytorch.plots import in_order, reason
from kcg.report.formats import format_seconds

Row = dict[str, Any]


def write_report(
    title: str, rows: Mapping[str, Row], pictures: Mapping[str, str], out: Path, run: str, more: Sequence[str] = ()
) -> None:
    """Write the pictures, SVG by name, and the table of a run beside its results file, with `more` lines below."""
    text = [f"# {title}, {run}", "", *times_table(rows), ""]
    for name, picture in pictures.items():
        file = out.with_name("_".join(filter(None, (out.stem, name, run))) + ".svg")
        file.write_text(picture)
        text += [f"![{title} {name}]({file.name})".replace(" ]", "]"), ""]
    out.with_name(f"{out.stem}_{run}.md").write_text("\n".join([*text, *more]))


def times_table(rows: Mapping[str, Row]) -> list[str]:
    """A line for each case: cold and warm medians of every contender, of the cold one TFLOP/s or GB/s, and its share of
    the roofline where that is known."""
    names = in_order(name for row in rows.values() for name in row["contenders"])
    lines = ["| cold / warm | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for key, row in rows.items():
        lines.append(f"| {key} | " + " | ".join(_cell(row["contenders"].get(name)) for name in names) + " |")
    return lines


def _cell(found: Row | None) -> str:
    if found is None:
        return ""
    if found["status"] != "ok":
        return reason(found)
    rate = f", {found['tflop_s']:.3g} TFLOP/s" if "tflop_s" in found else ""
    rate = rate or (f", {found['gb_s']:.4g} GB/s" if "gb_s" in found else "")
    share = f", {found['roofline_share']:.0%}" if "roofline_share" in found else ""
    return f"{format_seconds(found['cold_s'])} / {format_seconds(found.get('warm_s'))}{rate}{share}"


def profiles_text(key: str, row: Row) -> list[str]:
    """What torch.profiler says of each contender in PyTorch, and kcg of each kernel."""
    lines = [f"## Profiles: {key}", ""]
    for name, text in row.get("profiles", {}).items():
        lines += [f"PyTorch, {name}: torch.profiler over ten calls", "", "```text", text.rstrip(), "```", ""]
    tuned = row["contenders"].get("kcg", {}).get("tuned")
    if tuned is not None:
        lines += [f"kcg: {tuned['measurements']} binaries timed, {format_seconds(tuned['search_s'])} in all", ""]
        lines += ["| kernel | calls | hand-coded | kcg | GB/s | schedule |", "|---|---|---|---|---|---|"]
        for kernel in tuned["kernels"]:
            rate = kernel["bytes"] / kernel["after_s"] * 1e-9 if kernel["after_s"] else 0.0
            times = " | ".join(format_seconds(kernel[which]) for which in ("before_s", "after_s"))
            lines.append(f"| `{kernel['name']}` | {kernel['calls']} | {times} | {rate:.0f} | `{kernel['schedule']}` |")
        lines.append("")
    return lines
