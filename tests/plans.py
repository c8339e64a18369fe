"""What a plan of a sequence leaves in memory, told without the planner: values as terms, run call by call."""

from __future__ import annotations

from kcg.optimize.exact_plan import Option, SequencePlan
from kcg.types import Sequence as Calls


def buffers_of(calls: Calls, place: int) -> tuple[set[int], set[int]]:
    call = calls.calls[place]
    return {call.views[s].buffer for s in call.reads}, {call.views[s].buffer for s in call.writes}


def values_of(calls: Calls) -> set[int]:
    """Intermediates that one call makes before anybody reads them, and that nobody updates."""
    made, others = set[int](), set[int]()
    for place in range(len(calls.calls)):
        read, written = buffers_of(calls, place)
        others |= (read - made) | (written & made)
        made |= written
    read = {b for place in range(len(calls.calls)) for b in buffers_of(calls, place)[0]}
    return {b for b in (made - others) & read if not calls.buffers[b].held}


def stores(calls: Calls, option: Option) -> set[int]:
    """Values that it leaves: those of its own calls that others read."""
    found = set[int]()
    for place in option.own:
        for buffer in buffers_of(calls, place)[1] & values_of(calls):
            readers = {p for p in range(len(calls.calls)) if buffer in buffers_of(calls, p)[0]}
            found |= {buffer} if readers - set(option.places) else set()
    return found


def run(calls: Calls, terms: dict[object, int], plan: SequencePlan | None = None) -> dict[int, int]:
    """What is held in the end, as numbers of `terms`: of the calls in their order, or of a plan."""

    def term(*parts: object) -> int:
        return terms.setdefault(parts, len(terms))

    memory = {b: term("buffer", b) for b in range(len(calls.buffers))}
    alone = tuple(Option((place,), 0) for place in range(len(calls.calls)))
    values = values_of(calls)
    for option in alone if plan is None else plan.options:
        local = dict(memory)
        if plan is not None:  # what is not stored is not there
            local = {b: v for b, v in memory.items() if b not in values or b in plan.stored}
        for place in option.places:
            read, written = buffers_of(calls, place)
            value = term(place, tuple(sorted((b, local[b]) for b in read)))
            local.update({b: term(value, b) for b in written})
            memory.update({b: local[b] for b in written if place in option.own and (b not in values or plan is None)})
        memory.update({b: local[b] for b in stores(calls, option) if plan is not None})
    return {b: memory[b] for b, buffer in enumerate(calls.buffers) if buffer.held}
