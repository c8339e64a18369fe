"""A `Result` in plain tinygrad: written into its BEAM cache (`apply`, `undo`), or inside one process (`tuned`).

tinygrad's BEAM looks into its disk cache before it searches. `apply` puts the chosen schedule of every kernel there,
tinygrad's own where nothing better was verified, so that an unchanged program with `BEAM=N` searches nothing. Both ways
first check that the result was made on this hardware with this tinygrad.
"""

from __future__ import annotations

import contextlib
import functools
import math
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kcg import shell
from kcg.cli import counted
from kcg.commands import command_name
from kcg.errors import CodecError, DeviceError, MismatchError, ResultError, ScheduleError, UsageError, VerificationError
from kcg.kernel.kinds import opts_of, traits_of
from kcg.nouns import printable
from kcg.report.next_steps import beam_command, missing_clang
from kcg.report.result import read_result
from kcg.types import Kernel, Region, RegionResult, Result, Schedule, SeenAs, Target, Toolchain

if TYPE_CHECKING:
    from kcg.compat.replacing import Replaced, Replacement
    from kcg.handover.cache_rows import Undone
    from kcg.handover.programs import Remade

MAX_WIDTH = 1000


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


@dataclass(frozen=True)
class Applied:
    """What `apply` did; `str()` is the summary for the user."""

    cache_db: Path
    widths: tuple[int, ...]  # the values of BEAM that are served
    kernels: int
    searched: int  # kernels with a schedule that the search found; the others have tinygrad's own
    rows: int  # a row for every way in which programs ask for a kernel, and every width
    replaced: int  # rows that held another value before
    dev: str  # what DEV= selects the device, e.g. "CUDA"
    still_searched: int = 0  # kernels of the program for which no row is written, so that BEAM searches them
    own_cache: bool = True  # whether `cache_db` is what tinygrad uses without being told
    notes: tuple[str, ...] = ()
    clang: str = ""  # where plain tinygrad does not find one by itself

    @property
    def undo_command(self) -> str:
        """The command that takes it back."""
        where = () if self.own_cache else ("--cachedb", self.cache_db)
        return shell.command(command_name("apply"), "--undo", *where)

    @property
    def use_command(self) -> str:
        """How the user's program is started."""
        where = "" if self.own_cache else f"{shell.setting('CACHEDB', self.cache_db.absolute())} "
        return where + beam_command(self.dev, self.clang, width=self.widths[0])

    def __str__(self) -> str:
        widths = ", ".join(f"BEAM={width}" for width in self.widths)
        lines = [
            f"{counted(self.kernels, 'kernel')}: {self.searched} with a schedule that was found, "
            f"{self.kernels - self.searched} with tinygrad's own",
            f"{counted(self.rows, 'row')} for {widths} in {self.cache_db} ({self.replaced} held another schedule)",
            f"{widths} will still search {counted(self.still_searched, 'kernel') if self.still_searched else 'none'} "
            "of the kernels that the program ran",
            *(f"note: {note}" for note in self.notes),
            f"use:  {self.use_command}",
            f"undo: {self.undo_command}",
        ]
        return "\n".join(map(printable, lines))


