"""The figures of a store: times of whole runs, and what of the second one was verified."""

from __future__ import annotations

from dataclasses import replace

from evaluation.fleet.bench_store import figures, summary
from kcg.optimize.stored import SPARED
from tests.sample_result import sample_result


def test_what_came_from_the_store_is_counted_and_has_to_be_verified() -> None:
    cold = sample_result()
    rows = tuple(replace(row, store="tuned" if row.outcome == "improved" else "") for row in cold.regions)
    spared = next(place for place, row in enumerate(rows) if row.outcome == "kept")
    rows = tuple(replace(row, note=f"{SPARED} faster") if i == spared else row for i, row in enumerate(rows))
    warm = replace(cold, regions=rows, search_s=cold.search_s / 4)
    entry = figures(cold, warm)
    quicker = figures(cold, replace(warm, search_s=cold.search_s / 8))
    headline = summary([quicker, entry, entry])
    assert headline["store_hit_vs_cold"] == 0.25 and headline["store_all_verified"] is True
    assert (headline["store_runs"], headline["store_schedules"]) == (3, 24)
    assert entry["spared"] == 1
    assert entry["from_store"] == entry["store_improved"] == 8
    first = next(i for i, row in enumerate(rows) if row.store)
    unverified = replace(rows[first].chosen.verification, passed=False)
    broken = replace(rows[first], chosen=replace(rows[first].chosen, verification=unverified))
    warm = replace(warm, regions=(*rows[:first], broken, *rows[first + 1 :]))
    assert summary([entry, figures(cold, warm)])["store_all_verified"] is False
