"""Runs whose times of lone kernels differ by a constant come to one level."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.dataset.levels import levels


def times(*programs: int, more_s: float = 0.0) -> dict[Any, float]:
    return {(program,): 1e-5 + program * 1e-6 + more_s for program in programs}


def test_a_run_is_brought_to_the_level_of_those_that_share_programs_with_it() -> None:
    runs = {
        "anchor": times(*range(10)),
        "near": times(*range(4, 20), more_s=3e-6),
        "far": times(*range(14, 30), more_s=-2e-6),
        "alone": times(*range(90, 99)),
        "hardly": times(0, 1, 2, 50),
    }
    found = levels(runs, {"anchor"})
    assert found == {"anchor": 0.0, "near": pytest.approx(3e-6), "far": pytest.approx(-2e-6)}
