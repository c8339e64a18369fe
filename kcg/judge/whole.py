"""The last rule of verification: a whole with the chosen schedules against the same as tinygrad schedules it.

Each finalist was verified alone; here they run together, on the data of the real program. A model, a script and a
function are compared alike, by a `Runner` each that knows only how it runs and what it leaves. Here is what makes two
runs the same, how much of a difference is rounding, what is said of it, and what part of a wrong whole is right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.cli import counted
from kcg.compat.observing import ALIVE, READ, RETURNED, STEP, Piece
from kcg.measure.isolated import OVERDUE
from kcg.types import ModelCheck, Result

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kcg.measure.isolated import IsolatedProcess

    Array = NDArray[np.float64]


# ---- who runs it


TIMEOUT_S = 600.0  # of all that is compared, where there is no budget


@dataclass(frozen=True)
class Cost:
    """What is known of how long checking a whole will take."""

    changed: int  # kernels that have another schedule, in each plan
    plans: int = 1
    rounds: int = 1  # in which a script runs with each
    step_s: float = 0.0  # one execution as tinygrad schedules it
    chosen_s: float = math.inf  # with what was chosen, if that is known; it is no longer
    saved_s: float = 0.0  # by what was found of some kernels, in all executions
    compile_s: float = 0.0  # one kernel


class Runner:
    """Runs a whole with tinygrad's own schedules and with those of several plans, and compares what they leave."""

    what: str  # a model, a script or a function
    most_s: float = math.inf  # without a budget more than two plans are compared where that takes no longer
    several_s: float = math.inf
    """The same without thorough effort, of more than the plans for which a budget keeps time."""
    apart: Collection[str] = ()  # ids of kernels and regions that were seen to feed nothing which differed
    replayed_s: float = 0.0  # of the last checks, what they took beyond comparing

    def why_not(self, results: Sequence[Result]) -> list[str]:
        """Why there is nothing to check of each of several plans, or no way to; empty where the check is due."""
        return [why_nothing(result) for result in results]

    def ahead(self) -> IsolatedProcess | None:
        """A process that prepares for it while kernels are searched; None where there is none."""
        return None

    @property
    def rounds(self) -> int:
        """For which time is kept where plans are compared."""
        return 1

    @property
    def plans(self) -> int:
        """The same: the best one, beside that of every kernel alone."""
        return 2

    def announced(self, plans: str) -> str:
        """What is said when it begins; `plans` is of which, in words."""
        raise NotImplementedError

    def expected_s(self, cost: Cost) -> float:
        """About how many seconds it takes; 0 where it will not run."""
        raise NotImplementedError

    def timeout_s(self, expected_s: float) -> float:
        """How long it is waited for where there is no budget."""
        return TIMEOUT_S

    def checks(self, results: Sequence[Result], *, timeout_s: float, rounds_s: float = math.inf) -> list[ModelCheck]:
        """A check of each result, several plans of which the last has every kernel alone. Further rounds begin as long
        as they end in `rounds_s`.

        Never raises for what the whole does: one that fails with the chosen schedules alone fails the check, anything
        else gives no result. A DeviceError ends the check.
        """
        raise NotImplementedError


ENDED = "not run: the run ended before every kernel was verified"
UNCHANGED = "not run: no schedule was changed"


def why_nothing(result: Result) -> str:
    """Why there is nothing to check of any whole; empty where there is."""
    if not result.complete:
        return ENDED
    return "" if any(row.outcome == "improved" for row in result.regions) else UNCHANGED


UNCLEAR = "no verdict: "


def unclear(reason: str) -> ModelCheck:
    """Nothing can be told of the schedules."""
    return ModelCheck(None, f"{UNCLEAR}{reason}")


def cut_short(check: ModelCheck) -> ModelCheck:
    """The check of a whole that a budget had no more time for. It says as little of the schedules as one that did not
    run."""
    if check.passed is not None or OVERDUE not in check.reason:
        return check
    return replace(check, reason=f"not run to its end: {check.reason.removeprefix(UNCLEAR)}")


def was_tried(check: ModelCheck) -> bool:
    """Whether the whole ran, or was to, with whatever end but that of its time: else nothing speaks against the
    schedules."""
    return check.passed is not None or check.reason.startswith(UNCLEAR)


