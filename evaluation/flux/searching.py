"""The searches of a campaign: a method on a kernel, kcg's own command, and the canary that a piece begins with."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluation.flux.campaign import (
    KCG,
    LEAST_S,
    TINY_BEAM,
    Campaign,
    Unit,
    budgets_s,
    effort_and_budget,
    part_before,
    piece_of,
    turn_of,
)
from evaluation.search.on_device import DeviceBench
from kcg.errors import DeviceError, ExitCode, KcgError
from kcg.measure.service import Request
from kcg.search.problem import Observation

USABLE = (ExitCode.OK, ExitCode.NOTHING_IMPROVED, ExitCode.NOTHING_SEARCHED, ExitCode.UNCHECKED)

CANARY_SHARE = 0.02
MOST_S = 900.0  # that one unit may take


def search(campaign: Campaign, service: Any, predictor: Any, unit: Unit) -> None:
    """Do a unit, unless it is done or there is no time for it."""
    if campaign.done(unit):
        return
    if unit.region is None:
        run_kcg(campaign, unit)
        return
    name, _, of = unit.method.partition(":")
    if campaign.left_s() < (campaign.beam_s(unit.method, unit.region) or LEAST_S):
        campaign.left.append(unit.method)
        return
    bench = DeviceBench(unit.region, unit.calls, service, predictor, campaign.journal, until=campaign.until)
    if name == TINY_BEAM:
        _beam(campaign, bench, unit, int(of))
    elif name == "raw":
        bench.raw_s(timeout_s=min(MOST_S, campaign.left_s()))
    elif name != "no-tensor-cores":  # which is only timed
        _replay(campaign, bench, unit)


def _beam(campaign: Campaign, bench: DeviceBench, unit: Unit, width: int) -> None:
    beam = bench.search_tiny(width, timeout_s=min(MOST_S, campaign.left_s()), keep_failure=campaign.left_s() > MOST_S)
    summary = f"{beam.binaries} timed in {beam.wall_s:.0f} s" if beam is not None else "no time"
    campaign.log(f"{unit.method} on {bench.label}: {summary}")
    if beam is None:
        campaign.left.append(unit.method)


def _replay(campaign: Campaign, bench: DeviceBench, unit: Unit) -> None:
    begin = time.monotonic()
    try:
        measurements = bench.replay(turn_of(unit.method))[0].measurements
        summary = f"{measurements} measured in {time.monotonic() - begin:.0f} s"
    except TimeoutError:  # what it measured is kept, and the next piece goes on from there
        campaign.left.append(unit.method)
        summary = "cut, no time"
    campaign.log(f"{unit.method} on {bench.label}: {summary}")


def fly_canary(campaign: Campaign, service: Any) -> float:
    """Time the canary, the kernel with the largest share, and keep of what the piece is that begins with it. Raises
    DeviceError where it is not what it was at first."""
    from kcg.kernel.opts.space import KernelSpace

    region = campaign.setting.kernels[0][0]
    schedule = KernelSpace(region, campaign.setting.target).baseline()
    request = Request(region, schedule, trial=len(campaign.journal.canaries))
    row = Observation.of(service.measure([request])[0].result())
    if row.runtime_s is None:
        raise DeviceError(f"the canary fails here: {row.reason}")
    first_s = campaign.journal.canaries[0] if campaign.journal.canaries else row.runtime_s
    allowed = CANARY_SHARE if not campaign.dev.startswith("CPU") else float("inf")  # a CPU is shared
    if abs(row.runtime_s / first_s - 1) > allowed:
        raise DeviceError(
            f"the canary takes {row.runtime_s * 1e6:.1f} µs here, {first_s * 1e6:.1f} µs in the first piece: "
            "this device is not as fast, nothing was measured"
        )
    campaign.canary_s = row.runtime_s
    campaign.journal.add_canary(row.runtime_s)
    campaign.journal.add_piece(facts := piece_of(campaign, service))
    campaign.piece = f"{facts['began']} {facts['journal']}"
    return row.runtime_s


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
                printed = process.communicate(timeout=limit_s)[1]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # it removes what it has written
                process.communicate()
                campaign.left.append(unit.method)
                return
        if process.returncode not in USABLE:
            raise KcgError(f"{unit.method} ended with exit code {process.returncode}: {printed.strip()[-300:]}")
        run = run_of(keep_report(campaign, unit.method, Path(folder)) / "RESULT.json")
    run |= {"command": f"python {command}"}
    campaign.journal.add_run(unit.method, together(campaign.journal.runs[earlier], run) if earlier else run)
    campaign.log(f"{unit.method}: {run['measurements']} measured, {run['search_s']:.0f} s")


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
        "phases": [*took, *phases.items()],
        "command": f"{earlier['command']} && {run['command']}",
        **{name: earlier[name] + run[name] for name in ("search_s", "compilations")},
    }


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
    from kcg.report.result import read_result

    result = read_result(path)
    summary = {
        name: getattr(result, name) for name in ("search_s", "measurements", "compilations", "phases", "created")
    }
    rows = {row.region.id: row for row in result.regions}
    return summary | {
        "chosen": {i: [str(row.chosen.schedule.kind), row.chosen.schedule.body] for i, row in rows.items()},
        "measured": {i: row.measurements for i, row in rows.items()},
        "cold_s": {i: row.chosen.cold_s for i, row in rows.items()},
        "total_before_s": result.total_before_s,
        "total_after_s": result.total_after_s,
        "model_check": None if result.model_check is None else asdict(result.model_check),
    }
