"""An optimisation as far as its baselines, for tests of single steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from kcg.dataset.journal import Journal
from kcg.judge.kept import KeptResults
from kcg.judge.paired import Comparisons
from kcg.optimize import __main__ as command
from kcg.optimize import run
from kcg.optimize.ahead import Ahead
from kcg.optimize.baselines import measure_baselines
from kcg.optimize.budget import Budget
from kcg.optimize.console import progress
from kcg.optimize.device import Device
from kcg.optimize.estimates import Estimates
from kcg.optimize.judging import Judging
from kcg.optimize.log import RunLog
from kcg.optimize.planning import planned
from kcg.optimize.run import Finished
from kcg.optimize.search import Guide
from kcg.optimize.settings import Settings
from kcg.optimize.wholes import runner_of
from kcg.optimize.work import Candidates, Captured, Measured, RegionResults, RegionWork
from kcg.types import Region, Result
from tests.captured import recorded
from tests.commands import Ended, ended


def optimized(*arguments: str | Path) -> Ended:
    """`python -m kcg.optimize` with these arguments, in this process: its imports, and the fork server that its
    children come from, are there already."""
    with mock.patch.object(command, "STARTED", time.monotonic()):
        return ended(command.main, *arguments)


@dataclass
class Begun:
    """What the steps of a run work on, once its kernels are planned."""

    settings: Settings
    log: RunLog
    budget: Budget
    device: Device
    captured: Captured
    works: list[RegionWork]
    guide: Guide

    def measured(self, *, meanwhile: Callable[[], object] = lambda: None) -> Measured:
        """With tinygrad's own schedules timed."""
        return measure_baselines(self.works, self.device, budget=self.budget, log=self.log, meanwhile=meanwhile)

    def untimed(self) -> Measured:
        """As if that had taken no time."""
        return Measured(self.works, time.monotonic())

    def estimates(self, measured: Measured, *, resumed: bool = False) -> Estimates:
        """With `resumed` as a run that goes on with what the journal holds now."""
        kept = KeptResults(self.device, resumed=resumed)
        runner = runner_of(self.settings, self.captured, self.device, self.works)
        return Estimates(self.settings, self.captured, measured, self.device, self.budget, kept, runner)

    def judge(
        self, estimates: Estimates, candidates: Candidates | None = None, *, ahead: Ahead | None = None
    ) -> Judging:
        candidates = Candidates(self.works) if candidates is None else candidates
        return Judging(candidates, estimates, device=self.device, log=self.log, judged={}, ahead=ahead)

    def comparisons(self, estimates: Estimates) -> Comparisons:
        return Comparisons(self.device, estimates, estimates.kept)

    def result(self, candidates: Candidates | None, results: RegionResults) -> Result:
        ended = run.Ended(self.settings, self.captured, self.works, candidates, results, {}, self.guide.name)
        return run.build_result(ended, device=self.device, budget=self.budget, log=self.log)

    @property
    def journal(self) -> Journal:
        assert self.device.journal is not None
        return self.device.journal


def captured_for(settings: Settings, device: Device, budget: Budget, log: RunLog) -> Captured:
    """What the run captures; a program only once for all runs of these tests."""
    if (program := settings.program) is None:
        return run.capture(settings, device, budget=budget, log=log)
    return Captured(*recorded(program, device.choice.dev))


def whole_run(settings: Settings, *, regions: Sequence[Region] = ()) -> Finished:
    """A whole run of these settings, of a program that may have been captured before."""
    assert settings.program is not None
    captured = Captured(*recorded(settings.program, settings.device))
    with progress(quiet=True) as shown:
        return run.optimize(settings, shown, regions=regions, captured=captured)


@contextmanager
def begun(settings: Settings, *, regions: Sequence[Region] = ()) -> Iterator[Begun]:
    """A run of these settings, its kernels planned; with `regions` of several of them beside."""
    with progress(quiet=True) as shown:
        log, budget = run.begin(settings, shown, started=time.monotonic())
        with Device(settings, log, budget) as device:
            captured = captured_for(settings, device, budget, log)
            captured = replace(captured, workload=planned(captured.workload, regions))
            device.open_journal(captured.workload)
            works = device.plan(captured.workload)
            yield Begun(settings, log, budget, device, captured, works, Guide(settings, device))
