"""What runs inside a child process: compiling, timing, verifying. Module-level functions: a pool calls them by name.

A child keeps the workbenches of its last few kernels, so that timing their next schedules costs no new inputs.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kcg.errors import VerificationError
from kcg.measure.device_info import Sensors, sensors_for
from kcg.measure.inputs import RECIPE, TIMED_SEED
from kcg.measure.jobs import (
    CompileJob,
    CompileOutcome,
    ContextJob,
    ContextOutcome,
    JointJob,
    JointOutcome,
    NanJob,
    NanOutcome,
    PairedJob,
    PairedOutcome,
    StressJob,
    StressOutcome,
    TimeJob,
    TimeOutcome,
)
from kcg.measure.protocol import LEAST_LIMIT_S, MIN_SAMPLES, SLOWDOWN_WAITS_S, median, samples_for
from kcg.measure.verify import FINAL_SEEDS, reference_terms
from kcg.types import CacheState, Region, Schedule, Target, Toolchain, Variables, Verification

if TYPE_CHECKING:
    from kcg.kernel.program import Executable
    from kcg.measure.stress import Stressed
    from kcg.measure.verify import Watched

LATE_S = 0.25  # far more than a launch is ever late
LONG_S = 0.005  # a longer run takes as long with a cold cache as with a warm one

Launch = Callable[[], float]

COLLECT_EVERY = 50  # compilations
SUSPECTED_TERMS = 1 << 24
"""Of a reference: with more, what is surprisingly fast is checked on the final seeds alone until it is judged. By every
rule that took 29 s where a reference adds 41 million terms, and a search's limit is 30."""
KEPT_BENCHES = 64
KEPT_SHARE = {"CPU": 0.02}  # of the device's memory that the kept workbenches but the last may take together
KEPT_SHARE_ELSEWHERE = 0.2

_compiled = 0  # so many by this process
_benches: OrderedDict[tuple[str, str], Any] = OrderedDict()
_flushers: dict[str, Any] = {}
_sensors: dict[str, Sensors] = {}


def open_job(dev: str) -> None:
    """Open the device, so that no job pays for it."""
    from kcg.compat.green import open_device
    from kcg.errors import DeviceError
    from kcg.measure.device_info import first_line

    try:
        open_device(dev.split(":")[0])
    except DeviceError:
        raise
    except Exception as error:  # tinygrad raises many kinds here; each means that the device is unusable
        raise DeviceError(f"{dev} does not open: {first_line(error)}") from error
    import kcg.measure.verify  # noqa: F401

    if dev.split(":")[0] == "CPU":  # 700 MB, for a large cache, took 2.2 s to be touched first, then 0.05 s a flush
        _flusher(detect_job(dev)[0])


def detect_job(dev: str) -> tuple[Target, Toolchain]:
    """Open the device and describe it. The device library and the compiler are loaded on the way."""
    from kcg.kernel.kinds import ACTION_SPACE_VERSION
    from kcg.measure.device_info import detect

    return detect(dev, ACTION_SPACE_VERSION)


def compile_job(job: CompileJob) -> CompileOutcome:
    from kcg.kernel.kinds import compile_region

    global _compiled
    begin = time.perf_counter()
    if job.lowered is not None:
        from kcg.kernel.lowered import finished

        begin -= job.lowered.seconds
        return CompileOutcome(finished(job.lowered, job.target), time.perf_counter() - begin)
    try:
        compiled = compile_region(job.region, job.schedule, job.target, variables=job.variables, also=job.also)
    finally:
        _compiled += 1
        if _compiled % COLLECT_EVERY == 0:  # a compiling child does not look for cycles by itself
            gc.collect()
    return CompileOutcome(compiled, time.perf_counter() - begin)


