"""A `Result` in plain tinygrad, written into its BEAM cache, and taken back.

tinygrad's BEAM looks into its disk cache before it searches. `apply` puts the chosen schedule of every kernel there,
tinygrad's own where nothing better was verified, so that an unchanged program with `BEAM=N` searches nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kcg import shell
from kcg.cli import counted
from kcg.commands import typed
from kcg.compat.versions import tinygrad_version
from kcg.errors import DeviceError, MismatchError, UsageError
from kcg.handover.checks import check_model_result, check_target, check_tinygrad
from kcg.handover.choices import Choice, by_hand_line, choices, what_to_know
from kcg.kernel.kinds import opts_of
from kcg.nouns import printable
from kcg.report.next_steps import YOUR_PROGRAM, beam_command, missing_clang
from kcg.report.result import read_result
from kcg.types import Result, Target, Toolchain

if TYPE_CHECKING:
    from kcg.handover.cache_rows import Undone

MAX_WIDTH = 1000


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
    clang: str | None = None  # what `missing_clang` says: "" where there is none, so that nothing can use it
    result: Path = Path("RESULT.json")

    @property
    def undo_command(self) -> str:
        """The command that takes it back."""
        where = () if self.own_cache else ("--cachedb", self.cache_db)
        return shell.command(typed("apply"), "--undo", *where)

    @property
    def use_command(self) -> str:
        """How the user's program is started: where plain tinygrad cannot open the CPU, by kcg."""
        if self.clang == "":
            return shell.command(typed("run"), "--result", self.result, YOUR_PROGRAM)
        where = "" if self.own_cache else f"{shell.setting('CACHEDB', self.cache_db.absolute())} "
        return where + beam_command(self.dev, self.clang or "", width=self.widths[0])

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
    check_tinygrad(result, tinygrad_version() if facts is None else facts[1].tinygrad)
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
        clang=clang,
        result=result_path,
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


def _checked_widths(widths: Sequence[int]) -> tuple[int, ...]:
    if not widths or any(not 1 <= width <= MAX_WIDTH for width in widths):
        raise UsageError(f"a beam width is a whole number from 1 to {MAX_WIDTH}, such as 2 for BEAM=2")
    return tuple(dict.fromkeys(widths))


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


def _still_searched(result: Result, chosen: Sequence[Choice]) -> int:
    """How many kernels BEAM finds nothing for in its cache: those of regions that have no row, and what the workload
    does not hold and BEAM can search."""
    served = {choice.kernel for choice in chosen}
    unserved = {kernel for row in result.regions for kernel in row.region.kernels} - served
    return len(unserved) + sum(left.kernels for left in result.left_out if left.searched_by_beam)


def _notes(
    result: Result, toolchain: Toolchain, chosen: list[Choice], skipped: int, clang: str | None
) -> tuple[str, ...]:
    """What the user should know, though nothing is wrong; `clang` is what `missing_clang` says."""
    notes = [f"BEAM still searches: {left}" for left in result.left_out if left.searched_by_beam]
    if by_hand := sum(c.handwritten is not None for c in chosen):
        notes.append(f"{by_hand_line(by_hand)}: BEAM's cache holds nothing else; kcg.tuned(..., kernels=FILE) uses it")
    for noun in dict.fromkeys(c.noun for c in chosen if c.program):
        names = [c.program for c in chosen if c.noun == noun]
        many = f"{counted(len(names), 'kernel')} {'is' if len(names) == 1 else 'are'}"
        takes = "takes" if len(names) == 1 else "take"
        notes.append(
            f"{many} faster as {noun}s and {takes} the best Opts here ({', '.join(names)}): kcg.tuned, python -m "
            "kcg.run and python -m kcg.export use them"
        )
    if skipped:
        regions = f"{counted(skipped, 'region')} of several kernels"
        notes.append(f"{regions} cannot be served by BEAM's cache, which holds kernels alone")
    for name in ("compiler", "driver"):
        before, now = getattr(result.toolchain, name), getattr(toolchain, name)
        if before != now:
            notes.append(f"the {name} was {before!r} in the search and is {now!r} now: times may differ")
    notes += what_to_know(result)
    if clang is not None:
        advice = f"export {shell.setting('CC', clang)}" if clang else "without it, kcg.run and kcg.tuned use the result"
        notes.append(f"plain tinygrad opens the CPU only where it finds clang: {advice}")
    return tuple(notes)
