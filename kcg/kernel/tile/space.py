"""The tile programs of one region on one target: a tree of labelled steps, each parameter set at most once.

A step sets one parameter; those before it in `legal.FIELDS` stay, and those after it are completed: with the prior's
choice where that is legal, else with what is nearest to it. So every node is a program, none is reached twice, and what
a search did not decide follows from what it did.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from kcg.errors import KcgError, ScheduleError
from kcg.kernel.ast import affine
from kcg.kernel.kinds import Cost, baseline_of
from kcg.kernel.program import Program
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.seen import Seen
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.expected import cost_of, suspects
from kcg.kernel.tile.form import Axes, Start
from kcg.kernel.tile.forms import form_of, plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import FIELDS, is_legal, is_possible, legal_values, random_parameters, starts
from kcg.kernel.tile.parameters import TMA, TileParameters
from kcg.kernel.tile.plan import describe
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.seen import WORDS, seen
from kcg.kernel.tile.uniform import Uniform
from kcg.kernel.tile.words import described, label
from kcg.types import Action, Region, Schedule, ScheduleKind, Target, Variables
from kcg.unexpected import report

SCHEDULES_KEPT = 8192
BEGINNINGS = 3  # tiles from which the cheapest program is looked for, beside the prior's
CROWDED = 0.02  # of the shared memory: how far the estimate may be off

log = logging.getLogger(__name__)

V = TypeVar("V")


def schedule_of(parameters: TileParameters) -> Schedule:
    """The schedule of parameters."""
    return Schedule(ScheduleKind.TILE, parameters.to_json())


class TileSpace:
    """The `Space` (`kcg.kernel.kinds`) of tile programs. Raises UnsupportedTile where the region has none."""

    def __init__(self, region: Region, target: Target, kernel: TileKernel) -> None:
        self.region, self.target, self.kernel = region, target, kernel
        self._known: dict[str, dict[Any, Any]] = {}
        self._first = default_parameters(kernel, target)
        self._first_of_axes = {(p.form, p.axes): p for p in (self._first, *starts(kernel, target))}
        self._is_settled = False
        self._found: Callable[[], Schedule] | None = None

    @property
    def seeks_start(self) -> bool:
        """Whether finding the start takes a second, which another process may spend: `begin_at`."""
        return not self._is_settled and form_of(self._first).start_at is Start.WALKED

    def begin_at(self, found: Callable[[], Schedule]) -> None:
        """Take the start of an equal space, which `found` gives, or waits for, when it is asked for. Where that fails
        it is found here."""
        self._found = found

    @property
    def _start(self) -> TileParameters:
        self._settle()
        return self._first

    @property
    def _bases(self) -> dict[tuple[str, Axes], TileParameters]:
        """Where each form with each arrangement of axes begins."""
        self._settle()
        return self._first_of_axes

    def _settle(self) -> None:
        """Find the cheapest start, once somebody asks for what follows from it: whether there is a space is known at
        once, this takes half a second of a contraction."""
        if self._is_settled:
            return
        taken = self._taken()  # may wait
        self._is_settled = True  # what looks for it uses the prior's choice
        self._first = taken or self._cheapest(self._first)
        self._first_of_axes[self._first.form, self._first.axes] = self._first
        for what in ("completed", "values", "place"):  # what follows from the start follows from another one now
            self._known.pop(what, None)

    def _taken(self) -> TileParameters | None:
        """What another process found, if it did."""
        try:
            return self.parameters(self._found()) if self._found is not None else None
        except (KcgError, TimeoutError) as error:  # whatever became of that process
            log.debug("no start came from another process: %s", error)
        except Exception as error:
            report("where tile programs begin, in another process,", error)
        return None

    # the tree of steps

    def start(self) -> Schedule:
        """The analytic prior's choice; of a contraction the cheapest that is found from there by analytic cost."""
        return schedule_of(self._start)

    def baseline(self) -> Schedule:
        """tinygrad's own schedule, of another kind."""
        return baseline_of(self.region, self.target)

    def prior(self) -> list[Schedule]:
        """The start, then the prior's choice for each other form and arrangement of axes, the cheapest first."""
        start = self._start
        others = [base for base in self._bases.values() if base != start]
        others.sort(key=lambda base: predicted_seconds(self.kernel, self.target, base))
        return list(self._distinct(set(), [start, *others]))

    def actions(self, schedule: Schedule) -> list[Action]:
        """Another form or other axes, from the start; else another value of a parameter that was not decided yet."""
        return list(self._kept("actions", schedule, lambda: self._actions(self.parameters(schedule))))

    def variants(self, schedule: Schedule) -> list[Schedule]:
        """With another value of one parameter that was decided, or without that decision."""
        p = self.parameters(schedule)
        place = self._place(p)
        found = []
        for number in range(place + 1):
            field = FIELDS[number]
            if getattr(self._completed(p, number), field) == getattr(p, field):
                continue  # it was not decided, but followed
            found += [self._followed(p, number, value) for value in self._values(p, number)]
        return self._programs(p, found)

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        """All that differ in one parameter, the variants first; with another form or other axes what the prior has."""
        p = self.parameters(schedule)
        found = [self.parameters(s) for s in self.variants(schedule)]
        for number, field in enumerate(FIELDS):
            values = self._values(p, number)
            found += [p.changed(**{field: value}) for value in values]
            found += [self._followed(p, number, value) for value in values]
        others = [base for axes, base in self._bases.items() if axes != (p.form, p.axes)]
        found += [base.changed(fast_math=base.fast_math and p.fast_math) for base in others]
        return self._programs(p, found)

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        """One of the actions, each equally likely; None where there is none."""
        actions = self.actions(self.start() if schedule is None else schedule)
        return rng.choice(actions).schedule if actions else None

    def uniform(self, rng: random.Random) -> Schedule | None:
        """See `kcg.kernel.tile.uniform`."""
        found = self._uniform.draw(rng)
        return None if found is None else schedule_of(found)

    def count(self) -> float:
        """About how many legal programs there are."""
        return self._uniform.count

    @functools.cached_property
    def _uniform(self) -> Uniform:
        return Uniform(self.kernel, self.target)

    def random(self, rng: random.Random) -> Schedule:
        """Any program, parameter after parameter at random: a baseline of searches."""
        return schedule_of(random_parameters(self.kernel, self.target, rng))

    # similar kernels

    def transfer(self, schedule: Schedule, other: object) -> Schedule | None:
        """The same parameters here; None where they are not legal."""
        try:
            self.check(schedule)
        except ScheduleError:
            return None
        return schedule

    def family(self) -> Hashable:
        """Equal for kernels of as many ranges that are read and computed alike: the forms and axes that they may have,
        the formats of operands and result, and how far in which direction each load steps."""
        contraction = self.kernel.contraction
        operands = tuple(side.dtype.name for side in contraction.sides) if contraction else ()
        steps = [affine(load.address) for load in self.kernel.loads]
        ranges = (*self.kernel.outputs, *self.kernel.reduce_ranges)
        beside = tuple(None if s is None else tuple(_kind_of_step(s.get(r, 0)) for r in ranges) for s in steps)
        forms = tuple(sorted(self._bases))
        return (ScheduleKind.TILE, forms, operands, self.kernel.store.buffer.dtype.name, beside)

    # identities

    def key(self, schedule: Schedule) -> str:
        """Hash of the program's text and of what the compiler is told beside it."""
        return self._kept("key", schedule, lambda: self._text(self.parameters(schedule)))

    def alike(self, schedule: Schedule) -> str:
        """As the key: a parameter that hardly matters is no candidate."""
        return self.key(schedule)

    def groups(self, schedule: Schedule) -> tuple[int, ...]:
        """Traits, 1 or 0 each, that a cost model may misjudge alike."""
        p = self.parameters(schedule)
        form = form_of(p)
        wide, long = (p.tile and max(p.tile) >= 256), p.reduce_tile >= 128
        flags = (
            p.loads == TMA, p.persistent > 0, p.persistent > 1, p.epilogue_parts > 1, p.warp_specialize, p.split > 1,
            p.tail > 1, p.num_warps >= 8, p.num_warps >= 16, p.num_stages <= 2, p.num_stages >= 4, p.group > 1, wide,
            long, math.prod(p.tile) >= 32_768, p.axes == self._start.axes, form.start_at is Start.WALKED,
            p.fast_math, form.in_gluon,
            p.precision != "ieee", p.read_early, bool(p.evict_first), bool(p.evict_last), p.maxnreg > 0,
            p.unpacked > 4,
        )  # fmt: skip
        return tuple(int(bool(flag)) for flag in flags)

    def tile(self, schedule: Schedule) -> Hashable:
        """Form, axes and tile: what one program computes."""
        p = self.parameters(schedule)
        return (p.form, p.axes, p.tile, p.reduce_tile, p.split)

    # what predictors see

    def loop_nests(self, schedules: Sequence[Schedule]) -> NoReturn:
        """Raises ScheduleError: what predictors learned of Opts does not hold for tile programs."""
        raise ScheduleError("a tile program has no loop nest: the analytic cost judges it")

    def action_features(self, schedule: Schedule, actions: Sequence[Action] | None = None) -> NoReturn:
        """Raises ScheduleError, as `loop_nests`."""
        raise ScheduleError("a step to a tile program has no features: no policy has learned them")

    def refusals(self, schedules: Sequence[Schedule]) -> list[float]:
        """How likely each needs more shared memory than there is: an estimate near the limit may be wrong."""
        return [self._refusal(self.parameters(schedule)) for schedule in schedules]

    def cost(self, schedule: Schedule) -> Cost:
        """By instructions, bytes and waves: see `kcg.kernel.tile.cost`."""
        return cost_of(self.kernel, self.target, self.parameters(schedule))

    words = WORDS

    def seen(self, schedule: Schedule) -> Seen:
        """See `kcg.kernel.tile.seen`."""
        return seen(plan_of(self.kernel, self.target, self.parameters(schedule)), self.target)

    def suspects(self, schedule: Schedule) -> Mapping[Hashable, float]:
        """The value of each parameter."""
        return suspects(self.parameters(schedule))

    # what becomes of a schedule

    def parameters(self, schedule: Schedule) -> TileParameters:
        """The parameters of a schedule. Raises ScheduleError where it is none of this kind."""
        if schedule.kind != ScheduleKind.TILE:
            raise ScheduleError(f"a schedule of kind {schedule.kind!r} is no tile program")
        return self._kept("parameters", schedule, lambda: TileParameters.from_json(schedule.body))

    def check(self, schedule: Schedule) -> None:
        """Raises ScheduleError where the parameters are not legal for this kernel on this target."""
        p = self.parameters(schedule)
        if not self._legal(p):
            raise UnsupportedTile("parameters", f"{described(p)} is not legal for this kernel on this target")
        self.key(schedule)

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Program:
        """The program. Raises ScheduleError or the compiler's own error."""
        from kcg.kernel.tile.compile import compile_tile

        return compile_tile(self.region, schedule, self.target, variables=variables, also=also)

    def exact(self, schedule: Schedule) -> Schedule | None:
        """The same with functions in full accuracy, where it has others: what remains if it proves wrong."""
        return self._kept("exact", schedule, lambda: self._exact(self.parameters(schedule)))

    def _exact(self, p: TileParameters) -> Schedule | None:
        differs = p.fast_math and False in self._possible(p, FIELDS.index("fast_math"))
        return schedule_of(p.changed(fast_math=False)) if differs else None

    def name(self, schedule: Schedule) -> str:
        """`tile 128x256x64, tma, persistent, 8 warps, 3 stages`."""
        return described(self.parameters(schedule))

    def legend(self, schedule: Schedule) -> str:
        """What it does, in words."""
        return describe(plan_of(self.kernel, self.target, self.parameters(schedule)))

    def _cheapest(self, p: TileParameters) -> TileParameters:
        """Downhill by cost, one parameter at a time, among the values that the cost was fitted on, from the prior's
        choice and from the tiles that are cheapest with all else as it follows."""
        if form_of(p).start_at is Start.PRIOR:
            return p
        costs = functools.cache(lambda made: predicted_seconds(self.kernel, self.target, made))
        found = self._starting(Start.WALKED)
        for number in (FIELDS.index("persistent"), FIELDS.index("tile")):
            found += [self._followed(one, number, value) for one in found for value in self._values(one, number)]
        familiar = [one for one in dict.fromkeys(found) if form_of(one).is_familiar(one, p) and self._legal(one)]
        begin = {(one.axes, one.tile): one for one in sorted(familiar, key=costs, reverse=True)}
        ends = [self._downhill(one, costs) for one in [p, *sorted(begin.values(), key=costs)[:BEGINNINGS]]]
        return min([*ends, *self._starting(Start.COMPARED)], key=costs)

    def _starting(self, at: Start) -> list[TileParameters]:
        """Where the forms begin whose searches start so."""
        return [base for base in self._bases.values() if form_of(base).start_at is at]

    def _downhill(self, p: TileParameters, costs: Callable[[TileParameters], float]) -> TileParameters:
        seen = {p: None}  # in order: of equal costs the first is taken, in every process the same
        while True:
            for number, field in enumerate(FIELDS):
                for value in self._values(p, number):
                    made = (p.changed(**{field: value}), self._followed(p, number, value))
                    seen |= dict.fromkeys(m for m in made if form_of(m).is_familiar(m, self._start) and self._legal(m))
            best = min(seen, key=costs)
            if best == p:
                return p
            p = best

    # ---- the order of decisions

    def _actions(self, p: TileParameters) -> list[Action]:
        found, seen = [], {self._text(p)}
        if p == self._start:
            for base in self._bases.values():
                if base != p and (text := self._text(base)) not in seen:
                    seen.add(text)
                    found.append(Action(label("axes", (base.form, base.axes)), schedule_of(base)))
        for number in range(self._place(p) + 1, len(FIELDS)):
            for value in self._values(p, number):
                child = self._followed(p, number, value)
                if (text := self._text(child)) not in seen:
                    seen.add(text)
                    found.append(Action(label(FIELDS[number], value), schedule_of(child)))
        return found

    def _place(self, p: TileParameters) -> int:
        """Which parameter was decided last: all after it are as they follow; -1 where none was."""
        return self._kept("place", p, lambda: self._last_decided(p))

    def _last_decided(self, p: TileParameters) -> int:
        for number in range(len(FIELDS), 0, -1):
            if self._completed(p, number - 1) != p:
                return number - 1
        return -1

    def _followed(self, p: TileParameters, number: int, value: Any) -> TileParameters:
        """With another value of a parameter, and all after it as they follow."""
        return self._completed(p.changed(**{FIELDS[number]: value}), number + 1)

    def _completed(self, p: TileParameters, number: int) -> TileParameters:
        """The parameters before the given place as they are, all others as they follow."""
        return self._kept("completed", _prefix(p, number), lambda: self._complete(p, number))

    def _complete(self, p: TileParameters, number: int) -> TileParameters:
        base = self._bases.get((p.form, p.axes))
        if base is None:
            raise UnsupportedTile("axes", "the kernel has no such form with these axes")
        if _prefix(p, number) == _prefix(base, number):
            return base
        made = p.changed(**{field: getattr(base, field) for field in FIELDS[number:]})
        for place in range(number, len(FIELDS)):
            field = FIELDS[place]
            if (value := self._preferred(made, base, place)) != getattr(made, field):
                made = made.changed(**{field: value})
        return made

    def _preferred(self, p: TileParameters, base: TileParameters, place: int) -> Any:
        """What follows for a parameter from those before it: the value nearest to the prior's that is possible."""
        field = FIELDS[place]
        wanted = getattr(base, field)
        if is_possible(self.kernel, self.target, p, field, wanted):
            return wanted
        candidates = self._possible(p, place)
        numbers = [v for v in candidates if isinstance(v, int)]
        if not numbers or not isinstance(wanted, int):
            return candidates[0] if candidates else wanted
        return min(numbers, key=lambda v: (abs(math.log2(1 + v) - math.log2(1 + wanted)), v))

    def _possible(self, p: TileParameters, place: int) -> tuple[Any, ...]:
        return legal_values(self.kernel, self.target, p, FIELDS[place])

    def _values(self, p: TileParameters, number: int) -> list[Any]:
        """The other values that a parameter may have, with those before it as they are."""
        make = lambda: self._possible(self._completed(p, number), number)  # noqa: E731
        values = self._kept("values", _prefix(p, number), make)
        return [v for v in values if v != getattr(p, FIELDS[number])]

    # ---- legality, identity, memory

    def _legal(self, p: TileParameters) -> bool:
        return self._kept("legal", p, lambda: self._allowed(p))

    def _allowed(self, p: TileParameters) -> bool:
        base = self._bases.get((p.form, p.axes))
        return base is not None and (p == base or is_legal(self.kernel, self.target, p))

    def _text(self, p: TileParameters) -> str:
        return self._kept("text", p, lambda: self._hash(p))

    def _hash(self, p: TileParameters) -> str:
        made = generate_kernel(self.kernel, self.target, p, named=False)
        options = [(one.entry, one.grid, one.num_warps, one.num_stages, one.maxnreg) for one in made.launches]
        return hashlib.sha256(f"{made.source}{options}".encode()).hexdigest()

    def _programs(self, p: TileParameters, found: Sequence[TileParameters]) -> list[Schedule]:
        """Those that are legal, as schedules, each program once and without `p` itself."""
        return list(self._distinct({self._text(p)}, found))

    def _distinct(self, seen: set[str], found: Sequence[TileParameters]) -> Iterator[Schedule]:
        for one in dict.fromkeys(found):
            if self._legal(one) and (text := self._text(one)) not in seen:
                seen.add(text)
                yield schedule_of(one)

    def _refusal(self, p: TileParameters) -> float:
        if form_of(p).start_at is not Start.WALKED:
            return 0.0
        share = plan_of(self.kernel, self.target, p).shared_bytes / device_of(self.target).shared_bytes
        return 1 / (1 + math.exp(-(share - 1) / CROWDED)) if share > 1 - 4 * CROWDED else 0.0

    def _kept(self, what: str, key: Any, make: Callable[[], V]) -> V:
        known = self._known.setdefault(what, {})
        if key not in known:
            if len(known) >= SCHEDULES_KEPT:
                known.clear()
            known[key] = make()
        found: V = known[key]
        return found


def _prefix(p: TileParameters, number: int) -> tuple[Any, ...]:
    """Form, axes, and the values of so many parameters."""
    return (p.form, p.axes, *(getattr(p, field) for field in FIELDS[:number]))


def _kind_of_step(step: int) -> int:
    """0, 1, or 2 for any other distance."""
    return min(abs(step), 2)
