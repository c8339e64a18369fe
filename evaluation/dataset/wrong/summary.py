"""Figures of programs that were judged: outcomes by group and form, shares that are wrong, how often the fastest is.

Shares are of the programs that were launched and are known to be right, wrong or faulty; `outcomes.py` has the words.
Programs of one region are not independent, so intervals are 95 % bootstrap intervals over regions: all programs of a
region are drawn together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from evaluation.dataset.wrong.outcomes import (
    COMPILING,
    CUT,
    FAULTS,
    LAUNCHED,
    OK,
    OUTCOMES,
    WRONG_ONES,
    Row,
    alike,
)
from evaluation.dataset.wrong.raw_programs import FINALIST, LEGAL, RAW
from evaluation.predictor.intervals import ratio_interval

ILLEGAL, RAW_LEGAL, DRAWN_LEGAL, FINALISTS = "raw, not legal", "raw, legal", "drawn from the legal", "finalists"
GROUPS: Final = (ILLEGAL, RAW_LEGAL, DRAWN_LEGAL, FINALISTS)

Ratio = tuple[float, float]
"""What is counted, and of how many."""


def group_of(row: Row) -> str:
    """Which programs a row is counted with."""
    if row["drawn"] == RAW:
        return RAW_LEGAL if is_legal(row) else ILLEGAL
    return {LEGAL: DRAWN_LEGAL, FINALIST: FINALISTS}[row["drawn"]]


def is_legal(row: Row) -> bool:
    """Whether the rules allow it."""
    return not row["rules"]


def is_wrong(row: Row) -> bool:
    """Whether it ran and did not do what it should."""
    return row["outcome"] in WRONG_ONES


# ---- shares and their intervals


def share(rows: Iterable[Row], counts: Callable[[Row], bool], of: Callable[[Row], bool]) -> dict[str, Any]:
    """Of the rows that are `of` it the share that `counts`, with its interval over regions."""
    regions: dict[str, Ratio] = defaultdict(lambda: (0.0, 0.0))
    for row in rows:
        if of(row):
            hits, count = regions[row["region"]]
            regions[row["region"]] = (hits + counts(row), count + 1)
    return ratio(list(regions.values()))


def ratio(parts: Sequence[Ratio]) -> dict[str, Any]:
    """A ratio of sums over regions, with its interval; no share where nothing is counted."""
    hits, count = (sum(part[place] for part in parts) for place in (0, 1))
    found: dict[str, Any] = {"count": int(hits), "of": int(count), "regions": len(parts)}
    if count:
        low, high = ratio_interval(parts)
        found |= {"share": round(hits / count, 5), "low": round(low, 5), "high": round(high, 5)}
    return found


def launched(row: Row) -> bool:
    return row["outcome"] in LAUNCHED


# ---- the fastest of a region


def fastest_of(rows: Iterable[Row]) -> dict[str, Row]:
    """The fastest program of each region, right or wrong, of those that ran and have a time; of regions where at least
    one is right and one more ran."""
    regions: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["outcome"] in (OK, *WRONG_ONES) and row.get("seconds"):
            regions[row["region"]].append(row)
    judged = {name: some for name, some in regions.items() if len(some) > 1 and any(r["outcome"] == OK for r in some)}
    return {name: min(some, key=lambda row: float(row["seconds"])) for name, some in judged.items()}


# ---- all figures


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """All that is said of rows."""
    groups: dict[str, list[Row]] = {name: [] for name in GROUPS}
    for row in rows:
        groups[group_of(row)].append(row)
    raw = [*groups[ILLEGAL], *groups[RAW_LEGAL]]
    legal = groups[DRAWN_LEGAL] or groups[RAW_LEGAL]
    fastest = {name: fastest_of(some) for name, some in (("raw", raw), ("legal", legal))}
    forms = sorted({row["form"] for row in rows})
    return {
        "rows": len(rows),
        "regions": len({row["region"] for row in rows}),
        "outcomes": {name: ordered(Counter(row["outcome"] for row in some)) for name, some in groups.items() if some},
        "by_form": {
            form: {
                name: ordered(Counter(row["outcome"] for row in some if row["form"] == form))
                for name, some in groups.items()
                if any(row["form"] == form for row in some)
            }
            for form in forms
        },
        "wrong": {
            "raw": share(raw, is_wrong, launched),
            "raw, not legal": share(groups[ILLEGAL], is_wrong, launched),
            "legal": share(legal, is_wrong, launched),
            "finalists": share(groups[FINALISTS], is_wrong, launched),
        },
        "faults": {
            name: share(some, lambda row: row["outcome"] in FAULTS, launched)
            for name, some in (("raw", raw), ("legal", legal))
        },
        "wrong_by_form": {form: share((r for r in raw if r["form"] == form), is_wrong, launched) for form in forms},
        "raw_legal": share(raw, is_legal, lambda row: True),
        "wrong_excluded": share(raw, lambda row: not is_legal(row), is_wrong),
        "faults_excluded": share(raw, lambda row: not is_legal(row), lambda row: row["outcome"] in FAULTS),
        "right_excluded": share(raw, lambda row: not is_legal(row), lambda row: row["outcome"] == OK),
        "fastest_wrong": {
            name: ratio([(float(is_wrong(row)), 1.0) for row in some.values()]) for name, some in fastest.items()
        },
        "by_rule": by_rule(raw),
        "by_stage": ordered(Counter(row.get("stage", "") for row in rows if is_wrong(row))),
        "not_compiled": dict(
            Counter(alike(row.get("reason", "")) for row in rows if row["outcome"] in COMPILING).most_common(30)
        ),
        "class_cut": sum(row["outcome"] == CUT for row in rows),
        "short_of_launches": sum(row["outcome"] == OK and row["launches"] < row["asked"] for row in rows),
    }


def by_rule(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Outcomes by form and first rule that is broken."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[f"{row['form']}; {row['rules'][0] if row['rules'] else 'legal'}"][row["outcome"]] += 1
    return {name: ordered(counts) for name, counts in sorted(found.items(), key=lambda one: -one[1].total())}


def by_another_compiler(rows: Iterable[Row], others: Iterable[Row]) -> dict[str, Any]:
    """What became of programs that another compiler made again: pairs of outcomes, how often each was seen, and those
    that are right by one alone."""
    theirs = {row["key"]: row for row in others}
    both = [(row, theirs[row["key"]]) for row in rows if row["key"] in theirs]
    pairs = Counter(f"{one['outcome']}, {other['outcome']}" for one, other in both)
    apart = [(one, other) for one, other in both if is_wrong(one) != is_wrong(other)]
    return {
        "programs": len(both),
        "outcomes": dict(pairs.most_common()),
        "right_by_one": [f"{one['region'][:12]} {one['body']}: {one['outcome']}, {o['outcome']}" for one, o in apart],
    }


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """Outcomes in their order, and then whatever else was counted."""
    known = {name: counts[name] for name in OUTCOMES if counts.get(name)}
    return known | {name: count for name, count in counts.items() if name not in known}


def headline_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that are quoted; none of what nothing is known."""
    named = {
        "wrong_share_raw": entry["wrong"]["raw"],
        "wrong_share_legal": entry["wrong"]["legal"],
        "wrong_share_finalists": entry["wrong"]["finalists"],
        "fastest_wrong_share": entry["fastest_wrong"]["raw"],
        "wrong_excluded_share": entry["wrong_excluded"],
    }
    found: dict[str, float] = {}
    for name, figure in named.items():
        if "share" in figure:
            found |= {name: figure["share"], f"{name}_low": figure["low"], f"{name}_high": figure["high"]}
    return found


