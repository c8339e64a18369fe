"""A step of a model or function with the schedules of several plans, and with tinygrad's own, in this process.

It runs in the order and on the memory of the real program, captured by `TinyJit`. All plans have the same inputs. The
chosen schedules run first, those of each plan: a kernel that fails to write its output, of which there are some, must
not find there what tinygrad's own left. Then all are replayed in turns, and the median of these replays is the time of
a step: between two events of the device where it has them, with what the host does first hidden
(`kcg.compat.programs`), else by wall clock. For that all must be in memory, apart from the weights, which they share.
Where there is no memory for that, one comes after the other, tinygrad's own last, and each leaves there what it makes
of other inputs. At the end the fastest of those that are right is replayed for some seconds (`kcg.judge.steady`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.judge.steady import OWN_DIFFERS, Stress, steady
from kcg.judge.whole import judge_outputs, occurring, rounding_of_products, rounding_of_sums
from kcg.measure.device_info import NoSensors, sensors_for
from kcg.measure.protocol import median
from kcg.types import ModelCheck, Result, Target

if TYPE_CHECKING:
    from tinygrad import Tensor

    from kcg.compat.captures import CapturedOnce, Value
    from kcg.handover.tuned import InPlace
    from kcg.judge.whole import Array
    from kcg.kernel.program import Compiled
    from kcg.workloads.family import Step

REPLAYS = 5  # of each kind, all of them timed; the run before them, which captures, is not
LONG_STEP_S = 0.5  # of a step that takes longer, `READ` replays tell as much
READ = 3  # replays with the chosen schedules whose outputs are compared too, beside those of the captured run
SHAKEN = 2  # replays with tinygrad's own schedules on inputs that were changed by a rounding unit
MEMORY = 1.25  # times what one program has for its own values must be free, for each that is to stand beside it

CHOSEN, OWN = "running the chosen schedules", "running tinygrad's own schedules"
STEADY, OWN_STEADY = "replaying the fastest plan", "replaying what tinygrad schedules itself"
TWICE = "called twice with the same inputs, tinygrad's own schedules do not give the same, bit for bit"


def replays_of(step_s: float) -> int:
    """How often a step of so many seconds is replayed and timed."""
    return REPLAYS if step_s < LONG_STEP_S else READ


@dataclass(frozen=True)
class Stage:
    """What the child is doing: `OWN` or `OWN_STEADY`, or `CHOSEN` or `STEADY` with which of the results."""

    name: str
    result: int = 0


def compare(
    step: Step,
    results: Sequence[Result],
    *,
    seed: int,
    report: Callable[[Stage], None] = lambda _: None,
    kernels: Sequence[Path] = (),
    programs: Mapping[str, Compiled] | None = None,
    once: CapturedOnce | None = None,
    stress: Stress | None = None,
) -> list[ModelCheck]:
    """Run `step` in this process with tinygrad's own schedules and with those of each result, judge, and time.
    `report` gets each stage, at every run; `once` is the capture of `step` where there is one. With `stress` the
    fastest plan that is right is replayed so long."""
    from kcg.compat.captures import CapturedOnce
    from kcg.compat.tiny import Context
    from kcg.handover.in_place import compiled_before
    from kcg.handover.tuned import scheduling

    replays = replays_of(max(max(r.total_before_s, r.total_after_s) for r in results))
    given = compiled_before(programs, results[0].target) if programs else contextlib.nullcontext()
    with Context(BEAM=0, NOOPT=0), given:
        least = rounding_of_products(results)
        shaken = [perturbed(step.inputs, seed=seed + 1 + i, least=least) for i in range(SHAKEN)]
        once = once or CapturedOnce(step.run)  # the programs differ in what runs in the place of its calls
        chosen: list[_Program] = []
        places: list[InPlace] = []
        in_turns = True
        for place, result in enumerate(results):
            report(stage := Stage(CHOSEN, place))
            with scheduling(
                result, changed_only=True, kernels=kernels
            ) as found:  # the others are compiled once, for all
                chosen.append(_Program(step, result.target, once=once))
            places.append(found)
            if not place:  # each of the others, and tinygrad's own, takes about as much
                in_turns = _fits(chosen[0], len(results))
            if not in_turns:
                _replay([(stage, chosen[-1])], [[step.inputs] * replays], report)
                chosen[-1].release(different(step.inputs))
        report(Stage(OWN))
        own = _Program(step, results[0].target, once=once)
        of_own = [*shaken, *[step.inputs] * (replays - len(shaken))]
        together = [(Stage(CHOSEN, place), one) for place, one in enumerate(chosen)] if in_turns else []
        _replay([*together, (Stage(OWN), own)], [*[[step.inputs] * replays for _ in together], of_own], report)
        clock = f"{own.clock}, median of {replays}{' in turns' if in_turns else ''}"
        eps = max(own.eps or 2.0**-23, least)  # of whole numbers only: they must agree
        checks = [replace(one, seed=seed) for one in _judged(results, chosen, places, own, eps=eps, clock=clock)]
        if stress is not None:
            stress.compared(checks)
            captures = _Captures(step, results, once, kernels, [*(chosen if in_turns else [None] * len(chosen)), own])
            del chosen, own, together
            return captures.under_stress(checks, stress, report)
    return checks


def _judged(
    results: Sequence[Result],
    chosen: Sequence[_Program],
    places: Sequence[InPlace],
    own: _Program,
    *,
    eps: float,
    clock: str,
) -> list[ModelCheck]:
    """The check of each result by what was computed, and timed; `eps` is the rounding unit that counts."""
    own_outputs, *moved = own.outputs[: 1 + SHAKEN]
    checks = []
    for one, found, result in zip(chosen, places, results, strict=True):
        check = judge_outputs(one.outputs, own_outputs, moved, eps=eps, sums=rounding_of_sums(result))
        check = replace(
            check,
            before_s=median(own.seconds),
            after_s=median(one.seconds),
            clock=clock,
            clocks_before=own.clocks,
            clocks_after=one.clocks,
            kernels=len(found.served),
            replaced=found.sets_replaced,
            left=found.sets_left,
        )
        changed = found.found.intersection(row.region.id for row in result.regions)
        served = len(changed & found.served)
        checks.append(occurring(check, served=served, changed=len(changed), when="the model runs"))
    return checks


def run_own(step: Step) -> None:
    """Run `step` with tinygrad's own schedules, to see whether it runs at all."""
    from kcg.compat.tiny import Context

    with Context(BEAM=0, NOOPT=0):
        _replay([(Stage(OWN), _Program(step))], [[step.inputs] * READ])


