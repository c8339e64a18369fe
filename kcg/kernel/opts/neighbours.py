"""Schedules of Opts near a good one, which walks that only add steps come to late or never.

`variants` differ in one step. `moved` differ in where a factor is: what one step gives to an axis another gives to its
own (a thread that computes 4 x 4 elements computes 2 x 8), or what a thread computes along an axis becomes threads. In
searches by evolution this is the mutation of tile sizes (TVM's MetaSchedule: Shao et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kcg.kernel.kinds import Steps, same_but_amount
from kcg.kernel.opts.schedule import Opt, opts_of
from kcg.types import Schedule, ScheduleKind

FACTORS: Final = (2, 3)  # that are moved
OTHER: Final = {"UPCAST": "LOCAL", "LOCAL": "UPCAST"}


def variants(space: Steps, schedule: Schedule) -> list[Schedule]:
    """The schedules with one step less, and with another amount of one step, where all the other steps stay legal; each
    kernel once."""
    if schedule.kind != ScheduleKind.OPTS:
        return []
    opts, before, found = opts_of(schedule), space.start(), dict[str, Schedule]()
    for i, opt in enumerate(opts):
        changed = [a.schedule for a in space.actions(before) if same_but_amount(a.label, str(opt))]
        for other in (before, *changed):
            if (end := followed(space.step, other, opts[i + 1 :])) is not None:
                found.setdefault(space.key(end), end)
        if (after := space.step(before, opt)) is None:
            break  # it begins elsewhere
        before = after
    found.pop(space.key(schedule), None)
    return list(found.values())


def moved(space: Steps, schedule: Schedule) -> list[Schedule]:
    """The schedules with a factor of one step moved to a step of the same kind on another axis, and with an UPCAST made
    a LOCAL or the opposite, where all steps are legal; each kernel once."""
    if schedule.kind != ScheduleKind.OPTS:
        return []
    opts, found = opts_of(schedule), dict[str, Schedule]()
    offered = {str(opt) for opt in opts}

    def legal(before: Schedule, opt: Opt) -> Schedule | None:
        if str(opt) in offered:
            return space.step(before, opt)
        label = str(opt)  # only the space's own list says which amounts there are
        return next((a.schedule for a in space.actions(before) if a.label == label), None)

    for changed in _moves(opts):
        if (end := followed(legal, space.start(), changed)) is not None:
            found.setdefault(space.key(end), end)
    found.pop(space.key(schedule), None)
    return list(found.values())


def _moves(opts: Sequence[Opt]) -> Iterator[list[Opt]]:
    """What `moved` tries, legal or not."""
    for i, one in enumerate(opts):
        rest = [*opts[:i], *opts[i + 1 :]]
        if one.op in OTHER:
            other = Opt(OTHER[one.op], one.axis, one.arg)
            yield [*opts[:i], other, *opts[i + 1 :]]
            yield [*rest, other]
        for j, two in enumerate(opts):
            if two.op != one.op or two.axis == one.axis or not (_amount(one) and _amount(two)):
                continue
            for factor in FACTORS:
                left, odd = divmod(_amount(one), factor)
                if odd:
                    continue
                smaller = [Opt(one.op, one.axis, left)] if left > 1 else []
                larger = Opt(two.op, two.axis, _amount(two) * factor)
                changed = [[o] for o in opts]
                changed[i] = smaller
                yield [o for part in changed for o in part] + [Opt(two.op, two.axis, factor)]
                changed[j] = [larger]
                yield [o for part in changed for o in part]


def _amount(opt: Opt) -> int:
    """0 where an axis is taken whole, or where there is no amount."""
    return opt.arg if isinstance(opt.arg, int) and opt.op != "SWAP" else 0


def followed(
    step: Callable[[Schedule, Opt], Schedule | None], schedule: Schedule, opts: Sequence[Opt]
) -> Schedule | None:
    """Where `opts` lead, one `step` after the other; None where one of them is not legal."""
    found: Schedule | None = schedule
    for opt in opts:
        found = step(found, opt) if found is not None else None
    return found
