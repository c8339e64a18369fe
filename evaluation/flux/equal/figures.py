"""What blocks of steps in turns say: times, joules, and how the one stands to the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evaluation.predictor.intervals import ratio_interval
from evaluation.rows import Row, rounded

KCG: Final = "kcg"
COMPILED: Final = ("default", "max-autotune-no-cudagraphs", "recipe")
"""Modes of torch.compile, and the public recipe by it."""
AGREES: Final = 1.1
"""So many times the least error of PyTorch's contenders against float32 kcg's may be."""


def order_of(names: Sequence[str], turn: int) -> list[str]:
    """Who runs in this turn, in order: there and back (ABBA), so that a drift hits all alike."""
    return [*names] if turn % 2 == 0 else [*reversed(names)]


def step_s(blocks: Sequence[Row]) -> float:
    """What a step took, the mean of all of them."""
    seconds = [s for block in blocks for s in block["seconds"]]
    return sum(seconds) / len(seconds)


def mean_s(block: Row) -> float:
    """What a step of a block took."""
    return float(sum(block["seconds"]) / len(block["seconds"]))


def joules(blocks: Sequence[Row]) -> float | None:
    """What a step used; None where the GPU does not tell."""
    used = [block["joules"] for block in blocks]
    return None if any(one is None for one in used) else sum(used) / len(used)


def share(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The share of one's sum of the other's, turn by turn in pairs, and the ends of its 95 % interval: of a bootstrap
    over turns."""
    return sum(ours) / sum(theirs), *ratio_interval([*zip(ours, theirs, strict=True)])


def error_of(output: Path, reference: Path) -> float:
    """The distance of an output from another one, of its size; infinite where one is not finite."""
    found, wanted = np.load(output).astype(np.float64), np.load(reference).astype(np.float64)
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def compared(row: Row) -> dict[str, Any]:
    """What is said of one GPU: of each contender its times, and of kcg its share of each other's in the turns that both
    had."""
    contenders: Mapping[str, Row] = row["contenders"]
    said: dict[str, Any] = {}
    for name, one in contenders.items():
        if blocks := one.get("blocks"):
            used = joules(blocks)
            said[name] = {
                "step_s": rounded(step_s(blocks)),
                "joules": None if used is None else rounded(used),
                "steps": sum(len(block["seconds"]) for block in blocks),
            }
    if KCG not in said:
        return said
    ours = {block["turn"]: block for block in contenders[KCG]["blocks"]}
    for name in said:
        theirs = {block["turn"]: block for block in contenders[name]["blocks"]}
        turns = [turn for turn in ours if turn in theirs]
        if name == KCG or len(turns) < 2:
            continue
        pairs = [(ours[turn], theirs[turn]) for turn in turns]
        said[name]["kcg_vs"] = [
            rounded(one) for one in share(*zip(*(map(mean_s, pair) for pair in pairs), strict=True))
        ]
        if said[name]["joules"] and said[KCG]["joules"]:
            used_both = [[float(block["joules"]) for block in side] for side in zip(*pairs, strict=True)]
            said[name]["kcg_joules_vs"] = [rounded(one) for one in share(*used_both)]
    return said


def _agrees(errors: Mapping[str, float | None]) -> bool:
    """Whether kcg's output is as near to that of float32 as the nearest of PyTorch's."""
    theirs = [one for name in ("eager", *COMPILED) if (one := errors.get(name)) is not None]
    ours = errors.get(KCG)
    return ours is not None and bool(theirs) and ours <= AGREES * min(theirs)


def headline_of(preset: str, rows: Mapping[str, Row]) -> dict[str, Any]:
    """The worst of all GPUs; nothing where no contender of PyTorch's stands beside kcg."""
    found = [(row, compared(row)) for row in rows.values()]
    found = [(row, said) for row, said in found if KCG in said and any("kcg_vs" in one for one in said.values())]
    if not found:
        return {}
    made: dict[str, Any] = {f"gpus_{preset}": len(found)}

    def worst(key: str, names: Sequence[str]) -> float | None:
        """kcg's share of the best of these, on the GPU where it is largest."""
        each = [[said[name][key][0] for name in names if key in said.get(name, {})] for _, said in found]
        return None if not all(each) else max(max(one) for one in each)

    everybody = [name for name in found[0][1] if name != KCG and name != "tinygrad"]
    made[f"step_vs_compile_{preset}"] = worst("kcg_vs", COMPILED)
    made[f"step_vs_fastest_{preset}"] = worst("kcg_vs", everybody)
    made[f"joules_vs_compile_{preset}"] = worst("kcg_joules_vs", COMPILED)
    each_error = ({name: one.get("error") for name, one in row["contenders"].items()} for row, _ in found)
    errors = [one for one in each_error if any(error is not None for error in one.values())]  # rows may have none
    made[f"outputs_agree_{preset}"] = bool(errors) and all(map(_agrees, errors))
    ready = [{name: one.get("ready_s") for name, one in row["contenders"].items()} for row, _ in found]
    for key, name in ((f"ready_s_{preset}", KCG), (f"compile_ready_s_{preset}", "default")):
        if all(one.get(name) for one in ready):
            made[key] = rounded(max(one[name] for one in ready))
    return {key: value for key, value in made.items() if value is not None}


def overall_of(headline: Mapping[str, Any]) -> dict[str, Any]:
    """What both sizes come to: the fewest GPUs, the longest until a step is ready, and whether all outputs agree."""
    made: dict[str, Any] = {}
    for key, worst in (("gpus", min), ("ready_s", max), ("compile_ready_s", min), ("outputs_agree", all)):
        if values := [headline[name] for name in (f"{key}_1024", f"{key}_768") if name in headline]:
            made[key] = worst(values)
    return made
