"""Compiled kernels and programs of several launches, as plain data that can cross a process boundary."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kcg.types import Region, Variables, content_id


@dataclass(frozen=True)
class BoundLaunch:
    """How a binary is launched with some values of its kernel's symbolic variables."""

    variables: Variables
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    values: tuple[int | None, ...]  # as in `Compiled`


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel. `signature` lists `(name, slot, dtype name)` of its parameters, buffers first.

    A binary runs with any values of the kernel's symbolic variables; `global_size`, `local_size` and `values` are those
    of a launch with one of the sets of values that were named when it was compiled, see `at`.
    """

    binary: bytes
    source: str
    function_name: str
    signature: tuple[tuple[str | None, int, str], ...]
    slots: tuple[int, ...]  # which buffer each pointer parameter takes
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    values: tuple[int | None, ...]  # of symbolic variables; None is the thread number, which the runtime fills in
    uops: int
    image: bytes = b""  # the same as machine code, where `binary` is compiled once more when it is loaded
    shared_bytes: int = 0  # dynamic shared memory of a launch
    threads: int = 0  # of a hand-written kernel on a CPU, see `kcg.kernel.source.kernels.SourceBody`
    launch_id: str = ""  # of a hand-written kernel, whose code does not say how it is launched
    launches: tuple[BoundLaunch, ...] = ()  # one for each of these sets; none where the kernel has no variables
    report: tuple[tuple[str, int], ...] = ()  # what its compiler says: registers, spilled bytes, warps, …
    tf32: bool = False  # whether its products round float32 operands to tf32, as the user allowed
    by_hand: bool = False  # whether a user wrote it

    def runs_at(self, variables: Variables) -> bool:
        """Whether it is known how it is launched with these values."""
        return not self.launches or any(launch.variables == variables for launch in self.launches)

    def at(self, variables: Variables) -> Compiled:
        """The same binary, launched with these values. Raises ValueError where they were not named before."""
        if not self.launches:
            return self
        for launch in self.launches:
            if launch.variables == variables:
                return replace(self, global_size=launch.global_size, local_size=launch.local_size, values=launch.values)
        raise ValueError(f"{self.function_name} was compiled for other values than {dict(variables)}")

    @property
    def binary_hash(self) -> str:
        """What tells it from other binaries of the same kernel."""
        return hashlib.sha256(self.binary + self.launch_id.encode()).hexdigest()


@dataclass(frozen=True)
class ProgramLaunch:
    """One launch of a program: `args` lists which of the program's buffers each pointer of the binary takes, in the
    order of `Compiled.slots`."""

    compiled: Compiled
    args: tuple[int, ...]

    def binds(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The program's buffers that some slots of the binary take, such as its outputs."""
        return tuple(self.args[self.compiled.slots.index(slot)] for slot in slots)


@dataclass(frozen=True)
class Scratch:
    """A buffer that nobody else sees: a workspace of one launch, or what one launch leaves for the next."""

    elements: int
    dtype: str  # tinygrad's name of it, as in `Compiled.signature`

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ValueError("a workspace has at least one element")


