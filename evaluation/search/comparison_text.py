"""A comparison of strategies as Markdown tables, and its regret curves as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from evaluation.search.comparison import BEAM, RANDOM

Entry = Mapping[str, Any]
"""What `evaluation.search.regret.entry` tells."""

WEIGHTED, MEAN = ("weighted", "low", "high"), ("mean", "mean_low", "mean_high")


def sections(entry: Entry, headline: Mapping[str, Any], part: str, picture: str) -> dict[str, list[str]]:
    """The generated parts of the document, by the name of their mark. `picture` is the file of the curves."""
    on_device = {f"{part}-wall": wall_table(entry)} if "costs" in entry else {}
    return on_device | {
        f"{part}-figures": _figures(entry, headline),
        f"{part}-weighted": quality_table(entry, WEIGHTED),
        f"{part}-unweighted": quality_table(entry, MEAN),
        f"{part}-beam": beam_table(entry),
        f"{part}-pairs": pairs_table(entry, WEIGHTED),
        f"{part}-pairs-unweighted": pairs_table(entry, MEAN),
        f"{part}-effort": effort_table(entry),
        f"{part}-regret": [f"![time above the optimum against measurements, by strategy]({picture})"],
    }


def quality_table(entry: Entry, of: tuple[str, str, str]) -> list[str]:
    """Contenders by budgets: the optimum's time over that of the best known, with its interval."""
    lines = _header("strategy", [str(n) for n in entry["budgets"]])
    for name, report in entry["contenders"].items():
        lines.append(_row(name, [_cell(report["quality"][n], of) for n in entry["budgets"]]))
    settings = entry["settings"]
    count = f"{len(entry['kernels'])} kernels, {settings['seeds']} seeds."
    return [*lines, "", f"{count} Columns: measurements of a kernel, the baseline's included."]


def beam_table(entry: Entry) -> list[str]:
    """Where each BEAM ends, and what it measures for that."""
    lines = ["| | measurements of a kernel | at most | quality | unweighted |", "|---|---|---|---|---|"]
    for width, report in entry["beams"].items():
        quality = report["quality"]
        cells = [
            f"{report['measurements']:.0f}",
            str(report["most_measurements"]),
            _cell(quality, WEIGHTED),
            _cell(quality, MEAN),
        ]
        lines.append(_row(f"BEAM={width}", cells))
    return lines


def pairs_table(entry: Entry, of: tuple[str, str, str]) -> list[str]:
    """How many times as long each other contender's best takes as the default's; bold where the interval is above 1 or
    below it."""
    budgets = [n for n in entry["budgets"] if n >= 4] or entry["budgets"]
    lines = _header(f"`{entry['settings']['default']}` against", [str(n) for n in budgets])
    for name, report in entry["pairs"].items():
        cells = []
        for n in budgets:
            apart = round(report[n][of[1]], 3) > 1 or round(report[n][of[2]], 3) < 1
            cells.append(f"**{_cell(report[n], of)}**" if apart else _cell(report[n], of))
        lines.append(_row(name, cells))
    return lines


def effort_table(entry: Entry) -> list[str]:
    """What a replay costs beside measuring."""
    lines = _header("strategy", ["measured", "of these failed", "predicted", "seconds of one core"])
    for name, report in entry["contenders"].items():
        numbers = [f"{report[key]:.0f}" for key in ("measurements", "failures", "evaluations")]
        lines.append(_row(name, [*numbers, f"{report['search_s']:.3f}"]))
    note = "Not in the seconds: predicting, which replays share. What a policy says is in those of the first that asks."
    return [*lines, "", f"Means over kernels and seeds. {note}"]


def wall_table(entry: Entry) -> list[str]:
    """Of a comparison on a device: what each contender's winners make of the workload, and what a kernel cost it."""
    count = len(entry["kernels"])
    costs = {name: (report["measurements"], report["wall_s"]) for name, report in entry["costs"].items()}
    for width, report in entry["tinygrad-beam"].items():
        if report["kernels"] == count:
            costs[f"tinygrad-beam:{width}"] = (report["binaries"] / count, report["wall_s"] / count)
    lines = _header("strategy", ["time of the kernels", "measured", "seconds, from cold"])
    for name, report in sorted(entry["totals"].items(), key=lambda item: item[1]["total_s"]):
        measured, wall_s = costs.get(name, (1.0, 0.0))
        cells = [f"{1e3 * report['total_s']:.1f} ms", f"{measured:.0f}", f"{wall_s:.1f}" if wall_s else ""]
        lines.append(_row(name, cells))
    note = "Winners timed again with all samples, times weighted by calls; measurements and seconds of a kernel, means."
    return [*lines, "", f"{count} kernels. {note}"]