def occurring(check: ModelCheck, *, served: int, changed: int, when: str) -> ModelCheck:
    """The check, which is no pass where a changed kernel did not occur."""
    if not check.passed or served >= changed:
        return check
    reason = f"no verdict: {changed - served} of {changed} changed kernels do not occur when {when}"
    return replace(check, passed=None, reason=reason)


def written(results: Sequence[Result], folder: Path) -> list[Path]:
    """The files of results that a child reads."""
    from kcg.report.result import write_result

    paths = [folder / f"result-{place}.json" for place in range(len(results))]
    for path, result in zip(paths, results, strict=True):
        write_result(result, path)
    return paths


# ---- How far apart two outputs of a whole model are, and how much of that is rounding.
#
# The error. An output is taken as rows along its last axis (a token, a line of pixels): the error is the largest, over
# all rows, of ‖tuned - own‖, divided by the root mean square of ‖own‖ over the rows, in float64. It is never less than
# ‖tuned - own‖ / ‖own‖ of the whole output, and a single wrong row among thousands does not drown in it. NaN and
# infinities never pass, nor does an output of zeros.
#
# The tolerance. How much of a difference is rounding depends on the model, so it is measured on the spot: tinygrad's
# own schedules run twice more, every floating input changed at random by one rounding unit of its dtype, up or down.
# Nearly all intermediate values are then rounded anew, so the error of these runs (D, at least one rounding unit) holds
# both what the model makes of a small change and the rounding of all its layers. What it may not hold is another order
# of summation: K terms added one after the other have a relative error of about 0.2·√K rounding units of the dtype they
# are summed in (a random walk; padded and unrolled they have less), tinygrad's own order may be much better, and
# storing a value, which D does hold, is good for 0.3 units. Thus
#
# tolerance = 3 · D · max(1, √K · eps(sum) / eps(model)), with the largest √K · eps(sum) of all kernels
#
# where eps(model) is that of the coarsest dtype among inputs and outputs, and of tf32 where a plan has products of it:
# then inputs are changed by that, too. The last factor counts in float32 models
# only: in bfloat16, sums are float32 and their order is lost below the rounding of what is stored. Sums that look a row
# of a table up, of which all terms but one are zeros, do not count: no order changes them. Where the tolerance
# comes out above 0.25, the model is too sensitive on random weights for a result, and none is given.

FACTOR = 3.0  # between two runs whose rounding is independent and the worst that is still taken for rounding
MAX_TOLERANCE = 0.25


def tolerance_of(moved: float, eps: float, sums: float) -> float:
    """What is taken for rounding where one rounding unit `eps` moved the whole so far, and its sums round by `sums`."""
    return FACTOR * max(moved, eps) * max(1.0, sums / eps)


def judge_outputs(
    tuned: Sequence[list[Array]], own: list[Array], shaken: Sequence[list[Array]], *, eps: float, sums: float
) -> ModelCheck:
    """The verdict on the outputs of steps with the chosen schedules.

    `own` and `shaken` are the outputs with tinygrad's own schedules, of the inputs and of slightly changed ones; `eps`
    is that of the model's dtype, `sums` is what `rounding_of_sums` gives.
    """
    import numpy as np

    if not all(np.isfinite(o).all() for o in own):
        return ModelCheck(None, "no verdict: the output is not finite with tinygrad's own schedules either")
    if not all(np.any(o) for o in own):
        return ModelCheck(None, "no verdict: the output is zero with tinygrad's own schedules either")
    moved = max(relative_error(outputs, own) for outputs in shaken)
    tolerance = tolerance_of(moved, eps, sums)
    error = max(relative_error(outputs, own) for outputs in tuned)
    if not math.isfinite(error):
        reason = "the output with the chosen schedules is not finite, or of another shape"
        return ModelCheck(False, reason, error, tolerance if math.isfinite(tolerance) else None)
    if not tolerance <= MAX_TOLERANCE:
        reason = f"no verdict: one rounding unit at the inputs moves the output by {moved:.2g}, too much to tell"
        return ModelCheck(None, reason, error, tolerance if math.isfinite(tolerance) else None)
    if error > tolerance:
        reason = f"the output differs by {error:.2g} of its size from that with tinygrad's own schedules; "
        return ModelCheck(False, reason + f"rounding explains {tolerance:.2g}", error, tolerance)
    return ModelCheck(True, "", error, tolerance)


