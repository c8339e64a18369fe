"""The regions and the programs of the raw space that are measured: how they are drawn, and the file that holds them.

Regions: those of a journal's workloads of which tile programs can be written, with at most `kernels` kernels, `bytes`
of buffers and `operations` that are certain, so that inputs and the float64 reference take about a second. The families
take turns, in an order by the seed; in a family the sets of forms that its regions have take turns, so that a rare form
is met as often as a common one; among regions of one set the seed chooses. None is drawn twice.

Programs: of each region as many, uniformly from the raw space (`raw_space.draw_of`); beside them, where they are asked
for, legal ones uniformly from all legal ones (`kcg.kernel.tile.uniform`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from evaluation.dataset.wrong.raw_space import draw_of, raw_spaces, why_not
from kcg.dataset.journal import Journal, region_from_json, variables_from_json, wiring_json
from kcg.errors import KcgError, UsageError
from kcg.files import write_whole
from kcg.kernel.analysis import certain_work
from kcg.kernel.chain import Chain
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.targets import target_named
from kcg.kernel.tile.forms import forms_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.uniform import Uniform
from kcg.provenance import provenance
from kcg.types import Kernel, Region, Schedule, ScheduleKind, Target, Variables, Workload, canonical_json

FORMAT: Final = 1
RAW, LEGAL, FINALIST = "raw", "legal", "finalist"
"""What a program was drawn from: all of the raw space, the legal programs, or a list of finalists."""


@dataclass(frozen=True)
class Limits:
    """What a region may be at most."""

    kernels: int = 6
    bytes: int = 128 << 20  # of all buffers
    operations: int = 20_000_000_000  # of contractions, as `kcg.kernel.analysis` is certain of them


@dataclass(frozen=True)
class Place:
    """A region with the values of its variables, and where it comes from."""

    region: Region
    variables: Variables = ()
    family: str = ""
    workload: str = ""  # name/preset
    spaces: Mapping[str, int] = field(default_factory=dict)  # form -> settings of its raw space
    without_text: Mapping[str, int] = field(default_factory=dict)  # form and rule -> settings drawn that have none

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.region.id}:{canonical_json(self.variables)}"


@dataclass(frozen=True)
class Drawn:
    """One program to be measured. `rules` are the rules of legality that it breaks, the first one first."""

    place: str  # key
    body: str
    form: str
    drawn: str  # RAW, LEGAL or FINALIST
    rules: tuple[str, ...] = ()
    kind: str = str(ScheduleKind.TILE)

    @property
    def legal(self) -> bool:
        return not self.rules

    @property
    def schedule(self) -> Schedule:
        return Schedule(ScheduleKind(self.kind), self.body)

    @property
    def key(self) -> str:
        """What tells it from the others of a file: resuming goes by it."""
        return f"{self.place}:{self.drawn}:{self.kind}:{self.body}"


@dataclass(frozen=True)
class Programs:
    """What a file holds."""

    places: tuple[Place, ...]
    programs: tuple[Drawn, ...]
    target: str = ""  # as `kcg.kernel.targets.target_named` takes it; empty: not known
    sampler: Mapping[str, Any] = field(default_factory=dict)

    def place_of(self, program: Drawn) -> Place:
        """The region of a program."""
        return self._by_key[program.place]

    @property
    def _by_key(self) -> dict[str, Place]:
        if "_places" not in self.__dict__:
            self.__dict__["_places"] = {place.key: place for place in self.places}
        found: dict[str, Place] = self.__dict__["_places"]
        return found


# ---- drawing


def candidates(workloads: Iterable[Workload], limits: Limits) -> Iterator[Place]:
    """The regions that are small enough, each once, with the family that has it first."""
    seen = set()
    for workload in workloads:
        for call in workload.calls:
            made = Place(call.region, call.variables, workload.name, f"{workload.name}/{workload.preset}")
            if call.region.id not in seen and is_within(call.region, limits):
                seen.add(call.region.id)
                yield made


def is_within(region: Region, limits: Limits) -> bool:
    """Whether a region is small enough."""
    if len(region.kernels) > limits.kernels:
        return False
    chain = Chain(region)
    outputs = region.outputs or chain_outputs(chain)
    _, operations = certain_work(chain.asts, outputs)
    return operations <= limits.operations and buffer_bytes(chain) <= limits.bytes


def chain_outputs(chain: Chain) -> tuple[int, ...]:
    """The buffers that a region of one kernel writes."""
    from kcg.measure.inputs import buffers_of_kernels

    return tuple(info.slot for info in buffers_of_kernels(chain.asts) if info.is_output)


def buffer_bytes(chain: Chain) -> int:
    """Bytes of all buffers of a region."""
    from kcg.measure.inputs import buffers_of_kernels

    return sum(info.nbytes for info in buffers_of_kernels(chain.asts))


def forms_in(place: Place, target: Target) -> tuple[str, ...]:
    """The forms that a region's programs may have; none where no tile program reads it."""
    try:
        return tuple(form.name for form in forms_of(read_region(place.region), target))
    except UnsupportedTile:
        return ()


