"""Replays of a run's jobs: what a journal says of a run, the best plan, and what no order exceeds."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from evaluation.search.job_orders import Hindsight, Phases, area, best_possible_s, bound, loop
from evaluation.search.job_replay import Errors, Estimates, replayed
from evaluation.search.job_runs import Part, Program, Run, read_run, solver, write_run
from evaluation.search.loop_replay import RECORDED
from evaluation.search.made_up_runs import made_up
from kcg.errors import DataError


def small_run(seed: int = 0) -> Run:
    """Four kernels and two regions of them, one of which has a long reference."""
    rng = random.Random(seed)

    def programs(best_s: float) -> tuple[Program, ...]:
        fails = ("", "", "judge" if rng.random() < 0.3 else "")
        factors = (1.2, 1.0, 0.95)
        return tuple(
            Program(f * best_s, 1.0, 0.2, rng.uniform(0.5, 3.0), rng.choice((0.0, 2.0)), fails=why)
            for f, why in zip(factors, fails, strict=True)
        )

    kernels = [Part(f"k{n}", 10, 2.0, programs(0.02), own_s=0.1 * (n + 1), timing_s=0.3) for n in range(4)]
    regions = [
        Part("r0", 10, 20.0, programs(0.015), takes=(("k0", 1.0), ("k1", 1.0))),
        Part("r1", 10, 3.0, programs(0.01), takes=(("k1", 1.0), ("k2", 1.0))),
    ]
    return Run("small", True, 4, False, 5.0, (*kernels, *regions))


def test_the_best_plan_is_that_of_all_sets() -> None:
    run, rng = small_run(), random.Random(1)
    parts, solve = {part.id: part for part in run.parts}, solver(small_run())
    for _ in range(50):
        seconds = {name: rng.uniform(0.01, 0.3) for name in parts}
        totals = []
        for chosen in ((), ("r0",), ("r1",)):  # both take k1
            taken = {kernel for name in chosen for kernel, _ in parts[name].takes}
            alone = [name for name in parts if parts[name].is_kernel and name not in taken]
            totals.append(sum(10 * seconds[name] for name in (*alone, *chosen)))
        assert solve(seconds).seconds == pytest.approx(min(totals))


@pytest.mark.parametrize("errors", ["exact", "predicted", "wrong"])
def test_estimates_change_when_and_never_what_is_verified(errors: Errors) -> None:
    run = small_run()
    replay = replayed(run, loop, Estimates(errors, seed=3))
    assert replay.points[-1][1] == pytest.approx(best_possible_s(run))
    failing = {f"{part.id} {n}" for part in run.parts for n, one in enumerate(part.programs) if one.fails}
    assert not replay.verified & failing


@pytest.mark.parametrize("seed", range(4))
def test_no_order_exceeds_the_bound(seed: int) -> None:
    run = small_run(seed)
    best_s, until_s = best_possible_s(run), 60.0
    found = [area(replayed(run, policy, Estimates()), run, best_s, until_s) for policy in (loop, Phases(run))]
    hindsight, _ = Hindsight(run, until_s).found([], tries=60)
    assert max(*found, hindsight) <= bound(run, until_s)
    assert found[0] >= found[1], "the loop is no worse than phases"


def test_hindsight_is_the_best_of_all_orders_of_a_few() -> None:
    run = small_run()
    search = Hindsight(run, 60.0)
    names = sorted(search._firsts)
    every = max(search._value(order) for n in range(len(names) + 1) for order in itertools.permutations(names, n))
    assert search.found([], tries=400)[0] == pytest.approx(every, rel=0.01)


def test_what_is_not_over_at_the_deadline_is_lost() -> None:
    run = small_run()
    replay = replayed(run, loop, Estimates(), deadline=20.0)
    assert replay.ended_s <= 20.0 and all(at <= 20.0 for at, _ in replay.points)


def test_made_up_runs_have_the_sums_that_were_measured() -> None:
    run = made_up("flux_1024")
    kernels = [part for part in run.parts if part.is_kernel]
    assert sum(part.calls * part.own_s for part in kernels) == pytest.approx(2.3288, rel=1e-3)
    assert (len(kernels), len(run.parts) - len(kernels)) == (55, 14)
    assert best_possible_s(run) == pytest.approx(0.1056, rel=0.03)
    assert 500 < run.programs < 600


def test_a_run_is_kept_whole(tmp_path: Path) -> None:
    write_run(small_run(), tmp_path / "run.json")
    assert read_run(tmp_path / "run.json") == small_run()
    (tmp_path / "run.json").write_text('{"name": "half"')
    with pytest.raises(DataError, match="no recorded run"):
        read_run(tmp_path / "run.json")


def test_what_was_recorded_on_a_cpu_is_read() -> None:
    for path in RECORDED.glob("*.json"):
        run = read_run(path)
        assert not run.made_up and run.quiet and run.programs
        assert best_possible_s(run) < sum(part.calls * part.own_s for part in run.parts)
