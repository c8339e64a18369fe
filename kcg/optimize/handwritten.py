"""Hand-written kernels in an optimisation: read, matched and lowered in children, timed with the rest, judged last.

They do not take part in the search of Opts, which goes on as if there were none. In the finals each is verified by the
same rules as every finalist and timed in turns with the best of the others; it is chosen only where it wins that and
beats the baseline. The best Opts of its region stay in the result: tinygrad's BEAM cache can hold nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kcg.errors import DeviceError, UsageError
from kcg.kernels import DEVICES
from kcg.measure import source_kernels
from kcg.measure.device_info import first_line
from kcg.measure.protocol import median, median_interval, spread
from kcg.measure.source_kernels import Described, KernelFile
from kcg.optimize.console import format_seconds
from kcg.optimize.verdicts import Side
from kcg.types import Finalist, RegionResult, Schedule, Status, Verification

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled
    from kcg.optimize.session import RegionWork, Session

READ_TIMEOUT_S = 60.0  # importing a file: Triton takes seconds
MATCH_TIMEOUT_S = 30.0
HOPELESS = 2.5  # one this much slower than the best in the search is not timed again
SAMPLER = "hand-written"


@dataclass(frozen=True)
class Offer:
    """A hand-written kernel for one region; without a schedule where it could not be lowered."""

    name: str
    schedule: Schedule | None
    reason: str = ""  # why there is none


def read_files(session: Session) -> list[Described]:
    """The kernels of all files of `--kernels`. Raises UsageError where one cannot be read, or two have one name."""
    from kcg.kernel.source.kernels import file_digest

    service, found = session.service, []
    for path in session.settings.kernels:
        file = KernelFile(path, file_digest(path))
        try:
            found += service.beside(source_kernels.describe_job, file, timeout_s=READ_TIMEOUT_S).result()
        except TimeoutError:
            raise UsageError(f"{path} took more than {READ_TIMEOUT_S:g} s to import: mend it or leave it out") from None
        except (UsageError, DeviceError):
            raise
        except Exception as error:  # it took its process down
            raise UsageError(f"{path} cannot be imported: {first_line(error)}") from None
    if twice := [name for name, count in Counter(kernel.name for kernel in found).items() if count > 1]:
        raise UsageError(f"two hand-written kernels are called {twice[0]}: rename one")
    return found


def offer(session: Session, kernels: Sequence[Described]) -> None:
    """Find the regions that each kernel is for, and lower it for each. What fails is a reason, not the run's end."""
    target, service = session.service.target, session.service
    regions = [work.call.region for work in session.works]
    for kernel in kernels:
        wanted = DEVICES[kernel.kind]
        if wanted and wanted != target.device:
            session.warnings.append(f"{kernel.name} is for {wanted} and this is {target.device}: it was left out")
            continue
        try:
            places = service.beside(
                source_kernels.match_job, kernel, regions, target, timeout_s=MATCH_TIMEOUT_S
            ).result()
        except DeviceError:
            raise
        except Exception as error:
            session.warnings.append(f"{kernel.name} was left out: {_words(error, 'its predicate')}")
            continue
        if not places:
            session.warnings.append(f"{kernel.name} is for no kernel of the workload: it was left out")
        waiting = [
            (
                session.works[place],
                service.beside(
                    source_kernels.lower_job, kernel, regions[place], target, timeout_s=service.compile_timeout_s
                ),
            )
            for place in places
        ]
        for work, future in waiting:
            work.offers.append(_offer(kernel, future))


def _offer(kernel: Described, future: Future[Any]) -> Offer:
    try:
        return Offer(kernel.name, future.result())
    except DeviceError:
        raise
    except Exception as error:
        return Offer(kernel.name, None, _words(error, "lowering it"))


def _words(error: BaseException, what: str) -> str:
    return f"{what} did not end in time" if isinstance(error, TimeoutError) else first_line(error)


def measure(session: Session) -> None:
    """Time what was offered, where the baseline has a time and an earlier run did not do it."""
    if not any(work.offers for work in session.works):
        return
    session.progress.phase("timing the kernels that are written by hand")
    for work in session.works:
        batch = [o.schedule for o in work.offers if o.schedule is not None and o.schedule not in work.by_hand]
        for future in session.measure(work, batch, sampler=SAMPLER) if work.baseline_s else []:
            seen = future.result()
            work.by_hand[seen.schedule] = seen
        session.check_journal()


# ---- the finals ----


