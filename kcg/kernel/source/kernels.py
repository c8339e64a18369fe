"""From a user's file of hand-written kernels to schedules: reading the file, which kernel is for which, lowering.

Everything here runs the user's own code, so it is called in child processes only, whose death or hang is one kernel's.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kcg.cli import pip_install
from kcg.compat.assembler import assembler, ending_with_ptx
from kcg.compat.renderers import compiling_renderer
from kcg.compat.standalone import CORE_ID
from kcg.compat.tiny import AddrSpace, AxisType, Context, KernelInfo, Ops, UOp, dtypes, to_program
from kcg.errors import KcgError, ScheduleError, UsageError
from kcg.kernel.analysis import arithmetic, contractions, least_bytes
from kcg.kernel.codec import ast_of
from kcg.kernel.source.body import MACHINE, PTX, SourceBody, source_schedule
from kcg.kernels import BufferView, HandwrittenKernel, KernelView, Launch, collecting
from kcg.nouns import uncoloured
from kcg.types import Region, Schedule, Target

# ---- Triton kernels as PTX that tinygrad's runtime can launch: compiled ahead of time, for a GPU that need not be
# here.
#
# Every size is a constant and every pointer is a multiple of 16, so that only pointers remain as parameters. Triton
# appends pointers to scratch memory that such kernels do not use; tinygrad's launches pass buffers only, so these are
# dropped from the text.

_POINTERS = {
    "bool": "*i1",
    "int8": "*i8",
    "uint8": "*u8",
    "int16": "*i16",
    "uint16": "*u16",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "fp8e4m3": "*fp8e4nv",
    "fp8e5m2": "*fp8e5",
}
_PTX_ENTRY = re.compile(r"(\.entry\s+(\w+)\s*\()([^)]*)(\))")


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
        raise ScheduleError(f"Triton is not installed: {pip_install('gpu')}") from None
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
        jitted,
        signature={**kinds, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(place,): [["tt.divisibility", 16]] for place in range(len(pointers))},
    )
    capability = int(re.sub(r"\D", "", view.target.arch))
    with triton.knobs.compilation.scope(), ending_with_ptx(triton):
        triton.knobs.compilation.disable_line_info = True  # it would put the file's place into the code's identity
        # products and sums are fused, whatever a version's default is
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        if (using := assembler()) is not None:
            options["ptx_version"] = using.ptx_version
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    text, entry = without_scratch(str(made.asm["ptx"]), len(pointers))
    return TritonCode(text, entry, 32 * int(made.metadata.num_warps), int(made.metadata.shared))


def without_scratch(text: str, pointers: int) -> tuple[str, str]:
    """PTX text whose entry takes the first `pointers` parameters only, and the entry's name.

    Raises ScheduleError where it is not clear that the kernel can do without the others.
    """
    if (match := _PTX_ENTRY.search(text)) is None:
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


_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "fp8e4m3",
    "fp8e5m2",
)
REDUCED = (AxisType.REDUCE, AxisType.UNROLL)
PUBLIC_DTYPE = {getattr(dtypes, name).name: name for name in _DTYPES}

_read: dict[tuple[str, str], tuple[HandwrittenKernel, ...]] = {}


def file_digest(path: Path) -> str:
    """What tells a file of kernels from itself after a change. Raises UsageError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}: give a Python file of kernels to --kernels") from None


def read_kernels(path: Path, digest: str) -> tuple[HandwrittenKernel, ...]:
    """The kernels of a user's file, which is imported, once in a process. What it prints goes to stderr.

    Raises UsageError, in one line, where the file changed since `digest`, cannot be imported, or registers nothing.
    """
    key = (str(path), digest)
    if key in _read:
        return _read[key]
    if file_digest(path) != digest:
        raise UsageError(f"{path} changed while it was used: start again")
    name = f"kcg_kernels_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file: give one whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and Triton look for the module of what they are given
    try:
        with collecting() as found, contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be imported: {raised(error, path)}{_advice(error)}") from None
    if not found:
        raise UsageError(f"{path} registers no kernel: decorate one with kcg.kernels.handwritten")
    _read[key] = tuple(found)
    return _read[key]


