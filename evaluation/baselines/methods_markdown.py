"""The table of a campaign as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .method_names import BUDGET, KCG, TINY_BEAM

PUBLISHED_MS = {
    "raw": 201654, "no-tensor-cores": 7990, "hand-coded": 6318, "tinygrad-beam": 594.45, "tinygrad-mcts": 825.1,
}  # fmt: skip
"""flux-tinygrad-opt, on an NVIDIA H100 with tinygrad of 2024, 2,560 tokens; the best of all there is 592.40 ms."""
PUBLISHED_PRESET = "768"  # which has as many tokens


def markdown(rows: dict[str, Any], entry: dict[str, Any], preset: str) -> list[str]:
    """The table, the slowest first; PyTorch and the published figures beside it."""
    heads = ["", "total", "95 % interval", "TFLOP/s", "measured", "from cold", "over kcg, same kernels"]
    if preset == PUBLISHED_PRESET:
        heads.append("published, H100")
    lines = [_cells(heads), "|---|" + "--:|" * (len(heads) - 1)]
    for method, row in sorted(rows.items(), key=lambda item: -item[1]["total_s"][0]):
        total, low, high = (f"{1e3 * s:,.1f}" for s in row["total_s"])
        notes = [
            f"{row[key]} {words}"
            for key, words in (("wrong", "wrong"), ("failed", "failed"), ("not_tried", "not tried"))
            if row.get(key)
        ]
        missing = f" ({', '.join(notes)}: hand-coded there)" if notes else ""
        over = " ({1:.3f}–{2:.3f})".format(*row["over_kcg"]) if row["over_kcg"] else ""
        over = f"{row['over_kcg'][0]:.3f}×{over}" if over else ""
        spent = f"{row['wall_s']:,.0f} s" if row.get("wall_s") else ""
        measured = str(row.get("measurements") or "")
        cells = [
            described(method) + missing, f"{total} ms", f"{low}–{high}" if low != high else "",
            f"{row['gflops'] / 1e3:.3g}", measured, spent, over,
        ]  # fmt: skip
        known_ms = PUBLISHED_MS.get(method, PUBLISHED_MS.get(method.partition(":")[0]))
        lines.append(_cells([*cells, f"{known_ms:,} ms" if known_ms else ""][: len(heads)]))
    for mode, seconds in entry["torch_s"].items():
        lines.append(
            _cells([f"torch.compile, {mode}: the whole step", f"{1e3 * seconds:.1f} ms", *[""] * (len(heads) - 2)])
        )
    return lines


def _cells(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def described(method: str) -> str:
    """A method in words."""
    name, _, of = method.partition(":")
    words = {
        "hand-coded": "hand-coded, tensor cores", "full-beam": f"BEAM={of} over kcg's actions",
        KCG: f"kcg, {of.replace(':', ' in ')}",
        TINY_BEAM: f"BEAM={of}", "random": f"random, {of or BUDGET} each",
        "tinygrad-mcts": f"tinygrad's MCTS, {of or BUDGET} each", "raw": "unoptimised (one sample)",
        "no-tensor-cores": "hand-coded, without tensor cores",
    }  # fmt: skip
    return words.get(name, method)
