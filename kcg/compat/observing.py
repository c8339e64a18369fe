"""What a running program leaves in memory, so that two runs of it can be compared.

Observed is what came, directly or through other kernels, out of the kernels that are asked for: the values of tensors
that are alive, what the last call of a `TinyJit` returned, and what the program last read. Importing this module
imports no tinygrad, and `Observer.watch` may be called before a program imports it: tinygrad reads its settings from
the environment then, and a program may set them first.

Private: `realize.lower_and_compile` and `.track_stats` (see `kcg.compat.capture`), `_TinyJit.__call__`,
`Tensor._buffer` (every read of values goes through it), `tensor.all_tensors` (in the order in which they were made),
and `get_call_outs_ins`, `get_call_arg_uops`, `resolve_params`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kcg.compat.capture import _without_beam, when_imported
from kcg.compat.planning import at_first_planning
from kcg.compat.replacing import TAG as REPLACED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kcg.compat.capture import Recorder
    from kcg.compat.tiny import Buffer, DType, UOp

ALIVE, RETURNED, READ, STEP = "alive", "returned", "read", "step"
MARK = "kcg:writes "  # begins the tag of a call whose kernel is asked for; its name, and what it writes, follow

READS = 64  # of what a program reads, so many are kept, the last ones
READ_BYTES = 1 << 22  # and none that is larger
READS_RECORDED = 1 << 28  # bytes of these that are kept where it is not known yet which of them will be compared


@dataclass(frozen=True)
class Piece:
    """Values that a program left, on the host."""

    place: str  # `ALIVE`, `RETURNED`, `READ`, or `STEP` of what a step wrote (`kcg.compat.lockstep`)
    dtype: str
    eps: float  # distance from 1 to the next number of the dtype; 0 for whole numbers and booleans
    values: NDArray[Any]  # bfloat16 and fp8 as float32
    fed_by: tuple[str, ...] = ()  # the kernels and regions, of those that are asked for, that it came out of


class Left(NamedTuple):
    """Something that a program left, whether it is kept or not."""

    place: str
    nbytes: int
    fed_by: tuple[str, ...]
    piece: Piece | None  # None: it had no room


def fitting(sizes: Sequence[int], limit: int) -> set[int]:
    """Which of these have room in so many bytes, the small ones first."""
    kept, used = set(), 0
    for index, size in sorted(enumerate(sizes), key=lambda item: item[1]):
        used += size
        if used <= limit:
            kept.add(index)
    return kept


class Observer:
    """Watches one program in this process, to its end.

    `asked(ast)` is the name of a kernel that is asked for, and empty of others. `prepare` is called before anything is
    planned or compiled, when tinygrad is there: what it puts into `realize.lower_and_compile` stays.
    """

    def __init__(self, asked: Callable[[UOp], str], prepare: Callable[[], object], *, seed: int) -> None:
        self._asked, self._prepare, self._seed = asked, prepare, seed
        self._lock = threading.RLock()
        self._stays = contextlib.ExitStack()
        self._follower = Follower()
        self._memory = self._follower.memory
        self._seen: weakref.WeakKeyDictionary[UOp, tuple[int, ...]] = weakref.WeakKeyDictionary()
        self._returned: Any = None
        self._read: deque[Piece] = deque(maxlen=READS)
        self._now = threading.local()

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """A block in which this thread takes no time for what runs: it is looked at when the block is over."""
        waiting: list[tuple[UOp, tuple[UOp, ...]]] = []
        self._now.waiting = waiting
        try:
            yield
        finally:
            self._now.waiting = None
            for call, inputs in waiting:
                self._executed(call, inputs)

    def watch(self) -> contextlib.ExitStack:
        """Fix the seeds of Python, NumPy and tinygrad, and begin. What is returned must live as long as the program."""
        self._stays = stays = contextlib.ExitStack()
        for module, hook in (
            ("numpy", self._seed_numpy),
            ("tinygrad.engine.realize", self._watch_kernels),
            ("tinygrad.engine.jit", self._watch_jit),
            ("tinygrad.tensor", self._watch_tensors),
        ):
            stays.enter_context(when_imported(module, hook))
        random.seed(self._seed)
        return stays

    # ---- hooks ----

    def _seed_numpy(self, numpy: Any) -> None:
        """The global generator, and those that a program makes without a seed, each with one of its own."""
        made, default_rng = itertools.count(), numpy.random.default_rng

        @functools.wraps(default_rng)
        def seeded(seed: Any = None) -> Any:
            return default_rng([self._seed % 2**32, next(made)] if seed is None else seed)

        numpy.random.seed(self._seed % 2**32)
        numpy.random.default_rng = seeded

    def _watch_kernels(self, realize: Any) -> None:
        original = realize.lower_and_compile

        def begin() -> None:
            with self._lock:
                if realize.lower_and_compile is first:
                    realize.lower_and_compile = original
                    self._prepare()
                    realize.lower_and_compile = self._marking(realize.lower_and_compile)

        def first(linear: UOp) -> UOp:
            begin()
            compiled: UOp = realize.lower_and_compile(linear)
            return compiled

        realize.lower_and_compile = first
        self._stays.enter_context(at_first_planning(begin))
        self._watch_executions(realize)

    def _watch_executions(self, realize: Any) -> None:
        stats_before = realize.track_stats

        def track_stats(context: Any, call: UOp, *rest: Any) -> Any:
            if context.update_stats:  # else it is tinygrad's own work, or this module's
                inputs = tuple(context.input_uops)
                if (waiting := getattr(self._now, "waiting", None)) is not None:
                    waiting.append((call, inputs))
                else:
                    self._executed(call, inputs)
            return stats_before(context, call, *rest)

        realize.track_stats = track_stats

    def _marking(self, compile_before: Callable[[UOp], UOp]) -> Callable[[UOp], UOp]:
        """`lower_and_compile` that tags the calls that are asked for. BEAM does not search."""
        from kcg.compat.tiny import Ops

        def lower_and_compile(linear: UOp) -> UOp:
            linear = _without_beam(linear)
            after = compile_before(linear)
            calls = list(after.src)
            for place, (old, new) in enumerate(zip(linear.src, after.src, strict=True)):
                was_kernel = old.op is Ops.CALL and old.src[0].op is Ops.SINK
                if was_kernel and new.src[0].op is Ops.PROGRAM and (name := self._asked(old.src[0])):
                    calls[place] = new.rtag(MARK + " ".join((name, *map(str, _written(old.src[0])))))
            return after.replace(src=tuple(calls))

        return lower_and_compile

    def _watch_jit(self, jit: Any) -> None:
        call = jit._TinyJit.__call__

        @functools.wraps(call)
        def watched(jitted: Any, *args: Any, **kwargs: Any) -> Any:
            self._returned = None  # not in memory beside what comes next
            self._returned = call(jitted, *args, **kwargs)
            return self._returned

        jit._TinyJit.__call__ = watched

    def _watch_tensors(self, tensor: Any) -> None:
        tensor.Tensor.manual_seed(self._seed)
        buffer_before = tensor.Tensor._buffer

        @functools.wraps(buffer_before)
        def watched(read: Any) -> Any:
            buffer = buffer_before(read)
            if buffer.nbytes <= READ_BYTES and self._memory.holds(buffer):
                self._keep_read(self._piece(READ, buffer, read.shape))
            return buffer

        tensor.Tensor._buffer = watched

    def _keep_read(self, piece: Piece) -> None:
        self._read.append(piece)

    # ---- what ran ----

    def _executed(self, call: UOp, inputs: tuple[UOp, ...]) -> None:
        from kcg.compat.tiny import Ops

        body = call.src[0]
        if body.op is Ops.CUSTOM_FUNCTION and body.arg == "graph":
            # a replay on the same memory shows nothing new, unless other memory came to hold what is asked for
            place = tuple(id(u) for u in inputs)
            if self._seen.get(call) != (self._memory.version, *place):
                for inner in body.src[0].src:
                    self._executed(inner, inputs)
                self._seen[call] = (self._memory.version, *place)
        elif body.op in (Ops.PROGRAM, Ops.COPY):
            self._follower.follow(call, inputs)

    # ---- what is left ----

    def pieces(self, limit: int) -> tuple[list[Piece], int]:
        """What the program has left, of at most `limit` bytes, the small ones first, and how much is left out for that.

        What is alive comes in the order in which it was made. Lazy tensors are left out: to realise them would run
        kernels that the program did not run.
        """
        found = self.left(limit)
        pieces = [one.piece for one in found if one.piece is not None]
        return pieces, len(found) - len(pieces)

    def left(self, limit: int) -> list[Left]:
        """The same, with what has no room in `limit`; what the program read is the last."""
        if "tinygrad.tensor" not in sys.modules:
            return []
        found = list(self._left())
        kept = fitting([buffer.nbytes for _, buffer, _ in found], limit)
        some = [
            Left(place, buffer.nbytes, self._names(buffer), self._piece(place, buffer, shape) if at in kept else None)
            for at, (place, buffer, shape) in enumerate(found)
        ]
        return [*some, *(Left(READ, piece.values.nbytes, piece.fed_by, piece) for piece in self._read)]

    def _names(self, buffer: Buffer) -> tuple[str, ...]:
        return tuple(sorted(self._memory.fed_by(buffer)))

    def _piece(self, place: str, buffer: Buffer, shape: tuple[Any, ...]) -> Piece:
        return replace(piece_of(place, buffer, shape), fed_by=self._names(buffer))

    def _left(self) -> Iterator[tuple[str, Buffer, tuple[Any, ...]]]:
        from tinygrad.tensor import Tensor, all_tensors

        gc.collect()  # what is only held by a circle is not alive
        own = {id(t) for t in (*Tensor._device_seeds.values(), *Tensor._device_rng_counters.values())}
        returned = list(_tensors(self._returned))
        alive = [t for ref in list(all_tensors) if (t := ref()) is not None and id(t) not in own]
        seen: set[tuple[int, int, int]] = set()
        for place, tensors in ((RETURNED, returned), (ALIVE, alive)):
            for tensor in tensors:
                realized = tensor.uop.base.realized
                for buffer in buffers_of(realized) if realized is not None else ():
                    span = (id(buffer.base), buffer.offset, buffer.nbytes)
                    if span not in seen and self._memory.holds(buffer):
                        seen.add(span)
                        yield place, buffer, tensor.shape


class RecordingObserver(Observer):
    """Watches a program whose kernels a `Recorder` records: all of them are asked for, since nobody knows yet which
    will have another schedule. Of what it reads as much is kept as has room in `READS_RECORDED`, the last of it."""

    def __init__(self, recorder: Recorder, name_of: Callable[[UOp], str], *, seed: int) -> None:
        """`name_of` an AST that was recorded; empty where it is none that can be asked for."""
        super().__init__(name_of, lambda: None, seed=seed)
        self._recorder = recorder
        self._follower = Follower(_RecordedMemory(), self._marked)
        self._memory = self._follower.memory
        self._known: dict[str, _Marked | None] = {}  # by tag
        self._read, self._read_bytes = deque(), 0

    def _watch_kernels(self, realize: Any) -> None:
        self._watch_executions(realize)  # the recorder says what is compiled

    def _executed(self, call: UOp, inputs: tuple[UOp, ...]) -> None:
        """What ran before on the same memory shows nothing new, also where no graph holds it: a training step of 60
        calls took 7 ms longer on a CPU."""
        place = tuple(id(u) for u in inputs)
        if self._seen.get(call) != (self._memory.version, *place):
            super()._executed(call, inputs)
            self._seen[call] = (self._memory.version, *place)

    def _keep_read(self, piece: Piece) -> None:
        self._read.append(piece)
        self._read_bytes += piece.values.nbytes
        while self._read_bytes > READS_RECORDED:
            self._read_bytes -= self._read.popleft().values.nbytes

    def _marked(self, tag: str) -> _Marked | None:
        if tag not in self._known:
            ast = self._recorder.asts.get(tag)
            name = self._asked(ast) if ast is not None else ""
            self._known[tag] = _Marked(name, _written(ast)) if ast is not None and name else None
        return self._known[tag]


class _Marked(NamedTuple):
    """What the tag of a call says: the kernel that it runs, and the slots that this writes."""

    name: str
    wrote: tuple[int, ...]


def _marked(tag: str) -> _Marked | None:
    """What an `Observer` put into a tag; None of others."""
    if not tag.startswith(MARK):
        return None
    name, *slots = tag.removeprefix(MARK).split()
    return _Marked(name, tuple(map(int, slots)))


def name_of(call: UOp) -> str:
    """The id of the kernel that is asked for, or of the region in whose place a call was put; empty of others."""
    tag = call.tag if isinstance(call.tag, str) else ""
    marked = _marked(tag)
    return marked.name if marked is not None else tag.removeprefix(REPLACED) if tag.startswith(REPLACED) else ""


class Follower:
    """Follows what kernels that are asked for make, through memory, in the order in which calls run."""

    def __init__(self, memory: _Memory | None = None, marked: Callable[[str], _Marked | None] = _marked) -> None:
        self.memory = memory if memory is not None else _Memory()
        self._marked = marked

    def follow(self, call: UOp, inputs: tuple[UOp, ...]) -> None:
        """A call ran, a program or a copy; `inputs` are the buffers of the step."""
        from tinygrad.engine.realize import get_call_outs_ins, resolve_params

        wrote, read = get_call_outs_ins(call)
        tag, fed_by = call.tag if isinstance(call.tag, str) else "", frozenset[str]()
        if (marked := self._marked(tag)) is not None:  # a program that is wrong may not write what its kernel writes
            wrote, fed_by = marked.wrote, frozenset((marked.name,))
        elif tag.startswith(REPLACED):
            fed_by = frozenset((tag.removeprefix(REPLACED),))
        arguments = resolve_params(call, list(inputs))
        read_from = [b for place in read for b in buffers_of(arguments[place].buffer)]
        fed_by = fed_by.union(*map(self.memory.fed_by, read_from))
        for place in wrote:
            for b in buffers_of(arguments[place].buffer):
                self.memory.wrote(b, fed_by)


class _Memory:
    """Which bytes of which buffers hold what came out of kernels that are asked for, and out of which of them. Never
    forgets while a buffer lives: memory that is used again for something else counts too."""

    def __init__(self) -> None:
        self.version = 0
        self._spans: weakref.WeakKeyDictionary[Buffer, dict[tuple[int, int], frozenset[str]]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, buffer: Buffer, fed_by: frozenset[str]) -> None:
        spans = self._spans.setdefault(buffer.base, {})
        span = (buffer.offset, buffer.offset + buffer.nbytes)
        before = spans.get(span, frozenset())
        if not fed_by <= before:
            spans[span] = before | fed_by
            self.version += 1

    def wrote(self, buffer: Buffer, fed_by: frozenset[str]) -> None:
        """A call wrote it, out of these."""
        if fed_by:
            self.add(buffer, fed_by)

    def fed_by(self, buffer: Buffer) -> frozenset[str]:
        """What it came out of, by the names of kernels and regions."""
        begin, end = buffer.offset, buffer.offset + buffer.nbytes
        spans = self._spans.get(buffer.base, {}).items()
        return frozenset[str]().union(*(names for (first, last), names in spans if begin < last and first < end))

    def holds(self, buffer: Buffer) -> bool:
        return bool(self.fed_by(buffer))


class StepMemory(_Memory):
    """The same of one step, in which memory between its calls holds what was written last: what is planned into the
    same bytes later came out of nothing that was there."""

    def __init__(self, beyond: Sequence[Buffer]) -> None:
        """`beyond` is there after the step."""
        super().__init__()
        self._beyond = {id(one.base) for one in beyond}

    def wrote(self, buffer: Buffer, fed_by: frozenset[str]) -> None:
        if id(buffer.base) not in self._beyond:
            begin, end = buffer.offset, buffer.offset + buffer.nbytes
            spans = self._spans.setdefault(buffer.base, {})
            for span in [(first, last) for first, last in spans if begin <= first and last <= end]:
                del spans[span]
        super().wrote(buffer, fed_by)


class _RecordedMemory(_Memory):
    """The same, of which a buffer that nothing was asked of yet is no news to what ran before, as the host's copy of
    each loss that a script reads: it was not in its hands."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: weakref.WeakSet[Buffer] = weakref.WeakSet()

    def add(self, buffer: Buffer, fed_by: frozenset[str]) -> None:
        version, is_new = self.version, buffer.base not in self._asked
        super().add(buffer, fed_by)
        if is_new:
            self.version = version
            self._asked.add(buffer.base)

    def fed_by(self, buffer: Buffer) -> frozenset[str]:
        self._asked.add(buffer.base)
        return super().fed_by(buffer)


