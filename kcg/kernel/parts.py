"""The kind `parts`: a region of several kernels is its parts in order, each some of its calls with its own schedule.

The baseline of such a region is every kernel alone, as tinygrad schedules it. What parts are is in
`kcg.kernel.composed`.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np

from kcg.errors import ScheduleError
from kcg.kernel.composed import Part, checked, joined, parts_of, region_of_part, schedule_of_parts
from kcg.kernel.kinds import (
    Space,
    Tools,
    Traits,
    Unsupported,
    compile_region,
    kind_named,
    kind_of,
    needs_stress,
    traits_of,
)
from kcg.kernel.program import Executable, Program
from kcg.types import Action, Region, Schedule, ScheduleKind, Target, Variables, canonical_json


class PartsKind:
    """The kind `parts`, over the other kinds."""

    name = ScheduleKind.PARTS
    noun = ""

    def parse(self, body: str) -> Schedule:
        """A schedule from a body that comes from a file. Raises ScheduleError, in a line, where it is none."""
        schedule = Schedule(ScheduleKind.PARTS, body)
        for number, part in enumerate(parts_of(schedule)):
            try:
                kind_named(part.schedule.kind).parse(part.schedule.body)
            except ScheduleError as error:
                raise ScheduleError(f"part {number} of a schedule: {error}") from None
        return schedule

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> PartsSpace | Unsupported:
        """The space of a region of several kernels."""
        if len(region.kernels) == 1:
            return Unsupported("a region of one kernel has no parts")
        return PartsSpace(region, target, allow_tf32=allow_tf32)

    def tools(self, target: Target) -> Tools:
        """Nothing of its own."""
        return Tools()

    def traits(self, schedule: Schedule) -> Traits:
        """What any part has."""
        try:
            parts = parts_of(schedule)
        except ScheduleError:  # no program is made of it
            return Traits()
        return reduce(or_, (traits_of(part.schedule) for part in parts))

    def needs_stress(self, region: Region, schedule: Schedule, target: Target) -> bool:
        """Whether a part does."""
        parts = checked(region, schedule)
        return any(needs_stress(region_of_part(region, part.places)[0], part.schedule, target) for part in parts)

    def workspace_bytes(self, region: Region, schedule: Schedule, target: Target) -> int:
        """That of all parts: none is given back before the last one ran."""
        parts = [(region_of_part(region, part.places)[0], part.schedule) for part in checked(region, schedule)]
        return sum(kind_of(own).workspace_bytes(inner, own, target) for inner, own in parts)

    def describe(self, schedule: Schedule) -> str:
        """What each part does, one after the other."""
        parts = [part.schedule for part in parts_of(schedule)]
        return "; ".join(kind_named(one.kind).describe(one) for one in parts)

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        """The steps of each part; a label begins with the number of the part."""
        parts = enumerate(part.schedule for part in parts_of(schedule))
        return tuple(f"{number}:{step}" for number, one in parts for step in kind_named(one.kind).steps(one))

    def compile(
        self,
        region: Region,
        schedule: Schedule,
        target: Target,
        *,
        variables: Variables = (),
        also: tuple[Variables, ...] = (),
    ) -> Executable:
        """Each part by its own kind, joined. Raises ScheduleError, or a compiler's own error."""
        made = []
        for part in checked(region, schedule):
            inner, _ = region_of_part(region, part.places)
            made.append((part.places, compile_region(inner, part.schedule, target, variables=variables, also=also)))
        return joined(region, made)

    def joined(
        self, region: Region, schedule: Schedule, find: Callable[[Region, Schedule], Executable | None]
    ) -> Program | None:
        """The parts that `find` gives, joined; None where one is missing. Raises ScheduleError where it is none of the
        region."""
        made = []
        for part in checked(region, schedule):
            inner, _ = region_of_part(region, part.places)
            if (found := find(inner, part.schedule)) is None:
                return None
            made.append((part.places, found))
        return joined(region, made)


