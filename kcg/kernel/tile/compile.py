"""From a tile program's parameters to its machine code: Triton ahead of time, for a GPU that need not be here.

Triton makes PTX; its parameters are put in the order in which tinygrad passes them, and our own choice of assembler
(`assembler.py`) makes machine code of it. For AMD's GPUs Triton makes all of it. What was compiled is kept by content
in the user's cache, so that it is made once on a machine, in any process.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kcg.compat.assembler import Assembler, assemble, assembler, ending_with_ptx
from kcg.compat.tiny import DType, dtypes
from kcg.errors import ScheduleError, UsageError
from kcg.files import cache_folder, write_whole
from kcg.kernel.generator import GENERATOR_VERSION, TEXTS
from kcg.kernel.program import (
    BoundLaunch,
    Compiled,
    Program,
    ProgramLaunch,
    Scratch,
    program_from,
    program_values,
)
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.device import Device, device_of
from kcg.kernel.tile.emit import POINTERS, TYPES
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.program import WORKSPACE, TileLaunch, TileSource
from kcg.kernel.tile.targets import cannot_compile, triton_version
from kcg.types import Region, Schedule, ScheduleKind, Target, Variables, canonical_json

ALIGNED = 16  # bytes at whose multiples every buffer begins
SCRATCH = "scratch"
"""What stands for Triton's global scratch among the parameters of a binary: memory of TMA descriptors."""
_CACHE_FORMAT = 1
_ENTRY = re.compile(r"(\.entry\s+(\w+)\s*\()([^)]*)(\))")
PINNED: dict[str, Any] = {
    "num_ctas": 1,
    "launch_cooperative_grid": False,
    "debug": False,
    "sanitize_overflow": True,
    "instrumentation_mode": "",
}
"""Options of Triton that no program asks otherwise of, at what is their default in 3.6 and in 3.9: another version's
must not make another program. They are no part of a binary's key, so a change of one is a new `_CACHE_FORMAT`."""
PINNED_OF_NVIDIA: dict[str, Any] = {
    "launch_pdl": False,
    "enable_reflect_ftz": True,
    "default_dot_input_precision": "tf32",  # where a product names none: of operands that are not float32, for nothing
}
OF_A_SHELL = ("TRITON_OVERRIDE_ARCH", "TRITON_FORCE_DISABLE_FP_FUSION", "TRITON_F32_DEFAULT")
"""Variables that would make another program of the same options."""
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)")


@dataclass(frozen=True)
class Binary:
    """One function of a tile program as machine code."""

    cubin: bytes  # or AMD's code object
    entry: str
    parameters: tuple[str, ...]  # names of the arguments that it takes, pointers first; `SCRATCH` is the last of these
    threads: int
    shared_bytes: int  # dynamic
    scratch_bytes: int  # of Triton's global scratch for each program
    report: tuple[tuple[str, int], ...]  # what compiler and assembler say, see `Compiled.report`


def compile_tile(
    region: Region, schedule: Schedule, target: Target, *, variables: Variables = (), also: tuple[Variables, ...] = ()
) -> Program:
    """Compile a tile program for `target`, to be launched with `variables` or one of those in `also`.

    Raises ScheduleError (UnsupportedTile: the kernel or its parameters cannot be expressed; Triton or an assembler is
    missing) or what Triton raises. Triton can also abort the process: call it where that costs one job.
    """
    kernel, source = _generated(region, schedule, target)
    binaries = [compiled_launch(source, launch, target) for launch in source.launches]
    program = _program(region, kernel, source, binaries, (variables, *also))
    known_at = _known_at(region, schedule, target)
    known = _unlisted(known_at, (variables, *also))
    if known is None or known.binary_hash != program.binary_hash:
        keys = [_keep(source, launch, target).key for launch in source.launches]
        with contextlib.suppress(UsageError):
            write_whole(known_at, _listed(program, keys))
    return program


def kept_tile(
    region: Region, schedule: Schedule, target: Target, *, variables: Variables = (), also: tuple[Variables, ...] = ()
) -> Program | None:
    """As `compile_tile`, of what is in the user's cache alone: None where a part of it is not. It loads no Triton, and
    what was compiled with this version's generator is not written again: of some formats a text takes a second."""
    if (known := _unlisted(_known_at(region, schedule, target), (variables, *also))) is not None:
        return known
    kernel, source = _generated(region, schedule, target)
    binaries = []
    for launch in source.launches:
        if (found := _read(_keep(source, launch, target).path)) is None:
            return None
        binaries.append(found)
    return _program(region, kernel, source, binaries, (variables, *also))