def _written(ast: UOp) -> tuple[int, ...]:
    """The slots of the buffers that a kernel stores to."""
    from kcg.compat.tiny import Ops

    slots = set()
    for node in ast.toposort():
        if node.op is Ops.STORE:
            place = node.src[0]
            while place.op is not Ops.PARAM and place.src:
                place = place.src[0]
            if place.op is Ops.PARAM:  # else it is memory of the kernel's own
                slots.add(int(place.arg.slot))
    return tuple(sorted(slots))


def calls_in(linear: UOp) -> Iterator[UOp]:
    """The calls of a captured program, those in its graphs too."""
    from kcg.compat.tiny import Ops

    for call in linear.src:
        body = call.src[0]
        if body.op is Ops.CUSTOM_FUNCTION and body.arg == "graph":
            yield from body.src[0].src
        else:
            yield call


def buffers_of(buffer: Any) -> Sequence[Buffer]:
    """One buffer, or those of a tensor on several devices."""
    return getattr(buffer, "bufs", None) or (buffer,)


def _tensors(value: Any) -> Iterator[Any]:
    from tinygrad import Tensor

    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def piece_of(place: str, buffer: Buffer, shape: tuple[Any, ...]) -> Piece:
    """The values of a buffer, of that shape where it holds so many."""
    import math

    from kcg.compat.tiny import dtypes

    values = _decoded(bytes(buffer.as_memoryview()), buffer.dtype)
    whole = all(isinstance(n, int) for n in shape) and math.prod(shape) == values.size
    eps = float(2.0 ** -dtypes.finfo(buffer.dtype)[1]) if dtypes.is_float(buffer.dtype) else 0.0
    return Piece(place, buffer.dtype.name, eps, values.reshape(shape) if whole else values)


