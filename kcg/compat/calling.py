"""What a function does that is called in this process: what it leaves to be computed, what it changes, what it reads.

Private: `tensor.all_tensors`, `Tensor._device_seeds` and `._device_rng_counters`, `Tensor._buffer` (every read of
values goes through it), `realize.track_stats`, `get_call_outs_ins`, `resolve_params`, `_TinyJit.fxn`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kcg.compat.observing import _buffers, _tensors

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.tiny import UOp


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a value: itself, or in its dictionaries, lists and tuples, in order."""
    return list(_tensors(value))


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


class Watched:
    """What a function did beside computing: whether it wrote to memory that was there before, and read values."""

    def __init__(self) -> None:
        from tinygrad.tensor import all_tensors

        alive = (t for ref in list(all_tensors) if (t := ref()) is not None)
        realized = [r for t in alive if (r := t.uop.base.realized) is not None]
        self._kept = {id(b.base): b.base for one in realized for b in _buffers(one)}
        self.wrote = self.read = False

    def saw_executed(self, call: UOp, inputs: tuple[UOp, ...]) -> None:
        """One execution; of a graph each of its calls."""
        from tinygrad.engine.realize import get_call_outs_ins, resolve_params

        from kcg.compat.tiny import Ops

        body = call.src[0]
        if body.op is Ops.CUSTOM_FUNCTION and body.arg == "graph":
            for inner in body.src[0].src:
                self.saw_executed(inner, inputs)
        elif body.op in (Ops.PROGRAM, Ops.COPY) and not self.wrote:
            arguments = resolve_params(call, list(inputs))
            written = (b for slot in get_call_outs_ins(call)[0] for b in _buffers(arguments[slot].buffer))
            self.wrote = any(id(b.base) in self._kept for b in written)


@contextlib.contextmanager
def watching() -> Iterator[Watched]:
    """Watch what runs inside the block."""
    from tinygrad import Tensor
    from tinygrad.engine import realize

    watched = Watched()
    buffer_before, stats_before = Tensor._buffer, realize.track_stats

    @functools.wraps(buffer_before)
    def _buffer(tensor: Tensor) -> Any:
        watched.read = True
        return buffer_before(tensor)

    def track_stats(context: Any, call: UOp, *rest: Any) -> Any:
        if context.update_stats:  # else it is tinygrad's own work
            watched.saw_executed(call, tuple(context.input_uops))
        return stats_before(context, call, *rest)

    Tensor._buffer, realize.track_stats = _buffer, track_stats
    try:
        yield watched
    finally:
        Tensor._buffer, realize.track_stats = buffer_before, stats_before


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
    tensors, texts and truth values, and which objects others are; not by numbers."""
    from tinygrad import Tensor, UOp

    if isinstance(value, Tensor):
        return "tensor", value.uop.max_shape, value.dtype.name, value.device
    if isinstance(value, dict):
        return tuple((name, kind_of(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(kind_of, value))
    if isinstance(value, bool | str | None):
        return value
    return type(value).__name__ if isinstance(value, int | float | UOp) else id(value)
