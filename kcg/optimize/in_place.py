"""Hand-written kernels in a running program: the compiled program of each, for the calls of its kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kcg.compat.programs import is_aligned, program_in_place, single_device
from kcg.errors import CodecError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import to_elf
from kcg.measure.source_kernels import rebuilt
from kcg.types import Kernel, Region, Schedule, Target


class HandwrittenPrograms:
    """Gives the program for a call, if there is one. All are made when this is, in a child, from the user's files.

    Raises UsageError or MismatchError, see `kcg.measure.source_kernels.rebuilt`.
    """

    def __init__(self, wanted: Mapping[Kernel, Schedule], paths: Sequence[Path], target: Target) -> None:
        regions = {Region((kernel,)): schedule for kernel, schedule in wanted.items()}
        made = rebuilt(regions, paths, target) if regions else {}
        self._target = target
        self._compiled = {region.id: compiled for region, compiled in made.items()}
        self._ids: dict[bytes, str] = {}
        self._programs: dict[tuple[bytes, str], Any] = {}

    def __call__(self, call: Any) -> tuple[str, Any] | None:
        """The id of the kernel that a call runs and the program to run instead; None where nothing is.

        A kernel on several devices, or on buffers that begin at odd addresses, is left to the Opts: a hand-written one
        may load sixteen bytes at once.
        """
        if not self._compiled:
            return None
        ast = call.src[0]
        if ast.key not in self._ids:
            try:
                self._ids[ast.key] = kernel_of(ast).id
            except CodecError:  # a custom kernel of the program
                self._ids[ast.key] = ""
        kernel_id = self._ids[ast.key]
        compiled, device = self._compiled.get(kernel_id), single_device(call)
        if compiled is None or device is None or device.split(":")[0] != self._target.device or not is_aligned(call):
            return None
        if (ast.key, device) not in self._programs:
            self._programs[ast.key, device] = program_in_place(
                ast,
                to_elf(compiled, self._target),
                device,
                shared_bytes=compiled.shared_bytes,
                global_size=compiled.global_size,
                local_size=compiled.local_size,
                outputs=compiled.outputs,
                inputs=compiled.inputs,
                threads=compiled.threads,
                source=compiled.source,
            )
        return kernel_id, self._programs[ast.key, device]
