"""The kind `tile`: programs generated from a kernel, see docs/tiles.md."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kcg.errors import ScheduleError
from kcg.kernel.kinds import Refusal
from kcg.kernel.parts import parts_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.fuse import read_region
from kcg.kernel.tile.generate import has_several_products
from kcg.kernel.tile.parameters import ATTENTION, CONTRACTIONS, IN_GLUON, TF32, TMA, TileParameters
from kcg.kernel.tile.program import TileRefusal
from kcg.kernel.tile.targets import missing
from kcg.kernel.tile.words import described, labels
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables

if TYPE_CHECKING:
    from kcg.kernel.program import Program
    from kcg.kernel.tile.space import TileSpace

LONGEST_BODY = 4096  # characters


class TileKind:
    """See `kcg.kernel.kinds.Kind`."""

    name = ScheduleKind.TILE

    def parse(self, body: str) -> Schedule:
        """Parameters as canonical JSON, every field checked; whether a kernel allows them is its space's to say."""
        if len(body) > LONGEST_BODY:
            raise ScheduleError("its body is too long for the parameters of a tile program")
        if TileParameters.from_json(body).to_json() != body:
            raise ScheduleError("its body is not in canonical form")
        return Schedule(ScheduleKind.TILE, body)

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> TileSpace | Refusal:
        """The tile programs of one kernel, where this machine can compile for the target."""
        from kcg.kernel.tile.space import TileSpace

        if problem := missing(target):
            return Refusal(problem)
        try:
            return TileSpace(region, target, replace(read_region(region), allows_tf32=allow_tf32))
        except TileRefusal as refusal:
            return Refusal(str(refusal))

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


def is_delicate(region: Region, schedule: Schedule) -> bool:
    """Whether a schedule of a region is a tile program of asynchronous copies by TMA, of specialised warps, or of
    several products: what is chosen of these has to run very often before it is believed (docs/tiles.md)."""
    if schedule.kind != ScheduleKind.TILE:
        return False
    p = TileParameters.from_json(schedule.body)
    if p.loads == TMA or p.warp_specialize or p.form in (*ATTENTION, *IN_GLUON):
        return True
    try:
        return p.form in CONTRACTIONS and has_several_products(read_region(region), p)
    except TileRefusal:  # no program is made of it
        return False


def is_in_gluon(schedule: Schedule) -> bool:
    """Whether a tile program is written in Gluon: warps by what they do."""
    try:
        return schedule.kind == ScheduleKind.TILE and TileParameters.from_json(schedule.body).form in IN_GLUON
    except ScheduleError:  # no program is made of it
        return False


def rounds_to_tf32(schedule: Schedule) -> bool:
    """Whether a tile program of a schedule, or of its parts, rounds float32 operands of products to tf32."""
    try:
        if schedule.kind == ScheduleKind.PARTS:
            return any(rounds_to_tf32(part.schedule) for part in parts_of(schedule))
        return schedule.kind == ScheduleKind.TILE and TileParameters.from_json(schedule.body).precision == TF32
    except ScheduleError:  # no program is made of it
        return False


KIND = TileKind()
