"""The sequences of calls that a program runs: order, buffers, what stays live, how often, and the lines they come from.

They are read before tinygrad plans memory (`kcg.compat.planning`). What a `TinyJit` captures is steady, and each of its
replays counts; all else counts when it is scheduled. Importing this module imports no tinygrad, and
`recording_sequences` may begin before a program does.

A kernel's line is that of the user's code that made the value it stores. tinygrad knows only a method's name, and that
only until it schedules, so the stack is looked at whenever a Tensor is made. An intermediate that no Tensor names has
the line of what is computed from it.

Private: `tensor.transform_to_call` (which buffer each value gets), `tensor.create_linear_with_vars` (the values of
variables), `engine.jit.jit_lower` and `.run_linear` (what a `TinyJit` captures and replays), `Tensor._apply_uop`,
`Tensor._wrap_uop`, `Tensor.assign`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kcg.compat.capture import WRITTEN, Variables, bound_variables, plain_name, variable_names, when_imported, why_fixed
from kcg.compat.gradients import MODULE as GRADIENTS
from kcg.compat.gradients import Gradients
from kcg.compat.lines import users_line
from kcg.compat.parameters import Parameters
from kcg.compat.planning import JIT, before_planning
from kcg.compat.quick_schedules import scheduling_quickly
from kcg.compat.stretch import PlannedCall, stretch_of
from kcg.types import SequenceBuffer, SlotBinding

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

COPY = "copy between devices"
BACKWARD = " (backward)"  # behind the layer of a call that computes gradients


@dataclass(frozen=True)
class SequencedCall:
    """One call; `ast` is None where tinygrad does not compile it from one, or not freely: `what` says what it is."""

    ast: UOp | None
    views: tuple[SlotBinding, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    what: str = ""
    devices: tuple[str, ...] = field(default=(), compare=False)
    origin: str = field(default="", compare=False)
    layers: tuple[tuple[str, int], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class CapturedSequence:
    """Calls in order, with buffers numbered by their first appearance. Equal ones do the same on buffers alike.

    The data types of buffers have tinygrad's own names.
    """

    calls: tuple[SequencedCall, ...]
    buffers: tuple[SequenceBuffer, ...]
    steady: bool

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """The names of the variables that its kernels need."""
        return frozenset(name for call in self.calls if call.ast is not None for name in variable_names(call.ast))

    @functools.cached_property
    def layers(self) -> tuple[str, ...]:
        """The layer of each call; equal sequences may be of several."""
        return tuple(call.layers[0][0] if call.layers else "" for call in self.calls)

    def ran_for(self, counts: Mapping[tuple[str, ...], int]) -> CapturedSequence:
        """The same, for whose layers it ran so often."""
        seen = [Counter[str]() for _ in self.calls]
        for layers, count in counts.items():
            for counter, layer in zip(seen, layers, strict=True):
                counter[layer] += count if layer else 0
        pairs = zip(self.calls, seen, strict=True)
        return replace(self, calls=tuple(replace(call, layers=tuple((+found).most_common())) for call, found in pairs))


class SequenceRecorder:
    """What a running program scheduled and replayed. Threads may share it."""

    def __init__(self, *, look: bool) -> None:
        self.parameters, self.gradients, self._look = Parameters(), Gradients(), look
        self.on_run: Callable[[CapturedSequence, Variables], None] = lambda sequence, values: None  # of each run
        self._counts: dict[CapturedSequence, dict[Variables, int]] = {}
        self._layers: dict[CapturedSequence, Counter[tuple[str, ...]]] = {}
        self._jitted: weakref.WeakKeyDictionary[UOp, CapturedSequence] = weakref.WeakKeyDictionary()
        self._lines: weakref.WeakKeyDictionary[UOp, str] = weakref.WeakKeyDictionary()  # of values and of buffers
        self._lock = threading.Lock()
        self._now = threading.local()

    def sequences(self) -> list[tuple[CapturedSequence, tuple[tuple[Variables, int], ...]]]:
        """Every distinct one in the order of its first run, with the values of its variables and how often each."""
        with self._lock:
            return [
                (sequence.ran_for(self._layers[sequence]), tuple(sorted(counts.items())))
                for sequence, counts in self._counts.items()
            ]

    # ---- what came by ----

    def saw_planned(self, linear: UOp, module: str) -> UOp:
        """Remember the calls of a linear that is about to be planned, until it is known how it runs."""
        stretch = stretch_of(linear)
        if self._look:
            self.parameters.look_for(stretch)
        layers = self.parameters.layers_of(stretch)
        backward = self.gradients.backward(stretch, layers)
        layers = [layer + BACKWARD if late else layer for layer, late in zip(layers, backward, strict=True)]
        self._now.planned = captured(stretch, steady=module == JIT, line_of=self._line_of, layers=layers)
        return linear

    def _line_of(self, node: UOp) -> str:
        return self._lines.get(node, "")

    def _taken(self) -> CapturedSequence | None:
        planned: CapturedSequence | None = getattr(self._now, "planned", None)
        self._now.planned = None
        return planned if planned is not None and planned.calls else None

    def _count(self, sequence: CapturedSequence, values: Mapping[str, Any]) -> None:
        bound = bound_variables(sequence.variables, values)
        with self._lock:
            counts = self._counts.setdefault(sequence, {})
            counts[bound] = counts.get(bound, 0) + 1
            self._layers.setdefault(sequence, Counter())[sequence.layers] += 1
            self.on_run(sequence, bound)

    # ---- hooks ----

    def watch_jit(self, jit: Any) -> Callable[[], None]:
        lower_before, run_before = jit.jit_lower, jit.run_linear

        def jit_lower(linear: UOp, *rest: Any) -> UOp:
            self._taken()
            lowered: UOp = lower_before(linear, *rest)
            if (sequence := self._taken()) is not None:
                self._jitted[lowered] = sequence
            return lowered

        def run_linear(linear: UOp, var_vals: Mapping[str, int] | None = None, *rest: Any, **named: Any) -> Any:
            if (sequence := self._jitted.get(linear)) is not None:
                self._count(sequence, var_vals or {})
            return run_before(linear, var_vals, *rest, **named)

        def undo() -> None:
            jit.jit_lower, jit.run_linear = lower_before, run_before

        jit.jit_lower, jit.run_linear = jit_lower, run_linear
        return undo

    def watch_tensors(self, tensor: Any) -> Callable[[], None]:
        schedule_before, buffers_before = tensor.create_linear_with_vars, tensor.transform_to_call
        cls = tensor.Tensor
        own = {name: vars(cls)[name] for name in ("_apply_uop", "_wrap_uop", "assign")}
        apply_before, wrap_before, assign_before = cls._apply_uop, cls._wrap_uop.__func__, cls.assign

        def create_linear_with_vars(sink: UOp) -> tuple[UOp, dict[str, int]]:
            self._taken()
            linear, values = schedule_before(sink)
            if (sequence := self._taken()) is not None:
                self._count(sequence, values)
            return linear, values

        def transform_to_call(sink: UOp) -> Any:
            call, buffers = buffers_before(sink)
            self.gradients.placed(sink, buffers)
            for value, place in buffers.items():
                self.parameters.moved(value, place.buf_uop)
                if line := self._lines.get(value):
                    self._lines[place.buf_uop] = line
            return call, buffers

        @functools.wraps(apply_before)
        def _apply_uop(self_: Any, *args: Any, **kwargs: Any) -> Any:
            return self._made(apply_before(self_, *args, **kwargs))

        @functools.wraps(wrap_before)
        def _wrap_uop(cls_: Any, node: UOp) -> Any:
            return self._made(wrap_before(cls_, node))

        @functools.wraps(assign_before)
        def assign(self_: Any, *args: Any, **kwargs: Any) -> Any:
            return self._made(assign_before(self_, *args, **kwargs))

        def undo() -> None:
            tensor.create_linear_with_vars, tensor.transform_to_call = schedule_before, buffers_before
            for name, value in own.items():
                setattr(cls, name, value)

        tensor.create_linear_with_vars, tensor.transform_to_call = create_linear_with_vars, transform_to_call
        cls._apply_uop, cls._wrap_uop, cls.assign = _apply_uop, classmethod(_wrap_uop), assign
        return undo

    def _made(self, made: Any) -> Any:
        """Remember which line made the value of a new Tensor, unless an earlier line made the same. What is only
        stored, or of another type, has the line that computed it."""
        if made.uop not in self._lines and (line := self._lines.get(_computed(made.uop)) or users_line()):
            self._lines[made.uop] = line
        return made


@contextlib.contextmanager
def recording_sequences(*, look: bool = True) -> Iterator[SequenceRecorder]:
    """Record the sequences that this process schedules inside the block, and how often each runs there. With `look` the
    parameters that layers are named by are looked for among the program's objects."""
    recorder, undo = SequenceRecorder(look=look), list[Callable[[], None]]()
    with (
        scheduling_quickly(),
        before_planning(recorder.saw_planned),
        when_imported(JIT, lambda jit: undo.append(recorder.watch_jit(jit))),
        when_imported("tinygrad.tensor", lambda tensor: undo.append(recorder.watch_tensors(tensor))),
        when_imported(GRADIENTS, lambda gradient: undo.append(recorder.gradients.watch(gradient))),
    ):
        try:
            yield recorder
        finally:
            for one in undo:
                one()


