"""The incumbent: from the first verdict on RESULT.json has the best plan of what was verified, however a run ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kcg.errors import ExitCode
from kcg.optimize.incumbent import LARGE, SHARE, Incumbent
from kcg.optimize.live import FILE_NAME, read_live
from kcg.optimize.work import RegionResults
from kcg.report.formats import format_seconds
from kcg.report.phases import JUDGING
from kcg.report.result import read_result
from kcg.types import ProgressPoint, Result
from kcg.ui.runs import KILLED, Folder
from kcg.workloads import left
from kcg.workloads.script import kept_workload
from tests.commands import python
from tests.sample_result import sample_result
from tests.waiting import PATIENCE_S, wait_until

SCRIPT = """
import numpy as np
from tinygrad import Tensor
rng = np.random.default_rng(0)
x = Tensor(rng.normal(size=(64, 96)).astype(np.float32)).realize()
for size in (64, 96):
    (x @ Tensor(rng.normal(size=(96, size)).astype(np.float32)).realize()).realize()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_while_it_judges_leaves_what_was_verified(number: signal.Signals, tmp_path: Path) -> None:
    """By default a run that is interrupted while it searches does (test_ahead), a run that is killed leaves no child
    (test_optimize), and that the file is there from the first verdict on is tested below."""
    folder, script = tmp_path / "out", tmp_path / "products.py"
    folder.mkdir()
    script.write_text(SCRIPT)
    (folder / "RESULT.json").write_bytes(b"what it found")
    arguments = (script, "--predictor", "roofline", "--measurements", "10", "--report", folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.optimize.judging_for_ever", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children: list[psutil.Process] = []

    def is_shown() -> bool:
        children[:] = psutil.Process(process.pid).children(recursive=True)
        return process.poll() is not None or _verified_share(folder / FILE_NAME) < 1

    assert wait_until(is_shown) and process.poll() is None, process.communicate()[1]
    process.send_signal(number)
    printed = process.communicate(timeout=PATIENCE_S)[1]
    assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1], "no child survives its parent"
    assert process.returncode == (-number if number == signal.SIGKILL else ExitCode.INTERRUPTED), printed

    result = read_result(folder / "RESULT.json")
    (improved,) = [row for row in result.regions if row.outcome == "improved"]
    assert improved.chosen.verification.passed and improved.chosen.schedule != improved.baseline.schedule
    assert all(row.chosen == row.baseline for row in result.regions if row is not improved)
    undecided = [row for row in result.regions if row.outcome == "undecided"]
    assert undecided and all(" as fast in the search; " in row.note for row in undecided)
    assert not result.complete and result.total_after_s < result.total_before_s
    assert result.model_check is not None and result.model_check.passed is None, "the whole was not checked"
    assert [path.read_bytes() for path in folder.glob("RESULT-*.json")] == [b"what it found"], "set aside once"
    assert result.verified_progress[-1].total_s == result.total_after_s
    assert (calls := kept_workload(folder / left.FOLDER)) is not None and calls.name == result.workload, "for kcg check"
    words = f"verified {format_seconds(result.total_after_s)} of {format_seconds(result.total_before_s)}"
    assert words in printed
    live = read_live(folder / FILE_NAME)
    assert live.verified_s == (result.total_after_s, result.total_before_s)
    if number == signal.SIGKILL:
        assert result.warnings[-1].startswith("the run ended before everything was judged")
        assert result.warnings[-1].endswith(f"--report {folder} --resume"), "how to go on"
        assert live.phase == JUDGING and [run.state for run in Folder(folder).look().runs] == [KILLED]

    done = python("-m", "kcg.run", "--result", folder / "RESULT.json", script, cwd=tmp_path)
    assert done.returncode == 0 and "1 by schedules that were found" in done.stderr, done.stderr


def _verified_share(path: Path) -> float:
    """What is verified takes of the time with tinygrad's own schedules, as a run says of itself."""
    after_s, before_s = (path.exists() and read_live(path).verified_s) or (1.0, 1.0)
    return after_s / before_s


