"""Compiled programs that tinygrad did not make: compiling C, loading with shared memory, and in a kernel's place.

How a program gets into the place of a kernel: a call's SINK gives way to a PROGRAM that holds a BINARY already, which
tinygrad then neither lowers nor compiles; `runtime_cache` has the loaded program for it where shared memory is dynamic,
which a PROGRAM cannot say. Eager calls, `TinyJit` and its CUDA graphs all take it from there.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from kcg.compat.tiny import (
    AddrSpace,
    CompileError,
    Device,
    KernelInfo,
    Ops,
    ParamArg,
    ProgramInfo,
    TinyTarget,
    UOp,
    dtypes,
)

ALIGNMENT = 16  # bytes; what vector loads of a hand-written kernel may rely on
MOST = 2**31 - 1  # of an integer that a program takes
CORE_ID = "core_id"  # tinygrad's name of the variable that tells a CPU kernel which of its threads it is


def load_program(device: str, elf: Any, *, shared_bytes: int = 0) -> Any:
    """tinygrad's loaded program of a `TinyELF`, with dynamic shared memory where it asks for some."""
    opened = Device[device]
    if not shared_bytes:
        return opened.runtime(elf)
    from tinygrad.runtime.ops_cuda import CUDAProgram

    return CUDAProgram(opened, elf, smem=shared_bytes)


def program_in_place(
    ast: UOp, elf: Any, device: str, *, shared_bytes: int, global_size: tuple[int, ...], local_size: tuple[int, ...],
    outputs: tuple[int, ...], inputs: tuple[int, ...], threads: int = 0, source: str = "",
) -> UOp:  # fmt: skip
    """A PROGRAM that runs `elf` on the buffers of `ast`, in slot order, for a call in the place of `ast`."""
    buffers = sorted(
        (u for u in ast.toposort() if u.op is Ops.PARAM and u.addrspace != AddrSpace.ALU), key=lambda u: u.arg.slot
    )
    variables = (core_variable(len(buffers), threads),) if threads else ()
    return _program(
        ast, buffers, variables, elf, device, shared_bytes=shared_bytes, global_size=global_size, local_size=local_size,
        outputs=outputs, inputs=inputs, source=source,
    )  # fmt: skip


def program_of_launch(
    elf: Any, device: str, buffers: Sequence[tuple[int, str]], *, shared_bytes: int, global_size: tuple[int, ...],
    local_size: tuple[int, ...], outputs: tuple[int, ...], inputs: tuple[int, ...], variables: Sequence[str] = (),
    source: str = "",
) -> UOp:  # fmt: skip
    """A PROGRAM that runs `elf` on buffers of so many elements of a dtype, in this order, in a call of its own making.

    `variables` are the names of integers that follow the buffers: the program's symbolic ones, or `CORE_ID`. What the
    launch writes, workspaces included, must be in `outputs`, and what it reads in `inputs`: by these `TinyJit` copies
    what is fed back, and graphs order their launches.
    """
    by_name = {d.name: d for d in dtypes.all}
    params = [UOp.param(slot, by_name[dtype], (size,), device) for slot, (size, dtype) in enumerate(buffers)]
    limits = {CORE_ID: global_size[0] - 1}
    numbers = tuple(
        _variable(len(params) + place, name, limits.get(name, MOST)) for place, name in enumerate(variables)
    )  # fmt: skip
    return _program(
        UOp.sink(*params), params, numbers, elf, device, shared_bytes=shared_bytes, global_size=global_size,
        local_size=local_size, outputs=outputs, inputs=inputs, source=source,
    )  # fmt: skip