def apply(
    result_path: Path,
    *,
    widths: Sequence[int],
    cache_db: Path | None = None,
    facts: tuple[Target, Toolchain] | None = None,
) -> Applied:
    """Write the schedules of a result into tinygrad's BEAM cache, one row per kernel and beam width.

    `cache_db` is tinygrad's own cache by default. `facts` describe this machine; without them the result's device is
    opened in a child to read them. What the rows held before is saved first: `undo` puts it back.

    Raises:
        ResultError: no result, a damaged one, or one whose schedules do not apply to its kernels.
        VerificationError: the whole model's output with these schedules was wrong; nothing was written.
        MismatchError: it was made for other hardware or another tinygrad; nothing was written.
        UsageError: no such width, or there is nothing to apply.
        DataError: the cache cannot be written, is locked or damaged.
    """
    served = _checked_widths(widths)
    result = read_result(result_path)
    check_model_result(result)
    check_tinygrad(result, metadata.version("tinygrad") if facts is None else facts[1].tinygrad)
    target, toolchain = _detect(result.target) if facts is None else facts
    check_target(result.target, target)
    chosen, skipped = choices(result)
    if not any(choice.searched or choice.handwritten is not None or choice.program for choice in chosen):
        raise UsageError(
            f"{result_path} has no schedule that was found and verified: with tinygrad's own in its cache BEAM would "
            "look no further, so nothing was written"
        )

    from kcg.compat.beam import cache_key, cache_table, cache_value, default_cache_db
    from kcg.compat.renderers import planning_renderer
    from kcg.handover.cache_rows import Key, write_rows
    from kcg.kernel.codec import ast_of

    renderer = planning_renderer(result.target)
    rows: dict[Key, bytes] = {}
    for choice in chosen:
        ast, value = ast_of(choice.kernel), cache_value(opts_of(choice.schedule))
        for name, devices in choice.seen_as:
            on = devices if len(devices) > 1 else "".join(devices) or None
            for width in served:
                key = cache_key(ast, width, on, renderer, name=name)
                place = (key["ast"], key["amt"], int(key["allow_test_size"]), key["device"], key["suffix"])
                rows[place] = value
    own, clang = default_cache_db(), missing_clang(result.target)
    written = write_rows(cache_db or own, cache_table(), rows)
    return Applied(
        cache_db=cache_db or own,
        widths=served,
        kernels=len(chosen),
        searched=sum(c.searched for c in chosen),
        rows=written.rows,
        replaced=written.replaced,
        dev=target.tinygrad_device,
        still_searched=_still_searched(result, chosen),
        own_cache=cache_db is None or cache_db.absolute() == own.absolute(),
        notes=_notes(result, toolchain, chosen, skipped, clang),
        clang=clang or "",
    )


def undo(cache_db: Path | None = None) -> Undone:
    """Put back, byte for byte, what the rows of every `apply` since the last undo held before.

    Rows that another program changed since are left alone and counted.

    Raises:
        UsageError: nothing was applied to this cache.
        DataError: the cache is locked, or it or the undo file is damaged.
    """
    from kcg.handover.cache_rows import restore_rows

    if cache_db is None:
        from kcg.compat.beam import default_cache_db

        cache_db = default_cache_db()
    return restore_rows(cache_db)


class HoldsResult(Protocol):
    """Something that a result belongs to, such as what `kcg.tune` returns."""

    @property
    def result(self) -> Result: ...


@contextlib.contextmanager
def tuned(result: Path | str | HoldsResult, *, kernels: Path | str | Sequence[Path | str] = ()) -> Iterator[None]:
    """Inside the block, every kernel of the result that this process compiles takes its schedule; others are untouched.
    The result is the path of a RESULT.json, or what `kcg.tune` or `kcg.load` returned.

    A kernel is recognised by what it computes, whatever the values of its variables. A program that `TinyJit` captured
    in the block keeps its schedules after it. The default device is opened.

    `kernels` are the files of hand-written kernels that the search had; a child imports them. Without them, kernels
    that are best written by hand take the best Opts, and a warning says so: no code of a result is ever run.

    Tile programs are made again from their parameters, in a child, or come from the user's cache. Where one cannot be,
    or is not the one that was verified, a warning says why, and its kernel takes the best Opts. Kernels on a device of
    the same kind and another model are left to tinygrad; a warning at the end of the block says so.

    Raises:
        UsageError: a file of kernels cannot be imported.
        ResultError: no result, a damaged one, or one whose schedules do not apply to its kernels.
        VerificationError: the whole model's output with these schedules was wrong.
        MismatchError: it was made for other hardware, another device, another tinygrad or other kernels.
        DeviceError: the default device does not open.
    """
    found = read_result(Path(result)) if isinstance(result, Path | str) else result.result
    check_model_result(found)
    files = [Path(path) for path in ((kernels,) if isinstance(kernels, Path | str) else kernels)]
    if line := left_by_hand(found, files):
        warnings.warn(f"{line}: give kcg.tuned(..., kernels=FILE) the file of kernels to use them", stacklevel=3)
    with putting_in_place(found, lambda line: warnings.warn(line, stacklevel=2), kernels=files) as place:
        yield
    for line in place.left_to_tinygrad:
        warnings.warn(line, stacklevel=3)


