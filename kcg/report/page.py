"""report.html: a `Result` as one page that needs nothing else, for anyone who opens it.

Everything on it is plain HTML and SVG (`kcg.report.charts`), so the page is complete where scripts are off, but for the
sources, which are packed. A script adds what only a script can: what a mark of a picture stands for, the order of a
table, sources and what differs between them. The page loads nothing: its content security policy forbids it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from kcg.files import write_whole
from kcg.measure.device_info import HOLDS_BACK, words_of
from kcg.pictures import PAGE_STYLE
from kcg.pictures import get_ready as get_ready_to_draw
from kcg.report.charts import expected_picture, roofline_picture, roofs_of, share_picture
from kcg.report.counts import nouns_of, share_of
from kcg.report.endings import incomplete, outlook_lines
from kcg.report.formats import (
    format_bytes,
    format_count,
    format_date,
    format_error,
    format_factor,
    format_launch,
    format_rate,
    format_schedule,
    format_seconds,
    format_share,
    format_speedup,
)
from kcg.report.headline import headline_of, made_of
from kcg.report.next_steps import next_steps
from kcg.report.phases import WORDS
from kcg.report.prediction_quality import quality_of
from kcg.report.rows import Row, rows_of
from kcg.report.sources import sources_of
from kcg.report.timeline import Timeline, timeline_beside, timeline_in, timeline_picture
from kcg.report.times import after_text, before_text, is_timed, speedup_text, totals_of
from kcg.report.verification import rules_of
from kcg.report.words import (
    checked_as,
    passed_over_lines,
    plan_line,
    plan_rows,
    provisional_line,
    repeated,
    step_rows,
    step_times,
)
from kcg.types import Finalist, Result, Verification

if TYPE_CHECKING:
    from jinja2 import Environment

    from kcg.dataset.journal import Journal

# ---- A step of the whole model beside the sum of its kernels, and why they differ: what the run recorded, and no more.
#
# A step is shorter where kernels find in the cache what the ones before left (they are timed alone, with cold caches),
# and longer by what lies between them (launch gaps); a clock that is not what it was while the kernels were timed makes
# it either. How much each of these can account for follows from what was recorded. Where that is less than the
# difference, the rest is said to be unexplained.

APART = 0.1
"""From this difference on between a step's time and the sum of its kernels, the report asks why."""

GAP_S = 10e-6
"""The most that a gap between two kernels is taken to account for: a host needs 2 to 4 µs for one that is timed alone,
which is in the kernel's own time, and some hosts are slower."""

SAME_CLOCK = 0.01
"""Clocks that differ by less are the same."""

Clocks = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Step:
    """A whole step beside the sum of its kernels: seconds, with tinygrad's own schedules and with the chosen ones."""

    before_s: float
    after_s: float
    kernels_before_s: float
    kernels_after_s: float
    why: tuple[str, ...]  # sentences, of a side that differs by more than `APART`

    @property
    def apart_before(self) -> float:
        """By what share of the kernels' sum the step is longer; below 0 it is shorter."""
        return self.before_s / self.kernels_before_s - 1

    @property
    def apart_after(self) -> float:
        return self.after_s / self.kernels_after_s - 1

    @property
    def differs(self) -> bool:
        return max(abs(self.apart_before), abs(self.apart_after)) > APART


@dataclass(frozen=True)
class Side:
    """A step with one set of schedules, and its kernels one by one."""

    step_s: float
    cold_s: float  # sum over all launches
    warm_s: float
    launches: int
    cache: str  # what its cache is called
    in_step: Clocks
    of_kernels: tuple[tuple[float, Clocks], ...]  # each with the seconds that all its launches take

    @property
    def apart_s(self) -> float:
        return self.step_s - self.cold_s

    @property
    def differs(self) -> bool:
        return abs(self.apart_s) > APART * self.cold_s


def step_of(result: Result) -> Step | None:
    """The whole model's or script's step beside the sum of its kernels; None where either is not known."""
    check = result.model_check
    before, after = result.step_s or (result.total_before_s, result.total_after_s)
    if check is None or check.before_s is None or check.after_s is None:
        return None
    if not all(math.isfinite(s) and s > 0 for s in (check.before_s, check.after_s, before, after)):
        return None
    sides = {
        "Before": _side(result, [row.baseline for row in result.regions], check.before_s, before, check.clocks_before),
        "After": _side(result, [row.chosen for row in result.regions], check.after_s, after, check.clocks_after),
    }
    differing = {when: side for when, side in sides.items() if side.differs}
    why = [" ".join((f"{when}:", *reasons(side))) for when, side in differing.items()]
    return Step(check.before_s, check.after_s, before, after, tuple(why))