def _decoded(data: bytes, dtype: DType) -> NDArray[Any]:
    import numpy as np
    from tinygrad.dtype import _to_np_dtype, fp8_to_float

    from kcg.compat.tiny import dtypes

    if dtype == dtypes.bfloat16:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype in dtypes.fp8s:
        table = np.array([fp8_to_float(code, dtype) for code in range(256)], np.float32)
        return table[np.frombuffer(data, np.uint8)]
    return np.frombuffer(data, _to_np_dtype(dtype))


def shake(buffer: Buffer, *, seed: int) -> int:
    """Change every floating value of a buffer by one rounding unit at random, up or down; zeros and what is not finite
    stay. Returns how many were changed."""
    import numpy as np

    from kcg.compat.tiny import dtypes

    dtype = buffer.dtype
    if not dtypes.is_float(dtype):
        return 0
    data = bytearray(buffer.as_memoryview())
    bits: NDArray[Any] = np.frombuffer(data, np.dtype(f"u{dtype.itemsize}"))
    magnitude = bits & bits.dtype.type(2 ** (8 * dtype.itemsize - 1) - 1)
    decoded = _decoded(bytes(data), dtype)
    may = np.isfinite(decoded) & (magnitude > 0)
    largest = magnitude[may].max(initial=0)  # above the largest of all there may be no number
    up = (np.random.default_rng(seed).random(bits.size) < 0.5) & (magnitude < largest)
    bits[may & up] += 1
    bits[may & ~up] -= 1
    if may.any():
        _put(buffer, data)
    return int(may.sum())


def put_values(buffer: Buffer, values: NDArray[Any]) -> None:
    """Let a buffer hold values of its own dtype."""
    _put(buffer, bytearray(values.tobytes()))


def _put(buffer: Buffer, data: bytearray) -> None:
    from kcg.compat.tiny import Buffer

    buffer.copy_from(Buffer("PYTHON", buffer.size, buffer.dtype, opaque=memoryview(data)))
