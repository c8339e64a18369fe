"""Which kernels are for training, which for validation and which for test, under four splits.

- `workload`: Flux is test, whole; the families that `is_validation_family` names are validation; the rest is training.
  A kernel of Flux is test whoever else has it, and a kernel of any training family is training.
- `kernel`: 80 / 10 / 10 % of the kernels, by a hash of their ids.
- `twin`: 80 / 10 / 10 % of the twin classes (kernels that differ in sizes only, see `kcg.kernel.analysis`).
- `alike`: 80 / 10 / 10 % of the classes of kernels of one form, data types and rounded extents (`kcg.dataset.alike`),
  whatever family they are of; but each class of which Flux has a kernel is test, whole.

A region of several kernels is in the part of the one that is held out most, so that it is in training only if all of
its kernels are. Under `twin` and `alike` that holds whole classes of regions out, too: those whose kernels are of the
same classes. Under `alike` a kernel that is held out may still be near one of training, see `near_in_training`: that
is what a figure without near-duplicates leaves out.

What a cost or a search chose is for training only: such a row of a kernel that is held out is in no part.

A kernel is in exactly one part of each. Everything goes by seeded hashes of names and ids, so that kernels and families
that join a dataset later move no kernel that was there, unless a workload that joins has that kernel too, or a kernel
that joins Flux is of its class.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kcg.dataset.alike import Likeness, likeness_of, near_any
from kcg.dataset.choices import is_chosen
from kcg.kernel.analysis import shape_class
from kcg.types import Kernel, Workload

TRAIN, VALIDATION, TEST = "train", "validation", "test"
PARTS = (TRAIN, VALIDATION, TEST)
ALIKE = "alike"
SPLITS = ("workload", "kernel", "twin", ALIKE)

TEST_FAMILY = "flux"
TRAINING_PREFIX = "synthetic_"  # families that fill the space between real models: what they hold is never held out
VALIDATION_SHARE = TEST_SHARE = 0.1


@dataclass(frozen=True)
class Split:
    """A part for every kernel."""

    name: str
    parts: Mapping[str, str]  # kernel id -> "train", "validation" or "test"
    shape_class_in_training: frozenset[str]  # kernels of validation or test with one of their shape class in training
    near_in_training: frozenset[str]
    """Kernels of validation or test that are near one of training, or of its class: of the same form and data types,
    and every rounded extent within one step of rounding (`kcg.dataset.alike.Likeness.is_near`)."""

    def kernels_of(self, part: str) -> list[str]:
        """The ids of the kernels of one part, sorted."""
        return sorted(k for k, p in self.parts.items() if p == part)


def make_splits(kernels: Mapping[str, Kernel], workloads: Iterable[Workload], *, seed: int = 0) -> dict[str, Split]:
    """All splits by name, for the same kernels and workloads in any order the same ones.

    A workload's family is its name without its preset: a captured script is one of its own, `script:…`. Kernels of no
    workload are training under `workload`. Raises CodecError where a kernel is no AST.
    """
    families = _families_of_kernels(workloads)
    likeness = {kernel_id: likeness_of(kernel) for kernel_id, kernel in kernels.items()}
    shape_classes = {kernel_id: shape_class(kernel) for kernel_id, kernel in kernels.items()}
    parts = {
        "workload": {k: _part_of_families(families.get(k, set()), seed) for k in kernels},
        "kernel": {k: _part_of_hash("kernel", k, seed) for k in kernels},
        "twin": {k: _part_of_hash("twin", shape_classes[k], seed) for k in kernels},
        ALIKE: _parts_of_classes(likeness, families, seed),
    }
    return {
        name: Split(name, parts[name], _in_training(parts[name], shape_classes), _near(parts[name], likeness))
        for name in SPLITS
    }


def alike_split(
    kernels: Mapping[str, Kernel], workloads: Iterable[Workload], *, seed: int = 0
) -> tuple[Mapping[str, str], frozenset[str]]:
    """The parts of the split `alike` and its `Split.near_in_training`, as `make_splits` has them, without the classes
    of twins, which take longest. Raises CodecError where a kernel is no AST."""
    likeness = {kernel_id: likeness_of(kernel) for kernel_id, kernel in kernels.items()}
    parts = _parts_of_classes(likeness, _families_of_kernels(workloads), seed)
    return parts, _near(parts, likeness)


def part_of_kernels(parts: Collection[str | None]) -> str | None:
    """The part of a region by those of its kernels, None being in none: the one that is held out most."""
    return next((part for part in (TEST, None, VALIDATION, TRAIN) if part in parts), None)


def part_of_row(part: str | None, pool: str) -> str | None:
    """The part of a row whose region is in `part`, by what it was chosen from."""
    return None if is_chosen(pool) and part != TRAIN else part


def families_of(workloads: Iterable[Workload]) -> dict[str, str]:
    """The family of each region by its id: of those that have it `TEST_FAMILY`, else the first that fills no space
    between real models, else the last."""
    found: dict[str, str] = {}
    for workload in workloads:
        for call in workload.calls:
            known = found.get(call.region.id, TRAINING_PREFIX)
            if known.startswith(TRAINING_PREFIX) or workload.name == TEST_FAMILY:
                found[call.region.id] = workload.name
    return found


def is_validation_family(name: str, *, seed: int = 0) -> bool:
    """Whether a workload family is held out for validation: about a tenth of the names, by a hash of the name."""
    held_out = _fraction("workload", name, seed) < VALIDATION_SHARE
    return held_out and name != TEST_FAMILY and not name.startswith(TRAINING_PREFIX)


def _families_of_kernels(workloads: Iterable[Workload]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)  # kernel id -> names
    for workload in workloads:
        for call in workload.calls:
            for kernel in call.region.kernels:
                found[kernel.id].add(workload.name)
    return found


def _part_of_families(names: set[str], seed: int) -> str:
    if TEST_FAMILY in names:
        return TEST
    return VALIDATION if names and all(is_validation_family(name, seed=seed) for name in names) else TRAIN


def _parts_of_classes(likeness: Mapping[str, Likeness], families: Mapping[str, set[str]], seed: int) -> dict[str, str]:
    held_out = {one for k, one in likeness.items() if TEST_FAMILY in families.get(k, ())}
    parts = {one: TEST if one in held_out else _part_of_hash(ALIKE, one.name, seed) for one in set(likeness.values())}
    return {k: parts[one] for k, one in likeness.items()}


def _part_of_hash(split: str, identity: str, seed: int) -> str:
    fraction = _fraction(split, identity, seed)
    if fraction < TEST_SHARE:
        return TEST
    return VALIDATION if fraction < TEST_SHARE + VALIDATION_SHARE else TRAIN


def _fraction(split: str, identity: str, seed: int) -> float:
    """A number in [0, 1) that depends on its arguments only, on every machine."""
    digest = hashlib.sha256(f"{split}:{seed}:{identity}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _in_training(parts: Mapping[str, str], shape_classes: Mapping[str, str]) -> frozenset[str]:
    trained = {shape_classes[k] for k, part in parts.items() if part == TRAIN}
    return frozenset(k for k, part in parts.items() if part != TRAIN and shape_classes[k] in trained)


def _near(parts: Mapping[str, str], likeness: Mapping[str, Likeness]) -> frozenset[str]:
    held_out = {k: likeness[k] for k, part in parts.items() if part != TRAIN}
    near = near_any(held_out.values(), (likeness[k] for k, part in parts.items() if part == TRAIN))
    return frozenset(k for k, one in held_out.items() if one in near)
