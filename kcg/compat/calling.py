"""What a function does that is called in this process: what it leaves to be computed, what it changes, what it reads.

Private: `tensor.all_tensors`, `Tensor._device_seeds` and `._device_rng_counters`, `Tensor._buffer` (every read of
values goes through it), `realize.capturing`, `get_call_arg_uops`, `_TinyJit.fxn`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kcg.compat.observing import _tensors, _written

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.tiny import UOp


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a value: itself, or in its dictionaries, lists and tuples, in order."""
    return list(_tensors(value))


def values_in(value: Any) -> list[Tensor | UOp]:
    """The tensors and symbolic numbers of a value: itself, or in its dictionaries, lists and tuples, in order."""
    from tinygrad import Tensor, UOp

    if isinstance(value, Tensor | UOp):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [found for item in items for found in values_in(item)]


def with_values(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with every tensor of it changed."""
    from tinygrad import Tensor

    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        made = copy.copy(value)  # of its own class
        made.update({name: with_values(item, change) for name, item in value.items()})
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(with_values(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(with_values(item, change) for item in value)
    return value


def bound_in(values: Sequence[Tensor | UOp]) -> list[UOp]:
    """The bound variables of symbolic numbers and of tensors, each once."""
    from tinygrad import Tensor

    nodes = (value.uop if isinstance(value, Tensor) else value for value in values)
    found = {variable.expr: variable.bind(n) for node in nodes for variable, n in node.unbind_all()[1].items()}
    return list(found.values())


def is_symbolic(tensor: Tensor) -> bool:
    """Whether its shape has a symbolic number."""
    return not all(isinstance(size, int) for size in tensor.shape)


def elsewhere(bound: Sequence[UOp]) -> list[UOp]:
    """The same variables bound to other values: all to their smallest, or to their largest where they are at these."""
    variables = [one.unbind() for one in bound]
    lowest = all(n == variable.vmin for variable, n in variables)
    return [variable.bind(int(variable.vmax if lowest else variable.vmin)) for variable, _ in variables]


def at_its_size(tensor: Tensor) -> Tensor:
    """A tensor as it is with the values to which its variables are bound: of a shape without symbolic numbers."""
    from tinygrad import UOp
    from tinygrad.uop.ops import sym_infer

    def size_of(size: int | UOp) -> int:
        if not isinstance(size, UOp):
            return size
        free, values = size.unbind_all()
        return int(sym_infer(free, {variable.expr: n for variable, n in values.items()}))

    return tensor.shrink(tuple((0, size_of(size)) for size in tensor.shape)) if is_symbolic(tensor) else tensor


def is_lazy(tensor: Tensor) -> bool:
    """Whether realising a tensor would compute something."""
    return not tensor.uop.is_virtual and not tensor.uop.has_buffer_identity()


def without_jit(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What a `TinyJit` captures, of one that is given as a function, a bound method or an object that is called; any
    other function as it is. None for a `TinyJit` that was read from a file and has no function any more."""
    from tinygrad.engine.jit import _TinyJit

    owner = getattr(getattr(function, "func", None), "__self__", None)
    if isinstance(function, _TinyJit):
        plain: Callable[..., Any] | None = function.fxn
        return plain
    if isinstance(function, functools.partial) and isinstance(owner, _TinyJit):
        return owner.fxn and functools.partial(owner.fxn, *function.args, **function.keywords)
    of_class = vars(type(function)).get("__call__")
    if isinstance(of_class, _TinyJit):
        return of_class.fxn and functools.partial(of_class.fxn, function)
    return function


class Begun:
    """The tensors that are alive when this is made, and what each stands for; tinygrad's random state too."""

    def __init__(self) -> None:
        from tinygrad.tensor import Tensor, all_tensors

        self._tensors = [(t, t.uop) for ref in list(all_tensors) if (t := ref()) is not None]
        self._random = (Tensor._seed, dict(Tensor._device_seeds), dict(Tensor._device_rng_counters))

    def changed(self) -> list[Tensor]:
        """Those that stand for something else now."""
        return [tensor for tensor, was in self._tensors if tensor.uop is not was]

    @property
    def drew(self) -> bool:
        """Whether random numbers were drawn."""
        from tinygrad import Tensor

        seed, _, counters = self._random
        known, changed = Tensor._device_rng_counters, {id(tensor) for tensor in self.changed()}
        return Tensor._seed != seed or known.keys() != counters.keys() or any(id(t) in changed for t in known.values())

    def lazy_in(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Those that are not realised, and are a part of what realising `outputs` would compute."""
        from kcg.compat.tiny import Ops

        lazy = [tensor for tensor, was in self._tensors if tensor.uop is was and is_lazy(tensor)]
        nodes = {node for tensor in outputs for node in tensor.uop.toposort()} if lazy else set()
        return [t for t in lazy if t.uop in nodes and t.uop.base.op is not Ops.BUFFER]

    def restore(self) -> None:
        """Have each stand for what it stood for."""
        for tensor, was in self._tensors:
            tensor.uop = was
        self.restore_random()

    def restore_random(self) -> None:
        """Have tinygrad draw what it would have drawn."""
        from tinygrad import Tensor

        seed, seeds, counters = self._random
        Tensor._seed, Tensor._device_seeds, Tensor._device_rng_counters = seed, dict(seeds), dict(counters)


@contextlib.contextmanager
def as_empty(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside the block these tensors are given, as inputs are: buffers in which nothing is yet."""
    from tinygrad import Tensor

    was = [tensor.uop for tensor in tensors]
    for tensor in tensors:
        tensor.uop = Tensor.empty(*tensor.shape, dtype=tensor.dtype, device=tensor.device).uop
    try:
        yield
    finally:
        for tensor, uop in zip(tensors, was, strict=True):
            tensor.uop = uop


@dataclass(frozen=True)
class Memory:
    """Memory that was there before a call, in the order in which the call comes to it: buffers, each in one piece."""

    written: tuple[UOp, ...]
    read: tuple[UOp, ...]  # of what it does not write


def memory_of_call(function: Callable[[], Any]) -> Memory:
    """What a function uses of the memory of tensors that are there. It is called, and what it realises is scheduled and
    not run, as `TinyJit` captures it; what it did to tensors is undone.

    Raises what the function raises.
    """
    from tinygrad import Tensor

    from kcg.compat.tiny import Ops

    begun = Begun()
    known = {node for _, was in begun._tensors for node in was.toposort() if node.op is Ops.BUFFER}
    written: dict[UOp, None] = {}
    used: dict[UOp, None] = {}
    try:
        with _collecting() as linears:
            lazy = [tensor for tensor in [*tensors_in(function()), *begun.changed()] if is_lazy(tensor)]
            if lazy:
                Tensor.realize(*lazy)
    finally:
        begun.restore()
    for call in (call for linear in linears for call in linear.src):
        memory, body = [set(_buffers_in(argument)) for argument in call.src[1:]], call.src[0]
        slots = _written(body) if body.op is Ops.SINK else (0,)  # else a copy, into its first argument
        written.update(dict.fromkeys(node for slot in slots for node in memory[slot] & known))
        used.update(dict.fromkeys(node for nodes in memory for node in nodes & known))
    return Memory(tuple(written), tuple(node for node in used if node not in written))


def _buffers_in(node: UOp) -> Iterator[UOp]:
    from kcg.compat.tiny import Ops

    return (inner for inner in node.toposort() if inner.op is Ops.BUFFER and not inner.is_variable)


class _Collector:
    """Gets what is realised in the place of a `TinyJit`."""

    def __init__(self) -> None:
        self.linears: list[UOp] = []

    def add_linear(self, linear: UOp, variables: Mapping[str, int]) -> None:
        self.linears.append(linear)


@contextlib.contextmanager
def _collecting() -> Iterator[list[UOp]]:
    """Inside the block what is realised is scheduled and does not run."""
    from tinygrad.engine.realize import capturing

    collector = _Collector()
    capturing.append(collector)
    try:
        yield collector.linears
    finally:
        capturing.remove(collector)


@contextlib.contextmanager
def in_place_of(others: Mapping[UOp, Tensor]) -> Iterator[None]:
    """Inside the block every tensor that had one of these buffers has the memory of another tensor, a realised one of
    one piece; after it what it had, whatever the block did to it."""
    begun, memory = Begun(), {buffer: tensor.uop.base for buffer, tensor in others.items()}
    for tensor, was in begun._tensors if memory else ():
        tensor.uop = was.substitute(memory)
    try:
        yield
    finally:
        begun.restore()


class Watched:
    """What a function did beside computing: whether it read values."""

    def __init__(self) -> None:
        self.read = False


@contextlib.contextmanager
def watching() -> Iterator[Watched]:
    """Watch what runs inside the block."""
    from tinygrad import Tensor

    watched, buffer_before = Watched(), Tensor._buffer

    @functools.wraps(buffer_before)
    def _buffer(tensor: Tensor) -> Any:
        watched.read = True
        return buffer_before(tensor)

    Tensor._buffer = _buffer
    try:
        yield watched
    finally:
        Tensor._buffer = buffer_before


def is_captured_now() -> bool:
    """Whether a `TinyJit` captures what is realised now."""
    from tinygrad.engine.realize import capturing

    return bool(capturing)


def realized(value: Any) -> Any:
    """A value with its tensors realised, those in its dictionaries, lists and tuples too."""
    from tinygrad import Tensor

    if lazy := [tensor for tensor in tensors_in(value) if is_lazy(tensor)]:
        Tensor.realize(*lazy)
    return value


def kind_of(value: Any) -> Hashable:
    """Equal for arguments of which a function is likely to make the same kernels: by shapes, data types and devices of
    tensors, texts and truth values, variables, and which objects others are; not by numbers, nor by what a variable is
    bound to."""
    from tinygrad import Tensor, UOp

    if isinstance(value, Tensor):
        return "tensor", tuple(map(_size_kind, value.shape)), value.dtype.name, value.device
    if isinstance(value, UOp):
        return _size_kind(value)
    if isinstance(value, dict):
        return tuple((name, kind_of(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(kind_of, value))
    if isinstance(value, bool | str | None):
        return value
    return type(value).__name__ if isinstance(value, int | float) else id(value)


def _size_kind(size: int | UOp) -> Hashable:
    """A number of a shape, or a symbolic one whatever its variables are bound to."""
    return size if isinstance(size, int) else size.unbind_all()[0].key