def comparison(session: Session, work: RegionWork, result: RegionResult) -> RegionResult:
    """The region's result after its hand-written kernels had their turn, the fastest of the search first."""
    if not work.offers:
        return result
    if result.outcome in ("quarantined", "unjudged"):
        return replace(
            result, handwritten=tuple((o.name, f"not judged: the kernel is {result.outcome}") for o in work.offers)
        )
    if result.outcome == "undecided":
        return replace(result, handwritten=tuple((o.name, "not judged: the budget was over") for o in work.offers))
    fates: dict[str, str] = {}
    opts, order = result.chosen, sorted(work.offers, key=lambda o: _time_s(work, o))
    for one in order:
        if one.schedule is None:
            fates[one.name] = f"rejected: {one.reason}"
            continue
        seen = work.by_hand.get(one.schedule)
        if seen is not None and seen.status != Status.OK:
            fates[one.name] = f"rejected: {seen.status}: {seen.reason}"
            continue
        if seen is not None and work.best_s and seen.time_s > HOPELESS * work.best_s:
            fates[one.name] = (
                f"lost: {format_seconds(seen.time_s)} in the search, {format_seconds(work.best_s)} the best"
            )
            continue
        result, fates[one.name] = _challenge(session, work, result, one.name, one.schedule)
    won = result.chosen is not opts
    note = f"{result.chosen.name} {fates[result.chosen.name]}; {result.note}" if won else result.note
    return replace(
        result, note=note, opts=opts if won else None, handwritten=tuple((o.name, fates[o.name]) for o in work.offers)
    )


def _time_s(work: RegionWork, one: Offer) -> float:
    seen = work.by_hand.get(one.schedule) if one.schedule is not None else None
    return math.inf if seen is None else seen.time_s


@dataclass(frozen=True)
class _Comparison:
    """Two schedules timed in turns, both verified."""

    before: Finalist
    after: Finalist
    low: float  # of the speed-up: its 95 % interval
    ratio: float
    high: float
    noise: float

    @property
    def won(self) -> bool:
        return self.low > 1.0 and self.ratio > 1.0 + self.noise

    @property
    def outcome(self) -> str:
        return "won against" if self.won else "lost to" if self.high < 1.0 else "is not clearly faster than"

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× as fast, 95 % interval {self.low:.2f} to {self.high:.2f}"


def _challenge(
    session: Session, work: RegionWork, result: RegionResult, name: str, schedule: Schedule
) -> tuple[RegionResult, str]:
    """One kernel against the best so far, and then against the baseline: the result, and its fate in words."""
    from kcg.optimize.finals import compiled_for

    champion, baseline = result.chosen.schedule, result.baseline.schedule
    try:
        mine = compiled_for(session, work, schedule)
    except DeviceError:
        raise
    except Exception as error:
        return result, f"rejected: it does not compile: {first_line(error)}"
    against = "tinygrad's own schedule" if champion == baseline else str(champion)
    comparison = _compare(session, work, champion, schedule, mine)
    if isinstance(comparison, str):
        return result, comparison
    if not comparison.won:
        return result, f"{comparison.outcome} {against}: {comparison}"
    message = f"{comparison.outcome} {against}: {comparison}"
    if champion != baseline:
        final = _compare(session, work, baseline, schedule, mine)
        if isinstance(final, str):
            return result, final
        if not final.won:
            return result, f"{final.outcome} tinygrad's own schedule: {final}"
        message, comparison = f"{message}; against tinygrad's own schedule: {final}", final
    return replace(
        result, baseline=comparison.before, chosen=comparison.after, outcome="improved", noise_floor=comparison.noise
    ), message


def _result_in_words(result: Verification | None) -> str:
    if result is None:
        return "it was not judged"
    return f"{'unjudged' if result.unjudged else 'wrong'}: {result.reason}"


def _compare(
    session: Session, work: RegionWork, before: Schedule, after: Schedule, mine: Compiled
) -> _Comparison | str:
    """Verify and time `after` in turns with `before`; why it is out, where it is."""
    from kcg.optimize import finals

    theirs = finals.compiled_for(session, work, before)
    judged = finals.compare_paired(session, work, Side(before, theirs), Side(after, mine))
    if judged.late:
        return "not judged: the budget was over"
    if judged.outcome is None:
        return f"rejected: {judged.reason}"
    paired = judged.outcome
    if (result := paired.finalist_verification) is None or not result.passed:
        return f"rejected: {_result_in_words(result)}"
    if not paired.baseline_verification.passed:
        return f"not compared: {before} did not verify again: {paired.baseline_verification.reason}"
    if paired.noisy:
        return f"not compared: {paired.noisy}"
    ratios = [a / b for a, b in zip(paired.baseline_cold_s, paired.finalist_cold_s, strict=True)]
    low, high = median_interval(ratios)
    return _Comparison(
        finals.finalist_of(
            work, before, theirs, paired.baseline_cold_s, paired.baseline_warm_s, paired.baseline_verification
        ),
        finals.finalist_of(work, after, mine, paired.finalist_cold_s, paired.finalist_warm_s, result),
        low,
        median(ratios),
        high,
        spread(paired.baseline_cold_s, paired.again_cold_s),
    )
