"""Which kernels a program runs, and how often: lazily from a schedule, or by watching a script run.

Where to hook was measured on tinygrad 0.14.0: `realize.lower_and_compile` sees every kernel once, those compiled in
worker processes included; `realize.track_stats` sees every execution, replays of `TinyJit` included. Importing this
module imports no tinygrad, and `recording` may begin before a program does: tinygrad reads its settings from the
environment when it is imported, and a program may set them first.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kcg.compat.workers import Lowering

if TYPE_CHECKING:
    from kcg.compat.tiny import UOp

Variables = tuple[tuple[str, int], ...]

TAG = "kcg:"  # begins the tag of a recorded call; the key of its AST follows
DEVICE_NUMBER = "_device_num"  # tinygrad's name of the variable that says which device of a sharded kernel runs it


@dataclass(frozen=True)
class CapturedCall:
    """One kernel AST (not normalised), its bound variables, and how often it is called.

    A kernel over sharded tensors runs once on each device and is one program, which asks only where it is: it counts as
    that many calls, all as on the first device, where `DEVICE_NUMBER` is 0.
    """

    ast: UOp
    variables: Variables
    calls: int
    device: str
    name: str = ""  # tinygrad's of its program, where one was compiled


def plain_name(name: str) -> str:
    """A kernel's name without the colours that tinygrad puts into it."""
    from tinygrad.helpers import ansistrip

    return re.sub(r"\s", "", ansistrip(name))


def variable_names(ast: UOp) -> frozenset[str]:
    """The names of the variables that a launch of the kernel needs. How long a slice is may be none of them."""
    from kcg.compat.standalone import indexed_plainly

    found = ast.variables()
    return frozenset(v.expr for v in indexed_plainly(ast).variables()) if found else frozenset()


def bound_variables(names: frozenset[str], values: Mapping[str, Any]) -> Variables:
    """The values of some variables, sorted by name. A sharded kernel counts as on its first device."""
    known = {DEVICE_NUMBER: 0, **values}
    return tuple(sorted((name, int(known[name])) for name in names if name in known))


def _devices_of(call: UOp) -> tuple[str, ...]:
    device = call.src[1].device
    return (device,) if isinstance(device, str) else tuple(device)


def calls_of(*tensors: Any) -> list[CapturedCall]:
    """The kernel calls that realising `tensors` would make, without allocating anything; none whose schedule is fixed.

    Equal ASTs with equal variables are counted together, in the order of their first call.
    """
    from tinygrad import Tensor

    return _counted(*Tensor.linear_with_vars(*tensors))


def planned_calls(*tensors: Any) -> tuple[list[CapturedCall], int, int]:
    """`calls_of`, and the bytes of device memory that `TinyJit` would need to run them.

    First those of buffers that are there before or after (weights, inputs, outputs), then those of the arena in which
    tinygrad's planner lays out all values in between. Private: `schedule.memory.memory_plan_rewrite`, which `TinyJit`
    calls in the same way.
    """
    from tinygrad import Tensor
    from tinygrad.schedule.memory import memory_plan_rewrite

    from kcg.compat.tiny import Ops

    held = {node for t in tensors for node in t.uop.toposort() if node.op is Ops.BUFFER}
    linear, values = Tensor.linear_with_vars(*tensors)
    held |= {t.uop.base for t in tensors if t.uop.base.op is Ops.BUFFER}
    laid_out = memory_plan_rewrite(linear, held)
    arguments = {argument for call in laid_out.src for argument in call.src[1:]}
    used = {node for argument in arguments for node in argument.toposort() if node.op is Ops.BUFFER}
    on_device = {node for node in used if set(_names(node.device)) & {n for t in tensors for n in _names(t.device)}}
    sizes = {node: int(node.nbytes()) for node in on_device}
    of_held = sum(size for node, size in sizes.items() if node in held)
    return _counted(linear, values), of_held, sum(sizes.values()) - of_held


def _names(device: str | tuple[str, ...]) -> tuple[str, ...]:
    return (device,) if isinstance(device, str) else device


