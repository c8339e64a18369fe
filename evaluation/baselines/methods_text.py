"""Writes what a campaign found into its results file: the figures that are compared with targets, and all others."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kcg.commandline import record_results

from .campaign import KCG, TINY_BEAM, Campaign
from .methods_markdown import markdown
from .methods_table import Column, columns, cost, interval, worse
from .retiming import Choices

MCTS, BEAM4, BEAM8 = "tinygrad-mcts", f"{TINY_BEAM}:4", f"{TINY_BEAM}:8"


def write_down(campaign: Campaign, chosen: Sequence[Choices], torch: Path, out: Path, document: Path | None) -> None:
    """Record everything that is known of a campaign."""
    from kcg.kernel.contractions import arithmetic
    from kcg.kernel.space import KernelSpace

    setting, searched = campaign.setting, {kernel.bench.region.id for kernel in chosen}
    table = columns(chosen, campaign.methods)
    rest_s = sum(calls * own_s for region, calls, own_s in setting.kernels if region.id not in searched)
    work = sum(calls * arithmetic(KernelSpace(region, setting.target).ast) for region, calls, _ in setting.kernels)
    rows = {
        column.method: {
            "total_s": (total := interval(column.totals + rest_s)), "gflops": work / total[0] / 1e9,
            "not_searched": column.missing, "wrong": column.wrong, **cost(campaign, chosen, column.method),
        }
        for column in table
        if column.missing < len(chosen) or column.method == "hand-coded"
    }  # fmt: skip
    ours = [method for method in rows if method.startswith(KCG)]
    entry: dict[str, Any] = {
        "command": shlex.join(["python", f"evaluation/{Path(sys.argv[0]).name}", *sys.argv[1:]]), "methods": rows,
        "target": setting.target.model, "driver": setting.toolchain.driver, "rest_s": rest_s, "share": campaign.share,
        "canaries_s": campaign.journal.canaries,
        "kernels": [_kernel(kernel, table, k) for k, kernel in enumerate(chosen)],
        "worse_than_baselines": {method: worse(chosen, table, method) for method in ours},
        "torch_s": _torch(torch, campaign.preset, setting.target.device), "steps_s": _steps(campaign, ours),
    }  # fmt: skip
    name = f"{campaign.preset}_{campaign.dev.lower().replace(':', '_')}"
    told = headline(campaign, table, rows, entry, rest_s)
    record_results(out, name, entry, told)
    lines = markdown(rows, entry, campaign.preset)
    campaign.say("\n".join(lines))
    if document is not None:
        from kcg.predictor.figures_text import write_into

        write_into(document, {f"flux-table-{campaign.preset}": lines})


def headline(
    campaign: Campaign, table: Sequence[Column], rows: dict[str, Any], entry: dict[str, Any], rest_s: float
) -> dict[str, float]:
    """The figures that are compared with the targets; those that are not known yet are left out."""
    by_method, preset = {column.method.partition(":")[0]: column for column in table}, campaign.preset
    by_method |= {column.method: column for column in table}
    of = {
        method: rows[column.method]["total_s"][0] * 1e3 for method, column in by_method.items() if column.method in rows
    }
    found = {f"{key}_{preset}": of[m] for key, m in (("beam8_total_ms", BEAM8), ("mcts_total_ms", MCTS)) if m in of}
    ours = [method for method in rows if method.startswith(KCG)]
    if ours:
        best = min(ours, key=lambda method: of[method])
        found |= {f"opts_total_ms_{preset}": of[best], f"wrong_kernels_{preset}": sum(rows[m]["wrong"] for m in ours)}
        if rivals := [by_method[m] for m in (BEAM8, MCTS) if m in of]:
            rival = np.min([r.totals for r in rivals], axis=0)
            gain = interval(100 * (1 - (by_method[best].totals + rest_s) / (rival + rest_s)))
            found |= dict(zip((f"{key}_{preset}" for key in ("gain_pct", "gain_low", "gain_high")), gain, strict=True))
        if BEAM4 in of:
            cheap = [m for m in ours if of[m] <= of[BEAM4]]
            chosen = min(cheap, key=lambda method: rows[method]["wall_s"], default=best)
            for key in ("wall_s", "measurements"):
                name = "search_wall" if key == "wall_s" else key
                found[f"{name}_vs_beam4_{preset}"] = rows[chosen][key] / rows[BEAM4][key]
    steps, torch = entry["steps_s"], entry["torch_s"]
    found |= {f"{key}_{preset}": 1e3 * s for key, s in steps.items()}
    return found | ({f"torch_compile_ms_{preset}": 1e3 * min(torch.values())} if torch else {})


def _kernel(kernel: Choices, table: Sequence[Column], k: int) -> dict[str, Any]:
    """Of one kernel: seconds of all calls by method, and how each choice is launched."""
    duels = kernel.bench.seen.duels
    launched = {m: duels.get(schedule, {}) for m, schedule in kernel.by_method.items()}
    return {
        "name": kernel.bench.label, "calls": kernel.calls, "seconds": {c.method: c.seconds[k, 0] for c in table},
        "choices": {m: str(schedule) for m, schedule in kernel.by_method.items()},
        "launch": {m: [d["global"], d["local"]] for m, d in launched.items() if "global" in d},
        "wrong": {m: d["wrong"] for m, d in launched.items() if "wrong" in d},
        "failed": {m: d["reason"] for m, d in launched.items() if d.get("reason")},
    }  # fmt: skip


def _torch(path: Path, preset: str, device: str) -> dict[str, float]:
    """A step in PyTorch by mode, eager left aside."""
    kept = json.loads(path.read_text())["runs"].get(f"{preset}_{device.lower()}") if path.exists() else None
    steps = {k.partition(" ")[2]: row for k, row in (kept or {"rows": {}})["rows"].items() if k.startswith("step ")}
    own = ("eager", "tinygrad", "kcg")
    return {mode: row["cold_s"] for mode, row in steps.items() if mode not in own and row["status"] == "ok"}


def _steps(campaign: Campaign, ours: Sequence[str]) -> dict[str, float]:
    """The whole step as kcg timed it when it compared the outputs, of the fastest of its runs."""
    checks = [json.loads((campaign.result_of(m) / "RESULT.json").read_text())["model_check"] for m in ours]
    passed = [check for check in checks if check and check["passed"]]
    best = min(passed, key=lambda check: check["after_s"], default=None)
    return {} if best is None else {"kcg_step_ms": best["after_s"], "hand_coded_step_ms": best["before_s"]}
