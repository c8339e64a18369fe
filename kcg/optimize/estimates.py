"""How long the rest of an optimisation will take, so that a budget is kept, and how much of it is for searching.

What is reserved is judging what has a candidate, and checking the whole model; it grows while the search finds more. It
is worked out anew after every measurement, from what the run itself has measured: how long emptying the cache takes,
compiling, preparing a kernel. The search has a share of the budget that no reserve can take; what then finds no room is
left out in this order: the whole model's check where it would not fit anyhow, then judging where least is to be gained.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kcg.optimize.session import RegionWork, Session

SEARCH_SHARE: Final = 1 / 3
"""Of what is left of a budget after the baselines, at least so much is for searching."""
LEAST_SHARE: Final = 1 / 4  # the same where the whole model could not be checked otherwise
FEW: Final = 4  # measurements that a search must have time for, or it is not begun
ROUND_S: Final = 10.0  # a budget that is advised is a multiple of it
OVERTIME: Final = 0.1  # of the budget, within which a run still counts as in time
SLOWER: Final = 3.0  # so many times what was expected is waited for when a budget is over

FRESH_CHILD_S: Final = 3.0  # a new process that opens the device, canary and all
FINAL_RUNS: Final = 16  # launches that verify one finalist
FLUSH_S: Final = {"CPU": 0.02}  # emptying the cache once, where this run took no samples
FLUSH_ELSEWHERE_S: Final = 0.001

VERIFY_S: Final = {"CPU": 0.55}
"""Verifying three seeds of one kernel, apart from its runs and its copies; elsewhere it follows from the checks. Seen
on two cores of an Intel Xeon: 0.57 to 0.65 for the 55 kernels of Flux mini, 0.4 to 0.5 for those of RoPE and a
ResNet."""
CHECKS: Final = 2.0
"""So many times the preparing of a first measurement (inputs and references of one seed, loading, reading back) is what
verifying takes apart from its runs: five seeds and projections, but the references come from other processes. Judging
the 55 kernels of Flux 1024 took 49 s on one NVIDIA H200 when drawing inputs, the bus and references were an estimated
25 s of it, which they are no more. `Result.phases` shows what a run really took."""
CHECK_ELSEWHERE_S: Final = 0.1  # preparing one, where no first measurement was made in this run
COPY_S_PER_BYTE: Final = 1.5e-10  # outputs back from a GPU, whole, and compared on the host


def final_cost_s(session: Session) -> float:
    """What judging what has a candidate, and then the whole model, is expected to take, in seconds.

    Before the search has found anything, judging one kernel is expected, and no check of the model: the search may go
    on in the time for that as long as it finds nothing.
    """
    return judging_s(session) + (_model_s(session) if _found(session) else 0.0)


def judging_s(session: Session) -> float:
    """What re-timing and verifying is expected to take, in seconds: all that is to be judged, or else one kernel."""
    from kcg.optimize.finals import compiling_s, is_due, is_judged

    due = [w for w in session.works if is_due(session, w)]
    if not due and session.settings.budget_s is None:
        return 0.0
    return (
        FRESH_CHILD_S
        + compiling_s(session)
        + sum(paired_s(session, work) for work in due or _largest(session) if not is_judged(session, work))
    )


def paired_s(session: Session, work: RegionWork) -> float:
    """What re-timing and verifying one kernel is expected to take, in seconds: beside a candidate, if it has one, or if
    nothing has one yet."""
    from kcg.measure.protocol import samples_for
    from kcg.optimize.finals import candidates, is_due

    device, seconds, flush_s = session.choice.device, work.baseline_s, _flush_s(session)
    verify_s = VERIFY_S.get(device, CHECKS * _check_s(session))
    sides = 2 if candidates(work) or not is_due(session, work) else 1
    sides += 2 * sum(offer.schedule is not None for offer in work.offers)  # against the best of the others too
    copies_s = 0.0 if device == "CPU" else COPY_S_PER_BYTE * work.bytes
    samples = samples_for(seconds, flush_s=flush_s)
    # at each end of the values of its variables: cold and warm; the baseline twice
    once_s = verify_s + copies_s + sides * FINAL_RUNS * seconds + (sides + 1) * samples * (2 * seconds + flush_s)
    return len(work.ends) * once_s


def search_until(session: Session) -> float:
    """When the search is to end, by `time.monotonic`: when the rest of the budget is needed for what comes after it,
    but not before it has had its share."""
    assert session.settings.budget_s is not None
    end = session.started + session.settings.budget_s
    left_s = end - session.measured_at
    share_s = min(SEARCH_SHARE * left_s, left_s - _least_judging_s(session) - _model_s(session))
    return max(session.measured_at + share_s, end - final_cost_s(session))


def too_short(session: Session) -> str:
    """Why there is no time to search in the budget, and what it would take; empty where there is. To be asked when the
    baselines are timed."""
    if (budget_s := session.settings.budget_s) is None:
        return ""
    elapsed_s = session.measured_at - session.started
    least_s = _least_judging_s(session)
    if untimed := session.untimed:
        return (
            f"the budget of {budget_s:g} s is too short to search in: after {elapsed_s:.0f} s tinygrad's own schedules "
            f"of {untimed} of {len(session.works)} kernels were not timed yet: try --budget {_advised_s(session):.0f}s"
        )
    if budget_s - elapsed_s - least_s >= FEW * _measuring_s(session):
        return ""
    return (
        f"the budget of {budget_s:g} s is too short to search in: starting and timing tinygrad's own schedules took "
        f"{elapsed_s:.0f} s, judging one kernel takes about {least_s:.0f} s: try --budget {_advised_s(session):.0f}s"
    )


def too_short_for_the_model(session: Session) -> str:
    """Whether the budget leaves no room for the check of the whole model, and what it would take; empty where it does.
    To be asked when the baselines are timed."""
    if session.settings.budget_s is None or _model_s(session) or not (model_s := whole_s(session)):
        return ""
    return (
        f"the budget of {session.settings.budget_s:g} s leaves no time to check the whole "
        f"{'script' if session.settings.is_script else 'model'}, which takes about "
        f"{model_s:.0f} s: try --budget {_advised_s(session):.0f}s"
    )


def _advised_s(session: Session) -> float:
    """A budget in which there is time for everything, in seconds."""
    assert session.settings.budget_s is not None
    last_s = _least_judging_s(session) + whole_s(session)
    rest_s = max(last_s / (1 - SEARCH_SHARE), last_s + FEW * _measuring_s(session))
    timed_s = session.measured_at - session.started + session.untimed * _measuring_s(session)
    wanted_s = max(timed_s + rest_s, 1.01 * session.settings.budget_s)
    return ROUND_S * math.ceil(wanted_s / ROUND_S)


def judge_until(session: Session) -> float | None:
    """When judging is to end, by `time.monotonic`, so that the whole model can be checked in time; None: whenever."""
    if session.settings.budget_s is None:
        return None
    return session.started + session.settings.budget_s - _model_s(session)


def over_at(session: Session) -> float | None:
    """When the budget is over, by `time.monotonic`; None without one."""
    return None if session.settings.budget_s is None else session.started + session.settings.budget_s


def late_at(session: Session) -> float | None:
    """When a run counts as late, by `time.monotonic`; None without a budget."""
    over, budget_s = over_at(session), session.settings.budget_s
    return None if over is None or budget_s is None else over + OVERTIME * budget_s


def patience_s(session: Session, expected_s: float) -> float | None:
    """How long to wait now for something that should take `expected_s`, in seconds; None: as long as its own deadline
    allows. In a budget nobody waits much longer than until it is over for a process that was stopped."""
    if (over := over_at(session)) is None:
        return None
    assert session.settings.budget_s is not None
    return max(over - time.monotonic(), SLOWER * expected_s) + OVERTIME * session.settings.budget_s


class Pace:
    """Whether the budget allows judging one kernel more: what it is expected to take, by what those before it took."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._expected_s = self._spent_s = 0.0
        self._first = True  # in which the new process starts too

    def allows(self, work: RegionWork) -> bool:
        """Whether there is time to judge `work`. While nothing is improved there is no model to check, and only the
        budget itself counts; for the first of all what counts as in time: without it the search was for nothing."""
        from kcg.optimize.finals import is_judged

        session = self._session
        if (until := judge_until(session)) is None or is_judged(session, work):
            return True
        if not any(row.outcome == "improved" for row in session.judged.values()):
            assert session.settings.budget_s is not None
            until = session.started + session.settings.budget_s * (1 + OVERTIME if self._first else 1)
        slower = self._spent_s / self._expected_s if self._expected_s else 1.0
        return time.monotonic() + slower * paired_s(session, work) <= until

    @contextlib.contextmanager
    def judging(self, work: RegionWork) -> Iterator[None]:
        """Inside, `work` is judged: take in how long that takes, beside what it was expected to."""
        expected_s, begun = paired_s(self._session, work), time.monotonic()
        yield
        if not self._first:
            self._expected_s += expected_s
            self._spent_s += time.monotonic() - begun
        self._first = False


