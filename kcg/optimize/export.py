"""A `Result` as one Python module that needs tinygrad only: `python -m kcg.optimize export RESULT.json --python FILE`.

The module's code is `kcg.compat.standalone`, word for word; behind it stands what was found, as a value of its `Found`,
and a line that installs it. Of tile programs it holds the machine code that was verified, of other kernels their Opts.
"""

from __future__ import annotations

import base64
import inspect
import keyword
import sys
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.errors import UsageError
from kcg.files import write_whole
from kcg.optimize import deploy
from kcg.optimize.result import read_result
from kcg.types import Region, Result

if TYPE_CHECKING:
    from kcg.compat import standalone
    from kcg.kernel.program import Program

WIDTH = 100  # characters of machine code in a line


@dataclass(frozen=True)
class Exported:
    """What `export` wrote; `str()` is the summary for the user."""

    path: Path
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
        return "\n".join(lines)


def export(result_path: Path, path: Path, *, kernels: Sequence[Path] = ()) -> Exported:
    """Write all of a result into a Python module. `kernels` are the files of hand-written kernels that the search had.

    Tile programs that cannot be made again as they were verified give way to the best Opts, and a note says why.

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
    deploy.check_model_result(result)
    deploy.check_tinygrad(result, metadata.version("tinygrad"))
    from kcg.optimize.tile_programs import remade

    tiles, (choices, skipped) = remade(result, to_run=False), deploy.choices(result)
    by_id = {row.region.id: row.region for row in result.deployed if len(row.region.kernels) == 1}
    programs = {by_id[region]: program for region, program in tiles.programs.items() if region in by_id}
    programs |= _by_hand(choices, result, kernels)
    notes = _left_out(result, tiles.failed)
    if line := deploy.left_by_hand(result, kernels):
        notes.append(f"{line}: give the file of kernels with --kernels to use them")
    if not programs and not any(choice.searched for choice in choices):
        why = "; ".join(notes) or f"{result_path} has no schedule that was found and verified"
        raise UsageError(f"there is nothing to export: {why}")
    if skipped:
        regions = f"{counted(skipped, 'region')} of several kernels left out"
        notes.append(f"{regions}: only kcg.tuned and kcg.run use them, a module has kernels alone")
    notes += [*deploy.kept_as_they_are(result), *map(str, result.left_out)]
    folder, is_new = path.absolute().parent, not path.absolute().parent.exists()
    write_whole(path, module_text(result, choices, programs))
    if is_new:
        notes.append(f"the folder {folder} was not there and was made")
    needs = [f"tinygrad {result.toolchain.tinygrad}", result.target.model]
    if result.toolchain.driver:
        needs.append(f"driver {result.toolchain.driver}")
    searched = sum(choice.searched and Region((choice.kernel,)) not in programs for choice in choices)
    return Exported(path, len(programs), searched, len(choices), ", ".join(needs), tuple(notes))


def _left_out(result: Result, failed: Mapping[str, str]) -> list[str]:
    """The tile programs that the module cannot have, and why: a line for each reason."""
    about: dict[str, list[str]] = {}
    for row in result.deployed:
        if row.region.id in failed and len(row.region.kernels) == 1:
            about.setdefault(failed[row.region.id], []).append(row.baseline.name)
    return [
        f"{counted(len(names), 'tile program')} left out, with the best Opts instead ({', '.join(names)}): {reason}"
        for reason, names in about.items()
    ]


def _check_name(path: Path) -> None:
    """Raises UsageError where a file can be no module, would hide another one, or holds what is not ours."""
    name = path.stem
    if path.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{path} cannot be imported: give --python the name of a module, such as tuned_model.py")
    if name in ("tinygrad", "kcg") or name in sys.stdlib_module_names:
        raise UsageError(f"{path} would be imported instead of {name} itself: give --python another name")
    if path.is_file() and not path.read_bytes().startswith(_beginning()):
        raise UsageError(f"{path} is there and is no exported module: give --python another name, or remove it")


def _beginning() -> bytes:
    """What every exported module begins with."""
    from kcg.compat import standalone

    return inspect.getsource(standalone).partition("\n")[0].encode()


def _by_hand(choices: Sequence[deploy.Choice], result: Result, files: Sequence[Path]) -> dict[Region, Program]:
    """The hand-written kernels as programs, made anew from the user's files."""
    from kcg.kernel.program import Program, ProgramLaunch
    from kcg.measure.source_kernels import rebuilt

    wanted = {Region((c.kernel,)): c.handwritten for c in choices if files and c.handwritten is not None}
    made = rebuilt(wanted, files, result.target) if wanted else {}
    return {
        region: Program((ProgramLaunch(compiled, compiled.slots),), 1 + max(compiled.slots))
        for region, compiled in made.items()
    }


def module_text(result: Result, choices: Sequence[deploy.Choice], programs: Mapping[Region, Program]) -> str:
    """The module for a result: `kcg.compat.standalone`, the data, and the line that installs it."""
    from kcg.compat import standalone

    target, toolchain = result.target, result.toolchain
    opened = standalone.Opened(**{f.name: getattr(target, f.name) for f in fields(standalone.Opened)})
    names = {row.region.id: row.chosen.name for row in result.deployed}
    lines = [
        inspect.getsource(standalone).rstrip(),
        "",
        "",
        f"# ---- the data: {result.workload!a}, searched {result.created!a} by kcg {result.kcg_version!a}",
        "",
        "FOUND = Found(",
        f"    tinygrad={toolchain.tinygrad!r},",
        f"    driver={toolchain.driver!r},",
        f"    opened={opened!r},",
        "    programs={",
        *(_program_text(region, program, names[region.id]) for region, program in programs.items()),
        "    },",
        "    opts={",
        *(_opts_text(choice, names[choice.kernel.id]) for choice in choices),
        "    },",
        ")",
        "",
        "install(FOUND)",
        "",
    ]
    return "\n".join(lines)


def _opts_text(choice: deploy.Choice, name: str) -> str:
    from kcg.kernel.codec import ast_of
    from kcg.kernel.opts.schedule import opts_of

    opts = tuple((opt.op, opt.axis, opt.arg) for opt in opts_of(choice.schedule))
    return f"        {ast_of(choice.kernel).key.hex()!r}: {opts!r},  # {name!a}"


def _program_text(region: Region, program: Program, name: str) -> str:
    from kcg.kernel.codec import ast_of
    from kcg.kernel.installing import plain_program

    plain = plain_program(region, program, aligned=True)
    launches = "\n".join(_launch_text(launch) for launch in plain.launches)
    rest = ", ".join(f"{f.name}={getattr(plain, f.name)!r}" for f in fields(plain) if f.name != "launches")
    body = f"Program(  # {name!a}\n    launches=(\n{textwrap.indent(launches, ' ' * 8)}\n    ),\n    {rest},\n),"
    return textwrap.indent(f"{ast_of(region.kernel).key.hex()!r}: {body}", " " * 8)


def _launch_text(launch: standalone.Launch) -> str:
    packed = base64.b64encode(zlib.compress(launch.code, 9)).decode()
    code = "\n".join(f'    "{line}"' for line in textwrap.wrap(packed, WIDTH))
    others = replace(launch, source="")  # for readers of the search's report
    rest = ", ".join(f"{f.name}={getattr(others, f.name)!r}" for f in fields(others) if f.name != "code")
    return f"Launch(unpacked(\n{code}\n), {rest}),"
