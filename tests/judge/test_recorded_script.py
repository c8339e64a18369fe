"""A script is compared with what it left when its kernels were recorded: one further run is enough, and where that does
not agree it is compared as before."""

from __future__ import annotations

import os
import resource
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg import check
from kcg.compat.observing import ALIVE, READ, Left, Piece
from kcg.errors import ExitCode
from kcg.judge import whole_script
from kcg.judge.lockstep import ROUNDED, TRIALS
from kcg.judge.whole import Cost
from kcg.judge.whole_script import Script
from kcg.optimize.region_plans import _fastest
from kcg.report.endings import exit_code_of
from kcg.report.next_steps import next_steps
from kcg.report.result import read_result, write_result
from kcg.types import ModelCheck, Result
from kcg.workloads import left
from kcg.workloads.script import Form, Program, bounded, capture_program
from tests.commands import ended
from tests.judge.test_whole_script import SCRIPT, TIMEOUT_S, result_of, right, wrong  # noqa: F401
from tests.optimize_run import optimized

DEV = os.environ["DEV"]
SEED = 3


def recorded(folder: Path, path: Path, *arguments: str) -> Script:
    """A script once its kernels were recorded."""
    program = Program(Form.SCRIPT, str(path), arguments)
    keeping = left.Keeping(folder / "recorded", SEED)
    capture_program(program, dev=DEV, keeping=keeping)
    return Script(program, seed=SEED, recorded_s=10.0, recorded=keeping.folder)


def read_by_it(values: Any, *fed_by: str) -> Left:
    values = np.asarray(values)
    eps = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
    return Left(READ, values.nbytes, fed_by, Piece(READ, values.dtype.name, eps, values, fed_by))


LOSS, TOKEN = np.float32(0.5), np.int32(7)


@pytest.mark.parametrize(
    ("reads", "feeds_back"),
    [
        ([read_by_it(LOSS, "forward"), read_by_it(LOSS, "forward", "backward", "optimiser")], True),
        ([read_by_it(LOSS, "forward"), read_by_it(LOSS, "forward")], False),
        ([read_by_it(LOSS, "forward"), read_by_it(np.ones(9, np.float32), "forward", "last")], False),
        ([read_by_it(TOKEN, "prompt"), read_by_it(TOKEN, "prompt", "token")], False),
        ([read_by_it(LOSS, "one"), read_by_it(LOSS, "another")], False),
        ([], False),
    ],
)
def test_a_training_loop_feeds_back_what_it_computes(reads: list[Left], feeds_back: bool, tmp_path: Path) -> None:
    """It is likely to differ from its recording by rounding, which takes trials of a step."""
    program = Program(Form.SCRIPT, "train.py", ())
    alive = Left(ALIVE, 4, ("forward",), Piece(ALIVE, "float", 1e-7, np.ones(1, np.float32), ("forward",)))
    left.keep(tmp_path, [alive, *reads], of=left.identity(program.command, seed=SEED, dev=DEV))
    script = Script(program, seed=SEED, recorded=tmp_path, recorded_s=12.0, spared_s=2.0, dev=DEV, steps=20)
    assert script.feeds_back is feeds_back
    assert not replace(script, dev="ANOTHER").feeds_back and not replace(script, recorded=None).feeds_back
    cost = Cost(changed=1, step_s=8.0, compile_s=0.5)
    lockstep_s = script.expected_s(cost) - replace(script, steps=0).expected_s(cost)
    times = 5 + (1 + 2 * TRIALS + 2 * ROUNDED if feeds_back else 0)  # of 20 steps five are compared
    compiling_s = cost.compile_s if feeds_back else 0.0
    assert lockstep_s == pytest.approx(whole_script.MORE * (times * 0.4 + compiling_s))


def test_a_loop_of_thousands_of_losses_is_read_with_few_files_open(tmp_path: Path) -> None:
    program = Program(Form.SCRIPT, "train.py", ())
    of = left.identity(program.command, seed=SEED, dev=DEV)
    left.keep(tmp_path, [read_by_it(LOSS + np.float32(at), "all") for at in range(2_000)], of=of)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        kept = left.read_recorded(tmp_path, of=of)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert kept is not None and len(kept.found) == 2_000


def lines_of(file: Path) -> int:
    return len(file.read_text().splitlines())