def _generated(region: Region, schedule: Schedule, target: Target) -> tuple[TileKernel, TileSource]:
    if schedule.kind != ScheduleKind.TILE:
        raise ScheduleError(f"a schedule of kind {schedule.kind!r} is no tile program")
    kernel = read_region(region)
    return kernel, generate_kernel(kernel, target, TileParameters.from_json(schedule.body))


# ---- one launch


@dataclass(frozen=True)
class _Kept:
    """Where one function is kept, and what it is made with."""

    key: str
    using: Assembler | None  # None: Triton makes the machine code
    options: dict[str, Any]
    device: Device

    @property
    def path(self) -> Path:
        return _at(self.key)


def _at(key: str) -> Path:
    return cache_folder("tile") / key[:2] / f"{key}.json"


def _keep(source: TileSource, launch: TileLaunch, target: Target) -> _Kept:
    if problem := cannot_compile(target):
        raise ScheduleError(problem)
    device = device_of(target)
    using = assembler() if device.ptx else None
    options = _options(launch, using)
    made_of = [source.source, launch.entry, launch.signature, options, device.capability]
    return _Kept(_key(made_of, using), using, options, device)


def _key(made_of: Sequence[Any], using: Assembler | None) -> str:
    """What is made of these, by the compilers that are here."""
    with_ = using.version if using is not None else ""
    return hashlib.sha256(canonical_json([_CACHE_FORMAT, *made_of, triton_version(), with_]).encode()).hexdigest()


def compiled_launch(source: TileSource, launch: TileLaunch, target: Target) -> Binary:
    """One function as machine code, from the user's cache where it is there. Raises as `compile_tile`."""
    kept = _keep(source, launch, target)
    found = _read(kept.path)
    if found is None:
        made = _made(source.source, launch, kept.options, kept.device)
        if kept.using is None:
            found = _of_amd(made, launch, kept.device)
        else:
            found = _assembled(made.texts["ptx"], made.facts, launch, kept.using, kept.device)
        with contextlib.suppress(UsageError):  # a cache that cannot be written costs the next compilation its time
            write_whole(kept.path, _written(found))
    taken = max(found.shared_bytes, dict(found.report).get("shared_bytes", 0))  # with what its code declares
    if taken > (most := kept.device.shared_bytes):
        raise ScheduleError(f"it takes {taken:,} bytes of shared memory, of {most:,}")
    return found


def _options(launch: TileLaunch, using: Assembler | None) -> dict[str, Any]:
    """Triton's: those in which programs differ, and those whose default differs between its versions."""
    options: dict[str, Any] = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": True,
    }
    if using is None:
        return {**options, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 1}
    options["ptx_version"] = using.ptx_version
    return {**options, "maxnreg": launch.maxnreg} if launch.maxnreg else options


@dataclass(frozen=True)
class _Made:
    """What Triton made of a function: its texts by stage, AMD's code object, and its metadata."""

    texts: dict[str, str]
    code: bytes
    facts: dict[str, int]


