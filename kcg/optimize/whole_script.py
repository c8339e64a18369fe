"""The last rule of verification for a script: what it leaves with the chosen schedules against what it leaves as
tinygrad schedules it.

The script runs again, in fresh processes that can be killed (`kcg.optimize.script_run`): with tinygrad's own
schedules, then with the chosen ones, those of each of several plans, hand-written kernels included. All have the same
seeds of Python, NumPy and tinygrad. All that the script does to the world, it does again: `--no-script-check` leaves
this out.

What is compared is what came out of kernels that have another schedule now: what is alive at the end, what the last
call of a `TinyJit` returned, and what the script read last. Two runs that leave tensors of other shapes, or another
number of them, cannot be compared. Where values differ by more than a single kernel may make them differ, two more runs
tell why: one repeats the run with tinygrad's own schedules, since a script that depends on the time or on the system's
random numbers differs from itself, and one tells what it makes of rounding. Only then
does a script fail.

Where it replays a `TinyJit`, its replays are timed in each run. Processes differ, so plans that are right run in turns,
each as often as there is time.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.compat.observing import ALIVE, READ, RETURNED, Piece
from kcg.compat.replays import Replayed
from kcg.handover.choices import changed_by
from kcg.measure import isolated
from kcg.measure.protocol import median
from kcg.optimize.script_run import Ran, read_answer
from kcg.optimize.whole_model import (
    FACTOR,
    MAX_TOLERANCE,
    eps_of,
    relative_error,
    rounding_of_products,
    rounding_of_sums,
)
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kcg.optimize.settings import Settings


# ---- How far apart what two runs of a script left is, and how much of that is rounding.
#
# The error of a piece (a tensor that was alive at the end, that the last `TinyJit` step returned, or that the script
# read) is that of `kcg.optimize.whole_model`: row by row, over the size of the whole. What is not finite with
# tinygrad's own schedules must be the same with the chosen ones.
#
# The tolerance. Nothing is known of a script but its kernels, so it is found in two steps. First
#
# 3 · max(eps, √K · eps(sum)), with the largest √K · eps(sum) of all kernels
#
# where eps is one rounding unit of the piece: about what the last kernel alone may do. Most scripts agree far better,
# and are done. Where one does not, tinygrad's own schedules run once more with every floating value that the script
# begins with changed by one rounding unit at random, and the error of that run (D) tells what the script makes of
# rounding; a training loop makes a lot of it. Then
#
# 3 · max(D, eps, eps(stored)) · max(1, √K · eps(sum) / max(eps, eps(stored)))
#
# where eps(stored) is that of the coarsest dtype in which its kernels store anything. Each piece has a tolerance of its
# own; above 0.25 nothing can be told. Whole numbers and booleans must be equal. Where they are not, a kernel is wrong
# for certain only if no kernel of the script computes with floating values: else rounding may have turned a comparison,
# and nothing can be told either.

PLACES = {ALIVE: "alive at its end", RETURNED: "returned by its last TinyJit step", READ: "read by it"}


@dataclass(frozen=True)
class Rounding:
    """What is known of the arithmetic of a script's kernels."""

    sums: float  # `rounding_of_sums`
    stored: float  # one rounding unit of the coarsest floating dtype that a kernel stores, or multiplies; 0: of none
    floats: bool  # whether any of them computes with floating values


def rounding_of(result: Result) -> Rounding:
    """The rounding of the kernels of a result."""
    from kcg.compat.tiny import Ops, dtypes
    from kcg.kernel.codec import ast_of

    stored, floats = 0.0, False
    for kernel in {kernel for row in result.regions for kernel in row.region.kernels}:
        for node in ast_of(kernel).toposort():
            if dtypes.is_float(node.dtype):
                floats = True
                if node.op is Ops.PARAM:
                    stored = max(stored, eps_of(node.dtype))
    products = rounding_of_products([result])
    return Rounding(rounding_of_sums(result), max(stored, products), floats)


