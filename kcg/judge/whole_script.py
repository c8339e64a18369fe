"""A whole script, and what it leaves.

It runs again, in a fresh process that can be killed (`kcg.judge.script_run`), with the chosen schedules, those of each
of several plans, hand-written kernels included. What it leaves is compared with what it left when its kernels were
recorded (`kcg.workloads.left`), with tinygrad's own schedules; where that was not kept it runs with these first. All
runs have the same seeds of Python, NumPy and tinygrad. All that the script does to the world, it does again:
`--no-script-check` leaves this out.

What is compared is what came out of kernels that have another schedule now: what is alive at the end, what the last
call of a `TinyJit` returned, and what the script read last. Where that differs by more than a single kernel may make it
differ, or does not say anything, the steps of the same run decide: each of them ran with both from the same values
(`kcg.judge.lockstep`). So neither a training loop that makes much of rounding nor a script that depends on the time or
on the system's random numbers is in the way of a verdict.

Where it replays a `TinyJit`, its replays are timed in each of these runs; not while it is recorded, which takes time of
its own. Processes differ, so plans that are right run in turns, each as often as there is time.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.compat.observing import READ
from kcg.compat.replays import Replayed
from kcg.handover.choices import changed_by
from kcg.judge.lockstep import ROUNDED, TRIALS
from kcg.judge.script_run import MAX_BYTES, Ran, read_answer
from kcg.judge.whole import (
    TIMEOUT_S,
    Cost,
    Runner,
    feeding_what_differs,
    judge_first,
    occurring,
    rounding_of,
    same_layout,
    says_something,
    unclear,
    why_nothing,
    words_of_pieces,
    written,
)
from kcg.kernel.program import compiled_values
from kcg.measure import isolated
from kcg.measure.protocol import median
from kcg.nouns import noun_to_json
from kcg.types import ModelCheck, Result, Target
from kcg.workloads.left import ANSWER, Recorded, identity, read_recorded

if TYPE_CHECKING:
    from kcg.kernel.program import Compiled
    from kcg.workloads.script import Program

CHILD = "kcg.judge.script_run"
MORE = 1.25  # a run takes longer than the one that recorded the kernels: other schedules take longer to compile
LEAST = 0.5  # a run takes so much of the recording at least, whatever that lowered: 6.5 s of 12.6
TIMES = 10.0  # so many times what is expected is waited for then

REPLAYS = 3  # warm ones that a step has at least, or it is not timed
ROUNDS = 5  # runs of each plan at most: processes differ
ROUNDS_S = 60.0  # no round after the first one begins that would end later than so many seconds after it
SEVERAL_S = 45.0
"""Plans are compared where that takes no longer, or somebody asked for it: three of a token of Llama's sizes took 105 s
of a run without a budget, and their further rounds 69; with one plan the step was .99 of a thorough run's, with all of
them .98."""
TRIED = 1 + 2 * TRIALS  # runs of a step that is off
LITTLE = 0.25  # of a run, which trials may take that nobody asked for: a token of Llama's sizes ran twice for 29 s each
RESERVED = 2  # rounds for which a budget keeps time, where plans are compared

NO_STEPS = "not run: of a script without steps the best plan and every kernel alone are"
RIGHT_BEFORE = "not run: a plan that is expected to be faster is right"
NO_REPLAYS = "it replays no TinyJit often enough"
OTHER_STEPS = "it does not replay the same steps in each run"
ONE_RUN = "it ran once more, with the chosen schedules alone"
NO_TRIALS = "it differs by more than one kernel may, and there was no time to compare its steps in trials"
NO_STEP = "nothing that the script made came out of a kernel with another schedule"


@dataclass
class Script(Runner):
    """Runs a script. What its runs with tinygrad's own schedules leave is kept, so that parts of a plan are compared
    without more of them."""

    program: Program
    seed: int = 0
    kernels: Sequence[Path] = ()  # files of the hand-written ones
    wanted: bool = True  # whether it runs again
    recorded_s: float = 0.0  # what recording its kernels took
    recorded: Path | None = None  # where that kept what the script left
    spared_s: float = 0.0  # of it, what lowering took that no run does again
    steps: int = 0  # how often it replayed its steps while it was recorded
    dev: str = ""  # where it was recorded, such as `CPU:X86`
    programs: Callable[[], Mapping[str, Compiled]] = dict
    """tinygrad's own programs of kernels, as its recording lowered them, by kernel."""
    check_device: Callable[[], None] = lambda: None
    """Called after a run that failed; its time may come on top of the timeout."""
    known: list[Ran] = field(default_factory=list)  # runs with tinygrad's own schedules after the recording
    observed: tuple[str, ...] = ()  # the kernels whose results are looked at, by id

    what, most_s, several_s = "script", TIMEOUT_S, SEVERAL_S

    def why_not(self, results: Sequence[Result]) -> list[str]:
        left_out = "" if self.wanted else "not run: left out by --no-script-check"
        reasons = [left_out or why_nothing(result) for result in results]
        if not results[0].steps:
            reasons[1:-1] = [NO_STEPS] * (len(results) - 2)
        return reasons

    @property
    def is_recorded(self) -> bool:
        """Whether there is something that a first run is compared with."""
        return self.recorded is not None and (self.recorded / ANSWER).exists()

    @property
    def rounds(self) -> int:
        return 1 if self.is_recorded else RESERVED

    @property
    def plans(self) -> int:
        """Each is a run of the whole script: the second one has what time is left."""
        return 1 if self.is_recorded else 2

    def announced(self, plans: str) -> str:
        which = "the chosen schedules" if self.is_recorded else "tinygrad's own schedules and with the chosen ones"
        return (
            f"running {self.program.what} again, with {which}{plans} (its side effects repeat; --no-script-check "
            "leaves this out)"
        )

    def expected_s(self, cost: Cost) -> float:
        """A round is a run with tinygrad's own schedules, of which the first was the recording where that kept what it
        left, and one with each plan, which compiles what changed, and runs faster by what was found."""
        if not self.wanted:
            return 0.0
        compiling_s = min(cost.changed * cost.compile_s, self.spared_s)
        own_s = (cost.rounds - self.is_recorded) * self.run_s
        saved_s = cost.saved_s * min(1.0, self.run_s / cost.step_s) if cost.step_s else 0.0
        chosen_s = max(self.run_s - saved_s, LEAST * self.run_s)
        each_s = chosen_s + compiling_s + (self._lockstep_s(cost, compiling_s) if self.steps else 0.0)
        return MORE * (own_s + cost.rounds * cost.plans * each_s)

    def _lockstep_s(self, cost: Cost, compiling_s: float) -> float:
        """What comparing its steps takes, with the trials that are due, in which what changed in a training loop is
        compiled once more, with other sums."""
        step_s = min(cost.step_s, self.run_s) / self.steps
        times = self.steps.bit_length()
        if self.feeds_back:
            return (times + TRIED + 2 * ROUNDED) * step_s + compiling_s
        return (times + (times * TRIED if self.tries(cost.step_s) else 0)) * step_s

    def tries(self, total_s: float) -> bool:
        """Whether steps that are off are tried in the first run: where they are likely to be, or where trials take
        little of what another run would. `total_s` is what its kernels take as tinygrad schedules them."""
        step_s = min(total_s, self.run_s) / max(self.steps, 1)
        return self.feeds_back or self.steps.bit_length() * TRIED * step_s < LITTLE * self.run_s

    @cached_property
    def feeds_back(self) -> bool:
        """Whether what it read later came out of more kernels than what it read first, of as many floats, as the losses
        of a training loop: what rounds grows from step to step then."""
        if (kept := self.kept(self.dev)) is None:
            return False
        reads = [one for one in kept.found if one.place == READ and one.piece is not None and one.piece.eps]
        return any(one.nbytes == reads[0].nbytes and {*reads[0].fed_by} < {*one.fed_by} for one in reads[1:])

    @property
    def run_s(self) -> float:
        """One more run with tinygrad's own schedules, in seconds."""
        return max(self.recorded_s - self.spared_s, 0.0)

    @property
    def again_s(self) -> float:
        """The same, no less than was seen of such a run."""
        return max(self.run_s, LEAST * self.recorded_s)

    def kept(self, dev: str) -> Recorded | None:
        """What the recording of its kernels on this device kept of what it left, if it did."""
        if self.recorded is None:
            return None
        return read_recorded(self.recorded, of=identity(self.program.command, seed=self.seed, dev=dev))

    def timeout_s(self, expected_s: float) -> float:
        return max(TIMEOUT_S, TIMES * expected_s)

    def checks(self, results: Sequence[Result], *, timeout_s: float, rounds_s: float = math.inf) -> list[ModelCheck]:
        """Where it replays a `TinyJit`, each plan runs and its steps are timed, in further rounds too. Else one plan
        that is right is enough."""
        with tempfile.TemporaryDirectory(prefix="kcg-script-", ignore_cleanup_errors=True) as folder:
            runs = _Runs(self, results, Path(folder), timeout_s=timeout_s)
            return _Comparison(results, runs, rounds_s).checks()


