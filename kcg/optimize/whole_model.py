"""The last rule of verification: the whole model with the chosen schedules against the model as tinygrad schedules it.

Each finalist was verified alone; here they run together, in the order and on the memory of the real program, captured
by `TinyJit`, in a fresh process that can be killed: `python -m kcg.optimize.whole_model < job.json`. All have the same
weights, random ones scaled by fan-in (others overflow bfloat16) or published ones, and the same random inputs. The
chosen schedules run first, those of each of several plans: a kernel that fails to write its output, of which there are
some, must not find there what tinygrad's own left. Then all are replayed in turns, and the median of these replays is
the time of a step: between two events of the device where it has them, with what the host does first hidden
(`kcg.compat.programs`), else by wall clock. For that all must be in memory, apart from the weights, which they share.
Where there is no memory for that, one comes after the other, tinygrad's own last, and each leaves there what it makes
of other inputs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.cli import collect_rarely
from kcg.measure import isolated
from kcg.measure.device_info import NoSensors, sensors_for
from kcg.measure.protocol import median
from kcg.optimize.settings import Settings
from kcg.types import ModelCheck, Result, Target, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tinygrad import Tensor

    from kcg.handover.tuned import InPlace
    from kcg.kernel.program import Compiled
    from kcg.workloads.family import Step
    from kcg.workloads.registry import WorkloadSpec

    Array = NDArray[np.float64]


# ---- How far apart two outputs of a whole model are, and how much of that is rounding.
#
# The error. An output is taken as rows along its last axis (a token, a line of pixels): the error is the largest, over
# all rows, of ‖tuned - own‖, divided by the root mean square of ‖own‖ over the rows, in float64. It is never less than
# ‖tuned - own‖ / ‖own‖ of the whole output, and a single wrong row among thousands does not drown in it. NaN and
# infinities never pass, nor does an output of zeros.
#
# The tolerance. How much of a difference is rounding depends on the model, so it is measured on the spot: tinygrad's
# own schedules run twice more, every floating input changed at random by one rounding unit of its dtype, up or down.
# Nearly all intermediate values are then rounded anew, so the error of these runs (D, at least one rounding unit) holds
# both what the model makes of a small change and the rounding of all its layers. What it may not hold is another order
# of summation: K terms added one after the other have a relative error of about 0.2·√K rounding units of the dtype they
# are summed in (a random walk; padded and unrolled they have less), tinygrad's own order may be much better, and
# storing a value, which D does hold, is good for 0.3 units. Thus
#
# tolerance = 3 · D · max(1, √K · eps(sum) / eps(model)), with the largest √K · eps(sum) of all kernels
#
# where eps(model) is that of the coarsest dtype among inputs and outputs, and of tf32 where a plan has products of it:
# then inputs are changed by that, too. The last factor counts in float32 models
# only: in bfloat16, sums are float32 and their order is lost below the rounding of what is stored. Where the tolerance
# comes out above 0.25, the model is too sensitive on random weights for a result, and none is given.

FACTOR = 3.0  # between two runs whose rounding is independent and the worst that is still taken for rounding
MAX_TOLERANCE = 0.25


def judge(
    tuned: Sequence[list[Array]], own: list[Array], shaken: Sequence[list[Array]], *, eps: float, sums: float
) -> ModelCheck:
    """The verdict on the outputs of runs with the chosen schedules.

    `own` and `shaken` are the outputs with tinygrad's own schedules, of the inputs and of slightly changed ones; `eps`
    is that of the model's dtype, `sums` is what `rounding_of_sums` gives.
    """
    import numpy as np

    if not all(np.isfinite(o).all() for o in own):
        return ModelCheck(None, "no verdict: the output is not finite with tinygrad's own schedules either")
    if not all(np.any(o) for o in own):
        return ModelCheck(None, "no verdict: the output is zero with tinygrad's own schedules either")
    moved = max(relative_error(outputs, own) for outputs in shaken)
    tolerance = FACTOR * max(moved, eps) * max(1.0, sums / eps)
    error = max(relative_error(outputs, own) for outputs in tuned)
    if not math.isfinite(error):
        reason = "the output with the chosen schedules is not finite, or of another shape"
        return ModelCheck(False, reason, error, tolerance if math.isfinite(tolerance) else None)
    if not tolerance <= MAX_TOLERANCE:
        reason = f"no verdict: one rounding unit at the inputs moves the output by {moved:.2g}, too much to tell"
        return ModelCheck(None, reason, error, tolerance if math.isfinite(tolerance) else None)
    if error > tolerance:
        reason = f"the output differs by {error:.2g} of its size from that with tinygrad's own schedules; "
        return ModelCheck(False, reason + f"rounding explains {tolerance:.2g}", error, tolerance)
    return ModelCheck(True, "", error, tolerance)


def relative_error(outputs: Sequence[Array], own: Sequence[Array]) -> float:
    """The error as this module's docstring defines it, the largest of all outputs; infinite where a value is not."""
    import numpy as np

    worst = 0.0
    for ours, theirs in zip(outputs, own, strict=True):
        if ours.shape != theirs.shape or not np.isfinite(ours).all():
            return math.inf
        width = theirs.shape[-1] if theirs.ndim else 1
        rows = np.linalg.norm((ours - theirs).reshape(-1, width), axis=1)
        size = math.sqrt(float(np.mean(np.square(np.linalg.norm(theirs.reshape(-1, width), axis=1)))))
        worst = max(worst, float(rows.max()) / size if size else math.inf)
    return worst


