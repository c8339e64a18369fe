"""What the hardware cannot beat: a bound from below on a kernel's time, against timings that are too good to be true.

Deliberately loose, since a measurement below it is rejected: all tensor cores busy with their fastest type, the memory
at the rate of its pins, and only work and traffic of which `kcg.kernel.contractions` is certain: what a condition, a
loaded index or a symbolic size may spare counts nothing. Where the hardware does not tell its rates, there is no bound.
"""

from __future__ import annotations

from kcg.compat.tiny import UOp
from kcg.kernel.contractions import certain_bytes, certain_operations
from kcg.types import CacheState, Target

TENSOR_OPERATIONS = {"sm_80": 4096, "sm_86": 2048, "sm_89": 4096, "sm_90": 8192}
"""Dense operations of one multiprocessor in a cycle, with the fastest type (NVIDIA's architecture white papers)."""
MOST_TENSOR_OPERATIONS = 32768  # of an architecture that is not listed


def floor_s(ast: UOp, target: Target, cache_state: CacheState = CacheState.COLD) -> float:
    """Seconds that a kernel takes at least on `target`; 0 where nothing is known."""
    if target.clock_limit_mhz is None or not target.cores or target.device not in ("CUDA", "NV"):
        return 0.0
    cycles = TENSOR_OPERATIONS.get(target.arch, MOST_TENSOR_OPERATIONS)
    arithmetic_s = certain_operations(ast) / (target.cores * cycles * target.clock_limit_mhz * 1e6)
    # what the cache can keep is not written yet when the kernel ends, nor read again when it is warm
    kept = target.cache_bytes * (1 if cache_state == CacheState.COLD else 2)
    moved = max(0, certain_bytes(ast) - kept)
    memory_s = moved / target.bandwidth_bytes_s if target.bandwidth_bytes_s else 0.0
    return max(arithmetic_s, memory_s)