class _Died(Exception):
    """A run that left no answer, and how it ended."""


class _Runs:
    """Runs the script, one after the other, as long as there is time."""

    def __init__(self, script: Script, results: Sequence[Result], folder: Path, *, timeout_s: float) -> None:
        self.count, self.script = 0, script
        self._dev, self._folder, self._check_device = results[0].target.tinygrad_device, folder, script.check_device
        self._end = time.monotonic() + timeout_s
        self.changed = [changed_by(result, handwritten=bool(script.kernels)) for result in results]
        pairs = zip(results, self.changed, strict=True)
        regions = [row.region for result, changed in pairs for row in result.regions if row.region.id in changed]
        self._paths = written(results, folder)
        if not script.observed:
            script.observed = tuple(sorted({kernel.id for region in regions for kernel in region.kernels}))
        self.recorded = self._recorded()
        self._job: dict[str, Any] = {
            "form": script.program.form,
            "what": script.program.what,
            "arguments": list(script.program.arguments),
            "seed": script.seed,
            "kernels": [str(file) for file in script.kernels],
            "observed": list(script.observed),
            "programs": str(programs_file) if (programs_file := self._programs(results[0].target)) else "",
        }

    def _programs(self, target: Target) -> Path | None:
        """The file of what the child need not lower; None where there is nothing."""
        if not (programs := self.script.programs()):
            return None
        path = self._folder / "programs.json"
        values = {kernel: compiled_values(compiled) for kernel, compiled in programs.items()}
        path.write_text(json.dumps({"target": noun_to_json(target), "programs": values}))
        return path

    def run(
        self, place: int | None = None, *, compared: bool = True, lockstep: bool = True, tries: bool = False
    ) -> Ran:
        """One more run of the script, with the schedules of the result at `place`; None: with tinygrad's own. Where it
        is `compared`, what it leaves is read, and its steps run with both in `lockstep`, those that are off in trials
        where it `tries`. Raises `isolated.Overdue` where it does not end in time, `_Died` where it leaves no answer,
        DeviceError where the device is gone."""
        self.count += 1
        folder, begin = self._folder / str(self.count), time.monotonic()
        folder.mkdir()
        job = {**self._job, "folder": str(folder), "compared": compared}
        job |= {"lockstep": compared and lockstep, "tries": tries}
        job |= {"result": "" if place is None else str(self._paths[place])}
        job |= {"changed": [] if place is None else sorted(self.changed[place])}
        settings = {"PYTHONHASHSEED": str(self.script.seed % 2**32)}
        try:
            with isolated.IsolatedProcess(CHILD, dev=self._dev, label="script", settings=settings) as process:
                ended = process.run(job, timeout_s=max(self._end - begin, 0.0), name="it")
        except isolated.Overdue:
            self._check_device()  # before anything is said of the schedules
            raise
        if (ran := read_answer(folder, seconds=time.monotonic() - begin)) is None:
            self._check_device()
            raise _Died(ended.last_words)
        return ran

    def _recorded(self) -> Ran | None:
        """The run that recorded the script's kernels, with tinygrad's own schedules, as if it had been watched for the
        kernels that are observed; None where what it left was not kept."""
        script, kept = self.script, self.script.kept(self._dev)
        left = kept.of_kernels(script.observed, most_bytes=MAX_BYTES) if kept is not None else None
        return None if left is None else Ran("", "", *left, kernels=0, seconds=script.again_s)

    def own(self, number: int = 1) -> Ran:
        """The run of this number with tinygrad's own schedules, after the recording."""
        while len(self.script.known) < number:
            self.script.known.append(self.run())
        return self.script.known[number - 1]

    def has_time_for(self, *some: Ran, until: float = math.inf) -> bool:
        """Whether other runs like these are expected to end in time, and by `until`."""
        return time.monotonic() + sum(one.seconds for one in some) < min(self._end, until)


