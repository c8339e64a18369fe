"""Strategies compared on a device: every schedule is measured once, and every replay pays for it as if it alone had.

What was measured and what was replayed is kept (`device_journal`), so that a comparison that was cut goes on, and one
that is complete is written down again without a device. In the end all that was measured of a kernel stands in the
place of a recorded table, and the best of it in the place of the optimum. The winners are timed once more with all
samples.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluation.search.comparison import (
    BEAM,
    CONSTANT,
    ORACLE,
    UNMEASURED,
    Bench,
    Replay,
    Settings,
    Turn,
    replay,
    turns,
)
from evaluation.search.device_journal import Beam, DeviceJournal, Ended, Seen, Setting
from evaluation.search.rollouts import Led
from kcg.errors import DataError, DeviceError, ScheduleError, UsageError
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.jobs import TinyBeamJob, TinyBeamOutcome
from kcg.measure.service import Request
from kcg.search.problem import Ledger, Observation, Problem, best
from kcg.search.replay import NamedTable, Record, RecordedKernel, ReplayTable, charged
from kcg.types import Measurement, Region, Schedule

if TYPE_CHECKING:
    from kcg.measure.service import MeasureService
    from kcg.predictor.learned import LearnedPredictor
    from kcg.rl.policy import Policy

TINY_BEAM = "tinygrad-beam"
BEAM_TIMEOUT_S = 300.0
HOPELESS = 2.5  # a candidate this much slower than the best so far gets one sample only


class DeviceBench(Bench):
    """Where contenders search one kernel on a device."""

    def __init__(
        self,
        region: Region,
        calls: int,
        service: MeasureService | Setting,
        predictor: LearnedPredictor,
        journal: DeviceJournal,
        *,
        policy: Policy | None = None,
        batch_size: int = 4,
        until: float = math.inf,
    ) -> None:
        """`service` may be the setting of a journal alone: then only what the journal knows can be had. No batch is
        begun after `until`, on `time.monotonic`: a replay that asks for one raises TimeoutError, and goes on another
        time from what is kept."""
        from kcg.rl.observation import Observer

        self.region, self.calls, self.journal = region, calls, journal
        self.target, self.toolchain = service.target, service.toolchain
        self._service = None if isinstance(service, Setting) else service
        self.space = KernelSpace(region, self.target)
        self.predictor, self.batch_size, self.until = predictor, batch_size, until
        self.led = Led.by(policy, Observer(self.space)) if policy is not None else None
        self.seen = journal.of(region.id)
        self._measure([self.space.baseline()])

    @property
    def kernel(self) -> RecordedKernel:  # type: ignore[override]
        """All that was measured so far, as a recorded kernel."""
        baseline = self.space.baseline()
        by_key: dict[str, Observation] = {self.space.key(baseline): self.seen.rows[baseline]}
        for schedule, observation in self.seen.rows.items():
            by_key.setdefault(self.space.key(schedule), observation)
        table = ReplayTable((Record(k, o) for k, o in by_key.items()), start=baseline, baseline=baseline)
        named = NamedTable(self.region.id, self.target.fingerprint, self.toolchain.fingerprint, (), table)
        return RecordedKernel(named, self.region, self.target, calls=self.calls)

    @property
    def label(self) -> str:
        """The kernel's name as tinygrad schedules it."""
        return self.space.name(self.space.baseline())

    @property
    def service(self) -> MeasureService:
        """The device. Raises DataError where there is none."""
        if self._service is None:
            raise DataError(
                f"{self.journal.path} does not hold all of {self.label}: run the comparison on its device first"
            )
        return self._service

    def problem(self, name: str, *, seed: int, budget: int | None) -> Problem:
        """The kernel as a contender meets it."""
        guide = name.partition("/")[2]
        if guide in (ORACLE, CONSTANT) or self.predictor is None:
            raise UsageError(f"{name} runs on recorded tables only: nobody knows every runtime of a device")
        judge = self.predictor.of(self.space)
        ledger = Ledger(max_measurements=budget)
        measure = charged(ledger, self.space.key, self._measure)
        # BEAM measures all children of a level, whatever the first of them shows: the compilers work on many at once
        batch_size = 2 * self.service.compile_workers if name.startswith(BEAM) else self.batch_size
        return Problem(
            self.space,
            judge.predict,
            measure,
            ledger,
            random.Random(seed),
            batch_size=batch_size,
            correct=judge.correct if not guide else None,
        )

    def _measure(self, schedules: Sequence[Schedule]) -> list[Observation]:
        """What each shows, measured unless it was before."""
        missing = [s for s in dict.fromkeys(schedules) if s not in self.seen.rows]
        if missing:
            begin = time.monotonic()
            if begin >= self.until:
                raise TimeoutError("no time for another measurement")
            known = [o.time_s for o in self.seen.rows.values() if math.isfinite(o.time_s)]
            best_s = min(known, default=None)
            hopeless_s = HOPELESS * best_s if best_s is not None else None
            requests = [
                Request(self.region, s, in_search=True, careful=True, best_s=best_s, stop_above_s=hopeless_s)
                for s in missing
            ]
            rows = [future.result() for future in self.service.measure(requests)]
            for row in rows:
                self._keep(row, (time.monotonic() - begin) / len(rows))
        return [self.seen.rows[s] for s in schedules]

    def _keep(self, row: Measurement, spent_s: float) -> None:
        seen = Observation.of(row)
        self.journal.add(
            "row",
            self.region.id,
            row.schedule,
            status=str(seen.status),
            runtime_s=seen.runtime_s,
            binary=seen.binary_hash,
            reason=seen.reason,
            spent_s=spent_s,
            launch=row.launch,
        )

    def full_s(self, schedule: Schedule) -> float:
        """The runtime of a schedule with all samples; that of the search where it fails, infinite where that failed."""
        if schedule not in self.seen.full_s:
            row = self.service.measure([Request(self.region, schedule, trial=1)])[0].result()
            seen = Observation.of(row)
            found = seen.runtime_s if seen.runtime_s is not None else self._measure([schedule])[0].runtime_s
            self.journal.add("full", self.region.id, schedule, runtime_s=found)
        found = self.seen.full_s[schedule]
        return math.inf if found is None else found

    def raw_s(self, *, timeout_s: float) -> float:
        """The runtime of the unoptimised kernel: one sample, since it may take seconds. Infinite where it fails."""
        if RAW not in self.seen.rows:
            request = Request(self.region, RAW, in_search=True, stop_above_s=0.0, timeout_s=timeout_s)
            self._keep(self.service.measure([request])[0].result(), 0.0)
        return self.seen.rows[RAW].time_s

    def tiny_beam(self, width: int, *, timeout_s: float) -> tuple[float, int, float] | None:
        """tinygrad's own BEAM: what its winner takes, the binaries that it timed, and its seconds; None if it fails."""
        beam = self.search_tiny(width, timeout_s=timeout_s)
        return None if beam is None or beam.reason else (self.full_s(beam.schedule), beam.binaries, beam.wall_s)

    def search_tiny(self, width: int, *, timeout_s: float, keep_failure: bool = True) -> Beam | None:
        """tinygrad's own BEAM, once: what it did is kept. None where it fails and that is not to be kept."""
        if width not in self.seen.tiny:
            begin, reason = time.monotonic(), ""
            try:
                job = TinyBeamJob(self.region, self.service.target, width)
                found = self.service.tiny_beam(job, timeout_s=timeout_s).result()
            except (ScheduleError, TimeoutError) as error:
                if not keep_failure and isinstance(error, TimeoutError):
                    return None
                self._trust(str(error))
                reason = str(error)
                found = TinyBeamOutcome(self.space.baseline(), 0, time.monotonic() - begin)
            self.journal.add(
                "tiny",
                self.region.id,
                found.schedule,
                width=width,
                binaries=found.binaries,
                wall_s=found.wall_s,
                reason=reason,
            )
        return self.seen.tiny[width]

    def _trust(self, failure: str) -> None:
        """Raises DeviceError where it is the device that failed: tinygrad's own schedule does not run any more."""
        request = Request(self.region, self.space.baseline(), in_search=True, trial=len(self.seen.row_s) + 1)
        row = Observation.of(self.service.measure([request])[0].result())
        if row.runtime_s is None and self.seen.rows[self.space.baseline()].runtime_s is not None:
            raise self.service.device_error or DeviceError(f"the device fails: {row.reason} (after: {failure})")

    def replay(self, turn: Turn) -> tuple[Replay, Schedule]:
        """A replay and its winner, the fastest that it found: tinygrad's own where nothing succeeded. Kept."""
        if turn not in self.seen.replays:
            name, seed, budget = turn
            problem = self.problem(name, seed=seed, budget=None if name in UNMEASURED else budget)
            made = replace(replay(name, problem, seed=seed, led=self.led), budget=budget)
            found = best(problem.known.values())
            winner = found.schedule if found is not None else self.space.baseline()
            spent_s = made.seconds + sum(self.seen.row_s.get(schedule, 0.0) for schedule in problem.known)
            self.journal.add_replay(self.region.id, Ended(made, winner, spent_s))
        kept = self.seen.replays[turn]
        return kept.replay, kept.winner