def _program(
    sink: UOp, buffers: Sequence[UOp], variables: tuple[UOp, ...], elf: Any, device: str, *, shared_bytes: int,
    global_size: tuple[int, ...], local_size: tuple[int, ...], outputs: tuple[int, ...], inputs: tuple[int, ...],
    source: str,
) -> UOp:  # fmt: skip
    info = ProgramInfo(
        name=elf.name, global_size=global_size, local_size=local_size, vars=variables,
        globals=tuple(u.arg.slot for u in buffers), outs=outputs, ins=inputs, target=elf.target,
    )  # fmt: skip
    sink = sink.replace(arg=KernelInfo(name=elf.name), tag=None)
    parts = (
        sink, UOp(Ops.LINEAR, src=(*buffers, *variables)), UOp(Ops.SOURCE, arg=source), UOp(Ops.BINARY, arg=elf.lib),
    )  # fmt: skip
    program = UOp(Ops.PROGRAM, src=parts, arg=info)
    if shared_bytes:
        from tinygrad.engine.realize import runtime_cache

        key = (program.key, device)
        if key not in runtime_cache:
            runtime_cache[key] = load_program(device, program.to_elf(), shared_bytes=shared_bytes)
    return program


def core_variable(slot: int, threads: int) -> UOp:
    """The variable `core_id` of a kernel that is called `threads` times."""
    return _variable(slot, CORE_ID, threads - 1)


def _variable(slot: int, name: str, most: int) -> UOp:
    arg = ParamArg(slot, dtypes.int, (0, most), name=name, addrspace=AddrSpace.ALU)
    return UOp(Ops.PARAM, src=(UOp(Ops.STACK, src=()),), arg=arg)


def single_device(call: UOp) -> str | None:
    """The device of a call whose kernel runs on one alone; None where it runs on several."""
    found = {s.device for s in call.src[1:] if not s.is_bound_var}
    device = found.pop() if len(found) == 1 else None
    return device if isinstance(device, str) else None


def is_aligned(call: UOp) -> bool:
    """Whether each buffer of a call begins at a multiple of `ALIGNMENT` bytes, as far as can be told before it runs."""
    for buffer in call.src[1:]:
        if buffer.is_bound_var or buffer.op in (Ops.BUFFER, Ops.PARAM):
            continue
        view = buffer.contiguous_view()
        if view is None or not isinstance(view[1], int) or view[1] * view[0].dtype.itemsize % ALIGNMENT:
            return False
    return True


def compiler_words(error: BaseException) -> str:
    """What a compiler complains of first, without what frames it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line.lower() and not line.startswith("Nvrtc Error")), None)
    return re.sub(r"<(null|stdin)>|-(?=:\d)", "source", said or (lines or [type(error).__name__])[0])[:300]


def compile_c(source: str, target: TinyTarget) -> bytes:
    """An ELF object of C source, compiled as tinygrad compiles what it renders. Raises CompileError, in one line.

    What begins as 0 is kept with the other data: tinygrad's loader would lay a section without contents over the code.
    """
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler

    compiler = ClangCompiler(target.arch.split(","))
    command = [
        os.environ.get("CC", "clang"), "-c", "-x", "c", "-O2", "-fPIC", "-ffreestanding", "-fno-math-errno",
        "-nostdlib", "-fno-ident", "-fno-zero-initialized-in-bss",
        f"--target={compiler.arch}-none-unknown-elf", *compiler.args, "-", "-o", "-",
    ]  # fmt: skip
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise CompileError(compiler_words(RuntimeError(done.stderr.decode(errors="replace") or "clang failed")))
    return done.stdout


def begins_with(elf: bytes, entry: str) -> bool:
    """Whether a function is where tinygrad's loader begins: at the start of an object's code."""
    from tinygrad.runtime.support.elf import elf_loader

    _, sections, _ = elf_loader(elf, link_libs=[_NoLibrary()])
    names = next((s.content for s in sections if s.name == ".strtab"), b"")
    symbols = next((s.content for s in sections if s.name == ".symtab"), b"")
    for name, _info, _other, section, value, _size in struct.iter_unpack("<IBBHQQ", symbols):
        if names[name : names.index(b"\0", name)].decode() == entry and 0 < section < len(sections):
            return int(sections[section].header.sh_addr + value) == 0
    return False


class _NoLibrary:
    """In the place of a library while an object is only looked at: every symbol is there."""

    def __getattr__(self, name: str) -> Callable[[], None]:
        import ctypes

        return ctypes.CFUNCTYPE(None)(lambda: None)
