"""Stress: a chosen program is launched thousands of times on the same inputs, and every launch's output is compared.

What compilers get wrong about asynchronous copies and tensor cores shows once in some thousand launches, if at all. So
the launches follow each other without waiting, some of them with an empty cache, and a kernel compares each output with
the first one on the device and leaves a mark wherever they ever differ. Outputs are put back to what they were before
some of the launches, so that none passes by leaving alone what another one wrote.

A pass is kept in the user's cache by binary, GPU and driver: it is not run again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcg.compat.tiny import Buffer, KernelInfo, UOp, dtypes
from kcg.files import write_whole
from kcg.measure.inputs import launcher_of
from kcg.measure.workbench import GUARD_BYTES, Workbench, copied
from kcg.types import Region, Target, Toolchain, Variables, canonical_json

if TYPE_CHECKING:
    from kcg.kernel.program import Executable
    from kcg.measure.verify import CheckedBench

LAUNCHES: Final = 10_000
RESTORED_EVERY: Final = 8  # launches, before which outputs hold again what they held before the first one
FLUSHED_EVERY: Final = 16  # launches, before which the cache is emptied
LOOKED_AT_EVERY: Final = 1_000  # launches, after which it is over where one differed
HOST_S: Final = 60e-6  # what the host takes for one launch and its comparison, at least
PASSES: Final = 2.5  # over an output, for each launch: two to compare it, a part of one to restore it
SHARE: Final = 0.5  # of the memory's bandwidth that these reach

ROW: Final = GUARD_BYTES // 4  # words; outputs are compared in whole rows, behind them are at least as many guard bytes


def stressed(
    bench: CheckedBench, runs: Executable, variables: Variables, *, flush: Callable[[], None], launches: int = LAUNCHES
) -> str:
    """What is wrong with a program after so many launches on the inputs that are filled in; empty if nothing is.

    Raises what the device raises on a fault.
    """
    if reason := bench.watch(bench.launcher(runs, as_tinygrad=True), variables).reason:
        return reason  # the first launch, by the reference
    outputs = [_Output(bench, slot) for slot in bench.outputs]
    bench.poison(bench.poisoned_with)
    for output in outputs:
        output.remember()
    send = bench.sender(runs)
    for number in range(1, launches + 1):
        if number % FLUSHED_EVERY == 0:
            flush()
        for output in outputs:
            if output.in_place or number % RESTORED_EVERY == 0:
                output.restore()
        send()
        for output in outputs:
            output.compare()
        if number % LOOKED_AT_EVERY == 0 or number == launches:
            for output in outputs:
                if (element := output.differs()) is not None:
                    return f"of {number} launches one left another element {element} of buffer {output.slot}"
    return bench.left_behind()


def expected_s(seconds: float, output_bytes: int, target: Target) -> float:
    """What stress takes of a program of so many seconds that writes so much."""
    comparing_s = PASSES * output_bytes / (SHARE * target.bandwidth_bytes_s) if target.bandwidth_bytes_s else 0.0
    return LAUNCHES * max(HOST_S, seconds + comparing_s)


class _Output:
    """One output: what it held before a launch, what a right one leaves in it, and where one ever left another."""

    def __init__(self, bench: Workbench, slot: int) -> None:
        """The output of a right launch is on the device."""
        info = bench.by_slot[slot]
        self.slot, self.in_place, self._itemsize = slot, info.is_input, info.itemsize
        words = -(-info.nbytes // (4 * ROW)) * ROW
        self._view = bench.with_guards(slot, 4 * words)
        self._copy, self._compare = (launcher_of(make(words), bench.target) for make in (_copying, _marking))
        self._right, self._before, self._marks = (
            Buffer(bench.device, self._view.nbytes, dtypes.uint8).allocate() for _ in range(3)
        )
        bench.fill_with(self._marks, 0)
        self._copy(self._right, self._view)

    def remember(self) -> None:
        """What it holds now is what it held before the first launch."""
        self._copy(self._before, self._view)

    def restore(self) -> None:
        """It holds again what it held before the first launch."""
        self._copy(self._view, self._before)

    def compare(self) -> None:
        """Mark where it differs from what a right launch left."""
        self._compare(self._marks, self._view, self._right)

    def differs(self) -> int | None:
        """The first element that was different after any launch."""
        marked = copied(self._marks).view("uint32").nonzero()[0]
        return int(marked[0]) * 4 // self._itemsize if marked.size else None


def _marking(count: int) -> UOp:
    """`marks[i] = 1` where `out[i] != right[i]`, and nothing elsewhere, of so many words."""

    def mark(marks: UOp, out: UOp, right: UOp) -> UOp:
        i = UOp.range(count, 0)
        differs = out[i].ne(right[i])
        return marks[i.valid(differs)].store(UOp.const(1, dtypes.uint32)).end(i).sink(arg=KernelInfo())

    return _kernel(mark, count, 3)


def _copying(count: int) -> UOp:
    """`out[i] = held[i]`."""

    def copy(out: UOp, held: UOp) -> UOp:
        i = UOp.range(count, 0)
        return out[i].store(held[i]).end(i).sink(arg=KernelInfo())

    return _kernel(copy, count, 2)


def _kernel(function: Callable[..., UOp], count: int, buffers: int) -> UOp:
    """The AST of a function of so many buffers of so many words."""
    from tinygrad import Tensor

    first, *others = (Tensor.empty(count, dtype=dtypes.uint32, device="CPU") for _ in range(buffers))
    ast: UOp = first.custom_kernel(*others, fxn=function)[0].schedule_linear().src[0].src[0]
    return ast


# ---- passes that are kept


def _place(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    of: list[Any] = [region.id, binary, target.model, toolchain.driver, variables, LAUNCHES]
    return caches / "kcg" / "stress" / hashlib.sha256(canonical_json(of).encode()).hexdigest()


def has_passed(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> bool:
    """Whether a binary passed before with these values of its kernel's variables, on such a GPU with this driver."""
    return _place(region, binary, target, toolchain, variables).exists()


def keep_pass(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> None:
    """Keep that it passed. Raises UsageError where the cache cannot be written."""
    about = {"binary": binary, "model": target.model, "driver": toolchain.driver, "launches": LAUNCHES}
    write_whole(_place(region, binary, target, toolchain, variables), canonical_json(about))
