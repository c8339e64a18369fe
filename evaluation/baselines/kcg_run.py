"""kcg's own command as a unit of a campaign, in a folder of its own; what it chose goes into the journal."""

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
from .method_names import KCG, budgets_s, effort_and_budget, part_before


def run_kcg(campaign: Campaign, unit: Unit) -> None:
    """kcg's own command in a folder of its own, from cold or where an earlier run ended; what it chose goes into the
    journal, its report beside. An earlier run whose own journal is not here any more is made again."""
    if earlier := part_before(unit.method):
        if not (earlier in campaign.journal.runs and (kept_at(campaign, earlier) / "journal.sqlite").exists()):
            run_kcg(campaign, Unit(earlier))
        if earlier in campaign.left:
            campaign.left.append(unit.method)
            return
    if campaign.left_s() < max([4 * LEAST_S, *budgets_s(unit.method)[-1:]]):
        campaign.left.append(unit.method)
        return
    with tempfile.TemporaryDirectory(prefix="kcg-flux-", ignore_cleanup_errors=True) as folder:
        command = command_of(unit.method, campaign.preset, campaign.dev)
        if earlier:
            shutil.copytree(kept_at(campaign, earlier), folder, dirs_exist_ok=True)
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
    run |= {"command": f"python {command}"}
    campaign.journal.add_run(unit.method, together(campaign.journal.runs[earlier], run) if earlier else run)
    campaign.say(f"{unit.method}: {run['measurements']} measured, {run['search_s']:.0f} s")


def command_of(method: str, preset: str, dev: str) -> str:
    """What is asked of Python for `kcg:normal`, with a budget for `kcg:thorough:5m`, or to go on."""
    effort, budget = effort_and_budget(method)
    command = f"-m kcg.optimize flux --preset {preset} --device {dev} --effort {effort}"
    command += f" --budget {budget}" if budget else ""
    return f"{command} --resume" if part_before(method) else command


def together(earlier: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """A run and what it went on from as one: what it chose, and what both took. Its measurements hold those before."""
    phases = dict(run["phases"])
    took = [(phase, seconds + phases.pop(phase, 0.0)) for phase, seconds in earlier["phases"]]
    return run | {
        "phases": [*took, *phases.items()], "command": f"{earlier['command']} && {run['command']}",
        **{name: earlier[name] + run[name] for name in ("search_s", "compilations")},
    }  # fmt: skip


def kept_at(campaign: Campaign, method: str) -> Path:
    """Where the report of this device, preset and method is kept, beside the journals."""
    name = f"{campaign.dev}-{campaign.preset}-{method.removeprefix(f'{KCG}:')}".replace(":", "-")
    return campaign.journal.path.parent / "runs" / name


def keep_report(campaign: Campaign, method: str, folder: Path) -> Path:
    """Copy a run's folder beside the journals, in the place of the one that this device, preset and method had."""
    kept = kept_at(campaign, method)
    copied = kept.with_name(f".{kept.name}")
    for old in (copied, kept):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("*.sqlite-*"))  # of a journal that is closed
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
