"""Numbers as the report writes them: three digits, a unit, `–` where there is nothing to say."""

from __future__ import annotations

import math
from datetime import datetime

from kcg.types import Schedule


def drawable(*values: float) -> bool:
    """Whether all are numbers that a picture can show: above 0, finite, and not so far out that a ratio overflows. A
    result from anywhere may hold others."""
    return all(1e-30 < value < 1e30 for value in values)


def cut(text: str, length: int) -> str:
    """`text` in at most `length` characters."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def format_share(share: float) -> str:
    if not math.isfinite(share):
        return "–"
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def format_schedule(schedule: Schedule) -> str:
    try:
        return str(schedule)
    except (ValueError, TypeError):  # an opts body of another version
        return schedule.body


def format_count(number: float) -> str:
    """`2.4 G`: three digits and a decimal prefix."""
    for scale, prefix in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= scale * 0.9995:
            return f"{number / scale:.3g}{prefix}"
    return f"{number:.3g}"


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
