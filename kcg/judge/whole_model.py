"""A whole model, run in a fresh process that can be killed: `python -m kcg.judge.whole_model < job.json`.

All plans have the same weights, random ones scaled by fan-in (others overflow bfloat16) or published ones, and the same
random inputs (`kcg.judge.step`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.cli import collect_rarely
from kcg.judge.steady import STEADY_CPU_S, STEADY_S, UNSTEADY, Stress
from kcg.judge.step import CHOSEN, STEADY, compare, replays_of, run_own
from kcg.judge.whole import Cost, Runner, unclear, why_nothing, written
from kcg.measure import isolated
from kcg.nouns import noun_from_json, noun_to_json
from kcg.report.endings import NO_WHOLE
from kcg.types import ModelCheck, Result, Target, Workload

if TYPE_CHECKING:
    from kcg.compat.captures import CapturedOnce
    from kcg.kernel.program import Compiled
    from kcg.workloads.family import Step
    from kcg.workloads.registry import WorkloadSpec

CHILD = "kcg.judge.whole_model"
REPLAYED_S = "replayed_s"  # in a line of the child's: what it took beyond comparing
PLACE, PLAN = "place", "plan"
"""Of lines that come before the job: its weights are to be made; its program is to be planned, and compiled if a target
is there."""

CPU_START_S, START_S = 8.5, 18.0
"""A process, the device, and weights; on a GPU there are more of them."""
AHEAD_S = 12.0
"""The same where the process planned the model, and compiled tinygrad's own kernels, while kernels were searched. The
whole check of Flux 768 took 20.0 s on one NVIDIA H200, of which ten steps were about 9."""
CAPTURING_S, AGAIN = 6.5, 1.07
"""Of these, for capturing the model: what the run itself took for that, and how many times as much the check takes. Of
Flux 768, Flux 1024 and Llama 3.2 1B (6.7, 6.4 and 2.8 s), three plans each, the check took 12.4, 12.0 and 8.2 s beside
its steps."""
RECORDED_S = 7.0
"""Where the process also has the weights and recorded the model's calls: programs are loaded, and it may still be at
that. The check of Qwen3 8B, three plans, took 14.1 s on one NVIDIA H200, of which steps and compiling were about 5."""
LEFT = 2  # times as much memory as is free beside weights that are made ahead, at most, the device has in all
END_S = 1.0  # before the child has to be gone its replays end: what it does after the last one
FURTHER = 0.2  # of these seconds, for capturing the program of another plan
COMPILE_S = 0.11  # one kernel; those that change twice
READ_BYTES_S = 5e8  # of published weights, from a disk


def is_runnable(workload: str) -> bool:
    """Whether it is a workload that kcg can run as a whole."""
    from kcg.workloads.registry import WORKLOADS, spec_of

    return workload in WORKLOADS and spec_of(workload).runnable is not None


@dataclass
class Model(Runner):
    """Runs a workload of kcg as a whole."""

    workload: Workload
    dev: str
    runnable: bool = True
    seed: int = 0
    weights: str = ""  # the published ones if not random ones are wanted
    kernels: Sequence[Path] = ()  # files of the hand-written ones
    compilers: int = 1
    programs: Callable[[], Mapping[str, Compiled]] = dict
    """Gives tinygrad's own schedules that are compiled already, by kernel (`kcg.handover.in_place`)."""
    check_device: Callable[[], None] = lambda: None
    """Called after a child that failed; its time may come on top of the timeout."""
    target: Target | None = None  # what `dev` is, where that is known
    module: str = field(default_factory=lambda: CHILD)  # what the child runs
    child: isolated.IsolatedProcess | None = None  # that is there already, see `ahead`
    placed: bool = False  # it has the weights on the device, see `begun`
    captured_s: float = 0.0  # what capturing took in this run; 0: not known
    steady_s: float | None = None
    """For which the fastest plan is replayed at most (`kcg.judge.steady`), by default as long as its device asks for;
    0: not at all."""
    unsteady: bool = False  # whether a plan failed in these replays: then parts of it are replayed too

    what = "model"

    def ahead(self) -> isolated.IsolatedProcess | None:
        """Its child plans the model, and compiles its kernels as tinygrad schedules them: of Flux 1024 half a minute of
        one core. None on a CPU, where it would disturb samples."""
        if self.dev.startswith("CPU") or not self.runnable:
            return None
        self.child = self.child or isolated.IsolatedProcess(self.module, dev=self.dev, label="model")
        target = [] if self.target is None else [noun_to_json(self.target)]
        self.child.tell({PLAN: [self.workload.name, self.workload.preset, *target]})
        return self.child

    def why_not(self, results: Sequence[Result]) -> list[str]:
        none = "" if self.runnable else f"{NO_WHOLE}{results[0].workload}"
        return [(none if result.complete else "") or why_nothing(result) for result in results]

    def announced(self, plans: str) -> str:
        return f"comparing the whole model's output{plans} with that of tinygrad's own schedules"

    def expected_s(self, cost: Cost) -> float:
        if not self.runnable:
            return 0.0
        step_s, compile_s = cost.step_s, max(COMPILE_S, cost.compile_s / self.compilers)
        start_s = CPU_START_S if self.dev.startswith("CPU") else AHEAD_S if self.child is not None else START_S
        if self.captured_s and not self.dev.startswith("CPU"):
            start_s += AGAIN * (self.captured_s - CAPTURING_S)
        if self.child is not None and self.placed:
            start_s = RECORDED_S
        own_s, steps_s = ((replays_of(step_s) + 2) * s for s in (step_s, min(cost.chosen_s, step_s)))
        read_s = self.workload.memory_bytes / READ_BYTES_S if self.weights else 0.0  # of its values too, to be safe
        compiled = 0 if self.child is not None else len(self.workload.calls)  # tinygrad's own, by then
        compiling_s = compile_s * (compiled + cost.changed)
        further_s = (cost.plans - 1) * (FURTHER * start_s + steps_s)  # their kernels are mostly those of the first
        return start_s + compiling_s + read_s + own_s + steps_s + further_s

    def checks(self, results: Sequence[Result], *, timeout_s: float, rounds_s: float = math.inf) -> list[ModelCheck]:
        """All in one child. A crash with the schedules of a result fails it, and the others run again without it. What
        comparing leaves of the time is for replays, if it is not of parts alone (no `rounds_s`)."""
        begin, whole = time.monotonic(), rounds_s > 0
        asked_s = STEADY_CPU_S if self.dev.startswith("CPU") else STEADY_S
        stress = Stress(
            (asked_s if self.steady_s is None else self.steady_s) if whole or self.unsteady else 0.0,
            begin + (min(timeout_s, rounds_s) if whole else timeout_s) - END_S,
        )
        with tempfile.TemporaryDirectory(prefix="kcg-model-") as folder:
            comparison = _Comparison(self, results, Path(folder), until=begin + timeout_s, stress=stress)
            found = comparison.checks()
        self.replayed_s = comparison.replayed_s
        self.unsteady = self.unsteady or any(one.passed is False and one.reason.startswith(UNSTEADY) for one in found)
        return [replace(check, seed=self.seed, weights=self.weights) for check in found]


