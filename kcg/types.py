"""The nouns of kcg: kernels, regions, schedules, targets, measurements, predictions and results."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

# ---- The nouns of kcg: frozen dataclasses of the standard library only, passed between all packages.
#
# Every noun that is stored has an identity that is the same on every machine: a SHA-256 of canonical JSON
# (sorted keys, no spaces). Times are seconds, sizes are bytes, unless a name says otherwise.

Variables = tuple[tuple[str, int], ...]
"""Values of a kernel's symbolic variables, sorted by name."""


@dataclass(frozen=True)
class Kernel:
    """One tinygrad `SINK` AST before optimisation, normalised: no device name, no kernel name.

    `ast_json` is the canonical JSON that `kcg.kernel.codec` writes and reads; `id` is its SHA-256.
    """

    ast_json: str

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(self.ast_json.encode()).hexdigest()


@dataclass(frozen=True)
class Region:
    """What one schedule is for: one call of a program, or several that share buffers.

    `args` lists, for each kernel, which buffer of the region each of its slots binds. Buffers are numbered by their
    first appearance, so that shared inputs and updates in place can be said. `outputs` are the buffers whose contents
    are observed afterwards; what else is written is an intermediate, which need not be stored. A region of one kernel
    has neither: its slots are its buffers, and all that it writes is observed.

    Kernels that are computed `again` are named by their numbers: a program keeps their calls as long as somebody else
    reads what they store. That says where a region can be, and nothing of what it computes: it is no part of its id.
    """

    kernels: tuple[Kernel, ...]
    args: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[int, ...] = ()
    again: tuple[int, ...] = field(default=(), compare=False)

    @cached_property
    def id(self) -> str:
        if len(self.kernels) == 1:
            return self.kernels[0].id
        return content_id([[k.id for k in self.kernels], [list(slots) for slots in self.args], list(self.outputs)])

    @property
    def own(self) -> tuple[Kernel, ...]:
        """The kernels in whose place it runs: all but those that are computed again."""
        return tuple(kernel for number, kernel in enumerate(self.kernels) if number not in self.again)

    @property
    def kernel(self) -> Kernel:
        """The only kernel of a region of one."""
        (only,) = self.kernels
        return only


def malformed(region: Region) -> str:
    """What is wrong with a region that comes from a file, in a line; empty where nothing is."""
    if not region.kernels:
        return "it has no kernels"
    if len(region.kernels) == 1:
        wired = region.args or region.outputs or region.again
        return "a region of one kernel has no args and no outputs, and nothing is made again" if wired else ""
    if len(region.args) != len(region.kernels):
        return "args must list the slots of each kernel"
    seen = 0
    for number in (number for slots in region.args for number in slots):
        if not 0 <= number <= seen:
            return "its buffers are not numbered by their first appearance"
        seen = max(seen, number + 1)
    if list(region.outputs) != sorted(set(region.outputs)) or not all(0 <= n < seen for n in region.outputs):
        return "outputs must be buffers of the region, each once, in order"
    numbers = range(len(region.kernels))
    if list(region.again) != sorted(set(region.again)) or not set(region.again) < set(numbers):
        return "what is made again must be some of the kernels, each once, in order"
    return "" if region.outputs else "it has no outputs"


@dataclass(frozen=True)
class Target:
    """The hardware as compiler and clock see it. Never a UUID, a host name or a current clock: they belong to a run."""

    device: str  # tinygrad's device, e.g. "CPU", "CUDA"
    renderer: str  # which renderer compiles for it, e.g. "X86", "CLANG", "CUDA"
    arch: str  # e.g. "x86_64,native", "sm_90"
    model: str  # e.g. "AMD EPYC", "NVIDIA H200"
    cores: int  # CPU cores or multiprocessors
    has_local: bool
    has_threads: bool
    max_threads: int  # that a schedule may use on a CPU; 0 on a GPU
    shared_bytes: int
    memory_bytes: int
    cache_bytes: int  # last-level cache (L2 of a GPU, L3 of a CPU)
    tensor_cores: tuple[str, ...] = ()  # e.g. "8x16x16 bf16->f32"
    power_limit_w: float | None = None
    clock_limit_mhz: float | None = None
    bandwidth_bytes_s: float | None = None  # of the memory's pins, in bytes a second

    @cached_property
    def fingerprint(self) -> str:
        return content_id(asdict(self))

    @property
    def tinygrad_device(self) -> str:
        """What `DEV=` selects this target: `CPU:X86`, `CUDA`."""
        return f"{self.device}:{self.renderer}" if self.device == "CPU" else self.device


