"""Is the output right? Against the float64 reference at sampled points, with poisoned outputs and guarded buffers.

A gate before any schedule is reported, not a reward. A candidate of a search is *checked* on one seed; a finalist is
*verified*, by every rule. What each rule promises and how it is tested: docs/reliability.md.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcg.compat.tiny import Ops, UOp
from kcg.errors import VerificationError
from kcg.kernel.arithmetic import CONFIDENT, comparing_in_order, products_of_tf32
from kcg.kernel.ast import extent
from kcg.kernel.chain import Chain, Evaluation
from kcg.kernel.projection import Projection, expected, plan, project, ratio, signs
from kcg.kernel.reading.depth import terms_of
from kcg.kernel.reference import LOOKED_THROUGH, StoreIndex, StoreValues, error_ratio
from kcg.measure import float_state
from kcg.measure.inputs import (
    BELOW_ZERO_RECIPE,
    BINARY_RECIPE,
    FACTORS_RECIPE,
    FEW_RECIPE,
    FEW_SPECIAL_RECIPE,
    FLAGS_RECIPE,
    LOWERED_RECIPE,
    MODEST_RECIPE,
    NEGATIVE_RECIPE,
    POSITIVE_RECIPE,
    RECIPE,
    SMALLER_POSITIVE_RECIPES,
    SMALLER_RECIPES,
    SPECIAL_RECIPE,
    SPIKY_RECIPE,
    TIMED_SEED,
    UNIT_RECIPE,
    WIDE_POSITIVE_RECIPE,
    WIDE_RECIPE,
    WITH_NAN,
    BufferInfo,
    buffers_of_kernels,
    lowered,
    make_inputs_of_kernels,
    nan_slots,
    outcomes_of,
    to_values,
)
from kcg.measure.outcomes import place_of, recipes
from kcg.measure.planted import LEVELS, VALUED, Kind, Planter, Planting, same_values
from kcg.measure.workbench import FINITE_POISON, GUARD_BYTE, NAN_POISON, OTHER_GUARDS, ZERO_POISON, Workbench
from kcg.types import Region, Target, Variables, Verification

# ---- What a kernel must compute on the inputs of a seed, in float64: without a device, so in any process.
#
# While a GPU times the finalists of one kernel, the references of the next ones are computed beside it
# (`references_job`).

POINTS = 96  # sampled output elements per store and seed
PROBE_POINTS = 32  # to choose the recipe of the inputs
PROBE_TERMS = 1 << 20  # of a region of several kernels: a recipe may be looked at some ten times
JUDGED = 0.25  # at least this share of the points must have a known value, or the kernel is unjudged
FINAL_SEEDS = (1, 2, 3)  # of the inputs on which finalists are judged
EXTREMES = (
    (),
    (LOWERED_RECIPE, NEGATIVE_RECIPE, BELOW_ZERO_RECIPE),
    (SPECIAL_RECIPE, WIDE_RECIPE, WIDE_POSITIVE_RECIPE, MODEST_RECIPE),
)
"""For each of these seeds, recipes beside the ordinary one, best first: a kernel gets the first on which enough of its
outputs are known numbers, and their errors below their sizes. Ordinary data hardly hold a row without a positive
number, or a value beyond 5."""
ORDINARY = (
    *(RECIPE, POSITIVE_RECIPE, UNIT_RECIPE, FEW_RECIPE, FEW_SPECIAL_RECIPE, FLAGS_RECIPE),
    *(MODEST_RECIPE, FACTORS_RECIPE),
    *SMALLER_RECIPES,
    *SMALLER_POSITIVE_RECIPES,
)
"""Of these a kernel gets the first on which most of its outputs can be judged and are not all 0, nor one boolean, nor
infinite; else of its `kcg.measure.outcomes`."""
REPORTS = 0.2  # this share of them: the others may be infinite, as sums of exp(x) are
PARTLY = 0.5  # what counts as known at most where all outputs are one truth, or infinite
RARER = 0.125  # the share of the rarer truth from which on both are common
KNOWN = 0.4  # and this share must be known, which is well above `JUDGED`
SCALARS = 8  # elements of an input on which alone it may depend whether the outputs are numbers
REPORTING = 8  # so many zeros and nothing else are no accident
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
        return values.size >= REPORTING and not values.any()

    @property
    def points(self) -> int:
        """How many there are, of all stores."""
        return sum(store.values.size for store in self.stores)

    def can_judge(self) -> bool:
        """Whether a kernel can be judged by it: enough is known of each store, and something is not 0."""
        return self.judged() >= JUDGED and not self.nothing()

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


def reference_terms(asts: Iterable[UOp]) -> int:
    """About how many terms a reference of these kernels adds up: those of all reductions, of each output that is looked
    at."""
    found = 0
    for ast in asts:
        nodes = ast.toposort()
        reduced = {axis for node in nodes if node.op is Ops.REDUCE for axis in node.src[1:]}
        outputs = math.prod(extent(node) for node in nodes if node.op is Ops.RANGE and node not in reduced)
        found += min(outputs, POINTS) * terms_of(ast)
    return found


def may_be_nothing(recipe: str) -> bool:
    """Whether all outputs may be 0 by a recipe with some seeds: {0,1} data, and data of which half of all results have
    one outcome, which were chosen since the first seed gives both."""
    return recipe == BINARY_RECIPE or place_of(recipe) is not None


def rarer_truth(references: Sequence[Reference]) -> float:
    """The share of the rarer truth, of the store of truths of which it is least: 0 where all are the same; 0.5 where
    there is no such store. Numbers that are all 0 or 1 are truths too."""
    least = 0.5
    for stores in zip(*(reference.stores for reference in references), strict=True):
        values = np.concatenate([store.values[store.known()] for store in stores])
        if values.size and np.isin(values, (0, 1)).all():
            share = float(values.mean())
            least = min(least, share, 1 - share)
    return least


class Referee:
    """The references of one region, each computed once. Whoever inherits has `chain`, `buffers`, `by_slot`, the
    `inputs` that are filled in, and `fill`."""

    chain: Chain
    buffers: tuple[BufferInfo, ...]
    by_slot: dict[int, BufferInfo]
    inputs: dict[int, Any]
    recipe: str

    def __init__(self) -> None:
        self._references: dict[tuple[int, str, Variables, bool], Reference] = {}  # the last: of tf32
        self._recipes: dict[tuple[int, Variables], str] = {}  # by place among the final seeds
        self.projections: dict[tuple[int, str, int], Any] = {}  # by seed, recipe and store; see `whole_output`
        self._planters: dict[Variables, Planter] = {}
        self._plantings: dict[tuple[Variables, bool], tuple[Planting, ...]] = {}  # the last: of tf32

    def fill(self, seed: int, recipe: str) -> None:
        """Make the inputs of `seed`, unless they are there."""
        raise NotImplementedError

    def choose_recipe(self, variables: Variables = (), *, place: int = 0) -> str:
        """The recipe of inputs for the final seed at `place`; 0 is what is timed, and what candidates are checked on.

        The ordinary recipe is one under which most of the outputs are numbers, and not all of them 0: signed data where
        it can be (all-positive data hides padding bugs), positive data for kernels that take the logarithm or the root
        of their inputs, whose outputs would otherwise be NaN and prove nothing. Then data between 0 and 1, and integers
        without a 0: `Tensor.randn` takes the logarithm of 1 - x. Last, few different numbers: what depends on two that
        are equal, as the gradient of a max-pool does, is 0 for all others; with infinities and NaN for `isinf`; zeros
        and ones for counts of flags. What overflows gets smaller numbers, and a product of a row factors near 1. Where
        all outputs are 0, or one truth, nearly all elements are one value, so few others that half of all rows hold
        none (`kcg.measure.outcomes`).
        Other places prefer their `EXTREMES`.
        Raises VerificationError where there is no reference for the kernel.
        """
        place %= len(EXTREMES)
        if (place, variables) not in self._recipes:
            self._recipes[place, variables] = self._extreme(place, variables) or self._ordinary(variables)
        return self._recipes[place, variables]

    def _extreme(self, place: int, variables: Variables) -> str:
        extremes: tuple[str, ...] = EXTREMES[place] if self.inputs_are_read else ()
        if LOWERED_RECIPE in extremes and not lowered(self.chain.asts):
            extremes = tuple(recipe for recipe in extremes if recipe != LOWERED_RECIPE)
        if place == len(EXTREMES) - 1 and extremes and self.choose_recipe(variables) == FEW_RECIPE:
            extremes = (FEW_SPECIAL_RECIPE, *extremes)
        if place == 1 and place_of(self.choose_recipe(variables)) is not None:
            return self.choose_recipe(variables)  # the other outcome, where all is reduced to one
        for recipe in extremes:
            seed = FINAL_SEEDS[place]
            probe = self._probe(seed, recipe, variables)
            fits = probe.telling() >= REPORTS and probe.judged() >= KNOWN and not probe.nothing()
            if fits and self.reference(seed, recipe, variables).can_judge():  # a probe is of fewer points
                return recipe
        return "" if not place else self.choose_recipe(variables)

    def _ordinary(self, variables: Variables) -> str:
        shares: dict[str, float] = {}
        for recipe in (*ORDINARY, *recipes(outcomes_of(self.chain.asts))):
            if place_of(recipe) is not None and not self._is_same(variables):
                break
            shares[recipe] = self._share(recipe, variables)
            if shares[recipe] > 1 - JUDGED:
                break
        return max(shares, key=lambda r: shares[r])

    def _is_same(self, variables: Variables) -> bool:
        """Whether ordinary data give 0 everywhere, or one truth."""
        probe = self._probe(0, RECIPE, variables)
        return probe.nothing() or not rarer_truth([probe])

    @property
    def inputs_are_read(self) -> bool:
        """Whether the kernel reads anything at all."""
        return any(info.is_input for info in self.buffers)

    def _share(self, recipe: str, variables: Variables) -> float:
        """Of how many outputs something can be said, with any seed where few numbers decide; at most `PARTLY` of those
        that are infinite, or nearly all one truth, and of the latter less where they are."""
        probes = [self._probe(0, recipe, variables)]
        is_few = probes[0].points < REPORTING and not rarer_truth(probes)
        if is_few or any(info.is_input and info.size <= SCALARS for info in self.buffers):
            probes += [self._probe(seed, recipe, variables) for seed in FINAL_SEEDS]
        most = 1.0
        if self.inputs_are_read:
            rarer = rarer_truth(probes)
            tells = rarer >= RARER and all(probe.telling() >= REPORTS for probe in probes)
            most = 0.0 if any(probe.nothing() for probe in probes) else 1.0 if tells else PARTLY * (1 if rarer else 0.9)
        return min(most, *(probe.judged() for probe in probes))

    def _probe(self, seed: int, recipe: str, variables: Variables) -> Reference:
        return self._evaluate(self._inputs_of(seed, recipe), seed, PROBE_POINTS, variables, enough=PROBE_TERMS)

    def _evaluate(
        self, inputs: dict[int, Any], seed: int, count: int, variables: Variables, *, enough: int = 0
    ) -> Reference:
        named = dict(variables)
        points = self.chain.sample_points(count, np.random.default_rng(seed), named)
        return Reference(tuple(self.chain.on(self._numbers(inputs), named, enough=enough).at(points)))

    def _inputs_of(self, seed: int, recipe: str) -> dict[int, Any]:
        return make_inputs_of_kernels(self.chain.asts, seed, recipe=recipe)

    def _numbers(self, inputs: dict[int, Any]) -> dict[int, Any]:
        return {slot: to_values(bits, self.by_slot[slot].dtype) for slot, bits in inputs.items()}

    def values(self) -> dict[int, Any]:
        """The inputs that are filled in, as numbers."""
        return self._numbers(self.inputs)

    def reference(self, seed: int, recipe: str, variables: Variables, *, tf32: bool = False) -> Reference:
        """The reference of one seed, computed once. With `tf32` its errors are those of a program whose products round
        float32 operands so: it judges such programs alone."""
        key = (seed, recipe, variables, tf32)
        if key not in self._references:
            self.fill(seed, recipe)
            with _products(tf32):
                self._references[key] = self._evaluate(self.inputs, seed, POINTS, variables)
        return self._references[key]

    def spikes_tell(self, variables: Variables) -> bool:
        """Whether the region is of several kernels, and data with spikes say something about it: a term of a long sum,
        or what is added to a small variance, is far below the rounding of what 16 bits store in between otherwise."""
        if len(self.chain.asts) == 1 or not self.inputs_are_read:
            return False
        return self.reference(0, SPIKY_RECIPE, variables).can_judge()

    def use_references(self, expected: References, variables: Variables) -> None:
        """Take the references that another process computed from the same region, seeds and recipes."""
        for place, recipe in enumerate(expected.recipes):
            self._recipes[place, variables] = recipe
        for (seed, recipe), reference in expected.references:
            self._references.setdefault((seed, recipe, variables, False), reference)
        for key, projected in expected.projections:
            self.projections.setdefault(key, projected)
        if expected.plantings is not None:
            self._plantings.setdefault((variables, False), expected.plantings)

    def planter(self, variables: Variables) -> Planter:
        """What is planted in inputs of the region, beside ordinary ones."""
        if variables not in self._planters:
            ordinary = self._inputs_of(FINAL_SEEDS[0], self.choose_recipe(variables))
            self._planters[variables] = Planter(self.chain, self.buffers, dict(variables), ordinary)
        return self._planters[variables]

    def plantings(self, variables: Variables, *, tf32: bool = False) -> tuple[Planting, ...]:
        """What the region must give on planted data, of each kind that tells something: computed once."""
        if (variables, tf32) not in self._plantings:
            planter = self.planter(variables)
            with _products(tf32):
                found = [_planting(planter, kind) for kind in planter.kinds()]
            self._plantings[variables, tf32] = tuple(one for one in found if one is not None)
        return self._plantings[variables, tf32]


def _planting(planter: Planter, kind: Kind) -> Planting | None:
    """Data of one kind, as far from 0 as the reference can judge; None where it cannot, or nothing tells anything."""
    for level in range(LEVELS if kind in VALUED else 1):
        found: list[tuple[StoreValues, ...]] = []
        try:
            for expected in planter.references(kind, level):
                reference = Reference(expected)
                tells = reference.telling() >= REPORTS or kind not in VALUED
                if len(found) < 2 and not (tells and reference.judged() >= KNOWN):
                    break
                found.append(expected)
                if len(found) == 2 and same_values(*found):
                    return Planting(kind, level, (found[0],)) if kind in VALUED else None
            else:
                return Planting(kind, level, tuple(found))
        except VerificationError:  # it takes too long, or an index is planted in after all
            return None
    return None


def _products(tf32: bool) -> contextlib.AbstractContextManager[None]:
    return products_of_tf32() if tf32 else contextlib.nullcontext()


class RefereeWithoutDevice(Referee):
    """References in a process that has no device."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.chain = Chain(region)
        self.buffers = buffers_of_kernels(self.chain.asts)
        self.by_slot = {info.slot: info for info in self.buffers}

    def fill(self, seed: int, recipe: str) -> None:
        self.inputs, self.recipe = self._inputs_of(seed, recipe), recipe


