"""From captured kernel calls to a `Workload`: normalised, counted, with stable identities."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from kcg.compat.capture import PARTLY_FIXED, CapturedCall, Unrecorded, asked_as, planned_calls
from kcg.compat.sequences import SequenceRecorder, recording_sequences
from kcg.errors import CodecError
from kcg.kernel import symbolic
from kcg.kernel.codec import kernel_of
from kcg.kernel.sequences import sequences_of_captured
from kcg.kernel.symbolic import merged
from kcg.types import Kernel, LeftOut, Region, SeenAs, Workload, WorkloadCall

if TYPE_CHECKING:
    from tinygrad import Tensor

Place = tuple[str, tuple[tuple[str, int], ...]]  # region and values of its variables
Refused = dict[str, Counter[tuple[str, str]]]  # reason -> executions of each kernel, by its key and name


class Elsewhere(NamedTuple):
    """A kernel that ran on another device than the one that is recorded."""

    device: str
    key: str
    name: str
    executions: int


def to_workload(
    name: str,
    preset: str,
    captured: Sequence[CapturedCall],
    *,
    refused: Refused | None = None,
    kernels: dict[Any, Kernel | str] | None = None,
) -> Workload:
    """Count equal kernels together, whatever the values of their variables. The order is that of the first call.

    A kernel whose AST cannot be encoded raises CodecError. Where there is a `refused`, it is left out instead, and
    `refused[reason]` counts the executions of each such kernel. `kernels` holds what `kernel_or_reason` made of ASTs
    before, and gets more.
    """
    kernels = {} if kernels is None else kernels
    counts: dict[Place, WorkloadCall] = {}
    seen: dict[str, dict[SeenAs, None]] = defaultdict(dict)
    for call in captured:
        if call.ast not in kernels:
            kernels[call.ast] = kernel_or_reason(call.ast, strict=refused is None)
        kernel = kernels[call.ast]
        if isinstance(kernel, str):
            assert refused is not None
            refused.setdefault(kernel, Counter())[call.ast.key.hex(), call.name] += call.calls
            continue
        region = Region((kernel,))
        key = (region.id, call.variables)
        earlier = counts.get(key)
        counts[key] = WorkloadCall(region, call.calls + (earlier.calls if earlier else 0), call.variables)
        seen[region.id][asked_as(call.ast)] = None
    return Workload(name, preset, with_asked(merged(counts.values()), seen))


def with_asked(calls: Iterable[WorkloadCall], seen: Mapping[str, Mapping[SeenAs, None]]) -> tuple[WorkloadCall, ...]:
    """The calls with the ways in which programs asked for their regions."""
    return tuple(replace(call, seen_as=tuple(seen[call.region.id])) for call in calls)


def left_out(
    others: Mapping[Unrecorded, int],
    refused: Refused,
    elsewhere: Iterable[Elsewhere],
    *,
    device: str,
    names_kept: int,
) -> tuple[LeftOut, ...]:
    """What a program ran besides its workload on `device`: `others` that are no candidates, `refused` ones, and those
    `elsewhere`. One for each reason, the most kernels first."""
    found: dict[tuple[str, bool], Counter[tuple[str, str]]] = defaultdict(Counter)
    for one, executions in others.items():
        found[one.reason, one.reason == PARTLY_FIXED][one.key, one.name] += executions
    for reason, counts in refused.items():
        found[f"not encodable: {reason}", True].update(counts)
    for run in elsewhere:
        reason = f"on {run.device.split(':')[0]}, where kernels of {device} are recorded"
        found[reason, True][run.key, run.name] += run.executions
    left = []
    for (reason, searched), counts in found.items():
        names = tuple(dict.fromkeys(name for (_, name), _ in counts.most_common()))
        left.append(LeftOut(reason, len(counts), counts.total(), names[:names_kept], searched))
    return tuple(sorted(left, key=lambda one: -one.kernels))


def kernel_or_reason(ast: Any, *, strict: bool = False) -> Kernel | str:
    """The kernel of an AST, or why there is none; a `strict` one raises what is wrong instead."""
    try:
        return kernel_of(ast)
    except CodecError as error:
        if strict:
            raise
        return str(error)
    except Exception as error:  # tinygrad's constructors assert anything on what is no kernel of its scheduler
        if strict:
            raise
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def thinned(workload: Workload) -> Workload:
    """The workload with at most `VALUES_KEPT` sets of values of the variables of each kernel."""
    return replace(workload, calls=tuple(symbolic.thinned(call) for call in workload.calls))


def lazy_workload(name: str, preset: str, *outputs: Any) -> Workload:
    """The workload of realising `outputs`, without allocating anything; with the memory that a whole run would need."""
    return step_workload(name, preset, lambda: (outputs, {}))


def step_workload(name: str, preset: str, build: Callable[[], tuple[Sequence[Any], Mapping[str, Tensor]]]) -> Workload:
    """`lazy_workload` of the outputs that `build` makes, with the lines of the model that its kernels come from, and
    the layers of the parameters that it gives with them, by their paths.

    Its sequence counts as one that is replayed.
    """
    with recording_sequences(look=False) as recorder:
        outputs, parameters = build()
        recorder.parameters.name(parameters.items())
        return planned_workload(name, preset, outputs, recorder)


def planned_workload(
    name: str, preset: str, outputs: Sequence[Any], recorder: SequenceRecorder, *, device: str = ""
) -> Workload:
    """`step_workload` of outputs that are there, made while `recorder` records, which it still does. With a `device`
    of the kernels those that run on it."""
    calls, held, between = planned_calls(*outputs)
    calls = [call for call in calls if not device or call.device.split(":")[0] == device]
    step = [(replace(sequence, steady=True), seen) for sequence, seen in recorder.sequences()]
    return replace(
        to_workload(name, preset, calls),
        held_bytes=held,
        between_bytes=between,
        sequences=sequences_of_captured(step),
    )


# ---- The workload of a model of many equal blocks, from captures of a few of them.
#
# Scheduling takes longer than in proportion to the blocks, and all blocks but the first call the kernels that the ones
# before them call. So how often each kernel is called is linear in the numbers of blocks, where what a block makes
# depends on its neighbours only. That is an assumption about a model, and it is tested each time: a capture that was
# not used to find the line must lie on it, kernel by kernel. Where it does not, the whole model is captured.

_seen: ContextVar[Callable[[Workload], object]] = ContextVar("_seen", default=lambda workload: None)


@contextmanager
def watched(seen: Callable[[Workload], object]) -> Iterator[None]:
    """Inside this block `seen` gets what was captured of a few blocks while how often each kernel is called is still to
    be found out: the kernels are known by then, if the model is as is assumed. It may get several such workloads."""
    token = _seen.set(seen)
    try:
        yield
    finally:
        _seen.reset(token)


CHECKED = 3  # blocks of each kind in the capture that must lie on the line: a first, a middle and a last one


def of_repeated(capture: Callable[..., Workload], *blocks: int) -> Workload:
    """`capture(*blocks)`, where `capture(n, m)` is the workload of a model of n blocks of one kind and m of another.

    Few blocks are captured as they are. Of many, the sequences are those of the capture that was checked: every kernel
    and every way in which they are wired, of fewer blocks.
    """
    few = [tuple(1 + (kind == more) for kind in range(len(blocks))) for more in range(len(blocks))]
    one, checked = (1,) * len(blocks), (CHECKED,) * len(blocks)
    if min(blocks) <= CHECKED or sum(blocks) <= sum(map(sum, (*few, one, checked))):
        return capture(*blocks)

    def part(counts: tuple[int, ...]) -> Workload:
        workload = capture(*counts)
        _seen.get()(workload)
        return workload

    base = part(one)
    more = [part(counts) for counts in few]
    slopes = [_difference(workload, base) for workload in more]
    expected = capture(*checked)
    if any(slope is None for slope in slopes) or _on_line(base, slopes, checked) != _counts(expected):
        return capture(*blocks)
    counts = _on_line(base, slopes, blocks)
    calls = tuple(replace(call, calls=counts[_place(call)]) for call in expected.calls)
    return replace(
        expected, calls=calls, held_bytes=_bytes_on_line(base.held_bytes, [w.held_bytes for w in more], blocks)
    )


def _place(call: WorkloadCall) -> Place:
    return call.region.id, call.variables


def _counts(workload: Workload) -> dict[Place, int]:
    return {_place(call): call.calls for call in workload.calls}


def _difference(more: Workload, base: Workload) -> dict[Place, int] | None:
    """How many calls of each kernel a block adds; None where it adds a kernel or takes one away."""
    after, before = _counts(more), _counts(base)
    return {place: after[place] - before[place] for place in before} if after.keys() == before.keys() else None


def _bytes_on_line(base: int, more: list[int], blocks: tuple[int, ...]) -> int:
    """Weights, inputs and outputs: each block has its own weights. What lives in between is a peak, and is taken as
    that of the checked capture: a lower bound."""
    return base + sum((count - 1) * max(one - base, 0) for one, count in zip(more, blocks, strict=True))


def _on_line(base: Workload, slopes: list[dict[Place, int] | None], blocks: tuple[int, ...]) -> dict[Place, int]:
    def with_blocks(counts: dict[Place, int], kind: int) -> dict[Place, int]:
        slope = slopes[kind] or {}
        return {place: count + (blocks[kind] - 1) * slope[place] for place, count in counts.items()}

    return reduce(with_blocks, range(len(blocks)), _counts(base))
