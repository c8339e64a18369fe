"""Which hosts of a fleet are trusted: what a host reports of itself, and what the driver admits.

A host runs its canary and a fixed set of kernels with tinygrad's own schedules, which between them see its clock, its
memory and its caches. The first host of a target that passes is the reference: the others must be as fast as it, and
stay so. Versions must be equal. Nothing here knows of Dask.
"""

from __future__ import annotations

import functools
import json
import math
import platform
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcg.dataset.journal import Doubt, Journal
from kcg.errors import DeviceError, ResultError
from kcg.measure.canary import tolerance
from kcg.measure.device_info import first_line
from kcg.measure.jobs import PairedJob, PairedOutcome
from kcg.measure.pools import ServiceClosed
from kcg.nouns import encode, noun_from_json
from kcg.provenance import UNKNOWN, provenance
from kcg.types import Target, Toolchain

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.measure.service import MeasureService, Request

RECHECK_S = 600.0
"""From one check of a host to the next: a check takes seconds, and what a host measured since the last one is what may
be lost."""

SEEDS = (1,)  # of the inputs on which a reference kernel is verified
TRIES = 3  # until A and B of a reference kernel agree
TIMEOUT_S = 120.0  # of one reference kernel, as of a baseline
LONGEST_REASON = 400  # characters
REFERENCE = "reference"
"""The name, in the description of a run in a journal, of what its host agreed with when it joined."""


@dataclass(frozen=True)
class Limits:
    """How far a host may be from the first of its target, and its A from its B: 0.03 is 3 %."""

    agree: float  # the median over the reference kernels, cold and warm
    each: float  # any one of them
    noise: float  # A against B of any one


GPU_LIMITS = Limits(agree=0.03, each=0.10, noise=0.03)
CPU_LIMITS = Limits(agree=0.50, each=5.0, noise=0.50)
"""Of a CPU, which is shared with all that runs on the machine: docs/fleet.md has what was measured."""


def limits_of(target: Target) -> Limits:
    """The limits for hosts of a target."""
    return CPU_LIMITS if target.device == "CPU" else GPU_LIMITS


# ---- The reference set: a few kernels, the same on every host of a target.


def _shapes(target: Target) -> dict[str, Callable[[], Tensor]]:
    """What the reference kernels compute. On a GPU each takes a fifth of a millisecond or more, since a launch costs
    about 2 µs more on one machine than on another; on a CPU about one, since longer ones are interrupted."""
    from tinygrad import Tensor

    def new(*shape: int, dtype: str = "float32") -> Tensor:
        return Tensor.empty(*shape, dtype=dtype, device=target.device)

    if target.device == "CPU":
        return {
            "copy": lambda: new(1 << 21) + 0.5,
            "matmul": lambda: new(160, 160) @ new(160, 160),
            "row sums": lambda: new(2048, 2048).sum(1),
            "gather": lambda: new(1 << 14, 64)[new(1 << 14, dtype="int32")],
        }
    return {
        "copy": lambda: new(1 << 27) + 0.5,
        "matmul": lambda: new(4096, 4096, dtype="float16") @ new(4096, 4096, dtype="float16"),
        "row sums": lambda: new(1 << 14, 1 << 14).sum(1),
        "gather": lambda: new(1 << 16, 1024)[new(1 << 17, dtype="int32")],
    }


@functools.cache
def _requests(target: Target) -> tuple[Request, ...]:
    from kcg.kernel.codec import kernel_of
    from kcg.kernel.kinds import baseline_of
    from kcg.measure.service import Request
    from kcg.types import Region

    found = []
    for name, build in _shapes(target).items():
        region = Region((kernel_of(build().schedule_linear().src[-1].src[0]),))
        found.append(Request(region, baseline_of(region, target), sampler=name))
    return tuple(found)


def reference_requests(target: Target) -> list[Request]:
    """The reference kernels with tinygrad's own schedules; the `sampler` of each is its name. Opens no device."""
    return list(_requests(target))


# ---- What a host says of itself.


@dataclass(frozen=True)
class Versions:
    """What is installed on a host; empty where it is not there."""

    kcg: str
    revision: str  # of kcg, `kcg.provenance.UNKNOWN` where it runs from no repository
    dirty: bool | None
    tinygrad: str
    python: str
    triton: str
    ptxas: str
    clang: str

    @property
    def python_minor(self) -> str:
        """Without its last number, which changes nothing that is measured."""
        return ".".join(self.python.split(".")[:2])


