"""`python -m tests.optimize.judging_for_ever ARGUMENTS`: `kcg optimize`, to be ended while it judges.

Nothing is judged before the search is over. After the first verdict that something is faster it waits for ever.
tinygrad's own schedules are the unoptimised kernels, so that something is surely found. All that it says is said at
once.
"""

from __future__ import annotations

import math
import time
from unittest import mock

from kcg.cli import guarded
from kcg.judge.finalists import Judge
from kcg.judge.interface import Found
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.optimize import ahead, console, incumbent, live
from kcg.optimize.__main__ import main
from kcg.types import RegionResult
from tests.faults.bad_jobs import FOR_EVER_S

if __name__ == "__main__":
    seen, compare_found = list[str](), Judge.compare_found

    def compared(judge: Judge, work: Found) -> RegionResult | None:
        if "improved" in seen:
            time.sleep(FOR_EVER_S)
        row = compare_found(judge, work)
        seen.append("" if row is None else row.outcome)
        return row

    with (
        mock.patch.object(KernelSpace, "baseline", lambda space: RAW),
        mock.patch.object(Judge, "compare_found", compared),
        mock.patch.object(ahead, "FIRST", math.inf),
        mock.patch.object(incumbent, "SHARE", 1.0),  # no verdict comes too soon after one that noise decided
        mock.patch.object(console, "LINE_INTERVAL_S", 0.0),
        mock.patch.object(live, "INTERVAL_S", 0.0),
    ):
        guarded(main)
