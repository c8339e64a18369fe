"""The kind `opts`: tinygrad's Opts for a region of one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcg.kernel.kinds import Refusal
from kcg.kernel.opts.schedule import opts_of, parse
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables

if TYPE_CHECKING:
    from kcg.kernel.opts.space import KernelSpace
    from kcg.kernel.program import Compiled


class OptsKind:
    """See `kcg.kernel.kinds.Kind`."""

    name = ScheduleKind.OPTS

    def parse(self, body: str) -> Schedule:
        """`[[op, axis, argument], …]`, whether tinygrad has such an Opt or not."""
        return parse(body)

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> KernelSpace | Refusal:
        """What tinygrad's scheduler can do to one kernel."""
        if len(region.kernels) != 1:
            return Refusal("Opts are for one kernel, not for several")
        from kcg.kernel.opts.space import KernelSpace

        return KernelSpace(region, target)

    def describe(self, schedule: Schedule) -> str:
        """The Opts one after the other."""
        return " ".join(self.steps(schedule)) or "(none)"

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        """One for each Opt."""
        return tuple(map(str, opts_of(schedule)))

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


KIND = OptsKind()