def versions() -> Versions:
    """Those of this process. Opens no device."""
    import kcg
    from kcg.compat.assembler import assembler
    from kcg.measure.device_info import clang_version, version_of

    using, made_by = assembler(), provenance()
    return Versions(
        kcg.__version__,
        made_by["revision"],
        made_by["dirty"],
        version_of("tinygrad"),
        platform.python_version(),
        version_of("triton"),
        using.version if using is not None else "",
        clang_version(),
    )


@dataclass(frozen=True)
class ReferenceTime:
    """Seconds of one reference kernel: its cold samples as A and, in turns with these, as B, and its warm ones.

    On a GPU their medians, on a CPU the least of them.
    """

    name: str
    region_id: str
    a_s: float
    b_s: float
    warm_s: float

    def __post_init__(self) -> None:
        """Raises ValueError where one is no time, as a report can have it."""
        if not all(0 < seconds < math.inf for seconds in (self.a_s, self.b_s, self.warm_s)):
            raise ValueError(f"the reference kernel {self.name} has times of {self.a_s}, {self.b_s}, {self.warm_s} s")

    @property
    def cold_s(self) -> float:
        return min(self.a_s, self.b_s)

    @property
    def noise(self) -> float:
        """How far A and B are apart: 0.01 is 1 %."""
        return abs(self.a_s - self.b_s) / self.cold_s


@dataclass(frozen=True)
class HostReport:
    """A host as it is now: what is there, and how fast it is. Travels as JSON (`kcg.nouns`)."""

    run_id: str  # of its service, with which its rows come
    host: str  # its name, for messages: a journal is published, and has none
    versions: Versions
    target: Target
    toolchain: Toolchain
    canary_s: float  # as the times of the reference kernels
    kernels: tuple[ReferenceTime, ...]
    fault: str = ""  # why nothing of this host is to be trusted, by its canary or a reference kernel

    def __post_init__(self) -> None:
        """Raises ValueError where a report tells nothing, as one that travelled can."""
        if not self.fault and not (self.kernels and 0 < self.canary_s < math.inf):
            raise ValueError("a host without a fault has a canary and reference kernels")

    @property
    def facts(self) -> dict[str, Any]:
        """Under `report` in the description of its run in a journal: all but its name, and what the journal has
        elsewhere."""
        left_out = ("run_id", "host", "target", "toolchain")
        return {name: value for name, value in encode(self).items() if name not in left_out}

    @property
    def whole(self) -> dict[str, Any]:
        """Under `REFERENCE` in the descriptions of the runs that it was the reference for: all but its name."""
        return {name: value for name, value in encode(self).items() if name != "host"}

    @property
    def kernel_ids(self) -> tuple[str, ...]:
        """Of the reference kernels, in their order."""
        return tuple(kernel.region_id for kernel in self.kernels)


def host_report(service: MeasureService) -> HostReport:
    """Run the canary and the reference kernels; some seconds, in which nothing else is to run on the host.

    What is wrong with the host is in the report. Raises DeviceError where its device does not open or is lost.
    """
    target, toolchain = service.facts
    reading = service.read_canary().result()
    fault = reading.fault()
    timed: list[ReferenceTime] = []
    if fault:
        fault = f"its canary is wrong: {fault}"
    else:
        requests = reference_requests(target)
        # all are compiled before one is timed
        wait([service.compiled(request.region, request.schedule) for request in requests])
        for request in requests:
            found = _timed(service, request)
            if isinstance(found, str):
                fault = f"its reference kernel {request.sampler} {found}"
                break
            timed.append(found)
    canary_s = math.nan if fault and not timed else _stands_for(reading.samples_s, target)
    return HostReport(service.run_id, platform.node(), versions(), target, toolchain, canary_s, tuple(timed), fault)


def _timed(service: MeasureService, request: Request) -> ReferenceTime | str:
    """The times of a reference kernel, the quietest of a few; or what is wrong with it."""
    least: ReferenceTime | None = None
    for _ in range(TRIES):
        try:
            compiled = service.compiled(request.region, request.schedule).result().compiled
            job = PairedJob(request.region, compiled, None, service.target, seeds=SEEDS)
            outcome = service.compare_paired(job, timeout_s=TIMEOUT_S).result()
        except (DeviceError, ServiceClosed):
            raise
        except Exception as error:  # it died, it hung, or anything that a broken host may raise
            return f"fails: {first_line(error)}"
        if not outcome.baseline_verification.passed:
            return f"is wrong: {outcome.baseline_verification.reason}"
        if outcome.noisy:
            return f"cannot be timed: {outcome.noisy}"
        try:
            found = _times_of(request, outcome, service.target)
        except ValueError as error:
            return f"cannot be timed: {error}"
        if least is None or found.noise < least.noise:
            least = found
        if least.noise <= limits_of(service.target).noise:
            break
    assert least is not None
    return least