def _found(session: Session) -> bool:
    """Whether anything may be changed."""
    from kcg.optimize.finals import candidates

    return session.settings.measurements == 0 or any(candidates(w) or w.offers for w in session.works)


def _largest(session: Session) -> list[RegionWork]:
    """The kernel that takes most of the workload's time: where a search is likely to find something first."""
    timed = [w for w in session.works if w.baseline_s]
    return sorted(timed, key=lambda w: -w.call.calls * w.baseline_s)[:1]


def _least_judging_s(session: Session) -> float:
    """What judging one kernel takes, in seconds, the new process included."""
    return FRESH_CHILD_S + sum(paired_s(session, work) for work in _largest(session))


def _measuring_s(session: Session) -> float:
    """What measuring one schedule takes, in seconds: as long as a baseline took in this run."""
    return session.baselines_s or FLUSH_S["CPU"]


def _model_s(session: Session) -> float:
    """What checking the whole model is expected to take, in seconds; 0 where the budget has no room for it, which
    does not depend on what the search finds."""
    if (budget_s := session.settings.budget_s) is not None:
        left_s = session.started + budget_s - session.measured_at
        if (1 - LEAST_SHARE) * left_s < whole_s(session, changed=1) + _least_judging_s(session):
            return 0.0
    return whole_s(session)


