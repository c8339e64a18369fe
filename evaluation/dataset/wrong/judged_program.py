"""One compiled program of the raw space, judged on a device: see `judging.py`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from evaluation.dataset.wrong import outcomes
from evaluation.dataset.wrong.looking import LookJob, look_job
from evaluation.dataset.wrong.outcomes import Row
from evaluation.dataset.wrong.raw_programs import Drawn, Place
from evaluation.rows import rounded
from kcg.errors import DeviceError, VerificationError
from kcg.judge.stressing import launches_in
from kcg.kernel.kinds import baseline_of
from kcg.kernel.program import Executable
from kcg.measure import stress
from kcg.measure.device_info import first_line
from kcg.measure.jobs import CompileOutcome, PairedJob, StressJob
from kcg.measure.pools import ServiceClosed
from kcg.measure.service import REFERENCES_TIMEOUT_S, MeasureService, Request, status_of
from kcg.measure.verify import FINAL_SEEDS, References
from kcg.types import Status, Verification

CHECK_S: Final = 15.0  # timeouts, in seconds: of checking and timing
VERIFY_S: Final = 40.0
STRESS_S: Final = 20.0  # of a piece of about a second, beyond what it should take
COMPILE_S: Final = 30.0
SLOW_S: Final = 0.005  # a program that takes longer has one sample
LEAST_LAUNCHES: Final = 20
LEAST_S: Final = 5e-6  # that a launch takes, for what follows from its time
PAIRED_SAMPLES: Final = 3
ALONE, BESIDE, CHECKED = "alone", "beside", "no"
"""How it is verified by the rules of finalists: alone, beside tinygrad's own schedule, or not."""


@dataclass(frozen=True)
class Settings:
    """How programs are judged."""

    launches: int = stress.PROVISIONAL
    stress_s: float = 0.2  # of launches of one program, about
    verify: str = ALONE
    verify_every: int = 1  # program in so many that passed, by a hash, is verified
    deaths: int = 3
    slow: int = 6
    children: int = 3  # that take turns on the device


class Over(Exception):
    """There is no time left, or no device: nothing is known of the program at hand."""


class Run(Protocol):
    """What a program is judged in."""

    @property
    def settings(self) -> Settings: ...

    @property
    def services(self) -> Sequence[MeasureService]: ...

    @property
    def references(self) -> Mapping[str, Future[References]]:
        """Those of verifying, by place."""

    def wait(self, future: Future[Any], most_s: float) -> Any:
        """What a future gives. Raises what it raises; Over where the run ends before it does, or it takes longer than
        it may."""


def line_of(error: BaseException) -> str:
    """`ScheduleError: it takes …`."""
    return f"{type(error).__name__}: {first_line(error)}"[:300]


