"""What is said of the files of a run that was killed."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from evaluation.search.killed import headline, what_is_left
from kcg.files import whole
from kcg.nouns import noun_to_json
from kcg.optimize.live import FILE_NAME, Live
from kcg.report.result import write_result
from tests.sample_result import sample_result


def said(folder: Path, verified_s: tuple[float, float] | None) -> None:
    live = Live("flux", "mini", "CPU", "mcts", "", "", phase="search", verified_s=verified_s)
    with whole(folder / FILE_NAME) as path:
        path.write_text(noun_to_json(live))


def test_it_is_usable_where_it_has_all_that_was_verified_and_nothing_else(tmp_path: Path) -> None:
    assert what_is_left(tmp_path)["usable"], "it was killed before anything was verified"
    result = sample_result()
    said(tmp_path, (result.total_after_s, result.total_before_s))
    assert not what_is_left(tmp_path)["usable"], "something was, and there is no file"
    write_result(result, tmp_path / "RESULT.json")
    assert what_is_left(tmp_path)["usable"] and what_is_left(tmp_path)["improved"]
    said(tmp_path, (result.total_after_s / 2, result.total_before_s))
    assert not what_is_left(tmp_path)["usable"], "more was verified than it has"
    said(tmp_path, None)
    row = next(row for row in result.regions if row.chosen.schedule != row.baseline.schedule)
    failed = replace(row, chosen=replace(row.chosen, verification=replace(row.chosen.verification, passed=False)))
    rows = tuple(failed if one is row else one for one in result.regions)
    write_result(replace(result, regions=rows), tmp_path / "RESULT.json")
    assert not what_is_left(tmp_path)["usable"], "one of its schedules is not verified"
    (tmp_path / "RESULT.json").write_text("half of it")
    assert not what_is_left(tmp_path)["usable"]


def test_only_runs_that_were_killed_count() -> None:
    rows = {
        "0/0": {"exit_code": -signal.SIGKILL, "usable": True, "improved": 2, "left": 0},
        "0/1": {"exit_code": -signal.SIGKILL, "usable": True, "left": 0},
        "0/2": {"exit_code": 0, "usable": True, "improved": 5, "left": 0},
    }
    assert headline(rows) == {"killed": 2, "killed_usable": 2, "killed_improved": 1, "killed_left_over": 0}
