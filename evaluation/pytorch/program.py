"""One case of the comparisons as a tinygrad program, for kcg to record and for anyone to look at.

    python -m evaluation.pytorch.program '{"kind": "softmax", "rows": 64, "width": 96, "dtype": "float32"}'

The cases are those of `cases.py`; `compare.py` is the comparison itself.
"""

from __future__ import annotations

import json
import sys

from tinygrad import Tensor

from evaluation.pytorch.in_tinygrad import build, outputs_of


def main() -> list[Tensor]:
    """Build the case that the argument describes, and run it once."""
    step = build(json.loads(sys.argv[1]))
    outputs = outputs_of(step.run(**step.inputs))
    Tensor.realize(*outputs)
    return outputs


if __name__ == "__main__":
    OUTPUTS = main()  # what a program leaves is what kcg compares
