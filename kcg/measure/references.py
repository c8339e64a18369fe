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
    BELOW_ZERO_RECIPE,
    BINARY_RECIPE,
    FEW_RECIPE,
    FEW_SPECIAL_RECIPE,
    MODEST_RECIPE,
    NEGATIVE_RECIPE,
    POSITIVE_RECIPE,
    RECIPE,
    SPECIAL_RECIPE,
    TIMED_SEED,
    UNIT_RECIPE,
    WIDE_POSITIVE_RECIPE,
    WIDE_RECIPE,
    BufferInfo,
    buffers_of,
    make_inputs,
    to_values,
)
from kcg.types import Region
from kcg.types import Variables as Variables

POINTS = 96  # sampled output elements per store and seed
PROBE_POINTS = 32  # to choose the recipe of the inputs
JUDGED = 0.25  # at least this share of the points must have a known value, or the kernel is unjudged
FINAL_SEEDS = (1, 2, 3)  # of the inputs on which finalists are judged
EXTREMES = (
    (),
    (NEGATIVE_RECIPE, BELOW_ZERO_RECIPE),
    (SPECIAL_RECIPE, WIDE_RECIPE, WIDE_POSITIVE_RECIPE, MODEST_RECIPE),
)
"""For each of these seeds, recipes beside the ordinary one, best first: a kernel gets the first on which enough of its
outputs are known numbers, and their errors below their sizes. Ordinary data hardly hold a row without a positive
number, or a value beyond 5."""
ORDINARY = (RECIPE, POSITIVE_RECIPE, UNIT_RECIPE, FEW_RECIPE, FEW_SPECIAL_RECIPE, MODEST_RECIPE)
"""Of these a kernel gets the first on which most of its outputs can be judged and are not all 0."""
TELLS = 0.2  # this share of them: the others may be infinite, as sums of exp(x) are
KNOWN = 0.4  # and this share must be known, which is well above `JUDGED`
SCALARS = 8  # elements of an input on which alone it may depend whether the outputs are numbers
TELLING = 8  # so many zeros and nothing else are no accident
MOST = 0.5  # a store with more points whose error is as large as the value is not judged
EXACT = 0.5  # of so many points the reference must be exact, or {0,1} inputs prove nothing more


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

    def telling(self) -> float:
        """The share of points that are known and finite: what tells a value from any other."""
        known = [np.isfinite(store.error) & np.isfinite(store.values.astype(np.float64)) for store in self.stores]
        points = np.concatenate(known) if known else np.zeros(0)
        return float(points.mean()) if points.size else 0.0

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
        self._recipes: dict[tuple[int, Variables], str] = {}  # by place among the final seeds
        self.projections: dict[tuple[int, str, int], Any] = {}  # by seed, recipe and store; see `whole_output`

    def fill(self, seed: int, recipe: str) -> None:
        """Make the inputs of `seed`, unless they are there."""
        raise NotImplementedError

    def choose_recipe(self, variables: Variables = (), *, place: int = 0) -> str:
        """The recipe of inputs for the final seed at `place`; 0 is what is timed, and what candidates are checked on.

        The ordinary recipe is one under which most of the outputs are numbers, and not all of them 0: signed data where
        it can be (all-positive data hides padding bugs), positive data for kernels that take the logarithm or the root
        of their inputs, whose outputs would otherwise be NaN and prove nothing. Then data between 0 and 1, and integers
        without a 0: `Tensor.randn` takes the logarithm of 1 - x. Last, few different numbers: what depends on two that
        are equal, as the gradient of a max-pool does, is 0 for all others; with infinities and NaN for `isinf`; rows
        of almost equal booleans for `all`. Other places prefer their `EXTREMES`.
        Raises VerificationError where there is no reference for the kernel.
        """
        place %= len(EXTREMES)
        if (place, variables) not in self._recipes:
            self._recipes[place, variables] = self._extreme(place, variables) or self._ordinary(variables)
        return self._recipes[place, variables]

    def _extreme(self, place: int, variables: Variables) -> str:
        recipes = EXTREMES[place] if self.inputs_are_read else ()
        if place == len(EXTREMES) - 1 and recipes and self.choose_recipe(variables) == FEW_RECIPE:
            recipes = (FEW_SPECIAL_RECIPE, *recipes)
        for recipe in recipes:
            seed = FINAL_SEEDS[place]
            probe = self._evaluate(make_inputs(self.ast, seed, recipe=recipe), seed, PROBE_POINTS, variables)
            if probe.telling() >= TELLS and probe.judged() >= KNOWN and not probe.nothing():
                return recipe
        return "" if not place else self.choose_recipe(variables)

    def _ordinary(self, variables: Variables) -> str:
        shares = {}
        has_scalars = any(info.is_input and info.size <= SCALARS for info in self.buffers)
        seeds = (0, *FINAL_SEEDS) if has_scalars else (0,)
        for recipe in ORDINARY:
            shares[recipe] = min(self._share(seed, recipe, variables) for seed in seeds)
            if shares[recipe] > 1 - JUDGED:
                break
        return max(shares, key=lambda r: shares[r])

    @property
    def inputs_are_read(self) -> bool:
        """Whether the kernel reads anything at all."""
        return any(info.is_input for info in self.buffers)

    def _share(self, seed: int, recipe: str, variables: Variables) -> float:
        """Of how many outputs something can be said."""
        probe = self._evaluate(make_inputs(self.ast, seed, recipe=recipe), seed, PROBE_POINTS, variables)
        return 0.0 if self.inputs_are_read and probe.nothing() else probe.judged()

    def _evaluate(self, inputs: dict[int, Any], seed: int, count: int, variables: Variables) -> Reference:
        named = dict(variables)
        points = sample_points(self.ast, count, np.random.default_rng(seed), named)
        return Reference(tuple(evaluate(self.ast, self._numbers(inputs), points, named)))

    def _numbers(self, inputs: dict[int, Any]) -> dict[int, Any]:
        return {slot: to_values(bits, self.by_slot[slot].dtype) for slot, bits in inputs.items()}

    def values(self) -> dict[int, Any]:
        """The inputs that are filled in, as numbers."""
        return self._numbers(self.inputs)

    def reference(self, seed: int, recipe: str, variables: Variables) -> Reference:
        """The reference of one seed, computed once."""
        key = (seed, recipe, variables)
        if key not in self._references:
            self.fill(seed, recipe)
            self._references[key] = self._evaluate(self.inputs, seed, POINTS, variables)
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

    recipes: tuple[str, ...]  # by place among the final seeds
    references: tuple[tuple[tuple[int, str], Reference], ...]  # by seed and recipe
    projections: tuple[tuple[tuple[int, str, int], Any], ...]  # by seed, recipe and store


def foretell_job(region: Region, variables: Variables, seeds: tuple[int, ...]) -> Foretold:
    """The references of a thorough check under `seeds`. Raises VerificationError where the kernel has none."""
    from kcg.kernel.codec import ast_of
    from kcg.measure.whole_output import projected

    referee = _WithoutDevice(ast_of(region.kernel))
    recipes = tuple(referee.choose_recipe(variables, place=place) for place in range(len(EXTREMES)))
    ordinary = recipes[0]
    keys = [(seed, recipes[place % len(EXTREMES)]) for place, seed in enumerate(seeds)]
    keys += [(TIMED_SEED, ordinary)] + ([(0, BINARY_RECIPE)] if ordinary == RECIPE else [])
    found = {key: referee.reference(*key, variables) for key in keys}
    for key, reference in found.items():
        if key == keys[0] or (key[1] == BINARY_RECIPE and reference.exact() >= EXACT):
            referee.fill(*key)
            for place in range(len(referee.ast.src)):
                projected(referee, key[0], place)
    return Foretold(recipes, tuple(found.items()), tuple(referee.projections.items()))