def sequences_of(*tensors: Any) -> list[CapturedSequence]:
    """The sequences that realising `tensors` would run, without allocating anything: one, or none where nothing is left
    to compute. They count as a step: as steady."""
    from tinygrad import Tensor

    found: list[CapturedSequence] = []

    def read(linear: UOp, _: str) -> UOp:
        found.append(captured(stretch_of(linear), steady=True))
        return linear

    with before_planning(read):
        Tensor.linear_with_vars(*tensors)
    return [sequence for sequence in found if sequence.calls]


def captured(
    stretch: list[PlannedCall],
    *,
    steady: bool,
    line_of: Callable[[UOp], str] = lambda node: "",
    layers: Sequence[str] = (),
) -> CapturedSequence:
    """A stretch as plain values: no buffer of the program is kept alive by it."""
    numbers: dict[Hashable, int] = {}
    buffers: list[SequenceBuffer] = []
    calls = []
    lines = _lines_of(stretch, line_of)
    for call, line, layer in zip(stretch, lines, layers or [""] * len(stretch), strict=True):
        views = []
        for number, slot in enumerate(call.slots):
            # a value in parts on several devices is memory of its own here
            memory = slot.base if not slot.others else slot.bases
            if memory not in numbers:
                numbers[memory] = len(buffers)
                # what is read before it is written was there before, though perhaps no Tensor is left that says so
                held = slot.held or number in call.reads
                buffers.append(SequenceBuffer(slot.total, slot.dtype, held))
            whole = slot.offset is None
            views.append(SlotBinding(numbers[memory], slot.offset or 0, slot.total if whole else slot.size))
        ast, what = _what(call)
        layer_once = ((layer, 1),) if layer else ()
        calls.append(SequencedCall(ast, tuple(views), call.reads, call.writes, what, call.devices, line, layer_once))
    return CapturedSequence(tuple(calls), tuple(buffers), steady)


