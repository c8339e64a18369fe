"""Each step of a running program twice from the same memory: with tinygrad's own schedules, then with what was chosen.

Two whole runs of a training loop drift apart by rounding alone, until nothing can be told of them. One step does not:
both begin with the same values, and the program goes on with what the chosen schedules made of them. A step is what a
`TinyJit` captured, or what tinygrad realises at once. The 1st, 2nd, 4th, 8th, ... of each is run so.

Memory that a step writes is saved before and put back in between. What was not allocated before is filled with ones in
every bit (NaN) both times, so that a value which a schedule leaves unwritten is seen. Importing this module imports no
tinygrad, see `kcg.compat.capture`.

Private: `jit.jit_lower`, `.CapturedJit`, `.compile_linear` and `._copy_input`, `schedule.memory_plan_rewrite`,
`tensor.run_linear`, `realize.compile_linear`, `.run_linear`, `.get_call_outs_ins` and `.resolve_params`,
`tensor.all_tensors`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import when_imported
from kcg.compat.observing import (
    STEP,
    Follower,
    Piece,
    StepMemory,
    buffers_of,
    calls_in,
    fitting,
    name_of,
    piece_of,
    put_values,
    shake,
)
from kcg.compat.stretch import FILES

if TYPE_CHECKING:
    from kcg.compat.tiny import Buffer, UOp

PART_BYTES = 1 << 22  # of each buffer so much is changed, and of one without room compared,
SHAKEN_BYTES = 1 << 26  # of all so much is changed, the small ones first: the host takes time to read and write it
ONES_BYTES = 1 << 24  # of ones in every bit, at once
QUEUES = "tinygrad put a step into hardware queues of its own (HCQ2=1), which cannot be run twice"
WRITES_A_FILE = "a step writes to a file"
"""Why a step is not compared, beside what fails."""

Pieces = tuple[Piece, ...]
Run = Callable[[], object]
OwnSchedules = Callable[[], AbstractContextManager[None]]
"""A block in which this thread gets tinygrad's own schedules."""
Otherwise = Callable[[Any], Any]
"""Of the AST of a kernel that was replaced one whose sums are off by about what another order does; None of others."""


@dataclass(frozen=True)
class Trial:
    """What a step wrote from the same values, the same memory in the same order."""

    before: Pieces  # what was there when it began
    own: Pieces
    chosen: Pieces
    changed: int = 0  # values of what it began with that were changed


@dataclass(frozen=True)
class Step:
    """One step that ran with both. What the chosen schedules wrote has in `fed_by` those that it came out of, in this
    step. It runs again only while it is judged."""

    name: Hashable  # the same at each of its executions
    trial: Trial
    fresh: tuple[bool, ...]  # whether the memory held nothing before
    updated: tuple[bool, ...]  # whether the step reads it too
    left_out: int  # of what it wrote, that of which the beginning alone is compared, for its size
    again: Callable[[], Pieces]  # what the own ones write if they run once more from the same values
    trials: Callable[[int | None, Sequence[int]], Trial]
    """What it wrote at these places, from the same values, or from values each changed at random, by a seed, by one
    rounding unit."""
    rounded: Callable[[int, Sequence[int]], Pieces]
    """What the own ones write there from the same values where kernels that were replaced have sums that are off at
    random, by a seed, by about what another order of their terms does."""


