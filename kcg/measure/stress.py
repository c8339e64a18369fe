"""Stress: a chosen program is launched thousands of times on the same inputs, and every launch's output is compared.

What compilers get wrong about asynchronous copies and tensor cores shows once in some thousand launches, if at all. So
the launches follow each other without waiting, some of them with an empty cache, and a kernel compares each output with
the first one on the device and leaves a mark wherever they ever differ. Outputs are put back to what they were before
some of the launches, so that none passes by leaving alone what another one wrote.

Half of the launches have the device alone, `TURN` of them after each other. Beside the next `TURN` the same program
runs on a second stream too, on buffers and a workspace of its own, and its outputs are restored and compared there:
what is beside a launch computes, waits for copies, fills shared memory and the cache as the program itself does. Both
streams are held back until the host has sent some launches to each, since the host is slower than short programs. So
half of what passed had company, however many launches that is. Where a device has no second stream all launches are
alone.

After `PROVISIONAL` launches a program may be used, and says that it is provisional; it is verified after `LAUNCHES`.
What passed is kept in the user's cache by binary, GPU and driver, with how many launches: these are not run again. A
pass of more launches counts for fewer, never the reverse.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kcg.compat.programs import device_seconds, hidden_s, spin_on, synchronize
from kcg.compat.streams import Stream, has_second_stream, second_stream
from kcg.compat.tiny import Buffer, KernelInfo, UOp, dtypes
from kcg.files import cache_folder, write_whole
from kcg.kernel.kinds import MOVED_TOGETHER
from kcg.measure.inputs import launcher_of
from kcg.measure.workbench import GUARD_BYTES, Workbench, contents_of, copied
from kcg.types import Region, Target, Toolchain, Variables, canonical_json

if TYPE_CHECKING:
    from kcg.kernel.program import Executable
    from kcg.measure.verify import CheckedBench

RULES: Final = 3
"""What a pass says: passes of before a change of it do not count. 1: all launches alone; 2: of programs that were
verified without planted data."""
LAUNCHES: Final = 10_000
PROVISIONAL: Final = 1_000  # launches, after which what passed them may be used
TURN: Final = 50  # launches alone, and then so many beside another stream
RESTORED_EVERY: Final = 8  # launches, before which outputs hold again what they held before the first one
FLUSHED_EVERY: Final = 16  # launches, before which the cache is emptied
LOOKED_AT_EVERY: Final = 1_000  # launches, after which it is over where one differed
HOST_S: Final = 60e-6  # what the host takes for one launch and its comparison, at least
PASSES: Final = 2.5  # over an output, for each launch: two to compare it, a part of one to restore it
SHARE: Final = 0.5  # of the memory's bandwidth that these reach

UNDER_STRESS: Final = "launches under stress"  # is in the rule that says how many passed
Key = tuple[Region, str, Target, Toolchain, Variables]
"""What a pass is kept by: a region, a binary, where it ran, and the values of its kernel's variables."""

ROW: Final = GUARD_BYTES // 4  # words; outputs are compared in whole rows, behind them are at least as many guard bytes
assert ROW % MOVED_TOGETHER == 0


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
        last, before = min(self._number + count, self._launches), None
        for number in range(self._number + 1, last + 1):
            company = self._company(number, own)
            if company is None and before is not None:
                before.wait()
            if flushed := number % FLUSHED_EVERY == 0:
                self._flush()
            if company is not None and (flushed or before is None):
                company.hold(number)
            (company or own).launch(number)
            before = company
            if number % LOOKED_AT_EVERY == 0 or number == last:
                for words, one in (("", own), (", beside another stream,", self._beside)):
                    if one is not None and (where := one.differs()):
                        self._reason = f"of {number} launches one{words} left another {where}"
                        return self._reason
        self._number = last
        self._reason = self._bench.left_behind()
        if not self._reason and self._beside is not None and (slot := self._beside.wrote_outside()) is not None:
            self._bench.tainted, self._reason = True, f"wrote outside buffer {slot}, beside another stream"
        return self._reason

    def _company(self, number: int, own: _Repeated) -> _Beside | None:
        """What runs beside a launch; None where it has the device alone."""
        if self._stream is None:
            return None
        if not is_beside(number):
            return None
        self._beside = self._beside or _Beside(own, self._stream)
        return self._beside


def is_beside(number: int) -> bool:
    """Whether a launch has another stream beside it, where there is one; the first is 1."""
    return (number - 1) // TURN % 2 == 1


def launches_beside(target: Target, launches: int = LAUNCHES) -> int:
    """How many of so many `launches` have another stream beside them."""
    whole, rest = divmod(launches, 2 * TURN)
    return TURN * whole + max(rest - TURN, 0) if has_second_stream(target.device) else 0


def rule(target: Target, launches: int = LAUNCHES) -> str:
    """What has passed so many launches was judged by, in words."""
    words = f"{launches} {UNDER_STRESS} bitwise equal"
    count = launches_beside(target, launches)
    return f"{words}, {count} of them beside another stream" if count else words


