"""The pictures and the table of a comparison, beside its results file and from its rows alone: no device is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kcg.optimize.console import format_seconds

from .axes import rate_axis, ratio_axis, seconds_axis
from .bars import Bar, Group, bars_svg
from .contenders import in_order, rate, reason, seconds, words
from .plots import curves_of, lines_svg, lost_in
from .reports import Row, profiles_text, write_report

Rows = dict[str, Row]
FIRST = "tinygrad"  # with whose time layers and models are compared
TITLES = {"softmax": "softmax", "layernorm": "LayerNorm", "gelu_mlp": "GELU MLP",
          "resnet": "ResNet", "gpt2": "GPT-2", "llama": "Llama"}  # fmt: skip


def write_rope(rows: Rows, out: Path, run: str) -> None:
    """Of each direction seconds and GB/s by tokens, and what both profilers say."""
    rows = dict(sorted(rows.items(), key=lambda item: (item[1]["case"]["backward"], item[1]["case"]["tokens"])))
    pictures = {}
    for direction in ("forward", "backward"):
        if part := [row for key, row in rows.items() if key.startswith(direction)]:
            title, lost = f"RoPE, {direction}, L2 flushed", lost_in(part)
            times, rates = curves_of(part, seconds), curves_of(part, rate)
            pictures[direction] = lines_svg(f"{title}: time; bands of 95 %", "tokens", times, seconds_axis, lost)
            pictures[f"{direction}_gb_s"] = lines_svg(f"{title}: GB/s; bands of 95 %", "tokens", rates, rate_axis, lost)
    profiled = [line for key, row in rows.items() if row.get("profiles") for line in profiles_text(key, row)]
    write_report("RoPE", rows, pictures, out, run, profiled)


def write_attention(rows: Rows, out: Path, run: str) -> None:
    """Seconds by tokens."""
    rows = dict(sorted(rows.items(), key=lambda item: item[1]["case"]["tokens"]))
    title, lost = "Attention, forward, L2 flushed: time; bands of 95 %", lost_in(rows.values())
    picture = lines_svg(title, "tokens", curves_of(rows.values(), seconds), seconds_axis, lost)
    write_report("Attention", rows, {"": picture}, out, run)


def write_sum(rows: Rows, out: Path, run: str) -> None:
    """GB/s of the sum at each level of abstraction, beside that of a copy."""
    copied = rows.get("copy", {"contenders": {}})["contenders"].get(
        "torch", {"status": "failed", "reason": "not timed"}
    )
    mark = (f"copy: {copied['gb_s']:,.0f} GB/s", copied["gb_s"]) if copied["status"] == "ok" else None
    levels = rows.get("sum", {"contenders": {}})["contenders"]
    group = Group("" if mark else f"copy: {reason(copied)}", [_level(name, levels[name]) for name in in_order(levels)])
    title = "Sum of float32, L2 flushed: GB/s at each level of abstraction; intervals of 95 %"
    write_report("Sum", rows, {"": bars_svg(title, "GB/s", [group], rate_axis, 0.0, mark)}, out, run)


def write_layers(rows: Rows, out: Path, run: str) -> None:
    """Of each layer and model, how many times as fast as tinygrad's hand-coded schedules every other contender is."""

    def place(item: tuple[str, Row]) -> tuple[int, int]:
        case, kinds = item[1]["case"], list(TITLES)
        return kinds.index(case.get("name", case["kind"])), case.get("rows", 0) * case.get("width", 0)

    rows = dict(sorted(rows.items(), key=place))
    groups = [_group(key, row["contenders"]) for key, row in rows.items()]
    title = "Layers and models, L2 flushed: times as fast as tinygrad's hand-coded schedules; intervals of 95 %"
    picture = bars_svg(title, "times as fast as hand-coded, logarithmic", groups, ratio_axis, 1.0, None)
    write_report("Layers and models", rows, {"": picture}, out, run)


def _level(name: str, found: Row) -> Bar:
    if found["status"] != "ok":
        return Bar(name, reason(found), None)
    return Bar(name, f"{found['gb_s']:,.0f} GB/s, {format_seconds(found['cold_s'])}", rate(found))


def _group(key: str, contenders: Mapping[str, Row]) -> Group:
    kind, _, rest = key.partition(" ")
    first = contenders.get(FIRST, {"status": "failed", "reason": "not timed"})
    slow = first["cold_s"] if first["status"] == "ok" else None
    bars = [_against(slow, name, contenders[name]) for name in in_order(contenders) if name != FIRST]
    said = format_seconds(slow) if slow is not None else reason(first)
    return Group(f"{TITLES[kind]} {rest}; {words(FIRST)} hand-coded: {said}", bars)


def _against(slow: float | None, name: str, found: Row) -> Bar:
    if found["status"] != "ok":
        return Bar(name, reason(found), None)
    if slow is None:
        return Bar(name, format_seconds(found["cold_s"]), None)
    times, most, least = (slow / value for value in seconds(found))
    digits = 2 if times < 9.995 else 1
    return Bar(name, f"{times:.{digits}f}×, {format_seconds(found['cold_s'])}", (times, least, most))
