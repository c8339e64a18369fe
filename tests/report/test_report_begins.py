"""The report begins with the whole, before and after, whether it is verified, and what made it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from kcg.report.headline import KEPT, headline_of, made_of
from kcg.report.page import render_report
from kcg.report.rows import rows_of
from kcg.report.timeline import timeline_picture
from kcg.types import ModelCheck, ProgressPoint, Result
from tests.html_page import Page
from tests.sample_result import sample_plan, sample_result


def checked(check: ModelCheck | None, *, provisional: bool = False) -> Result:
    sample = sample_result()
    first, *others = (row for row in sample.regions if row.outcome != "quarantined")
    if provisional:
        first = replace(first, chosen=replace(first.chosen, launches=1, launches_due=10))
    return replace(sample, model_check=check, regions=(first, *others), expectations=())


def text_of(result: Result) -> str:
    return " ".join(" ".join(Page(render_report(result)).text).split())


WHOLE = sample_result().model_check
assert WHOLE is not None
UNTIMED = replace(WHOLE, before_s=None, after_s=None)
STEP, SUM = "one step of the whole model", "sum of all kernels in one execution"


@pytest.mark.parametrize(
    ("result", "what", "times", "state", "look", "why"),
    [
        (
            checked(WHOLE),
            STEP,
            ("71.3 ms", "39.1 ms", "1.82×"),
            "verified as a whole model",
            "good",
            "error 0.0031, at most",
        ),
        (checked(UNTIMED), SUM, ("68.6 ms", "36.1 ms"), "verified as a whole model", "good", "own schedules give"),
        (
            checked(WHOLE, provisional=True),
            STEP,
            ("71.3 ms", "39.1 ms", "1.82×"),
            "verified as a whole model, parts provisional",
            "doubt",
            "error 0.0031",
        ),
        (
            checked(ModelCheck(None, "not run: 0 s of the budget were left")),
            SUM,
            ("68.6 ms", "36.1 ms"),
            "not verified as a whole model, part by part only",
            "doubt",
            "0 s of the budget were left",
        ),
        (
            checked(replace(WHOLE, passed=False, reason="the output differs")),
            STEP,
            ("71.3 ms", "39.1 ms", "1.82×"),
            "wrong as a whole model: do not use it",
            "bad",
            "the output differs",
        ),
        (
            checked(ModelCheck(None, "not run: kcg has no runnable x")),
            SUM,
            ("68.6 ms",),
            "verified part by",
            "good",
            "",
        ),
    ],
)
def test_first_is_the_whole_before_and_after_and_whether_it_is_verified(
    result: Result, what: str, times: tuple[str, ...], state: str, look: str, why: str
) -> None:
    headline = headline_of(result)
    assert (headline.what, headline.look) == (what, look)
    assert headline.state.startswith(state) and why in headline.why
    text = text_of(result)
    begin = text[: text.index("What made it")]
    for words in (*times, headline.state, what):
        assert words in begin, words


def test_what_tinygrad_itself_gets_wrong_is_said_beside_the_verdict() -> None:
    headline = headline_of(sample_result())
    assert (headline.state, headline.look) == ("verified as a whole model", "doubt")
    assert headline.why.endswith("; tinygrad's own schedule of 1 kernel is wrong")


def test_nothing_faster_has_one_time_and_no_speed_up() -> None:
    sample = sample_result()
    rows = tuple(replace(row, outcome="kept", chosen=row.baseline) for row in sample.regions if row.outcome == "kept")
    result = replace(sample, regions=rows, expectations=(), model_check=None, verified_progress=(), progress=())
    headline = headline_of(result)
    assert headline.after_s is None and headline.state == "nothing faster was verified"
    begin = text_of(result).partition("Where the time goes")[0]
    level = replace(result, verified_progress=(ProgressPoint(1.0, 1, result.total_before_s),))
    assert timeline_picture(None, level) is None, "a line across says nothing"
    assert "→" not in begin and "as fast" not in begin and made_of(rows_of(result)) == []


def test_what_was_not_timed_has_no_number() -> None:
    sample = sample_result()
    none = replace(sample.regions[0].baseline, cold_s=0.0)
    rows = tuple(replace(row, baseline=none, chosen=none, outcome="not searched") for row in sample.regions[:3])
    result = replace(sample, regions=rows, expectations=(), model_check=None, progress=())
    assert headline_of(result).before_s is None and headline_of(result).what == "nothing was timed"
    text = text_of(result)
    assert "nothing was timed" in text and "One step, and the sum of its kernels" not in text and "1.00×" not in text
    assert "share" not in [a.get("data-figure") for tag, a in Page(render_report(result)).tags if tag == "svg"]


def test_a_kernel_that_was_not_searched_gained_nothing_and_lost_nothing() -> None:
    (row,) = (row for row in sample_result().regions if row.outcome == "not searched")
    result = replace(sample_result(), regions=(row, sample_result().regions[0]), expectations=())
    text = text_of(result)
    cells = re.findall(rf'data-v="{row.after_s}">(.*?)</td>', render_report(result))
    assert cells == ["373 µs", "–"], "before and after"
    assert re.search(r"373 µs – – [\d.]+% ", text)


def test_nothing_is_warned_of_twice() -> None:
    sample = sample_result()
    why = "nothing was searched: the budget of 40 s is too short"
    of_whole = "the whole model was not compared with tinygrad's own schedules, not run: no time"
    idle = tuple(replace(row, outcome="not searched", chosen=row.baseline) for row in sample.regions[:3])
    check = ModelCheck(None, "not run: no time")
    result = replace(
        sample, regions=idle, expectations=(), complete=False, model_check=check, warnings=(why, of_whole, "another")
    )
    text = text_of(result)
    assert text.count(why) == 1 and of_whole not in text and "another" in text and "This result is not complete" in text


def test_what_made_it_is_counted_by_sort_of_program() -> None:
    plan = sample_plan()
    made = made_of(rows_of(plan))
    assert [(one.sort, one.programs) for one in made] == [
        ("kernels with other Opts", 4),
        ("regions of several kernels, each one tile program", 2),
        (KEPT, 7),
    ]
    assert sum(one.share for one in made[:-1]) == pytest.approx(1.0) and math.isnan(made[-1].share)
    assert sum(one.before_s for one in made) == pytest.approx(plan.total_before_s)
    assert sum(one.after_s for one in made) == pytest.approx(plan.total_after_s)
    assert made[-1].saved_s == 0 and made[0].saved_s > made[1].saved_s
    text = text_of(plan)
    order = ["verified as a whole model", "What made it", "How the run went", "Became one program", "Roof", "Rules"]
    places = [text.find(words) for words in order[:4]]
    assert places == sorted(places) and -1 not in places, "the story is told in this order"


def test_a_step_of_a_script_has_its_times_in_large() -> None:
    sample = sample_result()
    rows = tuple(replace(row, replayed=row.calls if n else 0) for n, row in enumerate(sample.regions))
    result = replace(sample, steps=4, model_check=None, expectations=(), regions=rows)
    large = re.sub(r"\s+", " ", render_report(result))
    assert (
        '<b><span class="from">13.4 ms</span> <span class="to">→ 7.56 ms</span></b> <span class="soft small">one step '
        "of 4, 1.77× as fast (sum of its kernels)</span>"
    ) in large
    assert (
        '<span class="to">→ 6.51 ms in all</span></b> <span class="soft small">outside of the steps 1 kernel' in large
    )
    idle = tuple(replace(row, chosen=row.baseline, outcome="kept") for row in rows)
    assert "<b>13.4 ms</b>" in re.sub(r"\s+", " ", render_report(replace(result, regions=idle)))


def test_of_what_runs_outside_of_the_steps_and_was_not_timed_nothing_is_said() -> None:
    sample = sample_result()
    untimed = [replace(row.baseline, cold_s=0.0, warm_s=0.0, interval_s=(0.0, 0.0)) for row in sample.regions[:1]]
    first = replace(sample.regions[0], baseline=untimed[0], chosen=untimed[0], outcome="not searched", replayed=0)
    rows = (first, *(replace(row, replayed=row.calls) for row in sample.regions[1:]))
    result = replace(sample, steps=4, model_check=None, expectations=(), regions=rows)
    assert "outside of the steps" not in text_of(result) and "one step of 4" in text_of(result)
