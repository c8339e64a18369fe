"""What the parent asks of a child process and what comes back: small dataclasses, nothing of tinygrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcg.kernel.program import Executable
from kcg.types import CacheState, Region, Schedule, Target, Variables, Verification

if TYPE_CHECKING:
    from kcg.kernel.lowered import Lowered
    from kcg.measure.verify import References


@dataclass(frozen=True)
class CompileJob:
    """Compile once, for launches with `variables` and with each of `also`."""

    region: Region
    schedule: Schedule
    target: Target
    variables: Variables = ()
    also: tuple[Variables, ...] = ()
    lowered: Lowered | None = None  # what need not be lowered again


@dataclass(frozen=True)
class CompileOutcome:
    compiled: Executable
    compile_s: float


@dataclass(frozen=True)
class TimeJob:
    """Check one binary on one seed and time it. `samples=None` lets the protocol choose, few if `early_stop`."""

    region: Region
    compiled: Executable
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    samples: int | None = None
    early_stop: bool = False
    careful: bool = False  # then more, of a short kernel
    cache_state: CacheState = CacheState.COLD
    stop_above_s: float | None = None  # of a slower one one sample is kept
    stop_above_best: float | None = None  # the same as a multiple of the fastest of this kernel in the same child
    floor_s: float = 0.0  # what the hardware cannot beat: a faster one is measured again, and then rejected
    recheck_below_s: float = 0.0  # surprisingly fast: verified by more rules, and measured again
    check_seed: int | None = 0  # None only times
    references: References | None = None  # those of the check, where another process computed them


@dataclass(frozen=True)
class TimeOutcome:
    samples_s: tuple[float, ...]
    input_recipe: str
    wrong: str = ""  # why the output is wrong, if it is
    unjudged: str = ""  # why the reference cannot tell, if it cannot: no schedule of the kernel is judged then
    noisy: str = ""  # why no samples can be trusted, if none can
    checked: bool = False
    clocks: tuple[tuple[str, float], ...] = ()
    tainted: bool = False  # the kernel changed what is not its own: nothing more of this child is to be trusted
    spent_s: tuple[tuple[str, float], ...] = ()  # where the child's time went: load, check, sample


@dataclass(frozen=True)
class PairedJob:
    """Verify a finalist and the baseline by every rule and time them in full: interleaved, cold, then warm.

    The baseline is timed as A and, loaded a second time, as B: what they differ by is noise.
    """

    region: Region
    baseline: Executable
    finalist: Executable | None  # None judges the baseline alone
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    samples: int | None = None
    references: References | None = None  # the references, where another process computed them


@dataclass(frozen=True)
class PairedOutcome:
    """A side that does not verify is not timed, nor is the other then."""

    baseline_verification: Verification
    finalist_verification: Verification | None = None
    baseline_cold_s: tuple[float, ...] = ()
    again_cold_s: tuple[float, ...] = ()  # the baseline as B
    baseline_warm_s: tuple[float, ...] = ()
    finalist_cold_s: tuple[float, ...] = ()
    finalist_warm_s: tuple[float, ...] = ()
    input_recipe: str = ""
    clocks: tuple[tuple[str, float], ...] = ()
    noisy: str = ""  # why the samples are not to be trusted, if they are not
    tainted: bool = False  # see TimeOutcome
    spent_s: tuple[tuple[str, float], ...] = ()  # the same: load, verify, time


@dataclass(frozen=True)
class JointJob:
    """Paired comparisons of all of `sides` with each other, in one: what is verified and timed once serves every pair.

    Each but the last is timed as A and B, see `PairedJob`.
    """

    region: Region
    sides: tuple[Executable, ...]  # the baseline first
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    samples: int | None = None
    references: References | None = None


@dataclass(frozen=True)
class JointOutcome:
    """Where a side does not verify there are no pairs: two by two they say which, and what the others are."""

    pairs: tuple[PairedOutcome, ...]  # in the order of `itertools.combinations` of the sides
    tainted: bool = False  # see TimeOutcome
    spent_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class NanJob:
    """What programs make of NaN that the first of them, tinygrad's own schedule, does not."""

    region: Region
    sides: tuple[Executable, ...]
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    references: References | None = None


@dataclass(frozen=True)
class NanOutcome:
    """Of each side but the first what it makes of NaN, in words; empty where that is what the first does."""

    differ: tuple[str, ...]
    tainted: bool = False  # see TimeOutcome
    spent_s: tuple[tuple[str, float], ...] = ()  # the same


@dataclass(frozen=True)
class ContextJob:
    """Time two programs of a region and its neighbours in turns: all calls one by one, and one program in the place of
    the region's. Each was verified alone before."""

    region: Region  # with its neighbours
    sides: tuple[Executable, Executable]  # the calls one by one, then with the program
    target: Target
    samples: int | None = None


@dataclass(frozen=True)
class ContextOutcome:
    """Seconds of each side, one of each a turn; none where there is a `reason`."""

    parts_s: tuple[float, ...] = ()
    program_s: tuple[float, ...] = ()
    reason: str = ""  # why the samples are not to be trusted
    tainted: bool = False  # see TimeOutcome
    spent_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class StressJob:
    """Launch a program very often and compare every output, see `kcg.measure.stress`."""

    region: Region
    compiled: Executable
    target: Target
    variables: tuple[tuple[str, int], ...] = ()
    launches: int | None = None  # None: as many as the rule asks
    before: int = 0  # so many of them were in jobs before this one
    count: int | None = None  # so many of them are in this one; None: all that are left


@dataclass(frozen=True)
class StressOutcome:
    """What is wrong, if something is."""

    wrong: str = ""
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