def replay_on_device(bench: DeviceBench, settings: Settings) -> tuple[dict[Turn, Replay], dict[str, list[float]]]:
    """Every replay on one kernel, and what the winners of each contender take with all samples, a seed each.

    None goes beyond the budget: hundreds of measurements of the default contender take many minutes of drafting.
    """
    replayed: dict[Turn, Replay] = {}
    winners: dict[str, list[float]] = {}
    wanted = turns(bench.kernel, settings, {}, has_policy=bench.led is not None)
    for turn in wanted:
        replayed[turn], winner = bench.replay(turn)
        if turn[2] != 0:
            winners.setdefault(turn[0], []).append(bench.full_s(winner))
    return replayed, winners


@contextlib.contextmanager
def flux_on_device(device: str, preset: str, journal: DeviceJournal) -> Iterator[MeasureService]:
    """A device; the journal then knows it, and the kernels of Flux, those on which it spends most of its time with
    tinygrad's own schedules first. Raises DeviceError where the device does not open, MismatchError where the journal
    is of another."""
    from kcg.compat.device import choose_device, prepare
    from kcg.measure.service import MeasureService
    from kcg.workloads.registry import spec_of

    choice = choose_device(device)
    prepare(choice.dev)
    with MeasureService(choice.dev, run_id=uuid.uuid4().hex) as service:
        if journal.setting is not None or journal.shard is not None:  # a shard without a setting is refused
            journal.set(*service.facts, [])
            yield service
            return
        calls = [c for c in spec_of("flux").capture(preset).calls if not c.variables]
        requests = [Request(c.region, KernelSpace(c.region, service.target).baseline(), in_search=True) for c in calls]
        timed = [Observation.of(future.result()).time_s for future in service.measure(requests)]
        kernels = [(c.region, c.calls, s) for c, s in zip(calls, timed, strict=True) if math.isfinite(s)]
        kernels.sort(key=lambda kernel: -kernel[1] * kernel[2])
        journal.set(*service.facts, kernels)
        yield service