def perturbed(inputs: dict[str, Any], *, seed: int, least: float = 0.0) -> dict[str, Any]:
    """Every floating input times 1 plus or minus the eps of its dtype, or `least`, at random; others as they are."""
    from tinygrad import Tensor, dtypes

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


def eps_of(dtype: Any) -> float:
    """Distance from 1 to the next number of a floating dtype."""
    from tinygrad import dtypes

    return float(2.0 ** -dtypes.finfo(dtype)[1])


def rounding_of_products(results: Sequence[Result]) -> float:
    """One rounding unit of tf32 where a chosen schedule rounds float32 operands of products to it, else 0."""
    from kcg.kernel.arithmetic import TF32_BITS
    from kcg.kernel.tile.kind import rounds_to_tf32

    rounds = any(rounds_to_tf32(row.chosen.schedule) for result in results for row in result.deployed)
    return 2.0 ** (1 - TF32_BITS) if rounds else 0.0


def rounding_of_sums(result: Result) -> float:
    """The largest √K·eps of all kernels: K is the number of terms of a sum, eps that of the dtype it is summed in."""
    from kcg.compat.tiny import Ops, dtypes
    from kcg.kernel.codec import ast_of

    largest = 0.0
    for kernel in {kernel for row in result.regions for kernel in row.region.kernels}:
        for node in ast_of(kernel).toposort():
            if node.op is Ops.REDUCE and node.arg[0] is Ops.ADD and dtypes.is_float(node.dtype):
                terms = math.prod(int(axis.vmax) + 1 for axis in node.src[1:])
                largest = max(largest, math.sqrt(terms) * eps_of(node.dtype))
    return largest


CHILD = "kcg.optimize.whole_model"
REPLAYS = 5  # of each kind, all of them timed; the run before them, which captures, is not
LONG_STEP_S = 0.5  # of a step that takes longer, `READ` replays tell as much
READ = 3  # replays with the chosen schedules whose outputs are compared too, beside those of the captured run
MEMORY = 1.25  # times what one program has for its own values must be free, for each that is to stand beside it
TIMEOUT_S = 600.0  # where there is no budget

