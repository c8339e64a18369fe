"""Compiled programs that tinygrad did not make: compiling C, what a call must be for one, timing."""

from __future__ import annotations

import functools
import itertools
import os
import re
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad import TinyJit

from kcg.compat.replacing import alignment
from kcg.compat.standalone import CORE_ID, integer
from kcg.compat.tiny import CompileError, Device, Ops, TinyELF, TinyTarget, UOp, dtypes


def core_variable(slot: int, threads: int) -> UOp:
    """The variable `core_id` of a kernel that is called `threads` times."""
    return integer(slot, CORE_ID, threads - 1)


def single_device(call: UOp) -> str | None:
    """The device of a call whose kernel runs on one alone; None where it runs on several."""
    found = {s.device for s in call.src[1:] if not s.is_bound_var}
    device = found.pop() if len(found) == 1 else None
    return device if isinstance(device, str) else None


def is_aligned(call: UOp) -> bool:
    """Whether each buffer of a call on one device begins at a multiple of its `alignment`, as far as can be told before
    it runs."""
    most = alignment(single_device(call) or "")
    for buffer in call.src[1:]:
        if buffer.is_bound_var or buffer.op in (Ops.BUFFER, Ops.PARAM):
            continue
        view = buffer.contiguous_view()
        if view is None or not isinstance(view[1], int) or view[1] * view[0].dtype.itemsize % most:
            return False
    return True


def compiler_words(error: BaseException) -> str:
    """What a compiler complains of first, without what frames it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = next((line for line in lines if "error" in line.lower() and not line.startswith("Nvrtc Error")), None)
    return re.sub(r"<(null|stdin)>|-(?=:\d)", "source", message or (lines or [type(error).__name__])[0])[:300]


def compile_c(source: str, target: TinyTarget) -> bytes:
    """An ELF object of C source, compiled as tinygrad compiles what it renders. Raises CompileError, in one line.

    What begins as 0 is kept with the other data: tinygrad's loader would lay a section without contents over the code.
    """
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler

    compiler = ClangCompiler(target.arch.split(","))
    command = [
        os.environ.get("CC", "clang"),
        "-c",
        "-x",
        "c",
        "-O2",
        "-fPIC",
        "-ffreestanding",
        "-fno-math-errno",
        "-nostdlib",
        "-fno-ident",
        "-fno-zero-initialized-in-bss",
        f"--target={compiler.arch}-none-unknown-elf",
        *compiler.args,
        "-",
        "-o",
        "-",
    ]
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


# ---- Timing any call by the device's own clock, and CUDA code that was written by hand.
#
# A whole step is timed by a pair of events around it, not by the sum of its kernels. What the host needs to send it off
# can be hidden: the device is given something to wait for first (`Spin`), so that all launches are queued when the
# first event passes. Whether it was long enough is seen afterwards (`hiding`): a host that was not done by then is
# given more time, and the sample is taken again.

SPIN_SOURCE = """extern "C" __global__ void spin(long long cycles) {
  for (long long begin = clock64(); clock64() - begin < cycles;);
}"""
HIDDEN_S = 0.01  # of what the host does for a whole step, at first
HIDDEN_MOST_S = 0.25
HIDING_TRIES = 4
ALONE_S = 5e-6
"""What a lone launch takes between two events beside its kernel: by convention, about what it takes on an idle host.
Measured by each process it differed by up to 11 µs (NVIDIA H200), by what else the host did, and all times of a process
with it."""
SPIN_HZ = 2.0e9  # multiprocessors run at up to 1.98 GHz (NVIDIA H200); where they run slower, a spin lasts longer


def alone_s(device: str) -> float:
    """What a lone launch takes longer than one that follows others; nothing where the host's clock is read."""
    return ALONE_S if device == "CUDA" else 0.0


def device_seconds(device: str, call: Callable[[], object]) -> float:
    """Seconds between two events around `call` on a CUDA device; elsewhere by the host's clock until all is done."""
    if device == "CUDA":
        from tinygrad.runtime.autogen import cuda
        from tinygrad.runtime.ops_cuda import check, cu_time_execution

        check(cuda.cuCtxSetCurrent(Device[device].context))
        return float(cu_time_execution(call, enable=True))
    begin = time.perf_counter()
    call()
    Device[device].synchronize()
    return time.perf_counter() - begin


def in_a_row_s(device: str, call: Callable[[], object], count: int) -> list[float]:
    """Seconds of each of so many calls that follow each other: between device events on CUDA, where nobody waits for
    one before the next is sent off; elsewhere by the host's clock."""
    if device != "CUDA":
        return [device_seconds(device, call) for _ in range(count)]
    import ctypes

    from tinygrad.runtime.autogen import cuda
    from tinygrad.runtime.ops_cuda import check
    from tinygrad.runtime.support.c import init_c_var

    check(cuda.cuCtxSetCurrent(Device[device].context))
    events = [init_c_var(cuda.CUevent, lambda x: cuda.cuEventCreate(ctypes.byref(x), 0)) for _ in range(count + 1)]
    check(cuda.cuEventRecord(events[0], None))
    for event in events[1:]:
        call()
        check(cuda.cuEventRecord(event, None))
    check(cuda.cuEventSynchronize(events[-1]))
    seconds = []
    for begin, end in itertools.pairwise(events):
        taken = ctypes.c_float()
        check(cuda.cuEventElapsedTime(ctypes.byref(taken), begin, end))
        seconds.append(taken.value * 1e-3)
    for event in events:
        check(cuda.cuEventDestroy_v2(event))
    return seconds