def compare_on_flux(
    device: str,
    preset: str,
    journal: DeviceJournal,
    predictor: LearnedPredictor,
    settings: Settings,
    *,
    count: int,
    recorded: bool = False,
    **more: Any,
) -> tuple[list[RecordedKernel], list[dict[Turn, Replay]], dict[str, Any]]:
    """`compare_on_device` on the `count` kernels of Flux with the largest share, of these the journal's shard.

    What is `recorded` takes no device; raises UsageError or DataError where the journal does not hold it. `more` goes
    to `compare_on_device`.
    """
    with contextlib.nullcontext() if recorded else flux_on_device(device, preset, journal) as service:
        if (setting := journal.setting) is None:
            raise UsageError(f"{journal.path} holds no comparison yet: run it on a device, without --recorded")
        calls = [(region, calls) for region, calls, _ in setting.kernels[:count]]
        if journal.shard is not None:
            calls = calls[journal.shard.number :: journal.shard.of]
        return compare_on_device(calls, service or setting, predictor, settings, journal, **more)


@dataclass(frozen=True)
class ExtraContenders:
    """What only a device can compare, or a policy that the settings' contenders may ask."""

    policy: Policy | None = None
    tiny_beams: Sequence[int] = ()  # widths of tinygrad's own BEAM


