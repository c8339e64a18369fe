"""A `Result` as one Python module that needs tinygrad only: `python -m kcg.export RESULT.json --python FILE`.

The module's code is that of `PARTS`, word for word but for what they import of each other. Behind it stands what was
found, as a value of `Found`, and a line that installs it. Of programs that tinygrad cannot make it
holds the machine code that was verified, of other kernels their Opts.
"""

from __future__ import annotations

import ast
import base64
import importlib
import inspect
import keyword
import sys
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from kcg import shell
from kcg.cli import counted
from kcg.compat.versions import tinygrad_version
from kcg.errors import ScheduleError, UsageError
from kcg.files import write_whole
from kcg.handover.checks import check_model_result, check_tinygrad
from kcg.handover.choices import Choice, changed_regions, choices, left_by_hand, schedules_of, what_to_know
from kcg.nouns import printable
from kcg.report.next_steps import missing_clang
from kcg.report.result import read_result
from kcg.types import Kernel, Region, RegionResult, Result, Schedule

if TYPE_CHECKING:
    from kcg.compat import standalone

WIDTH = 100  # characters of machine code in a line

PARTS = (
    "records",
    "versions",
    "cpu_opening",
    "store_hazards",
    "hazards",
    "stretch",
    "partition",
    "replacing",
    "standalone",
)
"""The modules of `kcg.compat` whose code the module is, in order. They import each other, tinygrad and Python's own."""

Instead = dict[Region, "standalone.Program | list[Schedule]"]
"""What runs in the place of regions, those that are put in first before others: a program, or their kernels so
scheduled."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote; `str()` is the summary for the user."""

    path: Path
    regions: int  # of several kernels
    fused: int  # of these with machine code; the others run their own kernels with Opts
    programs: int  # kernels with machine code
    searched: int  # others with Opts that the search found
    kernels: int
    needs: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        rest = self.kernels - self.programs - self.searched
        lines = [
            f"{self.path}: {counted(self.kernels, 'kernel')}: {self.programs} as machine code, {self.searched} with "
            f"Opts that were found, {rest} with tinygrad's own",
            f"it needs {self.needs}, and refuses anything else",
            *(f"note: {note}" for note in self.notes),
            f"use:  import {self.path.stem}, anywhere in the program before its model runs",
        ]
        if self.regions:
            regions = (
                f"{counted(self.regions, 'region')} of several kernels, where they fit: {self.fused} as machine code"
            )
            lines.insert(1, f"{regions}, {self.regions - self.fused} with Opts for their kernels")
        return "\n".join(map(printable, lines))


def export(result_path: Path, path: Path, *, kernels: Sequence[Path] = ()) -> Exported:
    """Write all of a result into a Python module. `kernels` are the files of hand-written kernels that the search had.

    Tile programs that cannot be made again as they were verified give way to the best Opts, or to each kernel alone,
    and a note says why.

    Raises:
        ResultError: no result, a damaged one, or one whose schedules do not apply to its kernels.
        VerificationError: the whole model's output with these schedules was wrong.
        MismatchError: it was made with another tinygrad, or of other kernels.
        UsageError: the file can be no Python module, is there and is no exported one, or cannot be written; there is
            no such file of kernels, or nothing to export.
    """
    _check_name(path)
    if missing := [file for file in kernels if not file.is_file()]:
        raise UsageError(f"there is no file of kernels {missing[0]}")
    result = read_result(result_path)
    check_model_result(result)
    check_tinygrad(result, tinygrad_version())
    chosen, _ = choices(result)
    instead, failed = _instead(result)
    instead |= _by_hand(chosen, result, kernels)
    notes = _left_out(result, failed)
    if line := left_by_hand(result, kernels):
        notes.append(f"{line}: give the file of kernels with --kernels to use them")
    if not instead and not any(choice.searched for choice in chosen):
        why = "; ".join(notes) or f"{result_path} has no schedule that was found and verified"
        raise UsageError(f"there is nothing to export: {why}")
    notes += [*what_to_know(result), *map(str, result.left_out)]
    if result.target.renderer != "X86" and (clang := missing_clang(result.target)):  # the assembler needs none
        notes.append(f"plain tinygrad opens the CPU only where it finds clang: export {shell.setting('CC', clang)}")
    folder, is_new = path.absolute().parent, not path.absolute().parent.exists()
    write_whole(path, module_text(result, chosen, instead))
    if is_new:
        notes.append(f"the folder {folder} was not there and was made")
    several = [region for region in instead if len(region.kernels) > 1]
    return Exported(
        path,
        regions=len(several),
        fused=sum(not isinstance(instead[region], list) for region in several),
        programs=len(instead) - len(several),
        searched=sum(choice.searched and Region((choice.kernel,)) not in instead for choice in chosen),
        kernels=len(chosen),
        needs=_needs(result),
        notes=tuple(notes),
    )