def left_by_hand(result: Result, files: Sequence[Path]) -> str:
    """How many kernels are faster written by hand, where there are no files of them; else empty."""
    left = 0 if files else sum(_written_by_hand(row) is not None for row in result.deployed)
    return _by_hand(left) if left else ""


@dataclass
class InPlace:
    """What a process has of a result."""

    names: dict[str, str]  # what of it was put in place: id of a kernel or a region -> tinygrad's name
    found: frozenset[str]  # those of it that something better than tinygrad's own was found for
    inside: frozenset[str]  # kernels that a program asks for only where their regions cannot be put in
    asked: set[str]  # the ids of the kernels that the program asked for so far, and that are no other program's
    replaced: Replaced  # what became of the calls that a program takes the place of
    others: dict[str, str] = field(default_factory=dict)  # device of that kind -> why its kernels are left to tinygrad

    @property
    def served(self) -> set[str]:
        """The ids of what the program got so far."""
        return self.asked.union(region for region, count in self.replaced.counts.items() if count)

    @property
    def sets_replaced(self) -> tuple[tuple[str, int], ...]:
        """Id of each region and kernel whose program took the place of its calls, and of how many sets of them."""
        return tuple(sorted(self.replaced.counts.items()))

    @property
    def sets_left(self) -> tuple[tuple[str, str, int], ...]:
        """Id, reason, and how many sets of its calls stayed as they were for that."""
        return tuple(sorted((region, why, count) for (region, why), count in self.replaced.left.items()))

    @property
    def left_to_tinygrad(self) -> list[str]:
        """A line for each such device."""
        return [f"{device}: its kernels are left to tinygrad: {why}" for device, why in self.others.items()]


@contextlib.contextmanager
def scheduling(result: Result, *, changed_only: bool = False, kernels: Sequence[Path] = ()) -> Iterator[InPlace]:
    """`tuned` for a result in memory, whatever the verdict on its model.

    With `changed_only`, kernels that keep tinygrad's own schedule are left to tinygrad. Raises MismatchError where a
    program cannot be used.
    """

    def refuse(line: str) -> None:
        raise MismatchError(line)

    with putting_in_place(result, refuse, changed_only=changed_only, kernels=kernels) as place:
        yield place


@contextlib.contextmanager
def putting_in_place(
    result: Result, failed: Callable[[str], None], *, changed_only: bool = False, kernels: Sequence[Path] = ()
) -> Iterator[InPlace]:
    """`scheduling` where what fails of the programs gives way to the best Opts: `failed` gets a line for each
    reason, now or when a program first asks for them. Opens the default device."""
    check_tinygrad(result, metadata.version("tinygrad"))
    from kcg.compat.capture import choosing_opts
    from kcg.compat.opened import open_default, opts_to_tiny
    from kcg.compat.programs import single_device
    from kcg.compat.standalone import devices_of, opened_device
    from kcg.handover.in_place import handwritten_programs
    from kcg.handover.programs import remade
    from kcg.kernel.codec import kernel_of
    from kcg.kernel.installing import installing

    opened = open_default(result.target.renderer if result.target.device == "CPU" else "")
    for name in vars(opened):
        _check_field(name, getattr(result.target, name), getattr(opened, name), result.target)
    all_of_them, made = choices(result, changed_only=changed_only)[0], remade(result)
    by_hand = {c.kernel: c.handwritten for c in all_of_them if kernels and c.handwritten is not None}
    chosen = [c for c in all_of_them if c.searched or c.kernel in by_hand or not changed_only]
    by_id = {c.kernel.id: opts_to_tiny(opts_of(c.schedule)) for c in chosen}
    handwritten = handwritten_programs(by_hand, kernels, result.target)
    known: dict[bytes, tuple[Any, ...] | None] = {}
    for line in failures(result, made.failed):
        failed(line)
    others: dict[str, str] = {}

    @functools.cache
    def is_for(device: str) -> bool:
        """Whether a device is of the model that the result is for: the default one is, others may not be."""
        if device.split(":")[0] != result.target.device:
            return False
        try:
            here = vars(opened_device(device))
        except Exception as error:  # tinygrad's own, which the program meets by itself
            others[device] = " ".join(str(error).split())[:300] or type(error).__name__
            return False
        if differ := [name for name in here if here[name] != getattr(result.target, name)]:
            (name, *_) = differ
            others[device] = f"{name}: made for {getattr(result.target, name)!r}, there it is {here[name]!r}"
        return not differ

    regions, asked = _regions_in_place(result, made, failed, is_for), set[str]()
    placed = {*by_id, *(one.region.id for one in regions)}
    names = {row.region.id: row.baseline.name for row in result.deployed if row.region.id in placed}
    found = {c.kernel.id for c in chosen if c.searched or c.kernel in by_hand} | {one.region.id for one in regions}
    inside = frozenset(names).difference(row.region.id for row in result.regions)

    def choose(ast: Any) -> tuple[Any, ...] | None:
        if ast.key not in known:
            known[ast.key] = None
            if all(map(is_for, devices_of(ast))):
                with contextlib.suppress(CodecError):  # hand-written or custom: no kernel that a result can hold
                    kernel_id = kernel_of(ast).id
                    known[ast.key] = by_id.get(kernel_id)
                    if kernel_id in by_id:
                        asked.add(kernel_id)
        return known[ast.key]

    def program(call: Any) -> Any:
        device = single_device(call) if by_hand else None
        if device is not None and is_for(device) and (made := handwritten(call)) is not None:
            asked.add(made[0])
            return made[1]
        return None

    with choosing_opts(choose, program), installing(regions) as replaced:
        yield InPlace(names, frozenset(found), inside, asked, replaced, others)


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