def compare_on_device(
    calls: Sequence[tuple[Region, int]],
    service: MeasureService | Setting,
    predictor: LearnedPredictor,
    settings: Settings,
    journal: DeviceJournal,
    *,
    extra: ExtraContenders | None = None,
    budget_s: float | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[list[RecordedKernel], list[dict[Turn, Replay]], dict[str, Any]]:
    """Replays on kernels, each with its number of calls. None is begun once the budget is spent.

    Beside the replays: what each contender's winners make of the workload, and tinygrad's own BEAM on the same kernels.
    """
    extra = ExtraContenders() if extra is None else extra
    tiny_beams = extra.tiny_beams
    deadline = math.inf if budget_s is None else time.monotonic() + budget_s
    kernels, replays, winners, weights = list[RecordedKernel](), list[dict[Turn, Replay]](), [], []
    beams: dict[int, list[tuple[float, int, float]]] = {width: [] for width in tiny_beams}
    for region, count in calls:
        if time.monotonic() >= deadline:
            log(f"the time is over: {len(kernels)} of {len(calls)} kernels were replayed, the same command goes on")
            break
        try:
            bench = DeviceBench(
                region, count, service, predictor, journal, policy=extra.policy, batch_size=settings.batch_size
            )
            found, won = replay_on_device(bench, settings)
            for width in tiny_beams:
                if (beam := bench.tiny_beam(width, timeout_s=BEAM_TIMEOUT_S)) is not None:
                    won[f"{TINY_BEAM}:{width}"] = [beam[0]]
                    beams[width].append(beam)
            won["hand-coded"] = [bench.full_s(bench.space.baseline())]
        except DataError as error:  # only where there is no device: what was replayed is enough
            log(str(error))
            continue
        kernels.append(bench.kernel)
        replays.append(found)
        winners.append(won)
        weights.append(count)
        rows, spent = len(bench.seen.rows), bench.seen.spent_s
        log(f"{bench.label}: {rows} schedules measured in {spent:.0f} s")
    if not kernels and budget_s is None:
        raise DataError(f"{journal.path} holds no kernel that everything was replayed on")
    measured = sum(len(journal.of(k.region.id).rows) for k in kernels)
    report: dict[str, Any] = {
        "totals": totals(weights, winners),
        "costs": costs([journal.of(k.region.id) for k in kernels], replays),
        "seconds_per_measurement": sum(journal.of(k.region.id).spent_s for k in kernels) / max(measured, 1),
        TINY_BEAM: {
            str(width): {"kernels": len(rows), "binaries": sum(r[1] for r in rows), "wall_s": sum(r[2] for r in rows)}
            for width, rows in beams.items()
        },
    }
    return kernels, replays, report


def totals(weights: Sequence[int], winners: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """By contender: the workload's seconds with its winners, the mean over seeds, of those that ran on every kernel."""
    names = set.intersection(*(set(found) for found in winners)) if winners else set()
    return {
        name: {
            "total_s": sum(w * sum(found[name]) / len(found[name]) for w, found in zip(weights, winners, strict=True)),
            "log_mean": sum(sum(map(math.log, found[name])) / len(found[name]) for found in winners) / len(winners),
        }
        for name in sorted(names)
    }


def costs(seen: Sequence[Seen], replays: Sequence[Mapping[Turn, Replay]]) -> dict[str, dict[str, float]]:
    """By contender: how much it measured, and how many seconds it took from cold, of one kernel; means."""
    ended: dict[str, list[Ended]] = {}
    for kernel, replayed in zip(seen, replays, strict=True):
        for turn in replayed:
            ended.setdefault(turn[0], []).append(kernel.replays[turn])
    return {
        name: {
            "measurements": sum(e.replay.measurements for e in of) / len(of),
            "wall_s": sum(e.spent_s for e in of) / len(of),
        }
        for name, of in ended.items()
    }