@dataclass(frozen=True)
class References:
    """The references that verifying one kernel asks for; what is missing is computed where it is asked for."""

    recipes: tuple[str, ...]  # by place among the final seeds
    references: tuple[tuple[tuple[int, str], Reference], ...]  # by seed and recipe
    projections: tuple[tuple[tuple[int, str, int], Any], ...]  # by seed, recipe and store
    plantings: tuple[Planting, ...] | None = None
    seconds: float = 0.0  # what computing them took


def first_references_job(region: Region, variables: Variables) -> References:
    """The reference of the check before a candidate is timed. Raises VerificationError where the region has none."""
    begun, referee = time.perf_counter(), RefereeWithoutDevice(region)
    recipe = referee.choose_recipe(variables)
    found = (TIMED_SEED, recipe), referee.reference(TIMED_SEED, recipe, variables)
    return References((recipe,), (found,), (), seconds=time.perf_counter() - begun)


PARTS = 1 + len(EXTREMES)
"""In which the references of a thorough check may be computed beside each other: those of the ordinary recipe, those of
recipes that need not be chosen, and of each other place choosing its recipe and what that gives."""


def references_job(
    region: Region,
    variables: Variables,
    seeds: tuple[int, ...],
    first: References | None = None,
    part: int | None = None,
) -> References:
    """The references of a thorough check under `seeds`, of which those of the `first` check are known; or one `part` of
    them, to be joined with the others. Raises VerificationError where the region has none."""
    begun, referee = time.perf_counter(), RefereeWithoutDevice(region)
    if first is not None:
        referee.use_references(first, variables)
    places = range(len(EXTREMES)) if part is None else [max(part - 1, 0)]
    recipes = {place: referee.choose_recipe(variables, place=place) for place in places}
    keys = [(seed, recipes[p]) for i, seed in enumerate(seeds) if part != 1 and (p := i % len(EXTREMES)) in recipes]
    if part in (None, 0):
        keys.append((TIMED_SEED, recipes[0]))
    if part in (None, 1):
        keys += [(0, BINARY_RECIPE)] if recipes[0] == RECIPE else []
        keys += [(0, SPIKY_RECIPE)] if len(referee.chain.asts) > 1 else []
    found = {key: referee.reference(*key, variables) for key in keys}
    for key, reference in found.items():
        is_first = part in (None, 0) and key == keys[0]
        if is_first or (key[1] == BINARY_RECIPE and reference.exact() >= EXACT):
            referee.fill(*key)
            for place in range(len(referee.chain.stores)):
                projected(referee, key[0], place)
    plantings = referee.plantings(variables) if part in (None, 0) else None
    names = tuple(recipes.get(place, "") for place in range(len(EXTREMES)))
    spent_s = time.perf_counter() - begun + (first.seconds if first is not None and part in (None, 0) else 0.0)
    return References(names, tuple(found.items()), tuple(referee.projections.items()), plantings, spent_s)