def relative_error(outputs: Sequence[Array], own: Sequence[Array]) -> float:
    """The error as it is defined above, the largest of all outputs; infinite where a value is not."""
    import numpy as np

    worst = 0.0
    for ours, theirs in zip(outputs, own, strict=True):
        if ours.shape != theirs.shape or not np.isfinite(ours).all():
            return math.inf
        off, squares = (_squares_of_rows(values) for values in (ours - theirs, theirs))
        size = math.sqrt(float(np.mean(squares)))
        worst = max(worst, math.sqrt(float(off.max())) / size if size else math.inf)
    return worst


def _squares_of_rows(values: Array) -> Array:
    """The sum of squares of each row along the last axis, in float64, of which there is no copy."""
    import numpy as np

    rows = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64, casting="same_kind"))


def rounding_of_products(results: Sequence[Result]) -> float:
    """One rounding unit of tf32 where a chosen schedule rounds float32 operands of products to it, else 0."""
    from kcg.kernel.arithmetic import TF32_BITS
    from kcg.kernel.kinds import traits_of

    rounds = any(traits_of(row.chosen.schedule).tf32 for result in results for row in result.deployed)
    return 2.0 ** (1 - TF32_BITS) if rounds else 0.0


def rounding_of_sums(result: Result) -> float:
    """The largest √K·eps of all kernels: K is the number of terms of a sum, eps that of the dtype it is summed in. Sums
    that look something up round nothing."""
    from kcg.kernel import sums
    from kcg.kernel.codec import ast_of

    kernels = {kernel for row in result.regions for kernel in row.region.kernels}
    return sums.rounding_of_sums(map(ast_of, kernels))


# ---- How far apart what two runs of a script left is, and how much of that is rounding.
#
# The error of a piece (a tensor that was alive at the end, that the last `TinyJit` step returned, that the script read,
# or that a step wrote) is that of a step: row by row, over the size of the whole. What is not finite with
# tinygrad's own schedules must be the same with the chosen ones.
#
# The tolerance. Nothing is known of a script but its kernels, so it is found in two steps. First
#
# 3 · max(eps, √K · eps(sum)), with the largest √K · eps(sum) of all kernels
#
# where eps is one rounding unit of the piece: about what the last kernel alone may do. Most scripts agree far better,
# and are done. Where one does not, its steps tell, each of which ran with both from the same values
# (`kcg.judge.lockstep`): D is by how much changing these by one rounding unit moves what a step makes, or what it sums
# by what another order does. Then
#
# 3 · max(D, eps, eps(stored))
#
# where eps(stored) is that of the coarsest dtype in which its kernels store anything. Each piece has a tolerance of its
# own; above 0.25 nothing can be told. Whole numbers and booleans must be equal, but for what rounding turns of them in
# a step. Where they are not, a kernel is wrong for certain only if no kernel of the script computes with floating
# values, and nothing can be told either.

PLACES = {
    ALIVE: "alive at its end",
    RETURNED: "returned by its last TinyJit step",
    READ: "read by it",
    STEP: "written by a step",
}


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
    from kcg.kernel.sums import eps_of

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
    pairs = zip(ours, theirs, strict=False)
    return same_layout(ours, theirs) and all(a.values.tobytes() == b.values.tobytes() for a, b in pairs)


def says_something(pieces: Sequence[Piece]) -> bool:
    """Whether there is any finite value that is not zero."""
    return any(_says_something(piece) for piece in pieces)


def judge_first(chosen: Sequence[Piece], own: Sequence[Piece], rounding: Rounding) -> ModelCheck | None:
    """Passed where the chosen schedules differ by no more than a single kernel may; None where it takes more runs."""
    found = [judged(c, o, 0.0, o.eps, rounding) for c, o in zip(chosen, own, strict=True)]
    if any(one.ratio > 1 for one in found):
        return None
    worst = max(found, key=lambda one: one.ratio)
    return ModelCheck(True, "", worst.error, worst.tolerance)


def feeding_what_differs(chosen: Sequence[Piece], own: Sequence[Piece], rounding: Rounding) -> set[str]:
    """The kernels and regions that fed what differs by more than a single kernel may make it differ."""
    pairs = ((c, judged(c, o, 0.0, o.eps, rounding)) for c, o in zip(chosen, own, strict=True))
    return {name for piece, one in pairs if one.ratio > 1 for name in piece.fed_by}


