"""Stress: a chosen program is launched thousands of times on the same inputs, and every launch's output is compared.

What compilers get wrong about asynchronous copies and tensor cores shows once in some thousand launches, if at all. So
the launches follow each other without waiting, some of them with an empty cache, and a kernel compares each output with
the first one on the device and leaves a mark wherever they ever differ. Outputs are put back to what they were before
some of the launches, so that none passes by leaving alone what another one wrote.

The first half of the launches has the device alone. In the second half the same program runs on a second stream too, on
buffers and a workspace of its own, and its outputs are restored and compared there: what is beside a launch computes,
waits for copies, fills shared memory and the cache as the program itself does. Both streams are held back until the
host has sent some launches to each, since the host is slower than short programs. Where a device has no second stream
all launches are alone.

A pass is kept in the user's cache by binary, GPU and driver: it is not run again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kcg.compat.programs import Spin, hidden_s
from kcg.compat.streams import Stream, has_second_stream, second_stream
from kcg.compat.tiny import Buffer, KernelInfo, UOp, dtypes
from kcg.files import write_whole
from kcg.measure.inputs import launcher_of
from kcg.measure.workbench import GUARD_BYTES, Workbench, copied
from kcg.types import Region, Target, Toolchain, Variables, canonical_json

if TYPE_CHECKING:
    from kcg.kernel.program import Executable
    from kcg.measure.verify import CheckedBench

RULES: Final = 3
"""What a pass says: passes of before a change of it do not count. 1: all launches alone; 2: of programs that were
verified without planted data."""
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
    return Stressed(bench, runs, variables, flush=flush, launches=launches).launch(launches)


class Stressed:
    """A program under stress, which may have its launches in several goes: what passes adds up, as long as the first
    goes were those of the same binary."""

    def __init__(
        self,
        bench: CheckedBench,
        runs: Executable,
        variables: Variables,
        *,
        flush: Callable[[], None],
        launches: int = LAUNCHES,
        before: int = 0,
    ) -> None:
        """`launches` are all of them, of which it had so many `before`, by another one of these."""
        self._bench, self._runs, self._flush, self._launches = bench, runs, flush, launches
        self._number = before
        # the first launch, by the reference
        self._reason = bench.watch(bench.launcher(runs, as_tinygrad=True), variables, tf32=runs.tf32).reason
        self._own: _Repeated | None = None
        self._beside: _Beside | None = None
        self._stream = second_stream(bench.device)
        self._alone = launches if self._stream is None else launches - launches // 2

    @property
    def number(self) -> int:
        """Launches that it had."""
        return self._number

    @property
    def left(self) -> int:
        """Launches that it is to have yet."""
        return self._launches - self._number

    def launch(self, count: int) -> str:
        """What is wrong after so many launches more; empty if nothing is. Raises what the device raises on a fault."""
        if self._reason:
            return self._reason
        self._own = own = self._own or _Repeated(self._bench, self._runs)
        last = min(self._number + count, self._launches)
        for number in range(self._number + 1, last + 1):
            if self._stream is not None and number > self._alone and self._beside is None:
                self._beside = _Beside(own, self._stream)
            if number % FLUSHED_EVERY == 0:
                self._flush()
                if self._beside is not None:
                    self._beside.hold()
            if self._beside is None:
                own.launch(number)
            else:
                self._beside.launch(number)
            if number % LOOKED_AT_EVERY == 0 or number in (self._alone, last):
                for words, one in (("", own), (", beside another stream,", self._beside)):
                    if one is not None and (where := one.differs()):
                        self._reason = f"of {number} launches one{words} left another {where}"
                        return self._reason
        self._number = last
        self._reason = self._bench.left_behind()
        if not self._reason and self._beside is not None and (slot := self._beside.wrote_outside()) is not None:
            self._bench.tainted, self._reason = True, f"wrote outside buffer {slot}, beside another stream"
        return self._reason


def launches_beside(target: Target) -> int:
    """How many of `LAUNCHES` have another stream beside them."""
    return LAUNCHES // 2 if has_second_stream(target.device) else 0


def rule(target: Target) -> str:
    """What has passed stress was judged by, in words."""
    words = f"{LAUNCHES} launches under stress bitwise equal"
    return f"{words}, {count} of them beside another stream" if (count := launches_beside(target)) else words


def expected_s(seconds: float, output_bytes: int, target: Target) -> float:
    """What stress takes of a program of so many seconds that writes so much."""
    comparing_s = PASSES * output_bytes / (SHARE * target.bandwidth_bytes_s) if target.bandwidth_bytes_s else 0.0
    own_s = seconds + comparing_s
    count = launches_beside(target)
    return (LAUNCHES - count) * max(HOST_S, own_s) + count * (hidden_s(2 * HOST_S) + 2 * own_s)


class _Repeated:
    """A program on the buffers of one bench, launched again and again on one stream."""

    def __init__(
        self, bench: Workbench, runs: Executable, *, stream: Stream | None = None, like: _Repeated | None = None
    ) -> None:
        """The outputs of a right launch are on the device, or in `like`, on a bench of the same region."""
        self.bench, self.runs = bench, runs
        self.outputs: list[_Output] = []
        for place, slot in enumerate(bench.outputs):
            right = None if like is None else like.outputs[place].right
            self.outputs.append(_Output(bench, slot, stream, right))
        self._send = bench.sender(runs, stream)
        bench.poison(bench.poisoned_with)
        if stream is not None:
            stream.follow()  # inputs and poison are written on tinygrad's own
        for output in self.outputs:
            output.remember()

    def launch(self, number: int) -> None:
        """Send one launch off, and the comparison of its outputs."""
        for output in self.outputs:
            if output.in_place or number % RESTORED_EVERY == 0:
                output.restore()
        self._send()
        for output in self.outputs:
            output.compare()

    def differs(self) -> str:
        """Where an output was different after any launch, in words."""
        for output in self.outputs:
            if (element := output.differs()) is not None:
                return f"element {element} of buffer {output.slot}"
        return ""


class _Beside:
    """A program on two streams at once, tinygrad's own and another one, each with buffers of its own."""

    def __init__(self, own: _Repeated, stream: Stream) -> None:
        bench = Workbench(own.bench.region, own.bench.target)
        assert own.bench.seed is not None
        bench.fill(own.bench.seed, own.bench.recipe)
        bench.poisoned_with = own.bench.poisoned_with
        self._own, self._stream = own, stream
        self._other = _Repeated(bench, own.runs, stream=stream, like=own)
        self._spin, self._sending_s = Spin(bench.device), FLUSHED_EVERY * 2 * HOST_S
        self.hold()

    def hold(self) -> None:
        """What is sent from here on begins on both streams at once, when the host has sent as much as since the last
        time."""
        self._stream.wait()
        self._spin(hidden_s(self._sending_s))
        self._stream.follow()
        self._sending_s = 0.0

    def launch(self, number: int) -> None:
        """Send one launch to each stream."""
        begin = time.perf_counter()
        self._other.launch(number)
        self._own.launch(number)
        self._sending_s += time.perf_counter() - begin

    def differs(self) -> str:
        """As of `_Repeated`, of the other stream."""
        return self._other.differs()

    def wrote_outside(self) -> int | None:
        """Which buffer the program wrote outside of, on the other stream."""
        return self._other.bench.guards_intact()


