"""What the rows of the comparison come to: figures with their thresholds, and tables for docs/experiments."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.rows import Row, rounded

OURS, OPTS = "tile", "opts"
KINDS = (OURS, OPTS)


@dataclass(frozen=True)
class Group:
    """A class of cases. More is better: the contenders' time over kcg's."""

    section: str
    group: str  # empty: all of the section
    figure: str  # its name in the headline, as a geometric mean
    contenders: tuple[str, ...]  # the fastest of them is the one to beat
    kinds: tuple[str, ...]  # of schedule that count
    mean: float | None = None  # thresholds
    least: float | None = None
    words: str = ""

    @property
    def least_figure(self) -> str:
        """The name of its worst case in the headline."""
        return f"{self.figure.removesuffix('_geomean')}_min"


MODES = ("default", "max-autotune-no-cudagraphs")
RESIDUAL = ("cudnn with residual", "default with residual")
COPIES = ("copy", "copy by a kernel")
SUMS = ("sum", "sum of rows", "sum tile 0", "sum tile 1", "sum tile 2", "sum opts")
GROUPS = (
    Group("matmul", "", "regions_vs_compile_geomean", MODES, (OURS,), 1.0, 0.87, "matmuls, all"),
    Group("matmul", "1024", "regions_vs_compile_1024_geomean", MODES, (OURS,), 1.0, 0.87, "matmuls at 1024"),
    Group("matmul", "768", "regions_vs_compile_768_geomean", MODES, (OURS,), 1.0, 0.87, "matmuls at 768"),
    Group("rows", "short", "rows_of_copy_bandwidth", COPIES, KINDS, None, 0.90, "rows of up to 16k, elementwise"),
    Group("rows", "wide", "wide_rows_of_copy_bandwidth", COPIES, KINDS, None, 0.85, "rows beyond 16k"),
    Group("gemv", "from 64 MB", "gemv_of_read_bandwidth", SUMS, (OURS,), None, 0.90, "matrix-vector, 64 MB on"),
    Group("gemv", "from 16 MB", "gemv16_of_read_bandwidth", SUMS, (OURS,), None, 0.75, "matrix-vector, 16 to 64 MB"),
    Group("conv", "1x1", "conv1_vs_cudnn", ("cudnn",), (OURS,), None, 0.6, "convolutions 1x1"),
    Group(
        "conv",
        "1x1",
        "conv1_vs_residual",
        RESIDUAL,
        (OURS,),
        words="convolutions 1x1 with a residual, of cuDNN with it",
    ),
    Group("conv", "3x3", "conv3_vs_cudnn", ("cudnn",), (OURS,), None, 0.35, "convolutions 3x3"),
    Group("conv", "7x7", "conv7_vs_cudnn", ("cudnn",), (OURS,), words="convolution 7x7"),
)


def seconds(row: Row, names: Sequence[str]) -> float | None:
    """Of the fastest of some contenders that were timed."""
    found = row.get("contenders", {})
    names = [row.get("tile", "") if name == OURS else name for name in names]
    return min((found[n]["cold_s"] for n in names if found.get(n, {}).get("status") == "ok"), default=None)


def share(row: Row, group: Group) -> float | None:
    """How fast kcg is, of the fastest contender; None where one of them has no time."""
    theirs, ours = seconds(row, group.contenders), seconds(row, group.kinds)
    return theirs / ours if theirs and ours else None


def rows_of(rows: Mapping[str, Row], group: Group) -> dict[str, Row]:
    """The rows of a class."""
    return {
        key: row for key, row in rows.items() if row["section"] == group.section and group.group in ("", row["group"])
    }


def class_of(row: Row) -> Group:
    """The class that a row is judged in."""
    return next(group for group in GROUPS if (group.section, group.group) == (row["section"], row["group"]))


def headline(rows: Mapping[str, Row], groups: Sequence[Group] = GROUPS) -> dict[str, Any]:
    """The figures of a run, and of how many cases each is: those without a time count as missing, not as 0."""
    found: dict[str, Any] = {}
    for group in groups:
        shares = [s for row in rows_of(rows, group).values() if (s := share(row, group)) is not None]
        if shares:
            found[group.figure] = rounded(statistics.geometric_mean(shares))
            found[group.least_figure] = rounded(min(shares))
            found[f"{group.figure.removesuffix('_geomean')}_cases"] = len(shares)
    return found


def tables(report: Mapping[str, Any], run: str, *, most: int = 0) -> Iterator[str]:
    """Markdown: the figures with their thresholds, then a table of each section, of its worst `most` cases."""
    rows = report["runs"][run]["rows"]
    yield from classes(rows, GROUPS)
    for section in dict.fromkeys(group.section for group in GROUPS):
        of_section = {key: row for key, row in rows.items() if row["section"] == section}
        if of_section:
            yield ""
            yield from table(section, of_section, most=most)


def classes(rows: Mapping[str, Row], groups: Sequence[Group]) -> Iterator[str]:
    """Markdown: the figures of some classes with their thresholds."""
    figures = headline(rows, groups)
    yield from ("| class | cases | mean | worst | asked for |", "|---|---|---|---|---|")
    for group in groups:
        of = rows_of(rows, group)
        if group.figure in figures:
            cases = figures[f"{group.figure.removesuffix('_geomean')}_cases"]
            asked = [f"mean {group.mean:g}"] if group.mean else []
            asked += [f"worst {group.least:g}"] if group.least else []
            count = str(cases) if cases == len(of) else f"{cases} of {len(of)}"
            mean, worst = figures[group.figure], figures[group.least_figure]
            yield f"| {group.words} | {count} | {mean:.2f} | {worst:.2f} | {', '.join(asked) or '–'} |"


COLUMNS = {
    "matmul": (*MODES, "cublas"),
    "rows": ("copy of as many bytes",),
    "gemv": ("sum of as many bytes",),
    "conv": ("cudnn", "cudnn channels last", "cudnn with residual"),
}
FASTEST_OF = {"copy of as many bytes": COPIES, "sum of as many bytes": SUMS, RESIDUAL[0]: RESIDUAL}


def table(section: str, rows: Mapping[str, Row], *, most: int = 0) -> Iterator[str]:
    """The cases of a section, µs, the worst first; `most` of them, 0: all."""
    columns = COLUMNS[section]
    yield f"| {section}, µs | calls | tile | Opts (from) | {' | '.join(columns)} | of it | tile program |"
    yield "|" + "---|" * (len(columns) + 6)
    shares = {key: share(row, class_of(row)) for key, row in rows.items()}
    for key in sorted(rows, key=lambda key: shares[key] or 0.0)[: most or None]:
        row = rows[key]
        times = [micro(seconds(row, (OURS,))), f"{micro(seconds(row, (OPTS,)))} ({row.get('opts_from', '–')})"]
        times += [micro(seconds(row, FASTEST_OF.get(column, (column,)))) for column in columns]
        ratio = f"{shares[key]:.2f}" if shares[key] is not None else "–"
        name = key.removeprefix(section).strip()
        yield f"| {name} | {row['calls']} | {' | '.join(times)} | {ratio} | {row.get('tile_program', '–')} |"


def micro(value: float | None) -> str:
    """Seconds as microseconds."""
    return "–" if value is None else f"{value * 1e6:.1f}" if value < 1e-3 else f"{value * 1e6:.0f}"
