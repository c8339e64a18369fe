"""The kind `opts`: tinygrad's Opts for a region of one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcg.kernel.kinds import Tools, Traits, Unsupported
from kcg.kernel.opts.schedule import ops_and_arguments, opts_of, parse, schedule_of, shortened
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables

if TYPE_CHECKING:
    from kcg.compat.opts import Opt
    from kcg.kernel.kinds import Steps
    from kcg.kernel.opts.space import KernelSpace
    from kcg.kernel.program import Compiled


class OptsKind:
    """See `kcg.kernel.kinds.Kind`."""

    name = ScheduleKind.OPTS
    noun = ""

    def parse(self, body: str) -> Schedule:
        """`[[op, axis, argument], …]`, whether tinygrad has such an Opt or not."""
        return parse(body)

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> KernelSpace | Unsupported:
        """What tinygrad's scheduler can do to one kernel."""
        if len(region.kernels) != 1:
            return Unsupported("Opts are for one kernel, not for several")
        from kcg.kernel.opts.space import KernelSpace

        return KernelSpace(region, target)

    def tools(self, target: Target) -> Tools:
        """Nothing beside tinygrad."""
        return Tools()

    def traits(self, schedule: Schedule) -> Traits:
        """None: tinygrad makes its programs, of its own rows."""
        return Traits()

    def needs_stress(self, region: Region, schedule: Schedule, target: Target) -> bool:
        """No."""
        return False

    def workspace_bytes(self, region: Region, schedule: Schedule, target: Target) -> int:
        """None."""
        return 0

    def shortened(self, schedule: Schedule, by: int) -> Schedule:
        """Without its last Opts, `by` of them at most."""
        return shortened(schedule, by)

    def opts(self, schedule: Schedule) -> tuple[Opt, ...]:
        """They, in the order in which they apply. Raises as `opts_of`."""
        return opts_of(schedule)

    def of_opts(self, opts: Sequence[Opt]) -> Schedule:
        """The schedule that applies them in order."""
        return schedule_of(opts)

    def ops_and_arguments(self, schedule: Schedule) -> list[tuple[str, str]]:
        """Of each Opt its op and its argument. Raises as `opts_of`."""
        return ops_and_arguments(schedule)

    def variants(self, steps: Steps, schedule: Schedule) -> list[Schedule]:
        """See `kcg.kernel.opts.neighbours`."""
        from kcg.kernel.opts.neighbours import variants

        return variants(steps, schedule)

    def moved(self, steps: Steps, schedule: Schedule) -> list[Schedule]:
        """See `kcg.kernel.opts.neighbours`."""
        from kcg.kernel.opts.neighbours import moved

        return moved(steps, schedule)

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
