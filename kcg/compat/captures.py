"""One capture of a function for several programs of it, each on memory of its own.

Capturing a step of a large model a second time takes as long as the first: its graph is built again, and every value
gets its buffer again. What differs between two programs of a step is only what is put in the place of its calls
(`kcg.compat.capture.choosing_opts`, `kcg.compat.planning.before_planning`), and that comes after the capture.

Private: `engine.realize.capturing`, `get_call_arg_uops` and `get_call_outs_ins`, `_TinyJit._linears`, `.add_linear`,
`.captured` and `.fxn`, `tensor.all_tensors`, `uop.ops.buffers`, `UOp.new_buffer`, `NO_MEMORY_PLANNER`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad import Tensor

from kcg.compat.capture import plain_name
from kcg.compat.observing import calls_in
from kcg.compat.programs import captured_at_once
from kcg.compat.tiny import Context, Ops, UOp, dtypes

Renamed = dict[UOp, UOp]


class CapturedOnce:
    """A function that runs once, and of which several programs are made. What it reads and changes that was there
    before, all of them share; every other buffer, those of what it returns among them, each has for itself.

    Every program has to be called first with the arguments that the first of them was first called with.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.captures = 0  # how often the function ran
        self._function = function
        self._recorded: _Recorded | None = None

    def program(self) -> Any:
        """A `TinyJit` that captures its first call, as of `captured_at_once`."""
        return captured_at_once(_Program(self))

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers that a program has for itself where none of them shares memory; 0 before it ran."""
        return 0 if self._recorded is None else sum(int(node.nbytes()) for node in self._recorded.made)

    def record(self, *args: Any, **kwargs: Any) -> UOp:
        """Run the function before there is a program of it; nothing is launched. Gives its calls, on no memory."""
        from tinygrad.engine.realize import capturing

        assert not capturing, "another capture is under way"
        capturing.append(_Recorder())
        try:
            self._record(*args, **kwargs)
        finally:
            capturing.clear()
        assert self._recorded is not None
        return UOp(Ops.LINEAR, src=tuple(call for linear in self._recorded.linears for call in linear.src))

    def run(self, alive: list[Tensor], values: set[UOp], *args: Any, **kwargs: Any) -> Any:
        """Have the `TinyJit` that is being captured record the calls, and give what the function returns. `alive` gets
        what stands for other Tensors that the function left: they decide what a region may leave out. `values` gets
        the buffers that this program has for itself, of any but the first."""
        from tinygrad.engine.realize import capturing

        if self._recorded is None:
            return self._record(*args, **kwargs)
        new = _new_buffers(self._recorded.made)
        values.update(new.values())
        for linear in self._recorded.linears:
            capturing[0].add_linear(linear.substitute(new, walk=True), {})
        alive += [Tensor(node.substitute(new, walk=True)) for node in self._recorded.left]
        return _mapped(self._recorded.returned, lambda node: Tensor(node.substitute(new, walk=True)))

    def _record(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, and keep what whoever captures got from it."""
        from tinygrad.engine.realize import capturing

        self.captures += 1
        before = _There()
        returned = _mapped(self._function(*args, **kwargs), _with_memory)
        given = list[Tensor]()
        _mapped(returned, given.append)
        if given:
            Tensor.realize(*given)  # as `TinyJit` does, too late for what is recorded here
        self._recorded = _recorded(capturing[0]._linears, returned, given, before)
        return returned


class _Recorder:
    """In the place of the `TinyJit` that captures."""

    def __init__(self) -> None:
        self._linears = list[UOp]()

    def add_linear(self, linear: UOp, _: Any) -> None:
        self._linears.append(linear)


class _Program:
    """What one program calls. It holds what lives as long as that program."""

    def __init__(self, once: CapturedOnce) -> None:
        self._once, self._alive = once, list[Tensor]()
        self.values = set[UOp]()  # its own buffers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._once.run(self._alive, self.values, *args, **kwargs)


# ---- what a captured program computed


@dataclass(frozen=True)
class Value:
    """A buffer that a captured program writes."""

    kernel: str  # tinygrad's name of what wrote it last
    buffer: Any  # of bytes


@contextlib.contextmanager
def without_sharing() -> Iterator[None]:
    """Inside the block the values of what is captured share no memory, so that all of them are there after a run."""
    with Context(NO_MEMORY_PLANNER=1):
        yield