def rehearsal_job(target: Target) -> TimeOutcome:
    """Compile and time a small product as tinygrad schedules it: what the first job of a child pays for beside its own
    kernel, such as the buffer that empties the cache, the sensors, kernels of kcg's own, and the rules by which kernels
    are lowered."""
    from tinygrad import Tensor

    from kcg.kernel.codec import kernel_of
    from kcg.kernel.kinds import baseline_of
    from kcg.measure.workbench import prepare_own_kernels

    one, other = (Tensor.empty(16, 16, device=target.device) for _ in range(2))
    region = Region((kernel_of((one @ other).schedule_linear().src[-1].src[0]),))
    prepare_own_kernels(target)
    compiled = compile_job(CompileJob(region, baseline_of(region, target), target)).compiled
    return time_job(TimeJob(region, compiled, target, early_stop=True, careful=True))


def unsupported_job(region: Region, target: Target) -> str:
    """Why a region has no schedules but those of the kind of its baseline; empty where it has some."""
    from kcg.kernel.kinds import Unsupported, kind_named, other_kinds

    spaces = [kind_named(name).space(region, target) for name in other_kinds(region, target)]
    reasons = [space.reason for space in spaces if isinstance(space, Unsupported)]
    return "; ".join(reasons) if len(reasons) == len(spaces) else ""


def start_job(region: Region, kind: str, target: Target) -> Schedule:
    """Where the space of a kind begins. Raises ScheduleError where there is none."""
    from kcg.kernel.kinds import space_of

    return space_of(region, target, kind).start()


def first_program_job(
    region: Region, kind: str, target: Target, bindings: Sequence[Variables], known: Schedule | None = None
) -> Schedule:
    """Where the space of a kind begins, which may be `known`, once that is compiled; of a tile program the code stays
    in the user's cache. Raises as `start_job`, and what the compiler raises."""
    first, (variables, *also) = start_job(region, kind, target) if known is None else known, bindings
    compile_job(CompileJob(region, first, target, variables, tuple(also)))
    return first


def bench_for(region: Region, target: Target) -> Any:
    """The workbench of a region. Those of the regions before it are kept while they are few and small: compilers that
    work for several kernels at once make the device change between them."""
    _end_stress()
    key = (region.id, target.fingerprint)
    if key in _benches:
        _benches.move_to_end(key)
        return _benches[key]
    from kcg.measure.verify import CheckedBench
    from kcg.measure.workbench import free_cached_memory

    most, dropped = KEPT_SHARE.get(target.device, KEPT_SHARE_ELSEWHERE) * target.memory_bytes, False
    while _benches and (len(_benches) >= KEPT_BENCHES or sum(b.nbytes for b in _benches.values()) > most):
        _benches.popitem(last=False)
        dropped = True
    if dropped:
        free_cached_memory(target)
    _benches[key] = CheckedBench(region, target)
    return _benches[key]


def _flusher(target: Target) -> Any:
    if target.fingerprint not in _flushers:
        from kcg.measure.workbench import CacheFlusher

        _flushers[target.fingerprint] = CacheFlusher(target)
    return _flushers[target.fingerprint]


def sensors(target: Target) -> Sensors:
    """The sensors of a target, opened once."""
    if target.fingerprint not in _sensors:
        _sensors[target.fingerprint] = sensors_for(target)
    return _sensors[target.fingerprint]