@dataclass(frozen=True)
class Program:
    """What runs a region: launches in order on the region's buffers, numbered as there, and on `scratch` after these.

    What a launch writes must be among the outputs of its `Compiled`, workspaces included.
    """

    launches: tuple[ProgramLaunch, ...]
    buffers: int  # of the region
    scratch: tuple[Scratch, ...] = ()

    def __post_init__(self) -> None:
        last = self.buffers + len(self.scratch)
        if not self.launches or any(not 0 <= n < last for launch in self.launches for n in launch.args):
            raise ValueError("a program has launches, on buffers of its own")
        if any(len(launch.args) != len(launch.compiled.slots) for launch in self.launches):
            raise ValueError("a launch binds each pointer of its binary to a buffer")

    @property
    def id(self) -> str:
        """Hash of binaries, launch sizes, argument order and workspace: equal programs are one measurement."""
        rows = [
            [
                launch.compiled.binary_hash,
                list(launch.compiled.global_size),
                list(launch.compiled.local_size),
                list(launch.compiled.values),
                launch.compiled.shared_bytes,
                list(launch.args),
            ]
            for launch in self.launches
        ]
        return content_id([rows, self.buffers, [[s.elements, s.dtype] for s in self.scratch]])

    @property
    def binary_hash(self) -> str:
        """What tells it from other programs of its region: of a kernel's binary as it is, the binary's own."""
        first = self.launches[0]
        alone = len(self.launches) == 1 and not self.scratch and first.args == first.compiled.slots
        return first.compiled.binary_hash if alone else self.id

    @property
    def tf32(self) -> bool:
        """As of a `Compiled`."""
        return any(launch.compiled.tf32 for launch in self.launches)

    @property
    def by_hand(self) -> bool:
        """As of a `Compiled`."""
        return any(launch.compiled.by_hand for launch in self.launches)

    @property
    def global_size(self) -> tuple[int, ...]:
        """Of its only launch; of several nothing."""
        return self.launches[0].compiled.global_size if len(self.launches) == 1 else ()

    @property
    def local_size(self) -> tuple[int, ...]:
        """As `global_size`."""
        return self.launches[0].compiled.local_size if len(self.launches) == 1 else ()

    @property
    def source(self) -> str:
        """The code of its launches, in order."""
        return "\n\n".join(launch.compiled.source for launch in self.launches)

    def runs_at(self, variables: Variables) -> bool:
        """As of a `Compiled`."""
        return all(launch.compiled.runs_at(_of(launch.compiled, variables)) for launch in self.launches)

    def at(self, variables: Variables) -> Program:
        """As of a `Compiled`: every launch with these values, as far as its kernel has these variables."""
        launches = (replace(one, compiled=one.compiled.at(_of(one.compiled, variables))) for one in self.launches)
        return replace(self, launches=tuple(launches))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The region's buffers that it writes."""
        written = {n for launch in self.launches for n in launch.binds(launch.compiled.outputs)}
        return tuple(sorted(n for n in written if n < self.buffers))


Executable = Compiled | Program
"""What a schedule is compiled to: of one kernel a binary, or launches."""


def _of(compiled: Compiled, variables: Variables) -> Variables:
    """Those that a binary has, of the variables of a region."""
    names = {name for launch in compiled.launches for name, _ in launch.variables}
    return tuple((name, value) for name, value in variables if name in names)


def program_of_parts(region: Region, parts: Sequence[Compiled]) -> Program:
    """The region's kernels in order, each compiled by itself, as one program: what it is compared with.

    The intermediates stay buffers of the region, so it stores what tinygrad stores.
    """
    if len(parts) != len(region.kernels):
        raise ValueError("a region has as many parts as kernels")
    args = region.args or (tuple(range(1 + max(parts[0].slots, default=-1))),)
    launches = [
        ProgramLaunch(compiled, tuple(slots[slot] for slot in compiled.slots))
        for compiled, slots in zip(parts, args, strict=True)
    ]
    return Program(tuple(launches), buffers=1 + max((number for slots in args for number in slots), default=-1))


# ---- as JSON values, for a pipe


def compiled_values(compiled: Compiled) -> dict[str, Any]:
    """A binary as JSON values; `compiled_from` reads them back."""
    code = {name: base64.b64encode(getattr(compiled, name)).decode() for name in ("binary", "image")}
    return {**asdict(replace(compiled, binary=b"", image=b"")), **code}


def compiled_from(values: dict[str, Any]) -> Compiled:
    """The binary of `compiled_values`."""
    read: dict[str, Any] = {name: _tuples(value) for name, value in values.items()}
    read |= {name: base64.b64decode(values[name]) for name in ("binary", "image")}
    launches = tuple(BoundLaunch(**{n: _tuples(v) for n, v in one.items()}) for one in values["launches"])
    return Compiled(**{**read, "launches": launches})


def program_values(program: Program) -> dict[str, Any]:
    """A program as JSON values; `program_from` reads them back."""
    launches = [[compiled_values(launch.compiled), list(launch.args)] for launch in program.launches]
    return {"launches": launches, "buffers": program.buffers, "scratch": [asdict(one) for one in program.scratch]}


def program_from(values: dict[str, Any]) -> Program:
    """The program of `program_values`."""
    launches = tuple(ProgramLaunch(compiled_from(compiled), tuple(args)) for compiled, args in values["launches"])
    return Program(launches, values["buffers"], tuple(Scratch(**one) for one in values["scratch"]))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
