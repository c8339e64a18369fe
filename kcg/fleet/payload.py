"""What travels between a driver and its hosts: nouns of kcg as JSON in bytes, checked field by field when they arrive.

A payload is a JSON object: the name of its noun, the texts of the kernels that it names by id, and the noun. Nothing in
it is a name of code: which function runs is fixed by the task, see `kcg.fleet.tasks`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from kcg.campaign.sampling import DrawJob, Drawn
from kcg.campaign.tables import LatticeDrawn, LatticeJob
from kcg.errors import CodecError, DataError, DeviceError, KcgError, ScheduleError
from kcg.fleet.trust import HostReport, Versions
from kcg.kernel.codec import ast_of
from kcg.kernel.composed import kinds_in
from kcg.kernel.kinds import KINDS, parse, traits_of
from kcg.kernel.program import Compiled, Executable, Program
from kcg.measure.service import Request
from kcg.nouns import NEWER, Document, Malformed, decode, encode, kernels_of, no_constant, same_names, shown, unique
from kcg.predictor.choice import AUTO, ROOFLINE
from kcg.types import (
    Kernel,
    Measurement,
    Region,
    Schedule,
    Target,
    Toolchain,
    Variables,
    content_id,
    malformed,
)

T = TypeVar("T")

FAILURES = ("TimeoutError", "ChildDied", "MemoryError", "RuntimeError")
"""How compiling fails, as far as the status of a row depends on it; the last stands for any other."""
MAX_BYTES = 64 << 20  # of one payload: a draw of a table's kernel, with a thousand schedules known, takes 0.4 MB
MOST_REQUESTS = 4096  # of one task
LONGEST_S = 3600.0  # that a payload may ask to be spent on one candidate
MOST_SAMPLES = 100_000


def travels(schedule: Schedule) -> bool:
    """Whether a schedule may go to a host, and come from elsewhere: it is parameters. One written by hand is code."""
    return schedule.kind in KINDS and not traits_of(schedule).by_hand


@dataclass(frozen=True)
class HostFacts:
    """What a host offers."""

    run_id: str  # of the rows that it measures
    device: str  # as `--device` names it
    target: Target
    toolchain: Toolchain
    compile_workers: int
    takes_binaries: bool = False  # runs what other hosts compiled

    @property
    def resource(self) -> str:
        """The name under which the scheduler knows its device."""
        return resource_of(self.target)


def resource_of(target: Target) -> str:
    """The scheduler's name for devices of a target: `cpu:…` or `gpu:…`, and the target's fingerprint."""
    return f"{'cpu' if target.device == 'CPU' else 'gpu'}:{target.fingerprint}"


@dataclass(frozen=True)
class Checked:
    """What a host offers, and how its check went."""

    facts: HostFacts
    report: HostReport

    def __post_init__(self) -> None:
        """Raises ValueError where the two are of different hosts."""
        facts, report = self.facts, self.report
        if (facts.run_id, facts.target, facts.toolchain) != (report.run_id, report.target, report.toolchain):
            raise ValueError("a report of another host")


@dataclass(frozen=True)
class CompilerFacts:
    """What a host says of itself that only compiles."""

    versions: Versions
    cores: int


@dataclass(frozen=True)
class CompileTask:
    """Schedules of a region to compile, each once, for launches with each of `bindings`."""

    region: Region
    schedules: tuple[Schedule, ...]
    bindings: tuple[Variables, ...]
    target: Target
    toolchain: Toolchain  # of the measuring hosts
    timeout_s: float  # of one


@dataclass(frozen=True)
class Made:
    """What compiling a schedule came to: the hash of a `Binary`, or a failure by its name in `kcg.fleet.compiling`."""

    binary: str = ""
    compile_s: float = 0.0
    failure: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Compilations:
    """What became of each schedule of a `CompileTask`."""

    made: tuple[Made, ...]


@dataclass(frozen=True)
class Binary:
    """What a schedule was compiled to: of one kernel a binary, or launches."""

    compiled: Compiled | None
    program: Program | None

    @classmethod
    def of(cls, executable: Executable) -> Binary:
        """That of an executable."""
        return cls(executable, None) if isinstance(executable, Compiled) else cls(None, executable)

    @property
    def executable(self) -> Executable:
        found = self.compiled or self.program
        assert found is not None
        return found

    @cached_property
    def id(self) -> str:
        """Hash of its code and of all that it is launched with."""
        return content_id(encode(self))


@dataclass(frozen=True)
class BinariesWanted:
    """Hashes."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Binaries:
    """Those of these hashes, in their order."""

    binaries: tuple[Binary, ...]