def _made(text: str, launch: TileLaunch, options: dict[str, Any], device: Device) -> _Made:
    """A function compiled by Triton: for a capability of NVIDIA's down to PTX, for an architecture of AMD's whole."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    target = GPUTarget(device.backend, device.capability, device.warp)
    pinned = PINNED | PINNED_OF_NVIDIA if device.ptx else PINNED
    with tempfile.TemporaryDirectory(prefix="kcg-tile-") as folder, _settings(triton, folder):
        module = _imported(text, Path(folder))
        function = getattr(module, launch.entry)
        source = (GluonASTSource if isinstance(function, GluonJITFunction) else ASTSource)(
            function,
            signature=launch.signature,
            constexprs={},
            attrs={(i,): [["tt.divisibility", ALIGNED]] for i, a in enumerate(launch.arguments) if a.slot is not None},
        )
        with _errors_in_words(Path(folder) / "stderr"):
            made = triton.compile(source, target=target, options=pinned | options)
        facts = made.metadata
        if (columns := int(getattr(facts, "tmem_size", None) or 0)) > device.tensor_memory:
            # Triton looks only when it loads a program
            raise ScheduleError(f"it takes {columns} columns of tensor memory, of {device.tensor_memory}")
        texts = {name: str(made.asm[name]) for name in ("ptx", "amdgcn") if name in made.asm}
        known = {
            "warps": int(facts.num_warps),
            "shared_bytes": int(facts.shared),
            "scratch_bytes": int(getattr(facts, "global_scratch_size", 0)),  # of AMD's only newer ones say it
            "profile_bytes": int(getattr(facts, "profile_scratch_size", 0)),
        }
        return _Made(texts, bytes(made.asm["hsaco"]) if "hsaco" in made.asm else b"", known)


@contextlib.contextmanager
def _settings(triton: Any, folder: str) -> Iterator[None]:
    """Triton without its cache, without what a user's shell sets, without lines of the source in the code, and without
    its own assembler. The key of that cache is no hash of all of Triton's files: half a gigabyte, 0.35 s a process."""
    import triton.runtime.cache as cache

    keyed, cache.triton_key = cache.triton_key, triton_version
    knobs, shell = triton.knobs, {name: os.environ.pop(name) for name in OF_A_SHELL if name in os.environ}
    try:
        with knobs.cache.scope(), knobs.compilation.scope(), ending_with_ptx(triton):
            knobs.cache.dir = folder
            knobs.compilation.disable_line_info = True
            yield
    finally:
        cache.triton_key = keyed
        os.environ.update(shell)