START_S = {"CPU": 8.5}  # a process, the device, and weights; on a GPU there are more of them
START_ELSEWHERE_S = 30.0
FURTHER = 0.2  # of these seconds, for capturing the program of another plan
COMPILE_S = 0.11  # one kernel; those that change twice
READ_BYTES_S = 5e8  # of published weights, from a disk


def expected_cost_s(
    settings: Settings,
    workload: Workload,
    *,
    device: str,
    step_s: float,
    changed: int,
    compile_s: float = COMPILE_S,
    plans: int = 1,
) -> float:
    """About how many seconds the check takes where one step takes `step_s`, compiling one kernel `compile_s`, and
    `changed` kernels have another schedule, in each of so many plans. 0 where it will not run."""
    if not is_runnable(settings, workload.name):
        return 0.0
    start_s, steps_s = START_S.get(device, START_ELSEWHERE_S), (replays_of(step_s) + 2) * step_s
    read_s = workload.memory_bytes / READ_BYTES_S if settings.weights else 0.0  # that of its values too, to be safe
    compiling_s = compile_s * (len(workload.calls) + changed)
    further_s = (plans - 1) * (FURTHER * start_s + steps_s)  # their kernels are mostly those of the first
    return start_s + compiling_s + read_s + 2 * steps_s + further_s


def is_runnable(settings: Settings, workload: str) -> bool:
    """Whether the workload is one that kcg can run as a whole."""
    from kcg.workloads.registry import WORKLOADS, spec_of

    return not settings.is_script and workload in WORKLOADS and spec_of(workload).runnable is not None


def why_not_needed(settings: Settings, result: Result, *, ended_early: bool) -> str:
    """Why there is nothing to check, or no way to; empty where the check is due."""
    if ended_early:
        return "not run: the run ended before every kernel was verified"
    if not is_runnable(settings, result.workload):
        return f"not run: kcg has no runnable {result.workload}"
    if not any(row.outcome == "improved" for row in result.regions):
        return "not run: no schedule was changed"
    return ""


def ahead(settings: Settings, workload: Workload, *, dev: str) -> isolated.IsolatedProcess | None:
    """The child of `check_models`, which plans the model while kernels are searched: scheduling Flux 1024 takes 33 s of
    one core. None on a CPU, where it would disturb samples, and where the model will not run."""
    if dev.startswith("CPU") or not is_runnable(settings, workload.name):
        return None
    return isolated.IsolatedProcess(CHILD, dev=dev, label="model", arguments=(workload.name, workload.preset))


def check_models(
    results: Sequence[Result],
    *,
    timeout_s: float,
    seed: int = 0,
    module: str = CHILD,
    kernels: Sequence[Path] = (),
    weights: str = "",
    programs: Mapping[str, Compiled] | None = None,
    child: isolated.IsolatedProcess | None = None,
    check_device: Callable[[], None] = lambda: None,
) -> list[ModelCheck]:
    """Run the model with tinygrad's own schedules and with those of each result, several plans of one workload, in one
    child, and compare: a check of each.

    Never raises for what the child does: a crash with the schedules of a result fails it, and the others run again
    without it; anything else gives no result. `module` is what the child runs, `kernels` are the files of the
    hand-written ones, `weights` the published ones if not random ones are wanted; `programs` are tinygrad's own
    schedules that are compiled already, by kernel (`kcg.handover.in_place`); `child` is one of `ahead`.
    `check_device` is called after a child that failed, and its time may come on top of `timeout_s`: a DeviceError that
    it raises ends the check.
    """
    with tempfile.TemporaryDirectory(prefix="kcg-model-") as folder:
        comparison = _Comparison(
            results,
            Path(folder),
            until=time.monotonic() + timeout_s,
            seed=seed,
            module=module,
            kernels=kernels,
            weights=weights,
            programs=programs or {},
            child=child,
            check_device=check_device,
        )
        return comparison.checks()