class _Comparison:
    """The runs of a script with several plans, beside those with tinygrad's own schedules."""

    def __init__(self, results: Sequence[Result], runs: _Runs, rounds_s: float) -> None:
        """No run with a plan but the first one is to end later than `rounds_s` from now, nor than `ROUNDS_S` a further
        round."""
        self._results, self._runs, begin = results, runs, time.monotonic()
        self._plans_until, self._until = begin + rounds_s, begin + min(rounds_s, ROUNDS_S)
        self._timed: dict[int | None, list[Ran]] = {}  # by the place of the plan; None: tinygrad's own schedules
        self._untimed = ""  # why no steps are timed
        self._tries = False  # whether a plan needed trials

    def checks(self) -> list[ModelCheck]:
        """A check of each plan."""
        own = self._runs.recorded
        if own is None:
            # tinygrad's own first: a script that does not run again, for whatever reason, is not run a third time
            try:
                own = self._runs.own()
            except (isolated.Overdue, _Died) as error:
                return [self._with_steps(_does_not_run(error))] * len(self._results)
            self._saw_steps(None, own)
        seen: list[ModelCheck] = []
        for place in range(len(self._results)):
            if seen and seen[0].passed is None:  # its steps tell nothing, say: with other plans neither
                seen.append(seen[0])
            elif self._untimed and any(check.passed for check in seen):
                seen.append(ModelCheck(None, RIGHT_BEFORE))
            elif seen and not self._runs.has_time_for(self._timed.get(place - 1, [own])[-1], until=self._plans_until):
                seen.append(ModelCheck(None, "not run: there was no time for so many plans"))
            else:
                seen.append(self._compared(place, own))
        right = [place for place, check in enumerate(seen) if check.passed]
        if len(right) > 1:
            self._more_rounds(right, own)
        return [self._with_steps(check, place) for place, check in enumerate(seen)]

    def _more_rounds(self, right: Sequence[int], own: Ran) -> None:
        """Time the steps of plans that are right in more runs, in turns, as long as there is time."""
        sides = [None, *right]
        last = [self._timed[side][-1] if side in self._timed else own for side in sides]
        while not self._untimed and len(self._timed.get(None, ())) < ROUNDS:
            missing = [side for side in sides if side not in self._timed]  # tinygrad's own, which was recorded only
            turn = missing or sides
            if not self._runs.has_time_for(*(last[sides.index(side)] for side in turn), until=self._until):
                return
            try:
                ran = [self._runs.run(side, compared=False) for side in turn]
            except (isolated.Overdue, _Died):
                return
            if any(one.ended != own.ended or not _same_steps(one, self._timed[right[0]][0]) for one in ran):
                return
            for side, one in zip(turn, ran, strict=True):
                self._timed.setdefault(side, []).append(one)
                last[sides.index(side)] = one

    def _saw_steps(self, side: int | None, ran: Ran) -> None:
        """The steps of the first run of a plan, or of tinygrad's own schedules: all are to replay the same."""
        first = next(iter(self._timed.values()), [ran])[0]
        if not self._untimed:
            other = "" if _same_steps(ran, first) else OTHER_STEPS
            self._untimed = ran.untimed or other or ("" if _steps_of(ran) else NO_REPLAYS)
        self._timed[side] = [ran]

    def _compared(self, place: int, own: Ran) -> ModelCheck:
        """The check of a plan, compared with the run `own`, and where that says nothing by its steps."""
        runs, result, changed = self._runs, self._results[place], len(self._runs.changed[place])
        try:
            chosen = self._run(place, own)
        except isolated.Overdue as error:
            return unclear(f"with the chosen schedules {error}; with tinygrad's own it took {own.seconds:.3g} s")
        except _Died as error:
            return _whose_fault(runs, own, _of(error))
        if chosen is None:
            return unclear(NO_TRIALS)
        if chosen.refused:
            return unclear(f"the chosen schedules cannot be used in the script: {chosen.refused}")
        if chosen.ended != own.ended:
            return _by_steps(chosen, proven=True) or _whose_fault(runs, own, chosen.words or "it ends well")
        self._saw_steps(place, chosen)
        check = _of_what_is_left(runs, result, own, chosen) or _by_steps(chosen) or unclear(NO_STEP)
        check = replace(check, kernels=chosen.kernels, replaced=chosen.replaced, left=chosen.left)
        when = "the script runs again" + (f" ({chosen.words})" if chosen.ended else "")
        return occurring(check, served=chosen.kernels, changed=changed, when=when)

    def _run(self, place: int, own: Ran) -> Ran | None:
        """The run of a plan, with trials of its steps where nothing else tells; None where there is no time for that.
        One that ends in another way runs once more without comparing steps, which takes memory and time of its own."""
        runs, chosen, died = self._runs, None, None
        try:
            tries = self._tries or runs.script.tries(self._results[place].total_before_s)
            chosen = runs.run(place, tries=tries)
            if _needs_trials(self._results[place], own, chosen) and not tries:
                if not runs.has_time_for(chosen):
                    return None
                self._tries = True
                chosen = runs.run(place, tries=True)
        except _Died as error:
            died = error
        ends = chosen is not None and (chosen.refused or chosen.ended == own.ended)
        if not ends and (chosen is None or not _by_steps(chosen, proven=True)) and runs.has_time_for(own):
            return runs.run(place, lockstep=False)
        if died is not None:
            raise died
        return chosen

    def _with_steps(self, check: ModelCheck, place: int = 0) -> ModelCheck:
        """The check with what was seen of its steps, and of how many runs."""
        if check.reason != RIGHT_BEFORE:
            check = replace(check, seed=self._runs.script.seed, runs=self._runs.count)
        if self._untimed or place not in self._timed:
            return replace(check, untimed=self._untimed)
        own, chosen = self._timed.get(None, []), self._timed[place]
        if not own and len(self._results) == 1:
            return replace(check, untimed=ONE_RUN)
        replays = min(len(step.seconds) for ran in (*own, *chosen) for step in _steps_of(ran))
        each = f"{len(chosen)} runs each, in turns" if len(chosen) > 1 else "one run each"
        return replace(
            check,
            before_s=median([_step_s(ran) for ran in own]) if own else None,
            after_s=median([_step_s(ran) for ran in chosen]),
            spread_s=_spread_s(chosen),
            clock=f"{chosen[0].clock}, median of {replays} replays in {each}",
        )