@contextlib.contextmanager
def _errors_in_words(path: Path) -> Iterator[None]:
    """What Triton's native code writes to stderr, whole programs among it, goes to a file; of an error that says no
    more than that it failed, its first line is the reason. Raises ScheduleError, and what Triton raises."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    except RuntimeError as error:
        lines = path.read_text(errors="replace").splitlines()
        words = next((line.partition("error: ")[2] for line in lines if "error: " in line), "")
        raise ScheduleError(f"Triton failed: {words[:200]}" if words else f"Triton failed: {error}") from None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _imported(text: str, folder: Path) -> Any:
    """The generated module, from a file: Triton reads the source of its functions there."""
    path = folder / "tile_program.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("tile_program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def _assembled(text: str, facts: dict[str, int], launch: TileLaunch, using: Assembler, device: Device) -> Binary:
    if facts["profile_bytes"]:
        raise ScheduleError("Triton instruments its programs here: unset its settings for profiling")
    pointers = [a.name for a in launch.arguments if a.slot is not None]
    text, entry, parameters = in_tinygrads_order(text, pointers, [a.name for a in launch.arguments if a.slot is None])
    made = assemble(text, using)
    threads = _THREADS.search(text)
    report = {
        "registers": made.registers,
        "spilled_bytes": made.spilled_bytes,
        "stack_bytes": made.stack_bytes,
        "shared_bytes": facts["shared_bytes"] + made.shared_bytes,
        "warps": facts["warps"],
        "wgmma": int("wgmma.mma_async" in text),
    }
    if "tcgen05.mma" in text:
        report["tcgen05"] = 1
    return Binary(
        cubin=made.cubin,
        entry=entry,
        parameters=parameters,
        threads=int(threads[1]) if threads else device.threads(facts["warps"]),
        shared_bytes=facts["shared_bytes"],
        scratch_bytes=facts["scratch_bytes"] if SCRATCH in parameters else 0,
        report=tuple(report.items()),
    )


def _of_amd(made: _Made, launch: TileLaunch, device: Device) -> Binary:
    """AMD's code object. It takes all pointers and then all integers, as tinygrad passes them; Triton's pointers to
    scratch memory stand behind these, and no program without descriptors uses them."""
    if made.facts["scratch_bytes"] or made.facts["profile_bytes"]:
        raise ScheduleError("Triton gives it scratch memory, which is not passed on AMD's GPUs")
    text = made.texts["amdgcn"]

    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(found[1]) if found else 0

    report = {
        "registers": figure("vgpr_count"),
        "spilled_bytes": 4 * figure("vgpr_spill_count"),
        "stack_bytes": figure("private_segment_fixed_size"),
        "shared_bytes": made.facts["shared_bytes"],
        "warps": made.facts["warps"],
        "mfma": int("v_mfma" in text),
    }
    return Binary(
        cubin=made.code,
        entry=launch.entry,
        parameters=tuple(a.name for a in launch.arguments),
        threads=device.threads(made.facts["warps"]),
        shared_bytes=made.facts["shared_bytes"],
        scratch_bytes=0,
        report=tuple(report.items()),
    )


def in_tinygrads_order(
    text: str, pointers: Sequence[str], variables: Sequence[str]
) -> tuple[str, str, tuple[str, ...]]:
    """PTX text whose entry takes only the parameters that it uses, pointers first and then integers; the entry's name;
    and which arguments these are, in order.

    Triton's own order is that of the arguments, pointers to its global and its profiling scratch behind them. Code
    finds a parameter by its name, so that the list alone says where each is. Raises ScheduleError where the list is
    not as expected.
    """
    if (match := _ENTRY.search(text)) is None:
        raise ScheduleError("Triton's PTX has no entry")
    declared = [p.strip() for p in match[3].split(",") if p.strip()]
    names = [*pointers, *variables, SCRATCH, "profile"]
    if len(declared) != len(names):
        raise ScheduleError(f"Triton's PTX takes {len(declared)} parameters, not {len(names)}")
    rest = text[: match.start(3)] + text[match.end(3) :]
    by_name = dict(zip(names, declared, strict=True))
    used = [n for n in names if re.search(rf"\b{re.escape(by_name[n].split()[-1])}\b", rest)]
    if "profile" in used:
        raise ScheduleError("Triton's PTX uses the scratch memory of its profiler")
    # integers are passed whether they are used or not: tinygrad gives a launch all values of its variables
    kept = (*(n for n in pointers if n in used), *(n for n in (SCRATCH,) if n in used), *variables)
    listed = "\n\t" + ",\n\t".join(by_name[name] for name in kept) + "\n"
    return text[: match.start(3)] + listed + text[match.end(3) :], match[2], kept


# ---- the cache


def _written(binary: Binary) -> str:
    cubin = base64.b64encode(binary.cubin).decode()
    digest = hashlib.sha256(binary.cubin).hexdigest()
    return canonical_json({**asdict(replace(binary, cubin=b"")), "cubin": cubin, "sha256": digest})


def _read(path: Path) -> Binary | None:
    """A binary as it was written; None where there is none, or what is there is damaged."""
    try:
        found = json.loads(path.read_bytes())
        cubin = base64.b64decode(found.pop("cubin"))
        if hashlib.sha256(cubin).hexdigest() != found.pop("sha256"):
            return None
        report = tuple((str(name), int(value)) for name, value in found.pop("report"))
        return Binary(cubin=cubin, parameters=tuple(found.pop("parameters")), report=report, **found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


# ---- the program


def _known_at(region: Region, schedule: Schedule, target: Target) -> Path:
    """Where it is kept what a program of these is made of."""
    using = assembler() if device_of(target).ptx else None
    key = _key([GENERATOR_VERSION, TEXTS, region.id, schedule.body, asdict(target)], using)
    return cache_folder("tile-programs") / key[:2] / f"{key}.json"


def _listed(program: Program, keys: Sequence[str]) -> str:
    """A program without its machine code, which is kept under these keys, of each launch one."""
    launches = tuple(replace(one, compiled=replace(one.compiled, binary=b"")) for one in program.launches)
    codes = [hashlib.sha256(one.compiled.binary).hexdigest() for one in program.launches]
    text = canonical_json(
        {"program": program_values(replace(program, launches=launches)), "keys": keys, "codes": codes}
    )
    return canonical_json({"text": text, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def _unlisted(path: Path, bindings: tuple[Variables, ...]) -> Program | None:
    """The program of `_listed`; None where a part of it is not there, or damaged, or where it was compiled for other
    values."""
    try:
        found = json.loads(path.read_bytes())
        if hashlib.sha256(found["text"].encode()).hexdigest() != found["sha256"]:
            return None
        held = json.loads(found["text"])
        program, launches = program_from(held["program"]), []
        if not all(map(program.runs_at, bindings)):
            return None
        for launch, key, code in zip(program.launches, held["keys"], held["codes"], strict=True):
            binary = _read(_at(key))
            if binary is None or hashlib.sha256(binary.cubin).hexdigest() != code:
                return None
            launches.append(replace(launch, compiled=replace(launch.compiled, binary=binary.cubin)))
        return replace(program, launches=tuple(launches)).at(bindings[0])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


_BY_POINTER: dict[str, DType] = {POINTERS[name]: dtype for dtype, name in reversed(TYPES.items())}


def _program(
    region: Region,
    kernel: TileKernel,
    source: TileSource,
    binaries: Sequence[Binary],
    bindings: tuple[Variables, ...],
) -> Program:
    """Launches in order on the region's buffers, and behind these on the workspaces."""
    count = 1 + max([b.slot for b in kernel.buffers] + [number for slots in region.args for number in slots])
    scratch: list[Scratch] = []
    workspace = -1
    if source.workspace_bytes:
        (type_,) = {a.type for a in source.launches[0].arguments if a.slot == WORKSPACE}
        dtype = _BY_POINTER[type_]
        workspace = count
        scratch.append(Scratch(source.workspace_bytes // dtype.itemsize, dtype.name))
    launches = []
    for number, (launch, binary) in enumerate(zip(source.launches, binaries, strict=True)):
        of_descriptors = -1
        if binary.scratch_bytes:
            of_descriptors = count + len(scratch)
            scratch.append(Scratch(launch.grid * binary.scratch_bytes, dtypes.uint8.name))
        last = number == len(source.launches) - 1
        numbers = {WORKSPACE: workspace} | {b.slot: b.slot for b in kernel.buffers}
        places = {a.name: numbers[a.slot] for a in launch.arguments if a.slot is not None}
        places[SCRATCH] = of_descriptors
        compiled = _compiled(kernel, source, launch, binary, places, bindings, is_last=last)
        launches.append(ProgramLaunch(compiled, compiled.slots))
    return Program(tuple(launches), count, tuple(scratch))


def _compiled(
    kernel: TileKernel,
    source: TileSource,
    launch: TileLaunch,
    binary: Binary,
    places: dict[str, int],
    bindings: tuple[Variables, ...],
    *,
    is_last: bool,
) -> Compiled:
    """One launch; its slots are the program's numbers of the buffers. `is_last`: it reads a workspace that the one
    before wrote. What is stored may be written by either: of tiles that no programs share by the first."""
    types = {a.name: a.type for a in launch.arguments}
    pointers = [p for p in binary.parameters if p == SCRATCH or types[p] != "i32"]
    slots = tuple(places[p] for p in pointers)
    written = {places[SCRATCH]}
    written |= {s.store.buffer.slot for s in kernel.written} | (set() if is_last else {places.get("workspace", -1)})
    read = {load.buffer.slot for load in kernel.loads}
    dtype_names = [dtypes.uint8.name if p == SCRATCH else _BY_POINTER[types[p]].name for p in pointers]
    names = [a.variable for a in launch.arguments if a.slot is None]
    signature = [(None, slot, name) for slot, name in zip(slots, dtype_names, strict=True)]
    signature += [(name, len(slots) + place, dtypes.int.name) for place, name in enumerate(names)]  # type: ignore[misc]
    sizes = ((launch.grid, 1, 1), (binary.threads, 1, 1))
    bound = tuple(BoundLaunch(values, *sizes, _values(names, values)) for values in bindings) if names else ()
    return Compiled(
        binary=binary.cubin,
        source=source.text,
        function_name=binary.entry,
        signature=tuple(signature),
        slots=slots,
        outputs=tuple(sorted(written & set(slots))),
        inputs=tuple(sorted(s for s in set(slots) if s not in written or s in read)),
        global_size=sizes[0],
        local_size=sizes[1],
        values=bound[0].values if bound else (),
        uops=0,
        shared_bytes=binary.shared_bytes,
        launch_id=f"{binary.entry} {sizes} {binary.shared_bytes}",
        launches=bound,
        report=binary.report,
        tf32=source.rounds_to_tf32,
    )


def _values(names: Sequence[str], variables: Variables) -> tuple[int, ...]:
    known = dict(variables)
    if unknown := [name for name in names if name not in known]:
        raise ScheduleError(f"it is launched without a value of {', '.join(unknown)}")
    return tuple(known[name] for name in names)