class _Comparison:
    """The run of a model with several results in a child, and in another one where that fails."""

    def __init__(
        self,
        results: Sequence[Result],
        folder: Path,
        *,
        until: float,
        seed: int,
        module: str,
        kernels: Sequence[Path],
        weights: str,
        programs: Mapping[str, Compiled],
        child: isolated.IsolatedProcess | None,
        check_device: Callable[[], None],
    ) -> None:
        """The results are written into `folder`; by `until`, on the clock `time.monotonic`, all is to be over."""
        from kcg.kernel.program import compiled_values
        from kcg.report.result import write_result

        first = results[0]
        self._dev, self._module, self._until = first.target.tinygrad_device, module, until
        self._child, self._check_device = child, check_device
        self._seed, self._weights = seed, weights
        self._paths = [folder / f"result-{place}.json" for place in range(len(results))]
        for path, result in zip(self._paths, results, strict=True):
            write_result(result, path)
        self._job: dict[str, Any] = {
            "workload": first.workload,
            "preset": first.preset,
            "seed": seed,
            "weights": weights,
            "kernels": [str(file) for file in kernels],
            "programs": {name: compiled_values(compiled) for name, compiled in programs.items()},
        }
        self._left = list(range(len(results)))  # of which nothing is known yet
        self._checks = [self._none("not run") for _ in results]

    def checks(self) -> list[ModelCheck]:
        """A check of each result."""
        while self._left:
            try:
                ended = self._compared()
            except isolated.Overdue as error:
                self._give_up(f"{error} ({_stage(error.out)[0]})")
                break
            if ended.returncode == 0 and ended.out:
                self._take_in(ended.out[-1], list(self._left))
            else:
                self._blame(ended)
        return self._checks

    def _compared(self) -> isolated.Ended:
        """How a child ended that compared what is left. Raises Overdue."""
        ended = self._run(self._left)
        if ended.returncode == -signal.SIGKILL and self._left_s > 0:
            # from outside, e.g. where memory ran out: once more before anything is said
            ended = self._run(self._left)
        return ended

    def _run(self, places: Sequence[int], *, own_only: bool = False) -> isolated.Ended:
        """How a child ended that ran the model with the results at these places. Raises Overdue."""
        job = {**self._job, "results": [str(self._paths[place]) for place in places], "own_only": own_only}
        child, self._child = self._child, None
        try:
            with child or isolated.IsolatedProcess(self._module, dev=self._dev, label="model") as process:
                ended = process.run(job, timeout_s=self._left_s, name="the whole model's run")
        except isolated.Overdue:
            self._check_device()  # before anything is said of the schedules
            raise
        if ended.returncode != 0:
            self._check_device()
        return ended

    def _blame(self, ended: isolated.Ended) -> None:
        """A child failed: whose fault is it? What failed beside others runs once more without them, as memory may have
        been short. What is left of the time is for the model alone, then for other plans."""
        words, (stage, number) = ended.last_words, _stage(ended.out)
        if stage != CHOSEN:
            self._give_up(f"it failed while {stage}: {words}")
            return
        failed, late = self._left[number], f"it failed while {stage}, no time to try others: {words}"
        try:
            if len(self._left) > 1 and self._left_s > 0:
                again = self._run([failed])
                if again.returncode == 0 and again.out:
                    self._take_in(again.out[-1], [failed])
                    return
                if (now := _stage(again.out)[0]) != CHOSEN:
                    self._checks[failed] = self._none(f"alone it failed while {now}: {again.last_words}")
                    self._left.remove(failed)
                    return
            alone_too = self._run([failed], own_only=True) if self._left_s > 0 else None
        except isolated.Overdue:
            alone_too = None
        if alone_too is None:
            self._give_up(late)
        elif alone_too.returncode != 0:
            self._give_up(f"the model does not run with any schedules: {words}")
        else:
            reason = f"the model fails with the chosen schedules: {words}"
            self._checks[failed] = ModelCheck(False, reason, seed=self._seed, weights=self._weights)
            self._left.remove(failed)
            if self._left_s <= 0:
                self._give_up("another plan failed, and no time was left")

    def _take_in(self, line: str, places: Sequence[int]) -> None:
        """What a child found of the results at these places."""
        from kcg.nouns import noun_from_json

        for place, text in zip(places, json.loads(line), strict=True):
            self._checks[place] = replace(noun_from_json(ModelCheck, text), weights=self._weights)
        self._left = [place for place in self._left if place not in places]

    def _give_up(self, reason: str) -> None:
        """Nothing will be known of what is left."""
        for place in self._left:
            self._checks[place] = self._none(reason)
        self._left = []

    def _none(self, reason: str) -> ModelCheck:
        return ModelCheck(None, f"no verdict: {reason}", seed=self._seed, weights=self._weights)

    @property
    def _left_s(self) -> float:
        return self._until - time.monotonic()