def _counted(linear: UOp, values: Mapping[str, int]) -> list[CapturedCall]:
    from kcg.compat.tiny import Ops

    counts: dict[tuple[UOp, Variables], CapturedCall] = {}
    for call in linear.src:
        if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK or why_fixed(call.src[0]):
            continue
        ast, devices = call.src[0], _devices_of(call)
        place = (ast, bound_variables(variable_names(ast), values))
        earlier = counts[place].calls if place in counts else 0
        counts[place] = CapturedCall(*place, earlier + len(devices), devices[0])
    return list(counts.values())


FIXED = "the schedule is fixed by the author"
PARTLY_FIXED = "a part of the schedule is fixed by the author"
WRITTEN = "not compiled from an AST of tinygrad's"
"""Why a kernel that a program ran is no candidate, see `why_fixed`."""


def why_fixed(ast: UOp) -> str:
    """Why the schedule of a kernel is not free; empty where tinygrad chooses it, by its heuristic or by BEAM.

    Whatever name a kernel has: tinygrad schedules a custom kernel (`Tensor.custom_kernel`) like its own, unless
    `KernelInfo.opts_to_apply` says how, or a tag that it is scheduled already.
    """
    info = ast.arg
    if ast.tag is not None or info.opts_to_apply is not None:
        return FIXED
    return PARTLY_FIXED if info.applied_opts or info.dont_use_locals else ""


def asked_as(ast: UOp) -> tuple[str, tuple[str, ...]]:
    """What BEAM's cache tells a kernel by and its identity leaves out: the name that its author gave it, empty where
    tinygrad names it, and its devices."""
    from kcg.compat.tiny import KernelInfo, Ops

    params = (node for node in ast.toposort() if node.op is Ops.PARAM and node.arg.device is not None)
    devices = next((_names(param.arg.device) for param in params), ())
    return "" if ast.arg.name == KernelInfo().name else ast.arg.name, devices


@dataclass(frozen=True)
class Unrecorded:
    """A program that ran and is no candidate."""

    key: str  # tells programs apart
    name: str  # tinygrad's or its author's, without colours
    reason: str


