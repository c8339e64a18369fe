"""kcg run --result RESULT.json script.py args | -m module args | -c code args: with all that was found."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcg.cli import command_app, counted, examples, guarded, run_app
from kcg.commands import SETTINGS, command_name
from kcg.errors import KcgError, UsageError
from kcg.nouns import printable

if TYPE_CHECKING:
    from kcg.handover.deploy import InPlace
    from kcg.types import Result
    from kcg.workloads.script import Program

app = command_app(no_args_is_help=True)
AS_PYTHON = {**SETTINGS, "allow_interspersed_args": False, "ignore_unknown_options": True}
"""What comes after the program's name is its own, and `-m` and `-c` are Python's."""

_runs: list[ProgramRun] = []  # what was asked for; its hooks stay until the process ends


class ProgramRun:
    """A program in this process, unchanged, with a result in place from the first that tinygrad plans.

    tinygrad is imported by the program, after whatever it sets in its environment.
    """

    def __init__(self, path: Path, result: Result, program: Program, kernels: tuple[Path, ...]) -> None:
        self._path, self._result, self._program, self._kernels = path, result, program, kernels
        self._pid, self._stays = os.getpid(), contextlib.ExitStack()
        self._place: InPlace | None = None
        self._refused: KcgError | None = None
        self._failures: list[str] = []

    def run(self) -> None:
        """Do what `python` does with the program, and let out whatever it raises. A result that is not for the device
        ends it, in one line. The report comes after the program's threads and exit handlers."""
        import concurrent.futures.process  # noqa: F401  # which a thread that outlives the main one cannot import

        from kcg.compat.capture import opening
        from kcg.compat.planning import at_first_planning
        from kcg.workloads import script

        atexit.register(self._report)  # the first that is registered is the last that runs
        dev = os.environ.get("DEV") or self._result.target.tinygrad_device
        self._stays.enter_context(opening(dev))
        self._stays.enter_context(at_first_planning(self._prepare))
        try:
            script.run_as_main(self._program)
        except KcgError as error:
            not_started = traceback.extract_tb(error.__traceback__)[-1].filename == script.__file__
            if error is not self._refused and not not_started:
                raise  # the program's own
            atexit.unregister(self._report)
            _end(error)

    def _prepare(self) -> None:
        from kcg.handover.deploy import putting_in_place

        try:
            placing = putting_in_place(self._result, self._failures.append, kernels=self._kernels)
            self._place = self._stays.enter_context(placing)
        except KcgError as error:  # another device than the result is for, for one
            self._refused = error
            raise

    def _report(self) -> None:
        if os.getpid() != self._pid:  # a process that the program forked
            return
        with contextlib.suppress(OSError, ValueError):  # nobody can be told
            for line in self._lines():
                sys.stderr.write(f"kcg: {printable(line)}\n")

    def _lines(self) -> list[str]:
        place = self._place
        if place is None:
            why = f": {self._refused}" if self._refused else ": the program ran no kernel of tinygrad"
            return [f"nothing of {self._path} was used{why}"]
        from kcg.handover.deploy import left_by_hand
        from kcg.report.counts import share_of

        replaced, served = place.replaced, place.served & place.names.keys()
        by_program = {region for region in served if replaced.counts[region]}
        found = served & place.found - by_program
        # kernels that regions run are asked for where one is not put in alone
        asked = [one for one in place.names if one in served or one not in place.inside]
        known = {row.region.id: row.region for row in self._result.deployed}
        of_these = share_of((known[one] for one in served), (known[one] for one in asked))
        lines = [
            f"of {self._path}, {of_these} served: {len(by_program)} by "
            f"compiled programs ({counted(replaced.counts.total(), 'call')}), {len(found)} by schedules that were "
            f"found, {len(served) - len(by_program) - len(found)} by tinygrad's own"
        ]
        refused = {region for region, _, _ in place.sets_left}
        if missing := [place.names[one] for one in asked if one in place.found - served - refused]:
            lines.append(f"not served, since the program did not ask for them: {', '.join(missing)}")
        lines += [
            f"{place.names[region]}: {counted(count, 'call')} left without its program: {reason}"
            for region, reason, count in place.sets_left
        ]
        lines += place.left_to_tinygrad
        if line := left_by_hand(self._result, self._kernels):
            lines.append(f"{line}: give the file of kernels with --kernels to use them")
        return [*lines, *self._failures]


def _end(error: BaseException) -> None:
    """Say an error in one line and end with its exit code."""

    def fail() -> None:
        raise error

    guarded(fail)


@app.command(
    context_settings=AS_PYTHON,
    epilog=examples(
        "kcg run --result kcg-out/train/RESULT.json train.py --its-own arguments",
        "kcg run --result RESULT.json -m package.module",
    ),
)
def run(
    result: Annotated[Path, typer.Option(metavar="FILE", help="the RESULT.json of kcg optimize")],
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="script.py args, -m module args, or -c code args")
    ],
    kernels: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="a file of hand-written kernels that the search had; may be repeated"),
    ] = None,
) -> None:
    """Run a program unchanged with everything of a result in place. Its exit status is the program's."""
    from kcg.handover.deploy import check_model_result
    from kcg.report.result import read_result
    from kcg.workloads.script import check_program, program_of

    found = read_result(result)
    check_model_result(found)
    asked = program_of(program)
    check_program(asked)
    files = tuple(path.absolute() for path in kernels or ())
    if missing := [path for path in files if not path.is_file()]:
        raise UsageError(f"there is no file of kernels {missing[0]}")
    _runs.append(ProgramRun(result, found, asked, files))


def main() -> None:
    """Read the command line, then become the program."""
    try:
        run_app(app, command_name("run"))
    except Exception as error:
        _end(error)
    for one in _runs:
        one.run()


if __name__ == "__main__":
    # run as a module of the package, so that what the program imports does not see this one as __main__
    from kcg.run import main as main_of_the_package

    main_of_the_package()