def _regions_in_place(
    result: Result,
    made: Remade,
    failed: Callable[[str], None],
    is_for: Callable[[str], bool],
) -> list[Replacement]:
    """What runs in the place of their calls, on the devices that it `is_for`. `failed` gets a line for a program that
    does not load."""
    from kcg.compat.replacing import Placed, Replacement
    from kcg.kernel.installing import placed_kernels, placed_program

    def program(row: RegionResult, device: str) -> Placed | None:
        try:
            return placed_program(row.region, made.programs[row.region.id], result.target, aligned=True)(device)
        except Exception as error:  # of the driver, or a program that this tinygrad cannot launch
            line = " ".join(str(error).split())[:300] or type(error).__name__
        failed(failures(result, {row.region.id: f"it does not load: {line}"})[0])
        return None

    def parts(row: RegionResult, device: str) -> Placed | None:
        return placed_kernels(row.region, schedules[row.region.id])

    def replacement(row: RegionResult) -> Replacement:
        on_device = program if row.region.id in made.programs else parts

        def place(device: str) -> Placed | None:
            return on_device(row, device) if is_for(device) else None

        return Replacement(row.region, place)

    rows = [row for row in changed_regions(result) if row.region.id not in made.failed]
    schedules = {row.region.id: schedules_of(row) for row in rows if row.region.id not in made.programs}
    return [replacement(row) for row in rows]


def schedules_of(row: RegionResult) -> list[Schedule]:
    """The schedules of the parts of a region of several kernels."""
    from kcg.kernel.composed import checked

    try:
        return [part.schedule for part in checked(row.region, row.chosen.schedule)]
    except ScheduleError as error:
        raise ResultError(f"the schedule of region {row.region.id[:12]} in the result: {error}") from None


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


def _still_searched(result: Result, chosen: Sequence[Choice]) -> int:
    """How many kernels BEAM finds nothing for in its cache: those of regions that have no row, and what the workload
    does not hold and BEAM can search."""
    served = {choice.kernel for choice in chosen}
    unserved = {kernel for row in result.regions for kernel in row.region.kernels} - served
    return len(unserved) + sum(left.kernels for left in result.left_out if left.searched_by_beam)


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


def _by_hand(count: int) -> str:
    verbs = ("is", "takes") if count == 1 else ("are", "take")
    return f"{count} kernel{'s' * (count > 1)} {verbs[0]} faster written by hand and {verbs[1]} the best Opts"


def check_model_result(result: Result) -> None:
    """Raises VerificationError where the whole model, or the script, failed with the schedules of the result."""
    if result.model_check is not None and result.model_check.passed is False:
        what = "script" if result.model_check.runs else "model"
        raise VerificationError(
            f"the result failed its last check, the whole {what}: {result.model_check.reason}: run the search again, "
            "with another --seed"
        )


