"""A step as a tinygrad program under TinyJit, timed by its own clock: it takes the model from kcg, and nothing else.

    DEV=CUDA BEAM=2 python -m evaluation.flux.plain_step CASE 5

CASE is one of `evaluation/pytorch/cases.py`, such as '{"kind": "family", "name": "flux", "preset": "1024"}'; the second
argument is how often the captured step is replayed. Prints one line of JSON. `handover.py` runs it, unchanged, with
what kcg wrote into tinygrad's cache.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time


def main() -> None:
    """Build the step, capture it, replay it, and say how long that took and what came out."""
    begin = time.perf_counter()
    from tinygrad import Device

    from evaluation.pytorch.in_tinygrad import build, outputs_of
    from evaluation.pytorch.kind import values_of
    from kcg.compat.capture import is_hooked
    from kcg.compat.programs import captured_at_once
    from kcg.compat.tiny import Context

    with Context(BEAM=0):  # the kernels that draw random weights are no part of the step
        step = build(json.loads(sys.argv[1]))
    Device[Device.DEFAULT].synchronize()
    built_s = time.perf_counter() - begin
    jitted = captured_at_once(step.run)  # a first run that is not captured may need more memory than there is
    outputs = outputs_of(jitted(**step.inputs))
    Device[Device.DEFAULT].synchronize()
    report = {"built_s": built_s, "ready_s": time.perf_counter() - begin, "seconds": []}
    for _ in range(int(sys.argv[2])):
        begin = time.perf_counter()
        outputs = outputs_of(jitted(**step.inputs))
        Device[Device.DEFAULT].synchronize()
        report["seconds"].append(time.perf_counter() - begin)
    with Context(BEAM=0):
        arrays = [output.float().numpy() for output in outputs]
    report["output"] = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    report["values"] = values_of(arrays[0])
    report["unhooked"] = not is_hooked()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
