"""Opening tinygrad's CPU where there is no clang.

tinygrad 0.14.0 compiles four helper programs with `clang` when its CPU opens, even where the X86 assembler of the wheel
compiles every kernel (`CPUDevice.__init__`). The helpers serve only the queue mode `HCQ2=1`. In any other mode a trap
instruction takes their place, so that `DEV=CPU:X86` needs no clang, and every process opens in half the time.

This is part of the module that `export` writes, see `kcg.compat.standalone`.

Private: `runtime.ops_cpu.do_to_program`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import Any

TRAP = b"\x0f\x0b"  # ud2: an illegal instruction on purpose; a helper that is called by mistake stops at once


def clang_of_tinygrad() -> str | None:
    """The clang that plain tinygrad finds by itself: `CC` if it is set, even to nothing, else `clang`."""
    return clang_named(os.environ.get("CC", "clang"))


def clang_named(name: str) -> str | None:
    """The path of a program, if it is a clang."""
    path = shutil.which(name)
    return path if path is not None and is_clang(path) else None


@functools.cache
def is_clang(path: str) -> bool:
    """Whether a program says that it is a clang."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return "clang" in answer.lower()


def needs_helpers() -> bool:
    """Whether `HCQ2` asks for the queue mode, in which the helpers run."""
    return os.environ.get("HCQ2", "0") not in ("", "0")


def open_cpu_without_helpers() -> None:
    """From now on the CPU opens without its helpers."""
    from tinygrad.runtime import ops_cpu
    from tinygrad.uop import Ops
    from tinygrad.uop.ops import ProgramInfo, UOp

    def trap(ast: UOp, renderer: Any) -> UOp:
        parts = (ast, UOp(Ops.LINEAR, src=()), UOp(Ops.SOURCE, arg=""), UOp(Ops.BINARY, arg=TRAP))
        return UOp(Ops.PROGRAM, src=parts, arg=ProgramInfo(name=ast.arg.name))

    ops_cpu.do_to_program = trap
