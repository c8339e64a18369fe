"""tinygrad's own schedules as a run compiled them, for a process that runs the same kernels: on a CPU lowering and
compiling them once more takes most of the whole model's check. What was found is compiled there as programs will."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from kcg.compat.capture import choosing_opts
from kcg.compat.programs import core_variable, single_device
from kcg.compat.standalone import program_of_code
from kcg.compat.tiny import Ops
from kcg.kernel.compile import to_elf
from kcg.kernel.installing import kernel_id
from kcg.kernel.program import Compiled
from kcg.types import Target


@contextlib.contextmanager
def compiled_before(programs: Mapping[str, Compiled], target: Target) -> Iterator[set[str]]:
    """Inside the block, a kernel for which nothing else is chosen runs its program, by its id, if there is one: code
    that tinygrad would make again. Gives the ids of those that did so far."""
    made: dict[tuple[bytes, str], Any] = {}
    used: set[str] = set()

    def program(call: Any) -> Any:
        ast, device = call.src[0], single_device(call)
        if device is None or device.split(":")[0] != target.device:
            return None
        if (ast.key, device) not in made:
            made[ast.key, device] = None
            if (found := kernel_id(ast)) is not None and found in programs:
                with contextlib.suppress(Exception):  # whatever does not load tinygrad compiles
                    made[ast.key, device] = _program(ast, programs[found], target, device)
                    used.add(found)
        return made[ast.key, device]

    with choosing_opts(lambda ast: None, program):
        yield used


def _program(ast: Any, compiled: Compiled, target: Target, device: str) -> Any:
    by_slot = {u.arg.slot: u for u in ast.toposort() if u.op is Ops.PARAM}
    threads = (core_variable(len(compiled.slots), compiled.global_size[0]),) if compiled.values else ()
    return program_of_code(
        ast,
        [by_slot[slot] for slot in compiled.slots],
        threads,
        to_elf(compiled, target),
        device,
        shared_bytes=compiled.shared_bytes,
        global_size=compiled.global_size,
        local_size=compiled.local_size,
        outputs=compiled.outputs,
        inputs=compiled.inputs,
        source=compiled.source,
    )
