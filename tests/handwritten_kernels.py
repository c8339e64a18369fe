"""One kernel to replace by hand, and what its replacements are registered with."""

from __future__ import annotations

from kcg.kernels import HandwrittenKernel, collecting, handwritten
from tests.kernels import example_region
from tests.known_targets import KNOWN_TARGETS

SM_90 = KNOWN_TARGETS["sm_90"]
ROWS, COLUMNS, INNER = 24, 32, 40
MATMUL = example_region("matmul_f32")


def kernel(function: object, kind: str = "uop", **settings: object) -> HandwrittenKernel:
    """A kernel as its decorator registers it."""
    with collecting() as found:
        getattr(handwritten, kind)(matches=lambda view: True, **settings)(function)
    return found[0]