def words_of_pieces(pieces: Sequence[Piece]) -> str:
    """What was compared, counted by where it was."""
    counts = Counter(piece.place for piece in pieces)
    return ", ".join(f"{counted(counts[place], 'tensor')} {words}" for place, words in PLACES.items() if counts[place])


@dataclass(frozen=True)
class Judged:
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
            explained = "nothing that the step begins with could be changed to see what it makes of rounding"
        elif self.is_too_sensitive:
            explained = "one rounding unit in what the step begins with moves it too much to tell"
        return f"{name} differs by {self.error:.2g} of its size from that with tinygrad's own schedules; {explained}"


def judged(chosen: Piece, own: Piece, moved: float, eps: float, rounding: Rounding) -> Judged:
    """A piece where one rounding unit `eps` moves it by `moved`, as far as that is known."""
    return Judged(own, error_between(chosen, own), tolerance_of(moved, eps, rounding.sums) if eps else 0.0)


def error_between(ours: Piece, own: Piece) -> float:
    """The error as it is defined above; of whole numbers the share that differs."""
    import numpy as np

    if not own.eps:
        differ = np.asarray(ours.values != own.values)
        return float(differ.mean()) if differ.size else 0.0
    exact = np.result_type(own.values.dtype, np.float32)  # a difference of close numbers is exact in it
    a, b = (np.asarray(piece.values, exact) for piece in (ours, own))
    if not (finite := np.isfinite(b)).all():
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return math.inf
        a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    if not b.any():
        return math.inf if a.any() else 0.0
    return relative_error([a], [b])


def _says_something(piece: Piece) -> bool:
    import numpy as np

    values = np.asarray(piece.values)
    return bool((np.isfinite(values) & (values != 0)).any() if piece.eps else values.any())


# ---- where the whole is wrong: which part of what was chosen is right
#
# Parts are compared with tinygrad's own schedules again: what does not feed the outputs that differ first, where that
# is known, then halves. A schedule is proven wrong where the whole is right without it and wrong with it. What is
# handed over was seen to be right as it is, nothing else: when the time is over, that is the largest part that was.

Check = Callable[[frozenset[str]], ModelCheck | None]
"""Compares the whole with these of the schedules that were chosen, by ids of kernels and regions, and with tinygrad's
own otherwise; None where there is no time for it."""


@dataclass
class Parts:
    """What is known of the parts of what was chosen, by ids of kernels and regions."""

    right: frozenset[str] = frozenset()  # the whole is right with all of these
    check: ModelCheck | None = None  # that showed it; None where there are none
    wrong: dict[str, ModelCheck] = field(default_factory=dict)  # with what the whole showed with it, and right ones
    unclear: dict[str, ModelCheck] = field(default_factory=dict)  # the same where that said neither right nor wrong
    untried: frozenset[str] = frozenset()  # left when the time was over


def right_part(changed: Sequence[str], failed: ModelCheck, check: Check, *, apart: Collection[str] = ()) -> Parts:
    """The part of what `changed` with which the whole is right, where it `failed` with all of it.

    One culprit takes about log2(n) checks and one more; `apart` are those that feed nothing which differs: they are
    the first half.
    """
    found, left = Parts(), [*changed]
    while left:
        group, wrong = left, failed  # the whole is not right with what is right so far and all of the group
        while len(group) > 1:
            half = [one for one in group if one in apart] or group[: len(group) // 2]
            half = group[: len(group) // 2] if len(half) == len(group) else half
            if (seen := check(found.right.union(half))) is None:
                return replace(found, untried=frozenset(left) - found.right)
            if seen.passed:
                found.right, found.check = found.right.union(half), seen
                group = [one for one in group if one not in half]
            else:
                group, wrong = half, seen
        (culprit,) = group
        (found.wrong if wrong.passed is False else found.unclear)[culprit] = wrong
        left = [one for one in left if one not in found.right and one != culprit]
        if left:
            if (seen := check(found.right.union(left))) is None:
                return replace(found, untried=frozenset(left))
            if seen.passed:
                found.right, found.check, left = found.right.union(left), seen, []
            else:
                failed = seen
    return found
