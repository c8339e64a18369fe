"""Kernels of tinygrad with what kcg found for them: compiled programs and Opts, put in place in this process.

This is the text that `python -m kcg.export` writes, with the modules that it builds on, and behind it the data
of one result. Such a module needs tinygrad and nothing else. Importing it installs it, before or after a program's own
code is loaded; `uninstall()` takes it out again. It raises ImportError, in one line, on another GPU, driver or tinygrad
than the programs were verified on.

A kernel is recognised by what it computes: the key of its AST before optimisation, without device and name. A region is
one call of a kernel, or several calls on buffers wired in one way. Programs are put in the place of these calls before
tinygrad plans memory: eagerly, when a `TinyJit` is captured, and so in CUDA graphs. What is not safe keeps tinygrad's
way, as where a value that a program does not store is alive or read elsewhere, or a buffer begins at an address that
it does not allow; `installed[0].counts` says how often, and why. Other kernels take Opts where tinygrad compiles
them. What a `TinyJit` captured keeps its programs.

Private names of tinygrad: `schedule.memory_plan_rewrite` and `engine.jit.memory_plan_rewrite`, `lower_and_compile` and
`runtime_cache` of `engine.realize`, `uop.ops.buffers`, `tensor.all_tensors`, `UOp.contiguous_view`, `Buffer.base`,
`get_kernel_graph` of `schedule`, two patterns of `schedule.rangeify` and `schedule.indexing`, and `pm_mops` of the
former.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import os
import platform
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from kcg.compat.cpu_opening import clang_of_tinygrad, needs_helpers, open_cpu_without_helpers
from kcg.compat.records import dataclass
from kcg.compat.replacing import OwnKernel, Placed, PlacedLaunch, Replacement, Replacing
from kcg.compat.store_hazards import find_store_hazards_quickly
from kcg.compat.versions import tinygrad_version

try:
    from tinygrad import schedule
    from tinygrad.codegen.opt import Opt, OptOps
    from tinygrad.device import Device, TinyELF
    from tinygrad.dtype import AddrSpace, dtypes
    from tinygrad.engine import jit, realize
    from tinygrad.helpers import DEV, Target
    from tinygrad.schedule.rangeify import pm_mops
    from tinygrad.uop import GroupOp, Ops
    from tinygrad.uop.ops import KernelInfo, ParamArg, ProgramInfo, UOp, graph_rewrite
except ImportError as error:  # another version names them otherwise
    _file = globals().get("__file__", "this text")  # a namespace in which a source was executed has none
    raise ImportError(f"tinygrad: this needs the version that is named at the end of {_file}: {error}") from None

MOST = 2**31 - 1  # of an integer that a program takes
CORE_ID = "core_id"  # tinygrad's name of the variable that tells a CPU kernel which of its threads it is


# ---- what was found


@dataclass(frozen=True)
class Opened:
    """What an opened device tells of itself cheaply."""

    device: str  # as tinygrad names it: "CUDA"
    renderer: str
    arch: str  # "sm_90"
    model: str  # "NVIDIA H200"
    max_threads: int  # of a CPU


@dataclass(frozen=True)
class Kernel:
    """What a call runs, by the key of its AST."""

    id: str


@dataclass(frozen=True)
class Region:
    """What something was found for: one call, or several that share buffers."""

    id: str
    kernels: tuple[Kernel, ...]
    args: tuple[tuple[int, ...], ...] = ()  # of each kernel, which buffer of the region each slot binds
    outputs: tuple[int, ...] = ()  # the buffers that are observed afterwards; what else is written is an intermediate
    again: tuple[int, ...] = ()  # kernels whose calls stay for others: their values are made again


@dataclass(frozen=True)
class Launch:
    """One launch of machine code: pointers first, then integers."""

    code: bytes
    name: str  # of the function
    signature: tuple[tuple[str | None, int, str], ...]  # name, slot and dtype of each parameter
    args: tuple[int, ...]  # the buffer that each pointer takes: of the region, behind these of the workspaces
    outputs: tuple[int, ...]  # places among the pointers, workspaces included: what is written
    inputs: tuple[int, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    shared_bytes: int = 0  # dynamic
    variables: tuple[str, ...] = ()  # the names of the integers
    source: str = ""


@dataclass(frozen=True)
class Program:
    """What runs instead of a region: launches in order. Buffers are elements and tinygrad's name of the dtype."""

    launches: tuple[Launch, ...]
    buffers: dict[int, tuple[int, str]]  # by number
    workspaces: tuple[int, ...]  # the numbers of those that each set of calls is given anew
    aligned: bool = True  # whether each of the others has to begin at a multiple of `alignment`


