"""A kind of schedule for tests: an elementwise kernel of float32 sums and products as C, with so many lanes a step."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from kcg.compat.programs import compile_c
from kcg.compat.renderers import tiny_target
from kcg.compat.tiny import Ops, UOp, dtypes
from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of
from kcg.kernel.kinds import Cost, Tools, Traits, Unsupported, baseline_of
from kcg.kernel.program import Compiled, Program, program_of_parts
from kcg.types import Action, Region, Schedule, Target, Variables, canonical_json

NAME = "c"
LANES = (1, 4, 8)
ELEMENT_S = 1e-9  # of one element in one lane: a guess


class ElementwiseKind:
    """See `kcg.kernel.kinds.Kind`."""

    name = NAME
    noun = "C program"

    def parse(self, body: str) -> Schedule:
        schedule = Schedule(NAME, body)
        if body != canonical_json({"lanes": lanes_of(schedule)}):
            raise ScheduleError("its body is not in canonical form")
        return schedule

    def space(self, region: Region, target: Target, *, allow_tf32: bool = False) -> ElementwiseSpace | Unsupported:
        if len(region.kernels) != 1 or not is_elementwise(ast_of(region.kernel)):
            return Unsupported("it is no elementwise kernel of float32 sums and products")
        return ElementwiseSpace(region, target)

    def tools(self, target: Target) -> Tools:
        return Tools("clang")

    def traits(self, schedule: Schedule) -> Traits:
        return Traits(as_program=True)

    def needs_stress(self, region: Region, schedule: Schedule, target: Target) -> bool:
        return True  # as if it copied asynchronously

    def workspace_bytes(self, region: Region, schedule: Schedule, target: Target) -> int:
        return 0

    def describe(self, schedule: Schedule) -> str:
        return f"C, {lanes_of(schedule)} lanes"

    def steps(self, schedule: Schedule) -> tuple[str, ...]:
        return (f"lanes({lanes_of(schedule)})",)

    def compile(
        self,
        region: Region,
        schedule: Schedule,
        target: Target,
        *,
        variables: Variables = (),
        also: tuple[Variables, ...] = (),
    ) -> Program:
        text, nodes = written(region, lanes_of(schedule)), ast_of(region.kernel).toposort()
        params = sorted((u for u in nodes if u.op is Ops.PARAM), key=lambda u: int(u.arg.slot))
        compiled = Compiled(
            binary=compile_c(text, tiny_target(target)),
            source=text,
            function_name="elementwise",
            signature=tuple((u.arg.name, u.arg.slot, u.dtype.name) for u in params),
            slots=tuple(u.arg.slot for u in params),
            outputs=(0,),
            inputs=tuple(u.arg.slot for u in params[1:]),
            global_size=(1, 1, 1),
            local_size=(1, 1, 1),
            values=(),
            uops=0,
        )
        return program_of_parts(region, [compiled])


class ElementwiseSpace:
    """See `kcg.kernel.kinds.Space`: from one lane a step leads to each other number of them."""

    def __init__(self, region: Region, target: Target) -> None:
        self.region, self.target = region, target

    def start(self) -> Schedule:
        return with_lanes(LANES[0])

    def baseline(self) -> Schedule:
        return baseline_of(self.region, self.target)

    def prior(self) -> list[Schedule]:
        return [with_lanes(n) for n in reversed(LANES)]

    def actions(self, schedule: Schedule) -> list[Action]:
        return [Action(f"lanes({n})", with_lanes(n)) for n in LANES[1:]] if schedule == self.start() else []

    def variants(self, schedule: Schedule) -> list[Schedule]:
        return [other for other in map(with_lanes, LANES) if other != schedule]

    def neighbours(self, schedule: Schedule) -> list[Schedule]:
        return self.variants(schedule)

    def sample(self, rng: random.Random, schedule: Schedule | None = None) -> Schedule | None:
        actions = self.actions(self.start() if schedule is None else schedule)
        return rng.choice(actions).schedule if actions else None

    def transfer(self, schedule: Schedule, other: Any) -> Schedule | None:
        return schedule

    def family(self) -> Hashable:
        return NAME

    def key(self, schedule: Schedule) -> str:
        return schedule.id

    def alike(self, schedule: Schedule) -> str:
        return schedule.id

    def groups(self, schedule: Schedule) -> Hashable:
        return None

    def tile(self, schedule: Schedule) -> Hashable:
        return schedule.id

    def loop_nests(self, schedules: Sequence[Schedule]) -> NoReturn:
        raise ScheduleError("its cost judges it")

    def action_features(self, schedule: Schedule, actions: Sequence[Action] | None = None) -> NoReturn:
        raise ScheduleError("its cost judges it")

    def refusals(self, schedules: Sequence[Schedule]) -> list[float]:
        return [0.0 for _ in schedules]

    def cost(self, schedule: Schedule) -> Cost:
        lanes, nodes = lanes_of(schedule), ast_of(self.region.kernel).toposort()
        elements = math.prod(int(u.vmax) + 1 for u in nodes if u.op is Ops.RANGE)
        return Cost(ELEMENT_S * elements / lanes, 0.5, np.array([math.log2(lanes)], np.float32))

    def suspects(self, schedule: Schedule) -> Mapping[Hashable, float]:
        return {lanes_of(schedule): 1.0}

    def check(self, schedule: Schedule) -> None:
        lanes_of(schedule)

    def compile(self, schedule: Schedule, variables: Variables = (), also: tuple[Variables, ...] = ()) -> Program:
        return KIND.compile(self.region, schedule, self.target, variables=variables, also=also)

    def name(self, schedule: Schedule) -> str:
        return KIND.describe(schedule)

    def legend(self, schedule: Schedule) -> str:
        return f"elementwise C, {lanes_of(schedule)} elements a step"


def with_lanes(lanes: int) -> Schedule:
    return Schedule(NAME, canonical_json({"lanes": lanes}))


def lanes_of(schedule: Schedule) -> int:
    """Raises ScheduleError where a schedule is none of this kind."""
    try:
        found = json.loads(schedule.body)
    except ValueError:
        found = None
    lanes = found.get("lanes") if isinstance(found, dict) else None
    if schedule.kind != NAME or lanes not in LANES:
        raise ScheduleError(f"its body says no number of lanes, one of {LANES}")
    return int(lanes)


def is_elementwise(ast: UOp) -> bool:
    known = {Ops.SINK, Ops.END, Ops.STORE, Ops.INDEX, Ops.PARAM, Ops.RANGE, Ops.CONST, Ops.ADD, Ops.MUL}
    nodes = list(ast.toposort())
    of_floats = all(u.dtype == dtypes.float32 for u in nodes if u.op is Ops.PARAM)
    return of_floats and {u.op for u in nodes} <= known and sum(u.op is Ops.STORE for u in nodes) == 1


def written(region: Region, lanes: int) -> str:
    """The kernel as C: a loop for each range, and a name for each value."""
    nodes = list(ast_of(region.kernel).toposort())
    names = {u: f"v{place}" for place, u in enumerate(nodes)}
    params = sorted((u for u in nodes if u.op is Ops.PARAM), key=lambda u: int(u.arg.slot))
    ranges = [u for u in nodes if u.op is Ops.RANGE]
    width = f"vectorize_width({lanes})" if lanes > 1 else "vectorize(disable)"
    buffers = ", ".join(f"{'const ' * (u.arg.slot > 0)}float* restrict {names[u]}" for u in params)
    lines = [f"void elementwise({buffers}) {{"]
    for u in ranges:
        lines += [f"#pragma clang loop {width}"] if u is ranges[-1] else []
        lines.append(f"for (int {names[u]} = 0; {names[u]} < {int(u.vmax) + 1}; {names[u]}++) {{")
    return "\n".join([*lines, *_values(nodes, names), "}" * (len(ranges) + 1)])


def _values(nodes: Sequence[UOp], names: Mapping[UOp, str]) -> Iterator[str]:
    (store,) = (u for u in nodes if u.op is Ops.STORE)
    for u in nodes:
        kind, of = "float" if u.dtype == dtypes.float32 else "int", [names[s] for s in u.src]
        if u.op is Ops.CONST:
            yield f"{'float' if isinstance(u.arg, float) else 'int'} {names[u]} = {u.arg};"
        elif u.op in (Ops.ADD, Ops.MUL):
            yield f"{kind} {names[u]} = {of[0]} {'+' if u.op is Ops.ADD else '*'} {of[1]};"
        elif u.op is Ops.INDEX and u is not store.src[0]:
            yield f"float {names[u]} = {of[0]}[{of[1]}];"
    target, value = store.src
    yield f"{names[target.src[0]]}[{names[target.src[1]]}] = {names[value]};"


KIND = ElementwiseKind()
