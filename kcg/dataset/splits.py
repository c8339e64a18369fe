"""Which kernels are for training, which for validation and which for test, under three splits.

- `workload`: Flux is test, whole; the families that `is_validation_family` names are validation; the rest is training.
  A kernel of Flux is test whoever else has it, and a kernel of any training family is training.
- `kernel`: 80 / 10 / 10 % of the kernels, by a hash of their ids.
- `twin`: 80 / 10 / 10 % of the twin classes (kernels that differ in sizes only, see `kcg.kernel.analysis`).

What a cost or a search chose is for training only: such a row of a kernel that is held out is in no part.

A kernel is in exactly one part of each. Everything goes by seeded hashes of names and ids, so that kernels and families
that join a dataset later move no kernel that was there, unless a workload that joins has that kernel too.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kcg.dataset.choices import is_chosen
from kcg.kernel.analysis import shape_class
from kcg.types import Kernel, Workload

TRAIN, VALIDATION, TEST = "train", "validation", "test"
PARTS = (TRAIN, VALIDATION, TEST)
SPLITS = ("workload", "kernel", "twin")

TEST_FAMILY = "flux"
TRAINING_PREFIX = "synthetic_"  # families that fill the space between real models: what they hold is never held out
VALIDATION_SHARE = TEST_SHARE = 0.1


@dataclass(frozen=True)
class Split:
    """A part for every kernel."""

    name: str
    parts: Mapping[str, str]  # kernel id -> "train", "validation" or "test"
    shape_class_in_training: frozenset[str]  # kernels of validation or test with one of their shape class in training

    def kernels_of(self, part: str) -> list[str]:
        """The ids of the kernels of one part, sorted."""
        return sorted(k for k, p in self.parts.items() if p == part)


def make_splits(kernels: Mapping[str, Kernel], workloads: Iterable[Workload], *, seed: int = 0) -> dict[str, Split]:
    """All splits by name, for the same kernels and workloads in any order the same ones.

    A workload's family is its name without its preset: a captured script is one of its own, `script:…`. Kernels of no
    workload are training under `workload`. Raises CodecError where a kernel is no AST.
    """
    families: dict[str, set[str]] = defaultdict(set)  # kernel id -> names
    for workload in workloads:
        for call in workload.calls:
            for kernel in call.region.kernels:
                families[kernel.id].add(workload.name)
    shape_classes = {kernel_id: shape_class(kernel) for kernel_id, kernel in kernels.items()}
    parts = {
        "workload": {k: _part_of_families(families.get(k, set()), seed) for k in kernels},
        "kernel": {k: _part_of_hash("kernel", k, seed) for k in kernels},
        "twin": {k: _part_of_hash("twin", shape_classes[k], seed) for k in kernels},
    }
    return {name: Split(name, parts[name], _in_training(parts[name], shape_classes)) for name in SPLITS}


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


def _part_of_families(names: set[str], seed: int) -> str:
    if TEST_FAMILY in names:
        return TEST
    return VALIDATION if names and all(is_validation_family(name, seed=seed) for name in names) else TRAIN


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
