"""`--search`: one strategy for all kinds of schedule, or one for each."""

from __future__ import annotations

import math
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kcg.errors import UsageError
from kcg.optimize.search import _Search
from kcg.optimize.settings import check_search, search_of, worth_of
from kcg.search.problem import Observation
from kcg.search.uniform import UNKNOWN, Chance
from kcg.types import Prediction, Schedule

KINDS = ("opts", "tile", "parts")


@pytest.mark.parametrize(
    ("search", "by_kind"),
    [
        ("mcts", ("mcts", "mcts", "mcts")),
        ("random", ("random", "random", "random")),
        ("beam:8", ("beam:8", "beam:8", "beam:8")),
        ("ppo", ("ppo", "mcts", "mcts")),
        ("opts=beam,tile=prior", ("beam", "prior", "mcts")),
        ("tile=random", ("mcts", "random", "mcts")),
    ],
)
def test_a_name_stands_for_every_kind_that_has_it_and_the_default_for_what_is_not_named(
    search: str, by_kind: tuple[str, ...]
) -> None:
    assert tuple(search_of(search, kind) for kind in KINDS) == by_kind
    assert tuple(search_of(check_search(search), kind) for kind in KINDS) == by_kind


def test_what_says_the_same_is_kept_as_the_same() -> None:
    for one in ("mcts", "ppo", "beam:8", "tinygrad-beam:2", "frugal-mcts:32"):
        assert check_search(one) == one
    assert check_search("opts=mcts") == check_search("parts=mcts,tile=mcts,opts=mcts") == "mcts"
    assert check_search("opts=ppo") == "ppo"
    assert check_search("opts=random,tile=random,parts=random") == "random"
    both = check_search("opts=beam,tile=prior")
    assert both == check_search("tile=prior,opts=beam") == check_search(both)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("mtcs", "unknown search strategy 'mtcs': did you mean mcts?"),
        ("opts=mtcs", "unknown search strategy 'mtcs': did you mean mcts?"),
        ("tile=beam:0", "unknown search strategy 'beam:0'"),
        ("tiles=mcts", "unknown kind of schedule to search 'tiles': did you mean tile?"),
        ("source=mcts", "unknown kind of schedule to search 'source': choose one of opts, parts, tile"),
        ("tile=ppo", "--search tile=ppo: ppo is for Opts alone; for tile there are .*mcts"),
        ("opts=tinygrad-beam:2", "tinygrad's own search of everything: write --search tinygrad-beam:2"),
        ("tile=tinygrad-beam", "tinygrad's own search of everything: write --search tinygrad-beam$"),
        ("tinygrad-beam:0", "write a width"),
        ("opts=beam,opts=mcts", "opts has two strategies"),
        ("mcts,tile=beam", "write one name, or KIND=NAME for each"),
        ("opts=", "write one name, or KIND=NAME for each"),
        ("opts=beam,", "write one name, or KIND=NAME for each"),
        ("mcts,random", "unknown search strategy 'mcts,random'"),
        ("", "unknown search strategy ''"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(search: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        check_search(search)
    assert "\n" not in str(caught.value)


def test_what_its_kind_expected_is_no_surprise_and_what_is_far_faster_is() -> None:
    """Verifying what is surprisingly fast by every rule, in the search, took more of it than all samples did: programs
    of another kind are ten times as fast as tinygrad's own schedule, as their cost says."""
    asked, tile, kept = list[dict[str, Any]](), Schedule("tile", "{}"), list[tuple[Any, ...]]()

    def measure(work: Any, batch: list[Schedule], **how: Any) -> list[Future[Observation]]:
        asked.append(how)
        return [Future() for _ in batch]

    log = SimpleNamespace(expect=lambda *what: kept.append(what))
    proposed = list[dict[Schedule, Any]]()
    device = SimpleNamespace(measure=measure, choose=lambda work, why: proposed.append(why))
    one: Any = SimpleNamespace(device=device, log=log)
    expected, other = {tile: (Prediction(-8.0), None)}, Schedule("tile", "[]")
    chances = {tile: Chance("candidates:7", 1.0)}
    for best_s, expected_s in ((0.01, 4e-4), (3e-4, 4e-4), (0.01, math.inf), (0.0, 4e-4)):
        work: Any = SimpleNamespace(best_s=best_s, call="its call")
        futures = _Search._measure(one, work, [tile, other], expected=expected, chances=chances, expected_s=expected_s)
        assert kept.pop() == ("its call", Prediction(-8.0), None, futures[0]), "and kept, of any kind"
    assert [how["known_s"] for how in asked] == [4e-4, 3e-4, 0.01, None] and kept == []
    why = {tile: (expected[tile], chances[tile]), other: (None, UNKNOWN)}
    assert proposed == [why] * 4, "of what nothing is expected nothing is said"


def test_a_strategy_that_is_known_to_be_behind_says_so() -> None:
    assert "behind mcts" in worth_of("ppo")
    assert [worth_of(name) for name in ("mcts", "random", "tinygrad-beam:2", "tile=prior")] == [""] * 4