def same_layout(ours: Sequence[Piece], theirs: Sequence[Piece]) -> bool:
    """Whether two runs left tensors of the same kind, shape and dtype, in the same order."""

    def layout(pieces: Sequence[Piece]) -> list[Any]:
        return [(piece.place, piece.dtype, piece.values.shape) for piece in pieces]

    return layout(ours) == layout(theirs)


def equal(ours: Sequence[Piece], theirs: Sequence[Piece]) -> bool:
    """Whether two runs left the same bytes."""
    return same_layout(ours, theirs) and all(
        _bits(a.values) == _bits(b.values) for a, b in zip(ours, theirs, strict=True)
    )


def says_something(pieces: Sequence[Piece]) -> bool:
    """Whether there is any finite value that is not zero."""
    return any(_says_something(piece) for piece in pieces)


def judge_first(chosen: Sequence[Piece], own: Sequence[Piece], rounding: Rounding) -> ModelCheck | None:
    """Passed where the chosen schedules differ by no more than a single kernel may; None where it takes more runs."""
    judged = [_judged(c, o, 0.0, o.eps, rounding) for c, o in zip(chosen, own, strict=True)]
    if any(one.ratio > 1 for one in judged):
        return None
    worst = max(judged, key=lambda one: one.ratio)
    return ModelCheck(True, "", worst.error, worst.tolerance)


def judge(
    chosen: Sequence[Piece], own: Sequence[Piece], shaken: Sequence[Piece], rounding: Rounding, *, values: int
) -> ModelCheck:
    """The result where the chosen schedules differ by more than that. `shaken` was left by tinygrad's own schedules
    where the `values` with which the script begins were changed by one rounding unit."""
    judged = []
    for c, o, s in zip(chosen, own, shaken, strict=True):
        first = _judged(c, o, 0.0, o.eps, rounding)
        if first.ratio <= 1:
            judged.append(first)
            continue
        judged.append(_judged(c, o, _error(s, o), max(o.eps, rounding.stored) if o.eps else 0.0, rounding))
    failed = [j for j in judged if j.ratio > 1 and not j.is_open(rounding, values)]
    if failed:
        worst = max(failed, key=lambda one: one.ratio)
        return ModelCheck(False, worst.words(values), worst.error, worst.tolerance)
    opened = [j for j in judged if j.ratio > 1 or j.is_too_sensitive]
    if opened:
        share = f"{len(opened)} of {counted(len(judged), 'tensor')}"
        reason = f"no verdict: {share} may differ by rounding alone; the first, {opened[0].words(values)}"
        return ModelCheck(None, reason, opened[0].error, opened[0].tolerance)
    worst = max(judged, key=lambda one: one.ratio)
    return ModelCheck(True, "", worst.error, worst.tolerance)


def words_of(pieces: Sequence[Piece]) -> str:
    """What was compared, counted by where it was."""
    counts = Counter(piece.place for piece in pieces)
    return ", ".join(f"{counted(counts[place], 'tensor')} {words}" for place, words in PLACES.items() if counts[place])


@dataclass(frozen=True)
class _Judged:
    """One piece, its error and its tolerance; of whole numbers the error is the share that differs."""

    piece: Piece
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        if self.error <= self.tolerance:
            return self.error / self.tolerance if self.tolerance else 0.0
        return math.inf if not self.tolerance else max(self.error / self.tolerance, math.nextafter(1.0, 2.0))

    @property
    def is_too_sensitive(self) -> bool:
        return not self.tolerance <= MAX_TOLERANCE

    def is_open(self, rounding: Rounding, values: int) -> bool:
        """Whether rounding may be why it differs."""
        if not self.piece.eps:
            return rounding.floats
        return self.is_too_sensitive or not values  # where nothing was shaken, D tells nothing

    def words(self, values: int) -> str:
        shape = "×".join(map(str, self.piece.values.shape)) or "single"
        name = f"a tensor ({shape} {self.piece.dtype}) {PLACES[self.piece.place]}"
        if not self.piece.eps:
            return f"{name} differs from that with tinygrad's own schedules in {self.error:.2g} of its values"
        if not math.isfinite(self.error):
            return f"{name} is not finite where it is with tinygrad's own schedules, or the other way round"
        explained = f"rounding explains {self.tolerance:.2g}"
        if not values:
            explained = "nothing that the script begins with could be changed to see what it makes of rounding"
        elif self.is_too_sensitive:
            explained = "one rounding unit in what the script begins with moves it too much to tell"
        return f"{name} differs by {self.error:.2g} of its size from that with tinygrad's own schedules; {explained}"


