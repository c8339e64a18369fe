"""What to do with a result: the commands that use it, or that look for more, with everything filled in."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kcg import shell
from kcg.cli import parse_budget
from kcg.commands import as_typed, typed
from kcg.errors import UsageError
from kcg.kernel.kinds import fits_beam_cache, traits_of
from kcg.report.endings import may_find_more, whole_is_checked
from kcg.report.words import checked_as
from kcg.types import RegionResult, Result, Target
from kcg.workloads.script import Form, Program, bounded, workload_name

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 2  # of the BEAM that a result is applied for
YOUR_PROGRAM = "your_program.py"  # where the workload is none
RESUME, EFFORT, BUDGET, MEASUREMENTS = "--resume", "--effort", "--budget", "--measurements"
_ADVICE = re.compile(r"try --budget (\d+s)")  # of `kcg.optimize.estimates`


class NextStep(NamedTuple):
    """A command, as it can be typed, and what it does in a few words."""

    command: str
    does: str


def next_steps(result: Result, path: Path) -> tuple[NextStep, ...]:
    """What to do with a result that is stored at `path`, the best first; nothing where it is wrong as a whole."""
    if result.model_check is not None and result.model_check.passed is False:
        return ()
    found = [row for row in result.deployed if row.outcome == "improved" and row.chosen.verification.passed]
    if not found:
        return tuple(_looking_further(result))
    further = not result.complete or may_find_more(result)
    return *_using(result, path, found), *_checking(result, path), *(_looking_further(result) if further else [])


def _using(result: Result, path: Path, found: Sequence[RegionResult]) -> Iterator[NextStep]:
    """Into tinygrad's own cache what fits there; by kcg, or by a module, what does not."""
    program, clang = program_in(result), missing_clang(result.target)
    files = [word for file in option_values(result.command, "--kernels") for word in ("--kernels", file)]
    by_hand = files if any(traits_of(row.chosen.schedule).by_hand for row in found) else []
    run = shell.command(typed("run"), "--result", path, *by_hand, *(program.command if program else [YOUR_PROGRAM]))
    name = re.sub(r"\W+", "_", program.name if program else result.workload).strip("_")
    export = shell.command(typed("export"), path, "--python", f"tuned_{name}.py", *by_hand)
    apply = shell.command(typed("apply"), path, "--beam", str(WIDTH))
    only_opts = all(fits_beam_cache(row.chosen.schedule) for row in found)
    opts = any(fits_beam_cache(one.schedule) for row in found for one in (row.chosen, row.opts) if one is not None)
    if not only_opts or clang == "":  # without any clang plain tinygrad does not open a CPU
        yield NextStep(run, "your program, unchanged")
        yield NextStep(export, "a module for tinygrad alone")
    if clang != "" and opts:
        yield NextStep(apply, "into tinygrad's BEAM cache" + ("" if only_opts else ": Opts alone"))
    if clang != "" and only_opts:
        words = program.command if program else [YOUR_PROGRAM]
        yield NextStep(
            beam_command(result.target.tinygrad_device, clang or "", width=WIDTH, program=words), "uses it, no search"
        )
        yield NextStep(export, "a module for tinygrad alone")


def _checking(result: Result, path: Path) -> Iterator[NextStep]:
    """What is provisional has the rest of its launches under stress, and what was not compared as a whole is; a
    function is compared where it is called."""
    what = ["completes what is provisional"] if result.provisional else []
    if not whole_is_checked(result) and checked_as(result) != "function":
        what.append("compares the whole")
    if what:
        yield NextStep(shell.command(typed("check"), path), f"{' and '.join(what)}, no search")


def _looking_further(result: Result) -> Iterator[NextStep]:
    """A run that ended early goes on; one that came to its end may take longer."""
    command = result.command
    if not _words(command):
        return
    advised = [found[1] for warning in result.warnings if (found := _ADVICE.search(warning))]
    budgets = option_values(command, BUDGET)
    if advised:
        yield NextStep(with_option(resumed(command), BUDGET, advised[0]), "goes on, with time to search")
    elif not result.complete and (RESUME not in _own_words(command) or not budgets):
        yield NextStep(resumed(command), "goes on: what was measured is kept")
    elif budgets:
        with contextlib.suppress(UsageError):
            longer = f"{2 * parse_budget(budgets[-1]):g}s"
            yield NextStep(with_option(resumed(command), BUDGET, longer), "goes on, for longer")
    elif (counts := option_values(command, MEASUREMENTS)) and counts[-1].isdecimal() and may_find_more(result):
        more = with_option(resumed(command), MEASUREMENTS, str(2 * int(counts[-1])))
        yield NextStep(more, "goes on, measures more")
    elif "thorough" not in option_values(command, EFFORT):
        yield NextStep(with_option(as_typed(command), EFFORT, "thorough"), "searches for longer")


# ---- the command that made a result ----


def resumed(command: str) -> str:
    """The command that continues a run which ended early, as it works here."""
    command = as_typed(command)
    return command if RESUME in _own_words(command) else with_option(command, RESUME)


def with_option(command: str, option: str, *values: str) -> str:
    """A command with this option, in the place of what it said of it before."""
    own = _own_words(command)
    rest = _words(command)[len(own) :]
    kept, words = [], iter(own)
    for word in words:
        if word == option:
            for _ in values:
                next(words, None)
        elif not _is(word, option):
            kept.append(word)
    return shlex.join([*kept, option, *values, *rest])


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a result can come from anywhere
        return []


def _own_words(command: str) -> list[str]:
    """Those before `--`: what comes after is the program's."""
    words = _words(command)
    return words[: words.index("--")] if "--" in words else words


def option_values(command: str, option: str) -> list[str]:
    """What a command gives an option."""
    words = _own_words(command)
    pairs = itertools.pairwise([*words, ""])
    both = (value if word == option else word.removeprefix(f"{option}=") for word, value in pairs if _is(word, option))
    return list(both)


def _is(word: str, option: str) -> bool:
    return word == option or word.startswith(f"{option}=")


def program_in(result: Result) -> Program | None:
    """The program whose kernels a result is of, as its command names it; None where it is no program's."""
    own, words = _own_words(result.command), _words(result.command)
    for place, word in enumerate(words):
        form = {"-m": Form.MODULE, "-c": Form.CODE}.get(words[place - 1] if place else "", Form.SCRIPT)
        if workload_name(Program(form, word)) == result.workload and (form != Form.SCRIPT or word.endswith(".py")):
            after = words[max(place, len(own)) + 1 :]  # after --, or after a program that is named there
            if bounded(shlex.join(after)) != result.preset == bounded(result.preset):
                after = _words(result.preset)  # which are its arguments, wherever they stood
            return Program(form, word, tuple(after))
    return None


# ---- plain tinygrad


def beam_command(dev: str, clang: str, *, width: int, program: Sequence[str] = ("your_program.py",)) -> str:
    """How a program is started so that it uses what was applied; with a `clang` that tinygrad does not find itself."""
    compiler = f"{shell.setting('CC', clang)} " if clang else ""
    return f"{compiler}DEV={dev} BEAM={width} {shell.command(shell.interpreter_here(), *program)}"


def missing_clang(target: Target) -> str | None:
    """Where plain tinygrad would not find the clang that it needs on a CPU: one that is here, or "" without any."""
    from kcg.compat.device import clang_of_others, clang_path

    return (clang_path() or "") if target.device == "CPU" and clang_of_others() is None else None
