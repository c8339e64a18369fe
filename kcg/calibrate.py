"""kcg calibrate: fit what is predicted to this device, by a sweep of two minutes."""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kcg.cli import command_app, examples, guarded, parse_budget, run_app, showing
from kcg.commands import SETTINGS, command_name
from kcg.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from kcg.dataset.journal import Journal
    from kcg.predictor.calibrated import Calibration
    from kcg.predictor.interface import Predictor
    from kcg.types import Measurement, Region, Target

app = command_app()

SWEPT: Final = (
    "synthetic_matmul,synthetic_conv,synthetic_reduce,synthetic_transpose,softmax,norms,activations,rope,cross_entropy,"
    "optimizers,quantize"
)
"""Families of few kernels each, which are captured in seconds."""
KERNELS, SCHEDULES = 6, 5  # of a family at most, and of each kernel and kind
SEED: Final = 1


@app.command(
    context_settings=SETTINGS,
    epilog=examples("kcg calibrate", "kcg calibrate --out h100.json", "kcg calibrate --use h100.json"),
)
def calibrate(
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, CPU, CUDA …")] = "auto",
    budget: Annotated[str, typer.Option(metavar="TIME", help="of the sweep")] = "2m",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="write it there too, to be shared")] = None,
    use: Annotated[Path | None, typer.Option(metavar="FILE", help="take what somebody shared; nothing is run")] = None,
) -> None:
    """Time kernels of eleven families on this device, and fit what kcg predicts to it.

    What is fitted is kept in the user's cache and used from then on, by kcg optimize and kcg.predict; a file of it may
    be shared with others who have the same device. What brings nothing for families that it was not fitted on is not
    kept: the exit code is 3 then.
    """
    from kcg.optimize.settings import check_writable
    from kcg.predictor.calibrated import file_of, read, write
    from kcg.predictor.choice import AUTO, choose_predictor

    if out is not None:
        check_writable(out.absolute().parent, "--out FILE")
    if use is not None:
        if out is not None:
            raise UsageError("--out is of a sweep, and --use runs none: copy the file")
        found, target = read(use), _target_of(device)
        if found.target != target.fingerprint:
            raise UsageError(f"{use} is of another device, {found.model}: run kcg calibrate here, on {target.model}")
        if found.predictor != (name := choose_predictor(AUTO, target).name):
            raise UsageError(
                f"{use} is of another predictor, {found.predictor}, and here {name} guides: calibrate here"
            )
    else:
        found, target = swept(device, parse_budget(budget))
    with showing():
        for line in lines_of(found):
            print(line)
    if not found.lines:
        file_of(target).unlink(missing_ok=True)  # an earlier one is no better
        raise typer.Exit(int(ExitCode.NOTHING_IMPROVED))
    for path in (file_of(target), *([out] if out is not None else [])):
        write(path, found)
        with showing():
            print(f"written to {path}")


def swept(device: str, budget_s: float) -> tuple[Calibration, Target]:
    """What a sweep of so many seconds comes to on a device, and which that is."""
    from kcg.campaign.settings import CampaignSettings
    from kcg.campaign.workers import generate
    from kcg.compat.device import choose_device
    from kcg.dataset.journal import Journal
    from kcg.measure.lock import lock_device

    def say(line: str, _: object = None) -> None:
        if line:
            sys.stderr.write(f"{line}\n")

    with tempfile.TemporaryDirectory(prefix="kcg-calibrate-") as folder:
        path = Path(folder) / "sweep.sqlite"
        settings = CampaignSettings(
            path,
            workloads=tuple(SWEPT.split(",")),
            device=device,
            kernels_per_family=KERNELS,
            schedules_per_kernel=SCHEDULES,
            budget_s=budget_s,
            seed=SEED,
            gpus=1,
        )
        with lock_device(choose_device(device).dev):
            generate(settings, log=say)
        with Journal.open(path, read_only=True) as journal:
            (target,) = journal.targets().values()
            return calibration_from(journal, target), target


def calibration_from(journal: Journal, target: Target) -> Calibration:
    """What the rows of a journal say of a target: a line for each kind of schedules that gains by one."""
    import numpy as np

    from kcg.dataset.splits import families_of
    from kcg.measure.protocol import PROTOCOL
    from kcg.predictor.calibrated import Calibration, line_of
    from kcg.predictor.choice import AUTO, choose_predictor
    from kcg.provenance import provenance
    from kcg.types import Status

    predictor, families = choose_predictor(AUTO, target), families_of(journal.workloads())
    usable = (
        row
        for row in journal.measurements(PROTOCOL)
        if row.status == Status.OK and not row.variables and not row.trial and row.target == target.fingerprint
    )
    predictions = predictions_of(usable, journal.regions(), families, predictor, target)
    lines = {}
    for kind, each in predictions.items():
        predicted, measured = (np.array([one[place] for one in each]) for place in (0, 1))
        if (line := line_of(predicted, measured, [one[2] for one in each])) is not None:
            lines[kind] = line
    about = {
        **provenance(),
        "date": date.today().isoformat(),
        "rows": {kind: len(one) for kind, one in predictions.items()},
    }
    return Calibration(target.fingerprint, target.model, predictor.name, lines, about)


def predictions_of(
    rows: Iterable[Measurement],
    regions: Mapping[str, Region],
    families: Mapping[str, str],
    predictor: Predictor,
    target: Target,
) -> dict[str, list[tuple[float, float, str]]]:
    """By kind: predicted and measured log-seconds of some rows of a target, and the families of their regions; not of
    what is expected to fail."""
    from kcg.kernel.kinds import space_of
    from kcg.predictor.cost import guiding
    from kcg.predictor.interface import judge_of

    together: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in rows:
        together[str(row.schedule.kind), row.region_id].append(row)
    predictions: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for (kind, region), some in together.items():
        space = space_of(regions[region], target, kind)
        judge = judge_of(guiding(space, predictor), space)
        for one, row in zip(judge.predict([row.schedule for row in some]), some, strict=True):
            if one.failure_probability < 1.0:
                predictions[kind].append((one.log_runtime, math.log(row.median_s), families.get(region, "")))
    return predictions


def lines_of(found: Calibration) -> Iterator[str]:
    """A calibration in words."""
    from kcg.nouns import printable, shown

    yield f"{found.predictor} on {found.model}:"
    for kind in map(printable, sorted({*found.lines, *found.about.get("rows", {})})):
        count = shown(found.about.get("rows", {}).get(kind, 0))
        if (line := found.lines.get(kind)) is None:
            yield f"  {kind}: nothing is gained, by {count} schedules"
        else:
            yield (
                f"  {kind}: of families that it was not fitted on, times were {math.expm1(line.before):.0%} off in the "
                f"median, and are {math.expm1(line.after):.0%}, by {line.rows} schedules"
            )


def _target_of(device: str) -> Target:
    """The target of a device, which is opened for it."""
    from kcg.compat.device import choose_device
    from kcg.measure.service import MeasureService

    with MeasureService(choose_device(device).dev, run_id="", compile_workers=1) as service:
        return service.target


def main() -> ExitCode:
    return run_app(app, command_name("calibrate"))


if __name__ == "__main__":
    guarded(main)
