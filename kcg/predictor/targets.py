"""Targets by name, for whoever predicts or plans on a machine that has none of them.

They are targets on which the shipped predictors were trained, exactly as `kcg.measure.device_info` read them off the
devices: a predictor knows a target by its fingerprint.
"""

from __future__ import annotations

from typing import Final

from kcg.errors import UnknownName
from kcg.types import Target

GIB: Final = 1 << 30

TARGETS: Final[dict[str, Target]] = {
    "sm_90": Target(
        device="CUDA", renderer="CUDA", arch="sm_90", model="NVIDIA H200", cores=132, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=48 << 10, memory_bytes=150109880320, cache_bytes=60 << 20,
        bandwidth_bytes_s=4.814304e12, clock_limit_mhz=1980.0, power_limit_w=700.0,
        tensor_cores=(
            "8x16x16 half->float", "8x16x16 __bf16->float", "8x16x16 half->half", "8x16x8 half->float",
            "8x16x8 half->half", "8x16x8 float->float", "8x16x32 float8_e4m3->float", "8x16x32 float8_e5m2->float",
        ),
    ),
    "x86_64": Target(
        device="CPU", renderer="CLANG", arch="x86_64,native", model="AMD EPYC", cores=2, has_local=False,
        has_threads=True, max_threads=2, shared_bytes=0, memory_bytes=32 * GIB, cache_bytes=32 << 20,
    ),
}  # fmt: skip
"""By architecture: an H200, and two cores of an EPYC under clang."""


def target_of(name: str) -> Target:
    """The target of that name. Raises UnknownName."""
    if name not in TARGETS:
        raise UnknownName("target", name, list(TARGETS))
    return TARGETS[name]
