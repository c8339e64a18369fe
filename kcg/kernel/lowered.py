"""tinygrad's own program of a kernel, lowered where a program ran, in the place of lowering the kernel again.

Lowering is Python, and nearly all of what compiling for a CPU takes. What was lowered is taken where it is just what
`kcg.kernel.compile` would lower: the same AST, with Opts that are known, by the same renderer and settings. Of a
renderer that gives instructions the binary is there with it. Of one that gives source the compiler runs here, so that
a binary is always that of this machine's toolchain, and its function is named as kcg names all.
"""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import dataclass, replace
from typing import Any

from kcg.compat.renderers import compiling_renderer, lowering_settings, machine_code
from kcg.compat.scheduling import from_tiny, with_device
from kcg.compat.tiny import Context, KernelInfo
from kcg.errors import KcgError
from kcg.kernel.codec import ast_of
from kcg.kernel.compile import FUNCTION, check_places, plain
from kcg.kernel.opts.schedule import schedule_of
from kcg.kernel.program import Compiled, compiled_from, compiled_values
from kcg.types import Kernel, Schedule, Target, canonical_json


@dataclass(frozen=True)
class Lowered:
    """One kernel with one schedule, lowered."""

    schedule: Schedule
    compiled: Compiled  # without a binary, where its source is still to be compiled
    settings: str  # what lowering depends on beside these: of the process that did it
    seconds: float  # that it took
    name: str = ""  # of the function as tinygrad named it
    binary: bytes = b""  # as tinygrad compiled it, by that name

    @property
    def as_tinygrad(self) -> Compiled:
        """tinygrad's own program, without its source: for a process that runs what tinygrad would run."""
        return replace(self.compiled, binary=self.binary, function_name=self.name, source="")


def lowered_of(kernel: Kernel, ast: Any, program: Any, renderer: Any, seconds: float) -> Lowered | None:
    """What tinygrad made of the `ast` of a `kernel`; None where kcg would lower another one, or its launches depend on
    variables."""
    own = with_device(ast_of(kernel), renderer.target.device).replace(arg=ast.arg)
    if own is not ast or ast.arg != KernelInfo(name=ast.arg.name) or ast.variables():
        return None
    schedule = schedule_of([from_tiny(opt) for opt in program.src[0].arg.applied_opts])
    assembled = hasattr(renderer, "asm_str")
    try:
        if assembled:
            check_places(program)
        source = _source(program, renderer)
    except KcgError:  # as it does not compile for kcg
        return None
    compiled = replace(plain(program, ((),), source, b""), function_name=FUNCTION)
    if not assembled:
        compiled = replace(compiled, binary=b"")
    settings, own = lowering_settings(renderer), bytes(program.src[3].arg)
    return Lowered(schedule, compiled, settings, seconds, program.arg.function_name, own)


def _source(program: Any, renderer: Any) -> str:
    """The source of a program as it is where the function has kcg's name. Raises KcgError where that cannot be told."""
    name = program.arg.function_name
    if hasattr(renderer, "asm_str"):
        return str(renderer.asm_str(list(program.src[1].src), FUNCTION))
    before, found, after = str(program.src[2].arg).partition(f" {name}(")
    if not found or name in before or name in after:
        raise KcgError(f"{name} is not named once in its source")
    return f"{before} {FUNCTION}({after}"


@functools.lru_cache(8)
def settings_here(target: Target) -> str:
    """What lowering for a target depends on in the processes that compile for this one."""
    with Context(NOOPT=0):
        return lowering_settings(compiling_renderer(target))


def finished(lowered: Lowered, target: Target) -> Compiled:
    """The program of what was lowered, compiled here where its source is to be. Raises the compiler's own error."""
    compiled = lowered.compiled
    if compiled.binary:
        return compiled
    renderer = compiling_renderer(target)
    binary = bytes(renderer.compiler.compile_cached(compiled.source))
    return replace(compiled, binary=binary, image=machine_code(compiled.source, renderer))


# ---- as a line of JSON, between two processes


def lowered_json(kernel: Kernel, lowered: Lowered) -> str:
    """A line that `lowered_from` reads."""
    values = {
        "kernel": kernel.id,
        "schedule": [lowered.schedule.kind, lowered.schedule.body],
        "compiled": compiled_values(lowered.compiled),
        "settings": lowered.settings,
        "seconds": lowered.seconds,
        "name": lowered.name,
        "binary": base64.b64encode(lowered.binary).decode(),
    }
    return canonical_json(values)


def lowered_from(line: str) -> tuple[str, Lowered]:
    """The id of the kernel, and what was lowered of it. Raises ValueError, KeyError or TypeError for another line."""
    values = json.loads(line)
    kind, body = values["schedule"]
    own = values["name"], base64.b64decode(values["binary"])
    compiled = compiled_from(values["compiled"])
    return values["kernel"], Lowered(Schedule(kind, body), compiled, values["settings"], values["seconds"], *own)
