"""Replay tables: which kernels get one, and how one is made: BEAM, then a lattice around its winners, all measured.

No predictor has a say in it, so that any search can be compared on the tables.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcg.campaign.sampling import Drawn, KernelState, Known, beam_winner, keys_of, space_of
from kcg.campaign.tasks import KernelTask, Key, in_order
from kcg.dataset.journal import Journal
from kcg.errors import DataError, ScheduleError
from kcg.kernel.analysis import least_bytes, operations
from kcg.kernel.codec import ast_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.roofline import Roofline
from kcg.search.problem import Observation
from kcg.search.replay import NamedTable, Record, ReplayTable
from kcg.types import (
    RAW,
    Action,
    Measurement,
    Opt,
    Region,
    Schedule,
    ScheduleKind,
    Status,
    Target,
    Workload,
    WorkloadCall,
    canonical_json,
)

# ---- A part of a kernel's space that is small enough to be measured completely: what a replay table is made of.
#
# The space itself cannot be exhausted (a matmul has over 200,000 schedules of four Opts). A lattice is declared by a
# few schedules that it must contain, such as the hand-coded one and BEAM's winners, and by a sub-list of actions: those
# that lead to these schedules, then others drawn at random. It holds every schedule that these actions reach, the
# nearest to the given ones first, up to a limit; with each schedule a way to it is inside. "Optimum" always means of
# the lattice.

LIMIT = 1000
MOST_ACTIONS = 40  # so many at most, whatever the space offers
MOST_REPEATS = 2  # of an action that was drawn


@dataclass(frozen=True)
class Lattice:
    """The declaration: the actions, and every schedule with the steps from it that stay inside."""

    actions: tuple[Opt, ...]
    steps: dict[Schedule, tuple[Action, ...]]
    keys: dict[Schedule, str]
    baseline: Schedule  # the schedule of the lattice that is tinygrad's own choice


def prefixes(schedule: Schedule) -> list[Schedule]:
    """The schedule after each of its Opts, the unoptimised one first."""
    opts = schedule.opts
    return [Schedule.from_opts(opts[:n]) for n in range(len(opts) + 1)]


def lattice(space: KernelSpace, given: Sequence[Schedule], *, rng: random.Random, limit: int = LIMIT) -> Lattice:
    """The lattice around `given`, each of which must apply; the hand-coded schedule is always among them.

    An action may be taken as often as a given schedule has it. Where the given ones take a step that the space does
    not offer, the schedules on their way are inside all the same. Raises ScheduleError where one does not apply.
    """
    wanted = [space.baseline(), *given]
    growth = _Growth(space, wanted, limit)
    growth.fill()
    others = growth.others()
    rng.shuffle(others)
    while len(growth.by_key) < limit and len(growth.most) < MOST_ACTIONS and others:
        growth.declare(others.pop())
        growth.fill()
    growth.add_ways(wanted)
    steps = {
        schedule: tuple(
            Action(str(opt), growth.by_key[to])
            for opt, to in growth.edges.get(key, {}).items()
            if to in growth.by_key and to != key
        )
        for key, schedule in growth.by_key.items()
    }
    keys = {schedule: key for key, schedule in growth.by_key.items()}
    return Lattice(tuple(growth.most), steps, keys, growth.by_key[space.key(space.baseline())])


class _Growth:
    """A lattice in the making: best-first from the unoptimised kernel by the distance from the given schedules."""

    def __init__(self, space: KernelSpace, given: Sequence[Schedule], limit: int) -> None:
        self.space, self.limit = space, limit
        self.near = {space.key(p): p for schedule in given for p in prefixes(schedule)}
        self.most: Counter[Opt] = Counter()
        for schedule in given:
            self.most |= Counter(schedule.opts)
        self.by_key: dict[str, Schedule] = {}
        self.edges: dict[str, dict[Opt, str]] = {}
        self._waiting: list[tuple[int, int, int, str, Schedule]] = []
        self._queued: set[str] = set()
        self._offer(RAW, space.key(RAW), 0)

    def _offer(self, schedule: Schedule, key: str, distance: int) -> None:
        if key in self._queued:
            return
        self._queued.add(key)
        entry = (0 if key in self.near else distance, len(schedule.opts), len(self._queued), key, schedule)
        heapq.heappush(self._waiting, entry)

    def fill(self) -> None:
        """Take in what the actions reach, the nearest first, until there is nothing more or the limit is met."""
        while self._waiting and len(self.by_key) < self.limit:
            distance, _, _, key, schedule = heapq.heappop(self._waiting)
            self.by_key[key] = schedule
            for opt in self.most:
                self._follow(key, opt, distance)

    def _follow(self, key: str, opt: Opt, distance: int) -> None:
        schedule, edges = self.by_key[key], self.edges.setdefault(key, {})
        if opt in edges or schedule.opts.count(opt) >= self.most[opt]:
            return
        child = self.space.step(schedule, opt)
        if child is not None:
            edges[opt] = self.space.key(child)
            self._offer(child, edges[opt], distance + 1)

    def declare(self, opt: Opt) -> None:
        """One action more."""
        self.most[opt] = MOST_REPEATS
        for key in list(self.by_key):
            self._follow(key, opt, 0 if key in self.near else 1)

    def others(self) -> list[Opt]:
        """Actions that are legal from one of the given schedules or on its way, and not declared."""
        found = {action.schedule.opts[-1] for near in self.near.values() for action in self.space.actions(near)}
        return sorted(found - set(self.most), key=str)

    def add_ways(self, wanted: Sequence[Schedule]) -> None:
        """Put every given schedule inside with the way to it, if a step that the space does not offer kept it out."""
        for schedule in wanted:
            way = prefixes(schedule)
            for before, after in itertools.pairwise(way):
                first, second = self.space.key(before), self.space.key(after)
                self.by_key.setdefault(second, after)
                self.edges.setdefault(first, {}).setdefault(after.opts[-1], second)


log = logging.getLogger(__name__)

WIDTHS = (1, 2, 4)  # of the BEAM searches whose winners a lattice contains
MOST_SCHEDULES = 1200  # of these searches together
FLUX_SHARE = 1 / 3
FORMAT = "kcg-lattice-1"
KEY_DIGITS = 16  # of keys and binaries in a table: enough to tell a thousand apart
LATTICE = "lattice"  # the sampler of what is measured because it is in a lattice
MOST_OPERATIONS = 6e10  # of the kernels that get a table: a thousand schedules without tensor cores take minutes

BEAMS = tuple((f"beam:{width}", 1 / len(WIDTHS)) for width in WIDTHS)


def table_calls(workloads: Iterable[Workload], count: int, *, seed: int) -> list[WorkloadCall]:
    """The kernels that get a table: a third of Flux, from its smallest to its largest; the others from all families in
    turn, real programs before synthetic ones. Kernels with variables, and the largest, have none."""
    families: dict[str, dict[Key, WorkloadCall]] = {}
    for workload in workloads:
        for call in workload.calls:
            if not call.variables and operations(ast_of(call.region.kernel)) <= MOST_OPERATIONS:
                families.setdefault(workload.name, {}).setdefault((call.region.id, ()), call)
    flux = sorted(families.pop("flux", {}).values(), key=lambda call: least_bytes(ast_of(call.region.kernel)))
    wanted = min(len(flux), round(count * FLUX_SHARE)) if families else count
    spread = [flux[round(i * (len(flux) - 1) / max(wanted - 1, 1))] for i in range(wanted)] if flux else []
    chosen = {call.region.id: call for call in spread}
    rows = {name: in_order(calls, seed=seed) for name, calls in families.items()}
    names = sorted(rows, key=lambda name: (name.startswith("synthetic_"), name))
    while len(chosen) < count and any(rows.values()):
        for name in names:
            if rows[name] and len(chosen) < count:
                call = rows[name].pop(0)
                chosen.setdefault(call.region.id, call)
    return list(chosen.values())


@dataclass(frozen=True)
class LatticeJob:
    """A kernel and what its BEAM searches measured."""

    region: Region
    target: Target
    known: tuple[Known, ...]  # what was measured
    seed: str
    limit: int


@dataclass(frozen=True)
class LatticeDrawn(Drawn):
    """What of a lattice is still to be measured, and its declaration, as JSON."""

    declaration: str = ""


def draw_lattice(job: LatticeJob) -> LatticeDrawn:
    """In a compiling child: the lattice, and its schedules of which no binary was measured."""
    try:
        space = space_of(job.region, job.target)
        keys = keys_of(space, job.known)
        times = {key: k.time_s for key, k in zip(keys, job.known, strict=True) if key}
        state = KernelState(space, Roofline(), times)
        winners = [winner for width in WIDTHS if (winner := beam_winner(state, width)) is not None]
        made = lattice(space, winners, rng=random.Random(job.seed), limit=job.limit)
    except ScheduleError as error:
        return LatticeDrawn((), ("",) * len(job.known), frozenset(), str(error))
    batch = tuple((schedule, LATTICE, key) for schedule, key in made.keys.items() if key not in times)
    measured = {key: k.schedule for key, k in zip(keys, job.known, strict=True)}
    return LatticeDrawn(batch, keys, frozenset(), "", declaration=_declaration(made, measured))


def _declaration(made: Lattice, measured: Mapping[str, Schedule]) -> str:
    """A lattice as JSON: its actions, its schedules, and the steps from each as pairs of places. Of several schedules
    that are the same kernel, the one that was measured stands for all."""
    places = {schedule: place for place, schedule in enumerate(made.steps)}
    actions = {str(opt): place for place, opt in enumerate(made.actions)}
    return canonical_json(
        {
            "format": FORMAT,
            "actions": list(actions),
            "baseline": places[made.baseline],
            "start": places[RAW],
            "schedules": [json.loads(measured.get(made.keys[s], s).body) for s in places],
            "keys": [made.keys[s][:KEY_DIGITS] for s in places],
            "steps": [[[actions[a.label], places[a.schedule]] for a in steps] for steps in made.steps.values()],
        }
    )


def replay_table(declaration: str, rows: Iterable[Measurement]) -> ReplayTable:
    """The table of a declared lattice from what was measured. Raises DataError where a schedule has no measurement."""
    values = json.loads(declaration)
    if values["format"] != FORMAT:
        raise DataError(f"a lattice of format {values['format']!r}: this kcg reads {FORMAT!r}")
    seen: dict[Schedule, Measurement] = {}
    for row in rows:
        seen.setdefault(row.schedule, row)
    schedules = _schedules(values)
    if missing := [s for s in schedules if s not in seen]:
        raise DataError(f"{len(missing)} of {len(schedules)} schedules of the lattice are not measured")
    records = []
    for schedule, key, steps in zip(schedules, values["keys"], values["steps"], strict=True):
        row = seen[schedule]
        runtime_s = row.median_s if row.status == Status.OK else None
        observation = Observation(schedule, row.status, runtime_s, row.binary_hash[:KEY_DIGITS], row.reason)
        actions = tuple(Action(values["actions"][label], schedules[to]) for label, to in steps)
        records.append(Record(key, observation, actions))
    return ReplayTable(records, start=schedules[values["start"]], baseline=schedules[values["baseline"]])


def _schedules(declared: Mapping[str, Any]) -> list[Schedule]:
    return [Schedule(ScheduleKind.OPTS, canonical_json(body)) for body in declared["schedules"]]


class TableTask(KernelTask):
    """A kernel that gets a table: complete BEAM searches first, then what else is in the lattice."""

    fill = False  # a lattice is around what BEAM measures, and around nothing else

    def __init__(
        self,
        call: WorkloadCall,
        target: Target,
        *,
        seed: int,
        limit: int,
        most: int = 64,
        known: Iterable[Measurement] = (),
        declaration: str = "",
    ) -> None:
        super().__init__(call, target, wanted=MOST_SCHEDULES, mix=BEAMS, seed=seed, most=most, known=known)
        self._limit = limit
        self.declaration = declaration  # of the lattice, once it is drawn
        self.exhausted = self.exhausted or bool(declaration)
        self._tried = bool(declaration)

    @property
    def waiting(self) -> list[tuple[Schedule, str]]:
        """What an earlier run declared and did not measure."""
        declared = _schedules(json.loads(self.declaration)) if self.declaration else []
        return [(schedule, LATTICE) for schedule in declared if schedule not in self.known]

    def next_draw(self) -> tuple[Callable[..., Drawn], object] | None:
        if (more := super().next_draw()) is not None or self._tried:
            return more
        self._tried = True
        return draw_lattice, LatticeJob(
            self.call.region, self.target, tuple(self.known.values()), f"{self.seed}:lattice", self._limit
        )

    def drawn(self, answer: Drawn) -> list[tuple[Schedule, str]]:
        batch = super().drawn(answer)
        if isinstance(answer, LatticeDrawn):
            self.declaration, self.exhausted = answer.declaration, True
        return batch


def tables_of(journal: Journal) -> list[NamedTable]:
    """Every replay table of a journal that is complete; a lattice that is not all measured yet has none."""
    found = []
    for target in journal.targets():
        for toolchain in journal.toolchains():
            for region_id, declaration in journal.lattices(target, toolchain).items():
                rows = journal.known(target, toolchain, PROTOCOL, region_id=region_id)
                try:
                    table = replay_table(declaration, (row for row in rows if row.early_stop))
                except DataError as error:
                    log.warning("no replay table of %s: %s", region_id[:12], error)
                    continue
                actions = tuple(json.loads(declaration)["actions"])
                found.append(NamedTable(region_id, target, toolchain, actions, table))
    return found