def _times_of(request: Request, outcome: PairedOutcome, target: Target) -> ReferenceTime:
    sides = (outcome.baseline_cold_s, outcome.again_cold_s, outcome.baseline_warm_s)
    return ReferenceTime(request.sampler, request.region.id, *(_stands_for(samples, target) for samples in sides))


def _stands_for(samples_s: Sequence[float], target: Target) -> float:
    """The median; of a CPU the least, which the neighbours of a process disturb least."""
    return min(samples_s) if target.device == "CPU" else statistics.median(samples_s)


# ---- What the driver admits.

_OF_DRIVER = {"kcg": "kcg", "tinygrad": "tinygrad", "python_minor": "Python", "triton": "Triton"}
_OF_COMPILING = {**_OF_DRIVER, "ptxas": "ptxas", "clang": "clang"}
_OF_TOOLCHAIN = {
    "tinygrad": "tinygrad",
    "compiler": "compiler",
    "driver": "device driver",
    "triton": "Triton",
    "action_space": "list of actions",
    "assembler": "assembler",
    "generator": "generator of tile programs",
}
"""The fields that must be equal, and their names in a message."""


def _difference(theirs: object, ours: object, names: dict[str, str], whose: str) -> str:
    """The first field in which two records differ, as what to do about it; empty where there is none."""
    for name, words in names.items():
        here, there = getattr(theirs, name), getattr(ours, name)
        if here != there:
            return f"has {words} {here or '(none)'}, {whose} {there or '(none)'}: install the same"
    return ""


def other_version(theirs: Versions, driver: Versions, *, compiles_only: bool = False) -> str:
    """Why what is installed on a host is not what the driver has; empty where it is the same.

    A revision of kcg counts where both are known and neither tree was changed. Of a host that `compiles_only`, and has
    no device to read a toolchain from, the compilers themselves must be equal.
    """
    if found := _difference(theirs, driver, _OF_COMPILING if compiles_only else _OF_DRIVER, "the driver"):
        return found
    known = UNKNOWN not in (theirs.revision, driver.revision) and not (theirs.dirty or driver.dirty)
    if known and theirs.revision != driver.revision:
        return f"has kcg of revision {theirs.revision[:12]}, the driver of {driver.revision[:12]}: check out the same"
    return ""


def too_noisy(report: HostReport) -> str:
    """Why the times of a host cannot be compared; empty where they can."""
    limit = limits_of(report.target).noise
    worst = max(report.kernels, key=lambda kernel: kernel.noise)
    if worst.noise <= limit:
        return ""
    return (
        f"times one binary as A and as B {worst.noise:.0%} apart ({worst.name}; {limit:.0%} is allowed): "
        "end what else runs there"
    )


def ratios_of(report: HostReport, first: HostReport) -> dict[str, float]:
    """How many times as long a host takes for each reference kernel as the first one, cold and warm."""
    found = {}
    for mine, other in zip(report.kernels, first.kernels, strict=True):
        found[f"{mine.name}, cold"] = mine.cold_s / other.cold_s
        found[f"{mine.name}, warm"] = mine.warm_s / other.warm_s
    return found


def apart(ratio: float) -> float:
    """How far a ratio is from 1, whichever is longer: 0.03 is 3 %."""
    return max(ratio, 1 / ratio) - 1 if ratio else math.inf


def disagreement(report: HostReport, first: HostReport, whose: str) -> str:
    """In which way a host is not as fast as the first one of its target, whose name is `whose`; empty where it is."""
    limits = limits_of(report.target)
    if report.kernel_ids != first.kernel_ids:
        return f"has other reference kernels than {whose}: install the same kcg"
    if report.canary_s > tolerance(report.target.tinygrad_device) * first.canary_s:
        return f"has a canary of {report.canary_s * 1e3:.3g} ms, {whose} of {first.canary_s * 1e3:.3g} ms: {_LOOK}"
    ratios = ratios_of(report, first)
    if apart(median := statistics.median(ratios.values())) > limits.agree:
        return (
            f"takes {median:.2f} times as long as {whose} for the reference kernels ({1 + limits.agree:g} times is "
            f"allowed, faster or slower): {_LOOK}"
        )
    name, worst = max(ratios.items(), key=lambda item: apart(item[1]))
    if apart(worst) > limits.each:
        return (
            f"takes {worst:.2f} times as long as {whose} for one reference kernel ({name}; {1 + limits.each:g} times "
            f"is allowed, faster or slower): {_LOOK}"
        )
    return ""