class Laps:
    """Where the time of a job goes."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._spent: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """All since the last lap was `phase`."""
        now = time.perf_counter()
        self._spent[phase] = self._spent.get(phase, 0.0) + now - self._begin
        self._begin = now

    @property
    def spent_s(self) -> tuple[tuple[str, float], ...]:
        return tuple(self._spent.items())


def time_job(job: TimeJob) -> TimeOutcome:
    """Check one seed, then time. The check's first launch is the warm-up."""
    laps = Laps()
    bench = bench_for(job.region, job.target)
    if job.references is not None:
        bench.use_references(job.references, job.variables)
    try:
        recipe = bench.choose_recipe(job.variables)
    except VerificationError as error:
        return TimeOutcome((), "", unjudged=str(error), checked=True)
    laps.lap("inputs and reference")
    launch = bench.launcher(job.compiled)
    laps.lap("load")
    first_s: list[float] = []

    def observed() -> float:
        first_s.append(launch())
        sensors(job.target).look()
        return first_s[-1]

    sensors(job.target).begin()
    bench.lap = laps.lap
    if job.check_seed is None:
        bench.fill(TIMED_SEED, recipe)
        observed()
    else:
        result = bench.check(observed, job.variables, seeds=(job.check_seed,), tf32=job.compiled.tf32)
        if not result.passed:
            wrong, unjudged = _wrong_or_unjudged(result)
            return TimeOutcome((), recipe, wrong=wrong, unjudged=unjudged, checked=True, tainted=bench.tainted)
    laps.lap("check")
    job = _with_limit(job, bench.fastest_s)
    named = f"{recipe}:seed={bench.seed}"

    def readings() -> tuple[tuple[str, float], ...]:
        found = sensors(job.target).readings()
        laps.lap("sensors")
        return found

    if (hopeless := _hopeless(job, launch, first_s)) is not None:
        laps.lap("sample")
        checked = job.check_seed is not None
        return TimeOutcome((hopeless,), named, checked=checked, clocks=readings(), spent_s=laps.spent_s)
    run = bench.watch(launch, job.variables, has_run=True)
    samples, noisy = _trusted(lambda: _samples(job, run, full=False), job.target, begin=False)
    wrong = run.result()
    laps.lap("sample")
    unjudged = ""
    if not wrong and not noisy and min(samples) <= 0:
        noisy = "the device's clock told no time"
    if not wrong and not noisy and median(samples) < max(job.floor_s, job.recheck_below_s):
        # too good to be true: every rule, and all samples again with nothing else on the device
        by_every_rule = reference_terms(bench.chain.asts) <= SUSPECTED_TERMS or median(samples) < job.floor_s
        verified = bench.check(launch, job.variables, seeds=FINAL_SEEDS, thorough=by_every_rule, tf32=job.compiled.tf32)
        wrong, unjudged = _wrong_or_unjudged(verified)
        bench.fill(job.check_seed or TIMED_SEED, recipe)
        if not wrong and not unjudged:
            samples, noisy = _trusted(lambda: _samples(job, run, full=True), job.target)
            wrong = run.result()
        if not wrong and not unjudged and not noisy and (seconds := median(samples)) < job.floor_s:
            wrong = f"faster than the device can be: {seconds * 1e6:.3g} us, at least {job.floor_s * 1e6:.3g} us"
        laps.lap("suspicion")
    trusted = not wrong and not unjudged and not noisy
    if trusted:
        bench.fastest_s = min(bench.fastest_s, median(samples))
    return TimeOutcome(
        samples if trusted else (),
        named,
        wrong=wrong,
        unjudged=unjudged,
        noisy=noisy,
        checked=job.check_seed is not None,
        clocks=readings(),
        tainted=bench.tainted,
        spent_s=laps.spent_s,
    )


def _wrong_or_unjudged(result: Verification) -> tuple[str, str]:
    """Why a binary is wrong, and why the reference cannot tell: at most one of them."""
    return ("", result.reason) if result.unjudged else (result.reason, "")


def _with_limit(job: TimeJob, fastest_s: float) -> TimeJob:
    """The job with the stricter of its two limits above which one sample is enough."""
    limits = [] if job.stop_above_s is None else [job.stop_above_s]
    if job.stop_above_best is not None and math.isfinite(fastest_s):
        limits.append(max(job.stop_above_best * fastest_s, LEAST_LIMIT_S))
    return replace(job, stop_above_s=min(limits, default=None))


