"""Flux beside PyTorch on equal terms: what blocks in turns say, and a real run of both libraries at mini."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.flux.equal import __main__ as equal
from evaluation.flux.equal.blocks import EXACT
from evaluation.flux.equal.figures import compared, error_of, headline_of, order_of, overall_of, share
from evaluation.rows import Row


def blocks(step_s: float, joules: float, turns: int = 4) -> list[Row]:
    """Of two steps each, the second a tenth slower; every turn is a percent slower than the one before."""
    return [{"turn": turn, "seconds": [f := step_s * 1.01**turn, 1.1 * f], "joules": joules} for turn in range(turns)]


def row(kcg_s: float, *, kcg_error: float = 0.010) -> Row:
    return {
        "contenders": {
            "eager": {"ready_s": 1.0, "error": 0.010, "blocks": blocks(0.2, 100.0)},
            "default": {"ready_s": 90.0, "error": 0.011, "blocks": blocks(0.125, 80.0)},
            "recipe": {"reason": "it did not compile"},
            "kcg": {"ready_s": 20.0, "error": kcg_error, "blocks": blocks(kcg_s, 70.0)},
        }
    }


def test_turns_go_there_and_back() -> None:
    assert [order_of(["a", "b", "c"], turn) for turn in range(3)] == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def test_a_share_is_of_pairs_so_that_a_drift_of_both_is_none() -> None:
    theirs = [1.0, 1.5, 2.0, 1.0, 3.0]
    assert share([0.9 * s for s in theirs], theirs) == pytest.approx((0.9, 0.9, 0.9))
    middle, low, high = share([0.8, 1.0, 0.9, 1.0, 0.8], [1.0] * 5)
    assert middle == pytest.approx(0.9) and 0.8 <= low < middle < high <= 1.0


def test_the_headline_is_the_worst_gpu_beside_the_best_of_pytorch_there() -> None:
    found = headline_of("1024", {"GPU-a": row(0.1125), "GPU-b": row(0.1)})
    assert found["gpus_1024"] == 2 and found["step_vs_compile_1024"] == pytest.approx(0.9)
    assert found["step_vs_fastest_1024"] == pytest.approx(0.9)
    assert found["joules_vs_compile_1024"] == pytest.approx(70 / 80)
    assert found["outputs_agree_1024"] is True
    assert (found["ready_s_1024"], found["compile_ready_s_1024"]) == (20.0, 90.0)
    assert headline_of("1024", {"GPU-a": row(0.1), "GPU-b": row(0.1, kcg_error=0.02)})["outputs_agree_1024"] is False
    without: dict[str, Any] = {"contenders": {"eager": row(0.1)["contenders"]["eager"]}}
    assert headline_of("1024", {"GPU-a": without}) == {}


def test_outputs_agree_where_kcg_is_as_near_to_float32_as_the_nearest() -> None:
    """Not as the farthest: what rounds an input may be far from all."""
    one = row(0.1, kcg_error=0.012)
    one["contenders"]["eager"]["error"] = 0.5
    assert headline_of("1024", {"GPU-a": one})["outputs_agree_1024"] is True
    one["contenders"]["kcg"]["error"] = 0.2
    assert headline_of("1024", {"GPU-a": one})["outputs_agree_1024"] is False


def test_what_both_sizes_come_to_is_the_worst_of_them() -> None:
    one = {"gpus_1024": 3, "ready_s_1024": 40.0, "compile_ready_s_1024": 90.0, "outputs_agree_1024": True}
    assert overall_of(one) == {"gpus": 3, "ready_s": 40.0, "compile_ready_s": 90.0, "outputs_agree": True}
    both = overall_of(
        {**one, "gpus_768": 2, "ready_s_768": 50.0, "compile_ready_s_768": 80.0, "outputs_agree_768": False}
    )
    assert both == {"gpus": 2, "ready_s": 50.0, "compile_ready_s": 80.0, "outputs_agree": False}


def test_a_gpu_whose_outputs_were_not_compared_says_nothing_of_them() -> None:
    other = row(0.1)
    for contender in other["contenders"].values():
        contender.pop("error", None)
    assert headline_of("1024", {"GPU-a": row(0.1), "GPU-b": other})["outputs_agree_1024"] is True
    assert headline_of("1024", {"GPU-b": other})["outputs_agree_1024"] is False


def test_bfloat16_has_timestep_and_guidance_a_thousand_times_as_large() -> None:
    for value in EXACT.values():
        for one in (value, 1000 * value):
            bits = int(np.array([one], np.float32).view(np.uint32)[0])
            assert bits & 0xFFFF == 0  # all that float32 has more than bfloat16


def test_one_gpu_says_times_joules_and_shares_of_the_turns_that_both_had() -> None:
    one = row(0.1)
    one["contenders"]["kcg"]["blocks"].pop(0)
    said = compared(one)
    assert set(said) == {"eager", "default", "kcg"} and said["default"]["steps"] == 8 and said["kcg"]["steps"] == 6
    assert said["default"]["kcg_vs"][0] == pytest.approx(0.8) and said["default"]["kcg_joules_vs"] == [0.875] * 3
    one["contenders"]["kcg"]["blocks"][0]["joules"] = None
    said = compared(one)
    assert said["kcg"]["joules"] is None and "kcg_joules_vs" not in said["default"]


def test_an_output_that_is_not_finite_is_infinitely_far(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([3.0, 4.0], np.float32))
    np.save(tmp_path / "b.npy", np.array([3.0, 4.5], np.float32))
    np.save(tmp_path / "c.npy", np.array([3.0, np.nan], np.float32))
    np.save(tmp_path / "d.npy", np.array([3.0], np.float32))
    assert error_of(tmp_path / "b.npy", tmp_path / "a.npy") == pytest.approx(0.1)
    assert (
        error_of(tmp_path / "c.npy", tmp_path / "a.npy") == error_of(tmp_path / "d.npy", tmp_path / "a.npy") == math.inf
    )


def test_without_a_result_kcg_has_no_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from kcg.errors import UsageError

    with pytest.raises(UsageError, match="give --result"):
        equal.main(device="CPU", work=tmp_path, out=tmp_path / "out.json")


@pytest.mark.slow
def test_both_libraries_run_one_state_dict_and_the_command_goes_on(tmp_path: Path) -> None:
    def rows(steps: int) -> dict[str, Row]:
        asked = {"contenders": "eager,tinygrad", "steps": steps, "block": 1}
        equal.main(preset="mini", device="CPU", work=tmp_path, out=(out := tmp_path / "out.json"), **asked)
        (run,) = json.loads(out.read_text())["runs"].values()
        found: dict[str, Row] = run["rows"]
        return found

    (first,) = rows(1).values()
    assert first["contenders"]["tinygrad"]["error"] < 1e-4 and first["contenders"]["eager"]["error"] < 1e-6
    (second,) = rows(3).values()
    for name in ("eager", "tinygrad"):
        counts = [len(one["contenders"][name]["blocks"]) for one in (first, second)]
        assert counts == [1, 3]
        assert all(s > 0 for block in second["contenders"][name]["blocks"] for s in block["seconds"])
