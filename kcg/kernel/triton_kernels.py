"""Triton kernels as PTX that tinygrad's runtime can launch: compiled ahead of time, for a GPU that need not be here.

Every size is a constant and every pointer is a multiple of 16, so that only pointers remain as parameters. Triton
appends pointers to scratch memory that such kernels do not use; tinygrad's launches pass buffers only, so these are
dropped from the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcg.errors import ScheduleError
from kcg.kernels import KernelView

_POINTERS = {
    "bool": "*i1", "int8": "*i8", "uint8": "*u8", "int16": "*i16", "uint16": "*u16", "int32": "*i32", "uint32": "*u32",
    "int64": "*i64", "uint64": "*u64", "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64",
    "fp8e4m3": "*fp8e4nv", "fp8e5m2": "*fp8e5",
}  # fmt: skip
_ENTRY = re.compile(r"(\.entry\s+(\w+)\s*\()([^)]*)(\))")


@dataclass(frozen=True)
class TritonCode:
    """What Triton made of a kernel."""

    text: str  # PTX
    entry: str
    threads: int
    shared_bytes: int


def compiled_ptx(
    function: Callable[..., Any], view: KernelView, *, constants: dict[str, Any], warps: int, stages: int
) -> TritonCode:
    """Compile a Triton kernel for the target of `view`. Raises ScheduleError where Triton is missing or the kernel does
    not fit, and what Triton raises."""
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        raise ScheduleError("Triton is not installed: pip install 'kcg[gpu]'") from None
    jitted = function if hasattr(function, "arg_names") else triton.jit(function)
    names = list(jitted.arg_names)
    pointers = [name for name in names if name not in constants]
    if pointers != names[: len(view.buffers)] or len(pointers) != len(view.buffers):
        raise ScheduleError(
            f"it takes ({', '.join(names)}) with the constants {sorted(constants)}: first a pointer for each of the "
            f"{len(view.buffers)} buffers, then a constant for each other argument"
        )
    kinds = {name: _POINTERS[b.dtype] for name, b in zip(pointers, view.buffers, strict=True)}
    source = ASTSource(
        jitted, signature={**kinds, **dict.fromkeys(constants, "constexpr")}, constexprs=constants,
        attrs={(place,): [["tt.divisibility", 16]] for place in range(len(pointers))},
    )  # fmt: skip
    capability = int(re.sub(r"\D", "", view.target.arch))
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # it would put the file's place into the code's identity
        made = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": stages}
        )
    text, entry = without_scratch(str(made.asm["ptx"]), len(pointers))
    return TritonCode(text, entry, 32 * int(made.metadata.num_warps), int(made.metadata.shared))


def without_scratch(text: str, pointers: int) -> tuple[str, str]:
    """PTX text whose entry takes the first `pointers` parameters only, and the entry's name.

    Raises ScheduleError where it is not clear that the kernel can do without the others.
    """
    if (match := _ENTRY.search(text)) is None:
        raise ScheduleError("Triton's PTX has no entry")
    parameters = [p.strip() for p in match[3].split(",") if p.strip()]
    kept, dropped = parameters[:pointers], parameters[pointers:]
    rest = text[: match.start(3)] + text[match.end(3) :]
    for parameter in dropped:
        name = parameter.split()[-1]
        if re.search(rf"{re.escape(name)}\b", rest):
            raise ScheduleError(f"its PTX uses the scratch memory of Triton ({name}), which a launch does not pass")
    listed = "\n\t" + ",\n\t".join(kept) + "\n"
    return text[: match.start(3)] + listed + text[match.end(3) :], match[2]
