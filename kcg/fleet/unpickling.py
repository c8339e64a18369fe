"""What a process of a fleet unpickles for Dask: the fixed functions of a module, a graph of calls of them, errors.

Dask sends a graph of tasks as a pickle, to its scheduler and from there to workers, and a pickle may name any function
of any module: whoever speaks to a worker could run any code on it. Here a pickle names nothing but what `find_class`
lists. What it gets is a stand-in wherever the named object could be changed by the pickle (its opcode BUILD sets
attributes) or would do more than the protocol needs.

Messages are msgpack, in which Dask lets a map name a member of any object of its modules, `os.system` among them, since
those import `os`: here it names a member of `ENUMERATIONS`.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any, Final

from kcg import errors

TASKS: Final = "kcg.fleet.tasks"
"""The module whose functions of one `payload` are what a scheduler may call on workers, and nothing else of it."""
DATA: Final = {"bytes": bytes, "str": str}  # whose types Dask names beside results

ENUMERATIONS: Final = {("distributed.core", "Status")}
"""Whose members messages may name."""

_tasks: str = TASKS
_loading = threading.local()


class Fixed:
    """A public function of one `payload` in the module of tasks, by its name: it is looked up where it is called, and
    pickles as its name. Nothing of it can be set."""

    __slots__ = ("__name__",)
    __name__: str

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "__name__", name)
        self._function()

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(f"{self.__name__} is a fixed function of {_tasks}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if getattr(_loading, "depth", 0):
            raise TypeError(f"{self.__name__} is called by workers, not while a pickle is read")
        return self._function()(*arguments, **named)

    def __reduce__(self) -> Any:
        return fixed, (self.__name__,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash(self.__name__)

    def _function(self) -> Callable[..., Any]:
        function = vars(importlib.import_module(_tasks)).get(self.__name__)
        if (
            not isinstance(function, types.FunctionType)
            or function.__module__ != _tasks
            or self.__name__.startswith("_")
            or [*inspect.signature(function).parameters] != ["payload"]
        ):
            raise TypeError(f"{self.__name__} is no fixed function of {_tasks}")
        return function


class _Call:
    """What a pickle gets for a function that it may call while it is read, and change in nothing."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("this cannot be set")

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class _Sealed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError("this cannot be set")


class _Frame(metaclass=_Sealed):
    """Stands in for the parts of a traceback: it is read and dropped."""

    def __init__(self, *parts: object) -> None:
        pass


def fixed(name: str) -> Fixed:
    """A fixed function, from its pickle."""
    if not isinstance(name, str):
        raise TypeError("a fixed function is named by a string")
    return Fixed(name)


def _graph(kind: object, *parts: Any) -> Any:
    """A graph of tasks, each a call of a fixed function: what Dask's `Expr._reconstruct` would make of it."""
    from dask._task_spec import Task

    if kind is not GRAPH or not isinstance(parts[0], dict):
        raise TypeError("a graph of an unknown kind")
    for task in parts[0].values():
        if type(task) is not Task or not isinstance(task.func, Fixed):
            raise TypeError(f"a task that calls no function of {_tasks}")
    return _sealed_graph()(parts[0], _determ_token=str(parts[1]))


@functools.cache
def _sealed_graph() -> Any:
    """Dask's class of graphs, for such as a pickle cannot set attributes of."""
    from dask._expr import LLGExpr

    class SealedGraph(LLGExpr):  # type: ignore[misc]  # Dask has no types
        def __setstate__(self, state: object) -> None:
            raise TypeError("this cannot be set")

    return SealedGraph


def _error(kind: Any, attributes: Any, *rest: object) -> Exception:
    """An error without what it was raised from: what `tblib` would make of it."""
    if not _is_error(kind):
        raise TypeError("an error of an unknown kind")
    arguments = attributes.get("args", ()) if isinstance(attributes, dict) else attributes
    if not isinstance(arguments, tuple):
        raise TypeError("an error without arguments")
    error: Exception = kind(*(a for a in arguments if isinstance(a, str | int | float)))
    return error


def _no_traceback(*parts: object) -> None:
    """What becomes of a traceback: its frames are of another process."""