class Lockstep:
    """Runs the steps of one program in this process so, and has each judged.

    A step of a thread that begins while another one is compared is not compared.
    """

    def __init__(
        self,
        own_schedules: OwnSchedules,
        changed: frozenset[str],
        judge: Callable[[Step], None],
        *,
        otherwise: Otherwise,
        most_bytes: int,
    ) -> None:
        """`changed` are the ids of what was chosen, of which an `Observer` tags the calls. Of what a step writes
        `most_bytes` are compared, the small first."""
        self.why_not = ""  # why some step was not compared
        self._own_schedules, self._changed, self._judge = own_schedules, changed, judge
        self._most_bytes, self._otherwise = most_bytes, otherwise
        self._captured: weakref.WeakKeyDictionary[UOp, _Own] = weakref.WeakKeyDictionary()
        self._replays: weakref.WeakKeyDictionary[UOp, int] = weakref.WeakKeyDictionary()
        self._realised: Counter[tuple[bytes, ...]] = Counter()
        self._now = threading.local()  # what this thread planned last
        self._busy = threading.Lock()

    def watch(self) -> contextlib.ExitStack:
        """Begin, before the program does. What is returned must live as long as the program."""
        stays = contextlib.ExitStack()
        for module, hook in (("tinygrad.tensor", self._watch_realising), ("tinygrad.engine.jit", self._watch_jit)):
            stays.enter_context(when_imported(module, hook))
        return stays

    def watch_planning(self) -> None:
        """What was chosen stands in front of tinygrad's planner: this comes before it."""
        from tinygrad import schedule

        plan = schedule.memory_plan_rewrite

        @functools.wraps(plan)
        def planned(linear: UOp, held_bufs: set[UOp] | None = None) -> UOp:
            chosen: UOp = plan(linear, held_bufs)
            self._now.realising = None
            structure = tuple(call.src[0].key for call in linear.src)
            self._realised[structure] += 1
            if _is_due(self._realised[structure]):
                with self._trying(), self._own_schedules():
                    planned = plan(linear, held_bufs)
                    own = _Own(planned, held_bufs or set(), self._own_schedules, self._otherwise)
                    self._now.realising = chosen, own, structure
            return chosen

        schedule.memory_plan_rewrite = planned

    # ---- hooks ----

    def _watch_realising(self, tensor: Any) -> None:
        run = tensor.run_linear

        @functools.wraps(run)
        def realised(linear: UOp, values: dict[str, int] | None = None, *rest: Any, **named: Any) -> Any:
            realising, self._now.realising = getattr(self._now, "realising", None), None
            going_on = partial(run, linear, values, *rest, **named)
            if realising is None or realising[0] is not linear:
                return going_on()
            from tinygrad.engine.realize import compile_linear

            chosen, changed = linear, frozenset[str]()
            with self._trying():
                chosen = compile_linear(linear)
                changed = self._changed_in(chosen)
            if not changed:
                return going_on()
            run_chosen = partial(_run, chosen, (), values)
            return self._twice(realising[2], realising[1], chosen, (), values, run_chosen, going_on)

        tensor.run_linear = realised

    def _watch_jit(self, jit: Any) -> None:
        lower, compile_before, replay = jit.jit_lower, jit.compile_linear, jit.CapturedJit.__call__

        @functools.wraps(compile_before)
        def compiled(linear: UOp, *rest: Any, **named: Any) -> UOp:
            after: UOp = compile_before(linear, *rest, **named)
            self._now.planned = linear, after
            return after

        @functools.wraps(lower)
        def lowered(linear: UOp, held_bufs: set[UOp], input_uops: list[UOp]) -> UOp:
            chosen: UOp = lower(linear, held_bufs, input_uops)
            with self._trying():
                if self._changed_in(chosen):
                    with self._own_schedules():
                        lower(linear, held_bufs, input_uops)
                    planned, own = self._now.planned
                    self._captured[chosen] = _Own(planned, held_bufs, self._own_schedules, self._otherwise, own)
            self._now.planned = None
            return chosen

        @functools.wraps(replay)
        def replayed(captured: Any, inputs: list[UOp], values: dict[str, int]) -> Any:
            chosen, own = captured._linear, self._captured.get(captured._linear)
            going_on = partial(replay, captured, inputs, values)
            if own is None:
                return going_on()
            self._replays[chosen] = count = self._replays.get(chosen, 0) + 1
            if not _is_due(count):
                return going_on()
            given = tuple(jit._copy_input(u) if u in captured._written_uops else u for u in inputs)
            run_chosen = partial(_run, captured.linear, given, values)
            return self._twice(chosen.key, own, chosen, given, values, run_chosen, going_on)

        jit.jit_lower, jit.compile_linear, jit.CapturedJit.__call__ = lowered, compiled, replayed

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """A block that may fail without harm: the program goes on with what was chosen, and this says why."""
        try:
            yield
        except Exception as error:  # whatever tinygrad raises where there is no memory, for one
            self.why_not = " ".join(str(error).split())[:300] or type(error).__name__

    # ---- a step ----

    def _changed_in(self, linear: UOp) -> frozenset[str]:
        if any(_is_queued(call) for call in linear.src):
            raise NotImplementedError(QUEUES)
        return self._changed.intersection(map(name_of, calls_in(linear)))

    def _twice(
        self,
        name: Hashable,
        own: _Own,
        chosen: UOp,
        inputs: tuple[UOp, ...],
        values: dict[str, int] | None,
        run_chosen: Run,
        going_on: Callable[[], Any],
    ) -> Any:
        """Run a step with tinygrad's own schedules, then from the same memory with the chosen ones, as the program
        does by `going_on`, of which this gives what it returns. `run_chosen` is the same, unseen by others."""
        if not self._busy.acquire(blocking=False):  # of another thread, in the same memory perhaps
            return going_on()
        try:
            seen = None
            with self._trying():
                seen = _Seen(own, chosen, inputs, values, run_chosen, self._most_bytes)
                seen.run_own()
            returned = going_on()
            if seen is None or not seen.own:
                return returned
            with self._trying():
                follower = Follower(StepMemory(seen.written))
                for call in calls_in(chosen):
                    follower.follow(call, inputs)
                fed_by = [tuple(sorted(self._changed & follower.memory.fed_by(one))) for one in seen.compared]
                made = tuple(replace(one, fed_by=by) for one, by in zip(seen.pieces(), fed_by, strict=True))
                trial = Trial(seen.before, seen.own, made)
                each = seen.again, seen.trial, seen.rounded
                self._judge(Step(name, trial, seen.fresh, seen.updated, seen.left_out, *each))
            return returned
        finally:
            self._busy.release()