def _side(result: Result, timed: Sequence[Finalist], step_s: float, cold_s: float, in_step: Clocks) -> Side:
    """A step with one finalist of each row of a result; of a script only what is replayed is in it."""
    warm_s, launches, kernels = 0.0, 0.0, []
    for row, one in zip(result.regions, timed, strict=True):
        times = row.replayed / result.steps if result.steps else row.calls
        elsewhere_s = row.calls * row.again_s if one is row.baseline and not result.steps else 0.0
        warm_s += times * _warm_s(one)
        launches += times * (len(row.region.kernels) if one.schedule == row.baseline.schedule else 1)
        kernels.append((times * one.cold_s - elsewhere_s, row.clocks))
    cache = "cache" if result.target.device == "CPU" else "L2 cache"
    return Side(step_s, cold_s, warm_s, max(1, round(launches)), cache, in_step, tuple(kernels))


def _warm_s(one: Finalist) -> float:
    """Its time with warm caches; with cold ones where no other was taken, which then accounts for nothing."""
    return one.warm_s if math.isfinite(one.warm_s) else one.cold_s


def reasons(side: Side) -> Iterator[str]:
    """Sentences: what can make the step longer or shorter than its kernels, and whether it is enough."""
    longer = side.apart_s > 0
    if longer:
        accounted_s = GAP_S * side.launches
        yield (
            f"a step also has what lies between kernels (launch gaps); spread over its {side.launches:,} launches, the "
            f"difference is {format_seconds(side.apart_s / side.launches)} each."
        )
    else:
        accounted_s = max(side.cold_s - side.warm_s, 0.0)
        yield (
            f"kernels are timed one by one with cold caches; in a step a kernel may find in the {side.cache} what the "
            f"one before left. With warm caches they sum to {format_seconds(side.warm_s)}."
        )
    sentence, share = _of_clocks(side, longer=longer)
    yield sentence
    accounted_s += share * side.cold_s
    if held := _held_back(side, longer=longer):
        yield held
    if abs(side.apart_s) - accounted_s > APART * side.cold_s:
        most = f"accounts for at most {format_seconds(accounted_s)}" if accounted_s > 0 else "accounts for nothing"
        yield f"All this {most} of {format_seconds(abs(side.apart_s))}: the rest is not explained by what was recorded."


def _of_clocks(side: Side, *, longer: bool) -> tuple[str, float]:
    """What the clocks say, and for what share of the kernels' time they account at most."""
    step, kernels = _mhz(dict(side.in_step)), _kernels_mhz(side.of_kernels)
    if not step or not kernels:
        return "What the clock was is not recorded.", 0.0
    both = f"{step:,.0f} MHz in the step and {kernels:,.0f} MHz while its kernels were timed"
    slows = kernels / step - 1  # by what share a step takes longer than its kernels
    if abs(slows) <= SAME_CLOCK:
        return f"The clock does not explain it: it was {both}.", 0.0
    if (slows > 0) is not longer:
        return f"The clock does not explain it: it was {both}, which would make the step differ the other way.", 0.0
    effect = f"{abs(slows):.0%} {'longer' if longer else 'shorter'}"
    return f"The clock was {both}: what depends on it takes {effect}.", abs(slows)


def _mhz(clocks: Mapping[str, float]) -> float | None:
    """The clock that sensors told: the middle between the lowest and the highest."""
    ends = [clocks[name] for name in ("sm_mhz_min", "sm_mhz_max", "cpu_mhz") if name in clocks]
    return sum(ends) / len(ends) if ends else None


def _kernels_mhz(kernels: Iterable[tuple[float, Clocks]]) -> float | None:
    """The clock of kernels, each with the weight of its time; None where it was told of less than half of that."""
    kernels = tuple(kernels)
    known = [(seconds, mhz) for seconds, clocks in kernels if (mhz := _mhz(dict(clocks)))]
    if sum(seconds for seconds, _ in known) * 2 < sum(seconds for seconds, _ in kernels) or not known:
        return None
    return sum(seconds * mhz for seconds, mhz in known) / sum(seconds for seconds, _ in known)