def _computed(value: UOp) -> UOp:
    """The value itself, or what it is only a copy of in memory or in another type."""
    from kcg.compat.tiny import Ops

    stored = value.op is Ops.CONTIGUOUS
    return value.src[0] if stored or (value.op is Ops.CAST and value.src[0].op is not Ops.CONTIGUOUS) else value


def _what(call: PlannedCall) -> tuple[UOp | None, str]:
    from kcg.compat.tiny import Ops

    ast, body = call.ast, call.node.src[0]
    if ast is None:
        return None, COPY if body.op is Ops.COPY else _name(body)
    return (None, reason) if (reason := why_fixed(ast)) else (ast, "")


def _name(body: UOp) -> str:
    return f"{WRITTEN}: {plain_name(getattr(body.arg, 'name', None) or str(body.arg or body.op.name))}"


def _lines_of(stretch: list[PlannedCall], line_of: Callable[[UOp], str]) -> list[str]:
    """The line of each call: of what it writes, else of the next call that uses what it writes."""
    lines = [""] * len(stretch)
    used: dict[Hashable, str] = {}  # memory -> line of the call that uses it next
    for place in reversed(range(len(stretch))):
        call = stretch[place]
        written = [call.slots[slot] for slot in call.writes]
        named = [line for slot in written if (line := line_of(slot.node.buf_uop))]
        lines[place] = named[0] if named else next((used[s.base] for s in written if used.get(s.base)), "")
        for slot in call.slots:
            used[slot.base] = lines[place] or used.get(slot.base, "")
    return lines