def in_turns(places: Iterable[Place], target: Target, rng: Random) -> Iterator[Place]:
    """Regions of which tile programs can be written, families in turns, see the module."""
    families: dict[str, dict[tuple[str, ...], list[Place]]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        if forms := forms_in(place, target):
            families[place.family][forms].append(place)
    names = sorted(families)
    rng.shuffle(names)
    queues = {name: list(_alternating(families[name], rng)) for name in names}
    for turn in range(max(map(len, queues.values()), default=0)):
        for name in names:
            if turn < len(queues[name]):
                yield queues[name][turn]


def _alternating(groups: Mapping[tuple[str, ...], list[Place]], rng: Random) -> Iterator[Place]:
    """One of each group in turns, groups and members in an order at random."""
    keys = sorted(groups)
    rng.shuffle(keys)
    orders = []
    for key in keys:
        members = sorted(groups[key], key=lambda place: place.key)
        rng.shuffle(members)
        orders.append(members)
    for turn in range(max(map(len, orders), default=0)):
        yield from (members[turn] for members in orders if turn < len(members))


@dataclass(frozen=True)
class Wanted:
    """How many regions, and how many programs of all of them together."""

    regions: int = 200
    programs: int = 4_000
    legal: int = 0
    seed: int = 0


def draw(workloads: Sequence[Workload], target_name: str, wanted: Wanted, limits: Limits) -> Programs:
    """Regions and programs, see the module. Raises UsageError where no tile program reads any region."""
    target, rng = target_named(target_name), Random(f"regions:{wanted.seed}")
    chosen: list[Place] = []
    found: list[Drawn] = []
    for place in in_turns(candidates(workloads, limits), target, rng):
        if len(chosen) == wanted.regions:
            break
        try:
            made, programs = _of_region(place, target, wanted, len(chosen))
        except (UnsupportedTile, KcgError):
            continue
        if programs:
            chosen.append(made)
            found += programs
    if not chosen:
        raise UsageError("no tile program reads a region of the journal that is small enough: capture other workloads")
    sampler = {"wanted": asdict(wanted), "limits": asdict(limits), "families": len({p.family for p in chosen})}
    return Programs(tuple(chosen), tuple(found), target_name, sampler)


def _of_region(place: Place, target: Target, wanted: Wanted, number: int) -> tuple[Place, list[Drawn]]:
    """The programs of the region that is `number` of those drawn."""
    kernel, rng = read_region(place.region), Random(f"programs:{wanted.seed}:{place.key}")
    spaces = raw_spaces(kernel, target, rng)
    raw = draw_of(kernel, target, spaces, _share(wanted.programs, wanted.regions, number), rng)
    found = [Drawn(place.key, p.to_json(), p.form, RAW, rules) for p, rules in raw.programs]
    for p in _legal_of(kernel, target, _share(wanted.legal, wanted.regions, number), rng):
        found.append(Drawn(place.key, p.to_json(), p.form, LEGAL, why_not(kernel, target, p)))
    counts = {space.form: space.count for space in spaces}
    return Place(place.region, place.variables, place.family, place.workload, counts, raw.without_text), found


def _share(whole: int, parts: int, number: int) -> int:
    """What one of some parts gets, so that all of them together have the whole."""
    return whole * (number + 1) // parts - whole * number // parts


def _legal_of(kernel: TileKernel, target: Target, count: int, rng: Random) -> list[TileParameters]:
    """So many different legal programs, each as likely; fewer where few are met."""
    if not count:
        return []
    uniform = Uniform(kernel, target)
    found: dict[TileParameters, None] = {}
    for _ in range(4 * count):
        if len(found) < count and (p := uniform.draw(rng)) is not None:
            found[p] = None
    return [*found]


# ---- the file


def write(path: Path, programs: Programs) -> None:
    """Raises UsageError where it cannot be written."""
    numbers = {place.key: number for number, place in enumerate(programs.places)}
    places = [
        {
            "kernels": [kernel.ast_json for kernel in place.region.kernels],
            "wiring": wiring_json(place.region),
            "variables": place.variables,
            "family": place.family,
            "workload": place.workload,
            "spaces": dict(place.spaces),
            "without_text": dict(place.without_text),
        }
        for place in programs.places
    ]
    rows = [{**asdict(program), "place": numbers[program.place]} for program in programs.programs]
    whole = {"format": FORMAT, "target": programs.target, "sampler": dict(programs.sampler), **provenance()}
    write_whole(path, json.dumps({**whole, "places": places, "programs": rows}))


def read(path: Path) -> Programs:
    """What a file holds. Raises UsageError where it is none of these."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise ValueError("another format")
        places = tuple(map(_place, found["places"]))
        rows = [{**row, "place": places[row["place"]].key, "rules": tuple(row["rules"])} for row in found["programs"]]
        return Programs(places, tuple(Drawn(**row) for row in rows), found["target"], found["sampler"])
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path} is no file of raw programs ({error}): draw writes one") from None


def _place(row: Mapping[str, Any]) -> Place:
    kernels = [Kernel(text) for text in row["kernels"]]
    by_id = {kernel.id: kernel for kernel in kernels}
    region = region_from_json([kernel.id for kernel in kernels], row["wiring"], by_id)
    variables = variables_from_json(json.dumps(row["variables"]))
    return Place(region, variables, row["family"], row["workload"], row["spaces"], row["without_text"])


def read_finalists(path: Path, known: Sequence[Place], source: Path | None) -> Programs:
    """Finalists: a list of objects with `region`, an id, and `body`, the parameters as stored. The regions are those
    that are `known`, and those of the journal `source`. Raises UsageError where one is of another region, or the file
    cannot be read."""
    places = {place.region.id: place for place in known}
    if source is not None:
        with Journal.open(source, create=False, read_only=True) as journal:
            for workload in journal.workloads():
                for call in workload.calls:
                    named = f"{workload.name}/{workload.preset}"
                    places.setdefault(call.region.id, Place(call.region, call.variables, workload.name, named))
            for region in journal.regions().values():
                places.setdefault(region.id, Place(region))
    try:
        rows = json.loads(path.read_text())
        found = []
        for row in rows["programs"] if isinstance(rows, dict) else rows:
            if row["region"] not in places:
                raise UsageError(f"{path} has a program of region {row['region'][:12]}, of which nothing is known")
            form = TileParameters.from_json(row["body"]).form
            found.append(Drawn(places[row["region"]].key, row["body"], form, FINALIST))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no list of finalists ({error})") from None
    used = {one.place for one in found}
    return Programs(tuple(place for place in places.values() if place.key in used), tuple(dict.fromkeys(found)))


def part_of(programs: Programs, number: int, count: int) -> Programs:
    """The `number`-th of `count` parts of the regions, in turns, with all programs of each."""
    places = programs.places[number - 1 :: count]
    keys = {place.key for place in places}
    return replace(programs, places=places, programs=tuple(one for one in programs.programs if one.place in keys))


def summary_of(programs: Programs) -> str:
    """In a line how many programs of how many regions there are."""
    counts = {name: sum(one.drawn == name for one in programs.programs) for name in (RAW, LEGAL, FINALIST)}
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    legal = sum(one.drawn == RAW and one.legal for one in programs.programs)
    without = sum(sum(place.without_text.values()) for place in programs.places)
    families = len({place.family for place in programs.places})
    share = f", {legal} of the raw ones legal, {without} settings without a text" if counts[RAW] else ""
    return f"{len(programs.places)} regions of {families} families; {words}{share}"