def begun(workload: str, preset: str, seed: int, dev: str, *, module: str = "") -> isolated.IsolatedProcess:
    """The process of a check, which makes random weights while the device has nothing to time yet. It gives them back
    where less than half of the device's memory is left beside them."""
    child = isolated.IsolatedProcess(module or CHILD, dev=dev, label="model")
    child.tell({PLACE: True, **_made_of(workload, preset, seed, "")})
    return child


def _made_of(workload: str, preset: str, seed: int, weights: str) -> dict[str, Any]:
    """What weights and inputs follow from."""
    return {"workload": workload, "preset": preset, "seed": seed, "weights": weights}


class _Comparison:
    """The run of a model with several results in a child, and in another one where that fails."""

    def __init__(self, model: Model, results: Sequence[Result], folder: Path, *, until: float, stress: Stress) -> None:
        """The results are written into `folder`; by `until`, on the clock `time.monotonic`, all is to be over."""
        from kcg.kernel.program import compiled_values

        self._model, self._until, self._dev = model, until, results[0].target.tinygrad_device
        self._paths = written(results, folder)
        self._job: dict[str, Any] = {
            **_made_of(results[0].workload, results[0].preset, model.seed, model.weights),
            "kernels": [str(file) for file in model.kernels],
            "programs": {name: compiled_values(compiled) for name, compiled in model.programs().items()},
            "steady_s": stress.seconds,
            "steady_until": stress.until,  # that clock is one for all processes of a machine
        }
        self.replayed_s = 0.0
        self._left = list(range(len(results)))  # of which nothing is known yet
        self._checks = [unclear("not run") for _ in results]

    def checks(self) -> list[ModelCheck]:
        """A check of each result."""
        while self._left:
            try:
                ended = self._compared()
            except isolated.Overdue as error:
                if compared := _compared_in(error.out):
                    self._take_in(compared, list(self._left))
                else:
                    self._give_up(f"{error} ({_stage(error.out)[0]})")
                break
            self.replayed_s += _replayed_s(ended.out)
            if ended.returncode == 0 and ended.out:
                self._take_in(ended.out[-1], list(self._left))
            elif compared := _compared_in(ended.out):
                self._failed_later(ended, compared)
            else:
                self._blame(ended)
        return self._checks

    def _failed_later(self, ended: isolated.Ended, compared: str) -> None:
        """A child failed that had compared all: in replays under stress, for which it may have had too little memory.
        What it had found stands, but for a plan that fails where the model alone does not."""
        places, (stage, number) = list(self._left), _stage(ended.out)
        self._take_in(compared, places)
        if (
            stage != STEADY
            or self._checks[places[number]].passed is False
            or ended.returncode == -signal.SIGKILL
            or self._left_s <= 0
        ):
            return
        with contextlib.suppress(isolated.Overdue):
            if self._run([places[number]], own_only=True).returncode == 0:
                reason = f"the model fails in a later replay with the chosen schedules: {ended.last_words}"
                self._checks[places[number]] = replace(self._checks[places[number]], passed=False, reason=reason)

    def _compared(self) -> isolated.Ended:
        """How a child ended that compared what is left. Raises Overdue."""
        ended = self._run(self._left)
        if ended.returncode == -signal.SIGKILL and self._left_s > 0 and not _compared_in(ended.out):
            # from outside, e.g. where memory ran out: once more before anything is said
            ended = self._run(self._left)
        return ended

    def _run(self, places: Sequence[int], *, own_only: bool = False) -> isolated.Ended:
        """How a child ended that ran the model with the results at these places. Raises Overdue."""
        model, job = self._model, {**self._job, "results": [str(self._paths[p]) for p in places], "own_only": own_only}
        child, model.child = model.child, None
        try:
            with child or isolated.IsolatedProcess(model.module, dev=self._dev, label="model") as process:
                ended = process.run(job, timeout_s=self._left_s, name="the whole model's run")
        except isolated.Overdue:
            model.check_device()  # before anything is said of the schedules
            raise
        if ended.returncode != 0:
            model.check_device()
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
                    self._set(failed, unclear(f"alone it failed while {now}: {again.last_words}"))
                    return
            alone_too = self._run([failed], own_only=True) if self._left_s > 0 else None
        except isolated.Overdue:
            alone_too = None
        if alone_too is None:
            self._give_up(late)
        elif alone_too.returncode != 0:
            self._give_up(f"the model does not run with any schedules: {words}")
        else:
            self._set(failed, ModelCheck(False, f"the model fails with the chosen schedules: {words}"))
            if self._left_s <= 0:
                self._give_up("another plan failed, and no time was left")

    def _take_in(self, line: str, places: Sequence[int]) -> None:
        """What a child found of the results at these places."""
        for place, text in zip(places, json.loads(line), strict=True):
            self._set(place, noun_from_json(ModelCheck, text))

    def _give_up(self, reason: str) -> None:
        """Nothing will be known of what is left."""
        for place in list(self._left):
            self._set(place, unclear(reason))

    def _set(self, place: int, check: ModelCheck) -> None:
        self._checks[place] = check
        self._left.remove(place)

    @property
    def _left_s(self) -> float:
        return self._until - time.monotonic()


