"""The kinds of schedule: what everybody but a kind's own package knows of schedules.

A kind is an entry of `KINDS`: a module with `KIND`, which is loaded when somebody first asks for the kind. So this
module is cheap to import, and a run loads no kind that has nothing for its device. Nobody else imports what is in a
kind's package. How to add one is in docs/architecture.md.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import or_
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

from kcg.errors import ScheduleError
from kcg.types import Action, Region, Schedule, ScheduleKind, Target, Toolchain, Variables

if TYPE_CHECKING:
    import numpy as np

    from kcg.compat.opts import Opt
    from kcg.kernel.loop_nest import ActionRows, AxisTable
    from kcg.kernel.program import Executable, Program
    from kcg.kernel.regions import Candidate
    from kcg.kernel.seen import Seen, Words

ACTION_SPACE_VERSION: Final = 1
"""Of the list of actions that spaces offer; a part of a toolchain, so that old rows are never read as new ones."""


@dataclass(frozen=True)
class Entry:
    """Where a kind is, and for which of tinygrad's devices it can have schedules: without any, for all."""

    module: str
    devices: tuple[str, ...] = ()


KINDS: Final[dict[str, Entry]] = {
    ScheduleKind.OPTS: Entry("kcg.kernel.opts.kind"),
    ScheduleKind.SOURCE: Entry("kcg.kernel.source.kind"),
    ScheduleKind.TILE: Entry("kcg.kernel.tile.kind", devices=("CUDA", "NV", "AMD")),
    ScheduleKind.PARTS: Entry("kcg.kernel.parts"),
}
"""The kind of each `Schedule.kind`. The children of a process that compile, measure and run get what stands here
(`registered`), so an entry that is added to it is known to them."""

Registered = tuple[tuple[str, str, tuple[str, ...]], ...]


def registered() -> Registered:
    """The entries as what a child process is given."""
    return tuple((str(name), entry.module, entry.devices) for name, entry in KINDS.items())


def register(entries: Iterable[Sequence[Any]]) -> None:
    """In a child: know the kinds that are `registered` in its parent."""
    KINDS.update({name: Entry(module, tuple(devices)) for name, module, devices in entries})