def _judged(chosen: Piece, own: Piece, moved: float, eps: float, rounding: Rounding) -> _Judged:
    tolerance = FACTOR * max(moved, eps) * max(1.0, rounding.sums / eps) if eps else 0.0
    return _Judged(own, _error(chosen, own), tolerance)


def _error(ours: Piece, own: Piece) -> float:
    import numpy as np

    if not own.eps:
        differ = np.asarray(ours.values != own.values)
        return float(differ.mean()) if differ.size else 0.0
    a, b = (np.asarray(piece.values, np.float64) for piece in (ours, own))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    if not b.any():
        return math.inf if a.any() else 0.0
    return relative_error([a], [b])


def _says_something(piece: Piece) -> bool:
    import numpy as np

    values = np.asarray(piece.values)
    return bool((np.isfinite(values) & (values != 0)).any() if piece.eps else values.any())


def _bits(values: NDArray[Any]) -> bytes:
    import numpy as np

    return np.ascontiguousarray(values).tobytes()


CHILD = "kcg.optimize.script_run"
MORE = 1.25  # a run takes longer than the one that recorded the kernels: other schedules take longer to compile
LEAST_TIMEOUT_S = 600.0  # of all runs, where there is no budget
TIMES = 10.0  # so many times what is expected is waited for then

REPLAYS = 3  # warm ones that a step has at least, or it is not timed
ROUNDS = 5  # runs of each plan at most: processes differ
ROUNDS_S = 120.0  # no round after the first one begins that would end later than so many seconds after it
RESERVED = 2  # rounds for which a budget keeps time, where plans are compared

RIGHT_BEFORE = "not run: a plan that is expected to be faster is right"
NO_REPLAYS = "it replays no TinyJit often enough"
OTHER_STEPS = "it does not replay the same steps in each run"


def expected_cost_s(settings: Settings, *, recorded_s: float, plans: int = 1, rounds: int = 1) -> float:
    """About how many seconds the check of so many plans takes, where recording the script's kernels took `recorded_s`:
    a round is a run with tinygrad's own schedules and one with each plan."""
    return rounds * (1 + plans) * MORE * recorded_s if settings.script_check else 0.0


def timeout_s(expected_s: float) -> float:
    """How long to wait for all runs where there is no budget."""
    return max(LEAST_TIMEOUT_S, TIMES * expected_s)


def why_not_needed(settings: Settings, result: Result, *, ended_early: bool) -> str:
    """Why there is nothing to check; empty where the check is due."""
    if not settings.script_check:
        return "not run: left out by --no-script-check"
    if ended_early:
        return "not run: the run ended before every kernel was verified"
    if not any(row.outcome == "improved" for row in result.regions):
        return "not run: no schedule was changed"
    return ""


@dataclass
class OwnRuns:
    """What runs of a script with tinygrad's own schedules left, so that parts of a plan are compared without more of
    them, and what is known of a plan that failed."""

    observed: tuple[str, ...] = ()  # the kernels whose results are looked at, by id
    own: Ran | None = None
    again: Ran | None = None  # a second run
    shaken: Ran | None = None  # one more, with every value that the script begins with changed by one rounding unit
    apart: frozenset[str] = frozenset()  # schedules that fed nothing which differed, by ids of kernels and regions


