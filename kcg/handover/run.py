"""A program in this process with everything of a `Result` in place, and a report of what was used when it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from kcg.cli import counted, guarded
from kcg.errors import KcgError
from kcg.nouns import printable

if TYPE_CHECKING:
    from kcg.handover.tuned import InPlace
    from kcg.types import Result
    from kcg.workloads.script import Program


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
        from kcg.compat.quick_schedules import scheduling_quickly
        from kcg.workloads import script

        atexit.register(self._report)  # the first that is registered is the last that runs
        dev = os.environ.get("DEV") or self._result.target.tinygrad_device
        self._stays.enter_context(opening(dev))
        self._stays.enter_context(scheduling_quickly())  # the first schedule comes before anything is planned
        self._stays.enter_context(at_first_planning(self._prepare))
        try:
            script.run_as_main(self._program)
        except KcgError as error:
            not_started = traceback.extract_tb(error.__traceback__)[-1].filename == script.__file__
            if error is not self._refused and not not_started:
                raise  # the program's own
            atexit.unregister(self._report)
            end(error)

    def _prepare(self) -> None:
        from kcg.handover.tuned import putting_in_place

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
        from kcg.handover.choices import left_by_hand
        from kcg.report.counts import share_of
        from kcg.report.words import provisional_line

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
        if line := provisional_line(self._result):
            lines.append(line)
        return [*lines, *self._failures]


def end(error: BaseException) -> None:
    """Say an error in one line and end with its exit code."""

    def fail() -> None:
        raise error

    guarded(fail)
