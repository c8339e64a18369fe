"""A `Result` in one process: its schedules and programs in the place of the kernels that it plans."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kcg.compat.versions import tinygrad_version
from kcg.errors import CodecError, MismatchError
from kcg.handover.checks import check_model_result, check_target, check_tinygrad
from kcg.handover.choices import changed_regions, choices, failures, left_by_hand, schedules_of
from kcg.kernel.kinds import opts_of
from kcg.report.result import read_result
from kcg.types import RegionResult, Result

if TYPE_CHECKING:
    from kcg.compat.replacing import Replaced, Replacement
    from kcg.handover.remaking import Remade


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


@dataclass
class InPlace:
    """What a process has of a result."""

    names: dict[str, str]  # what of it was put in place: id of a kernel or a region -> tinygrad's name
    found: frozenset[str]  # those of it that something better than tinygrad's own was found for
    inside: frozenset[str]  # kernels that a program asks for only where their regions cannot be put in
    asked: set[str]  # the ids of the kernels that the program asked for so far, and that are no other program's
    replaced: Replaced  # what became of the calls that a program takes the place of
    own_schedules: Callable[[], contextlib.AbstractContextManager[None]]
    """A block in which this thread gets tinygrad's own schedules."""
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
    check_tinygrad(result, tinygrad_version())
    from kcg.compat.capture import choosing_opts
    from kcg.compat.lowering import lowering_together
    from kcg.compat.opened import open_default, opts_to_tiny
    from kcg.compat.programs import single_device
    from kcg.compat.quick_schedules import scheduling_quickly
    from kcg.compat.standalone import devices_of, opened_device
    from kcg.handover.in_place import handwritten_programs
    from kcg.handover.installing import installing
    from kcg.handover.remaking import remade
    from kcg.kernel.codec import kernel_of

    opened = open_default(result.target.renderer if result.target.device == "CPU" else "")
    check_target(result.target, opened)
    all_of_them, made = choices(result, changed_only=changed_only)[0], remade(result)
    by_hand = {c.kernel: c.handwritten for c in all_of_them if kernels and c.handwritten is not None}
    chosen = [c for c in all_of_them if c.searched or c.kernel in by_hand or not changed_only]
    by_id = {c.kernel.id: opts_to_tiny(opts_of(c.schedule)) for c in chosen}
    handwritten = handwritten_programs(by_hand, kernels, result.target)
    known: dict[bytes, tuple[Any, ...] | None] = {}
    for line in failures(result, made.failed):
        failed(line)
    others: dict[str, str] = {}
    own = threading.local()  # whether this thread gets tinygrad's own schedules

    @contextlib.contextmanager
    def own_schedules() -> Iterator[None]:
        before, own.now = gets_own(), True
        try:
            yield
        finally:
            own.now = before

    def gets_own() -> bool:
        return getattr(own, "now", False)

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
        if gets_own():
            return None
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
        device = single_device(call) if by_hand and not gets_own() else None
        if device is not None and is_for(device) and (made := handwritten(call)) is not None:
            asked.add(made[0])
            return made[1]
        return None

    with (
        scheduling_quickly(),
        lowering_together(),
        choosing_opts(choose, program),
        installing(regions, is_off=gets_own) as replaced,
    ):
        yield InPlace(names, frozenset(found), inside, asked, replaced, own_schedules, others)


def _regions_in_place(
    result: Result,
    made: Remade,
    failed: Callable[[str], None],
    is_for: Callable[[str], bool],
) -> list[Replacement]:
    """What runs in the place of their calls, on the devices that it `is_for`. `failed` gets a line for a program that
    does not load."""
    from kcg.compat.replacing import Placed, Replacement
    from kcg.handover.installing import placed_kernels, placed_program

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