@dataclass(frozen=True)
class MeasureJob:
    """Requests of one kernel, and rows of it from elsewhere whose binaries are not to be timed again for this `driver`;
    what it sent before counts as well, but for rows of runs that are `doubtful` to it. What was compiled elsewhere
    comes with it: what became of each distinct schedule, and the binaries that the host lacks."""

    requests: tuple[Request, ...]
    known: tuple[Measurement, ...] = ()
    made: tuple[Made, ...] = ()
    binaries: tuple[Binary, ...] = ()
    doubtful: tuple[str, ...] = ()
    driver: str = ""  # its run


@dataclass(frozen=True)
class Measured:
    """A row for each request, in their order, and where the time of the host's children went since its last answer."""

    rows: tuple[Measurement, ...]
    spent_s: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why a task has no answer."""

    reason: str
    device: bool = False  # whether nothing more is measured on this host


NOUNS: tuple[type[Any], ...] = (
    Binaries, BinariesWanted, Checked, CompileTask, Compilations, CompilerFacts, DrawJob, Drawn, Failure,
    LatticeDrawn, LatticeJob, MeasureJob, Measured,
)  # fmt: skip
"""All that can be a payload."""


def pack(noun: Any) -> bytes:
    """A noun of `NOUNS` as a payload."""
    kernels = {kernel.id: kernel.ast_json for region in _regions(noun) for kernel in region.kernels}
    document = {"noun": type(noun).__name__, "asts": kernels, "value": encode(noun)}
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def unpack(payload: bytes, *nouns: type[T]) -> T:
    """The noun of a payload, which must be one of these, every field checked.

    Raises:
        DataError: it is none, or says what kcg cannot trust. A `Failure` raises what it means: DeviceError where the
            host is lost, else KcgError.
    """
    try:
        found = _read(payload, (*nouns, Failure))
    except (Malformed, CodecError, ScheduleError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"a payload that kcg cannot trust: {' '.join(str(error).split())[:300]}") from None
    if isinstance(found, Failure) and Failure not in nouns:
        raise DeviceError(found.reason) if found.device else KcgError(found.reason)
    return found  # type: ignore[no-any-return]


def _read(payload: bytes, nouns: Iterable[type[Any]]) -> Any:
    if not isinstance(payload, bytes) or len(payload) > MAX_BYTES:
        raise Malformed("", f"at most {MAX_BYTES >> 20} MiB are expected")
    document = json.loads(payload, object_pairs_hook=unique, parse_constant=no_constant)
    if not isinstance(document, dict):
        raise Malformed("", f"an object is expected, not {shown(document)}")
    same_names(set(document), {"noun", "asts", "value"}, "")
    noun = {n.__name__: n for n in nouns}.get(document["noun"]) if isinstance(document["noun"], str) else None
    if noun is None:
        raise Malformed("noun", f"{shown(document['noun'])} is not what this task takes")
    found = decode(document["value"], noun, "", of=Document(_kernels(document["asts"]), may_lack=NEWER))
    for region in _regions(found):
        if wrong := malformed(region):
            raise Malformed("region", wrong)
    _check(found)
    return found


def _kernels(asts: Any) -> dict[str, Kernel]:
    """The kernels of a payload by id, each decoded: operations and arguments outside of the allow-list are refused."""
    kernels = kernels_of(asts)
    for kernel in kernels.values():
        _decodes(kernel)
    return kernels


@lru_cache(256)
def _decodes(kernel: Kernel) -> bool:
    """Raises CodecError where the kernel holds what the codec does not allow: a host gets one in many tasks."""
    ast_of(kernel)
    return True


def _regions(noun: Any) -> Iterator[Region]:
    if isinstance(noun, MeasureJob):
        yield from {request.region.id: request.region for request in noun.requests}.values()
    elif isinstance(noun, DrawJob | LatticeJob | CompileTask):
        yield noun.region


def _check(noun: Any) -> None:
    """What the types of a noun do not say. Raises Malformed or ScheduleError."""
    if isinstance(noun, MeasureJob):
        if not 0 < len(noun.requests) <= MOST_REQUESTS or len({r.region.id for r in noun.requests}) != 1:
            raise Malformed("requests", f"1 to {MOST_REQUESTS} of one kernel are expected")
        for i, request in enumerate(noun.requests):
            _check_request(request, f"requests[{i}]")
        if any(row.region_id != noun.requests[0].region.id for row in noun.known):
            raise Malformed("known", "rows of the kernel of the requests are expected")
        _check_schedules(row.schedule for row in noun.known)
        _check_made(noun.made)
        if noun.made and len(noun.made) != len({request.schedule for request in noun.requests}):
            raise Malformed("made", "one for each schedule is expected")
        _check_binaries(noun.binaries)
    elif isinstance(noun, CompileTask):
        if not 0 < len(noun.schedules) <= MOST_REQUESTS or not 0 < len(noun.bindings) <= MOST_REQUESTS:
            raise Malformed("schedules", f"1 to {MOST_REQUESTS} are expected")
        if not 0 < noun.timeout_s <= LONGEST_S:
            raise Malformed("timeout_s", f"at most {LONGEST_S:g} s are expected")
        _check_schedules(noun.schedules)
    elif isinstance(noun, Compilations):
        _check_made(noun.made)
    elif isinstance(noun, Binaries):
        _check_binaries(noun.binaries)
    elif isinstance(noun, Measured):
        _check_schedules(row.schedule for row in noun.rows)
        if any(not (0 <= time_s < math.inf) for row in noun.rows for time_s in (*row.samples_s, row.compile_s)):
            raise Malformed("rows", "a time is none")
    elif isinstance(noun, DrawJob | LatticeJob):
        _check_schedules(known.schedule for known in noun.known)
        if isinstance(noun, DrawJob) and noun.predictor not in (AUTO, ROOFLINE):
            raise Malformed("predictor", f"{shown(noun.predictor)}: a host follows {AUTO} or {ROOFLINE}")
    elif isinstance(noun, Drawn):
        _check_schedules(choice.schedule for choice in noun.batch)


def _check_request(request: Request, where: str) -> None:
    _check_schedules((request.schedule,))
    if request.timeout_s is not None and not 0 < request.timeout_s <= LONGEST_S:
        raise Malformed(f"{where}.timeout_s", f"at most {LONGEST_S:g} s are expected")
    if request.samples is not None and not 1 <= request.samples <= MOST_SAMPLES:
        raise Malformed(f"{where}.samples", f"1 to {MOST_SAMPLES} are expected")


def _check_made(made: Iterable[Made]) -> None:
    for one in made:
        if one.failure not in ("", *FAILURES) or bool(one.failure) == bool(one.binary):
            raise Malformed("made", "a binary or a failure is expected")
        if not 0 <= one.compile_s < math.inf:
            raise Malformed("made", "a time is none")


def _check_binaries(binaries: Iterable[Binary]) -> None:
    for binary in binaries:
        if (binary.compiled is None) == (binary.program is None):
            raise Malformed("binaries", "a kernel's or a program is expected")


def _check_schedules(schedules: Iterable[Schedule]) -> None:
    for schedule in schedules:
        if not travels(schedule):
            of_parts = schedule.kind in KINDS and kinds_in(schedule) != [schedule.kind]
            what = "one of its parts is of a kind that" if of_parts else f"the kind {shown(schedule.kind)}"
            raise Malformed("schedule", f"{what} does not travel")
        parse(schedule.kind, schedule.body)
