"""`kcg/Schedule-v0`: the environment of `kcg.rl.env` with tasks that are made from names, so that its spec is JSON.

    env = gymnasium.make("kcg.rl:kcg/Schedule-v0", workload="gpt2/mini", target="sm_90")

Without arguments it needs no device: what a schedule costs is what the predictor that comes with kcg expects on an
H200. With `reward="measured"` every schedule is compiled, verified and timed on a device of this machine, once.
"""

from __future__ import annotations

import contextlib
import functools
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from kcg.compat.device import choose_cpu, choose_device, prepared
from kcg.dataset.journal import Journal
from kcg.dataset.reading import CHECKSUMS, read_export
from kcg.errors import UnknownName, UsageError
from kcg.kernel.kinds import space_of
from kcg.kernel.symbolic import at_bounds
from kcg.kernel.targets import target_named
from kcg.predictor.choice import AUTO, ROOFLINE, check_choice, choose_predictor, kept_predictor
from kcg.rl.env import Cost, Episodes, KernelScheduleEnv, Reading, Task, learned, predicted
from kcg.rl.observation import Observer
from kcg.types import Schedule, Status, Target, Workload, WorkloadCall
from kcg.workloads.registry import find

if TYPE_CHECKING:
    from kcg.measure.service import MeasureService
    from kcg.predictor.interface import Predictor

REWARDS: Final = ("predicted", "measured")
SAMPLER: Final = "environment"
ID_DIGITS: Final = 12  # of a kernel's id in the name of its task


class ScheduleEnv(KernelScheduleEnv):
    """One task for each kernel of a workload, drawn as often as the workload calls it. Regions of several kernels are
    left out."""

    def __init__(
        self,
        workload: str = "llama/mini",
        *,
        kernel: str = "",
        reward: str = "predicted",
        target: str = "sm_90",
        device: str = "auto",
        predictor: str = AUTO,
        **episodes: Unpack[Episodes],
    ) -> None:
        """`workload` is `NAME`, `NAME/PRESET`, or the path of a journal or an export, such as `kcg.dataset capture`
        writes of any script. Of its kernels those are tasks whose id begins with `kernel`, or else whose name contains
        it (`tasks[i].name`).

        `reward="predicted"` asks the `predictor` (as of `--predictor`) about `target` (`kcg.kernel.targets`);
        `"measured"` measures on `device` (as of `--device`), which one environment does at a time. Close it afterwards.
        `start`, `max_steps` and `render_mode` are those of `KernelScheduleEnv`. Raises UsageError, DataError,
        DeviceError.
        """
        if reward not in REWARDS:
            raise UnknownName("reward", reward, list(REWARDS))
        with contextlib.ExitStack() as held:
            if reward == "predicted":
                aim = target_named(target)
                chosen: Any = _predictor(predictor, aim)  # mypy takes a protocol for unhashable
                tasks = predicted_tasks(calls_of(workload, aim), kernel, aim, chosen)
            else:
                service = held.enter_context(_service(device))
                calls = calls_of(workload, service.target)
                tasks = _tasks(calls, kernel, service.target, lambda call, observer: measured(service, call))
            super().__init__(tasks, **episodes)
            self._held = held.pop_all()

    def close(self) -> None:
        """Bound the processes that measure, if there are some."""
        self._held.close()


@functools.lru_cache(maxsize=16)
def predicted_tasks(
    calls: tuple[WorkloadCall, ...], kernel: str, target: Target, predictor: Predictor
) -> tuple[Task, ...]:
    """The tasks of a predicted reward. Environments of one process share them, and what is known of their states."""
    from kcg.predictor.learned import LearnedPredictor

    def cost_of(call: WorkloadCall, observer: Observer) -> Cost:
        if isinstance(predictor, LearnedPredictor):
            return learned(predictor, observer)
        return predicted(predictor.of(observer.space).predict)

    return _tasks(calls, kernel, target, cost_of)


def _predictor(choice: str, target: Target) -> Predictor:
    """Raises UsageError, DataError."""
    if choice in (AUTO, ROOFLINE):
        return kept_predictor(choice, target)
    return choose_predictor(check_choice(choice), target)  # a file may change


def measured(service: MeasureService, call: WorkloadCall) -> Cost:
    """What a kernel takes on the device of a service, each schedule compiled, verified and timed once."""
    from kcg.measure.service import Request

    known: dict[Schedule, Reading] = {}

    def cost(schedule: Schedule) -> Reading:
        if schedule not in known:
            (future,) = service.measure(
                [Request(call.region, schedule, call.variables, sampler=SAMPLER, in_search=True)]
            )
            row = future.result()
            if service.device_error is not None:
                raise service.device_error
            timed = row.status == Status.OK
            known[schedule] = Reading(math.log(row.median_s)) if timed else Reading(math.nan, row.reason or row.status)
        return known[schedule]

    return cost


@contextlib.contextmanager
def _service(device: str) -> Iterator[MeasureService]:
    """A service on a device of this machine that nobody else times on. Raises DeviceError."""
    from kcg.measure.lock import lock_device
    from kcg.measure.service import MeasureService

    dev = choose_device(device).dev
    with lock_device(dev), MeasureService(dev, run_id=uuid.uuid4().hex) as service:
        yield service


@functools.lru_cache(maxsize=16)
def _captured(name: str, preset: str, device: str) -> Workload:
    spec, chosen = find(name, preset, device)
    with prepared(choose_cpu().dev):  # to schedule without allocating, any device does that opens here
        return spec.capture(chosen)


def calls_of(text: str, target: Target) -> tuple[WorkloadCall, ...]:
    """The calls of a workload by name, or of all workloads of a journal or an export. A preset that is not named is the
    usual one of the target's device. Raises UnknownName, DataError."""
    path = Path(text)
    if (path / CHECKSUMS).is_file():
        found = read_export(path).workloads()
    elif path.is_file():
        with Journal.open(path, create=False, read_only=True) as journal:
            found = journal.workloads()
    else:
        name, _, preset = text.partition("/")
        found = [_captured(name, preset or "auto", target.device)]
    return tuple(call for workload in found for call in workload.calls)


def _tasks(
    calls: Iterable[WorkloadCall], kernel: str, target: Target, cost_of: Callable[[WorkloadCall, Observer], Cost]
) -> tuple[Task, ...]:
    """A task for each kernel, and for each end of what its variables were; those whose id begins with `kernel`, or
    whose name contains it."""
    ends = [end for one in calls for end in at_bounds(one) if len(one.region.kernels) == 1]
    if not ends:
        raise UsageError("the workload has no kernels: name one that has, such as llama/mini")
    named = [call for call in ends if call.region.id.startswith(kernel)] or ends
    names: list[str] = []
    tasks: list[Task] = []
    for call in named:
        space = space_of(call.region, target)
        names.append(f"{space.name(space.start())} {call.region.id[:ID_DIGITS]}")
        if named is not ends or kernel in names[-1]:
            observer = Observer(space)
            tasks.append(Task(names[-1], space, observer, cost_of(call, observer), weight=call.calls))
    if not tasks:
        raise UsageError(f"no kernel has {kernel!r} in its name or id: there are {', '.join(names[:3])} …")
    return tuple(tasks)