@dataclass
class Recorder:
    """What a running program compiled and executed. Threads may share it.

    A compiled call carries in its tag which AST it came from. The program alone does not tell: tinygrad makes one
    program of several ASTs, such as copies of 64×128 and of 128×64 values.
    """

    asts: dict[str, UOp] = field(default_factory=dict)  # tag -> AST before optimisation
    counts: dict[tuple[str, Variables, str], int] = field(default_factory=dict)  # tag, variables, device
    names: dict[str, str] = field(default_factory=dict)  # tag -> tinygrad's name of the program, without colours
    others: dict[Unrecorded, int] = field(default_factory=dict)  # executions of programs that are no candidates
    queued: int = 0  # executions that tinygrad put into hardware queues of its own (HCQ2=1), where no AST is known
    on_execution: Callable[[Hashable, int], None] = lambda place, executions: None  # told of each
    on_lowered: Callable[[UOp, UOp, str, float], None] = lambda ast, program, device, seconds: None
    """Told of each AST that was lowered: to which program, for which device, in how long."""
    lowering: Lowering = field(default_factory=Lowering)
    kernels: dict[UOp, Any] = field(default_factory=dict)  # what is known of ASTs: a kernel, or why none
    _variables: dict[str, frozenset[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was executed."""
        return not (self.counts or self.others or self.queued)

    def calls(self) -> list[CapturedCall]:
        """Every kernel that was executed and is a candidate, with its count."""
        with self._lock:
            counts = dict(self.counts)
        return [
            CapturedCall(self.asts[tag], variables, n, device, self.names[tag])
            for (tag, variables, device), n in counts.items()
        ]

    def unrecorded(self) -> dict[Unrecorded, int]:
        """How often every program was executed that is no candidate."""
        with self._lock:
            return dict(self.others)

    def saw_compiled(self, before: UOp, after: UOp) -> UOp:
        """Remember which AST each program of a linear came from. Returns the linear with tagged calls."""
        from kcg.compat.tiny import Ops

        calls = list(after.src)
        for place, (old, new) in enumerate(zip(before.src, after.src, strict=True)):
            if old.op is not Ops.CALL or old.src[0].op is not Ops.SINK or new.src[0].op is not Ops.PROGRAM:
                continue
            tag = TAG + old.src[0].key.hex()
            self._variables.setdefault(tag, variable_names(old.src[0]))
            self.names.setdefault(tag, plain_name(new.src[0].arg.name))
            self.asts.setdefault(tag, old.src[0])
            calls[place] = new.rtag(tag)
            if (seconds := self.lowering.taken_s(new.src[0])) is not None:
                self.on_lowered(old.src[0], new.src[0], _devices_of(new)[0], seconds)
        return after.replace(src=tuple(calls))

    def saw_executed(self, call: UOp, variables: Mapping[str, int]) -> None:
        """Count one execution; a graph counts each of its calls."""
        from kcg.compat.tiny import Ops

        body = call.src[0]
        if body.op is Ops.CUSTOM_FUNCTION and body.arg == "graph":
            for inner in body.src[0].src:
                self.saw_executed(inner, variables)
        elif body.op is Ops.CUSTOM_FUNCTION and body.arg == "hcq":
            with self._lock:
                executions = sum(len(devices) for devices, _, _ in call.arg.aux.kernels)
                self.queued += executions
                self.on_execution("queued", executions)
        elif body.op is Ops.PROGRAM:
            devices = _devices_of(call)
            with self._lock:
                if call.tag not in self.asts:
                    self._count_unrecorded(body.key.hex(), plain_name(body.arg.name), WRITTEN, len(devices))
                    return
                if reason := why_fixed(self.asts[call.tag]):
                    self._count_unrecorded(call.tag, self.names[call.tag], reason, len(devices))
                    return
                bound = bound_variables(self._variables[call.tag], variables)
                for device in devices:
                    place = (call.tag, bound, device)
                    self.counts[place] = self.counts.get(place, 0) + 1
                    self.on_execution(place, 1)

    def _count_unrecorded(self, key: str, name: str, reason: str, executions: int) -> None:
        place = Unrecorded(key, name, reason)
        self.others[place] = self.others.get(place, 0) + executions
        self.on_execution(place, executions)

    def watch(self, realize: Any) -> Callable[[], None]:
        """Put the hooks into the module `tinygrad.engine.realize`; what is returned takes them out again."""
        compile_before, stats_before = realize.lower_and_compile, realize.track_stats
        as_ever = self.lowering.watch(realize)

        def lower_and_compile(linear: UOp) -> UOp:
            linear = _without_beam(linear)
            return self.saw_compiled(linear, compile_before(linear))

        def track_stats(context: Any, call: UOp, *rest: Any) -> Any:
            if context.update_stats:  # else it is tinygrad's own work, such as clearing a cache
                self.saw_executed(call, context.var_vals)
            return stats_before(context, call, *rest)

        def undo() -> None:
            realize.lower_and_compile, realize.track_stats = compile_before, stats_before
            as_ever()

        realize.lower_and_compile, realize.track_stats = lower_and_compile, track_stats
        return undo


def _without_beam(linear: UOp) -> UOp:
    """The same calls without a search: which Opts a kernel gets is no part of what is recorded."""
    from kcg.compat.tiny import Ops

    def plain(call: UOp) -> UOp:
        if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK or not getattr(call.src[0].arg, "beam", 0):
            return call
        return call.replace(src=(call.src[0].replace(arg=replace(call.src[0].arg, beam=0)), *call.src[1:]))

    return linear.replace(src=tuple(plain(call) for call in linear.src))


class _Finder:
    """Finds one module as Python would without it, and has something done once it is imported. Several may wait for
    the same module: each asks those that were there before it."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def when_imported(name: str, then: Callable[[Any], None]) -> Iterator[None]:
    """Has `then(module)` called as soon as a module is imported, now if it is; not after the block."""
    if name in sys.modules:
        then(sys.modules[name])
        yield
        return
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if sys.meta_path:  # none while the interpreter ends, which also ends what was to stay until then
            sys.meta_path.remove(finder)


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Record every kernel that this process executes inside the block. BEAM does not search meanwhile."""
    recorder = Recorder()
    undo: list[Callable[[], None]] = []
    with when_imported("tinygrad.engine.realize", lambda realize: undo.append(recorder.watch(realize))):
        try:
            yield recorder
        finally:
            for one in undo:
                one()


@contextlib.contextmanager
def opening(dev: str) -> Iterator[None]:
    """Inside the block, the CPU opens where `kcg.compat.device.prepare` makes it, without importing tinygrad before the
    program does. `dev` is what `DEV` is where the program does not change it."""
    from kcg.compat.device import prepare

    def open_cpu(_: Any) -> None:
        from kcg.compat.tiny import DEV

        chosen = DEV.value  # perhaps by the program, and for a block of it only
        prepare(os.environ.get("DEV", dev))
        DEV.value = chosen

    os.environ["DEV"] = dev
    with when_imported("tinygrad.runtime.ops_cpu", open_cpu):
        yield


def is_hooked() -> bool:
    """Whether something stands in the place of tinygrad's way from a schedule to programs, as the blocks here do."""
    from tinygrad.engine import realize

    return bool(realize.lower_and_compile.__module__ != realize.__name__)


class Standing:
    """Stands before a function of a module until it is taken out: `module.name(linear, ...)` gets `change(linear)`.

    Others that stand before it by then stay. Blocks of several threads may end in any order: those that are taken out
    are passed by, and nothing of them is kept once what stands before them runs or is taken out.
    """

    _lock = threading.Lock()

    def __init__(self, module: Any, name: str, change: Callable[[UOp], UOp]) -> None:
        self._module, self._name = module, name
        self._change: Callable[[UOp], UOp] | None = change  # None once it is taken out
        with self._lock:
            self._behind = getattr(module, name)
            setattr(module, name, self)

    def __call__(self, linear: UOp, *rest: Any, **named: Any) -> Any:
        change, self._behind = self._change, self._past(self._behind)
        return self._behind(linear if change is None else change(linear), *rest, **named)

    def take_out(self) -> None:
        """From now on the function gets what it is given."""
        with self._lock:
            self._change = None
            self._behind = self._past(self._behind)
            setattr(self._module, self._name, self._past(getattr(self._module, self._name)))

    @staticmethod
    def _past(one: Any) -> Any:
        """What is behind all that were taken out, beginning at this one."""
        while isinstance(one, Standing) and one._change is None:
            one = one._behind
        return one


@contextlib.contextmanager
def choosing_opts(
    choose: Callable[[UOp], tuple[Any, ...] | None], program: Callable[[UOp], UOp | None] = lambda call: None
) -> Iterator[None]:
    """Inside the block, every kernel that is compiled takes the tinygrad Opts that `choose(ast)` gives, if any.

    `KernelInfo.opts_to_apply` takes precedence over BEAM and over the hand-coded Opts. A call for which `program(call)`
    gives a compiled PROGRAM runs that. What others put in front of it inside the block stays after it.
    """
    from tinygrad.engine import realize

    from kcg.compat.tiny import Ops

    def chosen_for(linear: UOp) -> UOp:
        chosen: dict[UOp, UOp] = {}
        for call in linear.toposort():
            if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK or call.src[0].tag is not None:
                continue
            ast = call.src[0]
            if ast.arg.opts_to_apply is None and (made := program(call)) is not None:
                chosen[call] = call.replace(src=(made, *call.src[1:]))
            elif ast.arg.opts_to_apply is None and (opts := choose(ast)) is not None:
                info = replace(ast.arg, opts_to_apply=opts, beam=0)
                chosen[call] = call.replace(src=(ast.replace(arg=info), *call.src[1:]))
        return linear.substitute(chosen, walk=True) if chosen else linear

    standing = Standing(realize, "lower_and_compile", chosen_for)
    try:
        yield
    finally:
        standing.take_out()