def check_scripts(
    results: Sequence[Result],
    settings: Settings,
    *,
    timeout_s: float,
    rounds_s: float = ROUNDS_S,
    check_device: Callable[[], None] = lambda: None,
    own: OwnRuns | None = None,
) -> list[ModelCheck]:
    """Run the script of `settings` with tinygrad's own schedules and with those of each result, several plans of which
    the last has every kernel alone, and compare: a check of each.

    Where it replays a `TinyJit`, each plan runs and its steps are timed, in further rounds too, as long as these end in
    `rounds_s` seconds. Else one plan that is right is enough.

    Never raises for what the script does: a script that fails with the chosen schedules alone fails the check, anything
    else gives no result. `check_device` is called after a run that failed, and its time may come on top of
    `timeout_s`: a DeviceError that it raises ends the check. `own` are runs with tinygrad's own schedules that were
    made before, to which those that are made now are added.
    """
    own = OwnRuns() if own is None else own
    with tempfile.TemporaryDirectory(prefix="kcg-script-", ignore_cleanup_errors=True) as folder:
        runs = _Runs(results, settings, Path(folder), timeout_s=timeout_s, check_device=check_device, known=own)
        return _Comparison(results, runs, time.monotonic() + min(rounds_s, ROUNDS_S)).checks()


class _Died(Exception):
    """A run that left no answer, and how it ended."""


class _Runs:
    """Runs the script, one after the other, as long as there is time."""

    def __init__(
        self,
        results: Sequence[Result],
        settings: Settings,
        folder: Path,
        *,
        timeout_s: float,
        check_device: Callable[[], None],
        known: OwnRuns,
    ) -> None:
        from kcg.report.result import write_result

        self.count = 0
        self.known = known
        self.seed = settings.seed
        self._dev, self._folder, self._check_device = results[0].target.tinygrad_device, folder, check_device
        self._end = time.monotonic() + timeout_s
        program = settings.program
        assert program is not None, "a workload that is no script has a model"
        self.by_hand = bool(settings.kernels)
        self.changed = [changed_by(result, handwritten=self.by_hand) for result in results]
        pairs = zip(results, self.changed, strict=True)
        regions = [row.region for result, changed in pairs for row in result.regions if row.region.id in changed]
        self._paths = [folder / f"result-{place}.json" for place in range(len(results))]
        for path, result in zip(self._paths, results, strict=True):
            write_result(result, path)
        if not known.observed:
            known.observed = tuple(sorted({kernel.id for region in regions for kernel in region.kernels}))
        self._job: dict[str, Any] = {
            "form": program.form,
            "what": program.what,
            "arguments": list(program.arguments),
            "seed": settings.seed,
            "kernels": [str(file) for file in settings.kernels],
            "observed": list(known.observed),
        }

    def run(self, place: int | None = None, *, shake: bool = False, compared: bool = True) -> Ran:
        """One more run of the script, with the schedules of the result at `place`; None: with tinygrad's own. What it
        leaves is read where it is `compared`. Raises `isolated.Overdue` where it does not end in time, `_Died` where it
        leaves no answer, DeviceError where the device is gone."""
        self.count += 1
        folder, begin = self._folder / str(self.count), time.monotonic()
        folder.mkdir()
        job = {**self._job, "folder": str(folder), "shake": shake, "compared": compared}
        job |= {"result": "" if place is None else str(self._paths[place])}
        job |= {"changed": [] if place is None else sorted(self.changed[place])}
        settings = {"PYTHONHASHSEED": str(self.seed % 2**32), **({"JIT": "2"} if shake else {})}
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

    @property
    def own(self) -> Ran:
        """A run with tinygrad's own schedules."""
        self.known.own = self.known.own or self.run()
        return self.known.own

    @property
    def again(self) -> Ran:
        """A second one."""
        self.known.again = self.known.again or self.run()
        return self.known.again

    @property
    def shaken(self) -> Ran:
        """One more, with every value that the script begins with changed by one rounding unit."""
        self.known.shaken = self.known.shaken or self.run(shake=True)
        return self.known.shaken

    def has_time_for(self, *some: Ran, until: float = math.inf) -> bool:
        """Whether other runs like these are expected to end in time, and by `until`."""
        return time.monotonic() + sum(one.seconds for one in some) < min(self._end, until)