def leave_others(step: Step) -> None:
    """Have the memory that is freed last hold what `step` makes of other inputs: in a process that ran it before, a
    kernel that fails to write something may find there what is right."""
    program = _Program(step)
    program.release(different(step.inputs))


class _Program:
    """A step as `TinyJit` captured it on its own inputs: the outputs of its runs, the seconds of its replays, and what
    the sensors of its target tell after each of these."""

    def __init__(self, step: Step, target: Target | None = None, *, once: CapturedOnce | None = None) -> None:
        """`once` is the capture of this step that it shares with others."""
        from tinygrad import dtypes

        from kcg.compat.captures import CapturedOnce
        from kcg.compat.hardware import allocated_bytes
        from kcg.compat.programs import StepClock, clock_of
        from kcg.compat.tiny import Device
        from kcg.kernel.sums import eps_of

        self.device: str = Device.DEFAULT.split(":")[0]
        self.clock = clock_of(self.device)
        self.outputs: list[list[Array]] = []
        self.seconds: list[float] = []
        self._seconds_of = StepClock(self.device)
        self._sensors = sensors_for(target) if target is not None else NoSensors()
        self.clocks: tuple[tuple[str, float], ...] = ()
        before = allocated_bytes()
        self._jitted = (once or CapturedOnce(step.run)).program()
        returned = self._run(step.inputs)
        self.own_bytes = allocated_bytes() - before  # of its values; the weights were there
        self._keep(returned)
        seen = {value.dtype for value in (*step.inputs.values(), *returned)}
        # of the coarsest; 0: there is none
        self.eps = max((eps_of(dtype) for dtype in seen if dtypes.is_float(dtype)), default=0.0)
        self._sensors.begin()

    @property
    def repeats(self) -> bool:
        """Whether its first and last outputs that were read are the same, which are of its own inputs."""
        import numpy as np

        return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(self.outputs[0], self.outputs[-1], strict=True))

    def replay(self, inputs: dict[str, Any], *, read: bool) -> None:
        """One timed run, whose outputs are kept where they are to be read."""
        returned: list[Tensor] = []

        def run() -> None:
            returned[:] = self._run(inputs)  # it may run more than once for one sample

        self.seconds.append(self._seconds_of(run))
        self._sensors.look()
        self.clocks = self._sensors.readings()
        if read:
            self._keep(returned)  # before the next replay, which writes into the same memory

    def release(self, others: dict[str, Any]) -> None:
        """Give its memory back with what it makes of `others` in it, inputs that nothing is compared on: whoever gets
        it next, and fails to write something, must not find there what is right. It cannot run again."""
        self._run(others)
        self._jitted = None
        gc.collect()  # what a circle holds is not given back by itself

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        """A replay that is not timed: the buffers of its outputs."""
        from kcg.compat.captures import memory_of_tensors

        return memory_of_tensors(self._run(inputs), self.device)

    def values(self) -> list[Value]:
        """What it computes, see `kcg.compat.captures.values_of`."""
        from kcg.compat.captures import values_of

        return values_of(self._jitted, self.device)

    def _run(self, inputs: dict[str, Any]) -> list[Tensor]:
        from tinygrad import Tensor

        returned = self._jitted(**inputs)
        return [returned] if isinstance(returned, Tensor) else list(returned)

    def _keep(self, returned: Sequence[Tensor]) -> None:
        from tinygrad import dtypes

        from kcg.compat.calling import at_its_size

        read = map(at_its_size, returned)
        wide = (o.float() if dtypes.is_float(o.dtype) and o.dtype != dtypes.float64 else o for o in read)
        self.outputs.append([o.numpy().astype("float64") for o in wide])


