"""A process that runs one contender in tinygrad: hand-coded, BEAM, kcg's schedules, or a kernel written by hand."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinygrad import Tensor

from evaluation.pytorch.cases import FAMILY, arrays, kind_of
from evaluation.pytorch.kind import Case, values_of
from evaluation.pytorch.models import model_step
from evaluation.pytorch.serving import Call, Prepared, host_seconds, serve
from evaluation.pytorch.sum_levels import hand_written, run_of
from evaluation.pytorch.tuning import FOLDER
from kcg.measure.device_info import sensors_for
from kcg.workloads.family import Step, tensor_of
from kcg.workloads.registry import spec_of


def prepare(case: dict[str, Any]) -> Prepared:
    """A whole step under `TinyJit`, as a program would run it.

    `how` is `hand-coded`; `beam`, with its width in `beam`; `kcg`, with the path of a `result` and the `kernels` it
    had, if any; or the name of a hand-written kernel of `sum_levels`. What is captured inside keeps its schedules.
    """
    from kcg.compat.programs import captured_at_once
    from kcg.compat.tiny import Context, Ops
    from kcg.errors import KcgError

    how = case.get("how", "hand-coded")
    step = build(case)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Context(BEAM=case["beam"] if how == "beam" else 0, NOOPT=0))
        run: Any = step.run
        if how == "kcg":
            from kcg.handover.tuned import scheduling
            from kcg.report.result import read_result

            files = [FOLDER / case["kernels"]] if "kernels" in case else []
            result = read_result(Path(case["result"]))
            place = stack.enter_context(scheduling(result, changed_only=True, kernels=files))
        elif how not in ("hand-coded", "beam"):
            if (direct := hand_written(how, step)) is not None:
                return direct
            run = run_of(how, step)
        jitted = captured_at_once(run)
        jitted(**step.inputs)
        facts = {"kernels_changed": len(place.served)} if how == "kcg" else {}
        if "kernels" in case:
            found = {node.arg.name for node in jitted.captured.linear.toposort() if node.op is Ops.PROGRAM}
            if lost := {row.chosen.name for row in result.regions} - found:
                raise KcgError(f"{', '.join(lost)} was not put into the program")

    def values() -> Sequence[float]:
        compared = outputs_of(jitted(**step.inputs))[case.get("compared", 0)]
        return values_of(compared.float().numpy())

    return Prepared(lambda: jitted(**step.inputs), values, facts)


def make_clock(job: dict[str, Any]) -> Any:
    """Open the device."""
    from kcg.compat.device import prepare as open_device

    open_device(job["dev"])
    return TinyClock(job["dev"])


def build(case: Case, seed: int = 0) -> Step:
    """A step on realised inputs. Of `kind` family it is a preset of `kcg.workloads`, or one of other `sizes`."""
    if "sizes" in case:
        return model_step(case, seed)
    if case["kind"] == FAMILY:
        runnable = spec_of(case["name"]).runnable
        assert runnable is not None, f"{case['name']} changes its inputs"
        return runnable(case["preset"], seed)
    made = {name: tensor_of(values, case["dtype"]) for name, values in arrays(case, seed).items()}
    kind = kind_of(case)
    made |= {name: tensor_of(values, "float32") for name, values in kind.tables(case).items()}
    return Step(made, kind.in_tinygrad(case))


def outputs_of(returned: Any) -> list[Tensor]:
    """What a step gave, as a list."""
    return [returned] if isinstance(returned, Tensor) else list(returned)


class TinyClock:
    """For what runs on tinygrad's device `dev`."""

    def __init__(self, dev: str) -> None:
        from kcg.compat.programs import StepClock
        from kcg.kernel.kinds import ACTION_SPACE_VERSION
        from kcg.measure.device_info import detect
        from kcg.measure.workbench import CacheFlusher

        self.target, self.toolchain = detect(dev, ACTION_SPACE_VERSION)
        self.dev, self.sensors = dev, sensors_for(self.target)
        self._canary: Any = None
        self._flusher, self._clock = CacheFlusher(self.target), StepClock(self.target.device)

    def synchronize(self) -> None:
        from kcg.compat.programs import synchronize

        synchronize(self.target.device)

    def seconds(self, call: Call, state: str, host_s: float) -> float:
        from kcg.compat.programs import hidden_s, hiding

        def sample(busy_s: float) -> tuple[float, float]:
            if state == "cold":
                self._flusher.flush()
            return self._clock.sample(call, busy_s)

        self.synchronize()
        if state == "called":
            begin = time.perf_counter()
            call()
            self.synchronize()
            return time.perf_counter() - begin
        return hiding(sample, hidden_s(host_s))[0] if self.target.device == "CUDA" else sample(0.0)[0]

    def canary(self) -> tuple[float, str]:
        """As `kcg.measure.canary` has it, made once; the whole of its output is looked at every time."""
        import numpy as np

        from kcg.compat.programs import captured_at_once
        from kcg.measure.canary import CPU_BYTES, DEVICE_BYTES, SAMPLES

        if self._canary is None:
            size = (CPU_BYTES if self.target.device == "CPU" else DEVICE_BYTES) // 4
            values = np.arange(size, dtype=np.int32)
            source, jitted = Tensor(values).realize(), captured_at_once(lambda x: (x * 3 + 7).contiguous())
            jitted(x=source)
            self._canary = (lambda: jitted(x=source), values * 3 + 7)
        call, expected = self._canary
        host_s = host_seconds(self, call)
        taken = [self.seconds(call, "warm", host_s) for _ in range(2 * SAMPLES)][SAMPLES:]
        right = np.array_equal(call().numpy(), expected)
        return statistics.median(taken), "" if right else "its result is wrong"


if __name__ == "__main__":
    serve(make_clock, prepare)
