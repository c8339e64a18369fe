"""Judge the fault catalogue: C kernels, right and wrong, each as an optimisation judges a user's; and generated
programs that one edit made wrong, which Triton's interpreter runs.

    python -m evaluation.measure.fault_catalogue

Runs tests/faults/test_fault_catalogue.py, which needs clang (`pip install ziglang`), and test_generated_faults.py,
which needs Triton, and writes what became of each kernel to evaluation/results/fault_catalogue.json. Ends with the
tests' exit code.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.measure.fault_tests import ROOT, run_tests
from kcg.cli import record_results, run_script
from kcg.errors import DeviceError

OUT = ROOT / "evaluation" / "results" / "fault_catalogue.json"
TESTS = ("tests/faults/test_fault_catalogue.py", "tests/faults/test_generated_faults.py")
COMMAND = "python -m evaluation.measure.fault_catalogue"


def judged() -> tuple[int, dict[str, list[str]]]:
    """The tests' exit code, and of each kernel: verdict of the catalogue, kind of fault, where refused, and why."""
    ran = run_tests(*TESTS)
    return ran.code, {p.attrib["name"]: json.loads(p.attrib["value"]) for p in ran.report.iter("property")}


def summary(kernels: dict[str, list[str]]) -> dict[str, Any]:
    """Counts by kind of fault, what passed that is wrong, and what was refused that is right."""
    wrong = {name: found for name, found in kernels.items() if found[0] == "wrong"}
    right = {name: found for name, found in kernels.items() if found[0] == "right"}
    total = Counter(kind for _, kind, _, _ in wrong.values())
    refused = Counter(kind for _, kind, refused_in, _ in wrong.values() if refused_in)
    return {
        "faulty": len(wrong),
        "refused": refused.total(),
        "generated": sum(name.startswith("tile/") for name in wrong),
        "right": len(right),
        "right_refused": sum(bool(refused_in) for _, _, refused_in, _ in right.values()),
        "kinds": {kind: {"faulty": count, "refused": refused[kind]} for kind, count in sorted(total.items())},
        "refused_in": dict(Counter(refused_in for _, _, refused_in, _ in wrong.values() if refused_in)),
        "passed": sorted(name for name, found in wrong.items() if not found[2]),
        "rejections": {name: found[3] for name, found in sorted(right.items()) if found[2]},
    }


def main(out: Annotated[Path, typer.Option(help="the results file")] = OUT) -> None:
    """Judge all of them and keep what was found."""
    code, kernels = judged()
    if not kernels:
        raise DeviceError("no kernel was judged, so nothing is written: is there a clang? pip install ziglang")
    found = summary(kernels)
    headline = {key: found[key] for key in ("faulty", "generated", "refused", "right", "right_refused")}
    reasons = {name: f"{refused_in}: {why}" for name, (_, _, refused_in, why) in sorted(kernels.items()) if refused_in}
    record_results(out, "cpu", {**found, "reasons": reasons, "command": COMMAND}, headline)
    typer.echo(json.dumps(headline))
    raise typer.Exit(code)


if __name__ == "__main__":
    run_script(main)