def _hopeless(job: TimeJob, launch: Launch, checked_s: list[float]) -> float | None:
    """The time of a long candidate of a search, by its checked runs alone, where it is not worth a sample.

    A single run does not say so: about one in 500 is late by some milliseconds for reasons of its own, and a search
    that believes it leaves everything alone that is like this candidate. What the check's own run found in the cache
    weighs nothing in so long a run.
    """
    limit_s = max(job.stop_above_s if job.stop_above_s is not None else math.inf, LONG_S)
    if not job.early_stop or (first_s := min(checked_s)) <= limit_s:
        return None
    again_s = launch() if first_s < LATE_S else first_s
    return min(first_s, again_s) if again_s > limit_s else None


def _samples(job: TimeJob, run: Watched, *, full: bool) -> tuple[float, ...]:
    """Cold or warm samples; of a hopeless candidate one, as soon as two runs agree that it is (see `_hopeless`)."""
    limit_s = job.stop_above_s if job.stop_above_s is not None and not full else math.inf
    flush = _flusher(job.target).flush if job.cache_state == CacheState.COLD else None
    samples: list[float] = []
    wanted, flush_s = MIN_SAMPLES, 0.0

    def timed_flush() -> None:
        nonlocal flush_s
        begin = time.perf_counter()
        if flush is not None:
            flush()
        flush_s = time.perf_counter() - begin

    while len(samples) < wanted and not run.reason:
        samples.append(run(flush=timed_flush if flush is not None else None))
        sensors(job.target).look()
        if len(samples) == 1 or (len(samples) == 2 and samples[0] > limit_s):
            chosen, least_s = None if full else job.samples, min(samples)
            early = job.early_stop and not full
            wanted = chosen or samples_for(least_s, flush_s=flush_s, early_stop=early, careful=job.careful)
            if least_s > limit_s:
                if len(samples) == 2 or least_s >= LATE_S:
                    return (least_s,)
                wanted = max(wanted, 2)
    return tuple(samples)


T = TypeVar("T")


def _trusted(take: Callable[[], T], target: Target, *, begin: bool = True) -> tuple[T, str]:
    """What `take` gives, again if the device slowed down meanwhile; the reason if it never stops doing so."""
    for wait_s in (*SLOWDOWN_WAITS_S, None):
        if begin:
            sensors(target).begin()
        begin, taken = True, take()
        if not (reason := sensors(target).slowdown()) or wait_s is None:
            break
        time.sleep(wait_s)
    return taken, reason


def paired_job(job: PairedJob) -> PairedOutcome:
    """Verify both, then time them in turns, so that a drift hits all alike: A, finalist, B, finalist, B, A, …

    What is loaded is exactly what tinygrad would load.
    """
    sides = [job.baseline] + ([job.finalist] if job.finalist is not None else [])
    judged = _judged(job, sides, twice=1)
    return judged.pair(0, 1 if len(sides) > 1 else None)


def joint_job(job: JointJob) -> JointOutcome:
    """As `paired_job`, of several sides at once: what is loaded, verified and timed once serves every pair of them."""
    judged = _judged(job, job.sides, twice=len(job.sides) - 1)
    pairs = itertools.combinations(range(len(job.sides)), 2) if judged.cold else ()
    return JointOutcome(tuple(judged.pair(i, j) for i, j in pairs), tainted=judged.tainted, spent_s=judged.spent_s)


@dataclass(frozen=True)
class _Judged:
    """What was seen of several sides; no samples where one of them does not verify."""

    verifications: list[Verification]
    tainted: bool
    spent_s: tuple[tuple[str, float], ...]
    cold: Sequence[tuple[float, ...]] = ()  # of each side
    again: Sequence[tuple[float, ...]] = ()  # of the first ones, loaded a second time
    warm: Sequence[tuple[float, ...]] = ()
    recipe: str = ""
    clocks: tuple[tuple[str, float], ...] = ()
    noisy: str = ""

    def pair(self, before: int, after: int | None) -> PairedOutcome:
        """One side beside another one, or alone."""
        judged = PairedOutcome(
            self.verifications[before],
            None if after is None else self.verifications[after],
            tainted=self.tainted,
            spent_s=self.spent_s,
        )
        if not self.cold:
            return judged
        return replace(
            judged,
            baseline_cold_s=self.cold[before],
            again_cold_s=self.again[before],
            baseline_warm_s=self.warm[before],
            finalist_cold_s=self.cold[after] if after is not None else (),
            finalist_warm_s=self.warm[after] if after is not None else (),
            input_recipe=f"{self.recipe}:seed={TIMED_SEED}",
            clocks=self.clocks,
            noisy=self.noisy,
        )