@dataclass(frozen=True)
class Toolchain:
    """What turned a schedule into a binary: versions of tinygrad, compilers, driver, Triton and its assembler, and of
    kcg's action space and generator of tile programs."""

    tinygrad: str
    compiler: str  # e.g. "clang 14.0.6", "tinygrad X86 assembler", "NVRTC 12.4"
    driver: str
    triton: str
    action_space: int  # version of kcg's own list of actions
    assembler: str = ""  # of tile programs, e.g. "ptxas 13.4.59"
    generator: int = 0  # version of kcg's own generator of tile programs; 0: none, or one from before it had a number

    @cached_property
    def fingerprint(self) -> str:
        """Of all that is not a tile program: without what only those pass through."""
        return self._id_without("assembler", "generator")

    @cached_property
    def tile_fingerprint(self) -> str:
        """Of tile programs; as the other where there is no assembler. Without a generator it is that of before there
        was a number, so that rows of then are found under it."""
        if not self.assembler:
            return self.fingerprint
        return self._id_without() if self.generator else self._id_without("generator")

    def _id_without(self, *names: str) -> str:
        return content_id({name: value for name, value in asdict(self).items() if name not in names})

    @cached_property
    def fingerprints(self) -> tuple[str, ...]:
        """Those that rows of this toolchain carry: of tile programs another one, see `kcg.kernel.kinds.made_by`."""
        return tuple(dict.fromkeys((self.fingerprint, self.tile_fingerprint)))


class Status(StrEnum):
    """How a measurement ended. A failure has a status and a reason, never a magic time."""

    OK = "ok"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    RESOURCE = "resource"
    LAUNCH_ERROR = "launch_error"
    TIMEOUT = "timeout"
    WRONG = "wrong"  # proven wrong
    UNJUDGED = "unjudged"  # the reference cannot tell: neither right nor wrong
    WORKER_DIED = "worker_died"
    NOISY = "noisy"


class CacheState(StrEnum):
    COLD = "cold"  # the last-level cache is flushed before every sample
    WARM = "warm"  # samples follow each other


@dataclass(frozen=True)
class Measurement:
    """One schedule timed once. Its identity (`key`) is what resume and deduplication go by; `run_id` and `trial` tell
    runs apart."""

    region_id: str
    schedule: Schedule
    target: str  # Target.fingerprint
    toolchain: str  # Toolchain.fingerprint
    protocol: int
    status: Status
    cache_state: CacheState = CacheState.COLD
    variables: Variables = ()
    input_recipe: str = ""  # how the inputs were made, e.g. "normal-v2:seed=0"
    samples_s: tuple[float, ...] = ()
    reason: str = ""  # first line of the cause of a failure
    binary_hash: str = ""
    checked: bool = False  # one seed, poison and guards passed
    early_stop: bool = False  # fewer samples than the protocol asks, allowed during search
    sampler: str = ""  # which strategy asked for it
    compile_s: float = 0.0
    launch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # global and local size
    run_id: str = ""
    trial: int = 0
    clocks: tuple[tuple[str, float], ...] = ()  # what the device tells: SM clock, temperature, power

    @property
    def median_s(self) -> float:
        """Median of the samples in seconds; NaN where there are none."""
        return statistics.median(self.samples_s) if self.samples_s else math.nan

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything of the identity but run and trial."""
        return (
            self.region_id,
            self.variables,
            self.input_recipe,
            self.schedule.kind,
            self.schedule.body,
            self.target,
            self.toolchain,
            self.protocol,
            str(self.cache_state),
            self.early_stop,
        )


SeenAs = tuple[str, tuple[str, ...]]
"""How a program asked for a kernel, which its identity leaves out: the name that its author gave it, empty where
tinygrad names it, and the devices that run it, several for one over sharded tensors."""


class JobKind(StrEnum):
    """What a run does. Other calls in a child have the name of their function."""

    CAPTURE = "capture"  # the workload's kernels; of a script, running it
    COMPILE = "compile"
    REFERENCE = "reference"  # what right outputs are
    TIME = "time"  # check a program on one seed, and time it
    PAIRED = "judge paired"  # verify two programs by every rule, and time them in turns
    JOINT = "judge joint"  # the same of several
    NAN = "judge nan"
    STRESS = "stress"
    IN_CONTEXT = "in context"
    STEP = "step"  # the whole model, script or function
    PREDICTOR = "predictor"  # reading it
    REGIONS = "regions"  # proposing some, and whether they have programs
    PROCESSES = "processes"  # starting and ending them
    RUN = "run"  # all of it


class JobOutcome(StrEnum):
    OK = "ok"
    WRONG = "wrong"  # proven
    UNJUDGED = "unjudged"  # the reference cannot tell
    NOISY = "noisy"  # no samples can be trusted
    FAILED = "failed"  # it raised, or its process died
    LATE = "late"  # its process was killed since its time was over
    STOPPED = "stopped"  # the run ended meanwhile
    TAKEN_OVER = "taken over"  # it was not done: what came of it before stands


@dataclass(frozen=True)
class Job:
    """One thing that a run did, on one resource: `device:0` and so on, which do one at a time; `core`, of which there
    are several; `main`, the command's own process."""

    kind: str  # a `JobKind`, or the name of a function
    subject: str  # the id of a region, or what else it was about
    resource: str
    start_s: float  # by `time.monotonic`; in a journal since the command of its run began
    seconds: float
    outcome: JobOutcome
    saving_s: float | None = None  # of one execution; None where it gives none
    schedule: str = ""  # the first 16 digits of its id; empty where it is of none, or of several
    binaries: tuple[str, ...] = ()  # of as many digits, of a comparison tinygrad's own first
    sampled_s: float | None = None  # that the device itself ran what was sampled; None where it sampled nothing
    run_id: str = ""


