"""What a program that was judged wrong left in its outputs, and how long it takes: for the record, no judgement.

Runs in the child that has the device, on the inputs that programs are timed on.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kcg.kernel.arithmetic import CONFIDENT
from kcg.kernel.program import Executable
from kcg.kernel.reference import error_ratio
from kcg.measure import child
from kcg.measure.inputs import TIMED_SEED, to_values
from kcg.measure.verify import WHOLE_BELOW_BYTES, References
from kcg.measure.workbench import FINITE_POISON, NAN_POISON
from kcg.types import Region, Target, Variables

SAMPLES: Final = 5


@dataclass(frozen=True)
class LookJob:
    """A program to be looked at."""

    region: Region
    compiled: Executable
    target: Target
    variables: Variables = ()
    references: References | None = None


@dataclass(frozen=True)
class Look:
    """What was seen. Shares are of the sampled points of all outputs, but `unwritten` and `differing`, which are of all
    elements of the outputs; these are -1 where the outputs are too large to be copied."""

    points: int  # sampled
    bad: float  # share of points further from the reference than is tolerated
    nan: float  # share of points that are NaN where the reference is a number
    distance: float  # root of the mean square error over that of the values, of the points that are finite
    unwritten: float  # share of elements that two runs left as they were
    differing: float  # share of the written elements that differ between two runs
    seconds: float  # median of some runs with a cold cache


def look_job(job: LookJob) -> Look:
    """Run a program on two poisons, compare both, and time some runs more. Raises VerificationError where there is no
    reference, and what the device raises on a fault."""
    bench = child.bench_for(job.region, job.target)
    if job.references is not None:
        bench.use_references(job.references, job.variables)
    recipe = bench.choose_recipe(job.variables)
    reference = bench.reference(TIMED_SEED, recipe, job.variables, tf32=job.compiled.tf32)
    bench.seed = None  # a wrong program may have changed its inputs
    bench.fill(TIMED_SEED, recipe)
    launch = bench.launcher(job.compiled)
    small = sum(bench.by_slot[slot].nbytes for slot in bench.outputs) <= WHOLE_BELOW_BYTES
    wholes: list[dict[int, Any]] = []
    for poison in (FINITE_POISON, NAN_POISON):
        bench.restore_inputs(only_outputs=True)
        bench.poison(poison)
        launch()
        wholes.append({slot: bench.read(slot) for slot in bench.outputs} if small else {})
    bad, nan, errors, sizes = _at_points(bench, reference)
    unwritten, differing = _of_two(*wholes) if small else (-1.0, -1.0)
    flush, samples = child._flusher(job.target).flush, []
    for _ in range(SAMPLES):
        flush()
        samples.append(launch())
    bench.seed = None
    points = max(1, len(bad))
    distance = math.sqrt(float(errors.sum()) / float(sizes.sum())) if sizes.sum() else math.inf
    return Look(
        len(bad), float(bad.sum()) / points, float(nan.sum()) / points, distance, unwritten, differing,
        statistics.median(samples),
    )  # fmt: skip


def _at_points(bench: Any, reference: Any) -> tuple[Any, Any, Any, Any]:
    """Of each sampled point whether it is bad, whether it is NaN and should not be, and the squares of its error and of
    its value; 0 of what is not finite."""
    found = []
    for store in reference.stores:
        got = to_values(bench.read_elements(store.slot, store.indices), bench.by_slot[store.slot].dtype)
        with np.errstate(all="ignore"):
            x, want = got.astype(np.float64), store.values.astype(np.float64)
            finite = np.isfinite(x) & np.isfinite(want)
            errors, sizes = (np.where(finite, np.square(each), 0.0) for each in (x - want, want))
            found.append((error_ratio(store, got) > CONFIDENT, np.isnan(x) & ~np.isnan(want), errors, sizes))
    bad, nan, errors, sizes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return bad, nan, errors, sizes


def _of_two(first: dict[int, Any], second: dict[int, Any]) -> tuple[float, float]:
    """The share of elements that hold both poisons, and of the others those that differ between two runs."""
    elements = unwritten = differing = 0
    for slot, values in first.items():
        a, b = (side.view(np.uint8).reshape(len(side), -1) for side in (values, second[slot]))
        left = (a == FINITE_POISON).all(1) & (b == NAN_POISON).all(1)
        elements, unwritten = elements + len(a), unwritten + int(left.sum())
        differing += int(((a != b).any(1) & ~left).sum())
    written = elements - unwritten
    return unwritten / max(1, elements), differing / max(1, written)
