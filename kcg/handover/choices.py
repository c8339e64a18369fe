"""What each kernel and region of a `Result` gets, whichever way the result is handed over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kcg.errors import CodecError, ResultError, ScheduleError
from kcg.kernel.kinds import traits_of
from kcg.report.words import provisional_line
from kcg.types import Kernel, Region, RegionResult, Result, Schedule, SeenAs, Target


@dataclass(frozen=True)
class Choice:
    """What one kernel gets."""

    kernel: Kernel
    schedule: Schedule  # of kind `opts`
    searched: bool  # False: tinygrad's own schedule
    seen_as: tuple[SeenAs, ...]  # how programs ask for it; tinygrad's name on the result's device is among them
    handwritten: Schedule | None = None  # what was faster than these Opts, where it can be used
    program: str = ""  # tinygrad's name of the kernel, where a program was faster than these Opts
    noun: str = ""  # what such programs are called


def choices(result: Result, *, changed_only: bool = False) -> tuple[list[Choice], int]:
    """What every kernel of a result gets, and how many regions cannot be served because they hold several kernels. With
    `changed_only` those are left out whose result has nothing but tinygrad's own schedule.

    A schedule that was not verified gives way to the baseline's, a hand-written kernel to the best Opts, with it beside
    them. A kernel that regions run wherever it was seen is among them, for programs in which one is not put in. BEAM's
    cache does not know the values of variables: of several regions of one kernel, which results before schema 8 have,
    the one that takes the most time decides.

    Raises ResultError where a schedule does not apply to its kernel.
    """
    rows: dict[str, RegionResult] = {}
    skipped = 0
    for row in result.deployed:
        if len(row.region.kernels) != 1:
            skipped += 1
        elif row.region.id not in rows or _weight(row) > _weight(rows[row.region.id]):
            rows[row.region.id] = row
    seen: dict[str, list[SeenAs]] = {}
    for kernel_id, seen_as in result.seen_as:
        seen.setdefault(kernel_id, []).append(seen_as)
    own: SeenAs = ("", (result.target.device,))
    wanted = [row for row in rows.values() if not changed_only or row.chosen.schedule != row.baseline.schedule]
    return [_choice(row, result.target, (own, *seen.get(row.region.id, ()))) for row in wanted], skipped


def _weight(row: RegionResult) -> float:
    return row.before_s if math.isfinite(row.before_s) else 0.0


def _choice(row: RegionResult, target: Target, seen_as: tuple[SeenAs, ...]) -> Choice:
    from kcg.kernel.kinds import own_kind, space_of

    handwritten, program = _written_by_hand(row), _as_program(row)
    own = own_kind(row.region)
    best = row.chosen if row.opts is None or row.chosen.schedule.kind == own else row.opts
    of_opts = best.verification.passed and best.schedule.kind == own
    schedule = best.schedule if of_opts else row.baseline.schedule
    searched = schedule != row.baseline.schedule
    kernel = row.region.kernel
    try:
        space_of(Region((kernel,)), target).check(schedule)  # one that does not apply would stop the user's program
    except CodecError as error:
        raise ResultError(f"kernel {kernel.id[:12]} of the result cannot be read: {error}") from None
    except Exception as error:
        # tinygrad raises more than ScheduleError knows on Opts that no search would write, such as a tuple for a size
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise ResultError(
            f"the schedule of kernel {kernel.id[:12]} in the result does not apply ({line}): run the search again"
        ) from error
    return Choice(kernel, schedule, searched, tuple(dict.fromkeys(seen_as)), handwritten, *program)


def _as_program(row: RegionResult) -> tuple[str, str]:
    """The name of a kernel that a program was best for, and what such programs are called; empty where none was."""
    from kcg.kernel.composed import noun_in

    schedule = row.chosen.schedule
    is_program = row.chosen.verification.passed and traits_of(schedule).as_program
    return (row.baseline.name or row.region.id[:12], noun_in(schedule)) if is_program else ("", "")


def _written_by_hand(row: RegionResult) -> Schedule | None:
    chosen = row.chosen
    return chosen.schedule if chosen.verification.passed and traits_of(chosen.schedule).by_hand else None


def changed_by(result: Result, *, handwritten: bool) -> set[str]:
    """The ids of the kernels, and of the regions of several, that run otherwise with a result where all of its regions
    are put in; `handwritten` where kernels that are written by hand are used."""
    changed = {c.kernel.id for c in choices(result)[0] if c.searched or (handwritten and c.handwritten is not None)}
    changed |= {row.region.id for row in changed_regions(result)}
    return changed.intersection(row.region.id for row in result.regions)


def changed_regions(result: Result) -> list[RegionResult]:
    """Regions of several kernels that something better was found and verified for, and kernels that a program
    was. The regions come first: a program of one kernel leaves none of its calls to those that are put in later."""
    rows = (r for r in result.deployed if len(r.region.kernels) > 1 or traits_of(r.chosen.schedule).as_program)
    return [r for r in rows if r.chosen.schedule != r.baseline.schedule and r.chosen.verification.passed]


def schedules_of(row: RegionResult) -> list[Schedule]:
    """The schedules of the parts of a region of several kernels."""
    from kcg.kernel.composed import checked

    try:
        return [part.schedule for part in checked(row.region, row.chosen.schedule)]
    except ScheduleError as error:
        raise ResultError(f"the schedule of region {row.region.id[:12]} in the result: {error}") from None


def failures(result: Result, failed: Mapping[str, str]) -> tuple[str, ...]:
    """Why programs are not used: a line for each reason, with the kernels that it is about."""
    from kcg.kernel.composed import noun_in

    about: dict[tuple[str, str, str], list[str]] = {}
    for row in result.deployed:
        if (reason := failed.get(row.region.id)) is not None:
            instead = "the best Opts" if len(row.region.kernels) == 1 else "each kernel alone"
            about.setdefault((instead, noun_in(row.chosen.schedule), reason), []).append(row.baseline.name)
    return tuple(
        f"{', '.join(names)}: {instead} instead of a {noun}: {reason}"
        for (instead, noun, reason), names in about.items()
    )


def left_by_hand(result: Result, files: Sequence[Path]) -> str:
    """How many kernels are faster written by hand, where there are no files of them; else empty."""
    left = 0 if files else sum(_written_by_hand(row) is not None for row in result.deployed)
    return by_hand_line(left) if left else ""


def by_hand_line(count: int) -> str:
    """How many kernels are faster written by hand than in what they get."""
    verbs = ("is", "takes") if count == 1 else ("are", "take")
    return f"{count} kernel{'s' * (count > 1)} {verbs[0]} faster written by hand and {verbs[1]} the best Opts"


def what_to_know(result: Result) -> list[str]:
    """Which kernels have tinygrad's own schedule although the search looked at them, a line for each reason; before
    these what is provisional, and used all the same."""
    notes = [line] if (line := provisional_line(result)) else []
    if any(r.outcome == "improved" and not r.chosen.verification.passed for r in result.deployed):
        notes.append("what the search had not verified has tinygrad's own schedule")
    for outcome, why in (("unjudged", "are unjudged"), ("quarantined", "are wrong or fail as they are")):
        if count := sum(r.outcome == outcome for r in result.deployed):
            notes.append(f"kernels that {why} have tinygrad's own schedule: {count}")
    return notes