def _judged(job: PairedJob | JointJob, sides: Sequence[Executable], *, twice: int) -> _Judged:
    """Verify all sides, then time them in turns; the first `twice` are loaded and timed a second time."""
    laps = Laps()
    bench = bench_for(job.region, job.target)
    if job.references is not None:
        bench.use_references(job.references, job.variables)
    launches = [bench.launcher(c, as_tinygrad=True) for c in sides]
    laps.lap("load")
    tf32, by_hand = ([getattr(side, name) for side in sides] for name in ("tf32", "by_hand"))
    results: list[Verification] = bench.check_all(
        launches, job.variables, seeds=job.seeds, thorough=True, tf32=tf32, by_hand=by_hand
    )
    laps.lap("verify")
    if not all(result.passed for result in results):
        return _Judged(results, bench.tainted, laps.spent_s)
    recipe = bench.choose_recipe(job.variables)
    bench.reference(TIMED_SEED, recipe, job.variables)
    bench.fill(TIMED_SEED, recipe)
    timed = [*launches, *(bench.launcher(side, as_tinygrad=True) for side in sides[:twice])]
    runs = [
        bench.watch(launch, job.variables, tf32=rounds)
        for launch, rounds in zip(timed, [*tf32, *tf32[:twice]], strict=True)
    ]
    (cold, warm), noisy = _trusted(lambda: _in_turns(runs, job, warm=len(sides)), job.target)
    laps.lap("time")
    # of a fault of all of them together (guards, inputs) the last is to blame: tinygrad's own comes first
    reasons = [run.reason for run in runs]
    reasons[len(sides) - 1] = reasons[len(sides) - 1] or bench.left_behind()
    results = [_after_timing(v, r, runs[i].runs) for i, (v, r) in enumerate(zip(results, reasons, strict=False))]
    for i, reason in enumerate(reasons[len(sides) :]):
        results[i] = _after_timing(results[i], reason, 0)
    if not all(result.passed for result in results):
        return _Judged(results, bench.tainted, laps.spent_s)
    return _Judged(
        results,
        bench.tainted,
        laps.spent_s,
        cold=cold[: len(sides)],
        again=cold[len(sides) :],
        warm=warm,
        recipe=recipe,
        clocks=sensors(job.target).readings(),
        noisy=noisy,
    )


def _after_timing(result: Verification, reason: str, runs: int) -> Verification:
    """The result of verifying a binary after its timed runs, which count as runs: they must all leave the same
    output."""
    if reason and result.passed:
        return replace(result, passed=False, reason=reason)
    return replace(result, rules=(*result.rules, f"{runs} timed runs bitwise equal")) if runs else result


def nan_job(job: NanJob) -> NanOutcome:
    """Run all sides on data with NaN and compare what the first leaves with what each of the others does."""
    laps = Laps()
    bench = bench_for(job.region, job.target)
    if job.references is not None:
        bench.use_references(job.references, job.variables)
    launches = [bench.launcher(side, as_tinygrad=True) for side in job.sides]
    laps.lap("load")
    try:
        tf32, by_hand = ([getattr(side, name) for side in job.sides] for name in ("tf32", "by_hand"))
        differ = bench.treats_nan(launches, job.variables, tf32=tf32, by_hand=by_hand)
    except VerificationError:  # without a reference nothing is judged at all
        differ = [""] * len(launches)
    laps.lap("verify")
    return NanOutcome(tuple(differ[1:]), tainted=bench.tainted, spent_s=laps.spent_s)


