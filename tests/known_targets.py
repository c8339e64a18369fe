"""Targets that need no device: what kernels are scheduled and rendered for on a machine without that hardware.

The figures are the vendors' published ones; `kcg.measure.device_info` reads a target that is measured on off the
device.
"""

from __future__ import annotations

from kcg.types import Target

GIB = 1024**3
MIB = 1024**2

KNOWN_TARGETS: dict[str, Target] = {
    "sm_80": Target(
        device="CUDA", renderer="CUDA", arch="sm_80", model="NVIDIA A100", cores=108, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=49152, memory_bytes=80 * GIB, cache_bytes=40 * MIB,
    ),
    "sm_90": Target(
        device="CUDA", renderer="CUDA", arch="sm_90", model="NVIDIA H200", cores=132, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=49152, memory_bytes=141 * GIB, cache_bytes=60 * MIB,
    ),
    "gfx942": Target(
        device="AMD", renderer="HIP", arch="gfx942", model="AMD Instinct MI300X", cores=304, has_local=True,
        has_threads=False, max_threads=0, shared_bytes=65536, memory_bytes=192 * GIB, cache_bytes=256 * MIB,
    ),
    "Apple9": Target(
        device="METAL", renderer="METAL", arch="Apple9", model="Apple M3", cores=10, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=32768, memory_bytes=16 * GIB, cache_bytes=8 * MIB,
    ),
}  # fmt: skip
"""Targets by architecture, for planning only."""

X86 = Target(
    device="CPU", renderer="X86", arch="x86_64,native", model="test", cores=8, has_local=False, has_threads=True,
    max_threads=8, shared_bytes=0, memory_bytes=1 << 30, cache_bytes=1 << 20,
)  # fmt: skip
"""Eight cores of any machine, by tinygrad's own assembler."""
