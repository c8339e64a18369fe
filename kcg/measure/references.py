"""What a kernel must compute on the inputs of a seed, in float64: without a device, so in any process.

While a GPU times the finalists of one kernel, the references of the next ones are computed beside it (`foretell_job`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcg.compat.tiny import UOp
from kcg.kernel.evaluate import StoreValues, evaluate, sample_points
from kcg.measure.inputs import (
    BINARY_RECIPE,
    FEW_RECIPE,
    POSITIVE_RECIPE,
    RECIPE,
    UNIT_RECIPE,
    BufferInfo,
    buffers_of,
    make_inputs,
    to_values,
)
from kcg.types import Region

POINTS = 96  # sampled output elements per store and seed
PROBE_POINTS = 32  # to choose the recipe of the inputs
JUDGED = 0.25  # at least this share of the points must have a known value, or the kernel cannot be judged
FINAL_SEEDS = (1, 2, 3)  # of the inputs on which finalists are judged
SCALARS = 8  # elements of an input on which alone it may depend whether the outputs are numbers
TELLING = 8  # so many zeros and nothing else are no accident
MOST = 0.5  # of a store's points with an error as large as the value, and the reference proves nothing about it
EXACT = 0.5  # of so many points the reference must be exact, or {0,1} inputs prove nothing more

Variables = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Reference:
    """What each store writes at the sampled points."""

    stores: tuple[StoreValues, ...]

    def judged(self) -> float:
        """The share of points about which something is known: not NaN, and with an error below the value's size.

        Of several stores the least: what proves nothing about one of them does not verify the kernel. 0 where the
        errors of most points of a store exceed the values, since an empty output would pass there.
        """
        shares = [1.0]
        for store in self.stores:
            if not len(store.values):
                continue
            swamped = store.swamped()
            share = float((store.known() & ~swamped).mean())
            shares.append(0.0 if swamped.mean() > MOST else share)
        return min(shares)

    def nothing(self) -> bool:
        """Whether an empty output would be right: every known value is 0, and there are enough to tell."""
        values = np.concatenate([store.values.ravel() for store in self.stores]) if self.stores else np.zeros(0)
        return values.size >= TELLING and not values.any()

    def exact(self) -> float:
        """The share of points that must match bit for bit; what is not a number matches anything."""
        sure = [(store.error == 0) & ~np.isnan(store.values) for store in self.stores]
        points = np.concatenate(sure) if sure else np.zeros(0)
        return float(points.mean()) if points.size else 0.0


class Referee:
    """The references of one kernel, each computed once. Whoever inherits has `ast`, `buffers`, `by_slot`, the `inputs`
    that are filled in, and `fill`."""

    ast: UOp
    buffers: tuple[BufferInfo, ...]
    by_slot: dict[int, BufferInfo]
    inputs: dict[int, Any]
    recipe: str

    def __init__(self) -> None:
        self._references: dict[tuple[int, str, Variables], Reference] = {}
        self._recipes: dict[Variables, str] = {}
        self.projections: dict[tuple[int, str, int], Any] = {}  # by seed, recipe and store; see `whole_output`

    def fill(self, seed: int, recipe: str) -> None:
        """Make the inputs of `seed`, unless they are there."""
        raise NotImplementedError

    def choose_recipe(self, variables: Variables = ()) -> str:
        """The recipe of inputs under which most of the outputs are numbers, and not all of them 0.

        Signed data where it can be (all-positive data hides padding bugs), positive data for kernels that take the
        logarithm or the root of their inputs, whose outputs would otherwise be NaN and prove nothing. Then data
        between 0 and 1, and integers without a 0: `Tensor.randn` takes the logarithm of 1 - x. Last, few different
        numbers: what depends on two that are equal, as the gradient of a max-pool does, is 0 for all others.
        Raises VerificationError where there is no reference for the kernel.
        """
        if variables not in self._recipes:
            shares = {}
            has_scalars = any(info.is_input and info.size <= SCALARS for info in self.buffers)
            seeds = (0, *FINAL_SEEDS) if has_scalars else (0,)
            for recipe in (RECIPE, POSITIVE_RECIPE, UNIT_RECIPE, FEW_RECIPE):
                shares[recipe] = min(self._share(seed, recipe, variables) for seed in seeds)
                if shares[recipe] > 1 - JUDGED:
                    break
            self._recipes[variables] = max(shares, key=lambda r: shares[r])
        return self._recipes[variables]

    def _share(self, seed: int, recipe: str, variables: Variables) -> float:
        """Of how many outputs something can be said."""
        self.fill(seed, recipe)
        probe = self._evaluate(seed, PROBE_POINTS, variables)
        return 0.0 if self.inputs and probe.nothing() else probe.judged()

    def _evaluate(self, seed: int, count: int, variables: Variables) -> Reference:
        named = dict(variables)
        points = sample_points(self.ast, count, np.random.default_rng(seed), named)
        return Reference(tuple(evaluate(self.ast, self.values(), points, named)))

    def values(self) -> dict[int, Any]:
        """The inputs as numbers."""
        return {slot: to_values(bits, self.by_slot[slot].dtype) for slot, bits in self.inputs.items()}

    def reference(self, seed: int, recipe: str, variables: Variables) -> Reference:
        """The reference of one seed, computed once."""
        key = (seed, recipe, variables)
        if key not in self._references:
            self.fill(seed, recipe)
            self._references[key] = self._evaluate(seed, POINTS, variables)
        return self._references[key]


class _WithoutDevice(Referee):
    """References in a process that has no device."""

    def __init__(self, ast: UOp) -> None:
        super().__init__()
        self.ast, self.buffers = ast, buffers_of(ast)
        self.by_slot = {info.slot: info for info in self.buffers}

    def fill(self, seed: int, recipe: str) -> None:
        self.inputs, self.recipe = make_inputs(self.ast, seed, recipe=recipe), recipe


@dataclass(frozen=True)
class Foretold:
    """The references that verifying one kernel asks for; what is missing is computed where it is asked for."""

    recipe: str
    references: tuple[tuple[tuple[int, str], Reference], ...]  # by seed and recipe
    projections: tuple[tuple[tuple[int, str, int], Any], ...]  # by seed, recipe and store


def foretell_job(region: Region, variables: Variables, seeds: tuple[int, ...]) -> Foretold:
    """The references of a thorough check under `seeds`. Raises VerificationError where the kernel has none."""
    from kcg.kernel.codec import ast_of
    from kcg.measure.whole_output import projected

    referee = _WithoutDevice(ast_of(region.kernel))
    recipe = referee.choose_recipe(variables)
    keys = [(seed, recipe) for seed in seeds] + ([(0, BINARY_RECIPE)] if recipe == RECIPE else [])
    found = [((seed, named), referee.reference(seed, named, variables)) for seed, named in keys]
    for (seed, named), reference in (found[0], found[-1]):
        if (seed, named) == keys[0] or (named == BINARY_RECIPE and reference.exact() >= EXACT):
            referee.fill(seed, named)
            for place in range(len(referee.ast.src)):
                projected(referee, seed, place)
    return Foretold(recipe, tuple(found), tuple(referee.projections.items()))
