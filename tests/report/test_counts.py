"""Kernels and regions of several kernels are counted apart, wherever a number of them is printed."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kcg.compare import print_comparison
from kcg.optimize.__main__ import not_verified, nothing_faster
from kcg.optimize.console import print_result
from kcg.report.compare import match
from kcg.report.compare import render as compared
from kcg.report.counts import how_many, nouns_of, share_of
from kcg.report.page import render_report
from kcg.report.result import write_result
from kcg.tuning import Tuned
from kcg.types import Kernel, Region, Result
from kcg.ui.page import render
from kcg.ui.runs import Folder
from tests.html_page import Page
from tests.sample_result import sample_plan, sample_result

ONE, TWO = Region((Kernel("1"),)), Region((Kernel("2"),))
BOTH = Region((Kernel("1"), Kernel("2")), ((0, 1), (1, 2)))
MIXED = "11 kernels and 2 regions"


def printed(result: Result) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_result(result, console)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def text_of(page: str) -> str:
    return " ".join(" ".join(Page(page).text).split())


def test_the_summary_counts_what_is_provisional() -> None:
    result = sample_result()
    first, *others = result.regions
    assert first.outcome == "improved" and "provisional" not in printed(result)
    some = replace(first, chosen=replace(first.chosen, launches=1000, launches_due=10_000))
    shown = printed(replace(result, regions=(some, *others)))
    assert "1 program is provisional, passed 1,000 of 10,000 launches under stress" in shown
    assert "1 program is provisional" in str(Tuned(replace(result, regions=(some, *others)), Path("RESULT.json")))


@pytest.mark.parametrize(
    ("some", "every", "words", "share"),
    [
        ([ONE], [ONE, TWO], "2 kernels", "1 of 2 kernels"),
        ([], [ONE], "1 kernel", "0 of 1 kernel"),
        ([ONE, BOTH], [ONE, TWO, BOTH], "2 kernels and 1 region", "1 of 2 kernels and 1 of 1 region"),
        ([BOTH], [BOTH], "1 region", "1 of 1 region"),
        ([ONE, ONE], [ONE, ONE, TWO], "2 kernels", "1 of 2 kernels"),  # with several values of its variables
        ([], [], "0 kernels", "0 of 0 kernels"),
    ],
)
def test_numbers_in_words(some: list[Region], every: list[Region], words: str, share: str) -> None:
    assert how_many(every) == words and share_of(some, every) == share


def test_what_a_number_counts() -> None:
    assert [nouns_of(one) for one in ([ONE], [BOTH], [ONE, BOTH], [])] == [
        "kernels",
        "regions",
        "kernels and regions",
        "kernels",
    ]


def test_no_more_improve_than_there_are_and_each_is_called_what_it_is(tmp_path: Path) -> None:
    """On the terminal, the page, the page of all runs, a tuned function's, and where two results are compared."""
    plan = sample_plan()
    kernels = [row for row in plan.regions if len(row.region.kernels) == 1]
    improved = sum(row.outcome == "improved" for row in kernels)
    share = f"{improved} of 11 kernels and 2 of 2 regions"
    assert len(kernels) == 11 and len(plan.regions) == 13
    assert f"{share} improved" in printed(plan)
    report = render_report(plan)
    assert "of 11 kernels and 2 of 2 regions passed every rule" in text_of(report)
    assert 'data-noun="kernels and regions"' in report and 'data-noun="kernels"' in render_report(sample_result())
    (tmp_path / "run").mkdir()
    write_result(plan, tmp_path / "run" / "RESULT.json")
    assert share in text_of(render(Folder(tmp_path).look(), tmp_path))
    tuned = str(Tuned(plan, tmp_path / "RESULT.json"))
    assert f"{MIXED}: " in tuned
    found = match(plan, plan, names=("a", "b"))
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_comparison(found, console)
    for text in (console.file.getvalue(), text_of(compared(found))):  # type: ignore[attr-defined]
        assert f"{MIXED} timed in both" in " ".join(text.split())


def test_what_went_wrong_is_counted_so_too() -> None:
    plan = replace(sample_plan(), model_check=None)
    idle = replace(plan, regions=tuple(replace(row, outcome="not searched", note="") for row in plan.regions))
    assert "(11 of 11 kernels and 2 of 2 regions were not searched)" in nothing_faster(idle)
    several = [row for row in plan.regions if len(row.region.kernels) > 1]
    wrong = replace(several[0].chosen, verification=replace(several[0].chosen.verification, passed=False, seeds=1))
    assert wrong.verification.wrong
    rows = tuple(replace(row, chosen=wrong) if row is several[0] else row for row in plan.regions)
    were = sum(row.chosen.verification.wrong for row in plan.regions)
    said = not_verified(replace(plan, regions=rows))
    assert said.startswith(f"{were} of 11 kernels and 1 of 2 regions are wrong with tinygrad's own schedule")
    none = replace(several[0].baseline, cold_s=0.0)
    rows = tuple(replace(row, baseline=none, chosen=none) if row in several else row for row in plan.regions)
    assert "2 regions were not timed: the totals are without them" in printed(replace(plan, regions=rows))
