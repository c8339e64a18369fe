"""The kinds of schedule: what everybody but a kind's own package knows of schedules.

A kind is an entry of `MODULES`: a module with `KIND`, which is loaded when somebody first asks for the kind. So this
module is cheap to import. How to add one is in docs/architecture.md.
"""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from kcg.errors import ScheduleError
from kcg.types import Action, Region, Schedule, ScheduleKind, Target, Variables

if TYPE_CHECKING:
    from kcg.kernel.loop_nest import ActionRows, AxisTable
    from kcg.kernel.program import Executable, Program

MODULES: Final[dict[str, str]] = {
    ScheduleKind.OPTS: "kcg.kernel.opts.kind",
    ScheduleKind.SOURCE: "kcg.kernel.source.kind",
    ScheduleKind.TILE: "kcg.kernel.tile.kind",
    ScheduleKind.PARTS: "kcg.kernel.parts",
}
"""Where the kind of each `Schedule.kind` is."""


class StepSpace(Protocol):
    """What a search needs of the schedules of one region on one target: that of a kind, or a recorded table.

    Steps are acyclic: they lead on from `start` and come to an end. What a space cannot express raises ScheduleError.
    """

    def start(self) -> Schedule:
        """Where a search begins."""

    def baseline(self) -> Schedule:
        """What is compared with: what tinygrad does by itself. It may be of another kind."""

    def prior(self) -> list[Schedule]:
        """What the kind would choose before anything is predicted or measured, best first, each program once."""

    def actions(self, schedule: Schedule) -> list[Action]:
        """Every legal step from `schedule`, in a fixed order; empty where there is none."""

    def variants(self, schedule: Schedule) -> list[Schedule]:
        """Those neighbours that differ in one step: without it, or with another amount of it. Each program once."""

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """What is one change away, the variants first, without `schedule` itself. Others than `actions` lead to."""

    def key(self, schedule: Schedule) -> str:
        """Equal for what is the same program."""

    def alike(self, schedule: Schedule) -> str:
        """Equal for what is about as fast, so that one of them is enough; equal wherever keys are."""

    def groups(self, schedule: Schedule) -> Hashable:
        """Equal for what a predictor that misjudges one may misjudge alike; None where the space cannot tell."""

    def tile(self, schedule: Schedule) -> Hashable:
        """Equal where threads compute the same: what is measured of one tells most of the others."""


@runtime_checkable
class SeeksStart(Protocol):
    """A space whose start may take a second to find."""

    @property
    def seeks_start(self) -> bool:
        """Whether it would take that long now."""

    def begin_at(self, found: Callable[[], Schedule]) -> None:
        """Take the start of an equal space: what `found` gives, or waits for, when it is asked for."""


class Space(StepSpace, Protocol):
    """The schedules of one kind for one region on one target. It remembers what it worked out: a search looks at 1,000
    candidates a second."""

    @property
    def region(self) -> Region: ...

    @property
    def target(self) -> Target: ...

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        """One of `actions`, each equally likely, from `schedule` (by default `start`); None where there is none."""

    def transfer(self, schedule: Schedule, other: Any) -> Schedule | None:
        """A schedule of `other`, the space of a similar region, taken over to this one; None where it is not legal."""

    def family(self) -> Hashable:
        """Equal for similar regions, between which schedules are worth taking over."""

    def loop_nests(self, schedules: Sequence[Schedule]) -> list[AxisTable]:
        """What each does, as predictors and policies see it."""

    def refusals(self, schedules: Sequence[Schedule]) -> list[float]:
        """How likely it is, by rule, that compiling each fails."""

    def action_features(self, schedule: Schedule, actions: Sequence[Action] | None = None) -> ActionRows:
        """What each of `actions` (by default all from `schedule`) would do, as numbers."""

    def check(self, schedule: Schedule) -> None:
        """Raises where a schedule does not apply: ScheduleError, or whatever a foreign one brings up."""

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Program:
        """The program, to be launched with `variables` or one of those in `also`. Raises ScheduleError or the
        compiler's own error."""

    def name(self, schedule: Schedule) -> str:
        """What the program is called, for tables."""

    def legend(self, schedule: Schedule) -> str:
        """What it does, in words, for reports."""


@dataclass(frozen=True)
class Refusal:
    """Why a kind has no space for a region."""

    reason: str


class Kind(Protocol):
    """One kind of schedule."""

    @property
    def name(self) -> str:
        """`Schedule.kind`."""

    def parse(self, body: str) -> Schedule:
        """The schedule of a body that comes from a file. Raises ScheduleError, in one line, where it is none."""

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> Space | Refusal:
        """The schedules of a region on a target. With `allow_tf32` products may round float32 operands to tf32. Raises
        what tinygrad raises on a foreign kernel."""

    def describe(self, schedule: Schedule) -> str:
        """A schedule in few words. Raises ValueError or TypeError where its body was not parsed and is none."""

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        """Labels of the actions that lead from the start to a schedule, in order; itself, where there are no steps. A
        kind whose start depends on the region gives those of all that it can set: `actions` has those that are steps.
        """

    def compile(
        self,
        region: Region,
        schedule: Schedule,
        target: Target,
        *,
        variables: Variables = (),
        also: tuple[Variables, ...] = (),
    ) -> Executable:
        """As the space's, without working out the space. Raises ScheduleError or the compiler's own error."""


@functools.cache
def kind_named(name: str) -> Kind:
    """The kind of a name. Raises ScheduleError where there is none."""
    if name not in MODULES:
        raise ScheduleError(f"unknown kind {name[:60]!a}")
    kind: Kind = importlib.import_module(MODULES[name]).KIND
    return kind


def kind_of(schedule: Schedule) -> Kind:
    """The kind of a schedule. Raises ScheduleError where there is none."""
    return kind_named(schedule.kind)


def parse(kind: str, body: str) -> Schedule:
    """The schedule of a kind and a body that come from a file. Raises ScheduleError, in one line, where it is none."""
    return kind_named(kind).parse(body)


def describe(schedule: Schedule) -> str:
    """A schedule in few words, for tables and messages: its body, where that is not of a kind that is known."""
    try:
        return kind_of(schedule).describe(schedule)
    except (ScheduleError, ValueError, TypeError):  # of another version
        return schedule.body


def steps_of(schedule: Schedule) -> tuple[str, ...]:
    """Labels of the steps that make a schedule, see `Kind.steps`."""
    return kind_of(schedule).steps(schedule)


def same_but_amount(label: str, other: str) -> bool:
    """Whether two steps do the same in the same place, with another amount: a label ends in it, as in `split(0,4)`."""
    stem = label.rpartition(",")[0]
    return bool(stem) and stem == other.rpartition(",")[0] and label != other


def own_kind(region: Region) -> Kind:
    """The kind that what tinygrad does to a region by itself is of."""
    return kind_named(ScheduleKind.OPTS if len(region.kernels) == 1 else ScheduleKind.PARTS)


def space_of(region: Region, target: Target, kind: str = "", *, allow_tf32: bool = False) -> Space:
    """The space of a kind, see `Kind.space`, by default of the one that holds the region's baseline. Raises
    ScheduleError where there is none, and what tinygrad raises on a foreign kernel."""
    found = (kind_named(kind) if kind else own_kind(region)).space(region, target, allow_tf32=allow_tf32)
    if isinstance(found, Refusal):
        raise ScheduleError(found.reason)
    return found


def baseline_of(region: Region, target: Target) -> Schedule:
    """What tinygrad does to a region by itself. Raises as `space_of`."""
    return space_of(region, target).baseline()