def context_job(job: ContextJob) -> ContextOutcome:
    """Time both sides in turns. Their outputs are looked at, as in a paired comparison, and not judged: there is no
    reference of so many calls, and each program was verified by itself."""
    laps = Laps()
    bench = bench_for(job.region, job.target)
    launches = [bench.launcher(side, as_tinygrad=True) for side in job.sides]
    bench.fill(TIMED_SEED, RECIPE)
    laps.lap("load")
    runs = [bench.watch(launch) for launch in launches]
    ((parts_s, program_s), _), noisy = _trusted(lambda: _in_turns(runs, job, warm=0), job.target)
    laps.lap("time")
    reason = next(filter(None, [*(run.reason for run in runs), bench.left_behind(), noisy]), "")
    if reason:
        return ContextOutcome(reason=reason, tainted=bench.tainted, spent_s=laps.spent_s)
    return ContextOutcome(parts_s, program_s, tainted=bench.tainted, spent_s=laps.spent_s)


def _in_turns(
    runs: list[Watched], job: PairedJob | JointJob | ContextJob, *, warm: int
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Cold samples of each, and warm ones of the first `warm`: every round another one begins, so that no place in a
    round is anybody's own."""
    flush = _flusher(job.target).flush
    begin = time.perf_counter()
    flush()
    flush_s = time.perf_counter() - begin
    wanted = job.samples or samples_for(max(run() for run in runs), flush_s=flush_s)
    cold: list[list[float]] = [[] for _ in runs]
    for turn in range(wanted):
        for place in range(len(runs)):
            i = (turn + place) % len(runs)
            cold[i].append(runs[i](flush=flush))
            sensors(job.target).look()
    warmed = []
    for run in runs[:warm]:
        run.warmed()
        warmed.append(tuple(run() for _ in range(wanted)))
        run.look()
        sensors(job.target).look()
    return [tuple(samples) for samples in cold], warmed


def stress_job(job: StressJob) -> StressOutcome:
    """Launch a program very often on the inputs that are timed by. One that had launches before goes on where it was,
    if nothing else ran in this child since; else it begins anew, and counts on from there."""
    from kcg.measure.stress import LAUNCHES, Stressed

    global _stress
    key = job.region.id, job.compiled.binary_hash, job.variables, job.before
    if _stress is None or _stress.key != key:
        bench = bench_for(job.region, job.target)
        recipe = bench.choose_recipe(job.variables)
        bench.reference(TIMED_SEED, recipe, job.variables)
        bench.fill(TIMED_SEED, recipe)
        flush, launches = _flusher(job.target).flush, job.launches or LAUNCHES
        stressed = Stressed(bench, job.compiled, job.variables, flush=flush, launches=launches, before=job.before)
        _stress = _Stress(key, stressed, bench, job.target)
    stressed, bench = _stress.stressed, _stress.bench
    wrong = stressed.launch(stressed.left if job.count is None else job.count)
    if wrong or not stressed.left:
        _end_stress()
    else:
        _stress = replace(_stress, key=(*key[:-1], stressed.number))
    return StressOutcome(wrong, tainted=bench.tainted)


@dataclass(frozen=True)
class _Stress:
    """A program that has a part of its launches; `key` says which ones come next, and of what."""

    key: tuple[Any, ...]
    stressed: Stressed
    bench: Any
    target: Target


_stress: _Stress | None = None


def _end_stress() -> None:
    """The buffers of what was under stress are another job's."""
    from kcg.measure.workbench import free_cached_memory

    global _stress
    if _stress is not None:
        _stress.bench.seed = None  # outputs that are inputs too were written
        target, _stress = _stress.target, None
        free_cached_memory(target)  # three copies of each output


def ping() -> int:
    """The child's process id; the cheapest proof that it runs."""
    return os.getpid()
