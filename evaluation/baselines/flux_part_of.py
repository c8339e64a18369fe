"""What a kernel of Flux computes, by its contractions and its buffers."""

from __future__ import annotations

import math
from collections import Counter

from kcg.compat.tiny import Ops, UOp
from kcg.kernel.contractions import contractions
from kcg.workloads.flux import FluxConfig

JOINED = "text and image joined"
ENDS = "embedders, rotation tables, last layer"


def part_of(ast: UOp, config: FluxConfig) -> str:
    """The part that a kernel belongs to: one of `flux_parts`, or `JOINED` or `ENDS`, which have no part there.

    Attention is every kernel that reads or writes scores, (heads, tokens, tokens). A matmul is known by its sizes; the
    last one of a single block is two kernels, over attention's and over the MLP's share of its inputs.
    """
    heads, both, hidden, mlp = config.heads, config.tokens, config.hidden, config.mlp_hidden
    by_slot = {u.arg.slot: u.max_numel() for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0}
    sizes = [by_slot[slot] for slot in sorted(by_slot)]  # the first is what the kernel writes
    if any(size == heads * both * both for size in sizes):
        return f"attention {heads}x{both}x{config.head_dim}"
    joined = f"linear_gated {both}x{hidden}x{hidden + mlp}"
    known = [*_linears(config).items(), *((joined, (both, hidden, inputs)) for inputs in (hidden, mlp))]
    for found in contractions(ast):
        of_size = [
            (name, rows, outputs, inputs)
            for name, (rows, outputs, inputs) in known
            if (found.operations, math.prod(found.reduce_shape)) == (2 * rows * outputs * inputs, inputs)
        ]
        # at small sizes 256x256 and 64x1024 outputs are as many: then the buffers tell
        for name, rows, outputs, inputs in of_size if len(of_size) > 1 else ():
            if not Counter((rows * inputs, rows * outputs)) - Counter(sizes):
                return name
        if of_size:
            return of_size[0][0]
    return _memory_part(sizes[0], set(sizes[1:]), config)


def _memory_part(written: int, read: set[int], config: FluxConfig) -> str:
    """The part of a kernel that is bound by memory, told by how many values it writes and reads of each buffer."""
    text, image, both, hidden = config.text_tokens, config.image_tokens, config.tokens, config.hidden
    for rows in (image, text, both):  # mean, then deviation, then both and a modulation's shift and scale applied
        applied = written == rows * hidden and rows in read
        if (written == rows or applied) and {rows * hidden} <= read <= {rows * hidden, rows, 6 * hidden, 3 * hidden}:
            return f"modulated_norm {rows}x{hidden}"
    inverse = both * 2 * config.heads  # of the deviation of every head's query and key
    projected = ({both * 3 * hidden}, {text * 3 * hidden, image * 3 * hidden})
    if (written == inverse and read in projected) or (written == both * hidden and inverse in read):
        return f"norm_rope {both}x{config.heads}x{config.head_dim}"
    if written == both * hidden and read in ({text * hidden, image * hidden}, projected[1]):
        return JOINED
    return ENDS


def _linears(config: FluxConfig) -> dict[str, tuple[int, int, int]]:
    """Name -> rows, outputs, inputs of every matmul with weights but the joined one."""
    from .flux_parts import parts

    found = {}
    for name in parts(config):
        if name.startswith("linear"):
            rows, outputs, inputs = (int(n) for n in name.partition(" ")[2].split("x"))
            found[name] = (rows, outputs, inputs)
    return found
