"""What is told of a comparison: curves, intervals and counts mean what they say, in tables and in the picture."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from replay_table import synthetic_table

from evaluation.documents import write_into
from evaluation.search.comparison import ALONE, BEAM, Bench, Replay, Turn, replay
from evaluation.search.comparison_text import regret_svg, sections
from evaluation.search.regret import Board, Bootstrap, entry, headline
from evaluation.search.shared_budget import allocated
from kcg.predictor.features import Array
from kcg.search.replay import Record, RecordedKernel, ReplayTable
from kcg.search.strategies import strategy
from tests.evaluation.search.boards import CHECKPOINT, FEW, ROOT, board, recorded

TWO_SEEDS = replace(FEW, seeds=2)


def scaled(table: ReplayTable, factor: float) -> ReplayTable:
    """The same table on a slower device."""
    records = [
        Record(
            r.key,
            replace(r.observation, runtime_s=r.observation.runtime_s and factor * r.observation.runtime_s),
            r.actions,
        )
        for r in table.records.values()
    ]
    return ReplayTable(records, start=table.start(), baseline=table.baseline())


@functools.cache
def three_kernels() -> tuple[RecordedKernel, ...]:
    table = synthetic_table()
    return tuple(recorded(scaled(table, f), calls=c, name=str(f)) for f, c in ((1.0, 1), (3.0, 5), (0.2, 40)))


@functools.cache
def small_board() -> Board:
    return board(TWO_SEEDS, three_kernels())


# -- curves


@pytest.mark.slow
def test_a_curve_is_monotone_and_ends_at_the_budget() -> None:
    bench = Bench(recorded(synthetic_table()), None)
    for name in ("random", "mcts", "evolution", ALONE, f"{BEAM}:2"):
        found = replay(name, bench.problem(name, seed=1, budget=12), seed=1)
        counts, times = zip(*found.curve, strict=True)
        assert counts[0] == 1 and list(counts) == sorted(counts) and counts[-1] <= found.measurements <= 12, name
        assert list(times) == sorted(times, reverse=True) and len(set(times)) == len(times), name
    known = small_board().known("random")
    assert known.shape == (3, 2, 17) and (np.diff(known, axis=2) <= 0).all()
    baselines = [k.table.records[k.table.baseline()].observation.time_s for k in three_kernels()]
    assert np.allclose(known[:, :, 0].T, baselines) and np.allclose(known[:, :, 1].T, baselines)


def test_an_oracle_finds_the_optimum() -> None:
    ratio = small_board().quality(small_board().known("mcts/oracle")[:, :, [1, 16]])
    assert ratio[0].weighted < 0.9 and ratio[1].weighted == ratio[1].mean == pytest.approx(1.0)
    assert ratio[1].low == ratio[1].high == pytest.approx(1.0)


def test_beam_counts_what_it_measured() -> None:
    table = synthetic_table()
    for width in (1, 2, 4):
        problem = table.problem(lambda s: [])
        binaries = {o.binary_hash for o in strategy(f"{BEAM}:{width}")(problem) if o.binary_hash}
        found = replay(f"{BEAM}:{width}", Bench(recorded(table), None).problem(BEAM, seed=0, budget=None), seed=0)
        assert found.measurements == len(binaries) == problem.ledger.measurements
        assert found.budget is None and not found.seeded
    assert list(small_board().beam(2)[1]) == [replay_of(small_board(), (f"{BEAM}:2", 0, None)).measurements] * 3


def replay_of(found: Board, turn: Turn) -> Replay:
    return found.replays[0][turn]


# -- statistics


def test_an_interval_is_the_same_again_and_holds_the_value() -> None:
    one = small_board()
    other = Board(three_kernels(), one.replays, TWO_SEEDS)
    assert headline(one) == headline(other)
    for n in (1, 4, 16):
        first, again = (b.quality(b.known("random")[:, :, [n]])[0] for b in (one, other))
        assert first == again and first.low <= first.weighted <= first.high and first.mean_low <= first.mean_high
    assert (Bootstrap(5, 3).kernels == Bootstrap(5, 3).kernels).all()


def test_a_bootstrap_draws_as_many_as_there_are() -> None:
    drawn = Bootstrap(4, 3)
    assert (drawn.kernels.sum(1) == 4).all() and np.allclose(drawn.seeds.sum(2), 1.0)
    values = np.arange(24, dtype=float).reshape(4, 3, 2)
    totals = drawn.totals(values)
    assert totals.shape == (2000, 2) and np.allclose(totals[:, 1] - totals[:, 0], 4.0)
    assert np.allclose(totals.mean(0), values.mean(1).sum(0), rtol=0.05)


def times_of(kernels: int, *, better: float, noise: float) -> tuple[Array, Array]:
    """(kernels, 1) of two contenders, the second of which takes `better` times as long with some noise."""
    rng = np.random.default_rng(0)
    fast = np.exp(rng.normal(0.0, 2.0, (kernels, 1)))
    return fast, fast * better * np.exp(rng.normal(0.0, noise, (kernels, 1)))


@pytest.mark.parametrize(("better", "separated"), [(1.2, True), (1.0, False), (0.85, True)])
def test_a_paired_interval_leaves_out_one_where_it_should(better: float, separated: bool) -> None:
    # kernels differ by far more than the two contenders do: only pairs tell them apart
    fast, slow = times_of(3, better=better, noise=0.05)
    (ratio,) = small_board().gain(slow, fast)
    assert (ratio.mean_low > 1 or ratio.mean_high < 1) == separated
    assert (ratio.low > 1 or ratio.high < 1) == separated
    assert ratio.low <= ratio.weighted <= ratio.high


def test_better_than_random_is_seen_and_equal_is_not() -> None:
    made = small_board()
    gains = made.paired("mcts/oracle", "random")
    assert made.budgets == [1, 2, 4, 8, 16]
    assert gains[0].weighted == 1.0 and gains[2].low > 1.0 and gains[2].mean_low > 1.0
    assert all(r.low == r.high == 1.0 for r in made.paired("random", "random"))


def test_weights_are_calls() -> None:
    made = small_board()
    times = made.known("random")[:, :, [8]]
    w, best = np.array([1, 5, 40]), made.best_s
    (ratio,) = made.quality(times)
    assert ratio.weighted == pytest.approx((w * best).sum() / (w * times[:, :, 0].mean(1)).sum())
    assert ratio.mean == pytest.approx(math.exp(np.log(best[:, None] / times[:, :, 0]).mean()))


def test_the_measurements_that_suffice_are_the_least() -> None:
    made = small_board()
    beam_s, beam_made = made.beam(2)
    share, low, high = made.measurements_needed("mcts/oracle", 2)
    n = round(share * beam_made.mean())
    weights, known = made.weights, made.known("mcts/oracle").mean(1)
    assert weights @ known[:, n] <= 1.01 * weights @ beam_s < weights @ known[:, n - 1]
    assert low <= share <= high
    slow = replace(TWO_SEEDS, contenders=("hand-coded",), default="hand-coded")
    never = board(slow, three_kernels())
    assert never.measurements_needed("hand-coded", 2)[0] == math.inf


def test_one_budget_for_several_kernels_is_allocated_by_expected_savings() -> None:
    kernels = three_kernels()
    totals = allocated(kernels, CHECKPOINT, "mcts/oracle", budget=24, seeds=2)
    w, best = np.array([k.calls for k in kernels]), np.array([k.table.best_s for k in kernels])
    assert totals.shape == (2, 25) and (np.diff(totals) <= 0).all()
    assert totals[0, 0] == pytest.approx(sum(k.calls * k.hand_coded_s for k in kernels))
    assert (totals[:, -1] < totals[:, 3]).all() and (totals[:, -1] >= w @ best * (1 - 1e-9)).all()
    made = Board(kernels, small_board().replays, small_board().settings, allocated=totals)
    beam_s, beam_made = made.beam(2)
    needed = made.allocated_needed(2)
    n = round(needed * beam_made.sum())
    assert 0 < n <= 24 and totals.mean(0)[n] <= 1.01 * w @ beam_s < totals.mean(0)[n - 1]


# -- telling


def test_tables_and_picture_are_written_into_a_document(tmp_path: Path) -> None:
    made, kernels = small_board(), three_kernels()
    report = entry(made, kernels)
    parts = sections(report, headline(made), "test", "curves.svg")
    document = tmp_path / "search.md"
    document.write_text((ROOT / "docs" / "experiments" / "2026-11-23-search-strategies.md").read_text())
    marks = set(re.findall(r"<!-- generated: (test-[\w-]+) -->", document.read_text()))
    assert marks == set(parts), "every part has its place in the document"
    write_into(document, parts)
    text = document.read_text()
    assert "| mcts/oracle | " in text and "| BEAM=2 | " in text and "](curves.svg)" in text
    rows = [line for line in text.splitlines() if line.startswith("| random | ")]
    assert re.fullmatch(r"\| random( \| [\d.]+ \([\d.]+–[\d.]+\)){5} \|", rows[0])
    picture = ElementTree.fromstring(regret_svg({**report, "contenders": {**report["contenders"]}}))
    texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"random", "BEAM=1", "BEAM=2"} <= set(texts)
    for node in picture.iter("{http://www.w3.org/2000/svg}polyline"):
        points = [tuple(map(float, p.split(","))) for p in node.attrib["points"].split()]
        assert len(points) == 16 and all(0 <= x <= 860 and 0 <= y <= 480 for x, y in points)
    assert json.loads(json.dumps(report, allow_nan=False)) and json.dumps(headline(made), allow_nan=False)