GRAPH: Final = _Call(_no_traceback)
CALLS: Final = {
    ("kcg.fleet.unpickling", "fixed"): _Call(fixed),
    ("dask._expr", "Expr._reconstruct"): _Call(_graph),
    ("dask._expr", "LLGExpr"): GRAPH,
    ("tblib.pickling_support", "unpickle_exception_with_attrs"): _Call(_error),
    ("tblib.pickling_support", "unpickle_exception"): _Call(_error),
    ("tblib.pickling_support", "unpickle_traceback"): _Call(_no_traceback),
    ("tblib", "Frame"): _Frame,
    ("tblib", "Code"): _Frame,
    ("tblib", "Traceback"): _Frame,
}


class NarrowUnpickler(pickle.Unpickler):
    """An unpickler that knows what is listed here, by exact names, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in CALLS:
            return CALLS[module, name]
        if module == _tasks:
            return Fixed(name)
        if (module, name) == ("dask._task_spec", "Task"):
            from dask._task_spec import Task

            return Task
        if module == "builtins" and (name in DATA or _is_error(getattr(builtins, name, None))):
            return getattr(builtins, name)
        if module == "kcg.errors" and _is_error(found := vars(errors).get(name)):
            return found
        raise TypeError(f"a fleet unpickles no {module}.{name}")


def _is_error(found: object) -> bool:
    """Whether it is a class of errors. What is no `Exception` ends a process: that is for no pickle."""
    return isinstance(found, type) and issubclass(found, Exception)


def loads(data: Any, *, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle what `NarrowUnpickler` admits. Raises TypeError for anything else, before it is loaded or called."""
    _loading.depth = getattr(_loading, "depth", 0) + 1
    try:
        return NarrowUnpickler(io.BytesIO(data), buffers=buffers).load()
    finally:
        _loading.depth -= 1


def decoded(found: dict[Any, Any]) -> Any:
    """What a map of a message stands for: as Dask has it, but of `ENUMERATIONS` only. Raises TypeError for others."""
    if "__Enum__" in found:
        module, name = found.get("__module__"), found.get("__name__")
        if (module, name) not in ENUMERATIONS:
            raise TypeError(f"a fleet reads no member of {module}.{name}")
        kind = vars(importlib.import_module(str(module)))[str(name)]
        return kind[found["name"]]  # by the members' names, not by any attribute
    return _originals()[1](found)


@functools.cache
def _originals() -> tuple[Any, Any, Any]:
    """Dask's functions that are replaced: of pickles, of maps of messages, of modules that messages name."""
    from distributed.protocol import pickle as dasks
    from distributed.protocol.serialize import import_allowed_module, msgpack_decode_default

    return dasks.loads, msgpack_decode_default, import_allowed_module


def _refuse(*arguments: object, **named: object) -> Any:
    raise TypeError("a fleet unpickles by kcg.fleet.unpickling only")


def install(tasks: str | None = None) -> None:
    """From now on, all that Dask unpickles in this process is what `NarrowUnpickler` admits, and what it reads of
    messages is what `decoded` admits. There is no way back.

    Every module of `distributed` reaches pickles by its own name for `pickle`, or for a function `loads`: each is
    replaced, as is each name of what decodes messages. A test reads Dask's source for others. `tasks` names another
    module of fixed functions.
    """
    global _tasks
    _tasks = tasks or _tasks
    import distributed.nanny
    import distributed.scheduler
    import distributed.shuffle
    import distributed.worker  # noqa: F401  # all that unpickles is loaded before it is replaced

    original, decode, import_module = _originals()
    narrowed = types.ModuleType("pickle", "Python's, with this module's way to load.")
    vars(narrowed).update({name: value for name, value in vars(pickle).items() if not name.startswith("__")})
    vars(narrowed).update(loads=loads, load=_refuse, Unpickler=_refuse)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "distributed":
            continue
        for attribute, value in list(vars(module).items()):
            if value is pickle:
                setattr(module, attribute, narrowed)
            elif value is original or value is pickle.loads:
                setattr(module, attribute, loads)
            elif value is decode:
                setattr(module, attribute, decoded)
            elif value is import_module:
                setattr(module, attribute, _refuse)
