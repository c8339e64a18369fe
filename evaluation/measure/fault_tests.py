"""Running the fault tests from a script, and reading what they recorded (`record_property`)."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """A run of pytest."""

    code: int  # its exit code
    printed: str  # the command, and all that it printed
    report: ElementTree.Element  # its XML report, with the properties of each test


def run_tests(*arguments: str) -> Ran:
    """Run pytest with `arguments` in the repository's root; what it prints is shown as it comes."""
    command = ["pytest", *arguments, "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "report.xml"
        # the older format of the report is the one that keeps properties
        report = ("-o", "junit_family=xunit1", f"--junitxml={xml}")
        process = subprocess.Popen(
            [sys.executable, "-m", *command, *report],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = [line for line in process.stdout or () if sys.stdout.write(line)]
        shown = f"$ {shlex.join(['python', '-m', *command])}\n"
        return Ran(process.wait(), shown + "".join(lines), ElementTree.parse(xml).getroot())
