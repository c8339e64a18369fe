"""The kernels of a result in the order in which the report shows them, with what each picture and table needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kcg.pictures import drawable
from kcg.report.formats import format_count, format_seconds, format_share
from kcg.report.times import is_compared, is_timed
from kcg.report.words import values_of, values_text
from kcg.types import Finalist, RegionResult, Result


@dataclass(frozen=True)
class Row:
    """One kernel as the report shows it."""

    number: int  # its place in `Result.with_inside`
    region: RegionResult
    label: str  # tinygrad's name of it
    share: float  # of the total before; NaN where there is none

    @property
    def title(self) -> str:
        """Its name; a region of several kernels by its form, which says more: `5 kernels as one: row group`."""
        kernels = self.region.region.kernels
        if len(kernels) == 1:
            return self.label
        form = self.region.chosen.legend.partition(";")[0]
        return f"{len(kernels)} kernels as one" + f": {form}" * (self.changed and form != self.label)

    @property
    def place(self) -> str:
        """Where most of its calls come from, or what it is called where that is not known."""
        return self.region.origins[0][0] if self.region.origins else self.label

    @property
    def words(self) -> str:
        """What it is, whatever its schedule: `img_attn.qkv, 609 GFLOP, 173 MB, 38 calls, position 1 to 12`; the layer
        or line that most calls come from, or else what kind of kernel it is."""
        r = self.region
        kind = r.origins[0][0] if r.origins else r.chosen.legend.partition(";")[0]  # what follows is of the schedule
        kind = kind or self.label
        work = [f"{format_count(r.operations)}FLOP"] * (r.operations > 0) + [f"{format_count(r.bytes)}B"] * (
            r.bytes > 0
        )
        return ", ".join(filter(None, [kind, *work, f"{r.calls} call{'s' * (r.calls != 1)}", values_of(r)]))

    @property
    def at_bounds(self) -> str:
        """What a call takes at each end of the values of its variables; empty where there is one set.

        `a call takes 40 µs → 31 µs with position 1, as 54% of the calls count, and …`
        """
        later = is_compared(self.region)
        parts = [
            f"{format_seconds(end.before_s)}{f' → {format_seconds(end.after_s)}' if later else ''} with "
            f"{values_text(end.variables)}, as {format_share(end.share) if end.share else 'none'} of the calls count"
            for end in self.region.ends
            if is_timed(self.region)
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
        """What there is to describe: baseline and chosen, or the one that is both; then the best not chosen."""
        if not self.changed:
            return (("Baseline, kept", self.region.baseline),)
        title = "Best of its parts" if self.region.region.args else "Best Opts"
        opts = self.region.opts
        best = () if opts is None or opts.schedule == self.region.baseline.schedule else ((title, opts),)
        return (("Baseline", self.region.baseline), ("Chosen", self.region.chosen), *best)


def rows_of(result: Result) -> list[Row]:
    """The regions, those that took longest before first; those without a time last."""
    numbered = sorted(
        enumerate(result.regions), key=lambda r: -r[1].before_s if math.isfinite(r[1].before_s) else math.inf
    )
    return [_row(number, region, result.total_before_s) for number, region in numbered]


def inside_of(result: Result) -> list[Row]:
    """The kernels that regions run everywhere, which are in no picture of where the time goes."""
    rows = enumerate(result.with_inside)
    return [_row(number, region, result.total_before_s) for number, region in rows if number >= len(result.regions)]


def _row(number: int, region: RegionResult, total_s: float) -> Row:
    name = region.chosen.name or region.baseline.name or region.region.id[:12]
    return Row(number, region, name, region.before_s / total_s if total_s > 0 else math.nan)