def _advice(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "triton":
        return f": Triton is not installed: {pip_install('gpu')}, or leave that file out"
    return ""


def raised(error: BaseException, path: Path | str) -> str:
    """What the user's code raised, in one line, with the line of their file that it came from."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if isinstance(error, SyntaxError) and error.lineno:
        lines.append(error.lineno)
    words = " ".join(uncoloured(str(error)).split())[:300]
    if isinstance(error, KcgError):
        return words
    return f"{type(error).__name__}{': ' if words else ''}{words}" + (f" (line {lines[-1]})" if lines else "")


# ---- which kernel is for which ----


def view_of(region: Region, target: Target) -> KernelView:
    """What the user's code sees of a region of one kernel.

    Raises ScheduleError where no hand-written kernel can take its place: it has symbolic sizes, or runs on several
    devices at once.
    """
    ast = ast_of(region.kernel)
    nodes = list(ast.toposort())
    params = sorted((u for u in nodes if u.op is Ops.PARAM), key=lambda u: u.arg.slot)
    ranges = [u for u in nodes if u.op is Ops.RANGE]
    if any(p.addrspace == AddrSpace.ALU for p in params) or any(r.arg[-1] is AxisType.DEVICE for r in ranges):
        raise ScheduleError("kernels of symbolic sizes or of several devices cannot be written by hand yet")
    if [p.arg.slot for p in params] != list(range(len(params))):
        raise ScheduleError("its buffers are not numbered from 0, as a launch would pass them")
    written, read = _roles(nodes)
    extents = {r: int(r.vmax) + 1 for r in ranges}
    return KernelView(
        id=region.id,
        buffers=tuple(
            BufferView(
                p.arg.slot,
                int(p.max_numel()),
                PUBLIC_DTYPE.get(p.dtype.name, p.dtype.name),
                p.arg.slot in written,
                p.arg.slot in read,
            )
            for p in params
        ),
        ops=Counter(u.op.name for u in nodes),
        loops=tuple(extents[r] for r in ranges if r.arg[-1] not in REDUCED),
        reduces=tuple(extents[r] for r in ranges if r.arg[-1] in REDUCED),
        contractions=tuple((c.value_shape, c.reduce_shape) for c in contractions(ast)),
        operations=float(arithmetic(ast)),
        bytes=least_bytes(ast),
        target=target,
        ast=ast,
    )


def _roles(nodes: list[UOp]) -> tuple[set[int], set[int]]:
    """The slots of the buffers that a kernel writes and reads."""
    written: set[int] = set()
    read: set[int] = set()
    for node in nodes:
        for place, source in enumerate(node.src):
            if source.op is Ops.INDEX:
                base = source
                while base.op is not Ops.PARAM:
                    base = base.src[0]
                (written if node.op is Ops.STORE and place == 0 else read).add(int(base.arg.slot))
    return written, read


# ---- lowering ----


def lower(kernel: HandwrittenKernel, view: KernelView, path: Path | str = "") -> Schedule:
    """The schedule that runs `kernel` in the place of the kernel that `view` shows.

    Raises ScheduleError, with one line for the user: what their code raised, or how it does not fit.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            body = _LOWERINGS[kernel.kind](kernel, view)
    except ScheduleError:
        raise
    except Exception as error:  # the user's code, or a compiler on what it wrote
        raise ScheduleError(raised(error, path)) from None
    return source_schedule(body)


def _launch(kernel: HandwrittenKernel, view: KernelView) -> Launch:
    launch = kernel.launch(view) if callable(kernel.launch) else kernel.launch
    if not isinstance(launch, Launch):
        raise ScheduleError(f"launch gives {launch!r}, not a kcg.kernels.Launch")
    return launch


def _lower_uop(kernel: HandwrittenKernel, view: KernelView) -> SourceBody:
    placeholders = [UOp.placeholder((b.size,), getattr(dtypes, b.dtype), b.slot) for b in view.buffers]
    signature = inspect.signature(kernel.function)
    named = signature.parameters.get("kernel")
    extra = {"kernel": view} if named is not None and named.kind is inspect.Parameter.KEYWORD_ONLY else {}
    try:
        signature.bind(*placeholders, **extra)
    except TypeError as error:
        raise ScheduleError(f"it takes other arguments than the {len(placeholders)} buffers: {error}") from None
    sink = kernel.function(*placeholders, **extra)
    if not isinstance(sink, UOp) or sink.op is not Ops.SINK:
        raise ScheduleError(f"it returns {getattr(sink, 'op', type(sink).__name__)}, not a SINK")
    for param in (u for u in sink.toposort() if u.op is Ops.PARAM):
        if param.addrspace == AddrSpace.ALU or not any(param.arg == p.arg for p in placeholders):
            raise ScheduleError("it uses a buffer or a variable that it was not given")
    info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
    renderer = compiling_renderer(view.target)
    with Context(DEBUG=0, BEAM=0, NOOPT=0):
        program = to_program(sink.replace(arg=replace(info, name="kernel", beam=0)), renderer)
    made = program.arg
    if (missing := {b.slot for b in view.buffers} - set(made.globals)) != set():
        raise ScheduleError(f"it does not use buffer {min(missing)}, and a launch passes every buffer")
    threads = int(made.global_size[0]) if CORE_ID in made.runtimevars else 0
    if made.local_size is None or len(made.vars) > (1 if threads else 0):
        raise ScheduleError("it leaves its local size, or a variable, open")
    linear = list(program.src[1].src)
    assembly = renderer.asm_str(linear, made.function_name) if hasattr(renderer, "asm_str") else ""
    return _body(
        kernel,
        MACHINE if assembly else view.target.renderer,
        made.function_name,
        assembly or str(program.src[2].arg),
        Launch(tuple(map(int, made.global_size)), tuple(map(int, made.local_size))),
        threads=threads,
        code=program.src[3].arg if assembly else b"",
    )


def _text(kernel: HandwrittenKernel, view: KernelView) -> str:
    text = kernel.function(view)
    if not isinstance(text, str):
        raise ScheduleError(f"it returns {type(text).__name__}, not source code")
    return text


def _lower_c(kernel: HandwrittenKernel, view: KernelView) -> SourceBody:
    source = _text(kernel, view)
    _check_pointers(_parameters(source, kernel.name, rf"\b{kernel.name}\s*\(([^)]*)\)\s*\{{"), view)
    return _body(kernel, "CLANG", kernel.name, source, Launch())


def _lower_cuda(kernel: HandwrittenKernel, view: KernelView) -> SourceBody:
    source = _text(kernel, view)
    if 'extern "C"' not in source or "__global__" not in source:
        raise ScheduleError(f'it has no extern "C" __global__ function {kernel.name}')
    _check_pointers(_parameters(source, kernel.name, rf"\b{kernel.name}\s*\(([^)]*)\)\s*\{{"), view)
    return _body(kernel, "CUDA", kernel.name, source, _launch(kernel, view))


def _lower_ptx(kernel: HandwrittenKernel, view: KernelView) -> SourceBody:
    return ptx_body(kernel, view, kernel.name, _text(kernel, view), _launch(kernel, view))


def ptx_body(kernel: HandwrittenKernel, view: KernelView, entry: str, text: str, launch: Launch) -> SourceBody:
    """The body of PTX text. Raises ScheduleError where its entry does not take one 64-bit pointer for each buffer."""
    wide = _parameters(text, entry, rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)")
    if len(wide) != len(view.buffers) or not all(re.search(r"\.param\s+\.[ub]64\b", p) for p in wide):
        raise ScheduleError(f"its entry takes {len(wide)} parameters, not a .u64 for each of {_described(view)}")
    return _body(kernel, PTX, entry, text, launch)


def _parameters(source: str, entry: str, pattern: str) -> list[str]:
    """The parameters of the entry, as text."""
    if (match := re.search(pattern, re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL))) is None:
        raise ScheduleError(f"its source has no function {entry}")
    return [p.strip() for p in match[1].split(",") if p.strip() not in ("", "void")]