@dataclass(frozen=True)
class WorkloadCall:
    """A region of a workload and how often one execution calls it.

    A kernel that ran with several values of its symbolic variables is one call: `seen` holds these and how often each,
    the smallest first (`kcg.kernel.symbolic` says which is smallest), and `variables` are the largest.
    """

    region: Region
    calls: int
    variables: Variables = ()
    origin: str = ""  # where it comes from, e.g. a line of the model, for the reader only
    seen: tuple[tuple[Variables, int], ...] = ()  # empty where there was only `variables`; else `calls` is its sum
    seen_as: tuple[SeenAs, ...] = field(default=(), compare=False)  # empty: not known
    replayed: int = field(default=0, compare=False)  # of `calls`, those that were replays of the steady state


_NAMES_SHOWN = 6
"""How many kernels that are left out for one reason are named in a line; the rest is counted."""


@dataclass(frozen=True)
class LeftOut:
    """Kernels that a program ran and that are not optimised, for one reason."""

    reason: str  # follows "left out: "
    kernels: int
    executions: int
    names: tuple[str, ...]  # tinygrad's or their author's, without colours; of many some
    searched_by_beam: bool  # whether `BEAM=N` searches them

    def __str__(self) -> str:
        """`3 executions of 2 kernels (a, b) are left out: …`."""
        shown = list(self.names[:_NAMES_SHOWN])
        if shown and (rest := self.kernels - len(shown)) > 0:
            shown.append(f"{rest} more")
        executions = f"{self.executions} execution{'s' * (self.executions != 1)}"
        names = f" ({', '.join(shown)})" if shown else ""
        kernels = f"{self.kernels} kernel{'s' * (self.kernels != 1)}{names}"
        return f"{executions} of {kernels} {'is' if self.executions == 1 else 'are'} left out: {self.reason}"


@dataclass(frozen=True)
class SlotBinding:
    """What one slot of a call binds: a part of a buffer of its sequence. Offset and size are in bytes."""

    buffer: int
    offset: int
    size: int

    def overlaps(self, other: SlotBinding) -> bool:
        """Whether the two share a byte."""
        apart = self.offset + self.size <= other.offset or other.offset + other.size <= self.offset
        return self.buffer == other.buffer and not apart


@dataclass(frozen=True)
class SequenceBuffer:
    """Memory that calls of a sequence share."""

    size: int  # bytes
    dtype: str
    held: bool  # whether it is there before, or is observed after: inputs, weights, outputs; else an intermediate