def expected_s(seconds: float, output_bytes: int, target: Target, launches: int = LAUNCHES) -> float:
    """What so many `launches` take of a program of so many seconds that writes so much."""
    comparing_s = PASSES * output_bytes / (SHARE * target.bandwidth_bytes_s) if target.bandwidth_bytes_s else 0.0
    own_s = seconds + comparing_s
    count = launches_beside(target, launches)
    return (launches - count) * max(HOST_S, own_s) + count * (hidden_s(2 * HOST_S) + 2 * own_s)


def ahead_s(count: int, sending_s: float, launch_s: float) -> float:
    """How long the device is to wait for a host that takes `sending_s` to send each of `count` launches, so that it has
    the next one whenever it is done with one, in `launch_s` at least. Short programs wait until all are sent; of long
    ones the host sends the next while one runs."""
    return max(hidden_s(sending_s), hidden_s(count * sending_s) - (count - 1) * launch_s)


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
        self._spin, self._sending_s, self._sent = spin_on(bench.device), 2 * HOST_S, 1
        self._launch_s: float | None = None  # what the device takes for one, alone

    def wait(self) -> None:
        """Wait for the launches on the other stream."""
        self._stream.wait()

    def hold(self, number: int) -> None:
        """What is sent from this launch on begins on both streams at once, when the host has sent so many of those to
        the next time that neither stream waits for it again: it is expected to take for each what it took since the
        last one, and the device no less than it takes alone."""
        self._stream.wait()
        if self._launch_s is None:
            self._launch_s = self._alone_s()
        rest = TURN - (number - 1) % TURN
        count = min(rest, FLUSHED_EVERY - number % FLUSHED_EVERY)
        self._spin(ahead_s(count, self._sending_s / self._sent, self._launch_s))
        self._stream.follow()
        self._sending_s, self._sent = 0.0, 0

    def _alone_s(self) -> float:
        """Seconds of the device for one launch with its comparison, which the host has sent before it begins."""
        self._spin(hidden_s(2 * HOST_S))
        return device_seconds(self._own.bench.device, lambda: self._own.launch(1))

    def launch(self, number: int) -> None:
        """Send one launch to each stream."""
        begin = time.perf_counter()
        self._other.launch(number)
        self._own.launch(number)
        self._sending_s += time.perf_counter() - begin
        self._sent += 1

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
        self._copy, self._compare = (_launcher(make, words, bench.target, stream) for make in (_copying, _marking))
        self._before, self._marks = (self._like_it(bench) for _ in range(2))
        bench.fill_with(self._marks, 0)
        self._target, self._unmarked = bench.target, contents_of(self._marks, bench.target)
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
        synchronize(self._target.device)  # on all streams
        if np.array_equal(contents_of(self._marks, self._target), self._unmarked):
            return None
        marked = copied(self._marks).view("uint32").nonzero()[0]
        return int(marked[0]) * 4 // self._itemsize if marked.size else None


@functools.lru_cache(maxsize=128)
def _launcher(make: Callable[[int], UOp], words: int, target: Target, stream: Stream | None) -> Callable[..., None]:
    """What launches a kernel of so many words; outputs of one size share it."""
    return launcher_of(make(words), target, stream, wide=True)


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


def _place(
    region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables, *, whole: bool = True
) -> Path:
    """The file of a pass; one that is not of the `whole` of `LAUNCHES` lies elsewhere, where nobody takes it for it."""
    of: list[Any] = [RULES, region.id, binary, target.model, toolchain.driver, variables, LAUNCHES if whole else "part"]
    return cache_folder("stress") / hashlib.sha256(canonical_json(of).encode()).hexdigest()


def passed(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> int:
    """How many launches a binary passed before with these values of its kernel's variables, on such a GPU with this
    driver: at most `LAUNCHES`, and none where its file cannot be read."""
    key = region, binary, target, toolchain, variables
    if _place(*key).exists():
        return LAUNCHES
    try:
        launches = json.loads(_place(*key, whole=False).read_bytes())["launches"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return launches if type(launches) is int and 0 <= launches < LAUNCHES else 0


def has_passed(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> bool:
    """Whether it passed all of `LAUNCHES`."""
    return passed(region, binary, target, toolchain, variables) >= LAUNCHES


def keep_pass(
    region: Region,
    binary: str,
    target: Target,
    toolchain: Toolchain,
    variables: Variables,
    launches: int = LAUNCHES,
) -> None:
    """Keep that it passed so many launches in all; what is kept of more stays. Raises UsageError where the cache cannot
    be written."""
    key = region, binary, target, toolchain, variables
    if launches <= passed(*key):
        return
    counts = {"launches": launches, "beside": launches_beside(target, launches)}
    about = {"binary": binary, "model": target.model, "driver": toolchain.driver, **counts}
    whole = launches >= LAUNCHES
    write_whole(_place(*key, whole=whole), canonical_json(about))
    if whole:
        forget_part(*key)


def forget_part(region: Region, binary: str, target: Target, toolchain: Toolchain, variables: Variables) -> None:
    """Keep nothing of a binary that failed in a later launch: what it passed before counts for nothing."""
    with contextlib.suppress(OSError):
        _place(region, binary, target, toolchain, variables, whole=False).unlink()