# ---- steps: what a `TinyJit` replays. Of several the most frequent one is the step, the others count as often as they
# run for it.


def _steps_of(ran: Ran) -> list[Replayed]:
    return [step for step in ran.steps if len(step.seconds) >= REPLAYS]


def _same_steps(ran: Ran, other: Ran) -> bool:
    """Whether two runs replayed the same as often."""

    def replayed(ran: Ran) -> list[Any]:
        return [(step.given, step.executions, len(step.seconds) >= REPLAYS) for step in ran.steps]

    return replayed(ran) == replayed(other)


def _step_s(ran: Ran, of: Callable[[Sequence[float]], float] = median) -> float:
    """Seconds of one step."""
    steps = _steps_of(ran)
    return sum(step.executions * of(step.seconds) for step in steps) / max(step.executions for step in steps)


def _spread_s(some: Sequence[Ran]) -> float:
    """How far a step may be from the median of these runs: to the farthest run; of one run half of the distance between
    the quartiles of its replays."""
    if len(some) > 1:
        each = [_step_s(ran) for ran in some]
        return max(abs(seconds - median(each)) for seconds in each)

    def half(seconds: Sequence[float]) -> float:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return (high - low) / 2

    return _step_s(some[0], half)


def _whose_fault(runs: _Runs, own: Ran, words: str) -> ModelCheck:
    """What is said of a script that does not end with the chosen schedules as it does with tinygrad's own: two runs
    with these tell whether it always ends so, of which the recording is one."""
    if not runs.has_time_for(own):
        return unclear(f"with the chosen schedules {words}, and there was no time to see whether it always does")
    try:
        again = runs.own(1 if own is runs.recorded else 2)
    except (isolated.Overdue, _Died) as error:
        return unclear(f"the script does not end in the same way twice: with tinygrad's own schedules {_of(error)}")
    if again.ended != own.ended:
        return unclear("the script does not end in the same way twice, with tinygrad's own schedules either")
    if own.ended:
        return unclear(f"with tinygrad's own schedules {own.words}; with the chosen ones {words}")
    return ModelCheck(False, f"the script fails with the chosen schedules, and not with tinygrad's own: {words}")