def _stage(lines: Sequence[str]) -> tuple[str, int]:
    """What the child was doing when it printed the last of these lines, and with which of the results."""
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            fields = json.loads(line)
            return fields["stage"], fields["result"]
    return "getting its weights", 0


def _compared_in(lines: Sequence[str]) -> str:
    """What a child had found since all was compared; empty before."""
    return next((line for line in reversed(lines) if line.startswith("[")), "")


def _replayed_s(lines: Sequence[str]) -> float:
    """What replays under stress took."""
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return float(json.loads(line)[REPLAYED_S])
    return 0.0


# ---- in the child


def _prepare(
    step: Step | None, workload: str, preset: str, target: str = "", *, is_free: Callable[[], bool]
) -> CapturedOnce | None:
    """What launches nothing, before the job is there. Gives the capture of `step`; where that is not there yet, the
    model is planned on nothing, and what tinygrad knows then makes the capture shorter."""
    from kcg.compat.captures import CapturedOnce
    from kcg.compat.lowering import lower_ahead
    from kcg.compat.renderers import renderer_ahead
    from kcg.compat.tiny import Context
    from kcg.workloads.registry import spec_of

    once: CapturedOnce | None = None
    # as it will be compared; where there is no compiler for it, what compares says so
    with Context(BEAM=0, NOOPT=0), contextlib.suppress(Exception):
        if step is not None:
            once = CapturedOnce(step.run)
            calls = once.record(**step.inputs)
        elif (plan := spec_of(workload).plan) is not None:
            calls = plan(preset)
        else:
            return None
        if target:
            lower_ahead(calls, renderer_ahead(noun_from_json(Target, target)), is_free)
    return once


