"""Other ways to choose among the programs of a lattice, which learn nothing of other families, or little.

Programs are apart by their parameters: numbers by their logarithm, words by whether they are the same. Whatever a way
asks for is the nearest program of the lattice that was not measured.

- `around the prior`: drawn, with a chance that falls with the expected time, to the power of `SHARPNESS`.
- `hill-climbing`: the program that is expected to be fastest, then the nearest to the best so far, the faster by
  expectation first.
- `evolution`: four by expectation; then a child of two of the four best so far, each parameter of one of them, one in
  `MUTATES` of any other program.
- `boosting`: four by expectation; then what a classifier of the best third of what was measured says (likelihood-free
  Bayesian optimisation: Song et al., 2022; boosted trees as in Helion's autotuner), by parameters and the cost's
  numbers.
- `common`: the eight settings that were most often within 5 % of the best of a region, of other families.
- `Helion's formula`: what Helion's `TritonH100MatmulHeuristic` and its heuristic of row reductions give for the sizes
  of a product, a convolution (as the product that it is) or a row reduction, then what is nearest. Of other regions it
  has none. Read from the project's files; what it leaves open is as a plain program has it.
- `nearest region`: the settings of the best program of the recorded region of another family that is most alike, then
  of the next one. Which axes a tile holds is left out of both, also of regions of one kind, where it means the same.

Drawn ones are means over `SEEDS` seeds.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kcg.dataset.reading import Export
from kcg.errors import KcgError
from kcg.kernel.ast import extent
from kcg.kernel.kinds import HasCost, Space, space_of
from kcg.measure.protocol import PROTOCOL
from kcg.types import Region, Schedule, ScheduleKind, Status, Target

SHARPNESS: Final = 4.0
MUTATES: Final = 4
SEEDS: Final = 5
FIRST: Final = 4  # by expectation, where a way needs some to begin with
COMMON: Final = 8
GOOD: Final = 1.05  # of the best of a region
LEAST_ROWS: Final = 5  # of a region that says what is good
NEAREST: Final = 16  # regions that are asked

PUBLISHED: Final = "Helion's formula"
WAYS: Final = ("around the prior", "hill-climbing", "evolution", "boosting", "common", PUBLISHED, "nearest region")
SHARED_BYTES: Final = 228 << 10  # of a multiprocessor
RESIDENT_BYTES: Final = 245_760  # of a row that stays in registers
PLAIN: Final = {
    "epilogue_parts": 1, "evict_first": [], "evict_last": [], "fast_math": True, "loads": "pointer", "maxnreg": 0,
    "persistent": 0, "precision": "ieee", "split": 1, "tail": 1, "warp_specialize": False,
}  # fmt: skip

Choose = Callable[[Sequence[int], Mapping[int, float]], int]
Parameters = Mapping[str, float]


def parameters_of(schedule: Schedule) -> dict[str, float]:
    """Its parameters as numbers: of several numbers each has a name of its own, a word is one for what it is."""
    found: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, list):
            for place, part in enumerate(value):
                add(f"{name} {place}", part)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            found[f"{name} is {value}"] = 1.0
        else:
            found[name] = math.log2(1 + abs(value))

    for name, value in json.loads(schedule.body).items():
        if name != "format":
            add(name, value)
    return found


def settings_of(parameters: Parameters) -> dict[str, float]:
    """Those that mean the same in every region: not which axes a tile holds."""
    return {name: value for name, value in parameters.items() if not name.startswith("axes")}


@dataclass(frozen=True)
class Known:
    """What was recorded of a region."""

    region: Region
    family: str
    seconds: Mapping[Schedule, float]

    @cached_property
    def best(self) -> list[Schedule]:
        """What is as good as its best, the fastest first."""
        least = min(self.seconds.values())
        return sorted((s for s, t in self.seconds.items() if t <= GOOD * least), key=lambda one: self.seconds[one])


def recorded(export: Export, families: Mapping[str, str]) -> list[Known]:
    """The regions of a dataset that have several programs, but for those measured on a part of the device."""
    regions, targets = export.regions(), export.targets()
    whole = max(target.cores for target in targets.values())
    times: dict[str, dict[Schedule, float]] = defaultdict(dict)
    for row in export.measurements(PROTOCOL):
        if row.schedule.kind == ScheduleKind.TILE and row.status == Status.OK and targets[row.target].cores == whole:
            times[row.region_id].setdefault(row.schedule, row.median_s)
    return [
        Known(regions[name], families.get(name, ""), seconds)
        for name, seconds in times.items()
        if len(seconds) >= LEAST_ROWS
    ]


class Programs:
    """The programs of one lattice, as ways to choose see them."""

    def __init__(self, space: Space, schedules: Sequence[Schedule], expected_s: Sequence[float]) -> None:
        self.parameters = [parameters_of(one) for one in schedules]
        self.expected_s = expected_s
        assert isinstance(space, HasCost)
        numbers = np.array([space.cost(one).features for one in schedules], dtype=float)
        self._names = sorted({name for one in self.parameters for name in one})
        self._words = np.array([[one.get(name, 0.0) for name in self._names] for one in self.parameters])
        self._are_settings = np.array([name in settings_of({name: 0.0}) for name in self._names])
        self.seen = np.hstack([self._words, numbers.reshape(len(schedules), -1), np.log(expected_s)[:, None]])

    def apart(self, wanted: Parameters, *, settings: bool = False) -> NDArray[np.float64]:
        """How far each program is from that; by their settings alone, or by all."""
        there = np.array([wanted.get(name, 0.0) for name in self._names])
        weights = self._are_settings.astype(float) if settings else 1.0
        rest = {name: value for name, value in wanted.items() if name not in self._names}
        nobodys = sum(map(abs, (settings_of(rest) if settings else rest).values()))
        return np.asarray(((np.abs(self._words - there) * weights).sum(1) + nobodys).round(9))

    def nearest(self, left: Iterable[int], wanted: Parameters) -> int:
        """The program that is most like that, the faster by expectation of several."""
        distance = self.apart(wanted).tolist()
        return min(left, key=lambda place: (distance[place], self.expected_s[place]))

    # ---- the ways

    def around(self, seed: int) -> Choose:
        rng = random.Random(seed)
        noise = [-math.log(-math.log(rng.random())) for _ in self.expected_s]  # Gumbel: an order by these is a draw
        score = [n - SHARPNESS * math.log(s) for n, s in zip(noise, self.expected_s, strict=True)]
        return lambda left, known: max(left, key=lambda place: score[place])

    def climb(self, left: Sequence[int], known: Mapping[int, float]) -> int:
        if not known:
            return min(left, key=lambda place: self.expected_s[place])
        return self.nearest(left, self.parameters[min(known, key=lambda place: known[place])])

    def evolve(self, seed: int) -> Choose:
        rng = random.Random(seed)

        def choose(left: Sequence[int], known: Mapping[int, float]) -> int:
            if len(known) < FIRST:
                return min(left, key=lambda place: self.expected_s[place])
            one, other = rng.sample(sorted(known, key=lambda place: known[place])[:FIRST], 2)
            child: dict[str, float] = {}
            for name in sorted({*self.parameters[one], *self.parameters[other]}):
                parent = rng.choice([one, other])
                source = rng.randrange(len(self.parameters)) if rng.randrange(MUTATES) == 0 else parent
                child[name] = self.parameters[source].get(name, 0.0)
            return self.nearest(left, child)

        return choose

    def boost(self, seed: int) -> Choose:
        import lightgbm

        settings = {"objective": "binary", "min_data_in_leaf": 1, "min_data_in_bin": 1, "num_leaves": 7, "verbose": -1}
        settings |= {"seed": seed, "learning_rate": 0.2, "num_threads": 1}

        def choose(left: Sequence[int], known: Mapping[int, float]) -> int:
            if len(known) < FIRST:
                return min(left, key=lambda place: self.expected_s[place])
            places = sorted(known, key=lambda place: known[place])
            good = max(len(places) // 3, 1)
            labels: NDArray[np.float64] = np.array([1.0] * good + [0.0] * (len(places) - good))
            rows = self.seen[places]
            worst = math.log(known[places[good]])
            weights = np.array([max(worst - math.log(known[place]), 1e-3) for place in places])
            weights[good:] = weights[:good].mean()
            model = lightgbm.train(settings, lightgbm.Dataset(rows, labels, weight=weights), num_boost_round=20)
            scores = model.predict(self.seen[list(left)])
            return min(zip(left, scores, strict=True), key=lambda one: (-one[1], self.expected_s[one[0]]))[0]

        return choose

    def listed(self, wanted: Sequence[Parameters]) -> Choose:
        """Settings in their order, and then what is most like any of them."""

        @cache
        def distances(asked: int) -> list[float]:
            some = wanted[asked : asked + 1] or wanted
            found: list[float] = np.min([self.apart(one, settings=True) for one in some], 0).tolist()
            return found

        def choose(left: Sequence[int], known: Mapping[int, float]) -> int:
            asked = len(self.parameters) - len(left)  # what was not measured yet, too
            distance = distances(min(asked, len(wanted)))
            return min(left, key=lambda place: (distance[place], self.expected_s[place]))

        return choose


# ---- what is published


def published(space: Any, target: Target) -> list[Parameters]:
    """The settings that Helion's heuristics give for the sizes of a region; none where they have none."""
    kernel = space.kernel
    if len(space.region.kernels) > 1:
        return []
    if kernel.contraction is not None:
        start = json.loads(space.start().body)
        if start["form"] != "contraction":
            return []
        held = [math.prod(kernel.extents[place] for place in axis) for axis in start["axes"]]
        rows, columns = held if len(held) == 2 else (1, held[0])
        others = math.prod(kernel.extents) // (rows * columns)
        itemsize = kernel.contraction.sides[0].dtype.itemsize
        return [_settings("contraction", product_of(rows, columns, kernel.terms, itemsize, others, target.cores))]
    if not kernel.reduce_ranges:
        return []
    itemsize = max(load.buffer.dtype.itemsize for load in kernel.loads)
    form, chosen = row_of(kernel.terms, itemsize)
    return [_settings(form, chosen)]


