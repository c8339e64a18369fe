"""What is said of times is true of each kernel: one that was never reached has its own and no other, one that was never
timed has none, and a run that timed nothing has no totals, and says once why."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kcg.optimize.console import print_result
from kcg.optimize.tracking import _rows, _totals
from kcg.report import compare
from kcg.report.page import render_report
from kcg.report.result import TIME_OVER, UNTIMED, write_result
from kcg.report.times import after_text, before_text, change_text, speedup_text, totals_text
from kcg.tuning import Tuned
from kcg.types import ModelCheck, Result, Verification
from kcg.ui.page import render, trends_of
from kcg.ui.runs import Folder
from tests import slow
from tests.html_page import Page
from tests.sample_result import sample_result
from tests.ui_server import live_file

WHY = "nothing was searched: the budget of 5 s is too short to search in: try --budget 540s"
OWN_S = 20.3e-6


def unreached(count: int, *, timed: int) -> Result:
    """A run whose budget was over before it searched: so many kernels, of which the first ones were timed."""
    sample = sample_result()
    rows = []
    for i, row in enumerate(sample.regions[:count]):
        seconds = OWN_S if i < timed else 0.0
        base = replace(row.baseline, cold_s=seconds, warm_s=math.nan, interval_s=(seconds, seconds))
        base = replace(base, verification=Verification(False, reason="not verified"))
        note = TIME_OVER if timed > i else UNTIMED
        rows.append(
            replace(row, calls=1, baseline=base, chosen=base, outcome="not searched", note=note, ends=(), variables=())
        )
    return replace(
        sample,
        regions=tuple(rows),
        complete=False,
        warnings=("the machine is busy", WHY),
        model_check=ModelCheck(None, "not run: no schedule was changed"),
        expectations=(),
        recomputes=(),
        progress=(),
        failures=(),
    )


def printed(result: Result, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_result(result, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def page_text(result: Result) -> str:
    return " ".join(" ".join(Page(render_report(result)).text).split())


def everywhere(result: Result, folder: Path) -> dict[str, str]:
    """What each page and each command says of a result."""
    write_result(result, folder / "one" / "RESULT.json")
    handle = Tuned(result, folder / "one" / "RESULT.json")
    both = compare.match(result, result, names=("a", "b"))
    return {
        "console": printed(result),
        "report": page_text(result),
        "tune": str(handle),
        "notebook": handle._repr_html_(),
        "compare": "\n".join(compare.summary(both)),
        "compared page": " ".join(" ".join(Page(compare.render(both)).text).split()),
        "ui": " ".join(" ".join(Page(render(Folder(folder).look(), folder)).text).split()),
    }


def test_a_run_that_timed_nothing_has_no_totals_no_bar_and_no_speed_up_and_says_once_why(tmp_path: Path) -> None:
    result = unreached(3, timed=0)
    said = everywhere(result, tmp_path)
    for where, text in said.items():
        text = text.replace("before → after", "")  # the title of a number
        assert "→" not in text and re.search(r"\d\.\d\d×|(?<![.\d])0 s\b", text) is None, where
    assert "no kernel was timed" in said["console"] and "No kernel was timed." in said["report"]
    assert "time goes" in said["report"] and 'id="share"' not in render_report(result)
    for where in ("console", "report"):
        assert said[where].count("too short to search in") == 1, where
    assert _totals(result)["total_before_s"] is None and _totals(result)["speedup"] is None
    assert all(row[2] is None and row[3] is None for row in _rows(result))


def test_a_kernel_that_was_never_reached_has_its_own_time_once_and_nothing_else(tmp_path: Path) -> None:
    result = unreached(3, timed=1)
    said = everywhere(result, tmp_path)
    for where, text in said.items():
        text = text.replace("before → after", "")
        assert ("20.3 µs" in text or where == "ui") and "→" not in text, where
        assert "1.00×" not in text or where == "compared page", where  # one run beside another
    assert "20.3 µs as tinygrad schedules it (1 of 3 kernels timed); 0 of 3 kernels improved" in said["console"]
    assert "not searched: 1, 20.3 µs: the time for searching was over" in said["console"]
    assert "not searched: 2, which were not timed" in said["console"] and "100 %" not in said["console"]
    assert "the others were not timed" in said["report"] and "not timed" in said["tune"]
    first, second, _ = result.regions
    assert (before_text(first), after_text(first), speedup_text(first)) == ("20.3 µs", "–", "–")
    assert change_text(first) == "20.3 µs, not searched" and change_text(second) == "not timed, not searched"
    before = compare.to_dict(compare.match(result, result, names=("a", "b")))["kernels"]
    assert [entry["a_after_s"] for entry in before] == [None] * 3 and before[1]["a_before_s"] is None


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("outcome", slow.first(1, ["not searched", "undecided", "unjudged", "quarantined"]))
def test_beside_kernels_that_improved_one_that_was_not_compared_has_no_time_after(outcome: str) -> None:
    first, second, *_ = sample_result().regions
    own = replace(second.baseline, cold_s=OWN_S)
    second = replace(second, calls=1, baseline=own, chosen=own, outcome=outcome, ends=())
    result = replace(sample_result(), regions=(first, second), expectations=())
    text = page_text(result)
    assert "20.3 µs → 20.3 µs" not in text and "20.3 µs" in text and "1.00×" not in text
    assert f"→ {totals_text(result).split(' → ')[1].split(',')[0]}" in text, "a total has both"
    assert f"20.3 µs, {outcome}" in text, "the list of the narrow picture"
    assert all(row[3] is None and row[4] is None for row in _rows(result) if row[5] == outcome)


def test_a_search_that_found_nothing_faster_has_one_total() -> None:
    first, *_ = sample_result().regions
    result = replace(sample_result(), regions=(replace(first, chosen=first.baseline, outcome="kept"),), expectations=())
    assert totals_text(result) == "15.7 ms as tinygrad schedules it"
    assert "as fast" not in printed(result)


def test_all_of_a_workload_is_compared_over_runs_that_timed_all_of_it(tmp_path: Path) -> None:
    for name, one in {"24": sample_result(), "25": sample_result(), "26": unreached(3, timed=1)}.items():
        write_result(replace(one, created=f"2026-03-14T15:09:{name}+00:00"), tmp_path / name / "RESULT.json")
    (trends,) = trends_of(Folder(tmp_path).look().runs)
    (whole,) = trends.wholes
    assert len(whole.times_s) == 2 and all(len(kernel.times_s) == 2 for kernel in trends.kernels)


def test_a_run_that_has_timed_and_found_nothing_yet_is_no_times_as_fast(tmp_path: Path) -> None:
    file = live_file(tmp_path)
    text = " ".join(" ".join(Page(render(_running(tmp_path), tmp_path)).text).split())
    assert "as tinygrad schedules it; nothing of it is verified yet" in text and "as fast" not in text
    file.show(9.0, 20, 0.4, budget_s=60.0, kernels=(16, 16))
    assert "1.25× as fast, as the search measures" in " ".join(
        " ".join(Page(render(_running(tmp_path), tmp_path)).text).split()
    )


def _running(folder: Path):  # type: ignore[no-untyped-def]
    """As long as the run has its folder."""
    from kcg.measure.lock import lock_folder

    with lock_folder(folder):
        return Folder(folder).look()