def replays_of(step_s: float) -> int:
    """How often a step of so many seconds is replayed and timed."""
    return REPLAYS if step_s < LONG_STEP_S else READ


STARTING, CHOSEN, OWN = "getting its weights", "running the chosen schedules", "running tinygrad's own schedules"


def _stage(lines: Sequence[str]) -> tuple[str, int]:
    """What the child was doing when it printed the last of these lines, and with which of the results."""
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            fields = json.loads(line)
            return fields["stage"], fields["result"]
    return STARTING, 0


# ---- in the child


@dataclass(frozen=True)
class Stage:
    """What the child is doing: `OWN`, or `CHOSEN` with which of the results."""

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
) -> list[ModelCheck]:
    """Run `step` in this process with tinygrad's own schedules and with those of each result, judge, and time.
    `report` gets each stage, at every run."""
    from kcg.compat.tiny import Context
    from kcg.handover.in_place import compiled_before

    replays = replays_of(max(result.total_after_s for result in results))
    given = compiled_before(programs, results[0].target) if programs else contextlib.nullcontext()
    with Context(BEAM=0, NOOPT=0), given:
        least = rounding_of_products(results)
        shaken = [perturbed(step.inputs, seed=seed + 1 + i, least=least) for i in range(2)]
        chosen: list[_Chosen] = []
        in_turns = True
        for place, result in enumerate(results):
            report(stage := Stage(CHOSEN, place))
            chosen.append(_Chosen.captured(step, result, kernels))
            if not place:  # each of the others, and tinygrad's own, takes about as much
                in_turns = _fits(chosen[0].program, len(results))
            if not in_turns:
                _replay([(stage, chosen[-1].program)], [[step.inputs] * replays], report)
                chosen[-1].program.release(different(step.inputs))
        report(Stage(OWN))
        own = _Program(step, results[0].target)
        of_own = [*shaken, *[step.inputs] * (replays - len(shaken))]
        together = [(Stage(CHOSEN, place), one.program) for place, one in enumerate(chosen)] if in_turns else []
        _replay([*together, (Stage(OWN), own)], [*[[step.inputs] * replays for _ in together], of_own], report)
    own_outputs, *moved = own.outputs[: 1 + len(shaken)]
    clock = f"{own.clock}, median of {replays}{' in turns' if in_turns else ''}"
    checks = []
    for one, result in zip(chosen, results, strict=True):
        eps = max(own.eps or 2.0**-23, least)  # of whole numbers only: they must agree
        check = judge(one.program.outputs, own_outputs, moved, eps=eps, sums=rounding_of_sums(result))
        check = replace(
            check, before_s=median(own.seconds), after_s=median(one.program.seconds), clock=clock, seed=seed
        )
        checks.append(one.served_all(replace(check, clocks_before=own.clocks)))
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


