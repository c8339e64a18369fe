"""Two results side by side: what is compared, and its page; `kcg.compare` is the command.

Kernels are matched by region and variables. What else differs between the runs comes first: where targets or timing
protocols differ, the times stand beside each other and nothing is called faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from kcg.errors import UsageError
from kcg.kernel.kinds import describe
from kcg.pictures import PAGE_STYLE
from kcg.report.counts import how_many, nouns_of
from kcg.report.endings import incomplete
from kcg.report.formats import format_date, format_seconds, format_speedup
from kcg.report.page import environment
from kcg.report.rows import rows_of
from kcg.report.times import after_text, before_text, change_text, is_compared, is_timed, totals_of, totals_text
from kcg.report.words import plan_line
from kcg.types import Finalist, RegionResult, Result

FILE_NAME = "compare.html"
FASTER, SLOWER, SAME, UNTIMED = "faster", "slower", "same", "not timed"

Key = tuple[str, tuple[tuple[str, int], ...]]
"""Id of a region, and values of its variables."""


@dataclass(frozen=True)
class Pair:
    """One kernel, or region of several, in both runs."""

    a: RegionResult
    b: RegionResult

    @property
    def ratio(self) -> float:
        """How many times as fast a call is in B; NaN where a time is missing."""
        return _ratio(self.a.chosen.cold_s, self.b.chosen.cold_s)

    @property
    def timed(self) -> bool:
        """Whether both runs have a time: one that was interrupted may lack some."""
        return math.isfinite(self.ratio)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the ratio, from the 95 % intervals of both times, which come from two runs."""
        (a_low, a_high), (b_low, b_high) = self.a.chosen.interval_s, self.b.chosen.interval_s
        ends = _ratio(a_low, b_high), _ratio(a_high, b_low)
        return ends if all(map(math.isfinite, ends)) else None

    @property
    def drift(self) -> float:
        """By what share tinygrad's own schedule differs between the runs, where it is the same binary; else 0."""
        a, b = self.a.baseline, self.b.baseline
        ratio = _ratio(a.cold_s, b.cold_s)
        return max(ratio, 1 / ratio) - 1 if _same_binary(a, b) and math.isfinite(ratio) else 0.0

    def change(self, drift: float) -> str:
        """`faster` or `slower` where B has another binary and differs beyond both intervals, both noises, and what
        drifted, of this kernel and between the runs; else `same`."""
        if not self.timed:
            return UNTIMED
        if _same_binary(self.a.chosen, self.b.chosen):
            return SAME
        low, high = self.interval or (self.ratio, self.ratio)
        least = 1 + max(self.a.noise_floor, self.b.noise_floor, self.drift, drift)
        if low > 1 and self.ratio > least:
            return FASTER
        return SLOWER if high < 1 and self.ratio * least < 1 else SAME

    @property
    def gained_s(self) -> float:
        """What all calls take less in B."""
        return self.a.after_s - self.b.after_s if self.timed else 0.0

    @property
    def rescheduled(self) -> bool:
        return self.a.chosen.schedule != self.b.chosen.schedule


def _same_binary(a: Finalist, b: Finalist) -> bool:
    return a.binary_hash == b.binary_hash != ""


def _time(seconds: float) -> bool:
    return 0 < seconds < math.inf


def _ratio(a_s: float, b_s: float) -> float:
    return a_s / b_s if _time(a_s) and _time(b_s) else math.nan


@dataclass(frozen=True)
class Comparison:
    """Two results, kernel by kernel; `a_name` and `b_name` are the files."""

    a: Result
    b: Result
    a_name: str
    b_name: str
    pairs: tuple[Pair, ...]  # where most was gained or lost first
    only_a: tuple[RegionResult, ...]
    only_b: tuple[RegionResult, ...]

    @property
    def comparable(self) -> bool:
        """Whether a smaller time is progress."""
        return self.a.target == self.b.target and self.a.protocol == self.b.protocol

    def change(self, pair: Pair) -> str:
        return pair.change(self.drift[0])

    @cached_property
    def drift(self) -> tuple[float, float, tuple[Pair, ...]]:
        """By what share the same binaries of tinygrad's own schedules differ together; how many times as long they take
        in B; and which these are."""
        drifts = [p for p in self.pairs if p.drift]
        ratio = _ratio(sum(p.b.before_s for p in drifts), sum(p.a.before_s for p in drifts))
        return (max(ratio, 1 / ratio) - 1, ratio, tuple(drifts)) if math.isfinite(ratio) else (0.0, 1.0, ())

    @cached_property
    def differences(self) -> tuple[str, ...]:
        """What differs between the runs beside their schedules, in sentences: what bears on times first."""
        return tuple(_differences(self))

    @property
    def common_s(self) -> tuple[float, float]:
        """The kernels that both have timed, with their calls in each run, as chosen there."""
        return sums_of(self.pairs)