def joined_references(parts: Sequence[References]) -> References:
    """All `PARTS` as one."""
    recipes = tuple(next(filter(None, names)) for names in zip(*(part.recipes for part in parts), strict=True))
    return References(
        recipes,
        tuple(dict(pair for part in parts for pair in part.references).items()),
        tuple(dict(pair for part in parts for pair in part.projections).items()),
        next((part.plantings for part in parts if part.plantings is not None), None),
        sum(part.seconds for part in parts),
    )


# ---- Every element of an output, and not only sampled ones: beside another binary's, and by projections.
#
# Two right schedules differ in the last bits only. Where two outputs differ most the float64 reference is asked, and it
# alone decides: so nothing is rejected for a harmless difference, and one wrong element among a hundred million is
# found. That the first of the binaries is right everywhere is shown, for linear kernels, by random projections of its
# output.

WHOLE_BELOW_BYTES = 512 << 20  # outputs that are copied back and compared whole
AGAIN_BELOW_BYTES = 32 << 20  # on the later seeds; larger ones there only where they are the same bit for bit
SUSPECTS = 48  # elements that differ most, judged by the reference
CHUNK = 1 << 22  # elements that are compared at once

FEW_ROWS_ABOVE = 1 << 28  # input elements: of a larger kernel only some rows are projected
FEW_ROWS = 64

BESIDE = "whole output beside the first binary's"
NUMBERS = "numbers where the first binary has them, with all scores far below 0"
PROJECTED = "random projections of the whole output"
TF32_ALLOWED = "errors as of products of tf32, which the user allowed"

Bits = NDArray[Any]


class WholeOutput:
    """The outputs of the first binary that passed on one seed, and what those of the others are held against."""

    def __init__(
        self,
        bench: CheckedBench,
        seed: int,
        variables: dict[str, int],
        *,
        only: bool,
        first: bool = True,
        reference: Reference | None = None,
    ) -> None:
        """`only`: there is no other binary; `first`: on the first seed, whose outputs are also projected. There, and on
        data with spikes, larger outputs are copied than on the other seeds. `reference`: that of the seed."""
        self._reference = reference
        self._bench, self._seed, self._variables, self._only, self._is_first = bench, seed, variables, only, first
        self._slots = bench.outputs
        limit = WHOLE_BELOW_BYTES if first or bench.recipe == SPIKY_RECIPE else AGAIN_BELOW_BYTES
        self._fits = sum(bench.by_slot[slot].nbytes for slot in self._slots) <= limit
        self._snapshots: dict[int, Bits] = {}
        self._first: dict[int, Bits] = {}
        self._evaluations: dict[tuple[bool, bool], Evaluation] = {}  # see `_evaluation`

    def judge(self, ran: Callable[..., None], *, tf32: bool = False) -> str:
        """What is wrong with the outputs that are on the device now; empty if nothing is. With `tf32` they are of a
        program whose products round so, for which there are no projections."""
        if not self._snapshots:
            if not self._only:
                self._snapshots = {slot: self._bench.snapshot(slot) for slot in self._slots}
                self._first = {slot: self._bench.read(slot) for slot in self._slots} if self._fits else {}
            is_projected = self._is_first and self._fits and not tf32
            return judge_projections(self._bench, self._seed, ran) if is_projected else ""
        if all(self._bench.holds(slot, snapshot) for slot, snapshot in self._snapshots.items()):
            ran(BESIDE)
            return ""
        if not self._fits:
            return ""
        ran(BESIDE)
        bench = self._bench
        wanted = {slot: most_different(self._first[slot], bench.read(slot), self._dtype(slot)) for slot in self._slots}
        if not any(len(elements) for elements in wanted.values()):
            return ""
        indices = [self._evaluation(tf32, shaken=False).index(store) for store in bench.chain.stores]
        found = [elements_to_points(index, wanted[index.slot]) for index in indices]
        return self._at_points([points for points, _ in found], tf32) or self._left_alone(wanted, indices, found)

    def _evaluation(self, tf32: bool, *, shaken: bool) -> Evaluation:
        """The float64 reference on the data of the seed, of products of `tf32`, with random roundings or without."""
        chain = self._bench.chain
        key = tf32, shaken and chain.is_shaken and not tf32
        if key not in self._evaluations:
            with _products(tf32):
                self._evaluations[key] = chain.on(self._bench.values(), self._variables, shaken=key[1])
        return self._evaluations[key]

    def _at_points(self, points: list[NDArray[np.int64]], tf32: bool) -> str:
        """What is wrong with what each store wrote at its points; empty if nothing is.

        Their errors are the share of the bounds that random roundings show at the points, and at least the share that
        they show at those of the seed's reference. So what is within the latter passes without random roundings there,
        which take two thirds of the time (2 s of the 3 that the host computes of attention over 2,560 keys); also where
        they would show nothing at all, and an exact value would be asked.
        """
        bench, reference = self._bench, self._reference
        if reference is not None and not tf32 and bench.chain.is_shaken and all(s.share > 0 for s in reference.stores):
            plain = self._evaluation(tf32, shaken=False).at(points)
            if not bench.compare(within(*both) for both in zip(plain, reference.stores, strict=True)):
                return ""
        with _products(tf32):
            expected = self._evaluation(tf32, shaken=True).at(points)
        if reference is not None:  # of a few points random roundings show too little
            expected = [as_wide(*both) for both in zip(expected, reference.stores, strict=True)]
        return bench.compare(expected)

    def _left_alone(
        self,
        wanted: dict[int, NDArray[np.int64]],
        indices: list[StoreIndex],
        found: list[tuple[NDArray[np.int64], bool]],
    ) -> str:
        """What is wrong with elements that differ though no store of the kernel writes them."""
        for slot, elements in wanted.items():
            here = [(index, *expected) for index, expected in zip(indices, found, strict=True) if index.slot == slot]
            if not all(complete for _, _, complete in here):
                continue
            written = [index.at(points)[0] for index, points, _ in here if len(points)]
            others = np.setdiff1d(elements, np.concatenate(written) if written else np.zeros(0, np.int64))
            if len(others):
                return f"wrote element {int(others[0])} of buffer {slot}, which the kernel leaves alone"
        return ""

    def _dtype(self, slot: int) -> str:
        return self._bench.by_slot[slot].dtype


