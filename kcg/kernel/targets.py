"""Targets that need no device: what kernels are scheduled, rendered and predicted for on a machine without that
hardware.

Those that the shipped predictors were trained on are as the device was read (`kcg.measure.device_info`); the figures of
others are the vendors' published ones.
"""

from __future__ import annotations

from dataclasses import replace

from kcg.errors import UnknownName, UsageError
from kcg.types import Target

GIB = 1024**3
MIB = 1024**2

TARGETS: dict[str, Target] = {
    "sm_80": Target(
        device="CUDA", renderer="CUDA", arch="sm_80", model="NVIDIA A100", cores=108, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=49152, memory_bytes=80 * GIB, cache_bytes=40 * MIB,
    ),
    "sm_90": Target(
        device="CUDA", renderer="CUDA", arch="sm_90", model="NVIDIA H200", cores=132, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=49152, memory_bytes=150109880320, cache_bytes=60 * MIB,
        tensor_cores=(
            "8x16x16 half->float", "8x16x16 __bf16->float", "8x16x16 half->half", "8x16x8 half->float",
            "8x16x8 half->half", "8x16x8 float->float", "8x16x32 float8_e4m3->float", "8x16x32 float8_e5m2->float",
        ),
        power_limit_w=700.0, clock_limit_mhz=1980.0, bandwidth_bytes_s=4814304000000.0,
    ),
    "gfx942": Target(
        device="AMD", renderer="HIP", arch="gfx942", model="AMD Instinct MI300X", cores=304, has_local=True,
        has_threads=False, max_threads=0, shared_bytes=65536, memory_bytes=192 * GIB, cache_bytes=256 * MIB,
    ),
    "Apple9": Target(
        device="METAL", renderer="METAL", arch="Apple9", model="Apple M3", cores=10, has_local=True, has_threads=False,
        max_threads=0, shared_bytes=32768, memory_bytes=16 * GIB, cache_bytes=8 * MIB,
    ),
    "x86_64": Target(
        device="CPU", renderer="CLANG", arch="x86_64,native", model="AMD EPYC", cores=2, has_local=False,
        has_threads=True, max_threads=2, shared_bytes=0, memory_bytes=32 * GIB, cache_bytes=32 * MIB,
    ),
}  # fmt: skip
"""By architecture."""


MODELS: dict[str, Target] = {
    "h100": replace(
        TARGETS["sm_90"], model="NVIDIA H100 80GB HBM3", memory_bytes=85017493504, cache_bytes=50 * MIB,
        bandwidth_bytes_s=3352320000000.0,
    ),
    "h200": TARGETS["sm_90"],
}  # fmt: skip
"""Of one architecture several, as the devices were read."""


def target_named(name: str) -> Target:
    """The target of that architecture or model. Raises UnknownName."""
    known = {**TARGETS, **MODELS}
    if name not in known:
        raise UnknownName("target", name, list(known))
    return known[name]


def target_asked(name: str) -> Target:
    """The same; of a GPU that part of its multiprocessors which the environment asks for. Raises UsageError where it
    has fewer, DeviceError where that is no number."""
    from kcg.compat.green import MULTIPROCESSORS, name_of_part, wanted  # which loads tinygrad

    whole = target_named(name)
    if whole.device != "CUDA" or (count := wanted()) is None or count == whole.cores:
        return whole
    if count > whole.cores:
        raise UsageError(f"{MULTIPROCESSORS}={count}: {name} has {whole.cores}")
    return replace(whole, model=name_of_part(whole.model, count, whole.cores), cores=count)
