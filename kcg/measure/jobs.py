"""What the parent asks of a child process and what comes back: small dataclasses, nothing of tinygrad."""

from __future__ import annotations

from dataclasses import dataclass

from kcg.kernel.compiled import Compiled
from kcg.types import CacheState, Region, Schedule, Target, Verification


@dataclass(frozen=True)
class CompileJob:
    region: Region
    schedule: Schedule
    target: Target
    variables: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class CompileOutcome:
    compiled: Compiled
    compile_s: float


@dataclass(frozen=True)
class TimeJob:
    """Time one binary. `samples=None` lets the protocol choose; `stop_above_s` ends after one slow sample."""

    region: Region
    compiled: Compiled
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    samples: int | None = None
    cache_state: CacheState = CacheState.COLD
    stop_above_s: float | None = None
    check_seed: int | None = 0  # verify one seed on the way; None only times


@dataclass(frozen=True)
class TimeOutcome:
    samples_s: tuple[float, ...]
    input_recipe: str
    wrong: str = ""  # why the output is wrong, if it is
    checked: bool = False
    clocks: tuple[tuple[str, float], ...] = ()
    tainted: bool = False  # the kernel wrote outside its buffers: nothing more of this child is to be trusted


@dataclass(frozen=True)
class DuelJob:
    """Re-time a finalist and the baseline in full, interleaved, cold and warm, and verify the finalist."""

    region: Region
    baseline: Compiled
    finalist: Compiled | None  # None re-times the baseline alone
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    samples: int | None = None


@dataclass(frozen=True)
class DuelOutcome:
    baseline_cold_s: tuple[float, ...]
    baseline_warm_s: tuple[float, ...]
    baseline_verification: Verification
    finalist_cold_s: tuple[float, ...] = ()
    finalist_warm_s: tuple[float, ...] = ()
    finalist_verification: Verification | None = None
    tainted: bool = False  # see TimeOutcome


@dataclass(frozen=True)
class TinyBeamJob:
    """tinygrad's own BEAM on one region, as the baseline it is."""

    region: Region
    target: Target
    width: int


@dataclass(frozen=True)
class TinyBeamOutcome:
    schedule: Schedule
    binaries: int  # unique binaries that BEAM timed
    wall_s: float