def clock_of(device: str) -> str:
    """What `device_seconds` reads on a device, in words."""
    return "device events" if device == "CUDA" else "wall clock"


def synchronize(device: str) -> None:
    """Wait until the device has done all."""
    Device[device].synchronize()


class CudaCode:
    """A kernel given as CUDA source or as PTX text, loaded on tinygrad's CUDA device.

    `signature` names its arguments and their dtypes in order, pointers first: `(("out", "float32"), …)`. Raises what
    tinygrad raises where it does not compile or load.
    """

    def __init__(self, name: str, text: str, signature: Sequence[tuple[str, str]], *, pointers: int) -> None:
        device = Device["CUDA"]
        code = text.encode() + b"\0" if ".visible .entry" in text else device.compiler.compile(text)
        named = tuple((arg, slot, getattr(dtypes, dtype), ()) for slot, (arg, dtype) in enumerate(signature))
        self._pointers = pointers
        self._program: Any = device.runtime(TinyELF(code, name, device.renderer.target, named))

    def __call__(self, *arguments: Any, grid: int, block: int, wait: bool = False) -> Any:
        """Launch it on tensors, then integers; the host does not wait, or gets the seconds between two events."""
        pointers = [buffer_of(tensor).get_buf("CUDA") for tensor in arguments[: self._pointers]]
        values = tuple(arguments[self._pointers :])
        return self._program(*pointers, global_size=(grid, 1, 1), local_size=(block, 1, 1), vals=values, wait=wait)


class Spin:
    """Keeps the device busy for a time without touching its caches. On other devices than CUDA it does nothing."""

    def __init__(self, device: str) -> None:
        on_cuda = device == "CUDA"
        self._code = CudaCode("spin", SPIN_SOURCE, (("cycles", "int64"),), pointers=0) if on_cuda else None

    def __call__(self, seconds: float) -> None:
        if self._code is not None:
            self._code(int(seconds * SPIN_HZ), grid=1, block=1)


@functools.cache
def spin_on(device: str) -> Spin:
    """The one of a process: compiling it takes a tenth of a second."""
    return Spin(device)


def hidden_s(host_s: float) -> float:
    """How long the device is kept busy, so that it does not wait for a host that takes `host_s` to send a call off."""
    return min(1.5 * host_s + 20e-6, HIDDEN_MOST_S)


def hiding(sample: Callable[[float], tuple[float, float]], busy_s: float) -> tuple[float, float]:
    """A sample whose launches the host had sent off before the device came to them, and how long to keep that busy for
    the next one.

    `sample` keeps the device busy for so many seconds, and says what the call took and how long the host was at it. A
    host that slept before is slower than one that repeats itself, so `busy_s` is only the first guess. Where the host
    waits for the device itself, no time is enough: what the last try shows is taken.
    """
    for _ in range(HIDING_TRIES):
        seconds, host_s = sample(busy_s)
        if host_s < busy_s or busy_s >= HIDDEN_MOST_S:
            break
        busy_s = hidden_s(2 * max(host_s, busy_s))
    return seconds, busy_s


class StepClock:
    """Times a whole step that is launched as a program launches it, on the device alone where it has events."""

    def __init__(self, device: str) -> None:
        self.device, self._spin = device, spin_on(device)
        self._busy_s = HIDDEN_S

    def __call__(self, call: Callable[[], object]) -> float:
        """Seconds of `call`, which is done when this returns. On CUDA it is called again where the host was too slow to
        be hidden; the time that was enough is where the next sample begins."""
        synchronize(self.device)
        if self.device != "CUDA":
            return self.sample(call, 0.0)[0]
        seconds, self._busy_s = hiding(lambda busy_s: self.sample(call, busy_s), self._busy_s)
        return seconds

    def once(self, call: Callable[[], object]) -> tuple[float, bool]:
        """Seconds of a `call` that may not be repeated, and whether they are the device's alone. Where it waited for
        the host it is kept busy for longer at the next call."""
        synchronize(self.device)
        if self.device != "CUDA":
            return self.sample(call, 0.0)[0], True
        seconds, host_s = self.sample(call, self._busy_s)
        was_hidden = host_s < self._busy_s or self._busy_s >= HIDDEN_MOST_S
        if not was_hidden:
            self._busy_s = hidden_s(2 * max(host_s, self._busy_s))
        return seconds, was_hidden

    def sample(self, call: Callable[[], object], busy_s: float) -> tuple[float, float]:
        """Seconds of one `call` behind a device that is busy for `busy_s`, and those that the host took to send it
        off. The device must be idle."""
        begin, sent = time.perf_counter(), []

        def sending() -> None:
            call()
            sent.append(time.perf_counter() - begin)

        self._spin(busy_s)
        return device_seconds(self.device, sending), sent[0]


def buffer_of(tensor: Any) -> Any:
    """The device buffer of a realised tensor."""
    return tensor.uop.base.buffer.ensure_allocated()


# ---- tinygrad's TinyJit without the uncaptured call that it begins with.
#
# Private: `_TinyJit.cnt`, how often it was called (0: not captured yet, 1: captured at the next call).


def captured_at_once(function: Callable[..., Any]) -> Any:
    """A `TinyJit` of `function` that captures its first call.

    An uncaptured call keeps every value that a program made contiguous until it ends: a step of Flux 1024 ran out of
    the 141 GB of an H200 so. The memory of a captured call is planned.
    """
    jitted: Any = TinyJit(function)
    jitted.cnt = 1
    return jitted