class PartsSpace:
    """Schedules of the parts of one region: each step is one of one part's own space."""

    def __init__(self, region: Region, target: Target, *, allow_tf32: bool = False) -> None:
        self.region, self.target, self._allow_tf32 = region, target, allow_tf32
        self._spaces: OrderedDict[tuple[tuple[int, ...], str], Space] = OrderedDict()

    def parts(self, schedule: Schedule) -> list[tuple[Space, Schedule]]:
        """Each part's space and its schedule there: what is expected of the whole is the sum over these.

        Raises ScheduleError where the schedule is not one of this region.
        """
        return [(self._space(part), part.schedule) for part in checked(self.region, schedule)]

    def start(self) -> Schedule:
        """Where a search begins: the baseline."""
        return self._baseline

    def baseline(self) -> Schedule:
        """Every kernel alone, with tinygrad's own schedule."""
        return self._baseline

    @cached_property
    def _baseline(self) -> Schedule:
        places = [(place,) for place in range(len(self.region.kernels))]
        return schedule_of_parts(Part(one, self._of_kind(one, ScheduleKind.OPTS).baseline()) for one in places)

    def prior(self) -> list[Schedule]:
        """The baseline, then what is chosen for one of its parts, the others as they are."""
        own = self.baseline()
        return list(dict.fromkeys([own, *self._changed(own, lambda space, _: space.prior())]))

    def actions(self, schedule: Schedule) -> list[Action]:
        """The steps of each part; a label begins with the number of the part."""
        return [
            Action(f"{number}:{action.label}", self._with(schedule, number, action.schedule))
            for number, (space, own) in enumerate(self.parts(schedule))
            for action in space.actions(own)
        ]

    def variants(self, schedule: Schedule) -> list[Schedule]:
        """What differs in one step of one part."""
        return self._changed(schedule, lambda space, own: space.variants(own))

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """What is one change of one part away, the variants first."""
        found = self.variants(schedule) + self._changed(schedule, lambda space, own: space.neighbours(own))
        return list(dict.fromkeys(found))

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        """A random step of a random part; None where no part has one."""
        at = self.start() if schedule is None else schedule
        parts = list(enumerate(self.parts(at)))
        rng.shuffle(parts)
        for number, (space, own) in parts:
            if (after := space.sample(rng, own)) is not None:
                return self._with(at, number, after)
        return None

    def transfer(self, schedule: Schedule, other: PartsSpace) -> Schedule | None:
        """A schedule of another region with as many kernels, taken over part by part; None where one cannot be."""
        if len(self.region.kernels) != len(other.region.kernels):
            return None
        taken = []
        for part, (space, own) in zip(parts_of(schedule), other.parts(schedule), strict=True):
            if (here := self._space(part).transfer(own, space)) is None:
                return None
            taken.append(Part(part.places, here))
        found = schedule_of_parts(taken)
        try:
            checked(self.region, found)
        except ScheduleError:
            return None
        return found

    def family(self) -> Hashable:
        """Equal of regions that are wired alike and whose kernels are similar."""
        kernels = tuple(space.family() for space, _ in self.parts(self.baseline()))
        return (ScheduleKind.PARTS, kernels, self.region.args, self.region.outputs)

    def key(self, schedule: Schedule) -> str:
        """Equal of equal programs."""
        return self._joined(schedule, lambda space, own: space.key(own))

    def alike(self, schedule: Schedule) -> str:
        """Equal where all parts are alike."""
        return self._joined(schedule, lambda space, own: space.alike(own))

    def groups(self, schedule: Schedule) -> Hashable:
        """The traits of each part."""
        found: list[int] = []
        for space, own in self.parts(schedule):
            traits = space.groups(own)
            found += traits if isinstance(traits, tuple) else [hash(traits)]
        return tuple(found)

    def tile(self, schedule: Schedule) -> Hashable:
        """The tiles of each part."""
        return tuple(space.tile(own) for space, own in self.parts(schedule))

    def loop_nests(self, batch: Sequence[Schedule]) -> list[list[Any]]:
        """Of each schedule the loop nests of its parts, in order."""
        return [[nest for space, own in self.parts(one) for nest in space.loop_nests([own])] for one in batch]

    def refusals(self, batch: Sequence[Schedule]) -> list[float]:
        """How likely a compiler refuses one of the parts."""
        return [1 - math.prod(1 - space.refusals([own])[0] for space, own in self.parts(one)) for one in batch]

    def action_features(self, schedule: Schedule, actions: Sequence[Action] | None = None) -> Any:
        """The rows of each part's actions beneath each other, in the order of `actions`, and last that of none."""
        rows = [space.action_features(own) for space, own in self.parts(schedule)]
        places = {action.schedule: place for place, action in enumerate(self.actions(schedule))}
        chosen = list(places.values()) if actions is None else [places[action.schedule] for action in actions]
        width = max(one.axes.shape[1] for one in rows)
        axes = [np.pad(one.axes, ((0, 0), (0, width - one.axes.shape[1])), constant_values=-1) for one in rows]
        order = [*chosen, len(places)]
        return replace(
            rows[0],
            features=np.concatenate([*(one.features[:-1] for one in rows), rows[0].features[-1:]])[order],
            axes=np.concatenate([*(one[:-1] for one in axes), axes[0][-1:]])[order],
        )

    def check(self, schedule: Schedule) -> None:
        """Raises where a schedule is not one of this region, or where that of a part does not apply."""
        for space, own in self.parts(schedule):
            space.check(own)

    def name(self, schedule: Schedule) -> str:
        """`3 kernels: r_6_16; r_6_16n1; E_6_16`."""
        return self._in_words(space.name(own) for space, own in self.parts(schedule))

    def legend(self, schedule: Schedule) -> str:
        """What the names say, in words."""
        return self._in_words(space.legend(own) for space, own in self.parts(schedule))

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Program:
        """The parts in order as one program; intermediates are buffers of the region, as tinygrad stores them.

        Raises ScheduleError, or a compiler's own error.
        """
        parts = zip(parts_of(schedule), self.parts(schedule), strict=True)
        return joined(self.region, [(part.places, space.compile(own, variables, also)) for part, (space, own) in parts])

    def _changed(self, schedule: Schedule, change: Callable[[Space, Schedule], list[Schedule]]) -> list[Schedule]:
        parts = enumerate(self.parts(schedule))
        return [self._with(schedule, number, other) for number, (space, own) in parts for other in change(space, own)]

    def _in_words(self, parts: Iterable[str]) -> str:
        return f"{len(self.region.kernels)} kernels: {'; '.join(parts)}"

    def _joined(self, schedule: Schedule, of: Callable[[Space, Schedule], str]) -> str:
        places = [list(part.places) for part in parts_of(schedule)]
        return canonical_json([places, [of(space, own) for space, own in self.parts(schedule)]])

    def _with(self, schedule: Schedule, number: int, own: Schedule) -> Schedule:
        """The schedule with another one for one of its parts."""
        parts = list(parts_of(schedule))
        parts[number] = Part(parts[number].places, own)
        return schedule_of_parts(parts)

    def _space(self, part: Part) -> Space:
        return self._of_kind(part.places, part.schedule.kind)

    def _of_kind(self, places: tuple[int, ...], kind: str) -> Space:
        if (places, kind) not in self._spaces:
            part = region_of_part(self.region, places)[0]
            found = kind_named(kind).space(part, self.target, allow_tf32=self._allow_tf32)
            if isinstance(found, Unsupported):
                raise ScheduleError(f"calls {list(places)} have no schedules of kind {kind}: {found.reason}")
            self._spaces[places, kind] = found
        return self._spaces[places, kind]


KIND = PartsKind()