def values_of(program: Any, device: str) -> list[Value]:
    """What a `CapturedOnce.program` that ran computes on a device, in the order of the calls; of one that was captured
    `without_sharing`, and is not the first. Workspaces of programs that kcg put in are not among them: nothing says
    what is left in these."""
    from tinygrad.engine.realize import get_call_arg_uops, get_call_outs_ins

    written: dict[UOp, str] = {}
    for call in calls_in(program.captured.linear):
        arguments = get_call_arg_uops(call)
        for place in get_call_outs_ins(call)[0]:
            for node in arguments[place].toposort():
                if node in program.fxn.values:
                    written.pop(node, None)  # its place is that of the last call that writes it
                    body = call.src[0]
                    written[node] = plain_name(body.arg.name) if body.op is Ops.PROGRAM else "a copy"
    return [Value(kernel, bytes_of) for node, kernel in written.items() for bytes_of in _memory_of(node, device)]


def memory_of_tensors(tensors: Sequence[Tensor], device: str) -> list[Any]:
    """The buffers of realised tensors on a device, as bytes."""
    bases = (tensor.uop.base for tensor in tensors)
    nodes = (base.buf_uop if base.op is Ops.AFTER else base for base in bases)  # what was assigned to
    return [one for node in nodes for one in _memory_of(node, device)]


def _memory_of(node: UOp, device: str) -> Iterator[Any]:
    from tinygrad.uop.ops import buffers

    found = buffers.get(node)
    for one in getattr(found, "bufs", (found,)):
        if one is not None and one.device == device and one.nbytes:
            yield one.ensure_allocated().view(one.nbytes, dtypes.uint8, 0).ensure_allocated()


class _There:
    """The Tensors and the buffers that there are."""

    def __init__(self) -> None:
        from tinygrad.uop.ops import buffers

        self.tensors = _living()
        nodes = (node for tensor in self.tensors for node in tensor.uop.toposort())
        self.buffers = {*buffers, *(node for node in nodes if node.op is Ops.BUFFER)}


@dataclass(frozen=True)
class _Recorded:
    """The calls of a capture on `made`, buffers without memory that stand for those that it made."""

    linears: tuple[UOp, ...]
    made: tuple[UOp, ...]
    returned: Any  # with nodes in the place of Tensors
    left: tuple[UOp, ...]  # of other Tensors


def _recorded(linears: Sequence[UOp], returned: Any, given: Sequence[Tensor], before: _There) -> _Recorded:
    from tinygrad.uop.ops import buffers

    arguments = {argument for linear in linears for call in linear.src for argument in call.src[1:]}
    used = {node for argument in arguments for node in argument.toposort() if node.op is Ops.BUFFER}
    # one that has memory already was written by other means than a captured call, and is shared
    new = _new_buffers([node for node in used if node not in before.buffers and node not in buffers])
    known = {id(tensor) for tensor in (*before.tensors, *given)}
    left = [(tensor.uop, tensor.uop.substitute(new, walk=True)) for tensor in _living() if id(tensor) not in known]
    return _Recorded(
        linears=tuple(linear.substitute(new, walk=True) for linear in linears),
        made=tuple(new.values()),
        returned=_mapped(returned, lambda tensor: tensor.uop.substitute(new, walk=True)),
        left=tuple(node for uop, node in left if node is not uop),
    )


def _new_buffers(nodes: Sequence[UOp]) -> Renamed:
    return {node: UOp.new_buffer(node.device, node.max_numel(), node.dtype) for node in nodes}


def _with_memory(tensor: Tensor) -> Tensor:
    """A Tensor that realising gives memory to. What a `function` of tinygrad returns has none by itself: it would be
    computed at every reading, by whatever schedules there are then, and once more in the capture."""
    return tensor.contiguous() if tensor.uop.base.op is Ops.GETTUPLE else tensor


def _living() -> list[Tensor]:
    from tinygrad.tensor import all_tensors

    return [tensor for ref in list(all_tensors) if (tensor := ref()) is not None]


def _mapped(values: Any, change: Callable[[Any], Any]) -> Any:
    """What a captured function may return, with its Tensors (or nodes) changed."""
    if isinstance(values, dict):
        return {name: _mapped(value, change) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)([_mapped(value, change) for value in values])
    return values if values is None else change(values)