def _placed(job: dict[str, Any]) -> Step | None:
    """Weights and inputs on the device; none where others would be short of memory for them."""
    from kcg.compat.hardware import memory_of
    from kcg.compat.tiny import Device
    from kcg.workloads.registry import spec_of

    with contextlib.suppress(Exception):  # there may be memory for them once others gave theirs back
        step = _step(spec_of(job["workload"]), job)
        known = memory_of(Device.DEFAULT.split(":")[0])
        if known is not None and known[0] >= known[1] / LEFT:
            return step
    return None


def _step(spec: WorkloadSpec, job: dict[str, Any]) -> Step:
    if job["weights"]:
        assert spec.published is not None
        return spec.published.runnable(job["preset"], job["seed"], job["weights"])
    assert spec.runnable is not None
    return spec.runnable(job["preset"], job["seed"])


def main() -> None:
    """Read a job, one line of standard input; write the result as the last line of standard output. Lines before it
    say what can be done before it is there."""
    receive = isolated.listening()
    from kcg.compat.device import prepare

    prepare(os.environ["DEV"])
    from kcg.compat.lowering import lowering_together
    from kcg.compat.quick_schedules import scheduling_quickly
    from kcg.compat.workers import compile_without_collecting

    collect_rarely()
    compile_without_collecting()
    with scheduling_quickly(), lowering_together():
        _work(receive)


def _work(receive: isolated.Awaited) -> None:
    from kcg.kernel.program import compiled_from
    from kcg.report.result import read_result
    from kcg.workloads.registry import spec_of

    job, step, once = receive(), None, None
    while PLACE in job or PLAN in job:
        if PLAN in job:
            once = _prepare(step, *job[PLAN], is_free=lambda: not receive.is_there)
        else:
            step = _placed(job)
        job = receive()
    step = step or _step(spec_of(job["workload"]), job)
    if job.get("own_only"):
        run_own(step)
        return
    begun = list[float]()

    def compared(checks: Sequence[ModelCheck]) -> None:
        """What stands whatever becomes of the replays."""
        begun.append(time.monotonic())
        isolated.answer([noun_to_json(check) for check in checks])

    checks = compare(
        step,
        [read_result(Path(path)) for path in job["results"]],
        seed=job["seed"],
        report=lambda stage: isolated.answer({"stage": stage.name, "result": stage.result}),
        kernels=[Path(file) for file in job["kernels"]],
        programs={name: compiled_from(values) for name, values in job["programs"].items()},
        once=once,
        stress=Stress(job["steady_s"], job["steady_until"], compared) if job["steady_s"] > 0 else None,
    )
    if begun:
        isolated.answer({REPLAYED_S: time.monotonic() - begun[0]})
    isolated.answer([noun_to_json(check) for check in checks])


if __name__ == "__main__":
    main()