class _Captures:
    """The captures of a step for its replays under stress. What was released for lack of memory is captured again once
    all others are, and at most one is without shared memory."""

    def __init__(
        self,
        step: Step,
        results: Sequence[Result],
        once: CapturedOnce,
        kernels: Sequence[Path],
        programs: Sequence[_Program | None],
    ) -> None:
        """`programs` are those of the results, then tinygrad's own; None where one was released."""
        self._step, self._results, self._once, self._kernels = step, results, once, kernels
        self._shared, self._apart = [*programs], dict[int, _Program]()
        self._all_fit = None not in programs

    def under_stress(
        self, checks: Sequence[ModelCheck], stress: Stress, report: Callable[[Stage], None]
    ) -> list[ModelCheck]:
        """The checks with what replays of the fastest plan that is right showed; the next one's where it is wrong."""
        seen, own = [*checks], len(self._results)
        target = self._results[0].target
        sets = self._step.inputs, different(self._step.inputs)
        of_own = self._shared[own]
        assert of_own is not None
        if not of_own.repeats:
            return [replace(check, unsteady=TWICE) if check.passed else check for check in checks]
        del of_own  # there may be no memory beside it
        right = [place for place, check in enumerate(checks) if check.passed]
        for place in sorted(right, key=lambda place: checks[place].after_s or 0.0):
            plan = _OfOne(self, place, functools.partial(report, Stage(STEADY, place)))
            theirs = _OfOne(self, own, functools.partial(report, Stage(OWN_STEADY)))

            def differs(reason: str, place: int = place) -> None:
                """It fails whatever becomes of the search for the program."""
                failed = replace(seen[place], passed=False, reason=reason)
                stress.compared([*seen[:place], failed, *seen[place + 1 :]])

            found = steady(plan, theirs, sets, target, stress=replace(stress, differs=differs))
            self._apart.clear()
            if found.own_differs:
                return [replace(check, unsteady=OWN_DIFFERS) if check.passed else check for check in seen]
            seen[place] = replace(
                seen[place], steady=found.same, passed=not found.reason, reason=found.reason or seen[place].reason
            )
            if not found.reason:
                break
        return seen

    def shared(self, place: int) -> _Program:
        """The capture that is timed, of one plan or of tinygrad's own schedules."""
        if (found := self._shared[place]) is not None:
            return found
        if not self._all_fit:
            self._shared = [None] * len(self._shared)
            self._free()
        self._shared[place] = made = self._captured(place)
        return made

    def apart(self, place: int) -> _Program | None:
        """The capture without shared memory; None where it does not fit beside the others."""
        from kcg.compat.captures import without_sharing

        if place not in self._apart:
            self._apart.clear()
            self._free()
            if not _has_memory(self._results[0].target.device, self._once.nbytes):
                return None
            with contextlib.suppress(Exception), without_sharing():  # memory may be in pieces
                self._apart[place] = self._captured(place)
        return self._apart.get(place)

    def _captured(self, place: int) -> _Program:
        if place == len(self._results):
            return _Program(self._step, once=self._once)
        from kcg.handover.tuned import scheduling

        result = self._results[place]
        with scheduling(result, changed_only=True, kernels=self._kernels):
            return _Program(self._step, result.target, once=self._once)

    def _free(self) -> None:
        from kcg.measure.workbench import free_cached_memory

        gc.collect()
        free_cached_memory(self._results[0].target)


