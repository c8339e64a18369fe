"""kcg's own command as a unit of a campaign: from cold, in a folder of its own; what it chose goes into the journal."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kcg.errors import ExitCode, KcgError

from .campaign import LEAST_S, Campaign, Unit
from .method_names import KCG, budget_s, effort_and_budget


def run_kcg(campaign: Campaign, unit: Unit) -> None:
    """kcg's own command from cold, in a folder of its own; what it chose goes into the journal, its report beside."""
    if campaign.left_s() < max(4 * LEAST_S, budget_s(unit.method)):
        campaign.left.append(unit.method)
        return
    with tempfile.TemporaryDirectory(prefix="kcg-flux-", ignore_cleanup_errors=True) as folder:
        command = command_of(unit.method, campaign.preset, campaign.dev)
        limit_s = campaign.left_s() if campaign.until < float("inf") else None
        asked = [sys.executable, *command.split(), "--report", folder, "--quiet"]
        with subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                said = process.communicate(timeout=limit_s)[1]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # it removes what it has written
                process.communicate()
                campaign.left.append(unit.method)
                return
        if process.returncode not in (ExitCode.OK, ExitCode.NOTHING_IMPROVED, ExitCode.BUDGET_HIT):
            raise KcgError(f"{unit.method} ended with exit code {process.returncode}: {said.strip()[-300:]}")
        run = run_of(keep_report(campaign, unit.method, Path(folder)) / "RESULT.json")
    campaign.journal.add_run(unit.method, run | {"command": f"python {command}"})
    campaign.say(f"{unit.method}: {run['measurements']} measured, {run['search_s']:.0f} s")


def command_of(method: str, preset: str, dev: str) -> str:
    """What is asked of Python for `kcg:normal`, or with a budget for `kcg:thorough:5m`."""
    effort, budget = effort_and_budget(method)
    command = f"-m kcg.optimize flux --preset {preset} --device {dev} --effort {effort}"
    return f"{command} --budget {budget}" if budget else command


def keep_report(campaign: Campaign, method: str, folder: Path) -> Path:
    """Copy a report beside the journals, in the place of the one that this device, preset and method had."""
    how = method.removeprefix(f"{KCG}:")
    name = f"{campaign.dev}-{campaign.preset}-{how}".replace(":", "-")
    kept = campaign.journal.path.parent / "runs" / name
    copied = kept.with_name(f".{name}")
    for old in (copied, kept):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("*.sqlite*"))
    return copied.rename(kept)


def run_of(path: Path) -> dict[str, Any]:
    """What the table needs of a RESULT.json: what was chosen, and what it took."""
    from kcg.optimize.result import read_result

    result = read_result(path)
    told = {name: getattr(result, name) for name in ("search_s", "measurements", "compilations", "phases", "created")}
    rows = {row.region.id: row for row in result.regions}
    return told | {
        "chosen": {i: [str(row.chosen.schedule.kind), row.chosen.schedule.body] for i, row in rows.items()},
        "measured": {i: row.measurements for i, row in rows.items()},
        "cold_s": {i: row.chosen.cold_s for i, row in rows.items()},
        "total_before_s": result.total_before_s, "total_after_s": result.total_after_s,
        "model_check": None if result.model_check is None else asdict(result.model_check),
    }  # fmt: skip