@functools.lru_cache(maxsize=16)
def spread_over(size: int, count: int, *, seed: int) -> NDArray[np.int64]:
    """Elements of an array of so many, in their order: one is drawn of each of `count` stretches of equal length."""
    drawn = (np.arange(count) + np.random.default_rng(seed).random(count)) * (size / count)
    found = np.minimum(drawn.astype(np.int64), size - 1)
    found.flags.writeable = False  # it is everybody's
    return found


def as_wide(found: StoreValues, reference: StoreValues) -> StoreValues:
    """What a store writes at some points, with errors of at least the share of their bounds that the reference has."""
    if not 0 < found.share < reference.share:
        return found
    return replace(found, error=found.error * (reference.share / found.share), share=reference.share)


def within(found: StoreValues, reference: StoreValues) -> StoreValues:
    """What a store writes at some points, with errors of the share of their whole bounds that the reference has."""
    return replace(found, error=found.error * reference.share, share=reference.share)


def judge_projections(bench: CheckedBench, seed: int, ran: Callable[..., None]) -> str:
    """What random projections of the outputs on the device show to be wrong; empty if nothing, or if there are none."""
    for place in range(len(bench.chain.stores)):
        if (expected := projected(bench, seed, place)) is None or (found := _plan(bench, place)) is None:
            continue
        ran(PROJECTED)
        slot = found.slot
        values = to_values(bench.read(slot), bench.by_slot[slot].dtype)
        got = project(values, found, expected.signs, rows=expected.rows)
        ratios = ratio(expected.values, expected.error, got)
        if float(ratios.max(initial=0.0)) > CONFIDENT:
            at = int(ratios.argmax())
            row = at if expected.rows is None else int(expected.rows[at])
            return f"the projection of row {row} of buffer {slot} is {got[at]:.6g}, not {expected.values[at]:.6g}"
    return ""


def _plan(referee: Referee, place: int) -> Projection | None:
    """How a store is projected: None where it is not linear, or an output of several kernels."""
    return plan(referee.chain.asts[0], place) if len(referee.chain.asts) == 1 else None


def projected(referee: Referee, seed: int, place: int) -> Projected | None:
    """What one store must project to on the inputs that are filled in, computed once; None if it is not linear."""
    key = (seed, referee.recipe, place)
    if key not in referee.projections:
        referee.projections[key] = Projected.of(referee, seed, place)
    expected: Projected | None = referee.projections[key]
    return expected


@dataclass(frozen=True, eq=False)
class Projected:
    """The projections that one store of a kernel must have on the inputs of one seed."""

    signs: NDArray[np.float64]
    rows: NDArray[np.int64] | None
    values: NDArray[np.float64]
    error: NDArray[np.float64]

    @staticmethod
    def of(bench: Referee, seed: int, place: int) -> Projected | None:
        """None where the store is not linear, or its output too large to be copied."""
        if (found := _plan(bench, place)) is None or bench.by_slot[found.slot].nbytes > WHOLE_BELOW_BYTES:
            return None
        rng = np.random.default_rng([seed, place])
        v, rows = signs(found, rng), None
        if sum(info.size for info in bench.buffers if info.is_input) > FEW_ROWS_ABOVE:
            rows = np.unique(rng.integers(0, found.rows, FEW_ROWS))
        return Projected(v, rows, *expected(found, bench.values(), v, rows))


