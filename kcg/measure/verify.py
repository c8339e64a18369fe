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
from kcg.measure.inputs import BINARY_RECIPE, RECIPE, TIMED_SEED, to_values
from kcg.measure.references import EXACT, JUDGED, Foretold, Referee, Reference, Variables
from kcg.measure.whole_output import WholeOutput, judge_projections
from kcg.measure.workbench import FINITE_POISON, GUARD_BYTE, NAN_POISON, OTHER_GUARDS, Workbench
from kcg.types import Target, Verification

LARGE_BYTES = 64 << 20
"""On a CPU, the inputs of a larger kernel are compared for finalists only: that takes longer than the kernel."""

SECOND_RUN_BELOW_S = 0.02
"""Longer candidates of a search run once and not twice; every finalist runs `REPEATS` times."""

NEARLY_DONE = (1, 4)  # so many elements of the outputs are changed before the last runs: all others look done
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
        for place, recipe in enumerate(told.recipes):
            self._recipes[place, variables] = recipe
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

        `thorough` is for finalists: inputs of a kind of its own for each seed (`references.EXTREMES`); ten runs that
        agree bit for bit on the first seed, whatever lies around the buffers; the whole output of every binary beside
        that of the first, the places where they differ most judged by the reference, and the projections of a linear
        kernel's whole output; one more seed of {0,1} data, which linear kernels must compute exactly.
        """
        verdicts = [_Verdict() for _ in launches]
        try:
            ordinary = self.choose_recipe(variables)
            for place, seed in enumerate(seeds):
                recipe = self.choose_recipe(variables, place=place) if thorough else ordinary
                self._judge_all(verdicts, launches, (seed, recipe, variables), place if thorough else None)
            if thorough and ordinary == RECIPE and self.reference(0, BINARY_RECIPE, variables).exact() >= EXACT:
                self._judge_all(verdicts, launches, (0, BINARY_RECIPE, variables), None)  # and projected
                for verdict in verdicts:
                    if not verdict.reason:
                        verdict.ran("exact on {0,1} inputs")
        except VerificationError as error:
            for verdict in verdicts:
                if not verdict.reason:
                    verdict.reason, verdict.unjudged = str(error), True
        return [verdict.final() for verdict in verdicts]

    def _judge_all(
        self, verdicts: list[_Verdict], launches: Sequence[Launch], key: tuple[int, str, Variables], place: int | None
    ) -> None:
        """One seed of all binaries; `place` is that of the seed among those of a thorough check."""
        seed, recipe, variables = key
        compared: WholeOutput | None = None
        whole, first = place is not None, place == 0
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
                reason = self._check_once_or_again(launch, reference, verdict, thorough=first)
                if whole and not reason:
                    verdict.ran(f"data of recipe {recipe}")
                    if compared is None:
                        alone = len(launches) == 1
                        compared = WholeOutput(self, seed, dict(variables), alone=alone, first=first)
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

    @property
    def outputs(self) -> list[int]:
        """The slots that the kernel writes."""
        return [info.slot for info in self.buffers if info.is_output]

    def _check_seed(self, launch: Launch, reference: Reference, verdict: _Verdict, *, thorough: bool) -> str:
        outputs = self.outputs
        verdict.ran("float64 reference at sampled points", "poisoned outputs", "guard bytes")
        reason, seconds = self._run(launch, NAN_POISON)
        reason = reason or self.compare(reference.stores, verdict)
        self.lap("check: samples")
        if reason:
            return reason
        if thorough or seconds < SECOND_RUN_BELOW_S:
            verdict.ran("two poisons, equal outputs", "NaN around the buffers")
            first = {slot: self.snapshot(slot) for slot in outputs}
            reason = self._run(launch, FINITE_POISON, OTHER_GUARDS[0])[0]
            for slot in outputs:
                if not reason and not self.holds(slot, first[slot]):
                    reason = self._explain(launch, slot)
            self.lap("check: outputs")
            if thorough and not reason:
                verdict.ran(
                    "large and small numbers around the buffers",
                    "outputs that look done",
                    f"{REPEATS} runs bitwise equal",
                )
                reason = self._repeat(launch, first, reference)
        reason = reason or self._inputs_changed(outputs, verdict, thorough=thorough)
        self.lap("check: inputs")
        return reason

    def _run(self, launch: Launch, poison: int, around: int = GUARD_BYTE) -> tuple[str, float]:
        """One run on poisoned outputs, with `around` before and after every buffer: what it wrote outside its buffers,
        if it did, and its seconds."""
        self.guard(around)
        self.poison(poison)
        self.lap("check: poison")
        seconds = launch()
        self.lap("check: run")
        if not (reason := self._wrote_outside()):
            self.lap("check: guards")
        return reason, seconds

    def _wrote_outside(self) -> str:
        """Where a run wrote outside its buffers, if it did: nothing in this process is trusted from then on."""
        if (slot := self.guards_intact()) is None:
            return ""
        self.tainted = True
        return f"wrote outside buffer {slot}"

    def poisoned_run(self, launch: Launch) -> float:
        """One run on poisoned outputs, with the usual bytes around all buffers: its seconds."""
        self.guard(GUARD_BYTE)
        self.poison(NAN_POISON)
        return launch()

    def left_behind(self) -> str:
        """What runs changed besides their outputs; empty if nothing."""
        return self._wrote_outside() or self._inputs_changed(self.outputs, _Verdict(), thorough=not self.is_large)

    def compare(self, stores: Iterable[StoreValues], verdict: _Verdict | None = None) -> str:
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
            if verdict is not None:
                verdict.max_error = max(verdict.max_error, worst / CONFIDENT)
            if worst > CONFIDENT:
                at = int(ratios.argmax())
                place = f"element {int(store.indices[at])} of buffer {store.slot}"
                return f"{place} is {_told(got[at], store, at)}"
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
                reason = self._run(launch, NAN_POISON, arounds.get(run, GUARD_BYTE))[0]
                why = " (with other numbers around the buffers: it may read outside them)" if run in arounds else ""
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
        return self._wrote_outside()

    # ---- timed runs ----

    def watch(self, launch: Launch, variables: Variables = (), *, has_run: bool = False) -> Watched:
        """A launch to be timed on the inputs that are filled in: each of its runs must leave what its first one does.

        The first run is here unless it `has_run`, and what it wrote passed a check and is still there. The reference
        judges it where these are the inputs that are timed by (`TIMED_SEED`).
        """
        if has_run:
            return Watched(self, launch)
        self.poisoned_run(launch)
        reference = None
        if self.seed == TIMED_SEED and (self.seed, self.recipe, variables) in self._references:
            reference = self.reference(self.seed, self.recipe, variables)
        return Watched(self, launch, "" if reference is None else self.compare(reference.stores))

    def _inputs_changed(self, outputs: list[int], verdict: _Verdict, *, thorough: bool) -> str:
        if self.is_large and not thorough:
            return ""
        verdict.ran("inputs unchanged")
        for slot in self.inputs:
            if slot in outputs:
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
        """Whether the kernel's stores reach every element of a buffer: some only write a slice of it."""
        from kcg.kernel.evaluate import stored_elements

        return stored_elements(self.ast, slot) >= self.by_slot[slot].size


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

    def verdict(self) -> str:
        """What was wrong with a run, or with what all of them left of inputs and guards; empty if nothing was."""
        return self.look() or self._bench.left_behind()


def _differs(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int | None:
    """The first element whose bits differ, None if none does."""
    x, y = (side.view(np.uint8).reshape(len(side), -1) for side in (a, b))
    differ = (x != y).any(1)
    return int(differ.argmax()) if differ.any() else None


def _told(got: Any, store: StoreValues, at: int) -> str:
    """An element beside what it should be: integers as such, floats so that the difference shows."""
    want = store.values[at]
    if store.values.dtype != np.float64:
        return f"{got}, not {want}"
    tolerance = CONFIDENT * float(store.error[at])
    if f"{float(got):.6g}" != f"{want:.6g}":
        return f"{float(got):.6g}, not {want:.6g}"
    return f"{float(got):.9g}, off by {abs(float(got) - want):.3g} where {tolerance:.3g} is tolerated"
