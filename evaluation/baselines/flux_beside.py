"""kcg's kernels beside the parts of Flux in PyTorch: what those that make up a part take together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kcg.workloads.flux import PRESETS

from .cases import ITEM_BYTES
from .figures import rounded, speed
from .flux_kernels import Timed
from .flux_part_of import part_of

if TYPE_CHECKING:
    from pathlib import Path

    from .rows import Rows

Row = dict[str, Any]


def beside(kernels: Sequence[Timed], preset: str) -> dict[str, Row]:
    """Part of PyTorch's -> seconds of one call with kcg's schedules and with tinygrad's own, and its kernels.

    The times are those of the run's own finals: kernels alone, cold, not in turns with PyTorch.
    """
    from .flux_parts import parts

    config = PRESETS[preset]
    known, found = parts(config), dict[str, Row]()
    for kernel in kernels:
        name = part_of(kernel.ast, config)
        if name in known:
            told = found.setdefault(name, {"cold_s": 0.0, "hand_coded_s": 0.0, "kernels": [], "status": "ok"})
            told["cold_s"] += kernel.kcg_s / known[name].calls
            told["hand_coded_s"] += kernel.hand_coded_s / known[name].calls
            told["kernels"].append(f"{kernel.calls} × {kernel.name}")
    for name, told in found.items():
        moved = known[name].values * ITEM_BYTES[config.dtype]
        told.update(cold_s=rounded(told["cold_s"]), hand_coded_s=rounded(told["hand_coded_s"]))
        told.update(speed(told["cold_s"], operations=known[name].operations, bytes=moved))
    return found


def put_beside(rows: Rows, kernels: Sequence[Timed], preset: str, document: Path | None = None) -> None:
    """Put kcg's kernels into the rows of the parts that are there; and where the time of a step is, of which `document`
    gets a table."""
    from evaluation.documents import write_into

    from .flux_gap import as_row, gaps
    from .flux_gap_text import markdown

    for name, told in beside(kernels, preset).items():
        if (key := f"region {name}") in rows.rows:
            rows.rows[key]["contenders"]["kcg"] = told
    found = gaps(rows.rows, kernels, preset)
    rows.add("where the time is", as_row(found))
    if document is not None:
        write_into(document, {f"flux-gap-{preset}": markdown(found)})
