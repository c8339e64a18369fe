"""What the rows of the comparison come to: figures with their thresholds, and tables for docs/experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.rows import Row, rounded
from evaluation.tiles.summary import COPIES, MODES, OURS, SUMS, Group, classes, micro, seconds, share
from evaluation.tiles.summary import headline as figures_of

PARTS = "parts"  # the best known schedules of a region's kernels as one program
NORMS, QKV, SMALL, ATTENTION, DECODE, VECTORS = "norms", "qkv", "small", "attention", "decode", "vectors"
BACKENDS = ("flash", "cudnn", "efficient")  # of PyTorch's attention
SMALL_FIGURE, MOST_OF_TIME = "small_parts_vs_compile", 0.5
GROUPS = (
    Group(NORMS, "", "norms_vs_compile", MODES, (OURS,), None, 1.0, "softmax, norms, cross-entropy"),
    Group(NORMS, "short", "norms_of_copy_bandwidth", COPIES, (OURS,), None, 0.90, "beside a copy, rows of up to 16k"),
    Group(NORMS, "wide", "wide_norms_of_copy_bandwidth", COPIES, (OURS,), None, 0.85, "beside a copy, rows beyond 16k"),
    Group(NORMS, "", "norms_vs_parts", (PARTS,), (OURS,), words="beside their parts as one program"),
    Group(QKV, "", "qkv_vs_compile", MODES, (OURS,), None, 1.3, "projection, norms of heads, rotations"),
    Group(QKV, "", "qkv_vs_parts", (PARTS,), (OURS,), words="beside their parts as one program"),
    Group(ATTENTION, "1024", "attention_vs_sdpa_1024", BACKENDS, (OURS,), None, 0.92, "attention of Flux at 1024"),
    Group(ATTENTION, "768", "attention_vs_sdpa_768", BACKENDS, (OURS,), None, 0.92, "attention of Flux at 768"),
    Group(ATTENTION, "causal", "causal_vs_sdpa", BACKENDS, (OURS,), None, 0.88, "causal attention"),
    Group(DECODE, "4k", "decode_vs_sdpa_4k", BACKENDS, (OURS,), words="attention of one token, 4,096 keys"),
    Group(DECODE, "32k", "decode_vs_sdpa_32k", BACKENDS, (OURS,), words="attention of one token, 32,768 keys"),
    Group(VECTORS, "", "vectors_vs_parts", (PARTS,), (OURS,), words="products of one vector beside the single ones"),
    Group(VECTORS, "", "vectors_of_read_bandwidth", SUMS, (OURS,), words="the same beside a sum of as many bytes"),
    Group(SMALL, "", "small_vs_parts", (PARTS,), (OURS,), words="small parts beside theirs as one program"),
)
SMALL_KINDS = (OURS, PARTS)  # whichever is faster is what a plan takes


def headline(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The figures of a run. `small_parts_vs_compile` is a share of time, of the preset where it is larger."""
    figures = figures_of(rows, GROUPS)
    shares = {}
    for preset in dict.fromkeys(row["group"] for row in rows.values() if row["section"] == SMALL):
        if (both := small_seconds(rows, preset)) is not None:
            ours, theirs = both
            shares[preset] = rounded(ours / theirs)
    figures |= {f"{SMALL_FIGURE}_{preset}": value for preset, value in shares.items()}
    return figures | ({SMALL_FIGURE: max(shares.values())} if shares else {})


def small_seconds(rows: Mapping[str, Row], preset: str) -> tuple[float, float] | None:
    """What the small parts of a step take with kcg and with torch.compile; None where one of them has no time."""
    of = [row for row in rows.values() if row["section"] == SMALL and row["group"] == preset]
    times = [(row["calls"], seconds(row, SMALL_KINDS), seconds(row, MODES)) for row in of]
    found = [(calls, ours, theirs) for calls, ours, theirs in times if ours and theirs]
    if not found or len(found) < len(of):
        return None
    return sum(calls * ours for calls, ours, _ in found), sum(calls * theirs for calls, _, theirs in found)


def tables(report: Mapping[str, Any], run: str) -> Iterator[str]:
    """Markdown: the figures with their thresholds, then a table of each section."""
    rows = report["runs"][run]["rows"]
    yield from classes(rows, GROUPS)
    for preset in dict.fromkeys(row["group"] for row in rows.values() if row["section"] == SMALL):
        if (both := small_seconds(rows, preset)) is not None:
            ours, theirs = both
            yield (
                f"| small parts of a step at {preset}, of torch.compile's time: {ours * 1e3:.2f} of {theirs * 1e3:.2f} "
                f"ms | | {ours / theirs:.2f} | | at most {MOST_OF_TIME:g} |"
            )
    for section in (NORMS, QKV, SMALL, ATTENTION, DECODE, VECTORS):
        of_section = {key: row for key, row in rows.items() if row["section"] == section}
        if of_section:
            yield ""
            yield from table(section, of_section)


ITS_PARTS = ("its parts", (PARTS,))
BESIDE_COMPILE = (
    (ITS_PARTS, *((mode, (mode,)) for mode in MODES), ("copy of as many bytes", COPIES)),
    (("of torch.compile", MODES), ("of the copy", COPIES)),
)
BESIDE_PYTORCH = (ITS_PARTS, *((one, (one,)) for one in BACKENDS)), (("of PyTorch", BACKENDS),)
BESIDE_SUMS = (ITS_PARTS, ("sum of as many bytes", SUMS)), (("of the sum", SUMS), ("of its parts", (PARTS,)))
_BESIDE = {ATTENTION: BESIDE_PYTORCH, DECODE: BESIDE_PYTORCH, VECTORS: BESIDE_SUMS}
"""Section -> contenders that have a column, by its head; and those of whose speed a region's is a share, who is to be
beaten first. Of other sections it is torch.compile."""


def table(section: str, rows: Mapping[str, Row]) -> Iterator[str]:
    """The cases of a section, µs, the worst beside who is to be beaten first."""
    columns, shares = _BESIDE.get(section, BESIDE_COMPILE)
    groups = [Group("", "", "", names, (OURS,)) for _, names in shares]
    heads = ["region", *(head for head, _ in (*columns, *shares))]
    yield f"| {section}, µs | calls | {' | '.join(heads)} | program |"
    yield "|" + "---|" * (len(heads) + 3)
    for key, row in sorted(rows.items(), key=lambda item: share(item[1], groups[0]) or 0.0):
        cells = [micro(seconds(row, of)) for of in ((OURS,), *(names for _, names in columns))]
        cells += [f"{ratio:.2f}" if (ratio := share(row, of)) else "–" for of in groups]
        cells.append(row.get("tile_program", "–"))
        yield f"| {key.removeprefix(section).strip()} | {row['calls']} | {' | '.join(cells)} |"
