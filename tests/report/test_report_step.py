"""Why a step differs from the sum of its kernels: what was recorded of it, how far that goes, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcg.report.page import Clocks, Side, reasons, step_of
from tests.sample_result import sample_result

CAPPED, FREE = 4.0, 0.0


def clocks(mhz: float, held_back: float = FREE) -> Clocks:
    return ("slowdown_reasons", held_back), ("sm_mhz_max", mhz + 10), ("sm_mhz_min", mhz - 10)


def side(step_s: float, *, in_step: Clocks = (), kernels: Clocks = (), launches: int = 100) -> Side:
    """Kernels that take a second with cold caches, and 0.85 s with warm ones."""
    return Side(step_s, 1.0, 0.85, launches, "L2 cache", in_step, ((0.9, kernels), (0.1, ())))


@pytest.mark.parametrize(
    ("of", "wanted", "unwanted"),
    [
        (side(0.8), ["L2 cache", "warm caches they sum to 850 ms", "not recorded"], ["launch gaps", "not explained"]),
        (side(0.7), ["All this accounts for at most 150 ms of 300 ms: the rest is not explained"], ["launch gaps"]),
        (side(1.2, launches=20000), ["launch gaps", "over its 20,000 launches", "10.0 µs each"], ["L2", "rest is"]),
        (side(1.2), ["2.00 ms each", "accounts for at most 1.00 ms of 200 ms: the rest is not explained"], ["L2"]),
        (
            side(1.2, in_step=clocks(1600, CAPPED), kernels=clocks(1920)),
            [
                "1,600 MHz in the step and 1,920 MHz while its kernels were timed: what depends on it takes 20% longer",
                "held back in the step (power cap), not while its kernels were timed",
            ],
            ["not explained", "does not explain"],
        ),
        (
            side(0.7, in_step=clocks(1980), kernels=clocks(1683, CAPPED)),
            ["15% shorter", "held back while its kernels were timed (power cap), not in the step"],
            ["not explained"],
        ),
        (
            side(1.2, in_step=clocks(1980, CAPPED), kernels=clocks(1978, CAPPED)),
            ["The clock does not explain it: it was 1,980 MHz", "the rest is not explained"],
            ["held back", "depends"],
        ),
        (
            side(1.2, in_step=clocks(1980), kernels=clocks(1600, CAPPED)),
            ["would make the step differ the other way", "the rest is not explained"],
            ["held back", "depends"],
        ),
        (side(1.2, in_step=clocks(1600, CAPPED)), ["is not recorded"], ["held back", "MHz"]),
    ],
)
def test_only_what_was_recorded_is_a_reason(of: Side, wanted: list[str], unwanted: list[str]) -> None:
    text = " ".join(reasons(of))
    for words in wanted:
        assert words in text, text
    for words in unwanted:
        assert words not in text, text


def test_each_side_that_differs_has_its_own_reasons() -> None:
    sample = sample_result()
    check = sample.model_check
    assert check is not None
    before, after = sample.total_before_s, sample.total_after_s
    rows = tuple(replace(row, clocks=clocks(1980)) for row in sample.regions)

    def why(times_before: float, times_after: float) -> tuple[str, ...]:
        report = replace(
            check,
            before_s=before * times_before,
            after_s=after * times_after,
            clocks_before=clocks(1980),
            clocks_after=clocks(1500),
        )
        step = step_of(replace(sample, regions=rows, model_check=report))
        assert step is not None
        return step.why

    assert why(1.05, 0.95) == ()
    (one,) = why(1.05, 1.32)
    assert one.startswith("After: a step also has") and "1,500 MHz in the step and 1,980 MHz" in one
    one, other = why(0.7, 1.32)
    assert one.startswith("Before: kernels are timed one by one") and "1,980 MHz in the step" in one
    assert other.startswith("After: ")