def _needs(result: Result) -> str:
    needs = [f"tinygrad {result.toolchain.tinygrad}", result.target.model]
    if result.toolchain.driver:
        needs.append(f"driver {result.toolchain.driver}")
    return ", ".join(needs)


def _instead(result: Result) -> tuple[Instead, dict[str, str]]:
    """What runs in the place of regions, as `kcg.tuned` puts it there, and by region's id why it cannot have its
    program."""
    from kcg.handover.installing import plain_program
    from kcg.handover.remaking import remade

    made = remade(result, to_run=False)
    found, failed = Instead(), dict(made.failed)
    for row in changed_regions(result):
        region = row.region
        if region.id in made.programs:
            try:
                found[region] = plain_program(region, made.programs[region.id], aligned=True)
            except ScheduleError as error:
                failed[region.id] = f"tinygrad cannot launch it: {error}"
        elif region.id not in failed:
            found[region] = schedules_of(row)
    return found, failed


def _left_out(result: Result, failed: Mapping[str, str]) -> list[str]:
    """The programs that the module cannot have, and why: a line for each reason."""
    from kcg.kernel.composed import noun_in

    about: dict[tuple[str, str, str], list[RegionResult]] = {}
    for row in result.deployed:
        if row.region.id in failed:
            instead = "the best Opts" if len(row.region.kernels) == 1 else "each kernel alone"
            about.setdefault((instead, noun_in(row.chosen.schedule), failed[row.region.id]), []).append(row)
    return [
        f"{counted(len(rows), noun)} left out, with {instead} instead "
        f"({', '.join(row.baseline.name for row in rows)}): {reason}"
        for (instead, noun, reason), rows in about.items()
    ]


def _check_name(path: Path) -> None:
    """Raises UsageError where a file can be no module, would hide another one, or holds what is not ours."""
    name = path.stem
    if path.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{path} cannot be imported: give --python the name of a module, such as tuned_model.py")
    if name in ("tinygrad", "kcg") or name in sys.stdlib_module_names:
        raise UsageError(f"{path} would be imported instead of {name} itself: give --python another name")
    if path.is_file() and not _begins_with(path, _beginning()):
        raise UsageError(f"{path} is there and is no exported module: give --python another name, or remove it")


def _begins_with(path: Path, text: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(text)) == text


def _beginning() -> bytes:
    """What every exported module begins with."""
    from kcg.compat import standalone

    return inspect.getsource(standalone).partition("\n")[0].encode()


def _by_hand(chosen: Sequence[Choice], result: Result, files: Sequence[Path]) -> Instead:
    """The hand-written kernels as programs, made anew from the user's files."""
    from kcg.handover.installing import plain_program
    from kcg.kernel.program import Program, ProgramLaunch
    from kcg.measure.source_kernels import rebuilt

    wanted = {Region((c.kernel,)): c.handwritten for c in chosen if files and c.handwritten is not None}
    made = rebuilt(wanted, files, result.target) if wanted else {}
    return {
        region: plain_program(
            region, Program((ProgramLaunch(compiled, compiled.slots),), 1 + max(compiled.slots)), aligned=True
        )
        for region, compiled in made.items()
    }