# ---- in words


def text_of(entry: Mapping[str, Any]) -> str:
    """Tables of all of it."""
    lines = [f"{entry['rows']} programs of {entry['regions']} regions", ""]
    names = [name for name in OUTCOMES if any(name in counts for counts in entry["outcomes"].values())]
    lines.append("| form | programs | " + " | ".join(names) + " |")
    lines.append("|---" * (2 + len(names)) + "|")
    parts = [("all", entry["outcomes"]), *entry["by_form"].items()]
    for form, groups in parts:
        for group, counts in groups.items():
            cells = " | ".join(str(counts.get(name, 0)) for name in names)
            lines.append(f"| {form} | {group} | {cells} |")
    lines.append("")
    for title, figures in (
        ("wrong, of those launched", entry["wrong"]),
        ("faults, of those launched", entry["faults"]),
        ("the fastest of a region is wrong", entry["fastest_wrong"]),
        ("raw programs that are wrong, by form", entry["wrong_by_form"]),
    ):
        lines += [f"{title}: {name}: {in_words(figure)}" for name, figure in figures.items()]
    for title, name in (
        ("raw programs that are legal", "raw_legal"),
        ("wrong raw programs that legality excludes", "wrong_excluded"),
        ("faults of raw programs that legality excludes", "faults_excluded"),
        ("right raw programs that legality excludes", "right_excluded"),
    ):
        lines.append(f"{title}: {in_words(entry[name])}")
    lines += ["", "by rule:"] + [f"  {name}: {counts}" for name, counts in entry["by_rule"].items()]
    return "\n".join(lines)


def in_words(figure: Mapping[str, Any]) -> str:
    """`3.2 % (1.1 to 5.0), 32 of 1000 in 120 regions`."""
    count = f"{figure['count']} of {figure['of']} in {figure['regions']} regions"
    if "share" not in figure:
        return count
    return f"{figure['share']:.2%} ({figure['low']:.2%} to {figure['high']:.2%}), {count}"


def listing(rows: Iterable[Row], most: int) -> str:
    """The wrong ones to be looked at one by one, each with its region, parameters and outcome: legal ones first, then
    of each form and reason one after the other."""
    wrong = [row for row in rows if is_wrong(row)]
    groups: dict[tuple[bool, str, str], list[Row]] = defaultdict(list)
    for row in wrong:
        groups[not is_legal(row), row["form"], alike(row.get("reason", ""))].append(row)
    turns = max(map(len, groups.values()), default=0)
    order = [some[turn] for turn in range(turns) for _, some in sorted(groups.items()) if turn < len(some)]
    order.sort(key=lambda row: not is_legal(row))
    lines = [f"{len(wrong)} wrong programs, {min(most, len(order))} of them:"]
    for row in order[:most]:
        rules = ", ".join(row["rules"]) or "legal"
        look = row.get("look") or {}
        lines += [
            f"- {row['workload']} {row['region'][:12]} {row['form']} ({row['drawn']}; {rules})",
            f"  {row['outcome']} at {row.get('stage', '')}: {row.get('reason', '')}",
            *([f"  {look}"] if look else []),
            f"  {row['body']}",
        ]
    return "\n".join(lines)
