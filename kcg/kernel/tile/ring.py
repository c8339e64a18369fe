"""Rings of slots in shared memory, in Gluon: one group of warps fills them, other groups read them.

A slot has two barriers: one that its bytes open, and one that its readers open when each has given it back. In each
round of a ring its barriers have the other phase. Where a block is in a ring, and in which phase, is said by name
(`Place`): by variables that go on with each block, or as the number of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kcg.kernel.tile.emit import Lines
from kcg.kernel.tile.plan import Barriers


@dataclass(frozen=True)
class Place:
    """A slot of a ring and the phase of its barriers, as expressions of the program."""

    index: str
    phase: str

    @property
    def before(self) -> Place:
        """The same slot a round before: whoever fills it waits until that one was given back."""
        phase = self.phase if self.phase.isidentifier() else f"({self.phase})"
        return Place(self.index, f"{phase} ^ 1")


HERE = Place("slot", "phase")
"""Where a function is that goes through a ring slot by slot, see `Ring.begin`."""


@dataclass(frozen=True)
class Ring:
    """The names of a ring's barriers, its slots, and how many groups read each of these. A slot is full after so many
    `arrivals`: that of whoever says how many bytes TMA brings, and of those who store a part of it themselves."""

    full: str
    empty: str
    slots: int
    readers: int
    arrivals: int = 1

    # ---- its barriers

    @property
    def of_full(self) -> Barriers:
        """Those that are opened by whoever fills a slot."""
        return Barriers(self.full, self.slots, self.arrivals)

    @property
    def of_empty(self) -> Barriers:
        """Those that are opened by all readers of a slot."""
        return Barriers(self.empty, self.slots, self.readers)

    # ---- where a block is

    def begin(self, lines: Lines, *, fills: bool) -> None:
        """Begins at the first slot; who fills it finds it as if it was given back."""
        lines.add(f"{HERE.index} = 0")
        lines.add(f"{HERE.phase} = {int(fills)}")

    def advance(self, lines: Lines) -> None:
        """To the next slot; in each round its barriers have the other phase."""
        index, phase = HERE.index, HERE.phase
        lines.add(f"{index} += 1")
        lines.add(f"around = {index} == {self.slots}")
        lines.add(f"{index} = gl.where(around, 0, {index})")
        lines.add(f"{phase} = gl.where(around, {phase} ^ 1, {phase})")

    def last(self) -> str:
        """The slot before `HERE`: an expression, since of a variable that is set to another one's value Triton 3.6 to
        3.9 lose the loop's new value."""
        return f"gl.where({HERE.index} == 0, {self.slots - 1}, {HERE.index} - 1)"

    def place_of(self, number: str) -> Place:
        """The place of the block with a number among all that go through the ring."""
        if number == "0":
            return Place("0", "0")
        return Place(f"{number} % {self.slots}", f"({number} // {self.slots}) & 1")

    # ---- statements

    def await_full(self, place: Place) -> str:
        """Waits until a block is there."""
        return f"mbarrier.wait({self.full}.index({place.index}), {place.phase})"

    def await_empty(self, place: Place, only: str = "") -> str:
        """Waits until a slot was given back; `only` under a condition, as what follows."""
        return f"mbarrier.wait({self.empty}.index({place.index}), {place.phase}{_if(only)})"

    def expect(self, index: str, nbytes: int, only: str = "") -> str:
        """Says how many bytes a slot will have."""
        return f"mbarrier.expect({self.full}.index({index}), {nbytes}{_if(only)})"

    def fetch(self, memory: str, corner: Sequence[str], index: str, block: str, only: str = "") -> str:
        """A block is on its way to a slot's buffer; the slot is full when all that it expects is there."""
        return f"fetch({memory}, [{', '.join(corner)}], {self.full}.index({index}), {block}{_if(only)})"

    def stored(self, index: str) -> str:
        """A part of a slot is there that was not fetched."""
        return f"mbarrier.arrive({self.full}.index({index}), count=1)"

    def give_back(self, index: str, only: str = "") -> str:
        """A reader is done with a slot."""
        return f"mbarrier.arrive({self.empty}.index({index}), count=1{_if(only)})"


def _if(only: str) -> str:
    return f", pred={only}" if only else ""


def add_barriers(lines: Lines, barriers: Barriers) -> None:
    """Allocates the barriers of a ring's slots."""
    name = barriers.name
    lines.add(f"{name} = gl.allocate_shared_memory(gl.int64, [{barriers.slots}, 1], mbarrier.MBarrierLayout())")
    for slot in range(barriers.slots):
        lines.add(f"mbarrier.init({name}.index({slot}), count={barriers.arrivals})")
