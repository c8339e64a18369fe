"""Which layer of a model a kernel belongs to: the path of the parameter that it reads, as `get_state_dict` spells it.

tinygrad itself keeps no more than the name of a Tensor's method, and that only until it schedules. But a kernel still
names the buffers that it reads before memory is planned, and the objects that hold them are alive then. Importing this
module imports no tinygrad.

Private: `UOp.base` and `UOp.buf_uop` (what a Tensor's value is kept in).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kcg.compat.lines import is_installed, is_machinery
from kcg.compat.stretch import PlannedCall

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

LAYER_LENGTH = 160  # characters of a path that are kept
OBJECTS = 50_000  # that are looked at each time
DEEPEST = 16  # objects inside of each other
NODES = 64  # of a value that is still to be computed
LONGEST = 4_096  # entries of a list or dict: more are data
NAMED_TOGETHER = 3  # layers of one kernel
LOOKS = 64  # so often whenever an unknown buffer is read; then ever more seldom, as by a loop without TinyJit

_OF_A_LAYER = frozenset(("weight", "bias", "scale", "running_mean", "running_var", "num_batches_tracked"))
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_LIBRARY = "tinygrad."
_SHELLS = ("IPython", "ipykernel", "traitlets")
"""Whose objects hold all that a notebook has: they are in its `__main__`, before what the user wrote."""
_HISTORY = ("In", "Out")  # of a shell, in `__main__` too
_LAYERS, _OPTIMIZERS = "tinygrad.nn", "tinygrad.nn.optim"  # the only modules of tinygrad whose objects hold parameters


class Parameters:
    """The names of the buffers that hold the parameters of a program, without keeping any alive."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[UOp, str] = weakref.WeakKeyDictionary()
        self._asked: weakref.WeakSet[UOp] = weakref.WeakSet()  # that were looked for
        self._looks = 0

    def name(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Take in the paths of tensors. A buffer keeps its first."""
        for path, tensor in tensors:
            for node in (tensor.uop, tensor.uop.base, *(_buffers(tensor.uop) or _only_buffer(tensor.uop))):
                self._names.setdefault(node, path)

    def moved(self, value: UOp, buffer: UOp) -> None:
        """A value is kept in `buffer` from now on."""
        if (path := self._names.get(value)) is not None:
            self._names.setdefault(buffer, path)

    def layers_of(self, stretch: list[PlannedCall]) -> list[str]:
        """The layer of each call; empty where it reads no parameter that is known."""
        return [self._layer_of(call) for call in stretch]

    def _layer_of(self, call: PlannedCall) -> str:
        """That of the largest parameter that it reads; of as large ones of layers alike, all of these."""
        slots = [call.slots[slot] for slot in call.reads]
        known = [(slot.size, path) for slot in slots for node in _buffers(slot.node) if (path := self._names.get(node))]
        largest = max((size for size, _ in known), default=0)
        return together(list(dict.fromkeys(layer_of(path) for size, path in known if size == largest)))

    def look_for(self, stretch: list[PlannedCall]) -> None:
        """Name the parameters that the program's objects hold, where a call reads a buffer that is not known yet."""
        unknown = [
            node
            for call in stretch
            if call.ast is not None
            for slot in call.reads
            if slot not in call.writes and call.slots[slot].held
            for node in _buffers(call.slots[slot].node)
            if node not in self._names and node not in self._asked
        ]
        if not unknown:
            return
        self._asked.update(unknown)
        self._looks += 1
        if self._looks <= LOOKS or self._looks.bit_count() == 1:
            with contextlib.suppress(Exception):  # of objects of the program, which may be anything
                self.name(parameters_in_sight())


def layer_of(path: str) -> str:
    """The path of the layer of a parameter: without `weight` and the like at its end."""
    layer, _, last = path.rpartition(".")
    return layer if layer and last in _OF_A_LAYER else path


def together(layers: list[str]) -> str:
    """Of layers that differ in one part of their paths all, `block.{txt,img}.norm`; of others the first."""
    parts = [layer.split(".") for layer in layers]
    if 1 < len(layers) <= NAMED_TOGETHER and len({len(path) for path in parts}) == 1:
        columns = [tuple(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
        if sum(len(column) > 1 for column in columns) == 1:
            return ".".join(column[0] if len(column) == 1 else f"{{{','.join(column)}}}" for column in columns)
    return layers[0] if layers else ""


def _buffers(node: UOp) -> list[UOp]:
    """The buffers that a value is kept in; none where it is still to be computed."""
    from kcg.compat.tiny import Ops

    base = node.base
    if base.op is Ops.AFTER:
        base = base.buf_uop
    if base.op is Ops.BUFFER:
        return [base]
    views = (Ops.MSTACK, Ops.MSELECT, Ops.SHRINK, Ops.BITCAST)
    return [part for source in base.src for part in _buffers(source)] if base.op in views else []


def _only_buffer(node: UOp) -> list[UOp]:
    """The buffer that a value is computed from, where that is little more than a view of it: tinygrad's layers have
    such weights, random numbers that every kernel scales anew. Empty where there is none, or more."""
    from kcg.compat.tiny import Ops

    found: list[UOp] = []
    todo, seen = [node], {node}
    while todo and len(seen) <= NODES and len(found) < 2:
        value = todo.pop()
        if value.op is Ops.BUFFER:
            found.append(value)
        else:
            todo += [source for source in value.src if source not in seen]
            seen.update(value.src)
    return found if not todo and len(found) == 1 else []


# ---- the objects of a program ----


def parameters_in_sight() -> Iterator[tuple[str, Any]]:
    """The tensors in objects of `__main__` and of the functions that are running, with their paths: a variable's name,
    then attributes, keys and numbers. What is no part of something is no parameter, and what optimisers hold comes
    last: it is somebody else's."""
    seen, left = set[int](), [OBJECTS]
    for optimizers in (False, True):
        for names in _scopes():
            for name, value in names.items():
                of_user = not name.startswith("_") and name not in _HISTORY
                if type(value).__module__.startswith(_OPTIMIZERS) == optimizers and of_user:
                    path = "" if name == "self" else name
                    yield from ((found, t) for found, t in _tensors(value, path, seen, left, 0) if found != path)


def _scopes() -> Iterator[dict[str, Any]]:
    """The variables of `__main__`, and then those of the functions that are running, the outermost first."""
    yield dict(vars(sys.modules["__main__"]))
    frames = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED and not (is_machinery(path) or is_installed(path)):
            frames.append(frame)
        frame = frame.f_back
    for running in reversed(frames):
        variables = running.f_locals
        try:
            yield dict(variables)
        finally:
            if sys.version_info < (3, 13):
                variables.clear()  # a copy, which the frame would keep, with what is in it, until the function ends


def _tensors(value: Any, path: str, seen: set[int], left: list[int], depth: int) -> Iterator[tuple[str, Any]]:
    """The tensors inside of a value, each once, as `tinygrad.nn.state.get_state_dict` names them. It may hold itself,
    be large, or have attributes that compute something: none of that matters here."""
    from tinygrad import Tensor

    kind, left[0] = type(value), left[0] - 1
    if left[0] < 0 or depth > DEEPEST or len(path) > LAYER_LENGTH or isinstance(value, _CLOSED):
        return
    if issubclass(kind, Tensor):
        yield path, value
        return
    of_library = kind.__module__.startswith(_LIBRARY) and not kind.__module__.startswith(_LAYERS)
    if id(value) in seen or of_library or kind.__module__.partition(".")[0] in _SHELLS:
        return
    for name, part in _parts(value):
        seen.add(id(value))
        yield from _tensors(part, f"{path}.{name}" if path else name, seen, left, depth + 1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items()) if len(value) <= LONGEST else []
    elif isinstance(value, list | tuple):
        names = getattr(type(value), "_fields", range(len(value)))  # of a named tuple
        items = list(zip(names, value, strict=False)) if len(value) <= LONGEST else []
    else:
        try:
            items = list(object.__getattribute__(value, "__dict__").items())
        except AttributeError:
            return []
    return [(str(name), part) for name, part in items if isinstance(name, str | int)]
