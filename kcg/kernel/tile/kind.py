"""The kind `tile`: programs generated from a kernel, see docs/tiles.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_type_hints

from kcg.compat.assembler import PATH_VARIABLE, assembler
from kcg.errors import ScheduleError
from kcg.kernel.kinds import Tools, Traits, Unsupported
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.compile import compile_tile, kept_tile
from kcg.kernel.tile.forms import form_of, plan_of
from kcg.kernel.tile.joining import expected_saving_s
from kcg.kernel.tile.parameters import TF32, TileParameters
from kcg.kernel.tile.plan import needs_stress, workspace_bytes
from kcg.kernel.tile.targets import missing, supported, triton_version
from kcg.kernel.tile.words import described, labels
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables

if TYPE_CHECKING:
    from kcg.kernel.program import Program
    from kcg.kernel.regions import Candidate
    from kcg.kernel.seen import Words
    from kcg.kernel.tile.space import TileSpace

LONGEST_BODY = 4096  # characters


class TileKind:
    """See `kcg.kernel.kinds.Kind`."""

    name = ScheduleKind.TILE
    noun = "tile program"

    @property
    def words(self) -> Words:
        """What predictors see of its schedules, by name."""
        from kcg.kernel.tile.seen import WORDS

        return WORDS

    def parse(self, body: str) -> Schedule:
        """Parameters as canonical JSON, every field checked; whether a kernel allows them is its space's to say."""
        if len(body) > LONGEST_BODY:
            raise ScheduleError("its body is too long for the parameters of a tile program")
        if TileParameters.from_json(body).to_json() != body:
            raise ScheduleError("its body is not in canonical form")
        return Schedule(ScheduleKind.TILE, body)

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> TileSpace | Unsupported:
        """The tile programs of one kernel, where this machine can compile for the target."""
        from kcg.kernel.tile.space import TileSpace

        if problem := missing(target):
            return Unsupported(problem)
        try:
            return TileSpace(region, target, replace(read_region(region), allows_tf32=allow_tf32))
        except UnsupportedTile as unsupported:
            return Unsupported(str(unsupported))

    def tools(self, target: Target) -> Tools:
        """Triton and its assembler."""
        if not supported(target):
            return Tools(missing=missing(target), possible=False)
        using, problem = assembler(), missing(target)
        if problem or using is None:
            return Tools(missing=problem, assembler="" if using is None else using.name)
        advice = (
            ""
            if using.trusted
            else "before 13 it turns some right programs into faults and NaN: install CUDA 13's, or set "
            f"{PATH_VARIABLE}"
        )
        return Tools(f"Triton {triton_version()}, {using.name} ({using.path})", advice=advice, assembler=using.name)

    def traits(self, schedule: Schedule) -> Traits:
        """Its precision, and whether it is in Gluon: warps by what they do. The fastest in plain Triton is taken where
        it is about as fast."""
        return _traits(schedule.body)

    def needs_stress(self, region: Region, schedule: Schedule, target: Target) -> bool:
        """See `kcg.kernel.tile.plan.needs_stress`."""
        try:
            return needs_stress(plan_of(read_region(region), target, TileParameters.from_json(schedule.body)))
        except UnsupportedTile:  # no program is made of it
            return False

    def workspace_bytes(self, region: Region, schedule: Schedule, target: Target) -> int:
        """Partial sums, and what its launches hand on."""
        return workspace_bytes(plan_of(read_region(region), target, TileParameters.from_json(schedule.body)))

    def saving_s(self, candidate: Candidate, alone_s: Mapping[str, float], target: Target) -> float:
        """See `kcg.kernel.tile.joining`."""
        return expected_saving_s(candidate, alone_s, target)

    def kept(
        self, region: Region, schedule: Schedule, target: Target, *, variables: Variables, also: tuple[Variables, ...]
    ) -> Program | None:
        """See `kept_tile`."""
        return kept_tile(region, schedule, target, variables=variables, also=also)

    def parameter_types(self) -> dict[str, Any]:
        """Those of the fields of `TileParameters`."""
        return get_type_hints(TileParameters)

    def parameters(self, schedule: Schedule) -> dict[str, Any]:
        """The fields of `TileParameters`."""
        return dict(vars(TileParameters.from_json(schedule.body)))

    def describe(self, schedule: Schedule) -> str:
        """`tile 128x256x64, tma, persistent, 8 warps, 3 stages`."""
        return described(TileParameters.from_json(schedule.body))

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        """A label for each parameter, in the order in which a search decides them. From the start of a space only
        those are steps that differ from what follows by itself."""
        return labels(TileParameters.from_json(schedule.body))

    def compile(
        self,
        region: Region,
        schedule: Schedule,
        target: Target,
        *,
        variables: Variables = (),
        also: tuple[Variables, ...] = (),
    ) -> Program:
        """See `compile_tile`."""
        return compile_tile(region, schedule, target, variables=variables, also=also)


@functools.lru_cache(1 << 14)  # asked of every candidate of a region, with every estimate
def _traits(body: str) -> Traits:
    try:
        p = TileParameters.from_json(body)
    except ScheduleError:  # no program is made of it
        return Traits(as_program=True, own_assembler=True)
    return Traits(as_program=True, own_assembler=True, tf32=p.precision == TF32, second_choice=form_of(p).in_gluon)


KIND = TileKind()
