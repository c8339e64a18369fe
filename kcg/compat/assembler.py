"""The assembler of Triton's programs: NVIDIA's `ptxas`, 13 or newer where one is found, and what it says of a kernel.

ptxas 12.8 and 12.9 turn right programs into faults and NaN (docs/tiles.md). So tile programs never ask the driver's own
assembler, which is of any version: what is handed over is machine code.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcg.errors import ScheduleError

TRUSTED = (13, 0)
"""The first version whose code is not known to be wrong."""
PATH_VARIABLE = "TRITON_PTXAS_PATH"
TIMEOUT_S = 60.0  # of `ptxas --version`; a compilation has the limit of the child that it runs in
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Assembler:
    """One `ptxas`."""

    path: str
    version: str  # "13.4.59"

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def trusted(self) -> bool:
        """Whether no wrong code of it is known."""
        return self.number >= TRUSTED

    @property
    def name(self) -> str:
        """As a toolchain names it."""
        return f"ptxas {self.version}"

    @property
    def ptx_version(self) -> int:
        """The newest PTX that it reads, as Triton counts: 87 for 8.7."""
        major, minor = self.number
        if major >= 13:
            return 90 + 10 * (major - 13) + minor
        return 80 + minor - (minor >= 6)


@dataclass(frozen=True)
class Assembled:
    """Machine code, and what the assembler says of it."""

    cubin: bytes
    registers: int  # of a thread
    stack_bytes: int  # of a thread
    spilled_bytes: int  # stored and loaded by a thread
    shared_bytes: int = 0  # that the code declares itself, beside what it is launched with


@functools.cache
def assembler() -> Assembler | None:
    """The one that is used: what `TRITON_PTXAS_PATH` names, if that is 13 or newer, else the newest of those on the
    path and in Triton's package. None where there is none."""
    named = _examined(os.environ.get(PATH_VARIABLE) or "")
    if named is not None and named.trusted:
        return named
    found = [named, *map(_examined, _paths())]
    return max((a for a in found if a is not None), key=lambda a: a.number, default=None)


def _paths() -> list[str]:
    found = [shutil.which("ptxas") or ""]
    spec = importlib.util.find_spec("triton")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
        found += [str(folder / "ptxas-blackwell"), str(folder / "ptxas")]
    return found


def _examined(path: str) -> Assembler | None:
    if not Path(path).is_file():
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"V(\d+\.\d+(?:\.\d+)*)", done.stdout)
    return Assembler(path, version[1]) if version else None


@contextlib.contextmanager
def ending_with_ptx(triton: Any) -> Iterator[None]:
    """What Triton compiles within is not assembled: its own choice of `ptxas` may be one that cannot read the PTX of
    `Assembler.ptx_version`, and what it makes would not be used."""

    def stages(*given: Any) -> tuple[str, str] | None:
        if not given:  # it asks what this function is part of the cache's key with
            return "kcg", "kcg"
        if "cubin" in given[1]:
            given[1]["cubin"] = lambda text, metadata: b""
        return None

    with triton.knobs.runtime.scope():
        triton.knobs.runtime.add_stages_inspection_hook = stages
        yield


def assemble(text: str, using: Assembler) -> Assembled:
    """PTX text as machine code of the architecture that it names. Raises ScheduleError, in one line."""
    named = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    if named is None:
        raise ScheduleError("the PTX names no architecture")
    with tempfile.TemporaryDirectory(prefix="kcg-ptx-") as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text)
        # what Triton itself passes to 13 and newer, against a fault of their register allocation
        options = ["--regAllocOptLevel=2"] if using.trusted else []
        command = [using.path, "-v", *options, f"--gpu-name={named[1]}", str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            words = " ".join(done.stderr.replace(str(source), "source").split())
            raise ScheduleError(f"{using.name} failed: {words[:250] or f'exit code {done.returncode}'}")
        registers, spills = _REGISTERS.search(done.stderr), _SPILLS.search(done.stderr)
        stack, stored, loaded = map(int, spills.groups()) if spills else (0, 0, 0)
        shared = _SHARED.search(done.stderr)
        return Assembled(
            cubin.read_bytes(), int(registers[1]) if registers else 0, stack, stored + loaded,
            int(shared[1]) if shared else 0,
        )  # fmt: skip