def whole_s(session: Session, *, changed: int | None = None) -> float:
    """What checking the whole model or the script is expected to take, in seconds, with so many kernels changed;
    without a number those that have a candidate, and at least one."""
    if session.settings.is_script:
        from kcg.optimize import whole_script

        return whole_script.expected_cost_s(session.settings, recorded_s=session.recorded_s)
    from kcg.optimize.finals import candidates
    from kcg.optimize.whole_model import COMPILE_S, expected_cost_s

    step_s = sum(work.call.calls * work.baseline_s for work in session.works)
    if changed is None:
        changed = max(sum(bool(candidates(work)) for work in session.works), 1)
    compilations = session.service.compilations
    compile_s = session.service.spent_s["compile"] / compilations if compilations else 0.0
    return expected_cost_s(
        session.settings,
        session.workload,
        device=session.choice.device,
        step_s=step_s,
        changed=changed,
        compile_s=max(COMPILE_S, compile_s / session.service.compile_workers),
    )


def _flush_s(session: Session) -> float:
    """What emptying the cache once takes, by the samples of this run: the rest of their time was the kernels' own."""
    taken, own_s = session.sampling
    spent_s = session.service.spent_s["sample"]
    if taken and spent_s > own_s:
        return (spent_s - own_s) / taken
    return FLUSH_S.get(session.choice.device, FLUSH_ELSEWHERE_S)


PREPARING: Final = ("inputs and reference", "load", "check")  # of the phases of a measurement; with "check: …"


def _check_s(session: Session) -> float:
    """What preparing the first measurement of a kernel took in this run, on average."""
    return session.preparing_s or CHECK_ELSEWHERE_S


def preparing_s(spent_s: Mapping[str, float]) -> float:
    """Seconds of `MeasureService.spent_s` that were not spent on compiling, on runs or on samples."""
    named = (phase for phase in spent_s if phase in PREPARING or phase.startswith("check: "))
    return sum(spent_s[phase] for phase in named if phase != "check: run")
