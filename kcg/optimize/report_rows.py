"""The kernels of a result in the order in which the report shows them, with what each picture and table needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from kcg.optimize.console import format_seconds
from kcg.optimize.ends import values_of, values_text
from kcg.optimize.report_text import drawable, format_count, format_share
from kcg.types import Finalist, RegionResult, Result

SOURCE_CHARACTERS = 20_000
"""A longer source is cut on the page; RESULT.json has all of it."""

ALL_SOURCES_CHARACTERS = 900_000
"""Together no more than this, so that a page of hundreds of kernels stays below 3 MB. The slowest come first."""


@dataclass(frozen=True)
class Source:
    """One kernel's text on the page; `cut` says how much is missing."""

    title: str
    finalist: Finalist
    text: str
    cut: str = ""


@dataclass(frozen=True)
class Row:
    """One kernel as the report shows it."""

    number: int  # its place in `Result.regions`
    region: RegionResult
    label: str  # tinygrad's name of it
    share: float  # of the total before; NaN where there is none
    sources: tuple[Source, ...]

    @property
    def words(self) -> str:
        """What it is, whatever its schedule: `reduce, 609 GFLOP, 173 MB, 38 calls, position 1 to 12`."""
        r = self.region
        kind = r.chosen.legend.partition(";")[0] or self.label  # what follows tells of the schedule
        work = [f"{format_count(r.operations)}FLOP"] * (r.operations > 0) + [f"{format_count(r.bytes)}B"] * (
            r.bytes > 0
        )
        return ", ".join(filter(None, [kind, *work, f"{r.calls} call{'s' * (r.calls != 1)}", values_of(r)]))

    @property
    def at_ends(self) -> str:
        """What a call takes at the smallest and at the largest values of its variables; empty where there is one set.

        `a call takes 40 µs → 31 µs with position 1, as 54% of the calls count, and …`
        """
        parts = [
            f"{format_seconds(end.before_s)} → {format_seconds(end.after_s)} with {values_text(end.variables)}, "
            f"as {format_share(end.share)} of the calls count"
            for end in self.region.ends
        ]
        return f"a call takes {', and '.join(parts)}" if parts else ""

    @property
    def timed(self) -> bool:
        """Whether it has times that can be drawn."""
        region = self.region
        return drawable(region.before_s, region.after_s, region.baseline.cold_s, region.chosen.cold_s)

    @property
    def changed(self) -> bool:
        return self.region.chosen.schedule != self.region.baseline.schedule

    @property
    def sides(self) -> tuple[tuple[str, Finalist], ...]:
        """What there is to describe: baseline and chosen, or the one that is both."""
        if not self.changed:
            return (("Baseline, kept", self.region.baseline),)
        best = () if self.region.opts is None else (("Best Opts", self.region.opts),)
        return (("Baseline", self.region.baseline), *best, ("Chosen", self.region.chosen))


def rows_of(result: Result) -> list[Row]:
    """The regions, those that took longest before first; those without a time last."""
    numbered = sorted(
        enumerate(result.regions), key=lambda r: -r[1].before_s if math.isfinite(r[1].before_s) else math.inf
    )
    total = result.total_before_s
    left = ALL_SOURCES_CHARACTERS
    rows = []
    for number, region in numbered:
        share = region.before_s / total if total > 0 else math.nan
        row = Row(number, region, region.chosen.name or region.baseline.name or region.region.id[:12], share, ())
        sources = []
        for title, finalist in row.sides:
            if not finalist.source:
                continue
            length = min(len(finalist.source), SOURCE_CHARACTERS, left)
            missing = len(finalist.source) - length
            left = max(left - len(escape(finalist.source[:length])), 0)  # as it is on the page
            cut = f"{missing:,} more characters are in the result file" if missing else ""
            sources.append(Source(title, finalist, finalist.source[:length], cut))
        rows.append(Row(number, region, row.label, share, tuple(sources)))
    return rows
