"""One row of a comparison: kcg tuned on the case, if it takes part, then all contenders in turns, with their rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kcg.errors import KcgError

from .cases import ITEM_BYTES, Case, reference, shapes
from .figures import speed
from .pool import Contender
from .turns import Turns

KCG = "kcg"
HAND_CODED, BEAM = "tinygrad", "BEAM=2"
TINY = (
    Contender(HAND_CODED, "tiny_side", {"how": "hand-coded"}),
    Contender(BEAM, "tiny_side", {"how": "beam", "beam": 2}),
    Contender(KCG, "tiny_side", {"how": "kcg"}),
)
"""Of these, `KCG` needs a result, which `compare` gives it."""


def in_torch(ways: Mapping[str, str]) -> list[Contender]:
    """PyTorch's contenders: their names, and how each runs."""
    return [Contender(name, "torch_side", {"how": how}) for name, how in ways.items()]


def by_hand(name: str, kernels: str, only: str) -> Contender:
    """A program that is one kernel, in whose place kcg puts one of a file of `kernels/`, on one kind of device."""
    return Contender(name, "tiny_side", {"how": KCG, "program": "one kernel", "kernels": kernels, "only": only})


def compare(
    turns: Turns, case: Case, contenders: Sequence[Contender], *, tune_s: float, work: Path, profiled: bool = False
) -> dict[str, Any]:
    """The row of a case: the contenders, each with its rates, and the case itself.

    `tune_s` is kcg's budget; its result is kept in `work`, where a call that was cut off finds it again.
    """
    profiles: dict[str, str] = {}
    ready, tuned, failed = [], dict[str, Any](), {}
    for contender in contenders:
        settings = contender.settings
        if settings.get("how") == KCG:
            try:
                told = tuned_for(case, turns.pool.dev, settings, tune_s, work)
            except KcgError as error:
                failed[contender.name] = {"status": "failed", "reason": str(error)}
                continue
            contender = replace(contender, settings={**settings, "result": told.pop("result")})
            tuned[contender.name] = told
        ready.append(contender)
    found = turns.row(ready, case, reference(case), profiles if profiled else None)
    for name, told in tuned.items():
        found[name].update(told)
    for row in found.values():
        if row["status"] == "ok":
            row.update(speed(row["cold_s"], bytes=least_bytes(case), operations=operations(case)))
    return {"case": case, "contenders": {**found, **failed}, **({"profiles": profiles} if profiled else {})}


def tuned_for(case: Case, dev: str, settings: dict[str, Any], tune_s: float, work: Path) -> dict[str, Any]:
    """What `tune` says of a contender of kcg's. Raises KcgError."""
    from .tuning import folder_of, tune

    case = {**case, **({"program": settings["program"]} if "program" in settings else {})}
    kernels, only = settings.get("kernels", ""), settings.get("only", "")
    return tune(case, dev, budget_s=tune_s, folder=work / folder_of(case, kernels), kernels=kernels, only=only)


def least_bytes(case: Case) -> float:
    """What every input and the output come to, once each; 0 for a whole model."""
    if case["kind"] == "family":
        return 0.0
    values = {name: float(math.prod(shape)) for name, shape in shapes(case).items()}
    output = 0.0 if case["kind"] == "sum" else next(iter(values.values()))
    tables = case["tokens"] * case["width"] * 4 if case["kind"] == "rope" else 0.0  # two, float32, of half the width
    return ITEM_BYTES[case["dtype"]] * (sum(values.values()) + output) + tables


def operations(case: Case) -> float:
    """Multiply-adds of matmuls, each two; 0 where there is none, or for a whole model."""
    if case["kind"] == "attention":
        return 4.0 * case["heads"] * case["tokens"] ** 2 * case["width"]
    return 16.0 * case["rows"] * case["width"] ** 2 if case["kind"] == "gelu_mlp" else 0.0


def shown(row: dict[str, Any]) -> str:
    """A row in one line: the cold time of each, or why there is none."""
    from kcg.optimize.console import format_seconds

    told = {
        name: format_seconds(found["cold_s"]) if found["status"] == "ok" else found["reason"]
        for name, found in row["contenders"].items()
    }
    return ", ".join(f"{name} {what}" for name, what in told.items())
