"""A duel as measurements: full samples of both sides, cold and warm, and the baseline once more as B.

The two trials of the baseline are what the noise floor of a kernel is read from (`kcg.dataset.noise`).
"""

from __future__ import annotations

from kcg.kernel.compiled import Compiled
from kcg.measure.jobs import DuelJob, DuelOutcome
from kcg.measure.protocol import PROTOCOL
from kcg.types import CacheState, Measurement, Schedule, Status

A_TRIAL, B_TRIAL = 1, 2
SAMPLER = "final"


def duel_rows(
    job: DuelJob, outcome: DuelOutcome, baseline: Schedule, finalist: Schedule | None, *, toolchain: str, run_id: str
) -> list[Measurement]:
    """The measurements of a duel whose sides were timed; none where they were not."""

    def row(
        schedule: Schedule, compiled: Compiled, samples_s: tuple[float, ...], state: CacheState, trial: int
    ) -> Measurement:
        return Measurement(
            region_id=job.region.id, schedule=schedule, target=job.target.fingerprint, toolchain=toolchain,
            protocol=PROTOCOL, status=Status.NOISY if outcome.noisy else Status.OK, cache_state=state,
            variables=job.variables, input_recipe=outcome.input_recipe, samples_s=() if outcome.noisy else samples_s,
            reason=outcome.noisy, binary_hash=compiled.binary_hash, checked=True, sampler=SAMPLER,
            launch=(compiled.global_size, compiled.local_size), run_id=run_id, trial=trial, clocks=outcome.clocks,
        )  # fmt: skip

    if not outcome.baseline_cold_s:
        return []
    rows = [
        row(baseline, job.baseline, outcome.baseline_cold_s, CacheState.COLD, A_TRIAL),
        row(baseline, job.baseline, outcome.again_cold_s, CacheState.COLD, B_TRIAL),
        row(baseline, job.baseline, outcome.baseline_warm_s, CacheState.WARM, A_TRIAL),
    ]
    if finalist is not None and job.finalist is not None:
        rows.append(row(finalist, job.finalist, outcome.finalist_cold_s, CacheState.COLD, A_TRIAL))
        rows.append(row(finalist, job.finalist, outcome.finalist_warm_s, CacheState.WARM, A_TRIAL))
    return rows
