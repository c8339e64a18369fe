"""What the hardware cannot beat: a bound from below on a kernel's time, against timings that are too good to be true.

Deliberately loose, since a measurement below it is rejected: all tensor cores busy with their fastest type, the memory
at the rate of its pins. Where the hardware does not tell its rates, there is no bound.
"""

from __future__ import annotations

from kcg.compat.tiny import AddrSpace, Ops, UOp
from kcg.kernel.contractions import contractions, least_bytes
from kcg.types import CacheState, Target

TENSOR_OPERATIONS = {"sm_80": 4096, "sm_86": 2048, "sm_89": 4096, "sm_90": 8192}
"""Dense operations of one multiprocessor in a cycle, with the fastest type (NVIDIA's architecture white papers)."""
DIVISIONS = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
MOST_TENSOR_OPERATIONS = 32768  # of an architecture that is not listed


def floor_s(ast: UOp, target: Target, cache_state: CacheState = CacheState.COLD) -> float:
    """Seconds that a kernel takes at least on `target`; 0 where nothing is known."""
    if target.clock_limit_mhz is None or not target.cores or target.device not in ("CUDA", "NV"):
        return 0.0
    cycles = TENSOR_OPERATIONS.get(target.arch, MOST_TENSOR_OPERATIONS)
    if _selects(ast):
        return 0.0
    arithmetic_s = sum(c.needed for c in contractions(ast)) / (target.cores * cycles * target.clock_limit_mhz * 1e6)
    # what the cache can keep is not written yet when the kernel ends, nor read again when it is warm
    kept = target.cache_bytes * (1 if cache_state == CacheState.COLD else 2)
    moved = max(0, least_bytes(ast) - kept)
    memory_s = moved / target.bandwidth_bytes_s if target.bandwidth_bytes_s else 0.0
    return max(arithmetic_s, memory_s)


def _selects(ast: UOp) -> bool:
    """Whether a kernel may do less than its shapes say: a comparison skips work and loads, a variable is smaller than
    its largest value, and a division in an index reads the same elements again."""
    nodes = list(ast.toposort())
    if any(node.op in (Ops.WHERE, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ) for node in nodes):
        return True
    if any(node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.ALU for node in nodes):
        return True
    indices = {part for node in nodes if node.op is Ops.INDEX for s in node.src[1:] for part in s.toposort()}
    return any(part.op in DIVISIONS for part in indices)
