"""Rates, intervals and what is summed up of planted races; that they are planted where they belong."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.measure.race_power import (
    BEFORE,
    MEASURED,
    RATES,
    TODAY,
    _trial,
    by_launches,
    curve,
    expected_share,
    fitted_rate,
    headline,
    rate_of_windows,
    runs_by,
    table,
    trial_before,
    trial_today,
    trials_of,
    wilson,
)
from kcg.kernel.kinds import baseline_of, compile_region
from kcg.measure.service import MeasureService
from kcg.measure.stress import LAUNCHES, LOOKED_AT_EVERY, PROVISIONAL
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS, X86

GPU = replace(KNOWN_TARGETS["sm_90"], cores=132)


def test_intervals_of_shares() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4), "as published"
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4) and wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_rate_of_windows_is_that_of_the_launches_in_them() -> None:
    rate, (low, high) = rate_of_windows(22, 100, 25)
    assert low < 0.01 < high and rate == pytest.approx(0.01, rel=0.02)
    assert rate_of_windows(0, 100, 25)[0] == 0.0 and rate_of_windows(100, 100, 25)[0] == 1.0


def test_runs_beside_another_stream_count_twice() -> None:
    assert [runs_by(rule, LAUNCHES, GPU) for rule in (TODAY, BEFORE)] == [15_000, 15_000]
    assert [runs_by(rule, PROVISIONAL, GPU) for rule in (TODAY, BEFORE)] == [1_500, 1_000]
    assert runs_by(TODAY, LAUNCHES, X86) == LAUNCHES, "there is no other stream"
    assert expected_share(1e-4, 15_000) == pytest.approx(0.7769, abs=1e-4)


def made_up(rate: float, trials: int, *, seed: int = 1, program: str = "one") -> dict[str, dict[str, Any]]:
    """Rows as independent runs would leave them."""
    drawn, rows = random.Random(seed), dict[str, dict[str, Any]]()
    for rule in (TODAY, BEFORE):
        for number in range(trials):
            first, wrong = int(drawn.expovariate(rate)) + 1, ""
            for launches in range(LOOKED_AT_EVERY, LAUNCHES + 1, LOOKED_AT_EVERY):
                if runs_by(rule, launches, GPU) >= first:
                    wrong = f"of {launches} launches one, beside another stream, left another element 3 of buffer 0"
                    break
            seconds = 1e-4 * runs_by(rule, launches, GPU)
            row = _trial(program, rate, rule, wrong, seconds)
            late = rule == TODAY and row["launches"] != PROVISIONAL
            rows[f"{program} {rate:g} {rule} {number}"] = {**row, "provisional_s": 0.15 if late else None}
    return rows


def test_the_curve_is_that_of_the_runs() -> None:
    rows = made_up(1e-3, 300) | made_up(1e-4, 300)
    for rate in (1e-3, 1e-4):
        found = curve(rows)[f"{rate:g}"]
        for which, runs in (("provisional", 1_500), ("verified", 15_000), ("before", 15_000)):
            assert found[which]["share"] == pytest.approx(expected_share(rate, runs), abs=0.07)
        seconds = found["before_for_the_seconds_of_provisional"]
        assert seconds["share"] == pytest.approx(expected_share(rate, 1_000), abs=0.07), "one look fits in them"
        trials = [t for t in trials_of(rows.values()) if t.rate == rate]
        for rule in (TODAY, BEFORE):
            fitted = fitted_rate(trials, rule, GPU)
            assert fitted is not None and fitted[1] < rate < fitted[2] and fitted[0] == pytest.approx(rate, rel=0.2)
    last = by_launches(rows, 1e-4, GPU)[-1]
    assert last["launches"] == LAUNCHES and last["today"]["expected"] == last["before"]["expected"]


def test_the_headline_is_of_what_shows_at_the_planted_rate() -> None:
    (measured,) = MEASURED
    rows = made_up(1e-4, 50) | made_up(1e-4, 50, program=measured)
    rows["control"] = _trial("one", 0.0, TODAY, "", 1.0)
    rows["failed"] = _trial("one", 1e-4, TODAY, "wrote outside buffer 0", 1.0)
    assert rows["failed"]["status"] == "failed" and rows["failed"]["launches"] is None
    found = headline(rows)
    assert curve(rows)["0.0001"]["verified"]["trials"] == 50
    assert {"race_1e4_detected", "race_1e4_detected_before", "race_1e4_detected_provisional"} <= set(found)
    assert (found["race_control_wrong"], found["race_trials"], found["race_programs"]) == (0, 200, 2)
    rows["control"] = _trial("one", 0.0, TODAY, "element 7 of buffer 0 is 3, not 4", 1.0)
    assert headline(rows)["race_control_wrong"] == 1, "the reference says it of the first launch"
    assert "| 10,000 |" in table(rows, GPU) and "1 trials of one failed" in table(rows, GPU)


def test_what_is_right_passes_todays_rules_and_what_is_not_fails_by_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run on a GPU has them judged, here on a CPU: the right program, and that of another kernel in its place."""
    from evaluation.measure.planted_races import Planted

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("evaluation.measure.race_power.LAUNCHES", PROVISIONAL + 100)
    region, other = region_of(empty(16, 16) * empty(16, 16)), region_of(empty(16, 16) + empty(16, 16))
    with MeasureService("CPU:X86", run_id="race_power") as service:
        target = service.target
        planted = Planted(region, baseline_of(region, target), {})
        right, wrong = (compile_region(one, baseline_of(one, target), target) for one in (region, other))
        passed, failed = (trial_today(service, planted, one, 1e-4, name="one", rate=0.0) for one in (right, wrong))  # type: ignore[arg-type]
        before = trial_before(service, planted, wrong, name="one", rate=0.0)  # type: ignore[arg-type]
    assert [row["launches"] for row in (passed, failed, before)] == [None, 1, 1]
    assert len(trials_of([passed, failed, before])) == 3, "none of them failed otherwise"
    assert passed["provisional_s"] < passed["seconds"] and failed["provisional_s"] is None


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_a_program_takes_its_race() -> None:
    """In its accumulator, or where it waits. Programs of two rates differ; under another name it is another binary."""
    from evaluation.measure.planted_races import CONTROL, made, renamed, threshold

    assert [threshold(rate) for rate in (CONTROL, 1e-3)] == [1, 4294967] and 2 * threshold(0.5) == 2**32
    for name in ("TMA matmul", *MEASURED):
        planted = made(name, GPU, (CONTROL, RATES[0]), seed=1)
        control, racing = planted.programs.values()
        assert control.launches[0].compiled.binary != racing.launches[0].compiled.binary
        assert renamed(control, "again").binary_hash != control.binary_hash
