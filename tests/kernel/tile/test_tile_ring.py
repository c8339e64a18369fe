"""Rings of slots: where a block is, and what its barriers wait for."""

from __future__ import annotations

from kcg.kernel.tile.ring import Place, Ring

RING = Ring("full", "empty", slots=3, readers=2)


def test_a_block_has_the_slot_and_the_phase_of_its_number() -> None:
    """In each round of a ring its barriers have the other phase."""
    assert RING.place_of("n") == Place("n % 3", "(n // 3) & 1")


def test_the_first_block_is_known() -> None:
    assert RING.place_of("0") == Place("0", "0")


def test_who_fills_a_slot_waits_for_the_round_before() -> None:
    assert RING.await_empty(Place("slot", "turn").before) == "mbarrier.wait(empty.index(slot), turn ^ 1)"
    assert RING.await_empty(RING.place_of("n").before) == "mbarrier.wait(empty.index(n % 3), ((n // 3) & 1) ^ 1)"


def test_a_reader_gives_a_slot_back() -> None:
    assert RING.give_back("slot") == "mbarrier.arrive(empty.index(slot), count=1)"
    assert RING.give_back("slot", only="k > 0") == "mbarrier.arrive(empty.index(slot), count=1, pred=k > 0)"