class _Comparison:
    """The runs of a script with several plans, beside those with tinygrad's own schedules."""

    def __init__(self, results: Sequence[Result], runs: _Runs, until: float) -> None:
        """No further round ends after `until`, by `time.monotonic`."""
        self._results, self._runs, self._until = results, runs, until
        self._timed: dict[int | None, list[Ran]] = {}  # by the place of the plan; None: tinygrad's own schedules
        self._untimed = ""  # why no steps are timed

    def checks(self) -> list[ModelCheck]:
        """A check of each plan."""
        # tinygrad's own first: a script that does not run again, for whatever reason, is not run a third time
        try:
            own = self._runs.own
        except (isolated.Overdue, _Died) as error:
            why = f"the script does not run again: with tinygrad's own schedules {_of(error)}"
            return [self._with_steps(_none(why))] * len(self._results)
        self._untimed = own.untimed or ("" if _steps_of(own) else NO_REPLAYS)
        self._timed[None] = [own]
        seen: list[ModelCheck] = []
        for place in range(len(self._results)):
            if seen and seen[0].passed is None:  # it does not repeat itself, say: with other plans neither
                seen.append(seen[0])
            elif self._untimed and any(check.passed for check in seen):
                seen.append(ModelCheck(None, RIGHT_BEFORE))
            elif seen and not self._runs.has_time_for(own):
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
        last = [self._timed[side][-1] for side in sides if side in self._timed]
        while not self._untimed and len(self._timed[None]) < ROUNDS:
            if not self._runs.has_time_for(*last, until=self._until):
                return
            try:
                last = [self._runs.run(side, compared=False) for side in sides]
            except (isolated.Overdue, _Died):
                return
            if any(ran.ended != own.ended or not _same_steps(ran, own) for ran in last):
                return
            for side, ran in zip(sides, last, strict=True):
                self._timed[side].append(ran)

    def _compared(self, place: int, own: Ran) -> ModelCheck:
        runs, result, changed = self._runs, self._results[place], len(self._runs.changed[place])
        try:
            chosen = runs.run(place)
        except isolated.Overdue as error:
            return _none(f"with the chosen schedules {error}; with tinygrad's own it took {own.seconds:.3g} s")
        except _Died as error:
            return _whose_fault(runs, own, _of(error))
        if chosen.refused:
            return _none(f"the chosen schedules cannot be used in the script: {chosen.refused}")
        if chosen.ended != own.ended:
            return _whose_fault(runs, own, chosen.words or "it ends well")
        if not self._untimed:
            self._untimed = chosen.untimed or ("" if _same_steps(chosen, own) else OTHER_STEPS)
        self._timed[place] = [chosen]
        check = _of_what_is_left(runs, result, own, chosen)
        check = replace(check, kernels=chosen.kernels, replaced=chosen.replaced, left=chosen.left)
        if check.passed and chosen.kernels < changed:
            missing = changed - chosen.kernels
            reason = f"no verdict: {missing} of {changed} changed kernels do not occur when the script runs again"
            reason += f" ({chosen.words})" if chosen.ended else ""
            return replace(check, passed=None, reason=reason)
        return check

    def _with_steps(self, check: ModelCheck, place: int = 0) -> ModelCheck:
        """The check with what was seen of its steps, and of how many runs."""
        if check.reason != RIGHT_BEFORE:
            check = replace(check, seed=self._runs.seed, runs=self._runs.count)
        if self._untimed or place not in self._timed:
            return replace(check, untimed=self._untimed)
        own, chosen = self._timed[None], self._timed[place]
        replays = min(len(step.seconds) for ran in (*own, *chosen) for step in _steps_of(ran))
        each = f"{len(own)} runs each, in turns" if len(chosen) > 1 else "one run each"
        return replace(
            check,
            before_s=median([_step_s(ran) for ran in own]),
            after_s=median([_step_s(ran) for ran in chosen]),
            spread_s=_spread_s(chosen),
            clock=f"{own[0].clock}, median of {replays} replays in {each}",
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
    """What is said of a script that does not end with the chosen schedules as it does with tinygrad's own."""
    if not runs.has_time_for(own):
        return _none(f"with the chosen schedules {words}, and there was no time to see whether it always does")
    try:
        again = runs.again
    except (isolated.Overdue, _Died) as error:
        return _none(f"the script does not end in the same way twice: with tinygrad's own schedules {_of(error)}")
    if again.ended != own.ended:
        return _none("the script does not end in the same way twice, with tinygrad's own schedules either")
    if own.ended:
        return _none(f"with tinygrad's own schedules {own.words}; with the chosen ones {words}")
    return ModelCheck(False, f"the script fails with the chosen schedules, and not with tinygrad's own: {words}")


def _of_what_is_left(runs: _Runs, result: Result, own: Ran, chosen: Ran) -> ModelCheck:
    if not own.pieces and not chosen.pieces:
        where = f" ({own.words})" if own.ended else ""
        return _none(f"nothing that the script left or read came out of a kernel with another schedule{where}")
    if not same_layout(own.pieces, chosen.pieces):
        reported = f"{words_of(own.pieces) or 'nothing'} with tinygrad's own schedules"
        ours = f"{words_of(chosen.pieces) or 'nothing'} with the chosen ones"
        if reported.split(" with ")[0] == ours.split(" with ")[0]:
            ours += ", of other shapes"
        return _none(f"the script left {reported}, {ours}: it depends on more than its seeds, or on rounding")
    if not says_something(own.pieces):
        return _none("what the script left is zero or not finite with tinygrad's own schedules either")
    compared = words_of(own.pieces)
    if own.left_out:
        compared += f"; {own.left_out} more left out for their size"
    rounding = rounding_of(result)
    check = judge_first(chosen.pieces, own.pieces, rounding)
    if check is None:
        check = _with_more_runs(
            runs,
            own,
            chosen,
            lambda shaken: judge(chosen.pieces, own.pieces, shaken.pieces, rounding, values=shaken.shaken),
        )
        fed_by = _feeding_what_differs(chosen.pieces, own.pieces, rounding)
        runs.known.apart = runs.known.apart or frozenset(changed_by(result, handwritten=runs.by_hand) - fed_by)
    return replace(check, compared=compared)


def _feeding_what_differs(chosen: Sequence[Piece], own: Sequence[Piece], rounding: Rounding) -> set[str]:
    """The kernels and regions that fed what differs by more than a single kernel may make it differ."""
    pairs = ((c, _judged(c, o, 0.0, o.eps, rounding)) for c, o in zip(chosen, own, strict=True))
    return {name for piece, one in pairs if one.ratio > 1 for name in piece.fed_by}


def _with_more_runs(runs: _Runs, own: Ran, chosen: Ran, result: Callable[[Ran], ModelCheck]) -> ModelCheck:
    """The result where the two runs differ by more than a single kernel may make them differ."""
    try:
        for shake in (False, True):
            if not runs.has_time_for(own):
                return _none("the two runs differ, and there was no time to see whether the script repeats itself")
            again = runs.shaken if shake else runs.again
            if not shake and not (again.ended == own.ended and equal(again.pieces, own.pieces)):
                return _none("the script does not repeat itself with tinygrad's own schedules either")
    except (isolated.Overdue, _Died) as error:
        return _none(f"the two runs differ, and when it ran again with tinygrad's own schedules {_of(error)}")
    if not (again.ended == own.ended and same_layout(again.pieces, own.pieces)):
        return _none("the two runs differ, and one rounding unit changes what the script does")
    return result(again)


def _none(reason: str) -> ModelCheck:
    return ModelCheck(None, f"no verdict: {reason}")


def _of(error: Exception) -> str:
    text = str(error)
    return text if text.startswith("it ") else f"it failed: {text}"
