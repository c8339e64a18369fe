"""Training loops, right and wrong, judged step by step: no wrong kernel passes, and every right one does, however far
rounding moves what the loop leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kcg.compat.lockstep import Pieces, Step, Trial
from kcg.compat.observing import STEP, Piece
from kcg.judge import lockstep
from kcg.judge.lockstep import Steps
from kcg.judge.whole import Rounding
from tests.commands import python

FLOAT, EPS = np.float32, 2.0**-23
ROUNDING = Rounding(sums=8 * EPS, stored=EPS, floats=True)
STEPS, WARM_UP, PEAK = 40, 30, 0.2
GRADIENT = "first gradient"
Gradient = Callable[[np.ndarray], np.ndarray]
WRONG: dict[str, Gradient] = {
    "negated": lambda g: -g,
    "zero": lambda g: g * FLOAT(0),
    "a hundredth off": lambda g: g * FLOAT(1.01),
    "random": lambda g: np.random.default_rng(5).normal(size=g.shape).astype(FLOAT),
    "some rows are 0": lambda g: np.where(np.arange(len(g))[:, None] % 8 == 0, FLOAT(0), g),
    "parts are swapped": lambda g: np.vstack([g[len(g) // 2 :], g[: len(g) // 2]]),
}


class Loop:
    """Two layers, trained by the signs of their gradients, softened, which makes much of rounding; the learning rate
    grows as a power of the step at first. Each step runs as `Lockstep` runs it, and goes on with the chosen one."""

    def __init__(self, power: int, gradient: Gradient) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(64, 16)).astype(FLOAT)
        self.wanted = np.sign(x[:, :1] * x[:, 1:2]).astype(FLOAT)
        first, second = ((rng.normal(size=of) / by).astype(FLOAT) for of, by in (((16, 32), 4), ((32, 1), 5)))
        self.values: tuple[np.ndarray, ...] = (x, first, second)
        self.power, self.gradient = power, gradient
        self.batch, self.rate = np.arange(32), FLOAT(PEAK)

    def run(self) -> bool | None:
        """The verdict on its steps."""
        steps = Steps(ROUNDING, seed=0)
        for number in range(STEPS):
            self.batch = np.random.default_rng(number).integers(0, 64, 32)
            self.rate = FLOAT(PEAK * min(1, (number + 1) / WARM_UP) ** self.power)
            if number & (number - 1) == 0:
                first = self.trial(None)
                of_gradient = replace(first.chosen[0], fed_by=(GRADIENT,))
                first = replace(first, chosen=(of_gradient, *first.chosen[1:]))
                steps.judge(
                    Step(
                        "step",
                        first,
                        (False, False, True),
                        (True, True, False),
                        0,
                        lambda: self.trial(None).own,
                        self.trial,
                        self.rounded,
                    )
                )
            self.values = (self.values[0], *self.step(self.values, self.gradient)[0])
        return steps.check([GRADIENT], why_not="").passed

    def trial(self, seed: int | None, places: Sequence[int] = range(3)) -> Trial:
        """The next step with both."""
        begun = self.values if seed is None else tuple(map(shaken, self.values, range(seed, seed + 3)))
        ways = (lambda g: g, self.gradient)
        made = [pieces(begun[1:], FLOAT(np.nan)), *(pieces(*self.step(begun, way)) for way in ways)]
        before, own, chosen = (tuple(one[at] for at in places) for one in made)
        return Trial(before, own, chosen, changed=0 if seed is None else 64)

    def rounded(self, seed: int, places: Sequence[int]) -> Pieces:
        """The next step with a right gradient that another order of its sums rounds otherwise."""
        made = pieces(*self.step(self.values, rounded(seed)))
        return tuple(made[at] for at in places)

    def step(self, values: tuple[np.ndarray, ...], way: Gradient) -> tuple[tuple[np.ndarray, ...], np.floating]:
        """The weights after it, and its loss."""
        x, first, second = values
        hidden = np.tanh(x[self.batch] @ first)
        off = hidden @ second - self.wanted[self.batch]
        of_second = hidden.T @ (off / FLOAT(16))
        of_first = way(x[self.batch].T @ ((off / FLOAT(16)) @ second.T * (1 - hidden * hidden)))
        made = tuple(w - self.rate * np.tanh(g * FLOAT(50)) for w, g in ((first, of_first), (second, of_second)))
        return made, (off**2).mean(dtype=FLOAT)


def pieces(weights: tuple[np.ndarray, ...], loss: np.floating) -> Pieces:
    return tuple(Piece(STEP, "float", EPS, values) for values in (*weights, np.asarray(loss)))


def shaken(values: np.ndarray, seed: int) -> np.ndarray:
    return (values * (1 + np.random.default_rng(seed).choice([-1, 1], values.shape) * EPS)).astype(FLOAT)


def rounded(seed: int) -> Gradient:
    """Right gradients that another order of their sums rounds otherwise."""
    return lambda g: shaken(g, seed)


@pytest.mark.parametrize("power", [0, 1, 4])
def test_no_wrong_gradient_passes_and_every_right_one_does(power: int) -> None:
    """At the last of them a gradient of the first step changes weights by a millionth."""
    found = {name: Loop(power, gradient).run() for name, gradient in WRONG.items()}
    assert found == dict.fromkeys(WRONG, False)
    assert [Loop(power, rounded(seed)).run() for seed in range(4)] == [True] * 4


def mutated(optimiser: str, every: int) -> tuple[list[str | bool | None], list[list[str]]]:
    """What a real loop came to with right kernels, and with wrong ones."""
    done = python("-m", "tests.judge.mutated_training", optimiser, str(every), timeout=3000.0, DEV="CPU:X86")
    assert done.returncode == 0, done.stderr
    right, *wrong = map(json.loads, done.stdout.splitlines())
    return right, wrong


@pytest.mark.parametrize(
    ("optimiser", "every", "least"),
    [("adam", 53, 5), pytest.param("adam", 3, 60, marks=pytest.mark.slow),
     pytest.param("sgd", 2, 60, marks=pytest.mark.slow)],
)  # fmt: skip
def test_no_kernel_of_a_loop_can_be_wrong_and_pass(optimiser: str, every: int, least: int) -> None:
    """Each with a small change of all that it stores. Right kernels without Opts pass, also those of a gradient that is
    noise."""
    right, wrong = mutated(optimiser, every)
    assert right[2] is True, right
    assert len(wrong) >= least and not [one for one in wrong if one[2]], wrong
    assert sum(one[2] is False for one in wrong) > 0.9 * len(wrong), wrong


# ---- the rules


VALUES = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)


def piece(values: object, *fed_by: str) -> Piece:
    array = np.asarray(values)
    eps = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
    return Piece(STEP, array.dtype.name, eps, array, fed_by)


def verdict(
    own: object,
    chosen: object,
    *,
    before: object = None,
    others: tuple[tuple[object, object], ...] = (),
    again: object = None,
    rounding: Rounding = ROUNDING,
    others_right: int = 0,
    values: int = 1,
    sums: tuple[object, ...] = (),
) -> bool | None:
    """The verdict on a kernel of which one piece tells; `others` are what it is in further trials, own and chosen,
    `sums` what it is with tinygrad's own schedules where kernels have other sums."""
    was, right = np.full_like(np.asarray(own), -1) if before is None else before, (piece(VALUES),) * others_right
    first = Trial((piece(was), *right), (piece(own), *right), (piece(chosen, "kernel"), *right))
    more = list(others) or [(own, chosen)] * 3

    def trials(seed: int | None, places: Sequence[int]) -> Trial:
        assert list(places) == [0], "what is off"
        at_own, at_chosen = (own, chosen) if seed is None else more[seed // 1_000_000 % len(more)]
        return Trial((piece(was),), (piece(at_own),), (piece(at_chosen),), values)

    def rounded(seed: int, places: Sequence[int]) -> Pieces:
        assert list(places) == [0], "what is off"
        return (piece(sums[seed // 1_000_000 % len(sums)] if sums else own),)

    steps = Steps(rounding, seed=0)
    repeated = (piece(own if again is None else again), *right)
    each = (before is None,) * (1 + others_right)
    steps.judge(Step("step", first, each, tuple(not one for one in each), 0, lambda: repeated, trials, rounded))
    return steps.check(["kernel"], why_not="").passed


def never(seed: int, places: Sequence[int]) -> Pieces:
    raise AssertionError("what it does is known")


def test_what_another_order_of_sums_does_is_tolerated() -> None:
    off = VALUES * np.float32(1.001)
    assert verdict(VALUES, VALUES * np.float32(1 + 4 * EPS)) is True
    assert verdict(VALUES, off) is False
    assert verdict(VALUES, off, sums=(VALUES * np.float32(0.9995),)) is True
    assert verdict(VALUES, off, values=0) is None, "nothing could be changed to see what rounding does"


def test_what_one_trial_alone_shows_is_a_comparison_that_rounding_turned() -> None:
    """As the mask of a ReLU; in each trial it is a fault, in some nothing is told."""
    off = VALUES.copy()
    off[3] *= np.float32(1.2)
    right, wrong = (VALUES, VALUES), (VALUES, off)
    assert verdict(VALUES, off, others=(right, right, right)) is True
    assert verdict(VALUES, off, others=(wrong, right, right)) is None
    assert verdict(VALUES, off, others=(wrong, wrong, wrong)) is False


def test_what_other_sums_of_kernels_that_were_replaced_do_is_rounding() -> None:
    """The mean of a batch norm is rounded otherwise in each trial alike, and what it turns is the mask of a ReLU."""
    turned, another = VALUES.copy(), VALUES.copy()
    turned[3] *= np.float32(1.05)
    another[5] *= np.float32(1.04)
    assert verdict(VALUES, turned) is False
    assert verdict(VALUES, turned, sums=(VALUES, another, VALUES)) is True
    assert verdict(VALUES, VALUES * np.float32(1.2), sums=(VALUES, another)) is None, "it is off by more than that"
    assert verdict(VALUES, turned, sums=(VALUES, VALUES * 2)) is None, "nothing can be told"


def test_a_kernel_that_is_wrong_on_one_number_alone_is_wrong() -> None:
    """In further trials that number is another one."""
    off = VALUES.copy()
    off[3] *= 2
    assert verdict(VALUES, off, others=((VALUES, VALUES),) * 3) is False


def test_noise_tells_of_no_schedule_where_the_rest_of_the_step_does() -> None:
    """Such as the gradient of a bias before a normalisation."""
    other = VALUES[::-1].copy()
    assert verdict(VALUES, other, sums=(-VALUES,), others_right=4) is True
    assert verdict(VALUES, other, sums=(-VALUES,), others_right=1) is None, "a step that is chaotic as a whole"
    assert verdict(VALUES, other * 1e5, sums=(-VALUES,), others_right=4) is None, "it is no such noise"


def test_a_change_is_compared_and_not_what_it_is_added_to() -> None:
    update = np.float32(1e-3) * VALUES[::-1]
    weights = VALUES + update
    assert verdict(weights, VALUES + 2 * update, before=VALUES) is False
    assert verdict(weights, weights, before=VALUES) is True


def test_zeros_tell_where_nothing_was_there_before() -> None:
    zeros = np.zeros(4, np.float32)
    assert verdict(zeros, zeros) is True
    assert verdict(zeros, zeros, before=zeros) is None
    assert verdict(zeros, np.ones(4, np.float32)) is False
    none = np.full(4, np.nan, np.float32)
    assert verdict(none, none) is None, "it may be what was there before"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_be_the_same(value: float) -> None:
    masked = VALUES.copy()
    masked[3, 4] = value
    assert verdict(masked, masked) is True, "a mask of -inf is no fault"
    assert verdict(VALUES, masked) is False and verdict(masked, VALUES) is False
    assert verdict(VALUES, masked, sums=(masked,)) is None, "rounding does it too"


def test_whole_numbers_prove_a_fault_only_where_nothing_is_rounded() -> None:
    own, ours = np.arange(9), np.array([0, 1, 2, 3, 4, 5, 6, 7, 9])
    assert verdict(own, own) is True
    assert verdict(own, ours, rounding=Rounding(0.0, 0.0, floats=False)) is False
    assert verdict(own, ours) is None
    assert (
        verdict(np.arange(99), np.where(np.arange(99) == 3, 4, np.arange(99)), sums=(np.arange(99) // 98 * 98,)) is None
    )
    assert (
        verdict(np.arange(99), np.where(np.arange(99) == 3, 4, np.arange(99)), sums=(np.maximum(np.arange(99), 2),))
        is True
    )


def test_own_schedules_that_make_something_else_each_time_tell_nothing() -> None:
    assert verdict(VALUES, VALUES * 2, again=VALUES * np.float32(1.1)) is None


def test_what_rounding_does_is_found_out_once_for_each_step() -> None:
    trials = list[int | None]()
    steps, own = Steps(ROUNDING, seed=3), (piece(VALUES),)
    for name, off in (("step", 1.001), ("step", 1.0011), ("step", 1.002), ("another", 1.001)):
        made, before = (piece(VALUES * np.float32(off), "kernel"),), (piece(-VALUES),)

        def trial(seed: int | None, places: Sequence[int], made: Pieces = made) -> Trial:
            trials.append(seed)
            return Trial((piece(-VALUES),), own, made, 1)

        def rounded(seed: int, places: Sequence[int]) -> Pieces:
            return (piece(VALUES * np.float32(0.9995)),)

        steps.judge(Step(name, Trial(before, own, made), (False,), (False,), 0, lambda: own, trial, rounded))
    assert trials == [None, 1_000_003, 2_000_003, 3_000_003] * 3, "not where it is off by no more than before"
    assert steps.check(["kernel"], why_not="").passed


def test_without_trials_what_is_off_once_is_not_right() -> None:
    """A kernel that was right before may be wrong on other data."""

    def trial(seed: int | None, places: Sequence[int]) -> Trial:
        raise AssertionError("it does not try")

    steps, own, before = Steps(ROUNDING, seed=0, tries=False), (piece(VALUES),), (piece(-VALUES),)
    for off, passed in ((1.0, True), (2.0, None), (1.0, None)):
        made = (piece(VALUES * np.float32(off), "kernel"),)
        steps.judge(Step("step", Trial(before, own, made), (False,), (False,), 0, lambda: own, trial, never))
        assert steps.check(["kernel"], why_not="").passed is passed


def test_chosen_schedules_that_make_something_else_each_time_tell_nothing() -> None:
    own, before, made = (piece(VALUES),), (piece(-VALUES),), (piece(VALUES * np.float32(2), "kernel"),)

    def trial(seed: int | None, places: Sequence[int]) -> Trial:
        return Trial(before, own, own, 1)

    steps = Steps(ROUNDING, seed=0)
    steps.judge(Step("step", Trial(before, own, made), (False,), (False,), 0, lambda: own, trial, never))
    assert steps.check(["kernel"], why_not="").reason.endswith("does not make the same of the same values each time")


def test_what_came_into_no_step_and_what_could_not_be_compared_is_said() -> None:
    steps = Steps(ROUNDING, seed=0)
    assert steps.check(["kernel"], why_not="").reason == "no verdict: no step tells what 1 of 1 changed kernel make"
    assert steps.check([], why_not="no memory").reason == "no verdict: a step could not be compared: no memory"
    assert lockstep.TRIALS == 4
