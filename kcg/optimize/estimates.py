"""How long the rest of an optimisation will take, so that a budget is kept: judging and the whole model's check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kcg.optimize.session import Session

FRESH_CHILD_S: Final = 3.0  # a new process that opens the device, canary and all
FINAL_RUNS: Final = 16  # launches that verify one finalist
FLUSH_S: Final = {"CPU": 0.02}  # emptying the cache once
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
    """What judging every finalist, and then the whole model, is expected to take, in seconds."""
    from kcg.optimize.whole_model import expected_cost_s

    step_s = sum(work.call.calls * work.baseline_s for work in session.works)
    device = session.choice.device
    return judging_s(session) + expected_cost_s(session.settings, session.workload, device=device, step_s=step_s)


def judging_s(session: Session) -> float:
    """What re-timing and verifying every finalist is expected to take, in seconds."""
    from kcg.measure.protocol import samples_for
    from kcg.optimize.finals import compiling_s, is_judged

    device = session.choice.device
    flush_s = FLUSH_S.get(device, FLUSH_ELSEWHERE_S)
    verify_s = VERIFY_S.get(device, CHECKS * _check_s(session))
    cost_s = FRESH_CHILD_S + compiling_s(session)
    for work in (w for w in session.works if not is_judged(session, w)):
        seconds, ends = work.baseline_s, len(work.ends)
        sides = 2 if work.best_s < seconds or not work.known else 1
        sides += 2 * sum(offer.schedule is not None for offer in work.offers)  # against the best of the others too
        copies_s = 0.0 if device == "CPU" else COPY_S_PER_BYTE * work.bytes
        samples = samples_for(seconds, flush_s=flush_s)
        cost_s += ends * (verify_s + copies_s + sides * FINAL_RUNS * seconds)
        cost_s += ends * (sides + 1) * samples * (2 * seconds + flush_s)  # cold and warm; the baseline twice
    return cost_s


PREPARING: Final = ("inputs and reference", "load", "check")  # of the phases of a measurement; with "check: …"


def _check_s(session: Session) -> float:
    """What preparing the first measurement of a kernel took in this run, on average."""
    return session.preparing_s or CHECK_ELSEWHERE_S


def preparing_s(spent_s: Mapping[str, float]) -> float:
    """Seconds of `MeasureService.spent_s` that were not spent on compiling, on runs or on samples."""
    named = (phase for phase in spent_s if phase in PREPARING or phase.startswith("check: "))
    return sum(spent_s[phase] for phase in named if phase != "check: run")
