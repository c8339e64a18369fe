"""What is provisional in a stored result has the rest of its launches under stress, without a search.

A program is made again as it was verified: another binary is another program, of which nothing is known. What passes is
kept in the user's cache after every piece (`kcg.measure.stress`), so this may be ended and begun again at any time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata

from kcg.compat.device import choose_device, prepare
from kcg.errors import DeviceError
from kcg.handover.checks import check_target, check_tinygrad
from kcg.judge.finalists import without
from kcg.judge.kept import Side
from kcg.judge.stressing import PIECE_S, REJECTED, Stressing, having_passed, launches_in
from kcg.kernel.kinds import describe
from kcg.kernel.symbolic import End
from kcg.measure import stress
from kcg.measure.device_info import first_line
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import MeasureService
from kcg.report.words import name_of
from kcg.types import ModelCheck, Planning, RegionResult, Result, TriedPlan

LEFT_OUT = "it was wrong under stress"
"""Why a region of a plan is in it no more."""


def completed(result: Result, *, say: Callable[[str], None] = lambda line: None) -> Iterator[Result]:
    """The result after each piece of the launches that are missing, what saves most first; nothing where none are. What
    fails in one of them gives way to the best Opts, or to tinygrad's own schedule, and the whole counts as not checked
    then. `say` is told what stays provisional, and why.

    Raises MismatchError where the result was made for another device or another tinygrad, DeviceError where the device
    is gone.
    """
    if not result.provisional:
        return
    check_tinygrad(result, metadata.version("tinygrad"))
    choice = choose_device(result.target.tinygrad_device)
    prepare(choice.dev)
    with MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service:
        target, toolchain = service.facts
        check_target(result.target, target)
        stressing = Stressing(service)
        for row in result.provisional:
            side = _made_again(row, service)
            if isinstance(side, str):
                say(f"{name_of(row)} stays provisional: {side}")
                continue
            at = [End(end.variables, end.share) for end in row.ends] or [End(row.variables, 1.0)]
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