class _Own:
    """A step as tinygrad schedules it."""

    def __init__(
        self,
        planned: UOp,
        held: set[UOp],
        own_schedules: OwnSchedules,
        otherwise: Otherwise,
        compiled: UOp | None = None,
    ) -> None:
        """`planned`, and `compiled` where it is; `held` is memory that is there beyond the step."""
        from tinygrad.uop.ops import buffers

        def is_there(node: UOp) -> bool:
            return node in held or ((known := buffers.get(node)) is not None and known.is_allocated())

        nodes = _buffers_in(argument for call in planned.src for argument in call.src[1:])
        self.held = {node for node in nodes if is_there(node)}
        self._between = nodes - self.held
        self._planned, self._own_schedules, self._otherwise = planned, own_schedules, otherwise
        self._compiled = compiled

    @functools.cached_property
    def linear(self) -> UOp:
        """Compiled, without graphs."""
        from tinygrad.engine.realize import compile_linear

        if self._compiled is not None:
            return self._compiled
        with self._own_schedules():
            return compile_linear(self._planned)

    def run(self, inputs: tuple[UOp, ...], values: dict[str, int] | None) -> None:
        """Run it, with memory for what is in between that is free after it."""
        with self._elsewhere(self.linear) as linear:
            _run(linear, inputs, values)

    def run_rounded(self, inputs: tuple[UOp, ...], values: dict[str, int] | None, *, seed: int) -> None:
        """Run it call by call, see `Step.rounded`: what a call wrote is moved by the distance to what one with other
        sums writes, times a random number for each element."""
        import numpy as np

        rng = np.random.default_rng(seed)
        with self._elsewhere(self.linear) as linear:
            for call, other in zip(linear.src, self._others, strict=True):
                alone = linear.replace(src=(call,))
                if other is None:
                    _run(alone, inputs, values)
                    continue
                written = _floats_of(call, inputs)
                before = _Saved(written)
                _run(linear.replace(src=(call.replace(src=(other, *call.src[1:])),)), inputs, values)
                others = [one.numpy() for one in written]
                before.put_back()
                _run(alone, inputs, values)
                for buffer, moved in zip(written, others, strict=True):
                    own = buffer.numpy()
                    is_number = np.isfinite(own) & np.isfinite(moved)
                    by = np.subtract(moved, own, out=np.zeros_like(own), where=is_number)
                    put_values(buffer, own + by * rng.standard_normal(own.shape, np.float32).astype(own.dtype))

    @functools.cached_property
    def _others(self) -> list[UOp | None]:
        """For each call a program in its place with other sums."""
        from kcg.compat.programs import single_device
        from kcg.compat.tiny import Device, Ops, to_program

        @functools.cache
        def program(ast: UOp, device: str | None) -> UOp | None:
            if ast.op is not Ops.SINK or device is None or (changed := self._otherwise(ast)) is None:
                return None
            with self._own_schedules():
                return to_program(changed, Device[device].renderer)

        return [program(call.src[0], single_device(call)) for call in self._planned.src]

    @contextlib.contextmanager
    def _elsewhere(self, linear: UOp) -> Iterator[UOp]:
        """The same, with memory for what is in between that is free after the block."""
        new = {node: type(node).new_buffer(node.device, node.max_numel(), node.dtype) for node in self._between}

        def elsewhere(call: UOp) -> UOp:
            return call.replace(src=(call.src[0], *(one.substitute(new, walk=True) for one in call.src[1:])))

        try:
            yield linear.replace(src=tuple(map(elsewhere, linear.src)))
        finally:  # who gets this memory next finds nothing of use in it
            for node in new.values():
                for one in buffers_of(node.buffer):
                    if one.is_allocated():
                        _fill_with_ones(one)