Opts = tuple[tuple[str, int | None, Any], ...]
"""What a kernel is scheduled by: name, axis and argument of each."""


@dataclass(frozen=True)
class Found:
    """All of a result: what it is for, its regions, and by the key of each kernel the Opts that it has elsewhere.

    With each region stands the program that runs in its place, or the Opts of each of its kernels. Regions that are
    put in first come before others.
    """

    tinygrad: str
    driver: str  # of NVIDIA; empty where there is none
    opened: Opened
    regions: tuple[tuple[Region, Program | tuple[Opts, ...]], ...]
    opts: dict[str, Opts]


def unpacked(text: str) -> bytes:
    """Machine code as the data of a result holds it, with its checksum. Raises ImportError where it is damaged."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except (ValueError, zlib.error) as error:
        raise ImportError(f"its machine code is damaged: {error}: export the result again") from None


# ---- kernels and devices as they are known


def indexed_plainly(ast: UOp) -> UOp:
    """A kernel's AST with the slices of its buffers as offsets of their indices, as tinygrad has them before it chooses
    a schedule. A function that is compiled by itself slices what it is given, where that has a symbolic length."""
    moves = GroupOp.Movement - {Ops.RESHAPE}
    if not any(node.op in moves for node in ast.toposort()):
        return ast
    return graph_rewrite(ast, pm_mops, bottom_up=True)


def normalised(ast: UOp) -> UOp:
    """A kernel's AST without device names, tags, its name, Opts, estimates and beam width, its buffers indexed plainly;
    device *ranges* stay."""
    ast = indexed_plainly(ast)
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        arg = node.arg
        if isinstance(arg, ParamArg) and arg.device is not None:
            arg = replace(arg, device=None)
        elif node.op is Ops.SINK:
            arg = KernelInfo()
        elif node.op is Ops.CONST:
            arg = node.dtype.const(arg)  # one bit pattern for NaN
        done[node] = UOp(node.op, node.dtype, tuple(done[s] for s in node.src), arg)
    return done[ast]


def opened_device(name: str) -> Opened:
    """The facts of a device, which is opened if it is not yet. Raises what tinygrad raises where it does not open."""
    renderer = Device[name].renderer
    device = str(renderer.target.device)
    threads = int(renderer.global_max[0]) if renderer.has_threads and renderer.global_max else 0
    kind = type(renderer).__name__.removesuffix("Renderer").upper()
    number = name.partition(":")[2]
    model = _model(device, int(number) if number.isdecimal() else 0)
    return Opened(device, kind, str(renderer.target.arch), model, threads)


def default_device(wanted: Opened) -> str:
    """The name of tinygrad's default device.

    Of programs for the assembler of a CPU it is opened as kcg opened it, also where tinygrad finds no clang: without
    what only a queue mode needs, and with that assembler where `DEV` names none.
    """
    asked = DEV.value[0]
    plain_cpu = len(DEV.value) == 1 and asked.device in ("", "CPU") and asked.renderer in ("", "X86")
    by_assembler = (wanted.device, wanted.renderer) == ("CPU", "X86") and plain_cpu and not needs_helpers()
    if not by_assembler or clang_of_tinygrad() is not None:
        return str(Device.DEFAULT)
    open_cpu_without_helpers()
    if (name := str(Device.DEFAULT)) == "CPU" and not asked.renderer:
        os.environ["DEV"] = DEV.value = "CPU:X86"
    return name


def _model(device: str, number: int) -> str:
    if device == "CPU":
        return cpu_model()
    if device not in ("CUDA", "NV"):
        return f"{device} on {platform.machine()}"
    from tinygrad.runtime.autogen import cuda

    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, 128, number)
    return name.value.decode()


def cpu_model() -> str:
    """The CPU's name as the kernel tells it, else what Python knows."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in info.split("\n\n")[0].splitlines() if ":" in line)
    found = next((value.strip() for key, value in fields.items() if key.strip() == "model name"), "")
    return found or platform.processor() or "CPU"


