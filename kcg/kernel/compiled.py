"""A compiled kernel as plain data that can cross a process boundary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel. `signature` lists `(name, slot, dtype name)` of its parameters, buffers first."""

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

    @property
    def binary_hash(self) -> str:
        """What tells it from other binaries of the same kernel."""
        return hashlib.sha256(self.binary + self.launch_id.encode()).hexdigest()