@dataclass(frozen=True)
class _OfOne:
    """The captures of one plan, or of tinygrad's own schedules."""

    captures: _Captures
    place: int
    begins: Callable[[], None]  # told before one of them runs

    def shared(self) -> _Program:
        self.begins()
        return self.captures.shared(self.place)

    def apart(self) -> _Program | None:
        self.begins()
        return self.captures.apart(self.place)


def _replay(
    programs: Sequence[tuple[Stage, _Program]],
    inputs: Sequence[Sequence[dict[str, Any]]],
    report: Callable[[Stage], None] = lambda _: None,
) -> None:
    """Replay programs in turns, each on its own inputs; `report` gets which it is."""
    for turn, given in enumerate(zip(*inputs, strict=True)):
        for (stage, program), values in zip(programs, given, strict=True):
            report(stage)
            program.replay(values, read=turn < READ)


def _fits(program: _Program, more: int) -> bool:
    """Whether so many more programs of that size fit on the device beside the first."""
    return _has_memory(program.device, more * program.own_bytes)


def _has_memory(device: str, size: float) -> bool:
    """Whether so many bytes are free on the device, with some to spare."""
    from kcg.compat.hardware import memory_of

    known = memory_of(device)
    return known is not None and known[0] > MEMORY * size


def perturbed(inputs: dict[str, Any], *, seed: int, least: float = 0.0) -> dict[str, Any]:
    """Every floating input times 1 plus or minus the eps of its dtype, or `least`, at random; others as they are."""
    from tinygrad import Tensor, dtypes

    from kcg.kernel.sums import eps_of

    Tensor.manual_seed(seed)
    changed = {}
    for name, value in inputs.items():
        if not dtypes.is_float(value.dtype):
            changed[name] = value
            continue
        wide = dtypes.float64 if value.dtype == dtypes.float64 else dtypes.float32
        up = Tensor.rand(*value.shape, dtype=dtypes.float32, device=value.device) < 0.5
        eps = max(eps_of(value.dtype), least)
        factor = up.where(1.0 + eps, 1.0 - eps).cast(wide)
        changed[name] = (value.cast(wide) * factor).cast(value.dtype).contiguous().realize()
    return changed


def different(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs of which a model makes something else: floating ones turned around and halved, other tensors 0; variables
    are bound to other values where no tensor is floating."""
    from tinygrad import Tensor, dtypes

    from kcg.compat.calling import elsewhere

    changed = {name: value for name, value in inputs.items() if not isinstance(value, Tensor)}
    if not any(dtypes.is_float(value.dtype) for value in inputs.values()):
        changed = dict(zip(changed, elsewhere(list(changed.values())), strict=True))
    for name, value in inputs.items():
        if name in changed:
            continue
        turned = value.flip(*range(value.ndim)) * 0.5 if dtypes.is_float(value.dtype) else value.zeros_like()
        changed[name] = turned.cast(value.dtype).contiguous().realize()
    return changed
