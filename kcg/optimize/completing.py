"""`kcg check`: a stored result is completed, without a search. What is provisional has the rest of its launches under
stress, and the whole is compared, which its run had no time for, or was told to leave out.

A program is made again as it was verified: another binary is another program, of which nothing is known. What passes is
kept in the user's cache after every piece (`kcg.measure.stress`). The whole is compared as a run does at its end
(`kcg.judge.whole`), without a budget: a script with what it left while it was recorded, where the run kept that beside
its result. Where it is wrong, that is left out which it is wrong with (`kcg.optimize.leaving_out`); what each part
showed is in a file beside the result until all is known. So all this may be ended and begun again at any time.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kcg.compat.device import choose_device, prepare
from kcg.compat.versions import tinygrad_version
from kcg.dataset.journal import Journal, Run
from kcg.errors import DataError, DeviceError, ExitCode, JournalError, KcgError, UsageError
from kcg.files import read_foreign, write_whole
from kcg.handover.checks import check_target, check_tinygrad
from kcg.handover.choices import changed_by
from kcg.judge.finalists import without
from kcg.judge.kept import Side
from kcg.judge.stressing import PIECE_S, REJECTED, Stressing, having_passed, launches_in
from kcg.judge.whole import Cost, Runner
from kcg.judge.whole_model import Model
from kcg.judge.whole_model import is_runnable as is_model
from kcg.judge.whole_script import Script
from kcg.kernel.kinds import describe
from kcg.kernel.symbolic import Bound
from kcg.measure import stress
from kcg.measure.device_info import first_line
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import MeasureService
from kcg.nouns import noun_from_json, noun_to_json
from kcg.optimize import leaving_out
from kcg.provenance import provenance
from kcg.report.endings import ANSWERED, exit_code_of, whole_is_checked
from kcg.report.next_steps import option_values, program_in
from kcg.report.phases import CAPTURING
from kcg.report.words import checked_as, name_of
from kcg.store.entry import entries_of
from kcg.store.location import HUB, open_store
from kcg.types import (
    Measurement,
    ModelCheck,
    Planning,
    RegionResult,
    Result,
    Schedule,
    Status,
    Target,
    Toolchain,
    TriedPlan,
    Workload,
    content_id,
)
from kcg.workloads.left import FOLDER
from kcg.workloads.registry import spec_of
from kcg.workloads.script import check_program, kept_workload

LEFT_OUT = "it was wrong under stress"
"""Why a region of a plan is in it no more."""
COMPARED = "compared.json"  # in the folder of what a run recorded: what parts of a whole that is wrong showed
MOST_OF_COMPARED = 1 << 24  # bytes
Say = Callable[[str], None]


# ---- what is provisional


def completed(result: Result, folder: Path, *, say: Say = lambda line: None) -> Iterator[Result]:
    """The result after each piece of the launches that are missing, what saves most first; nothing where none are. What
    fails in one of them gives way to the best Opts, or to tinygrad's own schedule, and the whole counts as not checked
    then; the journal in `folder`, where its run left it, and the store of that run hold that it failed. `say` is told
    what stays provisional, and why.

    Raises MismatchError where the result was made for another device or another tinygrad, DeviceError where the device
    is gone.
    """
    if not result.provisional:
        return
    check_tinygrad(result, tinygrad_version())
    choice = choose_device(result.target.tinygrad_device)
    prepare(choice.dev)
    with MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service:
        target, toolchain = service.facts
        check_target(result.target, target)
        created, about = datetime.now(UTC).isoformat(), {"device": choice.dev, **provenance()}
        run = Run(service.run_id, created, result.command, about)

        def record(rows: Sequence[Measurement]) -> None:
            _write_in_journal(folder, lambda journal: _add_rows(journal, run, rows, target, toolchain), say)

        stressing = Stressing(service, failed={}, record=record)
        for row in result.provisional:
            side = _made_again(row, service)
            if isinstance(side, str):
                say(f"{name_of(row)} stays provisional: {side}")
                continue
            at = [Bound(end.variables, end.share) for end in row.ends] or [Bound(row.variables, 1.0)]
            if toolchain == result.toolchain:
                stressing.take_in(row.region, side, at, row.chosen.launches)
            launch_s = stress.expected_s(row.chosen.cold_s, 0, target) / stress.LAUNCHES
            while row.chosen.provisional:
                passed = stressing.passed(row.region, side, at)
                launches = min(passed + launches_in(PIECE_S / len(at), launch_s), stress.LAUNCHES)
                why = stressing.run(
                    row.region, side, at, launches=launches, launch_s=launch_s, patience=lambda expected_s: None
                )
                if why and not why.startswith(REJECTED):
                    say(f"{name_of(row)} stays provisional: {why}")
                    break
                if why:
                    say(f"{describe(row.chosen.schedule)} of {name_of(row)} is left out: {why.removeprefix(REJECTED)}")
                    _refute(result, row.region.id, row.chosen.schedule, say)
                    row = without(row, why)
                    result = _left_out(result, row, why.removeprefix(REJECTED))
                else:
                    row = replace(row, chosen=having_passed(row.chosen, launches, target))
                    result = _with(result, row)
                yield result


def _made_again(row: RegionResult, service: MeasureService) -> Side | str:
    """The program that was chosen of a region; why it is not there."""
    schedule, bindings = row.chosen.schedule, [end.variables for end in row.ends] or [row.variables]
    try:
        compiled = service.compiled(row.region, schedule, *bindings).result().compiled.at(row.variables)
    except (DeviceError, ServiceClosed):
        raise
    except Exception as error:
        return f"it does not compile here: {first_line(error)}"
    if compiled.binary_hash != row.chosen.binary_hash:
        return "it compiles to another binary here than the one that was verified: run the search again"
    return Side(schedule, compiled)


def _with(result: Result, row: RegionResult) -> Result:
    """A result with this row in the place of that of the same region."""

    def rows(some: tuple[RegionResult, ...]) -> tuple[RegionResult, ...]:
        place = row.region.id, row.variables
        return tuple(row if (one.region.id, one.variables) == place else one for one in some)

    planning = result.planning
    if planning is not None:
        planning = replace(planning, inside=rows(planning.inside))
    return replace(result, regions=rows(result.regions), planning=planning)


def _left_out(result: Result, row: RegionResult, why: str) -> Result:
    """A result with the row of a region of which something failed: what was said of the whole was of another plan."""
    found = _with(result, row)
    planning = found.planning
    if planning is not None and row.chosen.schedule == row.baseline.schedule:
        planning = _without_region(planning, row)
    line = f"what was found for {name_of(row)} is left out: {why}"
    check = ModelCheck(None, f"not run: {row.baseline.name or row.region.id[:12]} has another schedule since")
    return replace(found, planning=planning, model_check=check, warnings=(*found.warnings, line))


def _without_region(planning: Planning, row: RegionResult) -> Planning:
    """The planning of a plan of which a region runs as its parts."""
    lost = [one for one in planning.regions if one.region == row.region.id]
    if not lost:
        return planning
    regions = tuple(one for one in planning.regions if one not in lost)
    more_s = sum(one.calls * one.saved_s for one in lost)

    def plan(one: TriedPlan) -> TriedPlan:
        names = tuple(region.region for region in regions)
        note = "not run: a region is left out since"
        return TriedPlan(names, one.expected_s + more_s, None, None, note, chosen=True) if one.chosen else one

    passed_over = (*planning.passed_over, (LEFT_OUT, len(lost)))
    return replace(planning, regions=regions, plans=tuple(map(plan, planning.plans)), passed_over=passed_over)


# ---- what failed is not chosen again


def _write_in_journal(folder: Path, write: Callable[[Journal], None], say: Say) -> None:
    """Write something into the journal of the run that left its result there, where there is one."""
    path = folder / "journal.sqlite"
    if not path.exists():
        return
    try:
        with Journal.open(path, create=False) as journal:
            write(journal)
    except (JournalError, UsageError) as error:
        say(f"a run that goes on may choose it again: {error}")


def _add_rows(journal: Journal, run: Run, rows: Sequence[Measurement], target: Target, toolchain: Toolchain) -> None:
    journal.add_run(run)
    journal.add_target(target)
    for fingerprint in toolchain.fingerprints:  # another one than that of its run, where a driver is newer
        journal.add_toolchain(toolchain, fingerprint)
    for row in rows:
        journal.record(row)


def _refute(result: Result, region: str, schedule: Schedule, say: Say) -> None:
    """Have the store that the run of a result added to hold a schedule of a region no more."""
    location = next(iter(option_values(result.command, "--store")), "")
    if not location or location.startswith(HUB):
        return
    rows = [row for row in result.deployed if row.region.id == region]
    try:
        if (store := open_store(location)).writable:
            removed = sum(store.refute(one) for one in entries_of(result, rows) if one.chosen.schedule == schedule)
            if removed:
                say(f"{describe(schedule)} is in the store {location} no more")
    except (DataError, UsageError) as error:
        say(f"the store may still hold {describe(schedule)}: {error}")


# ---- the whole


def checked(result: Result, folder: Path, *, say: Say = lambda line: None) -> Result:
    """The result with a check of the whole, which is run where something improved and was not checked; without what the
    whole is wrong with, where it is right without that. `folder` is where its run left it. Raises UsageError where kcg
    cannot run it, DeviceError where the device is gone."""
    if exit_code_of(result) != ExitCode.UNCHECKED or whole_is_checked(result):
        return result
    whole = _Whole(result, folder, say)
    check = whole.compare(result)
    found = replace(result, model_check=check)
    if check.passed is False:
        # as a run would do: one that goes on would take these verdicts over, and end the same way
        _write_in_journal(folder, Journal.forget_paired_results, say)
        found = whole.right_part_of(found, check)
        for one in found.dropped:
            if one.status == Status.WRONG:
                _refute(result, one.region, one.schedule, say)
    missing = f"the whole {whole.runner.what} was not compared", "the run ended before the whole "
    if check.passed is not None:
        found = replace(found, warnings=tuple(line for line in found.warnings if not line.startswith(missing)))
    return replace(found, complete=exit_code_of(found) in ANSWERED)


@dataclass
class _Whole:
    """Compares the whole of a result, and parts of it. What they showed is kept from the first on that is wrong."""

    result: Result
    folder: Path
    say: Say
    runner: Runner = field(init=False)
    known: dict[str, ModelCheck] = field(default_factory=dict)  # by `_key`
    apart: tuple[str, ...] = ()  # see `Runner.apart`, of the first that was wrong

    def __post_init__(self) -> None:
        self.runner = runner_of(self.result, self.folder)
        self._read()

    def compare(self, asked: Result, words: str = "") -> ModelCheck:
        """What the whole shows with the schedules of a result; `words` are of which part they are."""
        if (known := self.known.get(self._key(asked))) is not None:
            self.say(f"the whole {self.runner.what}{words}: {'right' if known.passed else 'wrong'}, as compared before")
            return known
        self.say(self.runner.announced(words))
        changed = len(changed_by(asked, handwritten=bool(_kernels(asked))))
        timeout_s = self.runner.timeout_s(self.runner.expected_s(Cost(changed=changed, step_s=asked.total_before_s)))
        (check,) = self.runner.checks([replace(asked, complete=True)], timeout_s=timeout_s)
        self.apart = self.apart or tuple(self.runner.apart)
        if check.passed is False or self.known:
            self._keep(asked, check)
        return check

    def right_part_of(self, whole: Result, failed: ModelCheck) -> Result:
        """The result with that of its schedules with which the whole is right; the same where none was seen to be."""
        rows = whole.regions
        has_regions = any(len(row.region.kernels) > 1 for row in rows)
        if (workload := self._workload() if has_regions else Workload(whole.workload, whole.preset, ())) is None:
            self.say("which kernel or region it is wrong with cannot be told: the calls of its run were not kept")
            return whole
        inside = whole.planning.inside if whole.planning is not None else ()
        alone = replace(whole, regions=(*(row for row in rows if len(row.region.kernels) == 1), *inside), planning=None)
        right, check, lines = leaving_out.right_part_of(
            whole,
            failed,
            self.compare,
            alone=alone,
            workload=workload,
            changed=leaving_out.changed_in(whole, alone, changed_by(whole, handwritten=bool(_kernels(whole)))),
            what=self.runner.what,
            apart=self.apart,
        )
        for line in lines:
            self.say(line)
        return replace(right, model_check=check, warnings=(*right.warnings, *lines))

    def _workload(self) -> Workload | None:
        """The calls of the program, in their order; None where they are not known."""
        if isinstance(self.runner, Model):
            return self.runner.workload
        return kept_workload(self.folder / FOLDER)

    # ---- what was compared

    def _key(self, asked: Result) -> str:
        return content_id([asked.plan.id, asked.command, asked.seed])

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, KcgError):
            data = read_foreign(self.folder / FOLDER / COMPARED, most_bytes=MOST_OF_COMPARED)
            found: dict[str, Any] = json.loads(data or b"")
            known = {key: noun_from_json(ModelCheck, text) for key, text in found["checks"].items()}
            self.known, self.apart = known, tuple(map(str, found["apart"]))

    def _keep(self, asked: Result, check: ModelCheck) -> None:
        if check.passed is None:
            return  # another time it may tell
        self.known[self._key(asked)] = check
        checks = {key: noun_to_json(one) for key, one in self.known.items()}
        with contextlib.suppress(UsageError):  # then it is compared again
            write_whole(self.folder / FOLDER / COMPARED, json.dumps({"checks": checks, "apart": self.apart}))


def runner_of(result: Result, folder: Path) -> Runner:
    """What runs the whole of a result, as its command named it. Raises UsageError where nothing can."""
    kernels = _kernels(result)
    if (program := program_in(result)) is not None:
        check_program(program)
        recorded_s = dict(result.phases).get(CAPTURING, 0.0)
        return Script(program, seed=result.seed, kernels=kernels, recorded_s=recorded_s, recorded=folder / FOLDER)
    if not is_model(result.workload):
        what = checked_as(result)
        advice = "a function is checked where it is tuned" if what == "function" else "run the search again"
        raise UsageError(f"{result.workload} {result.preset} is no {what} that kcg can run from its result: {advice}")
    return Model(
        spec_of(result.workload).capture(result.preset),
        result.target.tinygrad_device,
        seed=result.seed,
        weights=next(iter(option_values(result.command, "--weights")), ""),
        kernels=kernels,
    )


def _kernels(result: Result) -> list[Path]:
    return [Path(file).absolute() for file in option_values(result.command, "--kernels")]
