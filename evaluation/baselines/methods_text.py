"""Writes what a campaign found into its results file: the figures that are compared with targets, and all others."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kcg.commandline import record_results
from kcg.types import RAW

from .campaign import Campaign
from .choosing import Choices
from .flux_gap import OWN, STEP
from .method_names import KCG
from .methods_headline import headline, overall, worse
from .methods_kernels import kernels_markdown
from .methods_markdown import markdown
from .methods_table import Column, against, columns, cost, interval
from .opening import run_of
from .strays import strays


def write_down(campaign: Campaign, chosen: Sequence[Choices], torch: Path, out: Path, document: Path | None) -> None:
    """Record everything that is known of a campaign."""
    from kcg.kernel.contractions import arithmetic
    from kcg.kernel.space import KernelSpace

    setting, searched = campaign.setting, {kernel.bench.region.id for kernel in chosen}
    table = columns(chosen, campaign.methods)
    rest_s = sum(calls * own_s for region, calls, own_s in setting.kernels if region.id not in searched)
    work = sum(calls * arithmetic(KernelSpace(region, setting.target).ast) for region, calls, _ in setting.kernels)
    tried = [column for column in table if column.there.any() or column.wrong]
    kcgs = [column for column in tried if column.method.startswith(KCG)]
    best = min(kcgs, key=lambda column: column.totals[0], default=None)
    rows = {
        column.method: {
            "total_s": (total := interval(column.totals + rest_s)), "gflops": work / total[0] / 1e9,
            "not_tried": int((~column.there).sum()) - column.wrong - column.failed,
            "wrong": column.wrong, "failed": column.failed,
            "over_kcg": against(column, best) if best is not None else [], **cost(campaign, chosen, column.method),
        }
        for column in tried
    }  # fmt: skip
    ours, strayed = [column.method for column in kcgs], strays(campaign, chosen)
    entry: dict[str, Any] = {
        "command": shlex.join(["python", f"evaluation/{Path(sys.argv[0]).name}", *sys.argv[1:]]), "methods": rows,
        "target": setting.target.model, "driver": setting.toolchain.driver, "rest_s": rest_s, "share": campaign.share,
        "canaries_s": campaign.journal.canaries, "pieces": campaign.journal.pieces,
        "kernels": [_kernel(kernel, table, k, _part(kernel, campaign.preset)) for k, kernel in enumerate(chosen)],
        "worse_than_baselines": {method: worse(chosen, table, method, strayed) for method in ours},
        "one_binary_in_two_processes": [asdict(stray) for stray in strayed],
        "torch_s": _torch(torch, campaign.preset, setting.target.device), "steps_s": _steps(campaign, ours),
    }  # fmt: skip
    name, said = run_of(campaign.preset, campaign.dev), headline(campaign, table, rows, entry, rest_s)
    record_results(out, name, entry, said, overall=overall, ending=f"_{campaign.preset}")
    lines = [*markdown(rows, entry, campaign.preset), *kernels_markdown(rows, entry["kernels"])]
    campaign.say("\n".join(lines))
    if document is not None:
        from evaluation.documents import write_into

        write_into(document, {f"flux-table-{campaign.preset}": lines})


def _kernel(kernel: Choices, table: Sequence[Column], k: int, part: str) -> dict[str, Any]:
    """Of one kernel: seconds of all calls by method, how each choice is launched as far as that is known, and where
    tinygrad's own schedule stands because a method was not tried or its choice is no good."""
    seen = kernel.bench.seen
    duels = {m: seen.duels.get(schedule, {}) for m, schedule in kernel.by_method.items()}
    chosen = {**kernel.by_method, **({"raw": RAW} if RAW in seen.rows else {})}
    return {
        "name": kernel.bench.label, "part": part, "calls": kernel.calls,
        "seconds": {c.method: c.seconds[k, 0] for c in table},
        "choices": {m: str(schedule) for m, schedule in kernel.by_method.items()},
        "launch": {m: seen.launches[schedule] for m, schedule in chosen.items() if schedule in seen.launches},
        "hand_coded_stands": [c.method for c in table if not c.there[k]],
        "wrong": {m: d["wrong"] for m, d in duels.items() if "wrong" in d},
        "failed": {m: d["reason"] for m, d in duels.items() if d.get("reason")},
    }  # fmt: skip


def _part(kernel: Choices, preset: str) -> str:
    """The part of a step that a kernel is of, as `flux_part_of` names it."""
    from kcg.kernel.codec import ast_of
    from kcg.workloads.flux import PRESETS

    from .flux_part_of import part_of

    return part_of(ast_of(kernel.bench.region.kernel), PRESETS[preset])


def _torch(path: Path, preset: str, device: str) -> dict[str, float]:
    """A step in PyTorch by mode, seconds."""
    kept = json.loads(path.read_text())["runs"].get(f"{preset}_{device.lower()}") if path.exists() else None
    steps = {k.removeprefix(STEP): row for k, row in (kept or {"rows": {}})["rows"].items() if k.startswith(STEP)}
    return {mode: row["cold_s"] for mode, row in steps.items() if mode not in OWN and row["status"] == "ok"}


def _steps(campaign: Campaign, ours: Sequence[str]) -> dict[str, float]:
    """The whole step as kcg timed it when it compared the outputs, of the fastest of its runs."""
    checks = [campaign.journal.runs[m]["model_check"] for m in ours]
    passed = [check for check in checks if check and check["passed"]]
    best = min(passed, key=lambda check: check["after_s"], default=None)
    return {} if best is None else {"kcg_step_ms": best["after_s"], "hand_coded_step_ms": best["before_s"]}