class _Seen:
    """What a step wrote with tinygrad's own schedules, and what was there before."""

    def __init__(
        self,
        own: _Own,
        chosen: UOp,
        inputs: tuple[UOp, ...],
        values: dict[str, int] | None,
        run_chosen: Run,
        most_bytes: int,
    ) -> None:
        written, read = _memory_of(own, inputs)
        # what was not there and no chosen program names nobody reads: a region left it out
        named = {id(one) for one in _named(chosen, inputs)}
        self.written = [one for one in written if one.is_allocated() or id(one) in named]
        self._own, self._inputs, self._values, self._run_chosen = own, inputs, values, run_chosen
        kept = fitting([one.nbytes for one in self.written], most_bytes)
        self.left_out = len(self.written) - len(kept)
        self.fresh = tuple(not one.is_allocated() for one in self.written)
        self.updated = tuple(any(one is other for other in read) for one in self.written)
        there = [_beginning(one) for one in (*self.written, *read) if one.is_allocated() and not _is_host(one)]
        self._there = [there[at] for at in sorted(fitting([one.nbytes for one in there], SHAKEN_BYTES))]
        self._saved = _Saved(self.written)
        self._saved.put_back()
        self.compared = [one if at in kept else _beginning(one) for at, one in enumerate(self.written)]
        self._shapes = _shapes()
        self.before: Pieces = self.pieces()
        self.own: Pieces = ()

    def pieces(self, places: Sequence[int] | None = None) -> Pieces:
        """What is there now, at these places of what is compared."""
        some = self.compared if places is None else [self.compared[at] for at in places]
        return tuple(piece_of(STEP, one, self._shapes.get(id(one), ())) for one in some)

    def _run_own(self) -> None:
        self._own.run(self._inputs, self._values)

    def run_own(self) -> None:
        """Run it with tinygrad's own schedules; all is there again after it."""
        try:
            self._run_own()
            self.own = self.pieces()
        finally:
            self._saved.put_back()

    def again(self) -> Pieces:
        """See `Step.again`."""
        with self._from_before():
            self._run_own()
            return self.pieces()

    def rounded(self, seed: int, places: Sequence[int]) -> Pieces:
        """See `Step.rounded`."""
        with self._from_before():
            self._own.run_rounded(self._inputs, self._values, seed=seed)
            return self.pieces(places)

    def trial(self, seed: int | None, places: Sequence[int]) -> Trial:
        """See `Step.trials`."""
        with self._from_before():
            changed = 0 if seed is None else sum(shake(one, seed=seed + at) for at, one in enumerate(self._there))
            begun, before = _Saved([*self.written, *self._there]), self.pieces(places)

            def after(run: Run) -> Pieces:
                begun.put_back()
                run()
                return self.pieces(places)

            return Trial(before, after(self._run_own), after(self._run_chosen), changed)

    @contextlib.contextmanager
    def _from_before(self) -> Iterator[None]:
        """A block that begins with what was there before the step, and leaves what is there now."""
        after = _Saved([*self.written, *self._there])
        try:
            self._saved.put_back()
            yield
        finally:
            after.put_back()


