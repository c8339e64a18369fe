"""How fast the environment is: new states are told from known ones, by family and by networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evaluation.search.env_speed import KNOWN, NEW, episode, rates, speed_of
from kcg.rl.env import KernelScheduleEnv
from kcg.types import RAW, Schedule
from tests.policies import SHIPPED, task, viewer_of

DATASET = Path(__file__).parents[3] / "datasets" / "h200"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_speed_separates_new_states_from_those_visited_before() -> None:
    visited: dict[Schedule, None] = {}
    env = KernelScheduleEnv([task("matmul")], start="either")
    first = episode(env, 6, seed=0, visited=visited)
    assert len(first[NEW]) == len(visited) - len({RAW, viewer_of("matmul").space.baseline()} & set(visited)) > 5
    again = episode(env, 6, seed=0, visited=visited)
    assert not again[NEW] and len(again[KNOWN]) == len(first[NEW]) + len(first[KNOWN])
    report = rates({NEW: [0.5, 0.25, 0.25], KNOWN: []})
    assert report == {"new_steps": 3, "new_steps_per_s": 3.0, "known_steps": 0, "known_steps_per_s": 0.0}


@pytest.mark.slow
def test_the_speed_of_the_environment_is_reported_by_family_and_networks() -> None:
    entry = speed_of(SHIPPED, DATASET, kernels=1, episodes=3, seed=0)
    for name in ("one network", "whole checkpoint"):
        for family in ("flux", "other"):
            report = entry[name][family]
            assert report["new_steps"] > 3 and report["new_steps_per_s"] < report["known_steps_per_s"]
            assert min(report["microseconds_of_a_new_state"].values()) > 0
            assert {"graph", "network", "legal actions"} < report["microseconds_of_a_new_state"].keys()
        assert entry[name]["new_steps"] == sum(entry[name][family]["new_steps"] for family in ("flux", "other"))
