"""report.html: a `Result` as one page that needs nothing else, for anyone who opens it.

Everything on it is plain HTML and SVG that `report_share`, `report_roofline` and `report_search` draw, so the page is
complete where scripts are off. A short script adds what only a script can: what a mark of a picture stands for, and
one kernel's sources at a time. The page loads nothing: its content security policy forbids it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from kcg.files import write_whole
from kcg.optimize.console import checked_as, format_seconds, format_speedup, repeated
from kcg.optimize.phases import WORDS
from kcg.optimize.report_roofline import roofline_picture
from kcg.optimize.report_rows import Row, rows_of
from kcg.optimize.report_search import expected_picture, progress_picture
from kcg.optimize.report_share import share_picture
from kcg.optimize.report_step import step_of
from kcg.optimize.report_svg import STYLE
from kcg.optimize.report_text import (
    format_bytes,
    format_count,
    format_date,
    format_error,
    format_launch,
    format_rate,
    format_schedule,
    format_share,
)
from kcg.types import Result, Verification

FILE_NAME = "report.html"

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


def write_report(result: Result, folder: Path) -> Path:
    """Write `report.html` into `folder`, which is made where it does not exist, and return its path.

    Raises:
        UsageError: the folder cannot be written.
    """
    path = folder / FILE_NAME
    write_whole(path, render_report(result).encode("utf-8", "replace"))
    return path


def render_report(result: Result) -> str:
    """The whole page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # kernel sources, commands and notes are foreign text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "seconds": format_seconds, "share": format_share, "schedule": format_schedule, "count": format_count,
        "rate": format_rate, "error": format_error, "binary": format_bytes, "launch": format_launch,
        "verdict": _verdict,
    }  # fmt: skip
    environment.filters.update(filters)
    rows = rows_of(result)
    pictures = {
        "share": share_picture(rows), "roofline": roofline_picture(rows, result.target),
        "progress": progress_picture(result), "expected": expected_picture(result, rows),
    }  # fmt: skip
    return environment.get_template("report.html.jinja").render(
        result=result,
        rows=rows,
        pictures=pictures,
        tips=_script({name: shown.tips for name, shown in pictures.items() if shown is not None}),
        style=STYLE,
        step=step_of(result),
        noun=checked_as(result),
        repeated=repeated,
        checks=_checks(rows),
        outcomes=[(name, words, [r for r in rows if r.region.outcome == name]) for name, words in _OUTCOMES.items()],
        by_note=_by_note,
        speedup=format_speedup,
        created=format_date(result.created),
        failures=[(status, count, _FAILURES.get(status, "")) for status, count in result.failures],
        labels={row.region.region.id: row.label for row in rows},
        phases=[(WORDS.get(phase, phase), seconds) for phase, seconds in result.phases],
        sensors=[(*_SENSORS[name], _range(*seen)) for name, *seen in result.clocks if name in _SENSORS],
    )


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
    names: dict[str, None] = {}
    for row in passed:
        names.update(dict.fromkeys(row.region.chosen.verification.rules))
    return {
        "passed": passed,
        "failed": [row for row in rows if _verdict(row.region.chosen.verification) in ("wrong", "unjudged", "not run")],
        "checked": sum(_verdict(row.region.chosen.verification) == "checked" for row in rows),
        "rules": list(names),
        "worst": max(passed, key=lambda row: row.region.chosen.verification.max_error, default=None),
    }


def _verdict(check: Verification) -> str:
    """A verdict in a word or two. What is `checked` ran on one seed, as all of a search does, and is not verified."""
    if check.passed:
        return "passed"
    if check.unjudged or check.wrong:
        return "unjudged" if check.unjudged else "wrong"
    return "checked" if check.seeds else "not run"


def _range(least: float, middle: float, most: float) -> str:
    """`1,740 to 1,980, median 1,965`, or the one number where they are the same."""
    if least == most:
        return f"{least:,.4g}"
    return f"{least:,.4g} to {most:,.4g}, median {middle:,.4g}"
