"""The numbers of a dataset on a terminal: some facts and one row a family, about a page in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from kcg.dataset.stats import Stats

REASONS = 2  # causes of failure that are told
ARGUMENTS = 4  # of each Opt
RUNS = 4


def render(stats: Stats, console: Console) -> None:
    """Prints the numbers."""
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(stats):
        facts.add_row(Text(name, style="bold"), Text(value))  # never as markup: the texts are foreign
    console.print(facts)
    if not stats.families:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("family", overflow="fold", min_width=12)
    for column in ("presets", "kernels", "rows", "ok", "gain", "median", "most", "of"):
        table.add_column(column, justify="right", no_wrap=True)
    for f in stats.families:
        name = f.name if len(f.presets) > 1 else f"{f.name}/{f.presets[0]}"
        gains = ["–"] * 4
        if f.speedup is not None:
            gains = [*(f"{x:.2f}×" for x in (f.speedup, f.quartiles[2], f.quartiles[4])), f"{f.compared:,}"]
        ok = share(f.ok_rows, f.rows)
        table.add_row(Text(name), f"{len(f.presets):,}", f"{f.kernels:,}", f"{f.rows:,}", ok, *gains)
    console.print()
    console.print(
        "Each family, and its best schedules against hand-coded by search timings: gain is the geometric mean"
    )
    console.print(table)


def _facts(stats: Stats) -> Iterator[tuple[str, str]]:
    low, middle, high = stats.schedules_per_kernel
    protocols = ", ".join(f"{n:,} under protocol {p}" for p, n in stats.protocols.items())
    yield "target", "; ".join(stats.targets.values()) or "none"
    unjudged = f" and {stats.unjudged_rows:,} unjudged" if stats.unjudged_rows else ""
    yield "rows", f"{stats.rows:,}, of them {stats.ok_rows:,} ok{unjudged}" + (f"; {protocols}" if protocols else "")
    yield (
        "schedules",
        f"{stats.schedules:,} distinct, {stats.ok_schedules:,} ok; least, median and most of a kernel "
        f"{low:,}, {middle:,g}, {high:,}",
    )
    yield (
        "kernels",
        f"{stats.kernels:,}; {stats.regions_measured:,} measured, {stats.ok_regions:,} with at least one row ok",
    )
    if stats.unjudged_rows:
        yield (
            "unjudged",
            f"{stats.unjudged_rows:,} rows: the reference cannot tell whether they are right; "
            f"{stats.unjudged_regions:,} kernels have none that is ok",
        )
    yield "unique binaries", f"{stats.unique_binaries:,}; {stats.sharing_schedules:,} schedules share theirs"
    yield "statuses", listed(stats.statuses, stats.rows)
    if stats.reasons:
        reasons = list(stats.reasons.items())[:REASONS]
        yield "causes", "; ".join(f"{' '.join(reason.split())[:60]} ({n:,})" for reason, n in reasons)
    yield (
        "samplers",
        "; ".join(
            f"{sampler or '(none)'} {share(n, stats.rows)}, {share(stats.sampler_statuses[sampler].get('ok', 0), n)} ok"
            for sampler, n in stats.samplers.items()
        ),
    )
    if stats.actions:
        yield "actions", "; ".join(_action(op, stats) for op in stats.actions)
        yield "walk lengths", listed(stats.walk_lengths, sum(stats.walk_lengths.values()))
    if stats.runtime_quartiles:
        least, lower, median, upper, most = map(duration, stats.runtime_quartiles)
        yield "runtimes", f"{least} to {most}; half from {lower} to {upper}, median {median}"
    if stats.dtypes:
        yield "data types", listed(stats.dtypes, sum(stats.dtypes.values()))
    if stats.splits:
        sizes = (
            f"{name} {' / '.join(f'{part.kernels:,}' for part in parts.values())}"
            for name, parts in stats.splits.items()
        )
        yield "splits", f"{', '.join(sizes)} kernels for training / validation / test"
    for name, spreads in (("noise", stats.noise_floors), ("search noise", stats.search_noise), ("drift", stats.drift)):
        if spreads:
            told = (f"{percent(s.median)} (90%: {percent(s.p90)}) {duration_class(s.shorter_than_s)}" for s in spreads)
            yield name, ", ".join(told)
    if stats.rows_per_second:
        rates = [f"{rate:,.1f}" for rate in list(stats.rows_per_second.values())[:RUNS]]
        more = len(stats.rows_per_second) - len(rates)
        yield "rows a second", ", ".join(rates) + (f" and {more} more runs" if more else "")


def _action(op: str, stats: Stats) -> str:
    """One Opt, and the arguments that are in most schedules."""
    own = next(a for a in stats.action_coverage if a.op == op and a.arg is None)
    arguments = [a.arg for a in stats.action_coverage if a.op == op and a.arg]
    shown = ", ".join([*arguments[:ARGUMENTS], *(["…"] if len(arguments) > ARGUMENTS else [])])
    return f"{op} {share(own.schedules, stats.schedules)}" + (f" ({shown})" if shown else "")


def duration_class(shorter_than_s: float | None) -> str:
    """`below 20 µs`, or `longer` for what no limit holds."""
    return "longer" if shorter_than_s is None else f"below {duration(shorter_than_s)}"


def duration(seconds: float) -> str:
    """A time with three digits: `20 µs`, `1.25 ms`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def share(part: float, whole: float) -> str:
    """`12%`, or `0.4%` where that says more; `–` of nothing."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return f"{percent:.0f}%" if percent >= 9.95 or percent == 0 else f"{percent:.1f}%" if percent >= 0.05 else "<0.1%"


def percent(fraction: float) -> str:
    """`1.2%` of 0.012."""
    return f"{100 * fraction:.1f}%" if fraction < 0.0995 else f"{100 * fraction:,.0f}%"


def listed(counts: Mapping[str, int] | Mapping[int, int], whole: int) -> str:
    """`ok 98%, wrong 2.0%`."""
    return ", ".join(f"{key} {share(n, whole)}" for key, n in counts.items()) or "none"
