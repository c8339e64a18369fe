"""One case of the comparisons as a tinygrad program, for kcg to record and for anyone to look at.

    python evaluation/run_case.py '{"kind": "softmax", "rows": 64, "width": 96, "dtype": "float32"}'

The cases are those of `baselines/cases.py`; the comparisons themselves are the scripts `rope.py`, `sum_levels.py` and
`layers_torch.py` beside this one.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Build the case that the argument describes, and run it once."""
    from tinygrad import Tensor

    from evaluation.pytorch.in_tinygrad import build, outputs_of

    step = build(json.loads(sys.argv[1]))
    Tensor.realize(*outputs_of(step.run(**step.inputs)))


if __name__ == "__main__":
    main()