@dataclass(frozen=True)
class _Chosen:
    """A step as it was captured with the schedules of a result: which kernels have another one there, and what was put
    in place of which calls."""

    program: _Program
    changed: frozenset[str]
    place: InPlace

    @staticmethod
    def captured(step: Step, result: Result, kernels: Sequence[Path]) -> _Chosen:
        from kcg.handover.tuned import scheduling

        with scheduling(result, changed_only=True, kernels=kernels) as place:  # the others are compiled once, for all
            program = _Program(step, result.target)
        return _Chosen(program, place.found.intersection(row.region.id for row in result.regions), place)

    def served_all(self, check: ModelCheck) -> ModelCheck:
        """The check, which is no pass where a changed kernel did not occur."""
        place = self.place
        check = replace(check, kernels=len(place.served), clocks_after=self.program.clocks)
        check = replace(check, replaced=place.sets_replaced, left=place.sets_left)
        if check.passed and (missing := len(self.changed - place.served)):
            reason = f"no verdict: {missing} of {len(self.changed)} changed kernels do not occur when the model runs"
            return replace(check, passed=None, reason=reason)
        return check


class _Program:
    """A step as `TinyJit` captured it on its own inputs: the outputs of its runs, the seconds of its replays, and what
    the sensors of its target tell after each of these."""

    def __init__(self, step: Step, target: Target | None = None) -> None:
        from tinygrad import dtypes

        from kcg.compat.hardware import allocated_bytes
        from kcg.compat.programs import StepClock, captured_at_once, clock_of
        from kcg.compat.tiny import Device

        self.device: str = Device.DEFAULT.split(":")[0]
        self.clock = clock_of(self.device)
        self.outputs: list[list[Array]] = []
        self.seconds: list[float] = []
        self._seconds_of = StepClock(self.device)
        self._sensors = sensors_for(target) if target is not None else NoSensors()
        self.clocks: tuple[tuple[str, float], ...] = ()
        before = allocated_bytes()
        self._jitted = captured_at_once(step.run)
        returned = self._run(step.inputs)
        self.own_bytes = allocated_bytes() - before  # of its values; the weights were there
        self._keep(returned)
        seen = {value.dtype for value in (*step.inputs.values(), *returned)}
        # of the coarsest; 0: there is none
        self.eps = max((eps_of(dtype) for dtype in seen if dtypes.is_float(dtype)), default=0.0)
        self._sensors.begin()

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
    from kcg.compat.hardware import memory_of

    known = memory_of(program.device)
    return known is not None and known[0] > MEMORY * more * program.own_bytes


def _step(spec: WorkloadSpec, job: dict[str, Any]) -> Step:
    if job["weights"]:
        assert spec.published is not None
        return spec.published.runnable(job["preset"], job["seed"], job["weights"])
    assert spec.runnable is not None
    return spec.runnable(job["preset"], job["seed"])


def main() -> None:
    """Read a job, one line of standard input; write the result as the last line of standard output. With a workload
    and a preset as arguments, plan that program before the job is there."""
    receive = isolated.listening()
    from kcg.compat.device import prepare

    prepare(os.environ["DEV"])
    from kcg.compat.workers import compile_without_collecting

    collect_rarely()
    compile_without_collecting()
    from kcg.kernel.program import compiled_from
    from kcg.nouns import noun_to_json
    from kcg.report.result import read_result
    from kcg.workloads.registry import spec_of

    if len(sys.argv) > 1 and (plan := spec_of(sys.argv[1]).plan) is not None:
        plan(sys.argv[2])
    job = receive()
    step = _step(spec_of(job["workload"]), job)
    if job.get("own_only"):
        run_own(step)
        return
    checks = compare(
        step,
        [read_result(Path(path)) for path in job["results"]],
        seed=job["seed"],
        report=lambda stage: isolated.answer({"stage": stage.name, "result": stage.result}),
        kernels=[Path(file) for file in job["kernels"]],
        programs={name: compiled_from(values) for name, values in job["programs"].items()},
    )
    isolated.answer([noun_to_json(check) for check in checks])


if __name__ == "__main__":
    main()
