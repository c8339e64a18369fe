"""tinygrad renderers for a `Target`: one that compiles on this machine, or one that only schedules and renders.

`CUDARenderer`, `HIPRenderer` and `MetalRenderer` load their compiler in the constructor, so a machine without that
compiler could not even enumerate legal actions. Those for planning skip it: scheduling and rendering need none.
"""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any

from tinygrad.codegen.opt import tc
from tinygrad.renderer.cstyle import ClangRenderer, CUDARenderer, HIPRenderer, MetalRenderer
from tinygrad.renderer.isa.x86 import X86Renderer

from kcg.compat.tiny import Compiler, Renderer, TinyTarget, UOp, to_program_key
from kcg.errors import DeviceError
from kcg.types import Target


class PlanningCuda(CUDARenderer):  # type: ignore[misc]
    def __init__(self, target: Any) -> None:
        Renderer.__init__(self, target)
        self.compiler, self.tensor_cores = Compiler(), tc.get_cuda(target.arch)


class PlanningHip(HIPRenderer):  # type: ignore[misc]
    def __init__(self, target: Any) -> None:
        # the constructor of HIPRenderer also picks rewrites by architecture: run it whole, with an empty compiler
        from tinygrad.runtime.support import compiler_amd

        real = compiler_amd.HIPCompiler
        compiler_amd.HIPCompiler = lambda arch: Compiler()
        try:
            super().__init__(target)
        finally:
            compiler_amd.HIPCompiler = real


class PlanningMetal(MetalRenderer):  # type: ignore[misc]
    def __init__(self, target: Any) -> None:
        Renderer.__init__(self, target)
        apple = target.arch.startswith("Apple") and int(target.arch[5:]) >= 7
        self.compiler, self.tensor_cores = Compiler(), tc.metal if apple else []


class PlanningClang(ClangRenderer):  # type: ignore[misc]
    max_threads = 1

    def __init__(self, target: Any) -> None:
        Renderer.__init__(self, target)
        self.compiler = Compiler()

    @property
    def global_max(self) -> tuple[int, int, int]:
        return (self.max_threads, 0, 0)


class PlanningX86(X86Renderer):  # type: ignore[misc]
    max_threads = 1

    @property
    def global_max(self) -> tuple[int, int, int]:
        return (self.max_threads, 0, 0)


_PLANNING = {
    ("CPU", "X86"): PlanningX86,
    ("CPU", "CLANG"): PlanningClang,
    ("CUDA", "CUDA"): PlanningCuda,
    ("NV", "CUDA"): PlanningCuda,
    ("AMD", "HIP"): PlanningHip,
    ("METAL", "METAL"): PlanningMetal,
}


def tiny_target(target: Target) -> Any:
    """tinygrad's own target of a kcg `Target`."""
    return TinyTarget(target.device, target.renderer, target.arch)


def planning_renderer(target: Target) -> Any:
    """A renderer that schedules and renders for `target` on any machine, and cannot compile."""
    try:
        cls = _PLANNING[(target.device, target.renderer)]
    except KeyError:
        raise DeviceError(f"kcg cannot plan for {target.device}:{target.renderer}") from None
    renderer = cls(tiny_target(target))
    if hasattr(renderer, "max_threads"):
        renderer.max_threads = target.max_threads
    return renderer


def compiling_renderer(target: Target) -> Any:
    """The renderer that tinygrad itself would use for `target`; its compiler must be on this machine."""
    if (target.device, target.renderer) == ("CPU", "X86"):
        return X86Renderer(tiny_target(target))
    cls = {"CLANG": ClangRenderer, "CUDA": CUDARenderer, "HIP": HIPRenderer, "METAL": MetalRenderer}[target.renderer]
    renderer = cls(tiny_target(target))
    if cls is CUDARenderer and renderer.compiler.ptx:
        renderer.compiler = _two_codes()(target.arch)
    return renderer


def lowering_settings(renderer: Any) -> str:
    """What tinygrad's lowering of a kernel depends on beside the kernel: the renderer and tinygrad's settings now."""
    _, kind, target, *settings = to_program_key(UOp.sink(), renderer)
    return json.dumps([kind.__name__, target.device, target.renderer, target.arch, *map(str, settings)])


def renderer_ahead(target: Target) -> Any:
    """`compiling_renderer` as tinygrad's cache of programs knows that of the device that this process will open: it
    tells renderers apart by what `DEV` says."""
    from kcg.compat.tiny import DEV

    renderer = compiling_renderer(target)
    renderer.target = DEV.target(target.device, arch=target.arch)
    return renderer


def machine_code(source: str, renderer: Any) -> bytes:
    """A kernel's code for the GPU itself, where tinygrad's binary is text that the driver compiles when it is loaded.

    tinygrad gives CUDA's driver PTX, which costs the process that owns the device 10 to 60 ms for each kernel (one
    NVIDIA H200); a cubin loads in 0.2 ms and runs equally fast. Empty where tinygrad's binary is machine code already.
    Raises tinygrad's CompileError.
    """
    take = getattr(renderer.compiler, "take_cubin", None)
    return bytes(take(source)) if take is not None else b""


@functools.cache
def _two_codes() -> type:
    from tinygrad.runtime.autogen import nvrtc
    from tinygrad.runtime.support import compiler_cuda

    class TwoCodes(compiler_cuda.NVRTCCompiler):  # type: ignore[misc]
        """tinygrad's compiler, which gives PTX, and keeps the cubin that the same run of NVRTC makes on the way."""

        def __init__(self, arch: str) -> None:
            super().__init__(arch)
            self._cubin = ("", b"")

        def compile(self, src: str) -> bytes:
            program, check = nvrtc.nvrtcProgram(), compiler_cuda.nvrtc_check
            options = compiler_cuda.to_char_p_p([option.encode() for option in self.compile_options])
            check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), src.encode(), b"<null>", 0, None, None))
            try:
                check(nvrtc.nvrtcCompileProgram(program, len(self.compile_options), options), program)
                ptx, cubin = (
                    compiler_cuda._get_bytes(program, get, size, check)
                    for get, size in (
                        (nvrtc.nvrtcGetPTX, nvrtc.nvrtcGetPTXSize),
                        (nvrtc.nvrtcGetCUBIN, nvrtc.nvrtcGetCUBINSize),
                    )
                )
            finally:
                check(nvrtc.nvrtcDestroyProgram(ctypes.byref(program)))
            self._cubin = (src, cubin)
            return bytes(ptx)

        def take_cubin(self, src: str) -> bytes:
            if self._cubin[0] != src:  # the PTX was in tinygrad's cache
                self.compile(src)
            return self._cubin[1]

    return TwoCodes
