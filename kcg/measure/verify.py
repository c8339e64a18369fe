"""Is the output right? Against the float64 reference at sampled points, with poisoned outputs and guarded buffers.

A gate before any schedule is reported, not a reward. A candidate of a search is *checked* on one seed; a finalist is
*verified*, by every rule. What each rule promises and how it is tested: docs/reliability.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kcg.compat.tiny import UOp
from kcg.errors import VerificationError
from kcg.kernel.evaluate import CONFIDENT, StoreValues, error_ratio
from kcg.measure.inputs import BINARY_RECIPE, RECIPE, Repeated, to_values
from kcg.measure.references import EXACT, JUDGED, Foretold, Referee, Reference, Variables
from kcg.measure.whole_output import WholeOutput, judge_projections
from kcg.measure.workbench import FINITE_POISON, NAN_POISON, Workbench
from kcg.types import Target, Verification

LARGE_BYTES = 64 << 20
"""On a CPU, the inputs of a larger kernel are compared for finalists only: that takes longer than the kernel."""

SECOND_RUN_BELOW_S = 0.02
"""Longer candidates of a search run once and not twice; every finalist runs `REPEATS` times."""

REPEATS = 10  # runs of a finalist on one seed that must agree bit for bit

Launch = Callable[[], float]


@dataclass
class _Verdict:
    """The verdict on one binary while it is being found."""

    rules: dict[str, None] = field(default_factory=dict)  # an ordered set
    max_error: float = 0.0
    seeds: int = 0
    reason: str = ""
    unjudged: bool = False  # `reason` says why the reference cannot tell

    def ran(self, *rules: str) -> None:
        self.rules.update(dict.fromkeys(rules))

    def final(self) -> Verification:
        passed, rules = not self.reason, tuple(self.rules)
        return Verification(passed, rules, self.max_error, self.seeds, self.reason, unjudged=self.unjudged)


class CheckedBench(Workbench, Referee):
    """A workbench that can also say whether a binary computes its kernel."""

    def __init__(self, ast: UOp, target: Target) -> None:
        Workbench.__init__(self, ast, target)
        Referee.__init__(self)
        self._filled: dict[int, np.ndarray[Any, Any]] = {}  # what the inputs on the device look like, on a GPU
        self.lap: Callable[[str], None] = lambda phase: None  # told when a part of a check is done
        self.fastest_s = math.inf  # of what was timed here and is right
        self.tainted = False  # whether a binary wrote outside its buffers, so perhaps anywhere in this process
        self.is_large = target.device == "CPU" and sum(info.nbytes for info in self.buffers) > LARGE_BYTES

    # ---- inputs and references, of which `Referee` has the rest ----

    def restore_inputs(self, *, only_outputs: bool = False) -> None:
        super().restore_inputs(only_outputs=only_outputs)
        if not only_outputs and self.device != "CPU":
            self._filled = {slot: self.snapshot(slot) for slot in self.inputs if not self.by_slot[slot].is_output}

    def foretold(self, told: Foretold, variables: Variables) -> None:
        """Take the references that another process computed from the same kernel, seeds and recipes."""
        self._recipes[variables] = told.recipe
        for (seed, recipe), reference in told.references:
            self._references.setdefault((seed, recipe, variables), reference)
        for key, projected in told.projections:
            self.projections.setdefault(key, projected)

    # ---- verdicts ----

    def check(
        self, launch: Launch, variables: Variables, *, seeds: Iterable[int], thorough: bool = False
    ) -> Verification:
        """`check_all` of one binary."""
        return self.check_all([launch], variables, seeds=seeds, thorough=thorough)[0]

    def check_all(
        self, launches: Sequence[Launch], variables: Variables, *, seeds: Iterable[int], thorough: bool = False
    ) -> list[Verification]:
        """Run each of `launches` on fresh data of each seed and judge what it wrote: one verdict each.

        `thorough` is for finalists: ten runs that agree bit for bit on the first seed; the whole output of every binary
        beside that of the first, the places where they differ most judged by the reference, and the projections of a
        linear kernel's whole output; one more seed of {0,1} data, which linear kernels must compute exactly.
        """
        verdicts = [_Verdict() for _ in launches]
        try:
            recipe = self.choose_recipe(variables)
            for place, seed in enumerate(seeds):
                self._judge_all(verdicts, launches, (seed, recipe, variables), whole=thorough and place == 0)
            if thorough and recipe == RECIPE and self.reference(0, BINARY_RECIPE, variables).exact() >= EXACT:
                self._judge_all(verdicts, launches, (0, BINARY_RECIPE, variables), whole=False)  # and projected
                for verdict in verdicts:
                    if not verdict.reason:
                        verdict.ran("exact on {0,1} inputs")
        except VerificationError as error:
            for verdict in verdicts:
                if not verdict.reason:
                    verdict.reason, verdict.unjudged = str(error), True
        return [verdict.final() for verdict in verdicts]

    def _judge_all(
        self, verdicts: list[_Verdict], launches: Sequence[Launch], key: tuple[int, str, Variables], *, whole: bool
    ) -> None:
        seed, recipe, variables = key
        compared: WholeOutput | None = None
        for verdict, launch in zip(verdicts, launches, strict=True):
            if verdict.reason:
                continue
            self.fill(seed, recipe)
            reference = self.reference(*key)
            if reference.judged() < JUDGED:
                reason, verdict.unjudged = "most outputs are not numbers", True
            elif self.inputs and reference.nothing() and recipe != BINARY_RECIPE:
                reason, verdict.unjudged = "every output is 0, as an empty kernel would leave it", True
            else:
                reason = self._check_once_or_again(launch, reference, verdict, thorough=whole)
                if whole and not reason:
                    if compared is None:
                        compared = WholeOutput(self, seed, dict(variables), alone=len(launches) == 1)
                    reason = compared.judge(verdict.ran)
                if recipe == BINARY_RECIPE and not reason:
                    reason = judge_projections(self, seed, verdict.ran)
            verdict.seeds += recipe != BINARY_RECIPE
            if reason:
                self.seed = None  # a wrong kernel may have changed its inputs: the next one gets them afresh
                verdict.reason = f"{reason} ({'{0,1} data' if recipe == BINARY_RECIPE else f'seed {seed}'})"

    def _check_once_or_again(self, launch: Launch, reference: Reference, verdict: _Verdict, *, thorough: bool) -> str:
        reason = self._check_seed(launch, reference, verdict, thorough=thorough)
        if reason and self.is_large and not thorough and not self.tainted:
            # an earlier binary may have changed the inputs, which were not compared then: judge it afresh
            self.restore_inputs()
            reason = self._check_seed(launch, reference, verdict, thorough=thorough)
        return reason

    def _check_seed(self, launch: Launch, reference: Reference, verdict: _Verdict, *, thorough: bool) -> str:
        outputs = sorted({store.slot for store in reference.stores})
        verdict.ran("float64 reference at sampled points", "poisoned outputs", "guard bytes")
        reason, seconds = self._run(launch, NAN_POISON)
        reason = reason or self.compare(reference.stores, verdict)
        self.lap("check: samples")
        if reason:
            return reason
        if thorough or seconds < SECOND_RUN_BELOW_S:
            verdict.ran("two poisons, equal outputs")
            first = {slot: self.snapshot(slot) for slot in outputs}
            reason = self._run(launch, FINITE_POISON)[0]
            second = {slot: self.snapshot(slot) for slot in outputs}
            self.lap("check: outputs")
            for slot in outputs:
                if not reason and not np.array_equal(first[slot], second[slot]):
                    reason = self._explain(launch, slot)
            if thorough and not reason:
                verdict.ran(f"{REPEATS} runs bitwise equal")
                reason = self._repeat(launch, second)
        reason = reason or self._inputs_changed(outputs, verdict, thorough=thorough)
        self.lap("check: inputs")
        return reason

    def _run(self, launch: Launch, poison: int) -> tuple[str, float]:
        """One run on poisoned outputs: what it wrote outside its buffers, if it did, and its seconds."""
        self.poison(poison)
        self.lap("check: poison")
        seconds = launch()
        self.lap("check: run")
        if (slot := self.guards_intact()) is not None:
            self.tainted = True
            return f"wrote outside buffer {slot}", seconds
        self.lap("check: guards")
        return "", seconds

    def compare(self, stores: Iterable[StoreValues], verdict: _Verdict | None = None) -> str:
        """What is wrong with what was written at the points of `stores`; empty if nothing is."""
        for store in stores:
            got = to_values(self.read_elements(store.slot, store.indices), self.by_slot[store.slot].dtype)
            ratios = error_ratio(store, got)
            worst = float(ratios.max(initial=0.0))
            if verdict is not None:
                verdict.max_error = max(verdict.max_error, worst / CONFIDENT)
            if worst > CONFIDENT:
                at = int(ratios.argmax())
                place = f"element {int(store.indices[at])} of buffer {store.slot}"
                return f"{place} is {got[at]}, not {store.values[at]:.6g}"
        return ""

    def _explain(self, launch: Launch, slot: int) -> str:
        """Why two runs left different contents in an output; empty if that is as it should be."""
        runs = []
        for poison in (NAN_POISON, FINITE_POISON):
            self._run(launch, poison)
            runs.append(self.read(slot))
        reason = self._poison_left(slot, *runs)
        return reason or (f"two runs differ in buffer {slot}" if self._covered(slot) else "")

    def _repeat(self, launch: Launch, expected: dict[int, np.ndarray[Any, Any]]) -> str:
        for run in range(3, REPEATS + 1):
            reason = self._run(launch, FINITE_POISON)[0]
            for slot, snapshot in expected.items():
                if not reason and not np.array_equal(snapshot, self.snapshot(slot)):
                    reason = f"run {run} differs from the others in buffer {slot}"
            if reason:
                return reason
        return ""

    def _inputs_changed(self, outputs: list[int], verdict: _Verdict, *, thorough: bool) -> str:
        if self.is_large and not thorough:
            return ""
        verdict.ran("inputs unchanged")
        for slot, bits in self.inputs.items():
            if slot in outputs:
                continue
            if slot in self._filled:
                same = np.array_equal(self._filled[slot], self.snapshot(slot))
            else:
                same = _same(self.read(slot), bits)
            if not same:
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
        """Whether the kernel's stores reach every element of a buffer: some only write a slice of it."""
        from kcg.kernel.evaluate import stored_elements

        return stored_elements(self.ast, slot) >= self.by_slot[slot].size


def _same(read: np.ndarray[Any, Any], bits: Any) -> bool:
    return bits.same_as(read) if isinstance(bits, Repeated) else bool(np.array_equal(read, bits))