class Case:
    """One compiled program, and what is known of it so far."""

    def __init__(
        self, service: MeasureService, place: Place, program: Drawn, compiled: Executable, judging: Run
    ) -> None:
        self._service, self._place, self._program = service, place, program
        self._compiled, self._judging, self._settings = compiled, judging, judging.settings
        self._references = service.begin_references(place.region, place.variables)

    def judged(self) -> Row:
        """What became of it. Raises Over or DeviceError where nothing is known."""
        if why := self._why_unjudged():
            return {"outcome": outcomes.UNJUDGED, "stage": "check", "reason": why}
        row = self._checked()
        if row["outcome"] == outcomes.OK:
            row |= self._stressed(row["seconds"])
        if row["outcome"] == outcomes.OK and self._is_verified():
            row |= self._verified()
        if row["outcome"] in (outcomes.NAN, outcomes.WRONG, outcomes.DIFFERS):
            row |= self._looked_at()
        return row

    def _is_verified(self) -> bool:
        """Whether it is one of those that are verified by the rules of finalists."""
        number = int(hashlib.sha256(self._program.key.encode()).hexdigest()[:8], 16)
        return self._settings.verify != CHECKED and number % self._settings.verify_every == 0

    def _why_unjudged(self) -> str:
        """Why there is no reference; empty where there is one."""
        if self._references is None:
            return ""
        try:
            self._judging.wait(self._references, 2 * REFERENCES_TIMEOUT_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except (VerificationError, TimeoutError) as error:
            return f"no reference: {line_of(error)}"
        except Exception:  # the device's own process may have better luck
            return ""
        return ""

    def _checked(self) -> Row:
        """Checked on one seed and timed, as a candidate of a search."""
        request = Request(
            self._place.region, self._program.schedule, self._place.variables, in_search=True, stop_above_s=SLOW_S,
            timeout_s=CHECK_S,
        )  # fmt: skip
        found = self._wait(self._service.measure_compiled(request, self._compiled), CHECK_S)
        if self._service.device_error is not None:
            raise self._service.device_error
        row: Row = {"stage": "check"}
        if found.reason:
            row["reason"] = found.reason[:300]
        if found.status == Status.OK:
            return {**row, "outcome": outcomes.OK, "seconds": rounded(found.median_s)}
        if found.status == Status.WRONG:
            return {**row, "outcome": outcomes.of_wrong(found.reason)}
        if found.status in (Status.UNJUDGED, Status.NOISY):
            return {**row, "outcome": str(found.status)}
        return {**row, "outcome": outcomes.of_failure(found.status, found.reason)}

    def _stressed(self, seconds: float) -> Row:
        """Launched as often as is asked, or as there is time for."""
        service, region, variables = self._service, self._place.region, self._place.variables
        asked, done, began = self._settings.launches, 0, time.monotonic()
        launch_s = stress.expected_s(max(seconds, LEAST_S), 0, service.target) / stress.LAUNCHES
        while done < asked and (left_s := self._settings.stress_s - (time.monotonic() - began)) > 0:
            count = min(max(launches_in(min(left_s, 1.0), launch_s), LEAST_LAUNCHES), asked - done)
            job = StressJob(region, self._compiled, service.target, variables, asked, before=done, count=count)
            timeout_s = STRESS_S + 5 * count * launch_s
            try:
                outcome = self._wait(service.stress(job, timeout_s=timeout_s), timeout_s)
            except (Over, ServiceClosed, DeviceError):
                raise
            except Exception as error:
                return self._failed(error, "stress") | {"launches": done, "asked": asked}
            done += count
            if outcome.wrong:
                word, counts = outcomes.of_wrong(outcome.wrong), {"launches": done, "asked": asked}
                return {"outcome": word, "stage": "stress", "reason": outcome.wrong[:300], **counts}
        return {"launches": done, "asked": asked}

    def _verified(self) -> Row:
        """Verified by every rule of finalists."""
        service, region, variables = self._service, self._place.region, self._place.variables
        own = self._own() if self._settings.verify == BESIDE else None
        try:
            known = self._judging.wait(self._judging.references[self._place.key], 3 * REFERENCES_TIMEOUT_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception as error:
            return {"verified": f"not: {line_of(error)}"}
        baseline, finalist = (self._compiled, None) if own is None else (own, self._compiled)
        job = PairedJob(
            region, baseline, finalist, service.target, variables, FINAL_SEEDS, samples=PAIRED_SAMPLES, references=known
        )
        try:
            outcome = self._wait(service.compare_paired(job, timeout_s=VERIFY_S), VERIFY_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception as error:
            return self._failed(error, "verify")
        first: Verification = outcome.baseline_verification
        if own is not None and not first.passed:
            return {"verified": f"not: tinygrad's own: {first.reason}"[:300]}
        result = outcome.finalist_verification if own is not None else first
        assert result is not None
        if result.unjudged or result.passed:
            return {"verified": "" if result.passed else f"not: {result.reason}"[:300]}
        return {"outcome": outcomes.of_wrong(result.reason), "stage": "verify", "reason": result.reason[:300]}

    def _own(self) -> Executable | None:
        """tinygrad's own schedule, compiled; None where it is not."""
        region, service = self._place.region, self._judging.services[0]
        compiled = service.compiled(region, baseline_of(region, service.target), self._place.variables)
        try:
            made: CompileOutcome = self._judging.wait(compiled, 3 * COMPILE_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception:
            return None
        return made.compiled.at(self._place.variables)

    def _looked_at(self) -> Row:
        """What a wrong program leaves, and how long it takes."""
        known = None
        if self._references is not None and self._references.exception() is None:
            known = self._references.result()
        region, variables, service = self._place.region, self._place.variables, self._service
        job = LookJob(region, self._compiled, service.target, variables, known)
        try:
            look = self._wait(service._device.submit(look_job, job, timeout_s=CHECK_S), CHECK_S)
        except (Over, ServiceClosed, DeviceError):
            raise
        except Exception as error:
            return {"look": f"not: {line_of(error)}"}
        seen = {name: rounded(value) for name, value in asdict(look).items()}
        return {"look": seen, "seconds": seen["seconds"]}

    def _failed(self, error: Exception, stage: str) -> Row:
        status = status_of(error, timeout=Status.TIMEOUT, other=Status.LAUNCH_ERROR)
        return {"outcome": outcomes.of_failure(status, str(error)), "stage": stage, "reason": line_of(error)}

    def _wait(self, future: Future[Any], timeout_s: float) -> Any:
        """What a job on the device gives. It may wait for the turns of the other children, and for a child to open."""
        return self._judging.wait(future, 20 * timeout_s + 300)