@pytest.mark.slow
def test_one_further_run_is_enough_where_it_leaves_what_was_recorded(right: Result, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "runs.txt"
    script = recorded(tmp_path, SCRIPT, "alive", str(file))
    assert script.is_recorded and lines_of(file) == 1
    assert script.expected_s(Cost(changed=1)) == 12.5 and script.expected_s(Cost(changed=1, plans=2)) == 25.0
    assert script.announced("").startswith(f"running {SCRIPT} again, with the chosen schedules (its side effects")
    (seen,) = script.checks([right], timeout_s=TIMEOUT_S)
    assert seen.passed and seen.runs == 1 and seen.seed == SEED, seen
    assert seen.compared == "1 tensor alive at its end, as recorded" and seen.before_s is None
    assert seen.kernels == sum(row.outcome == "improved" for row in right.regions)
    assert lines_of(file) == 2, "it was recorded, and ran once more"
    first, second = file.read_text().splitlines()
    assert first == second, "from the same seeds"


@pytest.mark.slow
@pytest.mark.parametrize(("little", "runs"), [(whole_script.LITTLE, 1), (0.0, 2)])
def test_what_is_wrong_is_proven_by_one_run_with_trials(
    wrong: Result,  # noqa: F811
    little: float,
    runs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the first one, where trials take little of it."""
    monkeypatch.setattr(whole_script, "LITTLE", little)
    (seen,) = recorded(tmp_path, SCRIPT, "alive").checks([wrong], timeout_s=TIMEOUT_S)
    assert seen.passed is False and seen.runs == runs, seen
    assert "written by a step" in seen.reason and "each from the same values with both" in seen.compared


@pytest.mark.slow
def test_a_script_that_no_seed_repeats_is_right_by_the_same_run(right: Result, tmp_path: Path) -> None:  # noqa: F811
    """By `os.urandom`."""
    (seen,) = recorded(tmp_path, SCRIPT, "random").checks([right], timeout_s=TIMEOUT_S)
    assert seen.passed and seen.runs == 1 and seen.compared == "1 step, each from the same values with both", seen


@pytest.mark.slow
def test_where_there_is_no_time_for_trials_that_is_said(
    wrong: Result,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_script, "LITTLE", 0.0)
    monkeypatch.setattr(whole_script._Runs, "has_time_for", lambda runs, *some, until=0.0: False)
    (seen,) = recorded(tmp_path, SCRIPT, "alive").checks([wrong], timeout_s=TIMEOUT_S)
    assert (seen.passed, seen.reason, seen.runs) == (None, f"no verdict: {whole_script.NO_TRIALS}", 1), seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "runs", "compared"),
    [
        ("jitted", 1, "1 tensor returned by its last TinyJit step, as recorded"),
        ("local", 1, "1 tensor read by it, as recorded"),
        ("leaves", 1, "1 tensor alive at its end, as recorded"),
        ("exits", 1, "1 tensor alive at its end, as recorded"),
        ("exits inside", 1, "1 tensor alive at its end, as recorded"),
        ("raises", 2, "1 tensor alive at its end"),
        ("nothing", 2, "1 step, each from the same values with both"),
    ],
)
def test_however_it_ends(right: Result, how: str, runs: int, compared: str, tmp_path: Path) -> None:  # noqa: F811
    """Where it does not end well nothing is kept of it, and tinygrad's own schedules run first, as before."""
    (seen,) = recorded(tmp_path, SCRIPT, how).checks([right], timeout_s=TIMEOUT_S)
    assert (seen.passed, seen.runs, seen.compared) == (True, runs, compared), seen


@pytest.mark.slow
def test_plans_are_timed_beside_each_other_and_tinygrads_own_where_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_script, "ROUNDS", 1)
    path = SCRIPT.with_name("product_steps.py")
    result = result_of(path)
    script = recorded(tmp_path, path)
    (alone,) = script.checks([result], timeout_s=TIMEOUT_S)
    assert alone.passed and alone.runs == 1 and alone.untimed == whole_script.ONE_RUN and alone.after_s is None, alone
    first, last = script.checks([result, result], timeout_s=TIMEOUT_S, rounds_s=0.0)
    assert first.passed and first.runs == 1 and last.reason == "not run: there was no time for so many plans", last
    with monkeypatch.context() as now:
        now.setattr(whole_script, "ROUNDS_S", 0.0)
        first, last = script.checks([result, result], timeout_s=TIMEOUT_S)
    assert first.passed and last.passed and first.runs == last.runs == 2, (first, last)
    assert first.after_s and last.after_s and first.before_s is None
    assert _fastest([first, replace(last, after_s=2 * first.after_s)])[0] == 0
    first, last = script.checks([result, result], timeout_s=TIMEOUT_S, rounds_s=TIMEOUT_S)
    assert first.runs == 3 and first.before_s == last.before_s and first.before_s and first.after_s, first


# ---- later


def test_what_a_run_did_not_compare_is_compared_later_with_what_it_recorded(
    right: Result,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "runs.txt"
    recorded(tmp_path, SCRIPT, "alive", str(file))
    missing = ModelCheck(None, "not run: 3 s of the budget were left, and it takes about 9 s")
    command = shlex.join(["kcg", "optimize", str(SCRIPT), "--budget", "60s", "--", "alive", str(file)])
    warnings = ("it rains", f"the whole script was not compared with tinygrad's own schedules, {missing.reason}")
    rows = tuple(row for row in right.regions if row.outcome in ("improved", "kept"))
    result = replace(right, regions=rows, seed=SEED, command=command, model_check=missing, warnings=warnings)
    result = replace(result, complete=False, preset=bounded(f"alive {file}"))
    path = tmp_path / "RESULT.json"
    write_result(result, path)
    assert exit_code_of(result) == ExitCode.UNCHECKED
    assert f"kcg check {path}" in [step.command for step in next_steps(result, path)]
    done = ended(check.main, path)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "whole script: verified" in done.stdout and "with the chosen schedules (its side effects" in done.stderr
    found = read_result(path)
    assert found.complete and found.warnings == ("it rains",) and found.model_check is not None
    assert found.model_check.passed and found.model_check.runs == 1 and lines_of(file) == 2
    assert not (tmp_path / left.FOLDER).exists(), "it is compared"
    assert "verified" in (tmp_path / "report.html").read_text()
    again = ended(check.main, tmp_path, "--quiet")
    assert again.returncode == ExitCode.OK and not again.stderr and lines_of(file) == 2, "it is checked already"


def test_what_cannot_be_run_from_its_result_is_refused_in_one_line(right: Result, tmp_path: Path) -> None:  # noqa: F811
    missing = ModelCheck(None, "not run: it takes long")
    result = replace(right, workload="function:step", command="", model_check=missing)
    write_result(result, tmp_path / "RESULT.json")
    done = ended(check.main, tmp_path)
    assert done.returncode == ExitCode.USAGE and done.stderr.count("\n") == 1, done.stderr
    assert "is no function that kcg can run from its result: a function is checked where it is tuned" in done.stderr


@pytest.mark.slow
def test_a_run_records_runs_once_more_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    file, out = tmp_path / "runs.txt", tmp_path / "out"
    arguments = ("--measurements", "16", "--predictor", "roofline", "--report", out)
    done = optimized(SCRIPT, *arguments, "--", "alive", file)
    result = read_result(out / "RESULT.json")
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_IMPROVED), done.stderr
    assert result.complete and not (out / left.FOLDER).exists()
    improved = done.returncode == ExitCode.OK
    assert lines_of(file) == 1 + improved
    assert not improved or (result.model_check is not None and result.model_check.runs == 1)


# ---- what was kept


def piece(place: str, fed_by: tuple[str, ...], size: int, **changes: Any) -> Left:
    kept = Piece(place, "float", 1e-7, np.arange(size, dtype=np.float32), fed_by)
    return Left(place, 4 * size, fed_by, replace(kept, **changes))


OF = left.identity(("-c", "print(1)"), seed=1, dev="CPU:X86")


def test_it_is_read_as_a_run_that_observes_some_kernels_would_leave_it(tmp_path: Path) -> None:
    every = [piece(ALIVE, ("a",), 4), piece(ALIVE, ("a", "b"), 2), piece(ALIVE, ("c",), 1), piece(READ, ("b",), 3)]
    left.keep(tmp_path / "kept", every, of=OF)
    kept = left.read_recorded(tmp_path / "kept", of=OF)
    assert kept is not None
    found = kept.of_kernels({"b"}, most_bytes=1000)
    assert found is not None
    pieces, out = found
    assert [(one.place, one.fed_by, one.values.tolist()) for one in pieces] == [
        (ALIVE, ("b",), [0, 1]),
        (READ, ("b",), [0, 1, 2]),
    ]
    assert out == 0
    few = kept.of_kernels({"a", "b"}, most_bytes=8)
    assert few is not None and [one.values.size for one in few[0]] == [2, 3] and few[1] == 1, "the small ones first"


def test_what_had_no_room_is_not_compared_with_what_was_kept(tmp_path: Path) -> None:
    large = piece(ALIVE, ("b",), 4)._replace(piece=None)
    left.keep(tmp_path, [piece(ALIVE, ("a",), 1), large], of=OF)
    kept = left.read_recorded(tmp_path, of=OF)
    assert kept is not None and kept.of_kernels({"a"}, most_bytes=1000) is not None
    assert kept.of_kernels({"a", "b"}, most_bytes=1000) is None, "a run would leave it"
    few = kept.of_kernels({"a", "b"}, most_bytes=8)
    assert few is not None and few[1] == 1, "nor would a run have room for it"


def test_what_is_of_another_run_or_damaged_is_not_read(tmp_path: Path) -> None:
    assert left.read_recorded(tmp_path, of=OF) is None
    left.keep(tmp_path, [piece(ALIVE, ("a",), 1)], of=OF)
    assert left.read_recorded(tmp_path, of={**OF, "seed": 2}) is None
    (tmp_path / "0.npy").unlink()
    assert left.read_recorded(tmp_path, of=OF) is None
    left.forget(tmp_path)
    assert not tmp_path.exists()


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left, "FREE", 1 << 60)
    left.keep(tmp_path, [piece(ALIVE, ("a",), 1)], of=OF)
    assert not list(tmp_path.iterdir())
