"""kcg's kernels beside the parts of Flux in PyTorch: which kernels of a result make up which part."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from kcg.compat.tiny import Ops, UOp
from kcg.errors import UsageError
from kcg.kernel.contractions import contractions
from kcg.workloads.flux import PRESETS, FluxConfig

from .cases import ITEM_BYTES
from .figures import rounded, speed

if TYPE_CHECKING:
    from pathlib import Path

    from kcg.types import Result

    from .rows import Rows

Row = dict[str, Any]


def part_of(ast: UOp, config: FluxConfig) -> str:
    """The matmul or the attention that a kernel belongs to, as `flux_parts` names it; empty for anything else.

    Attention is every kernel that reads or writes scores, (heads, tokens, tokens). A matmul is known by its sizes; the
    last one of a single block is two kernels, over attention's and over the MLP's share of its inputs.
    """
    heads, both, hidden, mlp = config.heads, config.tokens, config.hidden, config.mlp_hidden
    sizes = [u.max_numel() for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0]
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
    return ""


def _linears(config: FluxConfig) -> dict[str, tuple[int, int, int]]:
    """Name -> rows, outputs, inputs of every matmul with weights but the joined one."""
    from .flux_parts import parts

    found = {}
    for name in parts(config):
        call, _, sizes = name.partition(" ")
        if call.startswith("linear"):
            rows, outputs, inputs = (int(n) for n in sizes.split("x"))
            found[name] = (rows, outputs, inputs)
    return found


def beside(result: Result, preset: str) -> dict[str, Row]:
    """Part -> seconds of one call with kcg's schedules and with tinygrad's own, and the kernels that make it up.

    The times are those of the result's own finals: kernels alone, cold, not in turns with PyTorch.
    """
    from kcg.kernel.codec import ast_of

    from .flux_parts import parts

    config = PRESETS[preset]
    calls, found = {name: part.calls for name, part in parts(config).items()}, dict[str, Row]()
    for row in result.regions:
        name = part_of(ast_of(row.region.kernel), config)
        if name:
            told = found.setdefault(name, {"cold_s": 0.0, "hand_coded_s": 0.0, "kernels": [], "status": "ok"})
            told["cold_s"] += row.after_s / calls[name]
            told["hand_coded_s"] += row.before_s / calls[name]
            told["kernels"].append(f"{row.calls} × {row.chosen.name}")
    for name, told in found.items():
        part, moved = parts(config)[name], parts(config)[name].values * ITEM_BYTES[config.dtype]
        told.update(cold_s=rounded(told["cold_s"]), hand_coded_s=rounded(told["hand_coded_s"]))
        told.update(speed(told["cold_s"], operations=part.operations, bytes=moved))
    return found


def put_beside(rows: Rows, path: Path, preset: str, device: str, document: Path | None = None) -> None:
    """Put the kernels of a RESULT.json into the rows of the parts that are there; and where the time of a step is, of
    which `document` gets a table. Raises UsageError where the result is of something else."""
    from kcg.optimize.result import read_result
    from kcg.predictor.figures_text import write_into

    from .flux_gap import as_row, gaps, markdown

    result = read_result(path)
    made = (result.workload, result.preset, result.target.device)
    if made != ("flux", preset, device.partition(":")[0]):
        raise UsageError(f"{path} is of {made[0]} {made[1]} on {made[2]}: give the result of flux {preset} on {device}")
    for name, told in beside(result, preset).items():
        if (key := f"region {name}") in rows.rows:
            rows.rows[key]["contenders"]["kcg"] = told
    found = gaps(rows.rows, result)
    rows.add("where the time is", as_row(found))
    if document is not None:
        write_into(document, {f"flux-gap-{preset}": markdown(found)})