def _held_back(side: Side, *, longer: bool) -> str:
    """What the device said that held it back on one side only, where that is the side that took longer; empty where
    there is nothing, or one side did not say."""
    step, kernels = _bits([side.in_step]), _bits(clocks for _, clocks in side.of_kernels)
    if step is None or kernels is None:
        return ""
    here, there = ("in the step", "while its kernels were timed")[:: 1 if longer else -1]
    only = step & ~kernels if longer else kernels & ~step
    words = words_of(only, HOLDS_BACK)
    return f"The device was held back {here} ({words}), not {there}." if words else ""


def _bits(clocks: Iterable[Clocks]) -> int | None:
    """All that held the device back; None where it was never said."""
    bits = [int(dict(one)["slowdown_reasons"]) for one in clocks if "slowdown_reasons" in dict(one)]
    return reduce(or_, bits) if bits else None


FILE_NAME = "report.html"
RESULT_NAME = "RESULT.json"

_OUTCOMES = {
    "improved": "a faster schedule was found and verified",
    "kept": "searched, and nothing verified was faster",
    "undecided": "something was faster in the search, and there was no time to judge it",
    "not searched": "no other schedule was tried",
    "unjudged": "not optimised, because the reference cannot tell what is right",
    "quarantined": "not optimised, because tinygrad's own schedule is wrong or fails",
}

_FAILURES = {
    "compile_error": "did not compile",
    "compile_timeout": "took too long to compile",
    "resource": "needed more registers, memory or threads than the device has",
    "launch_error": "could not be started on the device",
    "timeout": "ran too long and was stopped",
    "wrong": "computed something else than the kernel says",
    "unjudged": "ran, and the reference cannot tell whether it is right",
    "worker_died": "took the measuring process down with it",
    "noisy": "gave times that varied too much to be compared",
}

_SENSORS = {
    "sm_mhz_min": ("lowest clock of a measurement", "MHz"),
    "sm_mhz_max": ("highest clock of a measurement", "MHz"),
    "memory_mhz": ("memory clock", "MHz"),
    "cpu_mhz": ("clock", "MHz"),
    "temperature_c": ("temperature", "°C"),
    "power_w": ("power", "W"),
    "steal_share": ("share of time taken by others", ""),
}
"""What of `Result.clocks` is shown, and how; the others are counters and bit masks."""


def write_report(result: Result, folder: Path, *, journal: Journal | None = None) -> Path:
    """Write `report.html` into `folder`, beside the result; it is made where there is none. Returns the page's path.
    What the run did is in its `journal`, by default the one that lies there.

    Raises:
        UsageError: the folder cannot be written.
    """
    path, beside = folder / FILE_NAME, folder / RESULT_NAME
    timeline = timeline_beside(beside, result) if journal is None else timeline_in(journal, result)
    write_whole(path, render_report(result, beside, timeline=timeline).encode("utf-8", "replace"))
    return path


def get_ready() -> None:
    """Load what drawing a page takes: half of the time of the first one, for who is idle before there is a result."""
    get_ready_to_draw()
    for name in environment().list_templates(extensions=["jinja"]):
        environment().get_template(name)


