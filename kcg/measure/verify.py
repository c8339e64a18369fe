"""Is the output right? Against the float64 reference at sampled points, with poisoned outputs and guarded buffers.

A gate before any schedule is reported, not a reward. The rules and why each is there: docs/how-it-works.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcg.compat.tiny import UOp
from kcg.kernel.evaluate import CONFIDENT, StoreValues, error_ratio, evaluate, sample_points
from kcg.measure.inputs import POSITIVE_RECIPE, RECIPE, Repeated, to_values
from kcg.measure.workbench import FINITE_POISON, NAN_POISON, Workbench
from kcg.types import Target, Verification

QUICK_ABOVE_BYTES = 64 << 20
"""Larger kernels get the quick check during a search: copying them back takes longer than timing them."""

POINTS = 96  # sampled output elements per store and seed
PROBE_POINTS = 32  # to choose the recipe of the inputs
JUDGED = 0.25  # at least this share of the points must have a known value, or the kernel cannot be judged

RULES = ("float64 reference", "two poisons", "guard bytes", "inputs unchanged", "repeat is bitwise equal")


@dataclass(frozen=True)
class Reference:
    """What each store writes at the sampled points, and whether the stores cover their whole buffers."""

    stores: tuple[StoreValues, ...]

    def judged(self) -> float:
        """The share of points whose value is known: not NaN, and with a finite error."""
        known = total = 0
        for store in self.stores:
            total += len(store.values)
            finite = np.isfinite(store.error)
            if store.values.dtype == np.float64:
                finite &= ~np.isnan(store.values)
            known += int(finite.sum())
        return known / total if total else 1.0


class CheckedBench(Workbench):
    """A workbench that can also say whether a binary computes its kernel."""

    def __init__(self, ast: UOp, target: Target) -> None:
        super().__init__(ast, target)
        self._references: dict[tuple[int, str, tuple[tuple[str, int], ...]], Reference] = {}
        self._recipes: dict[tuple[tuple[str, int], ...], str] = {}
        self.tainted = False  # whether a binary wrote outside its buffers, so perhaps anywhere in this process

    @property
    def is_large(self) -> bool:
        """Whether candidates of this kernel are only checked quickly during a search."""
        return sum(info.nbytes for info in self.buffers) > QUICK_ABOVE_BYTES

    def choose_recipe(self, variables: tuple[tuple[str, int], ...] = ()) -> str:
        """The recipe of inputs under which most of the outputs are numbers.

        Signed data where it can be (all-positive data hides padding bugs), positive data for kernels that take the
        logarithm or the root of their inputs, whose outputs would otherwise be NaN and prove nothing.
        """
        if variables not in self._recipes:
            shares = {}
            for recipe in (RECIPE, POSITIVE_RECIPE):
                self.fill(0, recipe)
                shares[recipe] = self._evaluate(self.inputs, 0, PROBE_POINTS, variables).judged()
                if shares[recipe] > 1 - JUDGED:
                    break
            self._recipes[variables] = max(shares, key=lambda r: shares[r])
        return self._recipes[variables]

    def _evaluate(
        self, bits: dict[int, Any], seed: int, count: int, variables: tuple[tuple[str, int], ...]
    ) -> Reference:
        values = {slot: to_values(b, self.by_slot[slot].dtype) for slot, b in bits.items()}
        named = dict(variables)
        points = sample_points(self.ast, count, np.random.default_rng(seed), named)
        return Reference(tuple(evaluate(self.ast, values, points, named)))

    def reference(self, seed: int, recipe: str, variables: tuple[tuple[str, int], ...]) -> Reference:
        """The reference of one seed, computed once."""
        key = (seed, recipe, variables)
        if key not in self._references:
            self.fill(seed, recipe)
            self._references[key] = self._evaluate(self.inputs, seed, POINTS, variables)
        return self._references[key]

    def check(
        self,
        launch: Callable[[], float],
        variables: tuple[tuple[str, int], ...],
        *,
        seeds: Iterable[int],
        quick: bool = False,
    ) -> Verification:
        """`check_all` of one binary."""
        return self.check_all([launch], variables, seeds=seeds, quick=quick)[0]

    def check_all(
        self,
        launches: Sequence[Callable[[], float]],
        variables: tuple[tuple[str, int], ...],
        *,
        seeds: Iterable[int],
        quick: bool = False,
    ) -> list[Verification]:
        """Run each of `launches` on fresh data of each seed and judge what it wrote: one verdict each.

        `quick` launches once and leaves out the comparison of the inputs and the search for unwritten elements beyond
        the sampled ones: what a candidate may be given during a search. A finalist never is on its first seed; on the
        further seeds of a large kernel it is, since what these rules look at does not depend on the data.
        """
        recipe = self.choose_recipe(variables)
        verdicts = [Verification(True, RULES) for _ in launches]
        for seed in seeds:
            for i, launch in enumerate(launches):
                if not verdicts[i].passed:
                    continue
                self.fill(seed, recipe)
                reference = self.reference(seed, recipe, variables)
                if reference.judged() < JUDGED:
                    reason, error = "cannot be judged: most outputs are not numbers", 0.0
                else:
                    reason, error = self._check_once_or_again(
                        launch, reference, quick=quick or (self.is_large and verdicts[i].seeds > 0)
                    )
                if reason:
                    self.seed = None  # a wrong kernel may have changed its inputs: the next one gets them afresh
                    reason = f"{reason} (seed {seed})"
                largest = max(verdicts[i].max_error, error)
                verdicts[i] = Verification(not reason, RULES, largest, verdicts[i].seeds + 1, reason)
        return verdicts

    def _check_once_or_again(
        self, launch: Callable[[], float], reference: Reference, *, quick: bool
    ) -> tuple[str, float]:
        reason, error = self._check_seed(launch, reference, quick=quick)
        if reason and quick and not self.tainted:
            # an earlier binary may have changed the inputs, which the quick check does not look at: judge it afresh
            self.restore_inputs()
            reason, error = self._check_seed(launch, reference, quick=quick)
        return reason, error

    def _check_seed(self, launch: Callable[[], float], reference: Reference, *, quick: bool) -> tuple[str, float]:
        outputs = sorted({store.slot for store in reference.stores})
        runs = []
        for poison in (NAN_POISON,) if quick else (NAN_POISON, FINITE_POISON):
            self.poison(poison)
            launch()
            if (slot := self.guards_intact()) is not None:
                self.tainted = True
                return f"wrote outside buffer {slot}", np.inf
            if not quick:
                runs.append({slot: self.read(slot) for slot in outputs})
        largest = 0.0
        for store in reference.stores:
            bits = self.read_elements(store.slot, store.indices) if quick else runs[0][store.slot][store.indices]
            got = to_values(bits, self.by_slot[store.slot].dtype)
            ratios = error_ratio(store, got)
            worst = float(ratios.max(initial=0.0))
            largest = max(largest, worst / CONFIDENT)
            if worst > CONFIDENT:
                at = int(ratios.argmax())
                return (
                    f"element {int(store.indices[at])} of buffer {store.slot} is {got[at]}, not {store.values[at]:.6g}",
                    largest,
                )
        if quick:
            return "", largest
        for slot in outputs:
            reason = self._poison_left(slot, runs[0][slot], runs[1][slot])
            if reason:
                return reason, largest
        for slot, bits in self.inputs.items():
            if slot not in outputs and not _same(self.read(slot), bits):
                self.seed = None  # what is on the device is not the inputs any more
                return f"changed its input in buffer {slot}", largest
        return "", largest

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
        """Whether the kernel's stores reach every element of a buffer: some only write a slice of it."""
        from kcg.kernel.evaluate import stored_elements

        return stored_elements(self.ast, slot) >= self.by_slot[slot].size


def _same(read: np.ndarray[Any, Any], bits: Any) -> bool:
    return bits.same_as(read) if isinstance(bits, Repeated) else bool(np.array_equal(read, bits))
