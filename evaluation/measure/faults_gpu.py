"""Provoke every fault on this machine's GPU and keep what became of it and how long the recovery took.

    python -m evaluation.measure.faults_gpu
    python -m evaluation.measure.faults_gpu --marker "not gpu" --out faults    # the CPU's, anywhere

Writes faults_gpu.json and faults_gpu.log to evaluation/results.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from evaluation.measure.fault_tests import ROOT, run_tests
from kcg.cli import run_script
from kcg.errors import DeviceError
from kcg.provenance import provenance

OPTIONS = ("-vv", "-rs", "--no-header", "--tb=short", "--durations=10")


def anonymous(text: str) -> str:
    """Without this machine's folders and its name."""
    text = text.replace(f"{ROOT}{os.sep}", "")
    text = re.sub(r"\S*site-packages/", "", text)
    for place, name in ((str(ROOT), "."), (sys.prefix, "<python>"), (str(Path.home()), "~"), (platform.node(), "host")):
        text = re.sub(rf"(?<!\w){re.escape(place)}(?!\w)", name, text) if place not in ("", "/") else text
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/\S+", "<temporary>", text)


def entry(case: ElementTree.Element) -> tuple[str, dict[str, Any]]:
    """A test's name and what it recorded, numbers as numbers."""
    properties = {p.attrib["name"]: anonymous(p.attrib["value"]) for p in case.iter("property")}
    ended = next((name for name in ("failure", "error", "skipped") if case.find(name) is not None), "passed")
    module = case.attrib["classname"].rpartition("test_faults_")[2]
    name = properties.pop("fault", f"{module}: {case.attrib['name']}")
    values = {key: float(value) if key.endswith(("_s", "_us")) else value for key, value in properties.items()}
    return name, {"test": ended, "test_s": round(float(case.attrib["time"]), 3), **values}


def main(
    marker: Annotated[str, typer.Option(help="which tests, as pytest's -m")] = "gpu",
    out: Annotated[Path, typer.Option(help="the folder of the results")] = ROOT / "evaluation" / "results",
) -> None:
    """Run the fault tests and write what they found."""
    ran = run_tests("-m", marker, "tests/faults", *OPTIONS)
    tests = dict(entry(case) for case in ran.report.iter("testcase"))
    if all(test["test"] == "skipped" for test in tests.values()):
        raise DeviceError("no fault could be provoked here, so nothing is written: is there a GPU?")
    recoveries = [test["recovery_s"] for test in tests.values() if "recovery_s" in test]
    headline = {
        "faults": len(recoveries), "tests": len(tests),
        "passed": sum(test["test"] == "passed" for test in tests.values()),
        "worst_recovery_s": max(recoveries, default=None),
        "median_recovery_s": round(statistics.median(recoveries), 3) if recoveries else None,
    }  # fmt: skip
    facts = {
        "command": f"python -m evaluation.measure.faults_gpu --marker {shlex.quote(marker)}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(),
    }
    body = {"headline": headline, **facts, "faults": tests}
    out.mkdir(parents=True, exist_ok=True)
    (out / "faults_gpu.json").write_text(f"{json.dumps(body, indent=1)}\n")
    (out / "faults_gpu.log").write_text(anonymous(ran.printed))
    typer.echo(json.dumps(headline))
    raise typer.Exit(ran.code)


if __name__ == "__main__":
    run_script(main)