def product_of(rows: int, columns: int, terms: int, itemsize: int, others: int, cores: int) -> dict[str, Any]:
    """Of a product: 128 × 256 at most, halved while the last wave is too empty; the deepest ring that fits."""
    tile = [min(128, _power(rows)), min(256, _power(columns))]
    least = 16 if rows <= 16 else 64

    def step() -> int:
        wide = 1 << max(int(math.log2(max(min(256, terms // 4), 16))), 4)
        while wide > 16 and 4 * sum(tile) * wide * itemsize > SHARED_BYTES:
            wide //= 2
        return wide

    def efficiency() -> float:
        waves = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1]) * others / cores
        return waves / math.ceil(waves)

    while efficiency() < 0.8 and max(tile) > least:
        tile[tile.index(max(tile))] //= 2
    grid = [math.ceil(size / wide) for size, wide in zip((rows, columns), tile, strict=True)]
    wide = step()
    return {
        "tile": tile, "reduce_tile": wide, "num_warps": 8 if tile[0] * tile[1] >= 16_384 else 4,
        "num_stages": max(1, min(6, SHARED_BYTES // (sum(tile) * wide * itemsize))),
        "group": 2 if grid[0] >= 3 * grid[1] else 1,
    }  # fmt: skip


def row_of(terms: int, itemsize: int) -> tuple[str, dict[str, Any]]:
    """Of a row reduction: the row stays in registers where it fits, else it comes in pieces."""
    warps = next((warps for most, warps in ((1_024, 4), (4_096, 8), (16_384, 16)) if terms <= most), 32)
    resident = terms * itemsize <= RESIDENT_BYTES
    wide = _power(terms) if resident else 16_384
    settings = {"tile": [1], "reduce_tile": wide, "num_warps": warps, "num_stages": 1, "group": 1}
    return "rows" if resident else "reduction", settings


def _power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _settings(form: str, chosen: Mapping[str, Any]) -> Parameters:
    text = json.dumps({**PLAIN, **chosen, "form": form})
    return settings_of(parameters_of(Schedule(ScheduleKind.TILE, text)))


class Elsewhere:
    """What was recorded of other families."""

    def __init__(self, known: Sequence[Known], target: Target) -> None:
        self._known, self.target = known, target
        self._places: dict[str, tuple[Any, NDArray[np.float64]] | None] = {}

    def common(self, space: Space, family: str) -> list[Parameters]:
        """The settings that were most often good in regions that have the same forms."""
        forms, found = self._forms(space), Counter[str]()
        parameters: dict[str, Parameters] = {}
        for one in self._known:
            place = self._place(one.region)
            if one.family == family or place is None or place[0][1] != forms:
                continue
            for schedule in one.best:
                words = settings_of(parameters_of(schedule))
                key = json.dumps(words, sort_keys=True)
                parameters[key] = words
                found[key] += 1
        return [parameters[key] for key, _ in found.most_common(COMMON)]

    def nearest(self, region: Region, family: str) -> list[Parameters]:
        """The best programs of the regions that are most alike, those of equal kinds first."""
        here = self._place(region)
        if here is None:
            return []
        ranked = []
        for one in self._known:
            place = self._place(one.region)
            if one.family == family or one.region.id == region.id or place is None:
                continue
            distance = float(np.abs(place[1] - here[1]).sum())
            ranked.append((place[0] != here[0], place[0][1] != here[0][1], distance, one.region.id, one))
        return [
            settings_of(parameters_of(one.best[0])) for *_, one in sorted(ranked, key=lambda entry: entry[:4])[:NEAREST]
        ]

    @staticmethod
    def _forms(space: Space) -> Any:
        family: Any = space.family()
        return family[1]

    def _place(self, region: Region) -> tuple[Any, NDArray[np.float64]] | None:
        """Its kind, and numbers in which regions that are alike are near; None where it has no programs any more."""
        if region.id not in self._places:
            try:
                space: Any = space_of(region, self.target, ScheduleKind.TILE)
                sizes = [math.log(space.cost(space.start()).seconds)]
                for ranges in (space.kernel.outputs, space.kernel.reduce_ranges):
                    sizes.append(sum(math.log(extent(one)) for one in ranges))
                self._places[region.id] = (space.family(), np.array(sizes))
            except KcgError:
                self._places[region.id] = None
        return self._places[region.id]


def ways_of(
    programs: Programs, elsewhere: Elsewhere, region: Region, space: Space, family: str
) -> dict[str, list[Choose]]:
    """Each way by its name, those that draw once for each seed."""
    found: dict[str, list[Choose]] = {
        "around the prior": [programs.around(seed) for seed in range(SEEDS)],
        "hill-climbing": [programs.climb],
        "evolution": [programs.evolve(seed) for seed in range(SEEDS)],
        "boosting": [programs.boost(seed) for seed in range(SEEDS)],
    }
    for name, wanted in (
        ("common", elsewhere.common(space, family)),
        (PUBLISHED, published(space, elsewhere.target)),
        ("nearest region", elsewhere.nearest(region, family)),
    ):
        if wanted:
            found[name] = [programs.listed(wanted)]
    return found