# ---- when it is written


class Made:
    """A result that gets better, and a time that a test sets; making one takes a second of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.result, self.now_s, self.times, self.aside = path, sample_result(), 100.0, 0, 0
        self.history = list[ProgressPoint]()
        self.incumbent = Incumbent(
            path,
            self.make,
            whole="model",
            go_on="it --resume",
            set_aside=self.set_aside,
            history=self.history,
            started=90.0,
            clock=lambda: self.now_s,
        )

    def make(self, results: RegionResults | None) -> Result:
        self.times += 1
        self.now_s += 1.0
        return self.result

    def set_aside(self) -> None:
        self.aside += 1

    def better(self) -> None:
        """One more region keeps tinygrad's own schedule no longer."""
        first, *rest = self.result.regions
        one = next(row for row in rest if row.chosen != first.chosen)
        rows = tuple(replace(row, chosen=one.chosen) if row is first else row for row in self.result.regions)
        self.result = replace(self.result, regions=rows)

    @property
    def stored(self) -> Result:
        return read_result(self.path)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    yield Made(tmp_path / "RESULT.json")


def test_it_is_written_at_the_first_verdict_and_whenever_the_plan_is_another_one(made: Made) -> None:
    incumbent = made.incumbent
    assert incumbent.verified_s is None
    incumbent.improve()
    first = made.stored
    assert first.plan == made.result.plan and not first.complete and made.aside == 1
    assert incumbent.verified_s == (first.total_after_s, first.total_before_s)
    written = made.path.stat().st_ino
    made.now_s += 1 / SHARE
    incumbent.improve()
    assert made.path.stat().st_ino == written, "nothing is better"
    made.better()
    made.now_s += 1 / SHARE
    incumbent.improve()
    assert made.path.stat().st_ino != written and made.stored.plan == made.result.plan != first.plan
    totals = [(point.elapsed_s, point.total_s) for point in made.stored.verified_progress]
    assert totals == [(11.0, first.total_after_s), (53.0, made.result.total_after_s)], "what it was, and when"
    assert made.stored.verified_progress == tuple(made.history)
    assert first.verified_progress == made.stored.verified_progress[:1]


def test_what_comes_too_soon_is_written_with_the_next_verdict(made: Made) -> None:
    made.incumbent.improve()
    made.better()
    made.now_s += 1 / SHARE - 1.5
    made.incumbent.improve()
    assert made.times == 1 and made.stored.plan != made.result.plan
    made.now_s += 1.0
    made.incumbent.improve()
    assert made.times == 2 and made.stored.plan == made.result.plan


def test_what_saves_much_is_written_sooner(made: Made) -> None:
    made.incumbent.improve()
    made.better()
    large_s = LARGE * made.stored.total_after_s
    made.now_s += 0.2 / SHARE + 0.1
    assert not made.incumbent.improve(0.6 * large_s), "it is little"
    assert made.incumbent.improve(0.6 * large_s) and made.stored.plan == made.result.plan, "both together are much"
    made.now_s += 0.2 / SHARE
    assert not made.incumbent.improve(0.6 * large_s), "the file has the others"


def test_once_all_is_judged_it_says_that_the_whole_is_not_checked(made: Made) -> None:
    made.incumbent.improve()
    made.incumbent.settle(RegionResults(()))
    stored = made.stored
    assert stored.warnings[-1].startswith("the run ended before the whole model was checked")
    assert stored.warnings[-1].endswith("; to go on: it --resume") and len(stored.warnings) == len(
        [*made.result.warnings, "this"]
    )
    assert stored.model_check is not None and stored.model_check.reason.startswith("not run")


def test_where_it_cannot_be_written_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = Made(tmp_path / "file" / "RESULT.json")
    made.incumbent.improve()
    assert made.aside == 1 and made.incumbent.verified_s is not None
