"""A process that runs one contender in tinygrad: hand-coded, BEAM, kcg's schedules, or a kernel written by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .serving import Prepared, serve


def prepare(case: dict[str, Any]) -> Prepared:
    """A whole step under `TinyJit`, as a program would run it.

    `how` is `hand-coded`; `beam`, with its width in `beam`; `kcg`, with the path of a `result` and the `kernels` it
    had, if any; or the name of a hand-written kernel of `sum_kernels`. What is captured inside keeps its schedules.
    """
    from kcg.compat.jit import captured_at_once
    from kcg.compat.tiny import Context, Ops
    from kcg.errors import KcgError

    from .tiny_cases import build, outputs_of

    how = case.get("how", "hand-coded")
    step = build(case)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Context(BEAM=case["beam"] if how == "beam" else 0, NOOPT=0))
        run: Any = step.run
        if how == "kcg":
            from kcg.optimize.deploy import scheduling
            from kcg.optimize.result import read_result

            from .tuning import FOLDER

            files = [FOLDER / case["kernels"]] if "kernels" in case else []
            result = read_result(Path(case["result"]))
            served = stack.enter_context(scheduling(result, changed_only=True, kernels=files))
        elif how not in ("hand-coded", "beam"):
            from .sum_kernels import hand_written, run_of

            if (direct := hand_written(how, step)) is not None:
                return direct
            run = run_of(how, step)
        jitted = captured_at_once(run)
        jitted(**step.inputs)
        facts = {"kernels_changed": len(served)} if how == "kcg" else {}
        if "kernels" in case:
            found = {node.arg.name for node in jitted.captured.linear.toposort() if node.op is Ops.PROGRAM}
            if lost := {row.chosen.name for row in result.regions} - found:
                raise KcgError(f"{', '.join(lost)} was not put into the program")

    def values() -> Sequence[float]:
        from .cases import values_of

        first = outputs_of(jitted(**step.inputs))[0]
        return values_of(first.float().numpy())

    return Prepared(lambda: jitted(**step.inputs), values, facts)


def make_clock(job: dict[str, Any]) -> Any:
    """Open the device."""
    from kcg.compat.device import prepare as open_device

    from .tiny_clock import TinyClock

    open_device(job["dev"])
    return TinyClock(job["dev"])


if __name__ == "__main__":
    serve(make_clock, prepare)
