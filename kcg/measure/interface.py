"""What a campaign needs of whoever measures for it: the service of this process, or the hosts of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from kcg.errors import DeviceError
from kcg.measure.jobs import CompileOutcome
from kcg.measure.service import Request
from kcg.types import Measurement, Schedule, Target, Toolchain


class Measures(Protocol):
    """Compiles, times and verifies schedules on one target with one toolchain."""

    on_doubt: Callable[[str, float, str], None]
    """Told, from any thread, of a run whose rows are not to be trusted from a Unix time on, and why, in one line."""

    @property
    def run_id(self) -> str:
        """Of this process's run; a row carries that of its host."""

    @property
    def device_error(self) -> DeviceError | None:
        """Why nothing more is measured; what ended by it is not to be recorded."""

    @property
    def target(self) -> Target: ...

    @property
    def toolchain(self) -> Toolchain: ...

    @property
    def devices(self) -> int:
        """How many of the target there are now."""

    @property
    def compile_workers(self) -> int:
        """Compiling children of all devices together."""

    @property
    def spent_s(self) -> Mapping[str, float]:
        """Where the time of the children went, by phase, of all devices together."""

    def measure(
        self,
        requests: Sequence[Request],
        *,
        together: bool = False,
        made: Mapping[Schedule, Future[CompileOutcome]] | None = None,
    ) -> list[Future[Any]]:
        """See `MeasureService.measure`: the futures do not raise. They are of measurements, or of what a service that
        only compiles has in their place (`kcg.campaign.compiling`)."""

    def beside(self, function: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """See `MeasureService.beside`. A fleet runs what draws the schedules of a campaign, and nothing else."""

    def remember(self, row: Measurement) -> None:
        """See `MeasureService.remember`."""

    def run_facts(self, run_id: str) -> Mapping[str, Any]:
        """What the journal is to hold of the run with which a row came, beside what it holds of this process's own."""

    def settle(self) -> None:
        """Return when all is known of the rows so far that can be doubted: `on_doubt` was told."""

    def close(self) -> None:
        """What is not done by then ends as a failure that is not recorded."""