def nvidia_driver() -> str:
    """The version of NVIDIA's driver, by its management library or by Linux; empty where neither tells."""
    with contextlib.suppress(OSError, AttributeError):
        nvml, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, 80) == 0:
            return text.value.decode()
    with contextlib.suppress(OSError):
        known = Path("/proc/driver/nvidia/version").read_text()
        return version[1] if (version := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", known)) else ""
    return ""


def why_not_here(found: Found) -> str:
    """Why what was found is not for this process: what differs, and what to do. Empty where it is. Opens the device."""
    installed = tinygrad_version()
    if installed != found.tinygrad:
        return f"tinygrad: made with {found.tinygrad!r}, imported is {installed!r}: install that version"
    try:
        here = opened_device(default_device(found.opened))
    except Exception as error:  # tinygrad raises many kinds here; each means that the device is unusable
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"device: made for {found.opened.model}, and the default device does not open: {line}"
    for name, wanted in vars(found.opened).items():
        if wanted != (seen := getattr(here, name)):
            return f"{name}: made for {wanted!r}, here it is {seen!r}: {_advice(name, found)}"
    if found.driver and found.driver != (driver := nvidia_driver()):
        return f"driver: made with {found.driver!r}, here it is {driver!r}: {_advice('driver', found)}"
    return ""


def _advice(name: str, found: Found) -> str:
    renderer = f":{found.opened.renderer}" if found.opened.device == "CPU" else ""
    if name in ("device", "renderer"):
        return f"set DEV={found.opened.device}{renderer}"
    return "run the search on this machine and export its result"


# ---- compiled programs as tinygrad's own


def load_program(device: str, elf: Any, *, shared_bytes: int = 0) -> Any:
    """tinygrad's loaded program of a `TinyELF`, with dynamic shared memory where it asks for some."""
    opened = Device[device]
    if not shared_bytes:
        return opened.runtime(elf)
    from tinygrad.runtime.ops_cuda import CUDAProgram

    return CUDAProgram(opened, elf, smem=shared_bytes)


def integer(slot: int, name: str, most: int) -> UOp:
    """An integer that a program takes behind its pointers."""
    arg = ParamArg(slot, dtypes.int, (0, most), name=name, addrspace=AddrSpace.ALU)
    return UOp(Ops.PARAM, src=(UOp(Ops.STACK, src=()),), arg=arg)


class Code(Protocol):
    """How machine code is launched: its sizes, which arguments it writes and reads by their places, and its text."""

    @property
    def shared_bytes(self) -> int: ...
    @property
    def global_size(self) -> tuple[int, ...]: ...
    @property
    def local_size(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def source(self) -> str: ...


def program_of_code(
    sink: UOp, pointers: Sequence[UOp], integers: tuple[UOp, ...], elf: Any, code: Code, device: str
) -> UOp:
    """A PROGRAM that holds machine code already, which tinygrad neither lowers nor compiles.

    It is loaded at once, into `runtime_cache`: what does not load is known before anything runs, and a PROGRAM cannot
    say that it takes dynamic shared memory. Eager calls, `TinyJit` and its CUDA graphs all take it from there.
    """
    info = ProgramInfo(
        name=elf.name,
        global_size=code.global_size,
        local_size=code.local_size,
        vars=integers,
        globals=tuple(u.arg.slot for u in pointers),
        outs=code.outputs,
        ins=code.inputs,
        target=elf.target,
    )
    parts = (
        sink.replace(arg=KernelInfo(name=elf.name), tag=None),
        UOp(Ops.LINEAR, src=(*pointers, *integers)),
        UOp(Ops.SOURCE, arg=code.source),
        UOp(Ops.BINARY, arg=elf.lib),
    )
    program = UOp(Ops.PROGRAM, src=parts, arg=info)
    if (key := (program.key, device)) not in realize.runtime_cache:
        realize.runtime_cache[key] = load_program(device, program.to_elf(), shared_bytes=code.shared_bytes)
    return program


def program_of_launch(launch: Launch, found: dict[int, tuple[int, str]], target: Target, device: str) -> UOp:
    """The PROGRAM of one launch, on `found`: elements and dtype of each buffer by its number.

    What the launch writes, workspaces included, is in its `outputs`, and what it reads in its `inputs`: by these
    `TinyJit` copies what is fed back, and graphs order their launches.
    """
    by_name = {d.name: d for d in dtypes.all}
    given = [found[number] for number in launch.args]
    pointers = [UOp.param(slot, by_name[dtype], (size,), device) for slot, (size, dtype) in enumerate(given)]
    most = {CORE_ID: launch.global_size[0] - 1}
    integers = (integer(len(pointers) + i, name, most.get(name, MOST)) for i, name in enumerate(launch.variables))
    signature = tuple((name, slot, by_name[dtype], ()) for name, slot, dtype in launch.signature)
    elf = TinyELF(launch.code, launch.name, target, signature)
    return program_of_code(UOp.sink(*pointers), pointers, tuple(integers), elf, launch, device)


def placed_program(program: Program, target: Target, device: str) -> Placed:
    """A program on one device. Raises what tinygrad raises where it does not load."""
    launches = tuple(
        PlacedLaunch(program_of_launch(launch, program.buffers, target, device), launch.args)
        for launch in program.launches
    )
    return Placed(launches, {number: program.buffers[number] for number in program.workspaces}, program.aligned)


# ---- in the place of calls


class Installed:
    """One result in this process."""

    def __init__(self, found: Found) -> None:
        self.refused: dict[str, str] = {}  # by device why its calls are left as they are; empty where they are not
        self._opened, self._regions = found.opened, found.regions
        self._opts = {key: _tiny_opts(opts) for key, opts in found.opts.items()}
        self._keys: dict[bytes, str | None] = {}
        self._placed: dict[tuple[str, str], Placed] = {}  # by region and device
        self._replacing = Replacing([self._replacement(region) for region, _ in found.regions], self._key)
        self._is_out = False
        self._undo: list[Callable[[], None]] = []

    @property
    def counts(self) -> Counter[str]:
        """How many sets of a region's calls got what was found, and how many were left as they were and why."""
        report = self._replacing.report
        found = Counter({f"{region[:12]} replaced": count for region, count in report.counts.items()})
        found.update({f"{region[:12]} left: {why}": count for (region, why), count in report.left.items()})
        return found

    def load(self, device: str) -> None:
        """Load all programs on a device. Raises what tinygrad raises."""
        target = Target(self._opened.device, self._opened.renderer, self._opened.arch)
        for region, program in self._regions:
            placed = _parts(region, program) if isinstance(program, tuple) else placed_program(program, target, device)
            self._placed[region.id, device] = placed
        self.refused[device] = ""

    def put_in_place(self) -> None:
        """From here on programs that tinygrad plans and kernels that it compiles are looked at, and schedules are found
        sooner."""
        self._undo.append(find_store_hazards_quickly(schedule))
        for module in (schedule, jit):
            self._stand_before(module, "memory_plan_rewrite", self._replacing)
        self._stand_before(realize, "lower_and_compile", self._with_opts)

    def take_out(self) -> None:
        """What was there before is there again; where somebody else stands before it since, it does nothing more, and
        goes with the one before it."""
        self._is_out = True
        for undo in reversed(self._undo):
            undo()

    def _stand_before(self, module: Any, name: str, change: Callable[[UOp], UOp]) -> None:
        before = getattr(module, name)

        def ours(linear: UOp, *rest: Any) -> Any:
            return before(linear if self._is_out else change(linear), *rest)

        def undo() -> None:
            hook.taken_out_for = before  # where one of another module stands before it, that one takes both out
            while (behind := getattr(getattr(module, name), "taken_out_for", None)) is not None:
                setattr(module, name, behind)

        hook: Any = ours
        setattr(module, name, ours)
        self._undo.append(undo)

    def _key(self, ast: UOp) -> str | None:
        """What a kernel is known by; None where its author scheduled it."""
        if ast.key not in self._keys:
            info = ast.arg
            fixed = ast.tag is not None or info.opts_to_apply is not None or info.applied_opts or info.dont_use_locals
            self._keys[ast.key] = None if fixed else normalised(ast).key.hex()
        return self._keys[ast.key]

    # ---- programs, before memory is planned

    def _replacement(self, region: Region) -> Replacement:
        def place(device: str) -> Placed | None:
            return None if self._why_not_on(device) else self._placed[region.id, device]

        return Replacement(region, place)

    def _why_not_on(self, device: str) -> str:
        """Why a device has neither programs nor Opts: it is another one than they are for, or they do not load."""
        if device not in self.refused:
            try:
                if device.split(":")[0] == self._opened.device and opened_device(device) == self._opened:
                    self.load(device)
                else:
                    self.refused[device] = "the programs are not for it"
            except Exception as error:  # of the driver
                self.refused[device] = f"they do not load there: {' '.join(str(error).split())[:300]}"
        return self.refused[device]

    # ---- Opts, before kernels are compiled

    def _with_opts(self, linear: UOp) -> UOp:
        chosen: dict[UOp, UOp] = {}
        for call in linear.toposort() if self._opts else ():
            if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK:
                continue
            ast = call.src[0]
            opts = self._opts.get(self._key(ast) or "")
            if opts is not None and not any(map(self._why_not_on, devices_of(ast))):
                info = replace(ast.arg, opts_to_apply=opts, beam=0)
                chosen[call] = call.replace(src=(ast.replace(arg=info), *call.src[1:]))
        return linear.substitute(chosen, walk=True) if chosen else linear


def devices_of(ast: UOp) -> set[str]:
    """The devices that the buffers of a kernel are on: "CUDA", "CUDA:1"."""
    found: set[str] = set()
    for node in ast.toposort():
        if node.op is Ops.PARAM and node.arg.slot >= 0 and node.arg.device is not None:
            names: Any = node.arg.device
            found.update((names,) if isinstance(names, str) else names)
    return found


def _tiny_opts(opts: Opts) -> tuple[Opt, ...]:
    return tuple(Opt(OptOps[name], axis, arg) for name, axis, arg in opts)


def _parts(region: Region, opts: tuple[Opts, ...]) -> Placed:
    """The kernels of a region of several in order, each with its Opts."""
    kernels = (OwnKernel(place, _tiny_opts(one)) for place, one in enumerate(opts))
    return Placed(tuple(map(PlacedLaunch, kernels, region.args)))


installed: list[Installed] = globals().get("installed", [])
"""What this module has put in place, also before it was loaded again."""


def install(found: Found) -> None:
    """Put what was found in place. Raises ImportError, in one line, where it is not for this process."""
    if reason := why_not_here(found):
        raise ImportError(reason)
    made = Installed(found)
    try:
        made.load(Device.DEFAULT)
    except Exception as error:  # of the driver
        raise ImportError(f"its machine code does not load: {' '.join(str(error).split())[:300]}") from error
    made.put_in_place()
    installed.append(made)


def uninstall() -> None:
    """Take it out again. What a `TinyJit` captured keeps it."""
    while installed:
        installed.pop().take_out()