def _does_not_run(error: Exception) -> ModelCheck:
    return unclear(f"the script does not run again: with tinygrad's own schedules {_of(error)}")


def _agrees(result: Result, own: Ran, chosen: Ran) -> ModelCheck | None:
    """Passed where a run with the chosen schedules left what the other did, as far as one kernel may make it differ;
    None where that says nothing."""
    if not own.pieces or not same_layout(own.pieces, chosen.pieces) or not says_something(own.pieces):
        return None
    return judge_first(chosen.pieces, own.pieces, rounding_of(result))


def _of_what_is_left(runs: _Runs, result: Result, own: Ran, chosen: Ran) -> ModelCheck | None:
    """The same, with what was compared."""
    if (check := _agrees(result, own, chosen)) is None:
        if same_layout(own.pieces, chosen.pieces):
            fed_by = feeding_what_differs(chosen.pieces, own.pieces, rounding_of(result))
            changed = changed_by(result, handwritten=bool(runs.script.kernels))
            runs.script.apart = runs.script.apart or frozenset(changed - fed_by)
        return None
    as_recorded = ", as recorded" if own is runs.recorded else ""
    left_out = f"; {own.left_out} more left out for their size" if own.left_out else ""
    return replace(check, compared=f"{words_of_pieces(own.pieces)}{left_out}{as_recorded}")


def _needs_trials(result: Result, own: Ran, chosen: Ran) -> bool:
    """Whether neither what it left nor its steps as they are tell anything."""
    by_steps = chosen.lockstep
    if chosen.refused or by_steps is None or by_steps.passed is not None:
        return False
    return chosen.ended != own.ended or _agrees(result, own, chosen) is None


def _by_steps(chosen: Ran, *, proven: bool = False) -> ModelCheck | None:
    """What its steps came to; where that is asked for only what they prove."""
    check = chosen.lockstep
    return None if check is None or (proven and check.passed is not False) else check


def _of(error: Exception) -> str:
    text = str(error)
    return text if text.startswith("it ") else f"it failed: {text}"
