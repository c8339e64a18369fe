"""The figures of a campaign that are compared with the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kcg.measure.protocol import spread

from .campaign import Campaign
from .choosing import Choices
from .method_names import EAGER, KCG, TINY_BEAM, TINY_MCTS
from .methods_table import Column, against, interval
from .strays import Stray, floor_of

BEAM4, BEAM8 = f"{TINY_BEAM}:4", f"{TINY_BEAM}:8"
LEAST_BEHIND = 0.02
SIZES = ("768", "1024")  # a run of `mini` tries the code, and says nothing of Flux


def headline(
    campaign: Campaign, table: Sequence[Column], rows: dict[str, Any], entry: dict[str, Any], rest_s: float
) -> dict[str, float]:
    """What is known; a method that was not tried on every kernel has no total, and nothing is said against it.

    In a total, tinygrad's own schedule stands where a method's choice is wrong; `over_opts` is how many times as long
    as kcg's best run a method takes on the kernels where it is right.
    The costs against BEAM=4 are those of kcg's cheapest run that is as fast on the kernels where BEAM=4 is right; those
    `by_total` of the cheapest whose total is not larger.
    """
    preset, found = campaign.preset, dict[str, float]()
    of = {column.method: column for column in table if column.method in rows}
    of |= {column.method.partition(":")[0]: column for column in of.values()}
    whole = {method: column for method, column in of.items() if not rows[column.method]["not_tried"]}
    for key, method in (("beam8_total_ms", BEAM8), ("mcts_total_ms", TINY_MCTS)):
        if method in whole:
            found[key] = 1e3 * rows[whole[method].method]["total_s"][0]
    if kcgs := [column for method, column in whole.items() if method.startswith(f"{KCG}:")]:
        best = min(kcgs, key=lambda column: float(column.totals[0]))
        found["opts_total_ms"] = 1e3 * rows[best.method]["total_s"][0]
        found["wrong_kernels"] = sum(column.wrong for column in kcgs)
        found["kernels_behind"] = len(entry["worse_than_baselines"][best.method])
        for key, method in (("beam8_over_opts", BEAM8), ("mcts_over_opts", TINY_MCTS)):
            if method in whole and (ratio := against(whole[method], best)):
                found[key] = ratio[0]
        if BEAM8 in whole and TINY_MCTS in whole:
            rival = np.minimum(whole[BEAM8].totals, whole[TINY_MCTS].totals)
            gain = interval(100 * (1 - (best.totals + rest_s) / (rival + rest_s)))
            found |= dict(zip(("gain_pct", "gain_pct_low", "gain_pct_high"), gain, strict=True))
        if BEAM4 in of:
            as_fast = [c for c in kcgs if (ratio := against(of[BEAM4], c)) and ratio[0] >= 1]
            found |= _costs([rows[c.method] for c in as_fast], rows[BEAM4])
        if BEAM4 in whole:
            below = [c for c in kcgs if c.totals[0] <= whole[BEAM4].totals[0]]
            told = _costs([rows[c.method] for c in below], rows[BEAM4])
            found |= {f"{key}_by_total": value for key, value in told.items()}
    found |= {key: 1e3 * s for key, s in entry["steps_s"].items()}
    compiled_s = [seconds for mode, seconds in entry["torch_s"].items() if mode != EAGER]
    found |= {"torch_compile_ms": 1e3 * min(compiled_s)} if compiled_s else {}
    return {f"{key}_{preset}": value for key, value in found.items()}


def _costs(rows: Sequence[dict[str, Any]], beam: dict[str, Any]) -> dict[str, float]:
    """Of the cheapest of some runs, against BEAM=4; nothing where there is none."""
    if not rows:
        return {}
    cheap = min(rows, key=lambda row: row["wall_s"])
    return {
        "measurements_vs_beam4": cheap["measurements"] / beam["measurements"],
        "search_wall_vs_beam4": cheap["wall_s"] / beam["wall_s"],
        "whole_command_vs_beam4": cheap["whole_command_s"] / beam["wall_s"],
    }


def overall(said: dict[str, float]) -> dict[str, float]:
    """Of the two sizes together that are compared with targets: the dearest search, and all wrong kernels."""
    found = dict[str, float]()
    for key, of in (
        ("measurements_vs_beam4", max),
        ("search_wall_vs_beam4", max),
        ("measurements_vs_beam4_by_total", max),
        ("search_wall_vs_beam4_by_total", max),
        ("wrong_kernels", sum),
        ("kernels_behind", sum),
    ):
        if values := [said[name] for size in SIZES if (name := f"{key}_{size}") in said]:
            found[key] = of(values)
    return found


def worse(chosen: Sequence[Choices], table: Sequence[Column], method: str, strayed: Sequence[Stray]) -> list[str]:
    """Kernels on which a method is slower than the better of hand-coded and BEAM, by more than 2 % and noise: what
    tinygrad's own schedule differs by from itself in a duel, and what a binary does from one process to the next."""
    ours = next(c for c in table if c.method == method)
    others = [c for c in table if c.method == "hand-coded" or c.method.startswith(TINY_BEAM)]
    found = []
    for k, kernel in enumerate(chosen):
        duels = [d for d in kernel.bench.seen.duels.values() if "own_s" in d]
        best = min(float(c.seconds[k, 0]) for c in others)
        noise = max((spread(d["own_s"], d["own_again_s"]) for d in duels), default=0.0)
        noise = max(noise, floor_of(strayed, best / kernel.calls))
        if ours.seconds[k, 0] > best * (1 + max(LEAST_BEHIND, noise)):
            found.append(f"{kernel.bench.label}: {ours.seconds[k, 0] / best:.3f}")
    return found