def most_different(first: Bits, other: Bits, dtype: str, count: int = SUSPECTS) -> NDArray[np.int64]:
    """The elements in which two outputs differ most; none where they agree bit for bit.

    Small elements are compared with what is typical, since where terms cancel out they hold rounding only. But where
    some elements are much larger than the others, nothing that is wrong in those shows so: the last quarter is of
    those that differ most relative to their own size.
    """
    scale: float | None = None
    scores: list[NDArray[np.float64]] = []  # (2, elements): beside what is typical, and to their own size
    places: list[NDArray[np.int64]] = []
    if dtype == "bool":  # which NumPy takes for equal where both are not 0
        first, other = first.view(np.uint8), other.view(np.uint8)
    for begin in range(0, len(first), CHUNK):
        a, b = first[begin : begin + CHUNK], other[begin : begin + CHUNK]
        at = np.flatnonzero(a != b)
        if not len(at):
            continue
        x, y = (np.asarray(to_values(side[at], dtype), np.float64) for side in (a, b))
        with np.errstate(all="ignore"):
            if scale is None:
                part = np.asarray(to_values(a[:: max(1, len(a) // 4096)], dtype), np.float64)
                finite = part[np.isfinite(part)]
                scale = float(np.sqrt(np.mean(np.square(finite)))) if len(finite) else 0.0
            difference = np.abs(x - y)
            score = np.stack([difference / (np.abs(x) + 0.1 * scale), difference / np.maximum(np.abs(x), np.abs(y))])
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if (
            a.dtype.kind in "iu" and dtype != "__bf16"
        ):  # float64 cannot tell large integers apart: any difference counts
            same, score = np.zeros(len(x), bool), score + 1.0
        score = np.where(same, 0.0, np.where(np.isnan(score), np.inf, score))
        best = np.arange(len(x))
        if len(x) > count:
            best = np.unique(np.argpartition(score, -count, axis=1)[:, -count:])
        best = best[score[0, best] > 0]
        scores.append(score[:, best])
        places.append(at[best] + begin)
    if not scores:
        return np.zeros(0, np.int64)
    beside, own = (np.argsort(-score, kind="stable") for score in np.concatenate(scores, axis=1))
    order = np.concatenate([beside[: count - count // 4], own, beside])
    _, at_first = np.unique(order, return_index=True)
    found: NDArray[np.int64] = np.concatenate(places)[order[np.sort(at_first)][:count]].astype(np.int64)
    return found


def elements_to_points(index: StoreIndex, elements: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    """The points at which one store writes some elements, and whether there are no others.

    By strides where its index is a sum of them; else all points are looked through, if they are not more than
    `LOOKED_THROUGH`.
    """
    if not len(elements):
        return np.zeros((0, len(index.extents)), np.int64), True
    points, fitting = index.by_strides(elements)
    if fitting.all():
        return points, True
    found = index.points_of(elements, LOOKED_THROUGH)
    return (points[fitting], False) if found is None else (found, True)


# ---- NaN in a maximum, a minimum or another comparison. tinygrad compares and selects, so what becomes of NaN depends
# on the order in which it reads. Right is what tinygrad's own schedule makes of the same data, what comparing one
# element after the other makes of it, and NaN that comparisons let through.

NAN_RULE = "NaN treated as by tinygrad's kernels"
NAN_RUNS = 2  # of each input from which NaN comes into a comparison: sparse, then dense
NAN_INPUTS = 3  # the first ones, if there are more
NAN_RUNS_OF_FEW = 12  # where there are so few outputs that each has to tell by several data
NAN_FEW = 64  # outputs
NAN_SAMPLED = 1 << 18  # elements that are compared of a larger output
NAN_REREAD = 256  # elements that differ, for which the reference says what another order of reading makes of NaN,
NAN_TERMS = 1 << 21  # or as many fewer as add up so many terms,
NAN_LEAST = 48  # but so many
NAN_KINDS = ((False, False), (True, False), (False, True))  # of elements that differ: whether each side is NaN
NAN_LOOSE = 4.0  # times the error of ordinary data is tolerated: that of a few points, on other numbers
NAN_TIPPED = 0.01  # of whole numbers and booleans, so many may differ where rounding may turn a comparison


@dataclass(frozen=True)
class Rounding:
    """By how much two right programs may differ on data like those of a reference."""

    error: float  # of any value
    share: float  # of a value's own size
    exact: bool  # nothing is rounded

    @staticmethod
    def of(stores: Iterable[StoreValues]) -> Rounding:
        error = share = 0.0
        for store in stores:
            sizes = np.abs(store.values.astype(np.float64))
            finite = np.isfinite(store.error) & np.isfinite(sizes)
            error = max(error, float(store.error[finite].max(initial=0.0)))
            large = finite & (sizes > 0)
            large &= sizes >= np.median(sizes[large]) if large.any() else False
            share = max(share, float((store.error[large] / sizes[large]).max(initial=0.0)))
        return Rounding(NAN_LOOSE * CONFIDENT * error, NAN_LOOSE * CONFIDENT * share, exact=not error)


def differing_in_nan(own: Any, other: Any, rounding: Rounding) -> NDArray[np.int64]:
    """The elements that are a number in one of two outputs only, or another number."""
    if own.dtype.kind != "f":
        differ = np.flatnonzero(own != other)
        tipped = 0 if rounding.exact else int(NAN_TIPPED * len(own))
        return differ if len(differ) > tipped else differ[:0]
    with np.errstate(all="ignore"):
        x, y = (np.asarray(side, np.float64) for side in (own, other))
        close = np.abs(x - y) <= rounding.error + rounding.share * np.abs(x)
    return np.flatnonzero(~((x == y) | (np.isnan(x) & np.isnan(y)) | (close & np.isfinite(x) & np.isfinite(y))))


def _is_another(want: Any, got: Any, rounding: Rounding) -> NDArray[np.bool_]:
    """Where two outputs differ: floats as in `differing_in_nan`, all else exactly."""
    if got.dtype.kind != "f":
        return np.asarray(want != got)
    found = np.zeros(len(got), bool)
    found[differing_in_nan(want, got, rounding)] = True
    return found


def _of_each_kind(differ: NDArray[np.int64], own: Any, other: Any, most: int) -> NDArray[np.int64]:
    """So many of the elements that differ, in order: of numbers that are others, of numbers in place of NaN and of NaN
    in place of numbers as many each as there are, or a share; drawn, so that no stride of a kernel hides any."""
    if own.dtype.kind == "f":
        kinds = [differ[(np.isnan(own[differ]) == a) & (np.isnan(other[differ]) == b)] for a, b in NAN_KINDS]
    else:
        kinds = [differ]
    rng, found, left = np.random.default_rng(len(differ)), [], most
    for place, some in enumerate(sorted(kinds, key=len)):
        count = min(len(some), left // (len(kinds) - place))
        found.append(rng.choice(some, count, replace=False) if count < len(some) else some)
        left -= count
    return np.sort(np.concatenate(found))


LARGE_BYTES = 64 << 20
"""On a CPU, the inputs of a larger kernel are compared for finalists only: that takes longer than the kernel."""

SECOND_RUN_BELOW_S = 0.02
"""Longer candidates of a search run once and not twice; every finalist runs `REPEATS` times."""

NEARLY_DONE = (1, 4)  # so many elements of the outputs are changed before the last runs: all others look done
ZEROED_RUN = 6  # of the runs that must agree, the one on outputs that hold zeros
REPEATS = 10  # runs of a finalist on one seed that must agree bit for bit

Launch = Callable[[], float]


@dataclass
class _Result:
    """The result of verifying one binary while it is being found."""

    rules: dict[str, None] = field(default_factory=dict)  # an ordered set
    max_error: float = 0.0
    seeds: int = 0
    reason: str = ""
    unjudged: bool = False  # `reason` says why the reference cannot tell
    tf32: bool = False  # whether its products may round float32 operands so
    by_hand: bool = False  # whether a user wrote it, who says what it makes of NaN

    def ran(self, *rules: str) -> None:
        self.rules.update(dict.fromkeys(rules))

    def final(self) -> Verification:
        passed, rules = not self.reason, tuple(self.rules)
        return Verification(passed, rules, self.max_error, self.seeds, self.reason, unjudged=self.unjudged)


def _results(launches: Sequence[Launch], tf32: Sequence[bool], by_hand: Sequence[bool]) -> list[_Result]:
    none = [False] * len(launches)
    return [_Result(tf32=rounds, by_hand=own) for rounds, own in zip(tf32 or none, by_hand or none, strict=True)]


class CheckedBench(Workbench, Referee):
    """A workbench that can also say whether a program computes its region."""

    def __init__(self, region: Region, target: Target) -> None:
        Workbench.__init__(self, region, target)
        Referee.__init__(self)
        self._filled: dict[int, np.ndarray[Any, Any]] = {}  # what the inputs on the device look like, on a GPU
        self.lap: Callable[[str], None] = lambda phase: None  # told when a part of a check is done
        self.fastest_s = math.inf  # of what was timed here and is right
        self.tainted = False  # whether a binary changed what is not its own, so perhaps anything of this process
        self.is_large = target.device == "CPU" and sum(info.nbytes for info in self.buffers) > LARGE_BYTES

    # ---- inputs and references, of which `Referee` has the rest ----

    def restore_inputs(self, *, only_outputs: bool = False) -> None:
        super().restore_inputs(only_outputs=only_outputs)
        if not only_outputs and self.device != "CPU":
            self._filled = {slot: self.snapshot(slot) for slot in self.inputs if not self.by_slot[slot].is_output}

    # ---- verdicts ----

    def check(
        self,
        launch: Launch,
        variables: Variables,
        *,
        seeds: Iterable[int],
        thorough: bool = False,
        tf32: bool = False,
    ) -> Verification:
        """`check_all` of one binary."""
        return self.check_all([launch], variables, seeds=seeds, thorough=thorough, tf32=[tf32])[0]

    def check_all(
        self,
        launches: Sequence[Launch],
        variables: Variables,
        *,
        seeds: Iterable[int],
        thorough: bool = False,
        tf32: Sequence[bool] = (),
        by_hand: Sequence[bool] = (),
    ) -> list[Verification]:
        """Run each of `launches` on fresh data of each seed and judge what it wrote: one result each.

        `tf32` says which of them may round float32 operands of products so, `by_hand` which are a user's; by default
        none.
        `thorough` is for finalists: inputs of a kind of its own for each seed (`references.EXTREMES`); ten runs that
        agree bit for bit on the first seed, whatever lies around the buffers; the whole output of every binary beside
        that of the first, the places where they differ most judged by the reference, and the projections of a linear
        kernel's whole output; one more seed of {0,1} data, which linear kernels must compute exactly. A region of
        several kernels also runs on data with spikes, and what may leave out a term unseen on planted ones. Where
        floats are compared, all must make of NaN what the first does, which is tinygrad's own schedule, or one that was
        held against it.
        """
        results = _results(launches, tf32, by_hand)
        try:
            ordinary = self.choose_recipe(variables)
            for place, seed in enumerate(seeds):
                recipe = self.choose_recipe(variables, place=place) if thorough else ordinary
                self._judge_all(results, launches, (seed, recipe, variables), place if thorough else None)
            if thorough and ordinary == RECIPE and self.reference(0, BINARY_RECIPE, variables).exact() >= EXACT:
                self._judge_all(results, launches, (0, BINARY_RECIPE, variables), None)  # and projected
                for result in results:
                    if not result.reason:
                        result.ran("exact on {0,1} inputs")
            if thorough and self.spikes_tell(variables):
                self._judge_all(results, launches, (0, SPIKY_RECIPE, variables), len(EXTREMES))
            if thorough and self.inputs_are_read:
                self._judge_planted(results, launches, variables)
            if thorough and self._lowered_blindly(variables):
                self._judge_numbers(results, launches)
            if thorough:
                self._judge_nan(results, launches, variables)
        except VerificationError as error:
            for result in results:
                if not result.reason:
                    result.reason, result.unjudged = str(error), True
        return [result.final() for result in results]

    def treats_nan(
        self,
        launches: Sequence[Launch],
        variables: Variables,
        *,
        tf32: Sequence[bool] = (),
        by_hand: Sequence[bool] = (),
    ) -> list[str]:
        """Of each binary what it makes of NaN that the first does not; empty where that is the same. Raises
        VerificationError where there is no reference for the kernel."""
        results = _results(launches, tf32, by_hand)
        self._judge_nan(results, launches, variables)
        return [result.reason for result in results]

    @functools.cached_property
    def nan_seeds(self) -> range:
        """The seeds of data with NaN; none where the kernel compares no floats."""
        slots = nan_slots(self.chain.asts)
        few = sum(self.by_slot[slot].size for slot in self.outputs) <= NAN_FEW and not self.is_large
        return range(max(NAN_RUNS * min(len(slots), NAN_INPUTS), NAN_RUNS_OF_FEW if few else 0) if slots else 0)

    def _judge_nan(self, results: list[_Result], launches: Sequence[Launch], variables: Variables) -> None:
        """Hold what all binaries make of NaN against what the first does; but of those that a user wrote, who may
        treat NaN in a better way than by the order of reading."""
        if len(launches) < 2 or results[0].reason or not self.nan_seeds:
            return
        ordinary = self.choose_recipe(variables)
        key = (FINAL_SEEDS[0], ordinary, variables)  # these are filled in where they are not known: before all else
        roundings = {
            tf32: Rounding.of(self.reference(*key, tf32=tf32).stores) for tf32 in {one.tf32 for one in results[1:]}
        }
        for seed in self.nan_seeds:
            own: dict[int, Any] = {}
            snapshots: dict[int, Any] = {}
            for result, launch in zip(results, launches, strict=True):
                if result.reason or result.by_hand:
                    continue
                self.fill(seed, ordinary + WITH_NAN)
                result.reason = self._run(launch, NAN_POISON)[0]
                if not own:
                    if results[0].reason:
                        return
                    own = {slot: self._looked_at(slot) for slot in self.outputs}
                    snapshots = {slot: self.snapshot(slot) for slot in self.outputs}
                elif not result.reason and not all(self.holds(slot, one) for slot, one in snapshots.items()):
                    result.reason = self._nan_differs(own, roundings[result.tf32], variables)
                result.ran(NAN_RULE)
                if result.reason:
                    self.seed = None  # as in `_judge_all`

    def _nan_differs(self, own: dict[int, Any], rounding: Rounding, variables: Variables) -> str:
        """What the outputs on the device hold of NaN that those of tinygrad's `own` schedule do not, and the other way
        round; empty if nothing."""
        for slot, bits in own.items():
            x, y = (to_values(side, self.by_slot[slot].dtype) for side in (bits, self._looked_at(slot)))
            differ, places = differing_in_nan(x, y, rounding), self._places(slot)
            if not len(differ):
                continue
            looked_at = _of_each_kind(differ, x, y, self._nan_reread)
            elements = places[looked_at] if len(places) else looked_at
            wrong = self._made_otherwise(slot, elements, (x[looked_at], y[looked_at]), rounding, variables)
            if wrong.any():
                first = int(wrong.argmax())
                at, element = looked_at[first], elements[first]
                return (
                    f"makes something else of NaN than tinygrad's own schedule: element {element} of buffer {slot} is "
                    f"{y[at]}, not {x[at]} (data with NaN)"
                )
        return ""

    @functools.cached_property
    def _nan_reread(self) -> int:
        return max(min(NAN_REREAD, NAN_TERMS // max(sum(map(terms_of, self.chain.asts)), 1)), NAN_LEAST)

    def _made_otherwise(
        self, slot: int, elements: NDArray[np.int64], sides: tuple[Any, Any], rounding: Rounding, variables: Variables
    ) -> NDArray[np.bool_]:
        """Which elements of an output, of which tinygrad's own schedule and another have other values, are for certain
        neither what comparing one after the other makes of the NaN in the data, nor NaN that comparisons may let
        through. What another order of reading makes of it is no truth: with `UNROLL` tinygrad's own schedule loses
        numbers beside NaN, and leaves out weights that are NaN where padding is 0. A number where its own is NaN
        whatever is compared leaves out terms that a mask, or a factor of 0, makes nothing of, as causal attention does.
        Of long sums the reference computes some elements only: nothing is proven of the others."""
        own, got = sides
        wrong, place = np.zeros(len(elements), bool), {int(element): at for at, element in enumerate(elements)}
        try:
            with comparing_in_order():
                in_order = self._stores_at(slot, elements, variables)
            let_through = self._stores_at(slot, elements, variables)
        except VerificationError:  # the reference takes too long here
            return wrong
        for store in in_order:
            at = np.array([place[int(element)] for element in store.indices], np.int64)
            wrong[at] = _is_another(store.values, got[at], rounding)
        for store in let_through if got.dtype.kind == "f" else ():
            at = np.array([place[int(element)] for element in store.indices], np.int64)
            is_nan, certain = np.isnan(got[at]), np.isfinite(store.error)
            wrong[at] &= ~np.where(is_nan, np.isnan(store.values), np.isnan(own[at]) & certain)
        return wrong

    def _stores_at(self, slot: int, elements: NDArray[np.int64], variables: Variables) -> list[StoreValues]:
        """What is stored to elements of an output, by the reference on the data that are there. Raises
        VerificationError where that takes too long."""
        values = self.chain.on(self.values(), dict(variables), shaken=False)  # which errors are finite is the same
        found = [elements_to_points(index, elements)[0] for index in map(values.index, self.chain.stores)]
        of_slot = [
            points if store.slot == slot else points[:0] for store, points in zip(self.chain.stores, found, strict=True)
        ]
        return [store for store in values.at(of_slot) if store.slot == slot]

    def _looked_at(self, slot: int) -> Any:
        """The stored bits of an output, of a large one at `_places`."""
        if not len(places := self._places(slot)):
            return self.read(slot)
        few = self.by_slot[slot].nbytes > WHOLE_BELOW_BYTES
        return self.read_elements(slot, places) if few else self.read(slot)[places]

    def _places(self, slot: int) -> NDArray[np.int64]:
        """The elements of a large output that are compared on data with NaN; none: all of them."""
        info = self.by_slot[slot]
        if info.size <= NAN_SAMPLED:
            return np.zeros(0, np.int64)
        return spread_over(info.size, NAN_SAMPLED if info.nbytes <= WHOLE_BELOW_BYTES else POINTS, seed=slot)

    def _judge_all(
        self, results: list[_Result], launches: Sequence[Launch], key: tuple[int, str, Variables], place: int | None
    ) -> None:
        """One seed of all binaries; `place` is that of the seed among those of a thorough check."""
        seed, recipe, variables = key
        compared: WholeOutput | None = None
        whole, first = place is not None, place == 0
        for result, launch in zip(results, launches, strict=True):
            if result.reason:
                continue
            self.fill(seed, recipe)
            reference = self.reference(*key, tf32=result.tf32)
            if result.tf32:
                result.ran(TF32_ALLOWED)
            if reference.judged() < JUDGED:
                reason, result.unjudged = "most outputs are not numbers", True
            elif self.inputs and reference.nothing() and not may_be_nothing(recipe):
                reason, result.unjudged = "every output is 0, as an empty kernel would leave it", True
            else:
                reason = self._check_once_or_again(launch, reference, result, thorough=first)
                if whole and not reason:
                    result.ran(f"data of recipe {recipe}")
                    if compared is None:
                        only = len(launches) == 1
                        own = self.reference(*key)
                        compared = WholeOutput(self, seed, dict(variables), only=only, first=first, reference=own)
                    reason = compared.judge(result.ran, tf32=result.tf32)
                if recipe == BINARY_RECIPE and not reason and not result.tf32:
                    reason = judge_projections(self, seed, result.ran)
            result.seeds += recipe not in (BINARY_RECIPE, SPIKY_RECIPE)
            if reason:
                self.seed = None  # a wrong kernel may have changed its inputs: the next one gets them afresh
                data = {BINARY_RECIPE: "{0,1} data", SPIKY_RECIPE: "data with spikes"}.get(recipe, f"seed {seed}")
                result.reason = f"{reason} ({data})"

    def _judge_planted(self, results: list[_Result], launches: Sequence[Launch], variables: Variables) -> None:
        """Planted data of all binaries: see `kcg.measure.planted`."""
        for result, launch in zip(results, launches, strict=True):
            for planting in self.plantings(variables, tf32=result.tf32):
                if result.reason:
                    break
                reason = self._run_planted(launch, variables, planting, result)
                self.seed = None  # these are the inputs of no seed
                result.ran(f"planted data: {planting.kind}")
                result.reason = f"{reason} (data: {planting.kind})" if reason else ""
            self.lap("check: planted")

    def _run_planted(self, launch: Launch, variables: Variables, planting: Planting, result: _Result) -> str:
        """All launches of one kind of planted data: what is wrong with what one of them left."""
        planter, kind, level = self.planter(variables), planting.kind, planting.level
        self.inputs = {**planter.ordinary, **planter.base(kind, level)}
        self.guard(GUARD_BYTE)
        self.restore_inputs()
        before: dict[int, tuple[NDArray[np.int64], Bits]] = {}
        for number, wanted in enumerate(planting.expected):
            edits = planter.edits(kind, level, number) if number else {}
            for changes in (before, edits):
                if changes is edits:
                    before = {slot: (at, self.inputs[slot][at]) for slot, (at, _) in edits.items()}
                for slot, (at, bits) in changes.items():
                    self.inputs[slot][at] = bits
                    self.put(slot, at)
            self.poison(NAN_POISON)
            launch()
            if reason := self.compare(wanted, result):
                return self._spoiled() or reason
        return self._spoiled()

    def _lowered_blindly(self, variables: Variables) -> bool:
        """Whether scores can be lowered, and the reference cannot judge it: bfloat16 does not hold them well enough."""
        lowers = self.inputs_are_read and lowered(self.chain.asts)
        return bool(lowers) and self.choose_recipe(variables, place=1) != LOWERED_RECIPE

    def _judge_numbers(self, results: list[_Result], launches: Sequence[Launch]) -> None:
        """Lowered data, of which the reference says too little: where the first binary leaves numbers, all do."""
        first: dict[int, NDArray[np.bool_]] = {}
        for result, launch in zip(results, launches, strict=True):
            if result.reason or sum(self.by_slot[slot].nbytes for slot in self.outputs) > WHOLE_BELOW_BYTES:
                continue
            self.fill(FINAL_SEEDS[1], LOWERED_RECIPE)
            reason = self._run(launch, FINITE_POISON)[0]
            finite = {slot: np.isfinite(to_values(self.read(slot), self.by_slot[slot].dtype)) for slot in self.outputs}
            for slot, numbers in first.items():
                if not reason and (lost := numbers & ~finite[slot]).any():
                    reason = (
                        f"element {int(lost.argmax())} of buffer {slot} is no number, and the first binary's is one"
                    )
            first = first or finite
            if reason:
                self.seed, result.reason = None, f"{reason} (data of recipe {LOWERED_RECIPE})"
            elif len(launches) > 1:
                result.ran(NUMBERS)

    def _check_once_or_again(self, launch: Launch, reference: Reference, result: _Result, *, thorough: bool) -> str:
        reason = self._check_seed(launch, reference, result, thorough=thorough)
        if reason and self.is_large and not thorough and not self.tainted:
            # an earlier binary may have changed the inputs, which were not compared then: judge it afresh
            self.restore_inputs()
            reason = self._check_seed(launch, reference, result, thorough=thorough)
        return reason

    def _check_seed(self, launch: Launch, reference: Reference, result: _Result, *, thorough: bool) -> str:
        outputs = self.outputs
        result.ran("float64 reference at sampled points", "poisoned outputs", "guard bytes")
        reason, seconds = self._run(launch, NAN_POISON)
        reason = reason or self.compare(reference.stores, result)
        self.lap("check: samples")
        if reason:
            return reason
        if thorough or seconds < SECOND_RUN_BELOW_S:
            result.ran("two poisons, equal outputs", "NaN around the buffers")
            first = {slot: self.snapshot(slot) for slot in outputs}
            reason = self._run(launch, FINITE_POISON, OTHER_GUARDS[0])[0]
            for slot in outputs:
                if not reason and not self.holds(slot, first[slot]):
                    reason = self._explain(launch, slot)
            self.lap("check: outputs")
            if thorough and not reason:
                result.ran(
                    "large and small numbers around the buffers",
                    "outputs that look done",
                    "outputs of zeros",
                    f"{REPEATS} runs bitwise equal",
                )
                reason = self._repeat(launch, first, reference)
        reason = reason or self._inputs_changed(result, thorough=thorough)
        self.lap("check: inputs")
        return reason

    def _run(self, launch: Launch, poison: int, around: int = GUARD_BYTE) -> tuple[str, float]:
        """One run on poisoned outputs, with `around` before and after every buffer: what it wrote outside its buffers,
        if it did, or else changed, and its seconds."""
        self.guard(around)
        self.poison(poison)
        self.lap("check: poison")
        seconds = launch()
        self.lap("check: run")
        if not (reason := self._spoiled()):
            self.lap("check: guards")
        return reason, seconds

    def _spoiled(self) -> str:
        """What a run changed that is not its own, around its buffers or of how its process computes: nothing in this
        process is trusted from then on."""
        if (slot := self.guards_intact()) is not None:
            self.tainted = True
            return f"wrote outside buffer {slot}"
        if self.device == "CPU" and (how := float_state.changed()):
            self.tainted = True
            float_state.restore()  # what is judged beside it is not to blame
            return f"left the floating-point settings of its process changed: {how}"
        return ""

    def poisoned_run(self, launch: Launch) -> float:
        """One run on poisoned outputs, with the usual bytes around all buffers: its seconds."""
        self.guard(GUARD_BYTE)
        self.poison(NAN_POISON)
        return launch()

    def left_behind(self) -> str:
        """What runs changed besides their outputs; empty if nothing."""
        return self._spoiled() or self._inputs_changed(_Result(), thorough=not self.is_large)

    def compare(self, stores: Iterable[StoreValues], result: _Result | None = None) -> str:
        """What is wrong with what was written at the points of `stores`; empty if nothing is."""
        for store in stores:
            dtype = self.by_slot[store.slot].dtype
            bits = self.read_elements(store.slot, store.indices)
            if dtype == "bool" and (bits.view(np.uint8) > 1).any():
                at = int(bits.view(np.uint8).argmax())
                return f"element {int(store.indices[at])} of buffer {store.slot} is {bits.view(np.uint8)[at]}, no truth"
            got = to_values(bits, dtype)
            ratios = error_ratio(store, got)
            worst = float(ratios.max(initial=0.0))
            if result is not None:
                result.max_error = max(result.max_error, worst / CONFIDENT)
            if worst > CONFIDENT:
                at = int(ratios.argmax())
                place = f"element {int(store.indices[at])} of buffer {store.slot}"
                return f"{place} is {_in_words(got[at], store, at)}"
        return ""

    def _explain(self, launch: Launch, slot: int) -> str:
        """Why two runs left different contents in an output; empty if that is as it should be."""
        runs = []
        for poison in (NAN_POISON, FINITE_POISON):
            self._run(launch, poison)
            runs.append(self.read(slot))
        if reason := self._poison_left(slot, *runs):
            return reason
        self._run(launch, FINITE_POISON, OTHER_GUARDS[0])
        if (differs := _differs(runs[1], self.read(slot))) is not None:
            return f"reads outside its buffers: with NaN around them element {differs} of buffer {slot} is another"
        return f"two runs differ in buffer {slot}" if self._covered(slot) else ""

    def _repeat(self, launch: Launch, expected: dict[int, np.ndarray[Any, Any]], reference: Reference) -> str:
        """Runs that must leave what the first two did; the first of them have other numbers around the buffers."""
        arounds = dict(enumerate(OTHER_GUARDS[1:], 3))
        for run in range(3, REPEATS + 1):
            if run > REPEATS - len(NEARLY_DONE):
                reason = self._run_on_nearly_done(launch, reference, run, NEARLY_DONE[run - REPEATS - 1])
                why = " (on outputs that were right but for a few elements: it may leave what looks done)"
            else:
                poison = ZERO_POISON if run == ZEROED_RUN and all(map(self._covered, self.outputs)) else NAN_POISON
                reason = self._run(launch, poison, arounds.get(run, GUARD_BYTE))[0]
                why = " (with other numbers around the buffers: it may read outside them)" if run in arounds else ""
                why = " (on outputs of zeros: it may leave what looks done)" if poison == ZERO_POISON else why
            for slot, snapshot in expected.items():
                if not reason and not self.holds(slot, snapshot):
                    reason = f"run {run} differs from the others in buffer {slot}{why}"
            if reason:
                return reason
        return ""

    def _run_on_nearly_done(self, launch: Launch, reference: Reference, run: int, count: int) -> str:
        """A run on what the last one wrote, but for `count` elements anywhere: what it wrote outside its buffers.

        Where stores may not reach every element, as one that writes a row of a cache, elements are taken that it
        surely writes: all others stay as they are left.
        """
        rng = np.random.default_rng([run, self.seed or 0])
        for slot in self.outputs:
            if self.by_slot[slot].is_input:
                continue
            if self._covered(slot):
                self.disturb(slot, count, rng)
            else:
                written = [store.indices for store in reference.stores if store.slot == slot and store.indices.size]
                if written:
                    self.disturb(slot, count, rng, among=np.unique(np.concatenate(written)))
        self.restore_inputs(only_outputs=True)
        launch()
        return self._spoiled()

    # ---- timed runs ----

    def watch(self, launch: Launch, variables: Variables = (), *, has_run: bool = False, tf32: bool = False) -> Watched:
        """A launch to be timed on the inputs that are filled in: each of its runs must leave what its first one does.

        The first run is here unless it `has_run`, and what it wrote passed a check and is still there. The reference
        judges it where these are the inputs that are timed by (`TIMED_SEED`).
        """
        if has_run:
            return Watched(self, launch)
        self.poisoned_run(launch)
        reference = None
        if self.seed == TIMED_SEED and (self.seed, self.recipe, variables, False) in self._references:
            reference = self.reference(self.seed, self.recipe, variables, tf32=tf32)
        return Watched(self, launch, "" if reference is None else self.compare(reference.stores))

    def _inputs_changed(self, result: _Result, *, thorough: bool) -> str:
        if self.is_large and not thorough:
            return ""
        result.ran("inputs unchanged")
        for slot in self.inputs:
            if self.by_slot[slot].is_output:
                continue
            if not (self.holds(slot, self._filled[slot]) if slot in self._filled else self.holds_input(slot)):
                self.seed = None  # what is on the device is not the inputs any more
                return f"changed its input in buffer {slot}"
        return ""

    def _poison_left(self, slot: int, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> str:
        """Elements that still hold the poison of both runs were never written; all others must agree between runs."""
        a = first.view(np.uint8).reshape(len(first), -1)
        b = second.view(np.uint8).reshape(len(second), -1)
        unwritten = (a == NAN_POISON).all(1) & (b == FINITE_POISON).all(1)
        differ = (a != b).any(1) & ~unwritten
        if differ.any():
            return f"two runs differ at element {int(differ.argmax())} of buffer {slot}"
        if unwritten.any() and self._covered(slot) and not self.by_slot[slot].is_input:
            return (
                f"never wrote element {int(unwritten.argmax())} of buffer {slot} and {int(unwritten.sum()) - 1} others"
            )
        return ""

    def _covered(self, slot: int) -> bool:
        """Whether the kernels' stores reach every element of a buffer: some only write a slice of it."""
        return self.chain.covers(slot, self.by_slot[slot].size)


class Watched:
    """A binary whose timed runs are looked at: outputs are poisoned before each cold one, and compared after it.

    What returns because its output looks done, or computes only the first times, is not timed as a miracle. Warm runs
    follow each other: poison, and looking, would push out of the cache what the last one left (3 to 5 % of 50 us on one
    NVIDIA H100). So poison comes before the first of them and a look after the last. No choice depends on a warm time.
    """

    def __init__(self, bench: CheckedBench, launch: Launch, reason: str = "") -> None:
        """The outputs on the device are those of a run of `launch`; `reason` is what is wrong with them."""
        self._bench, self._launch = bench, launch
        self.runs, self.reason = 0, reason
        self._in_place = any(info.is_output and info.is_input for info in bench.buffers)
        self._poison = bench.poisoned_with  # what is never written must hold what it held
        self._expected = {slot: bench.snapshot(slot) for slot in bench.outputs}

    def __call__(self, *, flush: Callable[[], None] | None = None) -> float:
        """One run, on poisoned outputs and after `flush` where the cache is to be cold: its seconds."""
        if flush is None and not self._in_place:
            self.runs += 1
            return self._launch()
        self._bench.poison(self._poison)
        if flush is not None:
            flush()
        return self._looked_at(self._launch())

    def warmed(self) -> None:
        """An untimed run on poisoned outputs, before warm ones."""
        self._bench.poison(self._poison)
        self._looked_at(self._launch())

    def look(self) -> str:
        """What is wrong with what the last run left, or was with one before it; empty if nothing."""
        for slot, snapshot in self._expected.items():
            if not self.reason and not self._bench.holds(slot, snapshot):
                self.reason = f"timed run {self.runs} left something else in buffer {slot} than the runs before it"
        return self.reason

    def _looked_at(self, seconds: float) -> float:
        self.runs += 1
        self.look()
        return seconds

    def result(self) -> str:
        """What was wrong with a run, or with what all of them left of inputs and guards; empty if nothing was."""
        return self.look() or self._bench.left_behind()


def _differs(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int | None:
    """The first element whose bits differ, None if none does."""
    x, y = (side.view(np.uint8).reshape(len(side), -1) for side in (a, b))
    differ = (x != y).any(1)
    return int(differ.argmax()) if differ.any() else None


def _in_words(got: Any, store: StoreValues, at: int) -> str:
    """An element beside what it should be: integers as such, floats so that the difference shows."""
    want = store.values[at]
    if store.values.dtype != np.float64:
        return f"{got}, not {want}"
    tolerance = CONFIDENT * float(store.error[at])
    if f"{float(got):.6g}" != f"{want:.6g}":
        return f"{float(got):.6g}, not {want:.6g}"
    return f"{float(got):.9g}, off by {abs(float(got) - want):.3g} where {tolerance:.3g} is tolerated"
