"""A process that replays the step of one result whenever it is asked, by the kcg that its path finds first.

    PYTHONPATH=CHECKOUT python evaluation/tiles/step_of_result.py RESULT.json DEVICE

It says when it is ready and which programs are in place; for each number on its standard input it replays the step so
often, and prints the seconds of each replay. See `steps_in_turns`, which compares two revisions by it: it uses nothing
of kcg that only one of them has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SEED = 7


def main() -> None:
    """Answer one line for each line."""
    path, dev = sys.argv[1:]
    from kcg.compat.device import prepare

    prepare(dev)
    import kcg
    from kcg.compat.programs import StepClock, captured_at_once
    from kcg.compat.tiny import Context
    from kcg.handover.tuned import scheduling
    from kcg.kernel.generator import GENERATOR_VERSION
    from kcg.report.result import read_result
    from kcg.workloads.registry import spec_of

    result = read_result(Path(path))
    runnable = spec_of(result.workload).runnable
    assert runnable is not None, "a workload whose step can be run"
    with Context(BEAM=0, NOOPT=0):
        step = runnable(result.preset, SEED)
        jitted = captured_at_once(step.run)
        with scheduling(result, changed_only=True) as placed:
            jitted(**step.inputs)
        seconds_of = StepClock(dev.split(":")[0])
        answer(
            {"kcg": str(Path(kcg.__file__).parents[1]), "generator": GENERATOR_VERSION, "served": len(placed.served)}
        )
        for line in sys.stdin:
            answer([seconds_of(lambda: jitted(**step.inputs)) for _ in range(int(line))])


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
