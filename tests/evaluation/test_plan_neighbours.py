"""What regions save among their neighbours, predicted by other programs: made-up ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluation.plans.made_up import made_up
from evaluation.plans.neighbours import LAUNCHES, Plans, by_kind, by_sums, figures, pairs, plans_of, rms
from kcg.errors import UsageError
from kcg.rl.plan_env import Array, Replay


def programs(count: int = 8) -> list[Plans]:
    return [plans_of(Replay(made_up(seed))) for seed in range(count)]


def with_steps(one: Plans, steps_s: Array) -> Plans:
    return replace(one, steps_s=steps_s)


def test_steps_that_are_sums_are_predicted_by_sums_and_nothing_is_added_to_them() -> None:
    exact = [with_steps(one, by_sums(one)) for one in programs()]
    assert all(rms(by_sums(one), one) < 1e-12 for one in exact)
    assert rms(by_kind(exact[2:])(exact[0]), exact[0]) < 1e-9


def test_what_each_launch_saves_is_found_on_other_programs() -> None:
    quicker = [with_steps(one, by_sums(one) - 3 * one.shares[LAUNCHES] * one.own_s) for one in programs(12)]
    learned, alone = (rms(predict(quicker[0]), quicker[0]) for predict in (by_kind(quicker[2:]), by_sums))
    assert alone > 0.001 and learned < alone / 3


def test_pairs_that_hardly_differ_do_not_count() -> None:
    one = programs(1)[0]
    steps_s = np.full(len(one.steps_s), one.own_s)
    assert pairs(steps_s, with_steps(one, steps_s)) is None
    steps_s[0] /= 2
    assert pairs(steps_s, with_steps(one, steps_s)) == 1.0
    assert pairs(-steps_s, with_steps(one, steps_s)) == 0.0


def test_a_program_is_predicted_by_other_families() -> None:
    found = figures(programs(6))
    assert set(found["programs"]) == {one.replay.program.name for one in programs(6)}
    assert found["error"]["sums"]["low"] <= found["error"]["sums"]["mean"] <= found["error"]["sums"]["high"]
    with pytest.raises(UsageError, match="two families"):
        figures(programs(2))
