"""What a fuzz campaign of verification measures: which kernels, and which schedules of each. A function of the seed."""

from __future__ import annotations

import random

from evaluation.measure.recombine import recombined
from kcg.compat.scheduling import apply
from kcg.errors import ScheduleError
from kcg.kernel.analysis import arithmetic
from kcg.kernel.codec import ast_of
from kcg.kernel.opts.schedule import RAW, Opt, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.types import Region, Schedule, Target
from kcg.workloads.registry import WORKLOADS, spec_of

MOST_OPERATIONS = 2e7  # captured kernels of more are skipped: the unoptimised schedule takes seconds
RECOMBINED_OPERATIONS = 1e6
MOST_EXPANDED = 400  # expanded operations (`AxisTable.expanded`) to which walks keep: they compile in a second
MAX_WALK = 5


def fuzz_kernels(count: int, seed: int) -> tuple[dict[str, tuple[Region, str]], int]:
    """`(region, origin)` by id of the small presets' kernels, then of recombined ones; and how many were too large."""
    captured: dict[str, tuple[Region, str]] = {}
    for name in WORKLOADS:
        if len(captured) >= count:
            break
        spec = spec_of(name)
        calls = spec.capture(spec.auto_preset("CPU")).calls
        captured |= {call.region.id: (call.region, name) for call in calls if not call.variables}
    asts = {key: ast_of(region.kernel) for key, (region, _) in captured.items()}
    chosen = {key: found for key, found in captured.items() if arithmetic(asts[key]) <= MOST_OPERATIONS}
    skipped, wanted = len(captured) - len(chosen), max(count - len(chosen), 0)
    for new in recombined(list(asts.values()), random.Random(seed), wanted, most_operations=RECOMBINED_OPERATIONS):
        chosen[new.region.id] = (new.region, new.origin)
    return chosen, skipped


def fuzz_schedules(region: Region, target: Target, *, walks: int, padto: bool, seed: int) -> dict[Schedule, str]:
    """Schedules of one kernel and who drew each: tinygrad's choice, the unoptimised one, random legal walks.

    With `padto`, one walk more with a PADTO at a random place, which kcg itself never does ("padto").
    """
    rng, space = random.Random(f"{seed}:{region.id}"), KernelSpace(region, target)
    drawn = {space.baseline(): "hand-coded"}
    drawn.setdefault(RAW, "raw")
    for walk in range(walks + padto):
        length = rng.randint(1, MAX_WALK)
        pad_at = rng.randrange(length) if walk == walks else None
        schedule = space.baseline() if walk % 2 == 0 and pad_at is None else RAW
        for step in range(length):
            if step == pad_at:
                actions = pads(space, schedule)
            else:
                actions = [action.schedule for action in space.actions(schedule)]
            small = [after for after in actions if space.table(after).expanded() <= MOST_EXPANDED]
            schedule = rng.choice(small or [schedule])
        drawn.setdefault(schedule, "padto" if any(o.op == "PADTO" for o in opts_of(schedule)) else "walk")
    return drawn


def pads(space: KernelSpace, schedule: Schedule) -> list[Schedule]:
    """Every schedule that pads one axis further."""
    state, found = space.state(schedule), []
    for opt in (Opt("PADTO", axis, size) for axis in range(len(state.full_shape)) for size in (2, 4, 8, 16, 32)):
        try:
            if apply(state, (opt,)).full_shape != state.full_shape:
                found.append(schedule_of((*opts_of(schedule), opt)))
        except ScheduleError:
            continue
    return found
