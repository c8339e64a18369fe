"""Provoke every fault on this machine's GPU and keep what became of it and how long the recovery took.

    python evaluation/faults_gpu.py
    python evaluation/faults_gpu.py --marker "not gpu" --out faults    # the CPU's, anywhere

Writes faults_gpu.json and faults_gpu.log to evaluation/results.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from kcg.commandline import guarded
from kcg.errors import DeviceError
from kcg.provenance import provenance

ROOT = Path(__file__).parent.parent
OPTIONS = ("-vv", "-rs", "--no-header", "--tb=short", "--durations=10", "-p", "no:cacheprovider")


def run(marker: str, folder: Path) -> tuple[int, str, ElementTree.Element]:
    """Exit code, printed text and the XML report of the fault tests with `marker`."""
    xml = folder / "faults.xml"
    # the older format of the report is the one that keeps properties
    command = ["pytest", "-m", marker, "tests/faults", *OPTIONS, "-o", "junit_family=xunit1", f"--junitxml={xml}"]
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = [line for line in process.stdout or () if sys.stdout.write(line)]
    shown = f"$ {shlex.join(['python', '-m', *command[:-3]])}\n"
    return process.wait(), shown + "".join(lines), ElementTree.parse(xml).getroot()


def anonymous(text: str) -> str:
    """Without this machine's folders and its name."""
    text = text.replace(f"{ROOT}{os.sep}", "")
    text = re.sub(r"\S*site-packages/", "", text)
    for place, name in ((str(ROOT), "."), (sys.prefix, "<python>"), (str(Path.home()), "~"), (platform.node(), "host")):
        text = re.sub(rf"(?<!\w){re.escape(place)}(?!\w)", name, text) if place not in ("", "/") else text
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/\S+", "<temporary>", text)


def entry(case: ElementTree.Element) -> tuple[str, dict[str, Any]]:
    """A test's name and what it recorded, numbers as numbers."""
    told = {p.attrib["name"]: anonymous(p.attrib["value"]) for p in case.iter("property")}
    ended = next((name for name in ("failure", "error", "skipped") if case.find(name) is not None), "passed")
    module = case.attrib["classname"].rpartition("test_faults_")[2]
    name = told.pop("fault", f"{module}: {case.attrib['name']}")
    values = {key: float(value) if key.endswith(("_s", "_us")) else value for key, value in told.items()}
    return name, {"test": ended, "test_s": round(float(case.attrib["time"]), 3), **values}


def main(
    marker: Annotated[str, typer.Option(help="which tests, as pytest's -m")] = "gpu",
    out: Annotated[Path, typer.Option(help="the folder of the results")] = ROOT / "evaluation" / "results",
) -> None:
    """Run the fault tests and write what they found."""
    with tempfile.TemporaryDirectory() as folder:
        code, text, report = run(marker, Path(folder))
    tests = dict(entry(case) for case in report.iter("testcase"))
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
        "command": f"python evaluation/faults_gpu.py --marker {shlex.quote(marker)}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **provenance(),
    }
    body = {"headline": headline, **facts, "faults": tests}
    out.mkdir(parents=True, exist_ok=True)
    (out / "faults_gpu.json").write_text(f"{json.dumps(body, indent=1)}\n")
    (out / "faults_gpu.log").write_text(anonymous(text))
    typer.echo(json.dumps(headline))
    raise typer.Exit(code)


if __name__ == "__main__":
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(main)
    guarded(lambda: application(standalone_mode=False))
