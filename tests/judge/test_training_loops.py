"""A training loop in NumPy, right and wrong: no wrong gradient passes the check of a whole script, however its losses
are read, and no right one fails it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import pytest

from kcg.compat.observing import ALIVE, READ, Piece
from kcg.judge.whole import Rounding, judge_pieces

FLOAT, EPS = np.float32, 2.0**-23
ROUNDING = Rounding(sums=8 * EPS, stored=EPS, floats=True)
KERNELS = ("forward", "first gradient", "second gradient")
STEPS, WARM_UP, PEAK = 303, 200, 0.2
Gradient = Callable[[np.ndarray], np.ndarray]
WRONG: dict[str, Gradient] = {
    "negated": lambda g: -g,
    "zero": lambda g: g * FLOAT(0),
    "random": lambda g: np.random.default_rng(5).normal(size=g.shape).astype(FLOAT),
    "some rows are 0": lambda g: np.where(np.arange(len(g))[:, None] % 8 == 0, FLOAT(0), g),
    "parts are swapped": lambda g: np.vstack([g[len(g) // 2 :], g[: len(g) // 2]]),
}


class Ran(NamedTuple):
    """What a run leaves: the losses that it read, by step, and its weights."""

    losses: list[tuple[int, np.ndarray]]
    weights: tuple[np.ndarray, np.ndarray]

    @property
    def pieces(self) -> list[Piece]:
        alive = [Piece(ALIVE, "float", EPS, one, KERNELS) for one in self.weights]
        fed_by = {0: KERNELS[:1]}
        return alive + [Piece(READ, "float", EPS, loss, fed_by.get(at, KERNELS)) for at, loss in self.losses]


def trained(power: int, *, read: Collection[int], seed: int = 0, gradient: Gradient = lambda g: g) -> Ran:
    """Two layers, trained by the signs of their gradients, softened, which makes much of rounding; the learning rate
    grows as a power of the step at first. `seed` shakes what it begins with."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 16)).astype(FLOAT)
    wanted = np.sign(x[:, :1] * x[:, 1:2]).astype(FLOAT)
    first, second = ((rng.normal(size=shape) / by).astype(FLOAT) for shape, by in (((16, 32), 4), ((32, 1), 5)))
    if seed:
        shake = np.random.default_rng(seed)
        for values in (x, first, second):
            values *= (1 + shake.choice([-1, 1], values.shape) * EPS).astype(FLOAT)
    losses = []
    for step in range(STEPS):
        rate = FLOAT(PEAK * min(1, step / WARM_UP) ** power)
        batch = np.random.default_rng(step).integers(0, 64, 32)
        hidden = np.tanh(x[batch] @ first)
        off = hidden @ second - wanted[batch]
        if step in read:
            losses.append((step, np.array((off**2).mean(dtype=FLOAT))))
        of_second = hidden.T @ (off / FLOAT(16))
        of_first = gradient(x[batch].T @ ((off / FLOAT(16)) @ second.T * (1 - hidden * hidden)))
        first, second = (w - rate * np.tanh(g * FLOAT(50)) for w, g in ((first, of_first), (second, of_second)))
    return Ran(losses, (first, second))


SPARSE, EVERY = (0, 2, 300, 301, 302), tuple(range(0, STEPS, 6))


def rounded(seed: int) -> Gradient:
    """Right gradients that another order of their sums rounds otherwise."""
    rng = np.random.default_rng(seed)
    return lambda g: (g * (1 + EPS * rng.choice([-1, 1], g.shape))).astype(FLOAT)


@pytest.mark.parametrize("power", [0, 1, 4])
@pytest.mark.parametrize("read", [SPARSE, EVERY], ids=["sparse", "every sixth"])
def test_no_wrong_gradient_passes_and_no_right_one_fails(power: int, read: tuple[int, ...]) -> None:
    """Where rounding moves the last losses too far there is no verdict. How far one rounding unit moves one loss is
    chance: in between it may hardly move."""
    own, *shaken = (trained(power, read=read, seed=seed).pieces for seed in range(4))

    def verdicts(gradient: Gradient) -> list[bool | None]:
        chosen = trained(power, read=read, gradient=gradient).pieces
        return [judge_pieces(chosen, own, one, ROUNDING, values=100).passed for one in shaken]

    assert not [name for name, wrong in WRONG.items() if True in verdicts(wrong)]
    assert not [seed for seed in range(4) if False in verdicts(rounded(seed))]
