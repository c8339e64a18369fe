"""What was checked is a table of rules and programs, with the numbers of a rule in its cells."""

from __future__ import annotations

from dataclasses import replace

from kcg.report.page import render_report
from kcg.report.rows import rows_of
from kcg.report.verification import rules_of
from kcg.types import RegionResult, Result, Verification
from tests.html_page import Page
from tests.sample_result import sample_result


def with_checks(*checks: Verification) -> Result:
    """The first kernels of the sample with these verdicts on what was chosen, in the order of the report."""
    sample = sample_result()
    rows: list[RegionResult] = sorted(sample.regions, key=lambda row: -row.before_s)[: len(checks)]
    found = [
        replace(row, chosen=replace(row.chosen, verification=check)) for row, check in zip(rows, checks, strict=True)
    ]
    return replace(sample, regions=tuple(found), expectations=(), recomputes=())


STRESSED = "{} launches under stress bitwise equal, {} of them beside another stream"
FIRST = Verification(True, ("guard bytes", "24 timed runs bitwise equal", STRESSED.format(10000, 5000)), 0.2, 3)
SECOND = Verification(True, ("122 timed runs bitwise equal", "24 timed runs bitwise equal", "guard bytes"), 0.3, 3)
WRONG = Verification(False, ("guard bytes", "exact on {0,1} inputs"), 7.0, 2, "output 3 is 1.5 and not 1")
IDLE = Verification(False, seeds=1, reason="checked on one seed")


def test_a_rule_is_one_column_whatever_its_number() -> None:
    table = rules_of(rows_of(with_checks(FIRST, SECOND, WRONG, IDLE)))
    stress = "launches under stress bitwise equal, some of them beside another stream"
    assert table.names == ("guard bytes", "timed runs bitwise equal", stress, "exact on {0,1} inputs")
    assert table.passed == (2, 2, 1, 0), "those first that most programs passed"
    assert [one.cells for one in table.programs] == [
        ("✓", "24", "10,000", ""),
        ("✓", "122", "", ""),
        ("?", "", "", "?"),
        ("", "", "", ""),
    ]


def test_the_page_has_a_row_for_each_program_and_no_sentence_of_rules() -> None:
    result = with_checks(FIRST, SECOND, WRONG, IDLE)
    page = Page(render_report(result))
    heads = [a for tag, a in page.tags if tag == "th" and a.get("class") == "rule"]
    assert len(heads) == 4 and all(a["scope"] == "col" for a in heads)
    assert sum(tag == "th" and a.get("scope") == "row" for tag, a in page.tags) == 5, "with the sums of what passed"
    text = " ".join(" ".join(page.text).split())
    assert "of these:" not in text and "?: ran on a program that did not pass" in text
    assert "2 of 4 kernels passed every rule that applies to them. 1 keep tinygrad's own schedule" in text
    assert "and is not verified. The largest error is 0.3 of its tolerance" in text
    assert WRONG.reason in text


def test_nothing_that_was_checked_is_no_table() -> None:
    table = rules_of(())
    assert (table.names, table.passed, table.programs) == ((), (), ())
    assert "Rules that each program passed" not in render_report(replace(with_checks(), regions=()))
