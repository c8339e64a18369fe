"""Reads and writes keep their order whatever is merged, and nothing is merged that would break it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kcg.compat.hazards import Access, Groups, is_convex, successors_of


def random_accesses(rng: np.random.Generator) -> list[Access]:
    def some() -> frozenset[int]:
        return frozenset(map(int, rng.choice(6, int(rng.integers(0, 3)), replace=False)))

    return [Access(some(), some() or frozenset([int(rng.integers(6))])) for _ in range(int(rng.integers(2, 9)))]


def reachable(edges: list[set[int]]) -> set[tuple[int, int]]:
    found = {(a, b) for a, later in enumerate(edges) for b in later}
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_edges_say_which_pairs_conflict_and_no_more(seed: int) -> None:
    accesses = random_accesses(np.random.default_rng(seed))
    pairs = [(a, b) for a, b in itertools.combinations(range(len(accesses)), 2) if accesses[a].conflicts(accesses[b])]
    edges: list[set[int]] = [set() for _ in accesses]
    for a, b in pairs:
        edges[a].add(b)
    assert reachable(successors_of(accesses)) == reachable(edges)


def has_order(accesses: list[Access], groups: list[list[int]]) -> bool:
    """Whether the groups can run one after the other, found by trying all orders of them."""
    for order in itertools.permutations(groups):
        at = {place: when for when, group in enumerate(order) for place in group}
        if all(
            at[a] <= at[b]
            for a, b in itertools.combinations(range(len(accesses)), 2)
            if accesses[a].conflicts(accesses[b])
        ):
            return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_calls_merge_exactly_where_an_order_of_the_groups_is_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    accesses = random_accesses(rng)[:7]
    groups, merged = Groups(accesses), list[list[int]]()
    for _ in range(4):
        free = [place for place in range(len(accesses)) if not any(place in group for group in merged)]
        if len(free) < 2:
            break
        chosen = sorted(map(int, rng.choice(free, 2, replace=False)))
        alone = [[place] for place in free if place not in chosen]
        if not merged:
            assert is_convex(successors_of(accesses), chosen) == has_order(accesses, [chosen, *alone])
        assert groups.merge(chosen) == has_order(accesses, [*merged, chosen, *alone])
        if groups.order() and any(group == chosen for group in groups.order()):
            merged.append(chosen)
    order = groups.order()
    assert sorted(itertools.chain(*order)) == list(range(len(accesses)))
    at = {place: when for when, group in enumerate(order) for place in group}
    for a, b in itertools.combinations(range(len(accesses)), 2):
        assert at[a] <= at[b] or not accesses[a].conflicts(accesses[b])


def test_nothing_merged_nothing_moves() -> None:
    accesses = random_accesses(np.random.default_rng(3))
    assert Groups(accesses).order() == [[place] for place in range(len(accesses))]
