"""A script is compared with what it left when its kernels were recorded: one further run is enough, and where that does
not agree it is compared as before."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcg.compat.observing import ALIVE, READ, Left, Piece
from kcg.judge import whole_script
from kcg.judge.whole import Cost
from kcg.judge.whole_script import Script
from kcg.optimize.region_plans import _fastest
from kcg.types import Result
from kcg.workloads import left
from kcg.workloads.script import Form, Program, capture_program
from tests.judge.test_whole_script import SCRIPT, TIMEOUT_S, result_of, right, wrong  # noqa: F401

DEV = os.environ["DEV"]
SEED = 3


def recorded(folder: Path, path: Path, *arguments: str) -> Script:
    """A script once its kernels were recorded."""
    program = Program(Form.SCRIPT, str(path), arguments)
    keeping = left.Keeping(folder / "recorded", SEED)
    capture_program(program, dev=DEV, keeping=keeping)
    return Script(program, seed=SEED, recorded_s=10.0, recorded=keeping.folder)


def lines_of(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_one_further_run_is_enough_where_it_leaves_what_was_recorded(right: Result, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "runs.txt"
    script = recorded(tmp_path, SCRIPT, "alive", str(file))
    assert script.is_recorded and lines_of(file) == 1
    assert script.expected_s(Cost(changed=1)) == 12.5 and script.expected_s(Cost(changed=1, plans=2)) == 25.0
    assert script.announced("").startswith(f"running {SCRIPT} again, with the chosen schedules (its side effects")
    (check,) = script.checks([right], timeout_s=TIMEOUT_S)
    assert check.passed and check.runs == 1 and check.seed == SEED, check
    assert check.compared == "1 tensor alive at its end, as recorded" and check.before_s is None
    assert check.kernels == sum(row.outcome == "improved" for row in right.regions)
    assert lines_of(file) == 2, "it was recorded, and ran once more"
    first, second = file.read_text().splitlines()
    assert first == second, "from the same seeds"


def test_what_is_wrong_is_proven_as_before(wrong: Result, tmp_path: Path) -> None:  # noqa: F811
    """The recording counts as another run with tinygrad's own schedules where that left the same."""
    (check,) = recorded(tmp_path, SCRIPT, "alive").checks([wrong], timeout_s=TIMEOUT_S)
    assert check.passed is False and check.runs == 3, check
    assert check.reason.startswith("a tensor (8×24 float) alive at its end differs by ")
    assert check.compared == "1 tensor alive at its end"


def test_a_script_that_no_seed_repeats_falls_back_and_says_so(right: Result, tmp_path: Path) -> None:  # noqa: F811
    """By `os.urandom`. Its first further run with tinygrad's own schedules is no reference either."""
    (check,) = recorded(tmp_path, SCRIPT, "random").checks([right], timeout_s=TIMEOUT_S)
    assert check.passed is None and check.runs == 3, check
    assert check.reason == "no verdict: the script does not repeat itself with tinygrad's own schedules either"


@pytest.mark.slow
def test_where_there_is_no_time_to_fall_back_that_is_said(right: Result, tmp_path: Path) -> None:  # noqa: F811
    script = replace(recorded(tmp_path, SCRIPT, "random"), recorded_s=2 * TIMEOUT_S)
    (check,) = script.checks([right], timeout_s=TIMEOUT_S)
    assert check.passed is None and check.runs == 1, check
    assert check.reason.startswith("no verdict: it differs from what was recorded, and there was no time")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "runs", "compared"),
    [
        ("jitted", 1, "1 tensor returned by its last TinyJit step, as recorded"),
        ("local", 1, "1 tensor read by it, as recorded"),
        ("leaves", 1, "1 tensor alive at its end, as recorded"),
        ("exits", 1, "1 tensor alive at its end, as recorded"),
        ("raises", 2, "1 tensor alive at its end"),
    ],
)
def test_however_it_ends(right: Result, how: str, runs: int, compared: str, tmp_path: Path) -> None:  # noqa: F811
    """Where it does not end well nothing is kept of it, and tinygrad's own schedules run first, as before."""
    (check,) = recorded(tmp_path, SCRIPT, how).checks([right], timeout_s=TIMEOUT_S)
    assert (check.passed, check.runs, check.compared) == (True, runs, compared), check


@pytest.mark.slow
def test_nothing_that_is_left_is_no_pass(right: Result, tmp_path: Path) -> None:  # noqa: F811
    (check,) = recorded(tmp_path, SCRIPT, "nothing").checks([right], timeout_s=TIMEOUT_S)
    assert check.passed is None and "nothing that the script left or read came out of" in check.reason


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
    assert first.passed and last.passed and first.runs == last.runs == 2, (first, last)
    assert first.after_s and last.after_s and first.before_s is None
    assert _fastest([first, replace(last, after_s=2 * first.after_s)])[0] == 0
    first, last = script.checks([result, result], timeout_s=TIMEOUT_S, rounds_s=TIMEOUT_S)
    assert first.runs == 3 and first.before_s == last.before_s and first.before_s and first.after_s, first


# ---- what was kept


def piece(place: str, fed_by: tuple[str, ...], size: int, **changes: Any) -> Left:
    kept = Piece(place, "float", 1e-7, np.arange(size, dtype=np.float32), fed_by)
    return Left(place, 4 * size, fed_by, replace(kept, **changes))


OF = left.identity(Program(Form.CODE, "print(1)"), seed=1, dev="CPU:X86")


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