def module_text(result: Result, chosen: Sequence[Choice], instead: Instead) -> str:
    """The module for a result: its code, the data, and the line that installs it."""
    from kcg.compat import standalone

    target, toolchain = result.target, result.toolchain
    opened = standalone.Opened(**{f.name: getattr(target, f.name) for f in fields(standalone.Opened)})
    names = {row.region.id: row.chosen.name for row in result.deployed}
    lines = [
        code(),
        "",
        "",
        f"# ---- the data: {result.workload!a}, searched {result.created!a} by kcg {result.kcg_version!a}",
        "",
        "FOUND = Found(",
        f"    tinygrad={toolchain.tinygrad!r},",
        f"    driver={toolchain.driver!r},",
        f"    opened={opened!r},",
        "    regions=(",
        *(_region_text(region, what, names[region.id]) for region, what in instead.items()),
        "    ),",
        "    opts={",
        *(f"        {_key(c.kernel)!r}: {_opts(c.schedule)!r},  # {names[c.kernel.id]!a}" for c in chosen),
        "    },",
        ")",
        "",
        "install(FOUND)",
        "",
    ]
    return "\n".join(lines)


def code() -> str:
    """The code of the module, behind what `kcg.compat.standalone` says of it."""
    modules = [importlib.import_module(f"kcg.compat.{name}") for name in PARTS]
    about = f'"""{modules[-1].__doc__}"""'
    parts = (f"# ---- kcg/compat/{name}.py\n\n{_own(module)}" for name, module in zip(PARTS, modules, strict=True))
    return "\n\n\n".join((f"{about}\n\nfrom __future__ import annotations", *parts))


def _own(module: ModuleType) -> str:
    """The text of a part without its docstring and what it imports of kcg."""
    text = inspect.getsource(module)
    lines = text.splitlines()
    for node in ast.parse(text).body[::-1]:
        is_imported = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("kcg", "__future__")
        if is_imported or node.lineno == 1:
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip()


def _key(kernel: Kernel) -> str:
    from kcg.kernel.codec import ast_of

    return str(ast_of(kernel).key.hex())


def _opts(schedule: Schedule) -> standalone.Opts:
    from kcg.kernel.kinds import opts_of

    return tuple((opt.op, opt.axis, opt.arg) for opt in opts_of(schedule))


def _region_text(region: Region, what: standalone.Program | list[Schedule], name: str) -> str:
    from kcg.compat import standalone

    known = standalone.Region(
        _key(region.kernel) if len(region.kernels) == 1 else region.id,
        tuple(standalone.Kernel(_key(kernel)) for kernel in region.kernels),
        region.args,
        region.outputs,
        region.again,
    )
    if isinstance(what, list):
        body = f"{tuple(map(_opts, what))!r}"
    else:
        launches = "\n".join(map(_launch_text, what.launches))
        rest = ", ".join(f"{f.name}={getattr(what, f.name)!r}" for f in fields(what) if f.name != "launches")
        body = f"Program(\n    launches=(\n{textwrap.indent(launches, ' ' * 8)}\n    ),\n    {rest},\n)"
    return textwrap.indent(f"(  # {name!a}\n    {known!r},\n{textwrap.indent(body, ' ' * 4)},\n),", " " * 8)


def _launch_text(launch: standalone.Launch) -> str:
    packed = base64.b64encode(zlib.compress(launch.code, 9)).decode()
    code = "\n".join(f'    "{line}"' for line in textwrap.wrap(packed, WIDTH))
    others = replace(launch, source="")  # for readers of the search's report
    rest = ", ".join(f"{f.name}={getattr(others, f.name)!r}" for f in fields(others) if f.name != "code")
    return f"Launch(unpacked(\n{code}\n), {rest}),"