class _Output:
    """One output: what it held before a launch, what a right one leaves in it, and where one ever left another."""

    def __init__(self, bench: Workbench, slot: int, stream: Stream | None, right: Buffer | None) -> None:
        """The output of a right launch is on the device, where it is not given."""
        info = bench.by_slot[slot]
        self.slot, self.in_place, self._itemsize = slot, info.is_input, info.itemsize
        words = -(-info.nbytes // (4 * ROW)) * ROW
        self._view = bench.with_guards(slot, 4 * words)
        self._copy, self._compare = (launcher_of(make(words), bench.target, stream) for make in (_copying, _marking))
        self._before, self._marks = (self._like_it(bench) for _ in range(2))
        bench.fill_with(self._marks, 0)
        self.right = self._like_it(bench) if right is None else right
        if right is None:
            self._copy(self.right, self._view)

    def _like_it(self, bench: Workbench) -> Buffer:
        return Buffer(bench.device, self._view.nbytes, dtypes.uint8).allocate()

    def remember(self) -> None:
        """What it holds now is what it held before the first launch."""
        self._copy(self._before, self._view)

    def restore(self) -> None:
        """It holds again what it held before the first launch."""
        self._copy(self._view, self._before)

    def compare(self) -> None:
        """Mark where it differs from what a right launch left."""
        self._compare(self._marks, self._view, self.right)

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
    of: list[Any] = [RULES, region.id, binary, target.model, toolchain.driver, variables, LAUNCHES]
    return caches / "kcg" / "stress" / hashlib.sha256(canonical_json(of).encode()).hexdigest()


def has_passed(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> bool:
    """Whether a binary passed before with these values of its kernel's variables, on such a GPU with this driver."""
    return _place(region, binary, target, toolchain, variables).exists()


def keep_pass(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> None:
    """Keep that it passed. Raises UsageError where the cache cannot be written."""
    counts = {"launches": LAUNCHES, "beside": launches_beside(target)}
    about = {"binary": binary, "model": target.model, "driver": toolchain.driver, **counts}
    write_whole(_place(region, binary, target, toolchain, variables), canonical_json(about))
