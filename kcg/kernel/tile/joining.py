"""What one program in the place of several kernels is expected to save, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping

from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.regions import Candidate, Form
from kcg.kernel.tile.device import figures_of
from kcg.kernel.tile.gemm import idle_share
from kcg.types import Region, Target

BETWEEN_S = 1.5e-6
"""Between two launches of one program, which a region of fewer launches spares; not the floor of an event pair, which a
program of several launches pays once too."""

EDGES_S = 6e-6
"""Of a launch that streams a matrix: until all multiprocessors wait for memory together, and while the last end. On
an H100 113 MB took 48.1 µs and 57 MB 30.9, so 13.7 µs beside the bytes, of which the pair of events takes half."""


def expected_saving_s(candidate: Candidate, alone_s: Mapping[str, float], target: Target) -> float:
    """What one occurrence is expected to save, before anything is measured: the bytes that are no longer moved,
    launches with their starts and ends, and idle last waves, less what is computed again. No region is expected to be
    faster than its own bytes are moved."""
    figures, kernels = figures_of(target), candidate.kernels
    parts_s = sum(alone_s.get(kernel.id, 0.0) for kernel in kernels)
    again_s = candidate.again_operations / (figures.plain_ops * max(1, target.cores))
    saving_s = candidate.saved_bytes / figures.memory_bytes + BETWEEN_S * (len(kernels) - 1) - again_s
    saving_s += _idle_s(candidate, alone_s, target)
    saving_s += EDGES_S * (len(kernels) - 1) if candidate.form == Form.VECTOR else 0.0
    return min(saving_s, parts_s - candidate.bytes / figures.memory_bytes)


def _idle_s(candidate: Candidate, alone_s: Mapping[str, float], target: Target) -> float:
    """For how long the last waves of several contractions leave multiprocessors idle, where tiles of all of them are
    programs of one launch: others fill these then."""
    if candidate.form not in (Form.EPILOGUE, Form.SHARED, Form.BESIDE):
        return 0.0
    read = [(kernel.id, read_kernel(Region((kernel,)))) for kernel in candidate.region.kernels]
    idle = [idle_share(k, target) * alone_s.get(name, 0.0) for name, k in read if k.contraction is not None]
    return sum(idle) if len(idle) > 1 else 0.0