def sums_of(pairs: Sequence[Pair]) -> tuple[float, float]:
    """What all calls take in each run, of the kernels that both have timed."""
    timed = [pair for pair in pairs if pair.timed]
    return sum(p.a.after_s for p in timed), sum(p.b.after_s for p in timed)


def match(a: Result, b: Result, *, names: tuple[str, str]) -> Comparison:
    """Match two results. Raises UsageError where they have no kernel in common."""
    ours, theirs = ({_key(row): row for row in result.regions} for result in (a, b))
    pairs = [Pair(ours[key], theirs[key]) for key in ours if key in theirs]
    if not pairs:
        raise UsageError(
            f"{names[0]} and {names[1]} have no kernel in common ({_workload(a)} and {_workload(b)}): compare two runs "
            "of one workload"
        )
    return Comparison(
        a,
        b,
        *names,
        tuple(sorted(pairs, key=lambda p: -abs(p.gained_s))),
        tuple(ours[key] for key in ours if key not in theirs),
        tuple(theirs[key] for key in theirs if key not in ours),
    )


def _key(row: RegionResult) -> Key:
    return row.region.id, row.variables


def _workload(result: Result) -> str:
    return f"{result.workload} {result.preset}".strip()


def _differences(found: Comparison) -> Iterator[str]:
    a, b = found.a, found.b
    if a.target != b.target:
        yield (
            f"The targets differ ({_fields(a.target, b.target)}): the times stand beside each other, and none is "
            "called faster."
        )
    if a.protocol != b.protocol:
        yield f"The times were taken by protocols {a.protocol} and {b.protocol}, and none is called faster."
    if a.toolchain != b.toolchain:
        fields = _fields(a.toolchain, b.toolchain)
        yield f"The toolchains differ ({fields}): that alone can change how fast a kernel is."
    if (a.workload, a.preset) != (b.workload, b.preset):
        yield f"The workloads differ: {_workload(a)} and {_workload(b)}."
    if a.allow_tf32 != b.allow_tf32:
        yield f"Products were allowed to round float32 to tf32 in {'A' if a.allow_tf32 else 'B'} only."
    for name, result in (("A", a), ("B", b)):
        if why := incomplete(result):
            yield f"{name} is not complete: {why}."
        if untimed := [row.region for row in result.regions if not _time(row.chosen.cold_s)]:
            were = "was" if len(untimed) == 1 else "were"
            yield f"{how_many(untimed)} {were} not timed in {name}: its totals are without that."
        if result.model_check is not None and result.model_check.passed is False:
            yield f"{name} is not to be used: with its schedules the whole failed."
    _, ratio, pairs = found.drift
    if found.comparable and pairs:
        yield (
            f"The same binaries of tinygrad's own schedules ({how_many(p.b.region for p in pairs)}) took "
            f"{ratio:.3f} times as long in B: so far device and clock drifted. Only what lies beyond that is called "
            "faster or slower."
        )


def _fields(a: Any, b: Any) -> str:
    """`model NVIDIA H100 → NVIDIA H200, cores …`: the fields of two dataclasses that differ."""
    ours, theirs = asdict(a), asdict(b)
    return ", ".join(f"{name} {ours[name]} → {theirs[name]}" for name in ours if ours[name] != theirs[name])


# ---- as lines, as JSON, as a page


def summary(found: Comparison) -> Iterator[str]:
    """Totals, and counts of what changed, as lines."""
    for name, result in (("A", found.a), ("B", found.b)):
        step = result.model_check
        timed = step is not None and step.before_s is not None and step.after_s is not None
        yield f"{name}: {totals_text(result)}" + (
            f"; one step {format_seconds(step.before_s)} → {format_seconds(step.after_s)}" if step and timed else ""
        )
    a_s, b_s = found.common_s
    pairs = [pair for pair in found.pairs if pair.timed]
    same = sum(not pair.rescheduled for pair in pairs)
    line = (
        f"{how_many(pair.b.region for pair in pairs)} timed in both: {format_seconds(a_s)} and "
        f"{format_seconds(b_s)}; {same} with the same schedule"
    )
    if found.comparable:
        counts = [f"{sum(found.change(p) == change for p in pairs)} {change}" for change in (FASTER, SLOWER, SAME)]
        line += f"; in B {', '.join(counts)}"
    yield line if pairs else "no kernel was timed in both"
    if line := drift_line(found):
        yield line
    for name, rows in (("A", found.only_a), ("B", found.only_b)):
        if rows:
            many = how_many(row.region for row in rows)
            yield f"{many} in {name} only: {format_seconds(sum(row.after_s for row in rows))}"