def _figures(entry: Entry, headline: Mapping[str, Any]) -> list[str]:
    """The headline in words."""
    default, found = entry["settings"]["default"], []

    def ratio(key: str) -> str:
        low, high, mean = (headline[f"{key}_{end}"] for end in ("low", "high", "mean"))
        return f"{headline[key]:.3f} ({low:.3f}–{high:.3f}; {mean:.3f} unweighted)"

    if headline.get("quality_vs_beam4") is not None:
        found.append(
            f"- `{default}` with {headline['quality_vs_beam4_measurements_per_kernel']:.0f} measurements of a kernel, "
            f"a twentieth of BEAM=4's {headline['beam4_measurements_per_kernel']:.0f}: BEAM=4's time over its own is "
            f"{ratio('quality_vs_beam4')}."
        )
        needed, allocated = headline["measurements_vs_beam4"], headline.get("measurements_vs_beam4_dealt")
        by_saving = (
            f"; {_share(allocated)} where they are allocated by what they are expected to save" if allocated else ""
        )
        found.append(
            f"- To come within 1 % of BEAM=4 it needs {_share(needed)} of BEAM=4's measurements, the same number for "
            f"each kernel{by_saving}."
        )
    for key, what in (("unmeasured", "prediction alone"), ("unmeasured_policy", "the policy's likeliest steps")):
        if headline.get(f"{key}_vs_beam4") is not None:
            found.append(
                f"- Without any measurement, by {what}: {ratio(f'{key}_vs_beam4')} times BEAM=4's time; not slower "
                f"than hand-coded on {headline[f'{key}_not_slower_than_hand_coded']:.0%} of the kernels."
            )
    for key in (k for k in headline if k.startswith("kernels_with_room_after_beam")):
        width = key.removeprefix("kernels_with_room_after_beam")
        gain = f"gain_with_room_on_beam{width}"
        line = f"- BEAM={width} leaves 3 % or more to the optimum on {headline[key]} of {len(entry['kernels'])} kernels"
        note = (
            f"; with as many measurements `{default}` is {ratio(gain)} times as fast there" if gain in headline else ""
        )
        found.append(f"{line}{note}.")
    return found or ["- No BEAM was replayed."]


def _share(value: float | None) -> str:
    return "more than its budget" if value is None else f"1/{1 / value:.0f}"