def check_tinygrad(result: Result, installed: str) -> None:
    """Raises MismatchError where the result was made with another tinygrad."""
    if result.toolchain.tinygrad != installed:
        raise MismatchError(
            f"tinygrad: the result was made with {result.toolchain.tinygrad!r}, installed is {installed!r}: install "
            "that version, or run the search again with this one"
        )


def check_target(wanted: Target, here: Target) -> None:
    """Compare all that makes a target's fingerprint. Raises MismatchError with the first field that differs."""
    for name in (one.name for one in fields(Target)):
        _check_field(name, getattr(wanted, name), getattr(here, name), wanted)


def _check_field(name: str, wanted: object, here: object, target: Target) -> None:
    if wanted == here:
        return
    what = f"set DEV={target.tinygrad_device}" if name in ("device", "renderer") else "run the search on this machine"
    raise MismatchError(f"{name}: the result was made for {wanted!r}, here it is {here!r}: {what}")


def _detect(wanted: Target) -> tuple[Target, Toolchain]:
    """Target and toolchain of this machine's device of the same name, read in a child that is killed after."""
    from kcg.compat.device import choose_device
    from kcg.measure.service import MeasureService

    dev = wanted.tinygrad_device
    try:
        choose_device(dev)
        with MeasureService(dev, run_id=uuid.uuid4().hex) as service:
            return service.facts
    except DeviceError as error:
        reason = str(error).rpartition(";")[0] or str(error)  # without what else could be searched on
        raise MismatchError(
            f"device: the result was made for {dev} ({wanted.model}), which cannot be used here ({reason}): use it "
            "where it was made, or run the search on this machine"
        ) from error


def _checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    if not widths or any(not 1 <= width <= MAX_WIDTH for width in widths):
        raise UsageError(f"a beam width is a whole number from 1 to {MAX_WIDTH}, such as 2 for BEAM=2")
    return tuple(dict.fromkeys(widths))


def _notes(
    result: Result, toolchain: Toolchain, chosen: list[Choice], skipped: int, clang: str | None
) -> tuple[str, ...]:
    """What the user should know, though nothing is wrong; `clang` is what `missing_clang` says."""
    notes = [f"BEAM still searches: {left}" for left in result.left_out if left.searched_by_beam]
    if by_hand := sum(c.handwritten is not None for c in chosen):
        notes.append(f"{_by_hand(by_hand)}: BEAM's cache holds nothing else; kcg.tuned(..., kernels=FILE) uses it")
    for noun in dict.fromkeys(c.noun for c in chosen if c.program):
        names = [c.program for c in chosen if c.noun == noun]
        many = f"{counted(len(names), 'kernel')} {'is' if len(names) == 1 else 'are'}"
        takes = "takes" if len(names) == 1 else "take"
        notes.append(
            f"{many} faster as {noun}s and {takes} the best Opts here ({', '.join(names)}): kcg.tuned, python -m "
            "kcg.run and python -m kcg.optimize export use them"
        )
    if skipped:
        regions = f"{counted(skipped, 'region')} of several kernels"
        notes.append(f"{regions} cannot be served by BEAM's cache, which holds kernels alone")
    for name in ("compiler", "driver"):
        before, now = getattr(result.toolchain, name), getattr(toolchain, name)
        if before != now:
            notes.append(f"the {name} was {before!r} in the search and is {now!r} now: times may differ")
    notes += kept_as_they_are(result)
    if clang is not None:
        advice = f"export {shell.setting('CC', clang)}" if clang else "without it, use kcg.tuned"
        notes.append(f"plain tinygrad opens the CPU only where it finds clang: {advice}")
    return tuple(notes)


def kept_as_they_are(result: Result) -> list[str]:
    """Which kernels have tinygrad's own schedule although the search looked at them, a line for each reason."""
    notes = []
    if any(r.outcome == "improved" and not r.chosen.verification.passed for r in result.deployed):
        notes.append("what the search had not verified has tinygrad's own schedule")
    for outcome, why in (("unjudged", "are unjudged"), ("quarantined", "are wrong or fail as they are")):
        if count := sum(r.outcome == outcome for r in result.deployed):
            notes.append(f"kernels that {why} have tinygrad's own schedule: {count}")
    return notes
