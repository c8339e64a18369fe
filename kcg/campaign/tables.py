"""Replay tables: which kernels get one, and how one is made: BEAM, then a lattice around its winners, all measured.

No predictor has a say in it, so that any search can be compared on the tables.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kcg.campaign.samplers import KernelState, beam_winner
from kcg.campaign.sampling import Choice, Drawn, Known, keys_of, space_of
from kcg.campaign.tasks import Drawing, KernelTask, Key, in_order
from kcg.dataset.journal import Journal
from kcg.errors import DataError, ScheduleError
from kcg.kernel.analysis import least_bytes, operations
from kcg.kernel.codec import ast_of
from kcg.kernel.kinds import HasLattice, Lattice
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.roofline import Roofline
from kcg.search.problem import Observation
from kcg.search.replay import NamedTable, Record, ReplayTable
from kcg.types import (
    Action,
    Measurement,
    Region,
    Schedule,
    ScheduleKind,
    Status,
    Target,
    Workload,
    WorkloadCall,
    canonical_json,
)

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
            if len(call.region.kernels) > 1:
                continue  # nothing declares a lattice of these
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
        if not isinstance(space, HasLattice):
            raise ScheduleError("schedules of this kind have no lattice")
        made = space.lattice(winners, rng=random.Random(job.seed), limit=job.limit)
    except ScheduleError as error:
        return LatticeDrawn((), ("",) * len(job.known), frozenset(), str(error))
    batch = tuple(Choice(schedule, LATTICE, key) for schedule, key in made.keys.items() if key not in times)
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
            "start": places[made.start],
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
        super().__init__(call, target, wanted=MOST_SCHEDULES, mix=BEAMS, seed=seed, how=Drawing(most=most), known=known)
        self._limit = limit
        self.declaration = declaration  # of the lattice, once it is drawn
        self.exhausted = self.exhausted or bool(declaration)
        self._tried = bool(declaration)

    @property
    def waiting(self) -> list[Choice]:
        """What an earlier run declared and did not measure."""
        declared = _schedules(json.loads(self.declaration)) if self.declaration else []
        return [Choice(schedule, LATTICE, "") for schedule in declared if schedule not in self.known]

    def next_draw(self) -> tuple[Callable[..., Drawn], object] | None:
        if (more := super().next_draw()) is not None or self._tried:
            return more
        self._tried = True
        return draw_lattice, LatticeJob(
            self.call.region, self.target, tuple(self.known.values()), f"{self.seed}:lattice", self._limit
        )

    def drawn(self, answer: Drawn) -> list[Choice]:
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
