"""What the steps of a script came to that ran with tinygrad's own schedules and with the chosen ones, each from the
same values (`kcg.compat.lockstep`).

A whole run of a training loop tells nothing once rounding has grown; one step does. Of memory that a step reads and
writes, what is compared is by how much it changed that: a gradient that is wrong changes a weight by little. The error
of a piece is that of a whole script (`kcg.judge.whole`), and so is what one kernel may do, where one rounding unit of a
change is that of the values it is the difference of.

Where a piece is further off the step runs again: once more from the same values, which tinygrad's own schedules must
repeat, and in `TRIALS`, from the same values and from values changed at random by one rounding unit, in each with
tinygrad's own schedules and with the chosen ones. What is still off runs with tinygrad's own up to `ROUNDED` times
more, from the same values: after each kernel that was replaced, what it summed is changed at random by about what
another order of its terms does (`kcg.kernel.sums`). D is by how much all these move what the own ones make: 3 · D is
rounding, at later executions too. Sums show what the values do not: a batch norm's mean that is rounded otherwise
moves a channel's values together, and of a quarter of a million one lies so near to where the mask of a ReLU turns.

A piece is wrong where it is off by `FAR` times as much in each trial, or on the script's own values and by more than
`MAX_TOLERANCE`: a kernel may be wrong on one number alone. Where it is off only in one otherwise, a comparison is why,
which rounding turns for one element; in several, nothing is known, nor where D is so large that more than
`MAX_TOLERANCE` is tolerated, nor where there are zeros that were there before.

Every kernel and region that was chosen must have come, in some step, into a piece that does tell. But what is noise
(rounding moves it by `NOISE` of its size), such as the gradient of a bias before a normalisation, tells of no schedule:
where most pieces of a step tell, what comes into no other piece may be off by as much as rounding is.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kcg.cli import counted
from kcg.compat.observing import Piece
from kcg.judge.whole import (
    FACTOR,
    MAX_TOLERANCE,
    Judged,
    Rounding,
    equal,
    error_between,
    judged,
    says_something,
    tolerance_of,
    unclear,
)
from kcg.types import ModelCheck

if TYPE_CHECKING:
    from kcg.compat.lockstep import Pieces, Step, Trial

TRIALS = 4
ROUNDED = 8
NOISE = 0.1
FAR = 10.0  # so many times what is tolerated is no rounding: a CNN's first Adam steps came to 1.5 times, by the signs
# of gradients that are nearly 0
MOST = 3 / 4  # of the pieces of a step that tell, at least, where noise says nothing


@dataclass(frozen=True)
class _Outcome:
    """What a piece of a step came to."""

    judged: Judged  # in the trial in which it was off the most but one
    own: Piece
    chosen: Piece
    fed_by: tuple[str, ...]
    off: int = 0  # trials in which it was off by more than is tolerated,
    far: int = 0  # and by `FAR` times as much
    is_wrong_here: bool = False  # so far on the script's own values that no comparison of one element explains it
    trials: int = 1
    moved: float = 0.0  # by rounding: D
    values: int = 0  # that were changed to see it
    is_fresh: bool = False  # nothing was there before

    @property
    def is_right(self) -> bool:
        tells = says_something([self.judged.piece]) or (self.is_fresh and _has_numbers(self.judged.piece))
        return tells and self.is_within and not self.judged.is_too_sensitive

    @property
    def is_noise(self) -> bool:
        return self.is_within and self.moved >= NOISE

    @property
    def is_within(self) -> bool:
        return self.off <= self.trials // 4 and not self.is_wrong_here

    def is_wrong(self, rounding: Rounding) -> bool:
        is_far = self.is_wrong_here or self.far == self.trials > 1
        return is_far and not self.judged.is_open(rounding, self.values)


class Steps:
    """Judges steps one after the other."""

    def __init__(self, rounding: Rounding, *, seed: int, tries: bool = True) -> None:
        """Where it does not `tries` what is off by more than one kernel may tells nothing."""
        self._rounding, self._seed, self._tries = rounding, seed, tries
        self._count, self._left_out = 0, 0
        self._right, self._noise = set[str](), set[str]()  # what was chosen that came into such pieces
        self._worst: _Outcome | None = None
        self._wrong: _Outcome | None = None
        self._open: _Outcome | None = None  # the first that tells nothing
        self._is_unsteady = self._was_off = False
        self._moved: dict[tuple[Hashable, int], float] = {}  # D of a piece of a step

    def judge(self, step: Step) -> None:
        """Compare a step, unless one was wrong."""
        if self._wrong is not None:
            return
        self._count += 1
        self._left_out = max(self._left_out, step.left_out)
        outcomes = [self._as_known(step, at, one) for at, one in enumerate(self._first(step))]
        self._was_off = self._was_off or any(one.off for one in outcomes)
        if self._tries and any(one.off for one in outcomes):
            if not equal(step.again(), step.trial.own):
                self._is_unsteady = True
                return
            outcomes = self._with_trials(step, outcomes)
        for one in outcomes:
            if one.is_wrong(self._rounding):
                self._wrong = _without_values(max((self._wrong or one, one), key=lambda one: one.judged.ratio))
            elif one.is_right:
                self._right.update(one.fed_by)
                self._worst = _without_values(max((self._worst or one, one), key=lambda one: one.judged.ratio))
            else:
                self._open = self._open or _without_values(one)
        if sum(one.is_right for one in outcomes) >= MOST * len(outcomes):
            others = {name for one in outcomes if not one.is_right and not one.is_noise for name in one.fed_by}
            self._noise.update({name for one in outcomes if one.is_noise for name in one.fed_by} - others)

    def _first(self, step: Step) -> list[_Outcome]:
        trial, found = step.trial, []
        each = (_changes(trial, made, step.updated) for made in (trial.own, trial.chosen))
        pairs = zip(*each, strict=True)
        for (own, chosen), piece, is_fresh in zip(pairs, trial.chosen, step.fresh, strict=True):
            one = judged(chosen, own, 0.0, own.eps, self._rounding)
            found.append(_Outcome(one, own, chosen, piece.fed_by, int(one.ratio > 1), is_fresh=is_fresh))
        return found

    def _as_known(self, step: Step, at: int, one: _Outcome) -> _Outcome:
        """The same, or what it comes to where it is known what rounding does."""
        if not one.off or (moved := self._moved.get((step.name, at))) is None:
            return one
        again = self._tolerated(one.own, one.chosen, moved)
        return one if again.ratio > 1 or again.is_too_sensitive else replace(one, judged=again, off=0, moved=moved)

    def _with_trials(self, step: Step, outcomes: Sequence[_Outcome]) -> list[_Outcome]:
        """The same, of what is off in more trials; what is not off is left as it is."""
        places = [at for at, one in enumerate(outcomes) if one.off]
        seeds = [None, *(self._seed + 1_000_000 * number for number in range(1, TRIALS))]
        trials = [step.trials(seed, places) for seed in seeds]
        if not equal(trials[0].chosen, [step.trial.chosen[at] for at in places]):
            self._is_unsteady = True
        values, found = min(trial.changed for trial in trials[1:]), [*outcomes]
        updated = [step.updated[at] for at in places]

        def changes(way: str) -> Iterator[tuple[Piece, ...]]:
            each = (_changes(trial, getattr(trial, way), updated, of=trials[0]) for trial in trials)
            return zip(*each, strict=True)

        tried = dict(zip(places, zip(changes("own"), changes("chosen"), strict=True), strict=True))
        for at, (owns, others) in tried.items():
            self._moved[step.name, at] = moved = max(error_between(one, owns[0]) for one in owns[1:])
            found[at] = replace(self._tried(outcomes[at], owns, others, moved), values=values)
        for number in range(TRIALS, TRIALS + ROUNDED):
            if not (left := [at for at in places if not found[at].is_within]):
                break
            made = step.rounded(self._seed + 1_000_000 * number, left)
            for at, piece in zip(left, made, strict=True):
                before, own_piece = step.trial.before[at], step.trial.own[at]
                if step.updated[at] and piece.eps:
                    piece = _change(before, piece, before, own_piece)
                owns, others = tried[at]
                moved = max(found[at].moved, error_between(piece, owns[0]))
                found[at] = self._tried(found[at], owns, others, moved)
                self._moved[step.name, at] = moved
        return found

    def _tried(self, one: _Outcome, owns: Sequence[Piece], others: Sequence[Piece], moved: float) -> _Outcome:
        """An outcome in all trials, where rounding moves it by so much."""
        each = [self._tolerated(*pair, moved) for pair in zip(owns, others, strict=True)]
        here = each[0].ratio > FAR and each[0].error > MAX_TOLERANCE
        shown = each[0] if here else sorted(each, key=lambda trial: trial.ratio)[-2]
        off, far = (sum(trial.ratio > times for trial in each) for times in (1.0, FAR))
        return replace(one, judged=shown, off=off, far=far, is_wrong_here=here, trials=TRIALS, moved=moved)

    def _tolerated(self, own: Piece, chosen: Piece, moved: float) -> Judged:
        eps = max(own.eps, self._rounding.stored) if own.eps else 0.0
        first = judged(chosen, own, 0.0, own.eps, self._rounding)
        tolerance = tolerance_of(moved, eps, 0.0) if eps else FACTOR * moved
        return replace(first, tolerance=max(first.tolerance, tolerance))

    def check(self, changed: Collection[str], *, why_not: str) -> ModelCheck:
        """The verdict, where these kernels and regions ran with what was chosen; `why_not` some step was compared."""
        if (wrong := self._wrong) is not None:
            one = wrong.judged
            return ModelCheck(False, one.words(wrong.values), one.error, one.tolerance, compared=self._compared)
        if why_not:
            return unclear(f"a step could not be compared: {why_not}")
        if self._is_unsteady:
            return unclear("a step does not make the same of the same values each time")
        if self._was_off and not self._tries:
            return unclear("a step differs by more than one kernel may, and did not run in trials")
        if missing := {*changed} - self._right - self._noise:
            reason = f"no step tells what {len(missing)} of {counted(len({*changed}), 'changed kernel')} make"
            if (opened := self._open) is None:
                return unclear(reason)
            check = unclear(f"{reason}: {opened.judged.words(opened.values)}")
            return replace(check, error=opened.judged.error, tolerance=opened.judged.tolerance)
        if self._worst is None:
            return unclear("no step of it tells anything")
        one = self._worst.judged
        return ModelCheck(True, "", one.error, one.tolerance, compared=self._compared)

    @property
    def _compared(self) -> str:
        left_out = f"; {counted(self._left_out, 'tensor')} of a step left out for their size" if self._left_out else ""
        return f"{counted(self._count, 'step')}, each from the same values with both{left_out}"


def _has_numbers(piece: Piece) -> bool:
    import numpy as np

    return bool(np.isfinite(piece.values).any()) if piece.eps else True


def _without_values(one: _Outcome) -> _Outcome:
    """The same with the shape of the piece alone."""
    import numpy as np

    piece = one.judged.piece
    piece = replace(piece, values=np.broadcast_to(piece.values.dtype.type(0), piece.values.shape))
    return replace(one, judged=replace(one.judged, piece=piece), own=piece, chosen=piece)


def _changes(trial: Trial, after: Pieces, updated: Sequence[bool], *, of: Trial | None = None) -> Iterator[Piece]:
    """By how much values changed of what is `updated`, one piece after the other; of others what they are, and where
    tinygrad's own schedules changed nothing in the trial that it is one `of`."""
    of = of or trial
    for is_updated, *pieces in zip(updated, trial.before, after, of.before, of.own, strict=True):
        yield _change(*pieces) if is_updated and pieces[1].eps else pieces[1]


def _change(before: Piece, after: Piece, own_before: Piece, own: Piece) -> Piece:
    import numpy as np

    exact = np.result_type(own.values.dtype, np.float32)
    then, now, was, made = (np.asarray(piece.values, exact) for piece in (before, after, own_before, own))
    finite = np.isfinite(was) & np.isfinite(made) & np.isfinite(then)
    size = float(np.linalg.norm((made - was)[finite].astype(np.float64)))
    if not size:
        return after
    eps = own.eps * max(1.0, float(np.linalg.norm(made[finite].astype(np.float64))) / size)
    return replace(after, values=np.subtract(now, then, out=now.copy(), where=finite), eps=eps)