@dataclass(frozen=True)
class SequenceCall:
    """One call of a sequence. Without a `kernel` it is none that can be scheduled: a copy between devices, a program
    that tinygrad did not compile from an AST."""

    kernel: Kernel | None
    views: tuple[SlotBinding, ...]  # by slot
    reads: tuple[int, ...]  # slots
    writes: tuple[int, ...]  # slots; of an update in place in both
    what: str = ""  # where there is no kernel, what it is
    devices: tuple[str, ...] = field(default=(), compare=False)  # several where it runs on each
    origin: str = field(default="", compare=False)  # `file:line` that made it `< file:line` that called that; or empty
    # paths of the layers whose parameters it reads, and how often it ran for each; none where it reads no parameter
    layers: tuple[tuple[str, int], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Sequence:
    """Ordered calls of one stretch of a program that tinygrad plans the memory of at once, with their buffers.

    Buffers are numbered by their first appearance in the calls. `steady` is what a `TinyJit` captured and replays;
    else it ran as it was scheduled, which of a loop without `TinyJit` is often.
    """

    calls: tuple[SequenceCall, ...]
    buffers: tuple[SequenceBuffer, ...]
    steady: bool = False
    seen: tuple[tuple[Variables, int], ...] = field(default=(), compare=False)  # values of variables, how often each

    @property
    def executions(self) -> int:
        """How often it ran."""
        return sum(count for _, count in self.seen)

    @cached_property
    def id(self) -> str:
        """What is computed on which buffers; not how often, nor whether it is steady."""
        calls = [
            [c.kernel.id if c.kernel else c.what, [[v.buffer, v.offset, v.size] for v in c.views], c.reads, c.writes]
            for c in self.calls
        ]
        return content_id([calls, [[b.size, b.dtype, b.held] for b in self.buffers]])

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """The places of the calls that use each buffer, in order."""
        found: dict[int, dict[int, None]] = {}
        for place, call in enumerate(self.calls):
            for view in call.views:
                found.setdefault(view.buffer, {})[place] = None
        return {buffer: tuple(places) for buffer, places in found.items()}

    def region(self, *places: int, again: Iterable[int] = (), ordered: bool = False) -> Region:
        """The region of some calls, in their order, or as they are `ordered` in one that keeps all hazards too.

        Raises ValueError where one runs no kernel that can be scheduled, or where two of their views share memory that
        one of them writes: a region's buffers are apart.

        Its outputs are what is held, and what a call outside of it uses: fewer are not safe, more are allowed. The
        values of those of its calls that are computed `again` are none: they are stored elsewhere.
        """
        places = places if ordered else tuple(sorted(places))
        chosen = [self.calls[place] for place in places]
        kernels = tuple(call.kernel for call in chosen if call.kernel is not None)
        if not chosen or len(kernels) != len(chosen):
            raise ValueError("a region is of calls that run kernels")
        if len(kernels) == 1:
            return Region(kernels)
        numbers: dict[SlotBinding, int] = {}
        args = tuple(tuple(numbers.setdefault(view, len(numbers)) for view in call.views) for call in chosen)
        written = {call.views[slot]: place for place, call in zip(places, chosen, strict=True) for slot in call.writes}
        if any(view.overlaps(other) for view in written for other in numbers if view != other):
            raise ValueError("two of its views share memory, and one of them is written")
        inside, redone = set(places), set(again)
        observed = [
            view
            for view, place in written.items()
            if place not in redone
            and (self.buffers[view.buffer].held or not inside.issuperset(self.users[view.buffer]))
        ]
        outputs = tuple(sorted(numbers[view] for view in observed))
        return Region(kernels, args, outputs, tuple(number for number, place in enumerate(places) if place in redone))


@dataclass(frozen=True)
class Workload:
    """A named program that yields regions, each with how often it is called."""

    name: str
    preset: str
    calls: tuple[WorkloadCall, ...]
    held_bytes: int = field(default=0, compare=False)  # weights, inputs and outputs of a whole run; 0: not known
    between_bytes: int = field(default=0, compare=False)  # what lives between them, laid out by tinygrad's planner
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False)  # what else the program ran
    # each distinct one, in the order in which they ran first; none where it is not known. Of a model of many equal
    # blocks they are those of a model of fewer, see `kcg.workloads.capture`
    sequences: tuple[Sequence, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        return content_id([self.name, self.preset])

    @cached_property
    def steps(self) -> int:
        """How often its steady state ran: the replays of the `TinyJit` that replayed most; 0 where none did twice."""
        most = max((sequence.executions for sequence in self.sequences if sequence.steady), default=0)
        return most if most > 1 else 0

    @cached_property
    def replayed(self) -> dict[str, int]:
        """Executions of each kernel, by its id, that were replays of the steady state; what is not in it ran apart."""
        found: dict[str, int] = {}
        for sequence in self.sequences if self.steps else ():
            for call in sequence.calls if sequence.steady else ():
                if call.kernel is not None:
                    found[call.kernel.id] = found.get(call.kernel.id, 0) + sequence.executions
        return found

    @property
    def memory_bytes(self) -> int:
        """Device memory that a whole run needs; 0 where it is not known."""
        return self.held_bytes + self.between_bytes


@dataclass(frozen=True)
class PlannedRegion:
    """One region of a plan and the schedule it gets; `variables` as in `WorkloadCall`."""

    region: Region
    schedule: Schedule
    variables: Variables = ()


@dataclass(frozen=True)
class Plan:
    """A workload cut into regions, each with a schedule. Its id is a content hash: equal choices are the same plan."""

    workload: str
    preset: str
    regions: tuple[PlannedRegion, ...]

    @property
    def id(self) -> str:
        rows = [[r.region.id, [list(v) for v in r.variables], r.schedule.kind, r.schedule.body] for r in self.regions]
        return content_id([self.workload, self.preset, sorted(rows)])


@dataclass(frozen=True)
class Prediction:
    """What is expected of a schedule: log of the runtime in seconds, its standard deviation, probability of failure."""

    log_runtime: float
    uncertainty: float = 0.0
    failure_probability: float = 0.0

    @property
    def runtime_s(self) -> float:
        return math.exp(self.log_runtime)


@dataclass(frozen=True)
class Verification:
    """The result of verifying one finalist: which rules were run and what they found."""

    passed: bool
    rules: tuple[str, ...] = ()  # names of the rules that ran
    max_error: float = 0.0  # largest error over its tolerance; at most 1 passes
    seeds: int = 0
    reason: str = ""
    unjudged: bool = False  # the reference cannot tell: neither right nor wrong

    @property
    def wrong(self) -> bool:
        """Whether a rule ran and proved it wrong. What nothing was run of is not: it is only not verified."""
        return not self.passed and not self.unjudged and bool(self.rules)


@dataclass(frozen=True)
class Finalist:
    """One way to run a region, re-timed in full beside the baseline."""

    schedule: Schedule
    cold_s: float
    warm_s: float
    interval_s: tuple[float, float]  # 95 % interval of the cold median
    verification: Verification
    binary_hash: str = ""
    name: str = ""  # tinygrad's kernel name, without colours
    legend: str = ""  # what the name says, in words
    source: str = ""
    launch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    launches: int = 0  # that it passed under stress (`kcg.measure.stress`)
    launches_due: int = 0  # that it has to pass in all; 0: it needs no stress, or an older result does not say

    @property
    def provisional(self) -> bool:
        """Whether it was verified, but for some of its launches under stress, which are missing yet."""
        return self.verification.passed and self.launches < self.launches_due


@dataclass(frozen=True)
class TimedAt:
    """What one call takes at one of the ends of the values of its symbolic variables (`kcg.kernel.symbolic`)."""

    variables: Variables
    share: float  # of the calls that count as calls at this end; those of all ends sum to 1
    before_s: float  # cold, with the baseline
    after_s: float  # with what was chosen


@dataclass(frozen=True)
class RegionResult:
    """What became of one region: its baseline and what was chosen, which may be the baseline itself.

    Of a kernel that ran with several values of its variables, times and counts of one call are the means of those at
    both `ends`, weighted by their shares.
    """

    region: Region
    calls: int
    baseline: Finalist
    chosen: Finalist
    measurements: int
    outcome: str  # one of `OUTCOMES` of `kcg.report.result`; with `note` in words
    variables: Variables = ()  # as in `WorkloadCall`
    note: str = ""
    operations: float = 0.0  # arithmetic of one call
    bytes: float = 0.0  # least traffic of one call
    noise_floor: float = 0.0  # how far the baseline, timed as A and as B in turns, is from itself: 0.01 is 1 %
    opts: Finalist | None = None  # the best Opts, where `chosen` is written by hand
    handwritten: tuple[tuple[str, str], ...] = ()  # each kernel that was offered, and what became of it
    clocks: tuple[tuple[str, float], ...] = ()  # what the device told while both were timed, as in `Measurement`
    ends: tuple[TimedAt, ...] = ()  # at bounds of symbolic sizes, smallest first; none where these have one value

    replayed: int = 0  # of `calls`, those that were replays of the steady state, see `Result.steps`
    again_s: float = 0.0  # of the baseline's time that of kernels which it computes again, and which count elsewhere
    origins: tuple[tuple[str, int], ...] = ()  # where its calls come from: a layer or a source line, and how many
    store: str = ""  # which store the chosen schedule came from, as the run named it; empty: it was searched

    @property
    def before_s(self) -> float:
        """Time of all its calls with the baseline, each kernel's once."""
        return self.calls * (self.baseline.cold_s - self.again_s)

    @property
    def after_s(self) -> float:
        return self.calls * self.chosen.cold_s


@dataclass(frozen=True)
class ProgressPoint:
    """The search so far: after `elapsed_s` and `measurements`, the estimated total of the workload by the best plan of
    what was measured, regions of several kernels included; in results before schema 20 of kernels alone."""

    elapsed_s: float
    measurements: int
    total_s: float


@dataclass(frozen=True)
class Expectation:
    """One measurement of the search, and what the predictor expected of it when it was proposed."""

    elapsed_s: float  # when it was measured
    region: int  # its place in `Result.places`
    schedule: Schedule
    predicted_s: float  # by the predictor alone
    corrected_s: float | None  # corrected by what was measured of the kernel before; None where it does not learn
    failure_probability: float
    measured_s: float | None  # as a search measures: fewer samples than a final has; None where it failed
    status: str


@dataclass(frozen=True)
class Recompute:
    """A kernel that computes a contraction more often than its operands need, or one that it had better store."""

    kernel_id: str
    factor: float  # how many times each value is computed; 1 where it is only better stored
    wasted_operations: float  # per call of the kernel
    calls: int
    advice: str  # where a `.contiguous()` would help


@dataclass(frozen=True)
class ModelCheck:
    """The whole model's output with the chosen schedules against its output with tinygrad's own, on random inputs; of a
    script, what it left when it ran again with each of them."""

    passed: bool | None  # None: there is no verdict
    reason: str = ""  # why there is none, or what is wrong
    error: float | None = None  # relative, as `kcg.judge.whole` defines it
    tolerance: float | None = None
    seed: int = 0
    kernels: int = 0  # changed kernels that ran in the model
    before_s: float | None = None  # one step, captured and replayed; for information
    after_s: float | None = None
    clock: str = "wall clock, the fastest of three"  # how they were taken; the default is what older results hold
    clocks_before: tuple[tuple[str, float], ...] = ()  # what the device told in these steps, as in `Measurement`
    clocks_after: tuple[tuple[str, float], ...] = ()
    weights: str = ""  # the published ones it ran on, a file or a repository; empty: random ones
    runs: int = 0  # how often a script ran again for it, with all its side effects
    compared: str = ""  # of a script, what was compared
    replaced: tuple[tuple[str, int], ...] = ()  # id of a region, and how many sets of calls got its program
    left: tuple[tuple[str, str, int], ...] = ()  # id of a region, why sets of its calls stayed as they were, how many
    spread_s: float = 0.0  # of a script, how far `after_s` may be off: what is closer is no faster
    untimed: str = ""  # why no step of a script was timed
    steady: int = 0  # replays of the step that gave bit for bit what the first one gave on the same inputs
    unsteady: str = ""  # why nothing is said of such replays: they differ with tinygrad's own schedules too


@dataclass(frozen=True)
class Dropped:
    """A schedule of a kernel or region that was verified, faster, and left out all the same: the whole model, script or
    function was wrong with it."""

    region: str  # its id
    name: str  # tinygrad's, of a region its kernels'
    schedule: Schedule
    status: str  # `wrong`: the whole is right without it and wrong with it; `unjudged`: it was not seen to be right
    reason: str  # what the whole showed, or why it was not compared


@dataclass(frozen=True)
class Outlook:
    """What more time would be expected to bring, as a run itself estimates it when it ends: in seconds of one execution
    of the workload, of calls that the chosen plan runs."""

    unjudged: int = 0  # kernels and regions that were faster in the search, and were not judged in time
    unjudged_s: float = 0.0  # what these would save by the times of the search
    searches: int = 0  # kernels and regions whose search was stopped where more was expected of it
    expected_s: float = 0.0  # what the next measurements of these searches were expected to save


@dataclass(frozen=True)
class RegionInPlan:
    """A region of several kernels that a plan runs as one program: what its row in `Result.regions` does not say."""

    region: str  # its id
    kernels: tuple[str, ...]  # their names, in order
    form: str  # which rule proposed it, in words: a `kcg.kernel.regions.Form`
    calls: int  # in one execution, as in its row
    saved_s: float  # by one call, against the best schedules of the calls it replaces, timed in turns with it
    saved_bytes: float  # that one call no longer stores and reads; negative where what it makes again is made of more
    left: tuple[tuple[str, int], ...] = ()  # why calls that match it stay as they are where it was captured, how many
    # in-context timing: the same saving among the calls around it, as the low end of its 95 % interval, its median and
    # the high end; None where it was not timed there
    nearby_s: tuple[float, float, float] | None = None
    again: tuple[int, ...] = ()  # which of its kernels it computes again, as in `Region`

    @property
    def counted_s(self) -> float:
        """What one call saves, as plans count it."""
        return self.saved_s if self.nearby_s is None else self.nearby_s[1]


@dataclass(frozen=True)
class TriedPlan:
    """One of the plans whose whole steps were compared."""

    regions: tuple[str, ...]  # ids of those that become one program, the first to be put in first; none: no region does
    expected_s: float  # of all kernels in one execution
    step_s: float | None  # of the whole step, measured; None where none was
    passed: bool | None  # what the whole step's output showed, as in `ModelCheck`
    note: str  # why there is no time, or what is wrong
    chosen: bool


@dataclass(frozen=True)
class SearchedRegion:
    """A region of several kernels that was searched, and that the chosen plan does not have."""

    region: str  # its id
    kernels: tuple[str, ...]  # their names, in order
    variables: Variables = ()  # as in `WorkloadCall`


@dataclass(frozen=True)
class Planning:
    """The plan that was chosen among those with regions of several kernels, and what was not."""

    regions: tuple[RegionInPlan, ...]  # of the chosen plan, what saves most first; none where every kernel stays alone
    plans: tuple[TriedPlan, ...]  # the best expected first, and last that of every kernel alone; one is chosen
    why: str  # it was chosen
    passed_over: tuple[tuple[str, int], ...]  # why candidate regions are not in it, and how many
    inside: tuple[RegionResult, ...]  # kernels that its regions run everywhere: what each gets where one is not put in
    # names of kernels that regions compute again, and of how many of their calls nobody reads what they store any more,
    # so that they are left out
    unread: tuple[tuple[str, int], ...] = ()
    searched: tuple[SearchedRegion, ...] = ()  # regions that it does not have

    @property
    def places(self) -> list[tuple[str, Variables]]:
        """Region and variables of what was searched and is not among the regions of its result, see `Result.places`."""
        return [(row.region.id, row.variables) for row in self.inside] + [
            (one.region, one.variables) for one in self.searched
        ]


@dataclass(frozen=True)
class Result:
    """A Plan, the baselines, verification, and what the search cost. `kcg.report.result` keeps it as JSON."""

    workload: str
    preset: str
    target: Target
    toolchain: Toolchain
    regions: tuple[RegionResult, ...]
    search: str  # name of the strategy
    seed: int
    measurements: int  # unique binaries timed, the baselines included, finalists' re-timing not
    compilations: int
    search_s: float  # from start to result
    budget: str
    protocol: int
    created: str  # ISO date and time
    command: str
    kcg_version: str
    complete: bool = True  # False: it ended before an answer, see `kcg.report.endings`
    failures: tuple[tuple[str, int], ...] = ()  # status -> count
    progress: tuple[ProgressPoint, ...] = ()
    recomputes: tuple[Recompute, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)
    model_check: ModelCheck | None = None  # None: a result of before there was such a check
    predictor: str = ""  # its name; empty in a result of before it was written
    expectations: tuple[Expectation, ...] = ()  # none where the strategy asks no predictor
    clocks: tuple[tuple[str, float, float, float], ...] = ()  # what the device told: name, least, median, most
    phases: tuple[tuple[str, float], ...] = ()  # seconds of each part of the run, which `search_s` is the sum of
    left_out: tuple[LeftOut, ...] = ()  # what else the program ran
    seen_as: tuple[tuple[str, SeenAs], ...] = ()  # id of a kernel, and one way in which the program asked for it
    revision: str = ""  # of kcg's code, see `kcg.provenance`; empty in a result of before it was written
    dirty: bool | None = None  # whether the code differed from that revision; None where that is not known
    steps: int = 0  # how often the steady state of a script was replayed while it was recorded; 0 where it has none
    planning: Planning | None = None  # None where no regions of several kernels were searched
    allow_tf32: bool = False  # whether products were allowed to round float32 operands to tf32
    dropped: tuple[Dropped, ...] = ()  # what was left out since the whole was wrong with it
    outlook: Outlook | None = None  # what more time would bring; None where that was not worked out
    verified_progress: tuple[ProgressPoint, ...] = ()  # what all took by what was verified, whenever that changed

    @property
    def deployed(self) -> tuple[RegionResult, ...]:
        """What a program may get, in the order in which it is put in: regions of several kernels, then every kernel,
        also those that regions run wherever they were seen."""
        inside = self.planning.inside if self.planning is not None else ()
        return tuple(sorted((*self.regions, *inside), key=lambda row: len(row.region.kernels) == 1))

    @property
    def with_inside(self) -> tuple[RegionResult, ...]:
        """All regions, and after them the kernels that regions of several run everywhere."""
        return (*self.regions, *(self.planning.inside if self.planning is not None else ()))

    @property
    def searched(self) -> tuple[SearchedRegion, ...]:
        """The regions of several kernels that were searched, and that the plan does not have."""
        return self.planning.searched if self.planning is not None else ()

    @property
    def places(self) -> list[tuple[str, Variables]]:
        """What was searched, by its region's id and its variables, as `Expectation.region` counts: the regions, after
        them what they run everywhere, last what the plan does not have."""
        own = [(row.region.id, row.variables) for row in self.regions]
        return own + (self.planning.places if self.planning is not None else [])

    @property
    def provisional(self) -> tuple[RegionResult, ...]:
        """What a program may get and has not passed all of its launches under stress yet, what saves most first."""
        found = [row for row in self.deployed if row.chosen.provisional]
        return tuple(sorted(found, key=lambda row: row.after_s - row.before_s))

    @property
    def plan(self) -> Plan:
        """What was chosen, without how it came about."""
        chosen = tuple(PlannedRegion(r.region, r.chosen.schedule, r.variables) for r in self.regions)
        return Plan(self.workload, self.preset, chosen)

    @property
    def total_before_s(self) -> float:
        return sum(r.before_s for r in self.regions)

    @property
    def total_after_s(self) -> float:
        return sum(r.after_s for r in self.regions)

    @property
    def step_s(self) -> tuple[float, float] | None:
        """The kernels of one step of the steady state, before and after; None where there is none."""
        if not self.steps:
            return None
        rows = [(r.replayed / self.steps, r) for r in self.regions]
        return sum(n * r.baseline.cold_s for n, r in rows), sum(n * r.chosen.cold_s for n, r in rows)

    @property
    def once(self) -> tuple[RegionResult, ...]:
        """The regions that ran outside of the steady state alone."""
        return tuple(r for r in self.regions if not r.replayed) if self.steps else ()


# ---- What is done to a region: schedules and the steps between them; and the hash that every identity is made
# of.

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return _ENCODER.encode(value)


def content_id(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


class ScheduleKind(StrEnum):
    OPTS = "opts"
    SOURCE = "source"
    TILE = "tile"
    PARTS = "parts"  # of a region of several kernels: its parts, each with a schedule


@dataclass(frozen=True)
class Schedule:
    """What is done to a region: a kind and its canonical JSON. Its identity is the pair.

    What the JSON says is the matter of the kind alone; `kcg.kernel.kinds.describe` says it in words.
    """

    kind: str
    body: str

    @property
    def id(self) -> str:
        return content_id([self.kind, self.body])


@dataclass(frozen=True)
class Action:
    """One legal step from a schedule: what it is, and the schedule that it leads to."""

    label: str  # e.g. "4 elements along axis 0", in the words of the kind
    schedule: Schedule  # the schedule after the step
