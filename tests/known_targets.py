"""Targets that need no device: what kernels are scheduled and rendered for on a machine without that hardware.

The figures are the vendors' published ones; `kcg.measure.device_info` reads a target that is measured on off the
device.
"""

from __future__ import annotations

from dataclasses import replace

from kcg.kernel.targets import GIB, TARGETS
from kcg.types import Target

KNOWN_TARGETS: dict[str, Target] = {
    **{name: TARGETS[name] for name in ("sm_80", "gfx942", "Apple9")},
    # as published: less is known of it than of the one that was measured on
    "sm_90": replace(
        TARGETS["sm_90"], memory_bytes=141 * GIB, tensor_cores=(), power_limit_w=None, clock_limit_mhz=None,
        bandwidth_bytes_s=None,
    ),
}  # fmt: skip
"""Targets by architecture, for planning only."""

X86 = Target(
    device="CPU", renderer="X86", arch="x86_64,native", model="test", cores=8, has_local=False, has_threads=True,
    max_threads=8, shared_bytes=0, memory_bytes=1 << 30, cache_bytes=1 << 20,
)  # fmt: skip
"""Eight cores of any machine, by tinygrad's own assembler."""
