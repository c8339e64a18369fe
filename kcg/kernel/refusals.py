"""How likely the compiler refuses a schedule that tinygrad lets one choose, from the schedule state alone.

Two reasons are known, and neither can be learned well from the few failures of a dataset: a code of more than
`UOPS_MAX` micro-operations, of which there is a count beforehand that is a few per cent off, and a tensor core that
tinygrad 0.14.0 cannot lower.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kcg.kernel.axes import REDUCING, AxisTable
from kcg.kernel.compiler import UOPS_MAX
from kcg.types import Schedule

if TYPE_CHECKING:
    from kcg.kernel.space import KernelSpace

TOO_LONG_AT, TOO_LONG_WIDTH = 0.03, 0.02
"""Of `count_uops` over `UOPS_MAX`, as logarithms: where half are refused, and how fast that changes. Of the H200
dataset's training schedules 6 % are refused at 0.97, 8 % at 1.0, a third at 1.02."""
NEVER_LOWERED = 0.99


def refusal(space: KernelSpace, schedule: Schedule, uops: int | None = None) -> float:
    """The probability that compiling fails, 0 to 1; `uops` is `space.uops(schedule)`, where it is known.

    Raises ScheduleError where the schedule does not apply.
    """
    chance = too_long(space.uops(schedule) if uops is None else uops)
    table = space.table(schedule)
    if table.tensor_core and schedule.opts[0].op == "TC" and len(schedule.opts) > 1:
        alone = space.table(Schedule.from_opts(schedule.opts[:1]))
        if upcasts_both_factors(table, alone):
            chance = max(chance, NEVER_LOWERED)
    return chance


def too_long(uops: int) -> float:
    """The probability that a code counted at so many micro-operations has more than the compiler takes."""
    return 1 / (1 + math.exp(-(math.log(max(uops, 1) / UOPS_MAX) - TOO_LONG_AT) / TOO_LONG_WIDTH))


def upcasts_both_factors(table: AxisTable, alone: AxisTable) -> bool:
    """Whether every axis that was upcast beside those of the tensor core itself runs through both factors, as those of
    a batch do: tinygrad 0.14.0 then fails on an assertion about the shape of the matrix operation. One more that runs
    through a single factor, or an unrolled one, avoids it. `alone` is the table of the tensor core without other Opts.

    Right for 3,442 of 3,443 schedules with tensor cores of the H200 dataset.
    """
    upcast, of_core = [i for i, kind in enumerate(table.kinds) if kind == "UPCAST"], alone.kinds.count("UPCAST")
    more = upcast[of_core:]  # those of the tensor core were made first, and stand first
    if not more or table.kinds.count("UNROLL") > alone.kinds.count("UNROLL"):
        return False
    reduced = [i for i, kind in enumerate(table.kinds) if kind in REDUCING]
    factors = [a.used for a in table.accesses if not a.is_store and any(a.used[i] for i in reduced)]
    return len(factors) > 1 and all(used[i] for used in factors for i in more)