_LOOK = "see what slows it down, or leave it out"


def _in_one_line(text: str) -> str:
    """What a host says of itself may be of any form."""
    return " ".join(text.split())[:LONGEST_REASON]


def references_of(journal: Journal, called: str) -> list[HostReport]:
    """What hosts had to agree with that have measured for a journal, the oldest first: those that measure for it later
    must, too. `called` is what such a reference is in a message. Runs of an older kcg hold none."""
    found = []
    for run in sorted(journal.runs().values(), key=lambda run: run.started):
        if (kept := run.description.get(REFERENCE)) is not None:
            with suppress(ResultError, TypeError):  # of another kcg
                found.append(noun_from_json(HostReport, json.dumps({**kept, "host": called})))
    return found


@dataclass
class Admitted:
    """A host that is trusted, by the time at which its last check that passed was asked for, by the driver's
    `unix_now_s`, which is also that of the rows it records."""

    address: str
    report: HostReport
    passed_unix_s: float


@dataclass
class Admission:
    """The driver's list of trusted hosts, by the run of each. The first host of a target is the reference for all,
    unless there is one of an earlier driver's already."""

    driver: Versions
    recheck_s: float = RECHECK_S
    earlier: Sequence[HostReport] = ()  # references of before, the oldest first; `host` of each is what it is called
    hosts: dict[str, Admitted] = field(default_factory=dict)  # by run
    _first: dict[str, tuple[str, HostReport]] = field(default_factory=dict)  # by target: an address and its report
    _drained: set[str] = field(default_factory=set)  # runs

    def join(self, address: str, report: HostReport, *, asked_unix_s: float) -> str:
        """Admit a host, or the one line that says why not. `asked_unix_s` is when the report was asked for."""
        if report.run_id in self._drained:
            return f"worker {address} was drained: start it again"
        if why := self._why_not(report):
            return f"worker {address} {_in_one_line(why)}"
        self._first.setdefault(report.target.fingerprint, self._reference(address, report))
        self.hosts[report.run_id] = Admitted(address, report, asked_unix_s)
        return ""

    def reference_of(self, target: Target) -> HostReport:
        """What hosts of a target have to agree with. Raises KeyError where none was admitted."""
        return self._first[target.fingerprint][1]

    def _reference(self, address: str, report: HostReport) -> tuple[str, HostReport]:
        """What a host has to agree with, and what that is called in a message: it is its own where it is the first."""
        if (first := self._first.get(report.target.fingerprint)) is not None:
            return first
        for one in self.earlier:
            same = one.target.fingerprint == report.target.fingerprint and one.toolchain == report.toolchain
            if same and one.kernel_ids == report.kernel_ids:
                return one.host, one
        return address, report

    def due(self, now_unix_s: float) -> list[Admitted]:
        """The hosts that are to be checked again, the one that waits longest first."""
        late = [host for host in self.hosts.values() if now_unix_s - host.passed_unix_s >= self.recheck_s]
        return sorted(late, key=lambda host: host.passed_unix_s)

    def recheck(self, report: HostReport, *, asked_unix_s: float) -> Doubt | None:
        """Take in the report of an admitted host. One that does not pass is drained: what it measured since its last
        check is doubtful, which the journal is to hold. None where it passes, or is gone meanwhile."""
        if (host := self.hosts.get(report.run_id)) is None:
            return None
        why = self._why_not(report, "the first host of its target")  # no address: a journal is published
        if report.target != host.report.target:
            why = "is of another target than it was"
        if why:
            return self.drain(report.run_id, why)
        host.report, host.passed_unix_s = report, asked_unix_s
        return None

    def drain(self, run_id: str, why: str) -> Doubt:
        """Trust a host no more, for good: its process has to be started again, and is another run then."""
        host = self.hosts.pop(run_id)
        self._drained.add(run_id)
        return Doubt(run_id, host.passed_unix_s, _in_one_line(f"its host {why}"))

    def left(self, run_id: str) -> None:
        """A host is gone, of whose rows nothing bad is known."""
        self.hosts.pop(run_id, None)

    def _why_not(self, report: HostReport, whose: str = "") -> str:
        if report.fault:
            return f"is not to be trusted: {report.fault}"
        if why := other_version(report.versions, self.driver):
            return why
        name, first = self._reference("", report)
        whose = whose or name
        return (
            _difference(report.toolchain, first.toolchain, _OF_TOOLCHAIN, whose)
            or too_noisy(report)
            or disagreement(report, first, whose)
        )