def _check_pointers(parameters: list[str], view: KernelView) -> None:
    if len(parameters) != len(view.buffers) or not all("*" in p for p in parameters):
        raise ScheduleError(f"it takes ({', '.join(parameters)}), not a pointer for each of {_described(view)}")


def _described(view: KernelView) -> str:
    return f"{len(view.buffers)} buffers ({', '.join(f'{b.dtype}[{b.size}]' for b in view.buffers)})"


def _lower_triton(kernel: HandwrittenKernel, view: KernelView) -> SourceBody:

    constants = kernel.constants(view) if callable(kernel.constants) else kernel.constants
    made = compiled_ptx(kernel.function, view, constants=dict(constants), warps=kernel.warps, stages=kernel.stages)
    launch = replace(_launch(kernel, view), threads=(made.threads,), shared_bytes=made.shared_bytes)
    return ptx_body(kernel, view, made.entry, made.text, launch)


def _body(
    kernel: HandwrittenKernel,
    language: str,
    entry: str,
    source: str,
    launch: Launch,
    *,
    threads: int = 0,
    code: bytes = b"",
) -> SourceBody:

    def whole(size: Any) -> tuple[int, ...]:
        return tuple(size) if isinstance(size, tuple | list) else (size,)

    return SourceBody(
        kernel.name,
        kernel.kind,
        language,
        entry,
        source,
        whole(launch.blocks),
        whole(launch.threads),
        launch.shared_bytes,
        threads,
        base64.b64encode(code).decode(),
    )


_LOWERINGS: dict[str, Callable[[HandwrittenKernel, KernelView], SourceBody]] = {
    "uop": _lower_uop,
    "c": _lower_c,
    "cuda": _lower_cuda,
    "ptx": _lower_ptx,
    "triton": _lower_triton,
}