@dataclass(frozen=True)
class Traits:
    """What others ask of a schedule and its kind alone can tell; of several parts, what any of them has."""

    by_hand: bool = False  # it is code of a user: it runs from that user's own file alone, and is not passed on
    as_program: bool = False  # plain tinygrad cannot make it of the schedule: it is handed over as a compiled program
    own_assembler: bool = False  # what makes it is a part of `Toolchain.tile_fingerprint`, and of nothing else
    tf32: bool = False  # it rounds float32 operands of products to tf32
    second_choice: bool = False  # of two that are about as fast one without it is taken

    def __or__(self, other: Traits) -> Traits:
        return Traits(*map(or_, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Tools:
    """What makes a kind's programs for a target on this machine, beside tinygrad."""

    found: str = ""  # in words; empty where it is not there, or nothing is needed
    missing: str = ""  # why there are no programs, and what to do
    advice: str = ""  # what had better be done, though there are programs
    possible: bool = True  # whether there can be programs for such a target
    assembler: str = ""  # `Toolchain.assembler`


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


@dataclass(frozen=True)
class Cost:
    """What a schedule takes by a formula of its kind's own."""

    seconds: float
    uncertainty: float  # by what it is off, in log-seconds
    features: np.ndarray[Any, Any]  # numbers in which what is misjudged alike is near


@runtime_checkable
class HasCost(Protocol):
    """A space whose schedules are judged by a formula, and not by what was learned of loop nests."""

    def cost(self, schedule: Schedule) -> Cost:
        """What it takes. Raises ScheduleError where it is none of this space."""

    def suspects(self, schedule: Schedule) -> Mapping[Hashable, float]:
        """What of it may be to blame if it fails, and how much more than other things: what fails with one schedule
        is suspected in all that have the same."""


@runtime_checkable
class SeenAsPlans(Protocol):
    """A space whose schedules predictors see as plans, not as loop nests."""

    @property
    def words(self) -> Words:
        """What the numbers of a plan are called."""

    def seen(self, schedule: Schedule) -> Seen:
        """A schedule's plan in numbers. Raises ScheduleError where it is none of this space."""


@dataclass(frozen=True)
class Lattice:
    """A part of a space that is small enough to be measured completely: its actions, and every schedule with the steps
    from it that stay inside."""

    actions: tuple[object, ...]  # in words as `str` has it, which are the labels of steps
    steps: dict[Schedule, tuple[Action, ...]]
    keys: dict[Schedule, str]
    baseline: Schedule  # the schedule of the lattice that is tinygrad's own choice
    start: Schedule


@runtime_checkable
class HasLattice(Protocol):
    """A space of which a part can be declared by some schedules: what replay tables are made of."""

    def lattice(self, given: Sequence[Schedule], *, rng: random.Random, limit: int) -> Lattice:
        """The lattice around `given`, and tinygrad's own choice. Raises ScheduleError where one does not apply."""


@runtime_checkable
class DrawsUniformly(Protocol):
    """A space too large to be listed, of which programs can be drawn at random, each as likely."""

    def uniform(self, rng: random.Random) -> Schedule | None:
        """One of all legal programs, each as likely; None where none was met in many tries."""

    def count(self) -> float:
        """About how many legal programs there are, the same in every process."""


def programs_of(space: StepSpace, *, most: int) -> list[Schedule]:
    """Every schedule that steps lead to, each program once; none where these are more than `most`."""
    reached = {space.key(one): one for one in (space.start(), space.baseline())}
    waiting = list(reached.values())
    for schedule in waiting:
        for action in space.actions(schedule):
            if (key := space.key(action.schedule)) not in reached:
                reached[key] = action.schedule
                waiting.append(action.schedule)
        if len(reached) > most:
            return []
    return waiting


LONG_UOPS: Final = 1200
"""Random schedules whose code has more micro-operations were a quarter of an H200's first 24,000 rows, and seven tenths
of all compiling."""


@runtime_checkable
class CountsUops(Protocol):
    """A space that knows how long a program is before it is made."""

    def uops(self, schedule: Schedule) -> int:
        """About how many micro-operations it will have. Raises ScheduleError where it does not apply."""


@runtime_checkable
class HasExact(Protocol):
    """A space of programs whose functions may be less accurate than they could be."""

    def exact(self, schedule: Schedule) -> Schedule | None:
        """The same with functions in full accuracy; None where that is the same program."""


@runtime_checkable
class HasParts(Protocol):
    """A space whose schedules are of several parts, of which what is expected adds up."""

    def parts(self, schedule: Schedule) -> list[tuple[Space, Schedule]]:
        """Each part's space and its schedule there. Raises ScheduleError where it is none of this space."""


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
class Unsupported:
    """Why a kind has no space for a region."""

    reason: str


class Kind(Protocol):
    """One kind of schedule."""

    @property
    def name(self) -> str:
        """`Schedule.kind`."""

    @property
    def noun(self) -> str:
        """What one program of it is called; empty of what is tinygrad's own or the user's, which needs no word."""

    def parse(self, body: str) -> Schedule:
        """The schedule of a body that comes from a file. Raises ScheduleError, in one line, where it is none."""

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> Space | Unsupported:
        """The schedules of a region on a target. With `allow_tf32` products may round float32 operands to tf32. Raises
        what tinygrad raises on a foreign kernel."""

    def tools(self, target: Target) -> Tools:
        """What makes its programs for a target here."""

    def traits(self, schedule: Schedule) -> Traits:
        """What others ask of it; also of a body that was not parsed."""

    def needs_stress(self, region: Region, schedule: Schedule, target: Target) -> bool:
        """Whether it has to run very often before it is believed: something in it may go wrong now and then."""

    def workspace_bytes(self, region: Region, schedule: Schedule, target: Target) -> int:
        """What its program takes of memory beside the buffers of the region. Raises ScheduleError."""

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


@runtime_checkable
class JoinsKernels(Protocol):
    """A kind that has programs of several kernels."""

    def saving_s(self, candidate: Candidate, alone_s: Mapping[str, float], target: Target) -> float:
        """What one occurrence of a region is expected to save, before anything is measured, against its kernels one
        after the other, of which `alone_s` are the seconds by id."""


@runtime_checkable
class KeepsPrograms(Protocol):
    """A kind of which compiled programs stay in the user's cache."""

    def kept(
        self, region: Region, schedule: Schedule, target: Target, *, variables: Variables, also: tuple[Variables, ...]
    ) -> Program | None:
        """The program from there, without the compiler being loaded; None where it is not there. Raises what a
        schedule of another version brings up."""


@runtime_checkable
class NamesItself(Protocol):
    """A kind whose schedules say what their programs are called."""

    def named(self, schedule: Schedule) -> tuple[str, str]:
        """Its name, for tables, and what it does, in words. Raises ScheduleError."""


@runtime_checkable
class Shortens(Protocol):
    """A kind whose schedules are lists of steps."""

    def shortened(self, schedule: Schedule, by: int) -> Schedule:
        """The schedule without its last steps, `by` of them at most."""


class Steps(Protocol):
    """A space whose schedules are made step by step: that of a kernel, or a recorded table."""

    def start(self) -> Schedule: ...
    def baseline(self) -> Schedule: ...
    def actions(self, schedule: Schedule) -> list[Action]: ...
    def step(self, schedule: Schedule, step: Any) -> Schedule | None: ...
    def key(self, schedule: Schedule) -> str: ...


@runtime_checkable
class KnowsSteps(Protocol):
    """A kind that can tell what is near a schedule from its steps alone, which is all that a recorded table has."""

    def variants(self, steps: Steps, schedule: Schedule) -> list[Schedule]:
        """See `StepSpace.variants`."""

    def moved(self, steps: Steps, schedule: Schedule) -> list[Schedule]:
        """With an amount of one step moved to another one, where all steps are legal; each program once."""


@runtime_checkable
class CountsSteps(Protocol):
    """A kind of which statistics count the steps."""

    def ops_and_arguments(self, schedule: Schedule) -> list[tuple[str, str]]:
        """What each step does, and its argument as JSON, empty where it has none. Raises ValueError or TypeError."""


@runtime_checkable
class HasParameters(Protocol):
    """A kind whose schedules are values of named parameters, the same for every region."""

    def parameter_types(self) -> dict[str, Any]:
        """The type of each by its name: `int`, `bool`, `str`, or a tuple of any length of one of these or of such."""

    def parameters(self, schedule: Schedule) -> dict[str, Any]:
        """Their values. Raises ScheduleError where the body is none."""


@runtime_checkable
class OfTinygrad(Protocol):
    """The kind that tinygrad applies itself, and keeps in its BEAM cache."""

    def opts(self, schedule: Schedule) -> tuple[Opt, ...]:
        """The Opts of a schedule in the order in which they apply. Raises ValueError or TypeError."""

    def of_opts(self, opts: Sequence[Opt]) -> Schedule:
        """The schedule that applies `opts` in order."""


def kind_named(name: str) -> Kind:
    """The kind of a name. Raises ScheduleError where there is none."""
    if name not in KINDS:
        raise ScheduleError(f"unknown kind {name[:60]!a}")
    return cast(Kind, importlib.import_module(KINDS[name].module).KIND)


def kinds_for(target: Target) -> tuple[str, ...]:
    """The names of the kinds that can have schedules for a target; none of them is loaded."""
    return tuple(str(name) for name, entry in KINDS.items() if not entry.devices or target.device in entry.devices)


def tools_for(target: Target) -> list[tuple[str, Tools]]:
    """Of each kind that needs more than tinygrad for a target, what makes its programs, with its noun."""
    asked = [kind_named(name) for name in kinds_for(target)]
    return [(kind.noun, kind.tools(target)) for kind in asked if kind.noun]


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


def traits_of(schedule: Schedule) -> Traits:
    """What others ask of a schedule; nothing of one of a kind that is not known."""
    return kind_of(schedule).traits(schedule) if schedule.kind in KINDS else Traits()


def fits_beam_cache(schedule: Schedule) -> bool:
    """Whether tinygrad's BEAM cache can hold a schedule."""
    return isinstance(kind_of(schedule), OfTinygrad)


def opts_of(schedule: Schedule) -> tuple[Opt, ...]:
    """The Opts of a schedule that tinygrad applies itself. Raises ValueError where it is another one."""
    if not isinstance(kind := kind_of(schedule), OfTinygrad):
        raise ValueError(f"a schedule of kind {schedule.kind!r} has no opts")
    return kind.opts(schedule)


def needs_stress(region: Region, schedule: Schedule, target: Target) -> bool:
    """Whether a schedule has to run very often before it is believed, see `Kind.needs_stress`."""
    return kind_of(schedule).needs_stress(region, schedule, target)


def compile_region(
    region: Region,
    schedule: Schedule,
    target: Target,
    *,
    variables: Variables = (),
    also: tuple[Variables, ...] = (),
) -> Executable:
    """Compile a schedule of any kind, see `Kind.compile`."""
    return kind_of(schedule).compile(region, schedule, target, variables=variables, also=also)


@runtime_checkable
class JoinsCompiled(Protocol):
    """A kind whose programs are those of its parts, one after the other."""

    def joined(
        self, region: Region, schedule: Schedule, find: Callable[[Region, Schedule], Executable | None]
    ) -> Executable | None:
        """The program of a schedule whose parts are all compiled, as `find` gives them; None where one is not."""


def joined(
    region: Region, schedule: Schedule, find: Callable[[Region, Schedule], Executable | None]
) -> Executable | None:
    """The program of a schedule that needs no compiler, since all its parts are compiled; None where there is none.
    Raises ScheduleError where it is none of the region."""
    kind = kind_of(schedule)
    return kind.joined(region, schedule, find) if isinstance(kind, JoinsCompiled) else None


def made_by(toolchain: Toolchain, schedule: Schedule) -> str:
    """The fingerprint of the toolchain that rows of a schedule carry."""
    return toolchain.tile_fingerprint if traits_of(schedule).own_assembler else toolchain.fingerprint


def noun_of(schedule: Schedule) -> str:
    """What a program of a schedule's kind is called, see `Kind.noun`."""
    return kind_of(schedule).noun


def steps_of(schedule: Schedule) -> tuple[str, ...]:
    """Labels of the steps that make a schedule, see `Kind.steps`."""
    return kind_of(schedule).steps(schedule)


def same_but_amount(label: str, other: str) -> bool:
    """Whether two steps do the same in the same place, with another amount: a label ends in it, as in `split(0,4)`."""
    stem = label.rpartition(",")[0]
    return bool(stem) and stem == other.rpartition(",")[0] and label != other


def own_kind(region: Region) -> str:
    """The name of the kind that what tinygrad does to a region by itself is of."""
    return ScheduleKind.OPTS if len(region.kernels) == 1 else ScheduleKind.PARTS


def other_kinds(region: Region, target: Target) -> list[str]:
    """The names of the kinds that can have schedules of a region on a target beside that of its baseline."""
    return [name for name in kinds_for(target) if name != own_kind(region)]


def space_of(region: Region, target: Target, kind: str = "", *, allow_tf32: bool = False) -> Space:
    """The space of a kind, see `Kind.space`, by default of the one that holds the region's baseline. Raises
    ScheduleError where there is none, and what tinygrad raises on a foreign kernel."""
    found = kind_named(kind or own_kind(region)).space(region, target, allow_tf32=allow_tf32)
    if isinstance(found, Unsupported):
        raise ScheduleError(found.reason)
    return found


def baseline_of(region: Region, target: Target) -> Schedule:
    """What tinygrad does to a region by itself. Raises as `space_of`."""
    return space_of(region, target).baseline()


MOVED_TOGETHER: Final = 1_024
"""Words of which a kernel that `wide_of` is for has a multiple, along its one axis."""


def wide_of(region: Region, target: Target) -> Schedule:
    """For a kernel that reads and writes words of 4 bytes along one axis, and little else: on a GPU each thread has 16
    bytes that lie together, of 256 threads a group. tinygrad's own choice may be 3 words of each of 32 threads, whose
    loads of 4 bytes reach a tenth of the memory's bandwidth."""
    from kcg.compat.opts import Opt

    if not target.has_local:
        return baseline_of(region, target)
    kind = kind_named(ScheduleKind.OPTS)
    assert isinstance(kind, OfTinygrad)
    return kind.of_opts([Opt("UPCAST", 0, 4), Opt("LOCAL", 0, MOVED_TOGETHER // 4)])
