"""Which kernels a program runs, and how often: lazily from a schedule, or by watching a script run.

Where to hook was measured on tinygrad 0.14.0: `realize.lower_and_compile` sees every kernel once, those compiled in
worker processes included; `realize.track_stats` sees every execution, replays of `TinyJit` included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kcg.compat.tiny import Ops, UOp


@dataclass(frozen=True)
class CapturedCall:
    """One kernel AST (not normalised), its bound variables, and how often it is called."""

    ast: UOp
    variables: tuple[tuple[str, int], ...]
    calls: int
    device: str


def calls_of(*tensors: Any) -> list[CapturedCall]:
    """The kernel calls that realising `tensors` would make, without allocating anything.

    Equal ASTs with equal variables are counted together, in the order of their first call.
    """
    from tinygrad import Tensor

    linear, bound = Tensor.linear_with_vars(*tensors)
    counts: dict[tuple[UOp, tuple[tuple[str, int], ...]], CapturedCall] = {}
    for call in linear.src:
        if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK:
            continue
        ast = call.src[0]
        names = {v.expr for v in ast.variables()}
        variables = tuple(sorted((name, int(value)) for name, value in bound.items() if name in names))
        device = call.src[1].device
        known = counts.get((ast, variables))
        counts[ast, variables] = (
            replace(known, calls=known.calls + 1)
            if known
            else CapturedCall(ast, variables, 1, device if isinstance(device, str) else device[0])
        )
    return list(counts.values())


@dataclass
class Recorder:
    """What a running program compiled and executed."""

    asts: dict[bytes, UOp] = field(default_factory=dict)  # key of the optimised SINK -> AST before optimisation
    counts: dict[tuple[bytes, tuple[tuple[str, int], ...], str], int] = field(default_factory=dict)
    unknown: int = 0  # executions of programs that were not compiled from an AST, e.g. hand-written ones

    def calls(self) -> list[CapturedCall]:
        """Every kernel that was executed, with its count."""
        merged: dict[tuple[UOp, tuple[tuple[str, int], ...], str], int] = {}
        for (key, variables, device), count in self.counts.items():
            place = (self.asts[key], variables, device)
            merged[place] = merged.get(place, 0) + count
        return [CapturedCall(ast, variables, count, device) for (ast, variables, device), count in merged.items()]

    def saw_compiled(self, before: UOp, after: UOp) -> None:
        """Remember which AST each program of a linear came from."""
        for old, new in zip(before.src, after.src, strict=True):
            if old.op is Ops.CALL and old.src[0].op is Ops.SINK and new.src[0].op is Ops.PROGRAM:
                self.asts.setdefault(new.src[0].src[0].key, old.src[0])

    def saw_executed(self, call: UOp, variables: dict[str, int]) -> None:
        """Count one execution; a graph counts each of its calls."""
        body = call.src[0]
        if body.op is Ops.CUSTOM_FUNCTION and body.arg == "graph":
            for inner in body.src[0].src:
                self.saw_executed(inner, variables)
        elif body.op is Ops.PROGRAM:
            key = body.src[0].key
            if key not in self.asts:
                self.unknown += 1
                return
            names = {v.expr for v in self.asts[key].variables()}
            bound = tuple(sorted((name, int(value)) for name, value in variables.items() if name in names))
            device = call.src[1].device
            for one in (device,) if isinstance(device, str) else device:
                place = (key, bound, one)
                self.counts[place] = self.counts.get(place, 0) + 1


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Record every kernel that this process executes inside the block."""
    from tinygrad.engine import realize

    recorder = Recorder()
    compile_before, stats_before = realize.lower_and_compile, realize.track_stats

    def lower_and_compile(linear: UOp) -> UOp:
        compiled = compile_before(linear)
        recorder.saw_compiled(linear, compiled)
        return compiled

    def track_stats(context: Any, call: UOp, *rest: Any) -> Any:
        recorder.saw_executed(call, context.var_vals)
        return stats_before(context, call, *rest)

    realize.lower_and_compile, realize.track_stats = lower_and_compile, track_stats
    try:
        yield recorder
    finally:
        realize.lower_and_compile, realize.track_stats = compile_before, stats_before


@contextlib.contextmanager
def choosing_opts(choose: Callable[[UOp], tuple[Any, ...] | None]) -> Iterator[None]:
    """Inside the block, every kernel that is compiled takes the tinygrad Opts that `choose(ast)` gives, if any.

    `KernelInfo.opts_to_apply` takes precedence over BEAM and over the hand-coded Opts.
    """
    from tinygrad.engine import realize

    before = realize.lower_and_compile

    def lower_and_compile(linear: UOp) -> UOp:
        chosen: dict[UOp, UOp] = {}
        for call in linear.toposort():
            if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK or call.src[0].tag is not None:
                continue
            ast = call.src[0]
            if ast.arg.opts_to_apply is None and (opts := choose(ast)) is not None:
                info = replace(ast.arg, opts_to_apply=opts, beam=0)
                chosen[call] = call.replace(src=(ast.replace(arg=info), *call.src[1:]))
        return before(linear.substitute(chosen, walk=True) if chosen else linear)

    realize.lower_and_compile = lower_and_compile
    try:
        yield
    finally:
        realize.lower_and_compile = before
