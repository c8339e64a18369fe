"""`kcg check` gives what is provisional in a result the rest of its launches, compares the whole, leaves out what that
is wrong with, and says what came out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kcg import check
from kcg.dataset.journal import Journal
from kcg.errors import ExitCode
from kcg.handover.choices import changed_by, what_to_know
from kcg.judge.stressing import failures_in
from kcg.judge.whole import Cost, Runner
from kcg.kernel.kinds import compile_region
from kcg.measure import stress
from kcg.measure.jobs import StressOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService
from kcg.optimize import completing
from kcg.report.next_steps import next_steps
from kcg.report.page import render_report
from kcg.report.result import read_result, write_result
from kcg.report.words import provisional_line
from kcg.store.entry import entries_of
from kcg.store.folder import open_folder
from kcg.types import ModelCheck, RegionResult, Result, Status
from kcg.workloads.left import FOLDER
from kcg.workloads.script import keep_workload
from tests.commands import Ended, ended
from tests.planned_result import norm_workload, planned_result
from tests.small_result import small_result

DUE, HAD = 1200, 1000


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    """One for all of these tests: to open another costs seconds."""
    with MeasureService("CPU:X86", run_id="check") as opened:
        yield opened


@pytest.fixture(scope="module")
def small(service: MeasureService) -> Result:
    """A result of this machine, two of its programs provisional."""
    found = small_result(*service.facts)
    toolchain = replace(found.toolchain, tinygrad=metadata.version("tinygrad"))
    rows = [*found.regions]
    for place in (0, 1):
        row = rows[place]
        compiled = compile_region(row.region, row.chosen.schedule, found.target)
        rules = ("ten runs bitwise equal", stress.rule(found.target, HAD))
        verified = replace(row.chosen.verification, rules=rules, seeds=3)
        chosen = replace(row.chosen, cold_s=1e-6 / (1 + place), verification=verified, binary_hash=compiled.binary_hash)
        rows[place] = replace(row, chosen=replace(chosen, launches=HAD, launches_due=DUE))
    found = replace(found, regions=tuple(rows), toolchain=toolchain, model_check=None, complete=True, warnings=())
    return replace(found, workload="rope", preset="mini")  # whose whole, which has none of these, runs in a second


@pytest.fixture
def path(small: Result, service: MeasureService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(completing, "MeasureService", lambda *args, **how: contextlib.nullcontext(service))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(stress, "LAUNCHES", DUE)
    write_result(small, tmp_path / "RESULT.json")
    return tmp_path / "RESULT.json"


def checked(path: Path) -> Ended:
    return ended(check.main, path)


def stressing(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Any], str]) -> list[Any]:
    """Stress that takes no time, and finds what `happens` says of a job; the jobs."""
    jobs = list[Any]()

    def run(self: MeasureService, job: Any, *, timeout_s: float) -> Future[StressOutcome]:
        jobs.append(job)
        future: Future[StressOutcome] = Future()
        future.set_result(StressOutcome(happens(job)))
        return future

    monkeypatch.setattr(MeasureService, "stress", run)
    return jobs


def rows_of(path: Path) -> tuple[RegionResult, ...]:
    return read_result(path).regions


def test_a_result_with_provisional_parts_says_so_and_is_usable(small: Result, path: Path) -> None:
    line = provisional_line(small)
    assert line == "2 programs are provisional, each passed at least 1,000 of 1,200 launches under stress: " + (
        "kcg check completes that"
    )
    assert line in what_to_know(small) and render_report(small).count("2 programs are provisional") == 2
    assert "provisional: 1,000 of 1,200 launches under stress" in render_report(small)
    assert (f"kcg check {path}", "completes what is provisional, no search") in next_steps(small, path)
    assert read_result(path) == small and len(small.provisional) == 2
    assert [row.region.id for row in small.provisional] == [small.regions[place].region.id for place in (1, 0)]


def test_it_passes_the_rest_of_its_launches_on_the_device(path: Path) -> None:
    done = checked(path)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "2 programs are provisional" in done.stderr and "are provisional" not in done.stdout
    for row in rows_of(path)[:2]:
        assert (row.chosen.launches, row.chosen.launches_due, row.outcome) == (DUE, DUE, "improved")
        assert row.chosen.verification.rules == ("ten runs bitwise equal", stress.rule(read_result(path).target, DUE))
    assert path.with_name("report.html").exists()
    before = path.read_bytes()
    again = checked(path)
    assert again.returncode == ExitCode.OK and path.read_bytes() == before, "there is nothing left to do"


def test_what_fails_gives_way_to_what_else_is_verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows_of(path)[1].region.id
    jobs = stressing(monkeypatch, lambda job: "of 1100 launches one left another" if job.region.id == first else "")
    whole = Compared()
    monkeypatch.setattr(completing, "runner_of", lambda *_: whole)
    done = checked(path)
    other, failed = rows_of(path)[:2]
    assert [(job.region.id, job.before, job.count) for job in jobs] == [(first, HAD, 200), (other.region.id, HAD, 200)]
    assert not other.chosen.provisional and other.outcome == "improved"
    assert (failed.outcome, failed.chosen) == ("kept", failed.baseline) and "wrong under stress" in failed.note
    found = read_result(path)
    assert any("is left out: wrong under stress" in line for line in found.warnings)
    assert [first in changed for changed in whole.seen] == [False], "the whole is compared without it"
    assert done.returncode == ExitCode.OK and found.model_check is not None and found.model_check.passed


def test_what_fails_is_in_the_journal_of_its_run_and_in_its_store_no_more(
    path: Path, small: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, row = open_folder(str(path.parent / "store"), new=True), small.regions[1]
    result = replace(small, command=f"kcg optimize x.py --store {store.folder} --report {path.parent}")
    write_result(result, path)
    for entry in entries_of(result, result.regions):
        store.add(entry)
    kept = {entry.entry.region.id for entry in store.all() if entry.entry is not None}
    assert row.region.id in kept and len(kept) > 1
    with Journal.open(path.with_name("journal.sqlite")):
        pass
    stressing(monkeypatch, lambda job: "of 1100 launches one left another" if job.region == row.region else "")
    monkeypatch.setattr(completing, "runner_of", lambda *_: Compared())
    assert checked(path).returncode == ExitCode.OK
    with Journal.open(path.with_name("journal.sqlite"), read_only=True) as journal:
        (failed,) = journal.measurements(PROTOCOL)
        assert failed.run_id in journal.runs() and failed.toolchain in small.toolchain.fingerprints
        assert failed.toolchain in journal.toolchains() and failed.target in journal.targets()
    assert (failed.region_id, failed.schedule, failed.status) == (row.region.id, row.chosen.schedule, Status.WRONG)
    assert failures_in([failed]) == {
        (row.region.id, row.chosen.binary_hash, ()): "wrong under stress: of 1100 launches one left another"
    }
    assert {one.entry.region.id for one in store.all() if one.entry is not None} == kept - {row.region.id}


def test_ended_early_it_keeps_what_passed_and_goes_on_from_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "PIECE_S", 0.006)
    jobs = list[Any]()

    def happens(job: Any) -> str:
        if len(jobs) == 2:
            raise KeyboardInterrupt
        jobs.append(job)
        return ""

    stressing(monkeypatch, happens)
    assert checked(path).returncode == ExitCode.INTERRUPTED
    (partly,) = {row.chosen.launches for row in rows_of(path)[:2]} - {HAD}
    assert partly == jobs[-1].before + jobs[-1].count > HAD and len(read_result(path).provisional) == 2
    later = stressing(monkeypatch, lambda job: "")
    assert checked(path).returncode == ExitCode.OK
    assert later[0].before == partly and not read_result(path).provisional


def test_another_binary_than_the_one_that_was_verified_stays_provisional(
    path: Path, small: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = stressing(monkeypatch, lambda job: "")
    one, *rest = small.regions
    other = replace(one, chosen=replace(one.chosen, binary_hash="0" * 64))
    write_result(replace(small, regions=(other, *rest)), path)
    done = checked(path)
    assert done.returncode == ExitCode.UNCHECKED and len(jobs) == 1
    assert "stays provisional: it compiles to another binary here" in done.stderr
    assert [row.region for row in read_result(path).provisional] == [one.region]


def test_where_there_is_no_result_that_is_said(tmp_path: Path) -> None:
    done = checked(tmp_path)
    assert done.returncode == ExitCode.USAGE and "RESULT.json" in done.stderr


# ---- a whole that is wrong


class Compared(Runner):
    """A script that is wrong with some kernels and regions, and which of these each comparison was of."""

    what = "script"

    def __init__(self, *wrong: str, most: int = 1000) -> None:
        self.wrong, self.most, self.seen = wrong, most, list[set[str]]()

    def announced(self, plans: str) -> str:
        return f"running it{plans}"

    def expected_s(self, cost: Cost) -> float:
        return 0.0

    def checks(self, results: Sequence[Result], *, timeout_s: float, rounds_s: float = math.inf) -> list[ModelCheck]:
        if len(self.seen) == self.most:
            raise KeyboardInterrupt
        (result,) = results
        changed = changed_by(result, handwritten=False)
        self.seen.append(changed)
        self.apart = self.apart or changed.difference(self.wrong)
        wrong = changed.intersection(self.wrong)
        return [ModelCheck(False, "it differs") if wrong else ModelCheck(True, "", 0.0, 1.0)]


@pytest.fixture
def unchecked(tmp_path: Path) -> tuple[Result, str, Path]:
    """A result of a script with a region of several kernels, of which the whole was not compared; the region."""
    workload, region = norm_workload()
    found = replace(planned_result(workload, region), model_check=ModelCheck(None, "not run: no time"), complete=False)
    write_result(replace(found, warnings=("it rains",)), tmp_path / "RESULT.json")
    keep_workload(tmp_path / FOLDER, workload)
    return found, region.id, tmp_path / "RESULT.json"


def test_what_a_whole_is_wrong_with_is_left_out_and_the_rest_keeps_its_gain(
    unchecked: tuple[Result, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, region, path = unchecked
    monkeypatch.setattr(completing, "runner_of", lambda *_: Compared(region))
    done = checked(path)
    assert done.returncode == ExitCode.OK, done.stderr
    found = read_result(path)
    assert found.complete and found.model_check is not None and found.model_check.passed
    assert [(one.region, one.status) for one in found.dropped] == [(region, "wrong")]
    kernels = {row.region.id: row for row in (*before.regions, *before.planning.inside)}  # type: ignore[union-attr]
    assert {row.region.id for row in found.regions} == set(kernels) - {region}
    assert all(row.outcome == "improved" and row.calls for row in found.regions), "its kernels run alone again"
    assert sum(row.calls for row in found.regions) > sum(row.calls for row in before.regions)
    (rain, line) = found.warnings
    assert rain == "it rains" and "is left out: the whole script is wrong with it" in line
    assert line in done.stderr and line in path.with_name("report.html").read_text()
    assert not (path.parent / FOLDER).exists() and checked(path).returncode == ExitCode.OK


@pytest.mark.slow
def test_ended_early_it_compares_no_part_again(
    unchecked: tuple[Result, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, region, path = unchecked
    before, seen = path.read_bytes(), list[set[str]]()
    while (runner := Compared(region, most=1)) and not seen[6:]:
        monkeypatch.setattr(completing, "runner_of", lambda *_, runner=runner: runner)
        done = checked(path)
        seen += runner.seen
        if done.returncode != ExitCode.INTERRUPTED:
            break
        assert path.read_bytes() == before, "it is not checked yet"
    assert done.returncode == ExitCode.OK and len(seen) > 2
    assert len({frozenset(one) for one in seen}) == len(seen), "each part was compared once"


def test_a_whole_that_is_wrong_with_all_of_it_is_no_result_to_use(
    unchecked: tuple[Result, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, region, path = unchecked
    rows = (*before.regions, *before.planning.inside)  # type: ignore[union-attr]
    monkeypatch.setattr(completing, "runner_of", lambda *_: Compared(region, *(row.region.id for row in rows)))
    assert checked(path).returncode == ExitCode.VERIFICATION_FAILED
    found = read_result(path)
    assert found.regions == before.regions and found.model_check is not None and found.model_check.passed is False
    assert {one.region for one in found.dropped} == {row.region.id for row in rows}


def test_where_the_calls_of_a_program_were_not_kept_that_is_said(
    unchecked: tuple[Result, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, region, path = unchecked
    (path.parent / FOLDER / "workload.json").write_text('{"calls": 1}')
    monkeypatch.setattr(completing, "runner_of", lambda *_: Compared(region))
    done = checked(path)
    assert done.returncode == ExitCode.VERIFICATION_FAILED and "the calls of its run were not kept" in done.stderr