class _Saved:
    """What buffers hold, to be put back; ones in every bit where they hold nothing yet."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        unique = {id(one): one for one in buffers}.values()
        self._copies = [(one, _copy(one) if one.is_allocated() else None) for one in unique]

    def put_back(self) -> None:
        """Make them hold that again."""
        for one, copy in self._copies:
            if copy is None:
                _fill_with_ones(one.ensure_allocated())
            else:
                one.copy_from(copy)


def _copy(buffer: Buffer) -> Buffer:
    return type(buffer)(buffer.device, buffer.size, buffer.dtype).allocate().copy_from(buffer.ensure_allocated())


def _run(linear: UOp, inputs: tuple[UOp, ...], values: dict[str, int] | None) -> None:
    """Run what is compiled, unseen by others that watch the program."""
    from tinygrad.engine.realize import run_linear

    run_linear(linear, values, input_uops=inputs, jit=True, update_stats=False)


def _beginning(buffer: Buffer) -> Buffer:
    """So much of a buffer as is changed in a trial, or compared where it is large."""
    elements = max(PART_BYTES // buffer.dtype.itemsize, 1)
    return buffer if buffer.size <= elements else buffer.view(elements, buffer.dtype, 0).ensure_allocated()


def _fill_with_ones(buffer: Buffer) -> None:
    """On the device, from one part that the host wrote."""
    from kcg.compat.tiny import dtypes

    part = _ones(buffer.device, ONES_BYTES)
    for begin in range(0, buffer.nbytes, part.nbytes):
        size = min(part.nbytes, buffer.nbytes - begin)
        of = part if size == part.nbytes else part.view(size, dtypes.uint8, 0).ensure_allocated()
        buffer.view(size, dtypes.uint8, begin).ensure_allocated().copy_from(of)


@functools.cache
def _ones(device: str, nbytes: int) -> Buffer:
    """Ones in so many bytes of a device, written once: a step leaves memory without values in between its calls."""
    from kcg.compat.tiny import Buffer, dtypes

    ones = Buffer("PYTHON", nbytes, dtypes.uint8, opaque=memoryview(bytearray(b"\xff" * nbytes)))
    return Buffer(device, nbytes, dtypes.uint8).allocate().copy_from(ones)


def _is_queued(call: UOp) -> bool:
    from kcg.compat.tiny import Ops

    return bool(call.src[0].op is Ops.CUSTOM_FUNCTION and call.src[0].arg == "hcq")


def _is_due(count: int) -> bool:
    """Whether a step is compared at its `count`-th execution: the powers of two."""
    return count & (count - 1) == 0


def _memory_of(own: _Own, inputs: Sequence[UOp]) -> tuple[list[Buffer], list[Buffer]]:
    """The buffers beyond a step that it writes, and those that it reads, each once."""
    from tinygrad.engine.realize import get_call_outs_ins, resolve_params

    beyond = own.held | _buffers_in(inputs)
    written: dict[int, Buffer] = {}
    read: dict[int, Buffer] = {}
    for call in calls_in(own.linear):
        arguments = resolve_params(call, tuple(inputs))
        for found, places in zip((written, read), get_call_outs_ins(call), strict=True):
            for node in _buffers_in(arguments[place] for place in places) & beyond:
                found.update({id(one.base): one.base for one in buffers_of(node.buffer)})
    if any(one.device.startswith(FILES) for one in written.values()):
        raise NotImplementedError(WRITES_A_FILE)
    return list(written.values()), list(read.values())


def _floats_of(call: UOp, inputs: Sequence[UOp]) -> list[Buffer]:
    """What one call writes of floats, if the host may well read it; below what narrower ones are rounded to, the order
    of a sum is lost."""
    from tinygrad.engine.realize import get_call_outs_ins, resolve_params

    from kcg.compat.tiny import dtypes

    arguments = resolve_params(call, tuple(inputs))
    some = [one for place in get_call_outs_ins(call)[0] for one in buffers_of(arguments[place].buffer)]
    return [one for one in some if one.dtype in (dtypes.float32, dtypes.float64) and one.nbytes <= SHAKEN_BYTES]


def _named(linear: UOp, inputs: Sequence[UOp]) -> Iterator[Buffer]:
    """The buffers that its calls name."""
    from tinygrad.engine.realize import resolve_params

    for node in _buffers_in(one for call in calls_in(linear) for one in resolve_params(call, tuple(inputs))):
        yield from (one.base for one in buffers_of(node.buffer))


def _buffers_in(arguments: Iterable[UOp]) -> set[UOp]:
    """The buffers that these are, or are views of."""
    from kcg.compat.tiny import Ops

    return {node for one in set(arguments) for node in one.toposort() if node.op is Ops.BUFFER}


def _is_host(buffer: Buffer) -> bool:
    """Whether it is the host's or a file's, which is not to be changed."""
    return bool(buffer.device.startswith(("PYTHON", "NPY", *FILES)))


def _shapes() -> dict[int, tuple[Any, ...]]:
    """How the tensors that are alive see the memory that is theirs alone."""
    from tinygrad.tensor import all_tensors

    found = dict[int, tuple[Any, ...]]()
    for reference in list(all_tensors):
        tensor = reference()
        if tensor is not None and (realized := tensor.uop.base.realized) is not None:
            found.update({id(one.base): tensor.shape for one in buffers_of(realized)})
    return found
