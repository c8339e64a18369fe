"""What arms have after so many seconds: cores that compile, a device, and choosing that takes its time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from evaluation.predictor.equal_seconds import Bench, Costs, FormCosts, Timeline, costs_of, form_of, timeline_of
from kcg.dataset.journal import Record, Run
from kcg.types import Measurement, Schedule, Status
from tests.evaluation.predictor.test_on_lattices import lattice

SECONDS = (4.0, 2.0, 8.0, 1.0)


def in_order(left: Sequence[int], known: Mapping[int, float]) -> int:
    return left[0]


class Ticks:
    """A clock that goes on by so much each time it is asked twice: what one choice takes."""

    def __init__(self, each_s: float) -> None:
        self._at = itertools.chain.from_iterable((at, at) for at in itertools.count(0.0, each_s))
        next(self._at)

    def __call__(self) -> float:
        return next(self._at)


def test_the_device_takes_what_is_compiled_first_and_one_at_a_time() -> None:
    bench = Bench(Costs([3.0, 1.0, 1.0], [0.5, 2.0, 0.5], cores=2))
    for place in range(3):
        bench.compile(place, 0.0)
    bench.run()
    assert bench.ended == [(3.0, 1), (3.5, 2), (4.0, 0)], "the third waits for the second's core, and then the device"


def test_the_device_begins_nothing_after_what_is_asked_for() -> None:
    bench = Bench(Costs([1.0, 1.0], [2.0, 2.0], cores=2))
    bench.compile(0, 0.0)
    bench.compile(1, 0.0)
    bench.run(2.5)
    assert bench.ended == [(3.0, 0)]
    assert bench.core_is_free == 1.0


def test_side_by_side_nothing_is_known_before_the_first_is_measured() -> None:
    seen: list[dict[int, float]] = []

    def choose(left: Sequence[int], known: Mapping[int, float]) -> int:
        seen.append(dict(known))
        return left[0]

    found = timeline_of(choose, SECONDS, Costs([1.0] * 4, [0.25] * 4, cores=2), limit_s=10.0, clock=Ticks(0.0))
    assert seen == [{}, {}, {}, {}], "at one second cores are free and nothing was measured"
    assert [place for _, place in found.ended] == [0, 1, 2, 3] and found.ended[-1][0] == 2.5
    seen.clear()
    timeline_of(choose, SECONDS, Costs([1.0] * 4, [0.25] * 4, cores=1), limit_s=10.0, clock=Ticks(0.0))
    assert seen == [{}, {}, {0: 4.0}, {0: 4.0, 1: 2.0}]


def test_a_slower_chooser_measures_fewer() -> None:
    costs = Costs([0.1] * 100, [0.01] * 100)
    quick, slow = (timeline_of(in_order, [1.0] * 100, costs, limit_s=2.0, clock=Ticks(each_s)) for each_s in (0.0, 0.1))
    assert quick.measured(1.0) > slow.measured(1.0) > 0
    late = timeline_of(in_order, [1.0] * 100, costs, begins_s=0.5, limit_s=2.0, clock=Ticks(0.0))
    assert quick.measured(0.5) > late.measured(0.5) == 0 and late.chosen_s == 0.5


def test_none_is_chosen_after_the_end() -> None:
    costs = Costs([1.0] * 4, [0.1] * 4, cores=1)
    assert len(timeline_of(in_order, SECONDS, costs, limit_s=2.0, clock=Ticks(0.0)).ended) == 2
    assert timeline_of(in_order, SECONDS, costs, begins_s=3.0, limit_s=2.0).ended == []


def test_a_share_is_of_chance_then_of_the_first_choice_then_of_what_was_measured() -> None:
    found = Timeline(0.5, 0, [(1.0, 1), (2.0, 3)])
    shares = [found.share(after, SECONDS, 0.3) for after in (0.25, 0.5, 1.0, 2.0)]
    assert shares == [0.3, 1 / 4, 1 / 2, 1.0]
    assert [found.measured(after) for after in (0.5, 1.0, 9.0)] == [0, 1, 2]


def records(schedule: Schedule, run: str, *rows: tuple[float, float]) -> Iterator[Record]:
    """Rows at such times, which took so long to compile."""
    for at, compile_s in rows:
        made: Any = Measurement(
            region_id="r", schedule=schedule, target="t", toolchain="c", protocol=1, status=Status.OK,
            cache_state="cold", samples_s=(1.0,), run_id=run, early_stop=True, compile_s=compile_s,
        )  # fmt: skip
        yield Record(made, at)


def test_what_programs_take_is_read_off_the_record() -> None:
    one = lattice().schedules[0]
    runs = {name: Run(name, "", "", {"stage": stage}) for name, stage in (("alone", "measure"), ("both", "both"))}
    measured = records(one, "alone", *((0.5 * n + 100.0 * (n > 20), 0.0) for n in range(41)))
    compiled = records(one, "both", *((float(n), took) for n, took in enumerate((1.0, 2.0, 4.0, 0.001))))
    found = costs_of([*measured, *compiled], runs)
    assert found[form_of(one)] == FormCosts(2.0, 0.5), "a cache's answers and a break are left out"
    assert found[""] == found[form_of(one)]
    assert math.isclose(costs_of(records(one, "both", (0.0, 1.0)), runs)[""].measure_s, 0.0)


@pytest.mark.parametrize("cores", [1, 16])
def test_nothing_is_measured_before_it_is_compiled(cores: int) -> None:
    costs = Costs([1.0, 0.5, 2.0, 0.25], [0.1] * 4, cores=cores)
    found = timeline_of(in_order, SECONDS, costs, limit_s=10.0, clock=Ticks(0.0))
    assert sorted(place for _, place in found.ended) == [0, 1, 2, 3]
    assert all(at >= costs.compile_s[place] + 0.1 for at, place in found.ended)
