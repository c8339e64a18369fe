"""The kind `source`: kernels written by hand for a region, among which a search chooses."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from kcg.errors import ScheduleError
from kcg.kernel.kinds import Tools, Traits, Unsupported, baseline_of
from kcg.kernel.source.body import source_body
from kcg.types import Action, Region, Schedule, ScheduleKind, Target, Variables

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled, Program


class SourceKind:
    """See `kcg.kernel.kinds.Kind`. `kernels` are the lowered kernels of each region, by its id."""

    name = ScheduleKind.SOURCE
    noun = ""

    def __init__(self, kernels: Mapping[str, Sequence[Schedule]] | None = None) -> None:
        self._kernels = kernels or {}

    def parse(self, body: str) -> Schedule:
        """A `SourceBody` as JSON, every field checked."""
        schedule = Schedule(ScheduleKind.SOURCE, body)
        source_body(schedule)
        return schedule

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> SourceSpace | Unsupported:
        """The kernels that were written for the region."""
        if not (schedules := self._kernels.get(region.id, ())):
            return Unsupported("no kernel was written by hand for it")
        return SourceSpace(region, target, schedules)

    def tools(self, target: Target) -> Tools:
        """What the user's code needs is the user's to know."""
        return Tools()

    def traits(self, schedule: Schedule) -> Traits:
        """A user's code."""
        return Traits(by_hand=True)

    def needs_stress(self, region: Region, schedule: Schedule, target: Target) -> bool:
        """No."""
        return False

    def workspace_bytes(self, region: Region, schedule: Schedule, target: Target) -> int:
        """None."""
        return 0

    def named(self, schedule: Schedule) -> tuple[str, str]:
        """The user's name, and how it is launched."""
        body = source_body(schedule)
        return body.name, body.legend

    def describe(self, schedule: Schedule) -> str:
        """`source:` and the user's name."""
        try:
            found = json.loads(schedule.body)
        except (ValueError, RecursionError):
            found = None
        name = found.get("name") if isinstance(found, dict) else None
        named = isinstance(name, str) and name.isidentifier()
        return f"{schedule.kind}:{name if named else schedule.id[:8]}"

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        """Itself: nothing leads to what is written by hand."""
        return (schedule.id,)

    def compile(
        self,
        region: Region,
        schedule: Schedule,
        target: Target,
        *,
        variables: Variables = (),
        also: tuple[Variables, ...] = (),
    ) -> Compiled:
        """See `kcg.kernel.compile.compile_schedule`."""
        from kcg.kernel.compile import compile_schedule

        return compile_schedule(region, schedule, target, variables=variables, also=also)


class SourceSpace:
    """The hand-written kernels of one region: from the first a step leads to each of the others."""

    def __init__(self, region: Region, target: Target, schedules: Sequence[Schedule]) -> None:
        self.region, self.target = region, target
        self._schedules = tuple(dict.fromkeys(schedules))

    def start(self) -> Schedule:
        """The first."""
        return self._schedules[0]

    def baseline(self) -> Schedule:
        """tinygrad's own schedule, of another kind."""
        return baseline_of(self.region, self.target)

    def prior(self) -> list[Schedule]:
        """All, in the order in which they were written."""
        return [*self._schedules]

    def actions(self, schedule: Schedule) -> list[Action]:
        """From the first to each other one."""
        others = self._schedules[1:] if schedule == self._schedules[0] else ()
        return [Action(self.name(other), other) for other in others]

    def variants(self, schedule: Schedule) -> list[Schedule]:
        """None: there are no steps to change."""
        return []

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """All the others."""
        return [other for other in self._schedules if other != schedule]

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        """One of the actions."""
        actions = self.actions(self.start() if schedule is None else schedule)
        return rng.choice(actions).schedule if actions else None

    def transfer(self, schedule: Schedule, other: object) -> Schedule | None:
        """None: a kernel is lowered for one region."""
        return None

    def family(self) -> Hashable:
        """No other region's."""
        return (ScheduleKind.SOURCE, self.region.id)

    def key(self, schedule: Schedule) -> str:
        """Its code, entry and launch."""
        return schedule.id

    def alike(self, schedule: Schedule) -> str:
        """As the key."""
        return schedule.id

    def groups(self, schedule: Schedule) -> Hashable:
        """It cannot tell."""
        return None

    def tile(self, schedule: Schedule) -> Hashable:
        """It cannot tell: each is one of its own."""
        return schedule.id

    def loop_nests(self, schedules: Sequence[Schedule]) -> NoReturn:
        """Raises ScheduleError: nobody predicts what is written by hand."""
        raise ScheduleError("a kernel written by hand has no loop nest")

    def refusals(self, schedules: Sequence[Schedule]) -> list[float]:
        """No rule speaks of them."""
        return [0.0 for _ in schedules]

    def action_features(self, schedule: Schedule, actions: Sequence[Action] | None = None) -> NoReturn:
        """Raises ScheduleError, as `loop_nests`."""
        raise ScheduleError("a choice between kernels written by hand has no features")

    def check(self, schedule: Schedule) -> None:
        """Raises ScheduleError where it is none of these kernels."""
        if schedule not in self._schedules:
            raise ScheduleError("it is no kernel that was written for this region")

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Program:
        """The program of one launch."""
        from kcg.kernel.compile import compile_schedule
        from kcg.kernel.program import program_of_parts

        compiled = compile_schedule(self.region, schedule, self.target, variables=variables, also=also)
        return program_of_parts(self.region, [compiled])

    def name(self, schedule: Schedule) -> str:
        """The user's."""
        return source_body(schedule).name

    def legend(self, schedule: Schedule) -> str:
        """How it is launched."""
        return source_body(schedule).legend


KIND = SourceKind()
