"""The table of a campaign as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .method_names import BUDGET, EAGER, KCG, TINY_BEAM, TINY_MCTS

PUBLISHED_MS = {
    "unoptimised": 201654.093, "hand-coded, without tensor cores": 7989.641,
    "tensor cores where they can be, unoptimised elsewhere": 6317.517, "MCTS, 150 each": 825.108, "BEAM=20": 594.451,
    "the best of these five for each kernel": 592.40,
}  # fmt: skip
"""flux-tinygrad-opt, README.md and utils.py: sums of 1,423 kernels, timed one by one on an NVIDIA H100 with tinygrad of
2024, of Flux.1-schnell on two pictures, each with 1,024 image and 256 text tokens."""
ONE_RUN = (
    "One run of each method: an interval says how well its schedules are timed, not how far another run's would be. "
    "The first column compares on the kernels for which the method's choice is right; in the total, tinygrad's own "
    "schedule stands for the others."
)
PUBLISHED_PRESET = "768"  # which has as many tokens


def markdown(rows: dict[str, Any], entry: dict[str, Any], preset: str) -> list[str]:
    """The table, the slowest first: by the comparison on the same kernels, then by the total. Then PyTorch's whole
    steps, and the figures that others published."""
    heads = ["", "over kcg, same kernels", "total", "95 % interval", "TFLOP/s", "measured", "from cold"]
    lines = [ONE_RUN, "", cells(heads), "|---|" + "--:|" * (len(heads) - 1)]
    for method, row in sorted(rows.items(), key=_slowest_first):
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
        columns = [
            described(method) + missing, over, f"{total} ms", f"{low}–{high}" if low != high else "",
            f"{row['gflops'] / 1e3:.3g}", measured, spent,
        ]  # fmt: skip
        lines.append(cells(columns))
    beside = {
        f"PyTorch, {mode if mode == EAGER else f'torch.compile, {mode}'}: the whole step": f"{1e3 * seconds:.1f}"
        for mode, seconds in sorted(entry["torch_s"].items(), key=lambda step: -step[1])
    }
    if preset == PUBLISHED_PRESET:
        beside |= {f"published, H100: {what}": f"{known_ms:,.2f}" for what, known_ms in PUBLISHED_MS.items()}
    lines += [cells([what, "", f"{known} ms", *[""] * (len(heads) - 3)]) for what, known in beside.items()]
    return lines


def _slowest_first(item: tuple[str, dict[str, Any]]) -> tuple[float, float]:
    """On the kernels on which a method and kcg's best run are both right; a total also holds those where it is not."""
    row = item[1]
    return -row["over_kcg"][0] if row["over_kcg"] else -float("inf"), -row["total_s"][0]


def cells(words: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(words)} |"


def described(method: str) -> str:
    """A method in words."""
    name, _, of = method.partition(":")
    words = {
        "hand-coded": "hand-coded, tensor cores", "full-beam": f"BEAM={of} over kcg's actions",
        KCG: f"kcg, {of.replace(':', ' in ')}",
        TINY_BEAM: f"BEAM={of}", "random": f"random, {of or BUDGET} each",
        TINY_MCTS: f"tinygrad's MCTS, {of or BUDGET} each", "raw": "unoptimised (one sample)",
        "no-tensor-cores": "hand-coded, without tensor cores",
    }  # fmt: skip
    return words.get(name, method)