@cache
def environment() -> Environment:
    """The templates of pages about results, and how they write numbers."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # kernel sources, commands and notes are foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "seconds": format_seconds,
        "share": format_share,
        "schedule": format_schedule,
        "count": format_count,
        "rate": format_rate,
        "error": format_error,
        "binary": format_bytes,
        "factor": format_factor,
        "launch": format_launch,
        "verdict": _model_result,
        "launches": _launches,
        "broken": _broken,
    }
    made.filters.update(filters)
    return made


def render_report(result: Result, path: Path = Path(RESULT_NAME), *, timeline: Timeline | None = None) -> str:
    """The whole page as text; `path` is where the result is stored, for the commands that use it, `timeline` what its
    run did, where that is known."""
    rows = rows_of(result)
    roofs = roofs_of(result)
    pictures = {
        "share": share_picture(rows),
        "roofline": roofline_picture(rows, roofs),
        "timeline": timeline_picture(timeline, result),
        "expected": expected_picture(result, rows),
    }
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            result=result,
            rows=rows,
            pictures=pictures,
            tips=_script({name: shown.tips for name, shown in pictures.items() if shown is not None}),
            style=PAGE_STYLE,
            incomplete=incomplete(result),
            outlook=outlook_lines(result),
            steps=next_steps(result, path),
            roofs=roofs,
            origins=any(row.region.origins for row in rows),
            sources=sources_of(rows),
            quality=quality_of(result),
            step=step_of(result),
            headline=headline_of(result),
            resources=timeline is not None,
            made=made_of(rows),
            warnings=_warnings(result),
            step_times=step_times(result),
            totals=totals_of(result),
            is_timed=is_timed,
            before_of=before_text,
            after_of=after_text,
            speedup_of=speedup_text,
            plan=_plan(result),
            noun=checked_as(result),
            repeated=repeated,
            checks=_checks(rows),
            provisional=provisional_line(result),
            nouns=nouns_of(row.region for row in result.regions),
            outcomes=[
                (name, words, [r for r in rows if r.region.outcome == name]) for name, words in _OUTCOMES.items()
            ],
            by_note=_by_note,
            speedup=format_speedup,
            created=format_date(result.created),
            failures=[(status, count, _FAILURES.get(status, "")) for status, count in result.failures],
            labels={row.region.region.id: row.label for row in rows},
            phases=[(WORDS.get(phase, phase), seconds) for phase, seconds in result.phases],
            sensors=[(*_SENSORS[name], _range(*seen)) for name, *seen in result.clocks if name in _SENSORS],
        )
    )


def _broken(name: str) -> str:
    """A name of a layer, which a line may break after a dot, an underscore or a comma."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([._,/])(?=\w|\{|\*)", r"\1<wbr>", str(escape(name))))


def _warnings(result: Result) -> list[str]:
    """The warnings, without what the page says before them: why the whole was not compared, why it is incomplete."""
    check = result.model_check
    known = f"own schedules, {check.reason}" if check is not None and check.reason else ""
    shown = [line for line in result.warnings if not known or not line.endswith(known)]
    return [line for line in shown if line != incomplete(result)]


def _plan(result: Result) -> dict[str, object] | None:
    """The plan in words; None where no regions of several kernels were searched."""
    if (planning := result.planning) is None:
        return None
    timed = any(plan.step_s is not None or plan.passed is not None for plan in planning.plans)
    notes = {plan.note for plan in planning.plans}
    return {
        "untimed": "" if timed or len(notes) > 1 else next(iter(notes), "") or "no whole step was compared",
        "line": plan_line(result, planning),
        "regions": plan_rows(result, planning),
        "steps": step_rows(planning),
        "chosen": [plan.chosen for plan in planning.plans],
        "passed_over": passed_over_lines(planning),
    }


def _script(value: object) -> str:
    """JSON within a script element, which only a `<` can end; shorter than jinja's, which escapes all but ASCII."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _by_note(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each note together, the note of the slowest row first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.region.note, []).append(row)
    return list(found.items())


def _checks(rows: Sequence[Row]) -> dict[str, object]:
    """The verdicts on the chosen schedules, together."""
    passed = [row for row in rows if row.region.chosen.verification.passed]
    return {
        "passed": passed,
        "counts": share_of((row.region.region for row in passed), (row.region.region for row in rows)),
        "failed": [
            row for row in rows if _model_result(row.region.chosen.verification) in ("wrong", "unjudged", "not run")
        ],
        "checked": sum(_model_result(row.region.chosen.verification) == "checked" for row in rows),
        "table": rules_of(rows),
        "worst": max(passed, key=lambda row: row.region.chosen.verification.max_error, default=None),
    }


def _model_result(check: Verification) -> str:
    """A verdict in a word or two. What is `checked` ran on one seed, as all of a search does, and is not verified."""
    if check.passed:
        return "passed"
    if check.unjudged or check.wrong:
        return "unjudged" if check.unjudged else "wrong"
    return "checked" if check.seeds else "not run"


def _launches(one: Finalist) -> str:
    """What is said of the launches under stress of a program that is provisional; empty of others."""
    return f", provisional: {one.launches:,} of {one.launches_due:,} launches under stress" if one.provisional else ""


def _range(least: float, middle: float, most: float) -> str:
    """`1,740 to 1,980, median 1,965`, or the one number where they are the same."""
    if least == most:
        return f"{least:,.4g}"
    return f"{least:,.4g} to {most:,.4g}, median {middle:,.4g}"
