"""Numbers for reading: times, counts, bytes and rates, three digits and a unit."""

from __future__ import annotations

import math
from datetime import datetime

from kcg.kernel.kinds import describe
from kcg.types import Schedule

_UNITS = ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


def format_seconds(seconds: float | None) -> str:
    """A time for reading, three digits and a unit: `411 µs`, `12.3 ms`, `5 min 12 s`; `–` where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds == 0:
        return "0 s"
    for scale, unit in _UNITS:
        value = seconds / scale
        if value < (999.5 if unit != "s" else 99.95):
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_count(number: float) -> str:
    """`2.4 G`: three digits and a decimal prefix."""
    for scale, prefix in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= scale * 0.9995:
            return f"{number / scale:.3g}{prefix}"
    return f"{number:.3g}"


def format_moved(size: float) -> str:
    """Bytes that are moved: `56.7 MB`, `480 B`."""
    text = format_count(size)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def format_speedup(before_s: float, after_s: float) -> str:
    """`1.52×`: how many times faster; `–` where one of the times is missing."""
    if not (math.isfinite(before_s) and math.isfinite(after_s)) or before_s < 0 or after_s <= 0:
        return "–"
    ratio = before_s / after_s
    return f"{ratio:.2f}×" if ratio < 99.95 else f"{ratio:,.0f}×"


def cut(text: str, length: int) -> str:
    """`text` in at most `length` characters."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def format_share(share: float) -> str:
    if not math.isfinite(share):
        return "–"
    if share == 0:
        return "0%"
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def format_schedule(schedule: Schedule) -> str:
    return describe(schedule)


def format_rate(amount: float, seconds: float) -> str:
    """`amount` per second, `–` where either is missing."""
    if not (math.isfinite(seconds) and seconds > 0 and amount > 0):
        return "–"
    text = format_count(amount / seconds)
    return text if text[-1].isalpha() else text + " "


def format_error(error: float) -> str:
    return f"{error:.2g}" if math.isfinite(error) else "not finite"


def format_bytes(number: int) -> str:
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} B"


def format_launch(launch: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """`grid 40 × 2 × 8, group 16 × 4`."""
    grid, group = (" × ".join(map(str, size)) or "–" for size in launch)
    return f"grid {grid}, group {group}"


def format_date(created: str) -> str:
    """`14 March 2026, 15:09 UTC` of an ISO date and time."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    zone = moment.strftime("%Z") if moment.tzinfo else ""
    return f"{moment.day} {moment:%B %Y, %H:%M} {zone}".strip()


def format_factor(factor: float) -> str:
    return f"{factor:.2f}×" if factor < 9.995 else f"{factor:.3g}×"


def short_seconds(seconds: float) -> str:
    """`50 ms`, `0.1 µs`: a round time at an axis."""
    if seconds == 0:
        return "0"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale * 0.9999:
            return f"{seconds / scale:g} {unit}" if seconds < 1e4 else format_seconds(seconds)
    return f"{seconds / 1e-9:g} ns"


def short_count(value: float) -> str:
    return f"{value:.3g}" if 0.01 <= value < 999.5 else format_count(value)
