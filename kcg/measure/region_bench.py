"""The buffers of a region on the device, and programs of several launches on them, timed as one.

A launch has about 5 µs of its own between two events, so launches that are timed one by one pay what a program does
not: the launches follow each other between one pair of events, behind a device that is kept busy until the host has
sent them all. On a CPU it is one span of the host's clock. That is the same for every contender, for programs of one
launch too. Intermediates and workspaces are guarded, and poisoned like outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kcg.compat.programs import HIDDEN_MOST_S, Spin, device_seconds, hidden_s, load_program
from kcg.compat.tiny import AddrSpace, Ops, UOp, dtypes
from kcg.kernel.codec import ast_of
from kcg.kernel.compile import to_elf
from kcg.kernel.program import Program, Scratch
from kcg.measure.inputs import BufferInfo, buffers_of, integer_bounds, make_inputs
from kcg.measure.workbench import Bench
from kcg.types import Region, Target

HOST_S = 100e-6  # for which the device is kept busy at first, per launch: what the host may take to send it off


class RegionBench(Bench):
    """Buffers of one region by their numbers, and behind them those of programs for it."""

    def __init__(self, region: Region, target: Target) -> None:
        self.region = region
        self._asts = [renumbered(ast_of(k), _slots(region, place)) for place, k in enumerate(region.kernels)]
        super().__init__(buffers_of_region(self._asts), target)
        self._region_buffers = len(self.buffers)
        self._scratch: dict[tuple[int, Scratch], int] = {}  # which of a program's, what it is -> slot
        self._spin = Spin(target.device)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The buffers whose contents count after a run."""
        if self.region.args:
            return self.region.outputs
        return tuple(info.slot for info in self.buffers if info.is_output and info.slot < self._region_buffers)

    def _new_inputs(self, seed: int, recipe: str) -> dict[int, Any]:
        """Of a buffer that several kernels read, integers are those of the kernel that has the least to select from."""
        made: dict[int, Any] = {}
        bounds: dict[int, int] = {}
        for ast in self._asts:
            bound = integer_bounds(ast)
            for slot, values in make_inputs(ast, seed, recipe=recipe).items():
                closer = slot in bound and bound[slot] < bounds.get(slot, bound[slot] + 1)
                if self.by_slot[slot].is_input and (slot not in made or closer):
                    made[slot] = values
                    bounds[slot] = bound.get(slot, bounds.get(slot, 1 << 62))
        return made

    def launcher(self, program: Program, *, as_tinygrad: bool = False) -> Callable[[], float]:
        """Load a program; the callable runs it once, launch behind launch, and gives the seconds of all of it.

        `as_tinygrad` loads exactly what tinygrad would, as for one kernel.
        """
        slots = [*range(program.buffers), *(self._slot_of(i, one) for i, one in enumerate(program.scratch))]
        loaded = []
        for launch in program.launches:
            elf = to_elf(launch.compiled, self.target, as_tinygrad=as_tinygrad)
            runtime = load_program(self.device, elf, shared_bytes=launch.compiled.shared_bytes)
            # the buffers themselves, and not their addresses: whoever holds the callable keeps their memory
            loaded.append((runtime, launch.compiled, [self._views[slots[number]] for number in launch.args]))
        busy_s = HOST_S * len(loaded)

        def send() -> None:
            for runtime, compiled, views in loaded:
                pointers = [view.get_buf(self.device) for view in views]
                runtime(
                    *pointers, global_size=compiled.global_size, local_size=compiled.local_size, vals=compiled.values
                )

        def run() -> float:
            nonlocal busy_s
            begin, sent = time.perf_counter(), 0.0

            def sending() -> None:
                nonlocal sent
                send()
                sent = time.perf_counter() - begin

            self._spin(busy_s)
            seconds = device_seconds(self.device, sending)
            if sent > busy_s:  # the host was slower than it had time for: the next run gives it more
                busy_s = min(hidden_s(sent), HIDDEN_MOST_S)
            return seconds

        return run

    def _slot_of(self, place: int, scratch: Scratch) -> int:
        """A buffer of a program's own. Programs that ask for the same share it: they never run at once."""
        if (place, scratch) not in self._scratch:
            slot = self._region_buffers + len(self._scratch)
            itemsize = next(d for d in dtypes.all if d.name == scratch.dtype).itemsize
            self._allocate(BufferInfo(slot, scratch.elements, scratch.dtype, itemsize, is_output=True, is_input=False))
            self._scratch[place, scratch] = slot
            self._guard_byte, byte = -1, self._guard_byte  # around the new one too
            self.guard(byte)
        return self._scratch[place, scratch]


def _slots(region: Region, place: int) -> tuple[int, ...]:
    """Which buffer of the region each slot of one of its kernels binds."""
    if region.args:
        return region.args[place]
    return tuple(range(1 + max(info.slot for info in buffers_of(ast_of(region.kernel)))))


def renumbered(ast: UOp, slots: tuple[int, ...]) -> UOp:
    """A kernel's AST with other numbers for its buffers: `slots[i]` for slot i. Inputs are drawn by these numbers, so
    that two buffers of a region never hold the same."""
    params = {
        u: u.replace(arg=replace(u.arg, slot=slots[u.arg.slot]))
        for u in ast.toposort()
        if u.op is Ops.PARAM and u.addrspace != AddrSpace.ALU
    }
    return ast.substitute(params, walk=True)


def buffers_of_region(asts: list[UOp]) -> list[BufferInfo]:
    """The buffers of renumbered kernels that run in order, by number: read is what nothing has written before."""
    found: dict[int, BufferInfo] = {}
    for ast in asts:
        for info in buffers_of(ast):
            before = found.get(info.slot, replace(info, is_output=False, is_input=False))
            found[info.slot] = replace(
                info,
                is_output=before.is_output or info.is_output,
                is_input=before.is_input or (info.is_input and not before.is_output),
            )
    return [found[slot] for slot in sorted(found)]