def _header(first: str, columns: Sequence[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def _cell(report: Mapping[str, float], of: tuple[str, str, str]) -> str:
    value, low, high = (report[key] for key in of)
    return f"{value:.3f} ({low:.3f}–{high:.3f})"


# The picture

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 34, 50  # margins; the names stand in the right one
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#111111")
"""Told apart by the colour-blind (Okabe & Ito, 2008)."""
GREY: Final = "#777777"
LEAST: Final = 1e-3  # of regret: what is below is drawn there
LABEL_STEP: Final = 15.0  # pixels between two names


def regret_svg(entry: Entry) -> str:
    """Regret against measurements, both on logarithmic axes: a line for each contender that is no ablation, intervals
    of the default and of random search, and a mark where each BEAM ends."""
    settings = entry["settings"]
    names = [n for n in entry["contenders"] if "/" not in n and not n.startswith(BEAM) and n != settings["default"]]
    names.insert(0, settings["default"])
    curves = {name: entry["contenders"][name]["regret"] for name in names}
    beams = {
        f"BEAM={width}": (report["measurements"], 1 / report["quality"]["weighted"] - 1)
        for width, report in entry["beams"].items()
    }
    most_x = max([settings["budget"], *(n for n, _ in beams.values())])
    tops = [curve["weighted"][0] for curve in curves.values()]
    decades = (math.log10(LEAST), max(math.ceil(math.log10(max([*tops, 10 * LEAST]))), -2))

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(max(n, 1)) / math.log2(max(most_x, 2))

    def y(regret: float) -> float:
        place = (math.log10(max(regret, LEAST)) - decades[0]) / (decades[1] - decades[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(place, 1.0)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12" role="img">',
        f"<title>Time above the optimum after n measurements of each of {len(entry['kernels'])} kernels</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" fill="#222">time above the optimum, weighted by calls; '
        f"{settings['seeds']} seeds, bands of 95 %</text>",
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" fill="#222" text-anchor="middle">'
        "measurements of each kernel</text>",
    ]
    for power in range(math.floor(decades[0]), math.floor(decades[1]) + 1):
        parts.append(_tick(LEFT, y(10.0**power), WIDTH - RIGHT, y(10.0**power)))
        note = f"{10.0 ** (power + 2):g} %" if power > decades[0] else f"≤ {100 * LEAST:g} %"
        parts.append(f'<text x="{LEFT - 8}" y="{y(10.0**power) + 4:.1f}" fill="#555" text-anchor="end">{note}</text>')
    for power in range(math.floor(math.log2(most_x)) + 1):
        parts.append(_tick(x(2**power), TOP, x(2**power), HEIGHT - BOTTOM))
        parts.append(
            f'<text x="{x(2**power):.1f}" y="{HEIGHT - BOTTOM + 18}" fill="#555" text-anchor="middle">{2**power}</text>'
        )
    labels = []
    for name, curve in curves.items():
        colour, dash = _style(name, names.index(name))
        points = list(enumerate(curve["weighted"], 1))
        if name in (settings["default"], RANDOM):
            band = [(n, v) for n, v in enumerate(curve["high"], 1)]
            band += [(n, v) for n, v in reversed(list(enumerate(curve["low"], 1)))]
            parts.append(f'<polygon points="{_points(band, x, y)}" fill="{colour}" opacity="0.13"/>')
        wide = 2.6 if name == settings["default"] else 1.6
        parts.append(
            f'<polyline points="{_points(points, x, y)}" fill="none" stroke="{colour}" stroke-width="{wide}"{dash}/>'
        )
        labels.append((y(points[-1][1]), name, colour, dash))
    for name, (n, regret) in beams.items():
        parts.append(f'<circle cx="{x(n):.1f}" cy="{y(regret):.1f}" r="4" fill="#111"/>')
        right = x(n) > WIDTH - RIGHT - 60  # its name would reach into the legend
        step, anchor = (-7, "end") if right else (7, "start")
        place = f'x="{x(n) + step:.1f}" y="{y(regret) - 6:.1f}" text-anchor="{anchor}"'
        parts.append(f'<text {place} fill="#111">{name}</text>')
    return "\n".join([*parts, *_names(labels), "</svg>", ""])


def _points(points: Sequence[tuple[int, float]], x: Any, y: Any) -> str:
    return " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in points)


def _tick(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e4e4e4"/>'


def _style(name: str, place: int) -> tuple[str, str]:
    """A colour, and from the second round of colours on a dash; random, which is to be beaten, is grey."""
    dash = ' stroke-dasharray="5 3"' if place >= len(COLOURS) else ""
    return (GREY, "") if name == RANDOM else (COLOURS[place % len(COLOURS)], dash)


def _names(labels: Sequence[tuple[float, str, str, str]]) -> list[str]:
    """A legend beside the ends of the lines, in their order from the top, no two on top of each other."""
    found, last = [], TOP - LABEL_STEP
    ordered = sorted(labels)
    for place, (height, name, colour, dash) in enumerate(ordered):
        lowest = HEIGHT - BOTTOM - LABEL_STEP * (len(ordered) - 1 - place)
        last = max(min(height, lowest), last + LABEL_STEP)
        left = WIDTH - RIGHT + 14
        found.append(
            f'<line x1="{left}" y1="{last:.1f}" x2="{left + 18}" y2="{last:.1f}" stroke="{colour}" '
            f'stroke-width="2.4"{dash}/>'
        )
        found.append(f'<text x="{left + 24}" y="{last + 4:.1f}" fill="#222">{escape(name)}</text>')
    return found