def drift_line(found: Comparison) -> str:
    """How far the same binaries drifted between the runs, in all and one by one; empty where the times are of different
    targets or protocols."""
    if not found.comparable:
        return ""
    same = [pair for pair in found.pairs if _same_binary(pair.a.baseline, pair.b.baseline)]
    ratios = [(_ratio(pair.b.baseline.cold_s, pair.a.baseline.cold_s), pair) for pair in same]
    timed = [pair for ratio, pair in ratios if math.isfinite(ratio)]
    if not timed:
        return "no schedule of tinygrad's own is the same binary in both: how far device and clock drifted is not known"
    in_all = sum(pair.b.before_s for pair in timed) / sum(pair.a.before_s for pair in timed)
    each = sorted(ratio for ratio, _ in ratios if math.isfinite(ratio))
    ends = f", {each[0]:.3f} to {each[-1]:.3f} one by one" if len(each) > 1 else ""
    many = how_many(pair.b.region for pair in timed)
    return f"drift: the same binaries of tinygrad's own ({many}) took {in_all:.3f} times as long in B{ends}"


def when_of(result: Result) -> str:
    return f"{_workload(result)} on {result.target.model}, {format_date(result.created)}"


def name_of(row: RegionResult) -> str:
    return row.chosen.name or row.baseline.name or row.region.id[:12]


def calls_of(pair: Pair) -> str:
    a, b = pair.a.calls, pair.b.calls
    return str(a) if a == b else f"{a} → {b}"


def against(pair: Pair) -> str:
    """`1.31× (1.28 to 1.34)`: how many times as fast a call is in B."""
    if not pair.timed:
        return "–"
    ends = f" ({pair.interval[0]:.2f} to {pair.interval[1]:.2f})" if pair.interval else ""
    return f"{pair.ratio:.2f}×{ends}"


def to_dict(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON values; what is not known is null."""
    return {
        "a": _side(found.a, found.a_name),
        "b": _side(found.b, found.b_name),
        "comparable": found.comparable,
        "differences": list(found.differences),
        "kernels": [_entry(found, pair) for pair in found.pairs],
        "only_a": [_alone(row) for row in found.only_a],
        "only_b": [_alone(row) for row in found.only_b],
    }


def _side(result: Result, name: str) -> dict[str, Any]:
    check = result.model_check
    return {
        "file": name,
        "workload": result.workload,
        "preset": result.preset,
        "model": result.target.model,
        "created": result.created,
        "before_s": totals_of(result).before_s,
        "after_s": totals_of(result).after_s,
        "step_before_s": _number(check.before_s if check else None),
        "step_after_s": _number(check.after_s if check else None),
    }


def _entry(found: Comparison, pair: Pair) -> dict[str, Any]:
    sides = {
        f"{name}_{key}": value for name, row in (("a", pair.a), ("b", pair.b)) for key, value in _alone(row).items()
    }
    known = {"ratio": _number(pair.ratio), "interval": pair.interval, "change": found.change(pair)}
    return {"id": pair.a.region.id, "variables": dict(pair.a.variables), **sides, **(known if found.comparable else {})}


def _alone(row: RegionResult) -> dict[str, Any]:
    return {
        "name": name_of(row),
        "calls": row.calls,
        "before_s": row.before_s if is_timed(row) else None,
        "after_s": row.after_s if is_compared(row) else None,
        "outcome": row.outcome,
        "schedule": describe(row.chosen.schedule),
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def render(found: Comparison) -> str:
    """The page as text: one file that loads nothing."""
    titles = {_key(row.region): row for result in (found.a, found.b) for row in rows_of(result)}
    plans = [
        (name, plan_line(result, result.planning)[len("plan: ") :])
        for name, result in (("A", found.a), ("B", found.b))
        if result.planning is not None
    ]
    return (
        environment()
        .get_template("compare.html.jinja")
        .render(
            found=found,
            sides=(("A", found.a, found.a_name), ("B", found.b, found.b_name)),
            alone=[(name, rows) for name, rows in (("A", found.only_a), ("B", found.only_b)) if rows],
            title=lambda row: titles[_key(row)].title,
            nouns=nouns_of(pair.b.region for pair in found.pairs),
            many=lambda rows: how_many(row.region for row in rows),
            words=lambda row: titles[_key(row)].words,
            calls=calls_of,
            lines=list(summary(found)),
            when=when_of,
            plans=plans,
            speedup=format_speedup,
            totals=totals_of,
            before_of=before_text,
            after_of=after_text,
            change_of=change_text,
            style=PAGE_STYLE,
        )
    )
