"""The figures of a predictor as Markdown, for between the marks of a document."""

from __future__ import annotations

from typing import Any

from evaluation.predictor.figures import SHIPPED_ROW
from kcg.predictor.scoring import METRICS


def scores_table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A Markdown table of figures with intervals."""
    shown = {name: title for name, title in METRICS.items() if name not in ("log_error", "mape")}
    lines = ["| | " + " | ".join(shown.values()) + " |", "|---|" + "---|" * len(shown)]
    for name, row in rows.items():
        cells = []
        for figure in shown:
            low, high = row["intervals"][figure]
            cells.append(f"{row[figure]:.3f} ({low:.3f}–{high:.3f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    first = next(iter(rows.values()))
    return [*lines, "", f"{first['kernels']:.0f} kernels, {first['schedules']:.0f} schedules."]


def sections(report: dict[str, Any]) -> dict[str, list[str]]:
    """The generated parts of the document, by the name of their mark."""
    made = {f"split-{split}": scores_table(values["all"]) for split, values in report["splits"].items()}
    rows = {k: v[SHIPPED_ROW] for k, v in report["splits"].get("workload", {}).items() if k.endswith("in training")}
    if rows:
        made["twins"] = scores_table(rows)
        made["twins"][-1] = ", ".join(f"{name}: {row['kernels']:.0f} kernels" for name, row in rows.items()) + "."
    if families := report["splits"].get("kernel", {}).get("families"):
        made["families"] = [
            "| family | kernels | pairwise | Kendall τ | top-1 | top-5 |",
            "|---|---|---|---|---|---|",
        ] + [
            f"| {name} | {v['kernels']:.0f} | {v['pairwise']:.3f} | {v['kendall_tau']:.3f} | {v['top1_mean']:.3f} | "
            f"{v['top5_mean']:.3f} |"
            for name, v in families.items()
        ]
    if "certainty" in report:
        c = report["certainty"]
        made["calibration"] = [
            "| tenth of the schedules, by expected error | expected | found |",
            "|---|---|---|",
            *(
                f"| {i} | {a:.3f} | {b:.3f} |"
                for i, (a, b) in enumerate(zip(c["expected error by decile"], c["error by decile"], strict=True), 1)
            ),
            "",
            "Root mean squares of log-seconds. Of all errors "
            + ", ".join(f"{c[f'within {n} %']:.0%} lie in the interval meant for {n} %" for n in (50, 80, 95))
            + ".",
        ]
        f = report["failure"]
        made["failure"] = [
            f"AUC {f['failure_auc']:.3f} over {f['failures']:.0f} failures of the test part (the network's head alone: "
            f"{f['head alone']:.3f}, the rules of `kcg.kernel.opts.space` alone: {f['rules alone']:.3f})."
        ]
    if "worst" in report:
        made["worst"] = ["| kernel | top-1 | picked | takes | best | takes |", "|---|---|---|---|---|---|"] + [
            f"| `{w['kernel']}` ({w['region']}) | {w['top1']:.2f} | {_opts(w['picked'])} | {w['picked_us']:.1f} µs, "
            f"expected {w['picked_predicted_us']:.1f} | {_opts(w['best'])} | {w['best_us']:.1f} µs, expected "
            f"{w['best_predicted_us']:.1f} |"
            for w in report["worst"]
        ]
    if report["tables"].get("tables"):
        t = report["tables"]
        made["tables"] = ["| measured | best of the first predicted | best of random ones |", "|---|---|---|"] + [
            f"| {k} | {t[f'top{k}']:.3f} ({t[f'top{k}_mean']:.3f} unweighted) | {t[f'random{k}']:.3f} "
            f"({t[f'random{k}_mean']:.3f}) |"
            for k in (1, 5, 16, 64)
        ]
        made["tables"] += ["", f"{t['tables']} lattices of Flux's kernels; 1 is the lattice's optimum."]
    if report["noise ceiling"]:
        n = report["noise ceiling"]
        made["ceiling"] = [
            f"The same schedules, timed again on another machine, rank themselves with pairwise {n['pairwise']:.3f}, "
            f"τ {n['kendall_tau']:.3f} ({n['schedules']:.0f} schedules of {n['kernels']:.0f} kernels)."
        ]
    if "speed" in report:
        s = report["speed"]
        made["speed"] = ["| phase | µs a candidate | in the worst kernel |", "|---|---|---|"] + [
            f"| {name} | {value:.0f} | {s['microseconds_of_the_worst'][name]:.0f} |"
            for name, value in s["microseconds"].items()
        ]
        made["speed"] += [
            "",
            f"{s['candidates_per_s']:.0f} candidates a second on one core in the median kernel of Flux, "
            f"{s['worst_candidates_per_s']:.0f} in the worst.",
        ]
    return made


def _opts(opts: list[str]) -> str:
    return "`" + " ".join(opts) + "`" if opts else "unoptimised"
