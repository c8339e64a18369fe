"""A compiled kernel as plain data that can cross a process boundary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from kcg.types import Variables


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
    threads: int = 0  # of a hand-written kernel on a CPU, see `kcg.kernel.handwritten.SourceBody`
    launch_id: str = ""  # of a hand-written kernel, whose code does not say how it is launched
    launches: tuple[BoundLaunch, ...] = ()  # one for each of these sets; none where the kernel has no variables

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
