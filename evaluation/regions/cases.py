"""The regions that are compared, taken from workloads without a device, and the same functions in PyTorch.

- norms: softmax and LayerNorm as in the layers table of docs/models.md, RMSNorm and cross-entropy beside them.
- qkv: Flux's projections of query, key and value with norms of heads and rotations, at 1024 and 768.
- attention: of Flux, and causal, as one program; beside PyTorch's on each of its backends.
- decode: of one token of Llama against many keys, the same, in CUDA graphs.
- vectors: matrix-vector products of one vector, of Flux's modulation and of Llama's decode from 16 MB of weights on;
  beside a sum of as many bytes.
- small: what stands between Flux's contractions: modulated norms, and norms of heads with rotations alone.

Regions of Flux are found by what follows from what: statistics of rows of an intermediate, and all that is made of them
before the next contraction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluation.pytorch.layers import KINDS, LAYERS
from evaluation.tiles.cases import DECODES, FLUX, LEAST_BYTES, WIDE, Function, Linear, Sums, View, linear_of, sums
from evaluation.tiles.cases import Case as KernelCase
from kcg.compat.sequences import sequences_of
from kcg.compat.tiny import dtypes
from kcg.kernel.analysis import arithmetic, least_bytes_of_region
from kcg.kernel.ast import affine, extent
from kcg.kernel.chain import Chain
from kcg.kernel.codec import ast_of
from kcg.kernel.reading.contractions import Operand
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.regions import Form
from kcg.kernel.sequences import sequences_of_captured
from kcg.measure.inputs import BufferInfo, buffers_of_kernels
from kcg.optimize.region_plans import propose
from kcg.types import Region, Target
from kcg.types import Sequence as Calls
from kcg.workloads.registry import spec_of

SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    "softmax": LAYERS["full"]["softmax"],
    "layer_norm": LAYERS["full"]["layernorm"],
    "rms_norm": ((4608, 3072), (65_536, 1024)),
    "cross_entropy": ((4096, 50_257), (8192, 128_256)),
}
"""Rows and their elements, by the function of `evaluation.regions.functions`."""

Cut = tuple[tuple[int, ...], ...]
"""Places of a region's calls, those together that become one program."""


@dataclass(frozen=True)
class Case(KernelCase):
    """A region of several kernels. Each of `cuts` is a way to make programs of it, the whole first."""

    cuts: tuple[Cut, ...] = ()


def cases(section: str, target: Target) -> list[Case]:
    """The cases of a section; regions of Flux that differ in offsets alone are one, with the sum of their calls."""
    found: dict[str, Case] = {}
    for case in {case.region.id: case for case in SECTIONS[section](target)}.values():
        before = found.get(case.key)
        found[case.key] = case if before is None else replace(before, calls=before.calls + case.calls)
    return list(found.values())


def _case(
    section: str,
    group: str,
    name: str,
    region: Region,
    calls: int,
    against: Function | Sums,
    beside: Sequence[Cut] = (),
) -> Case:
    asts = [ast_of(kernel) for kernel in region.kernels]
    nbytes, operations = least_bytes_of_region(region, asts), sum(map(arithmetic, asts))
    cuts = (whole_of(region), *beside)
    return Case(section, group, name, region, calls, nbytes, operations, against, cuts)


def whole_of(region: Region) -> Cut:
    """The cut that leaves a region whole."""
    return (tuple(range(len(region.kernels))),)


def _plain(slot: int, *size: int, offset: int = 0) -> View:
    """A part of a buffer that lies in memory row after row."""
    steps = [1]
    for count in reversed(size[1:]):
        steps.append(steps[-1] * count)
    return View(slot, size, tuple(reversed(steps)), offset)


# ---- layers


def tinygrad_layer(name: str, rows: int, width: int, dtype: str = "bfloat16") -> Any:
    """A layer of `SHAPES`, not realised."""
    from tinygrad import Tensor

    of = getattr(dtypes, dtype)
    x, scale, shift = Tensor.empty(rows, width, dtype=of), *(Tensor.empty(width, dtype=of) for _ in range(2))
    if name == "softmax":
        return KINDS["softmax"].in_tinygrad({})(x)
    if name == "layer_norm":
        return KINDS["layernorm"].in_tinygrad({})(x, scale, shift)
    if name == "rms_norm":
        wide = x.float()
        return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(of) * scale
    labels = Tensor.empty(rows, dtype=dtypes.int32)
    return x.float().sparse_categorical_crossentropy(labels, reduction="none")


def _region_of(made: Any) -> Region:
    """All kernels into which tinygrad cuts what is made, a tensor."""
    (sequence,) = sequences_of_captured([(one, (((), 1),)) for one in sequences_of(made)])
    return sequence.region(*range(len(sequence.calls)))


def layer(name: str, rows: int, width: int, dtype: str = "bfloat16") -> tuple[Region, Function]:
    """A layer as tinygrad cuts it into kernels, and the same function in PyTorch."""
    region = _region_of(tinygrad_layer(name, rows, width, dtype))
    read = [b for b in buffers_of_kernels(Chain(region).asts) if b.is_input]
    takes = sorted(read, key=lambda b: (b.size < rows * width, b.slot))  # what is normalised, then what it is scaled by
    views = [_plain(b.slot, rows, width) if b.size == rows * width else _plain(b.slot, b.size) for b in takes]
    (stored,) = region.outputs
    gives = _plain(stored, rows) if name == "cross_entropy" else _plain(stored, rows, width)
    return region, Function(name, tuple(views), (gives,), copied=True)


def _norms(target: Target) -> Iterator[Case]:
    for name, shapes in SHAPES.items():
        for rows, width in shapes:
            region, function = layer(name, rows, width)
            case = _case("norms", "", f"{name} {rows}x{width}", region, 1, function)
            in_cache = case.bytes <= target.cache_bytes
            yield replace(case, group="in cache" if in_cache else "wide" if width > WIDE else "short")


# ---- Flux: what follows from what


class Wiring:
    """The kernels of a sequence that are read, who writes each of its buffers, and who reads it."""

    def __init__(self, sequence: Calls) -> None:
        self.sequence = sequence
        self.kernels = [_read(call.kernel) for call in sequence.calls]
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        for place, call in enumerate(sequence.calls):
            for slot in call.reads:
                self.readers.setdefault(call.views[slot].buffer, []).append(place)
            for slot in call.writes:
                self.writer[call.views[slot].buffer] = place

    def sources(self, place: int) -> tuple[int | None, ...]:
        """Who wrote what a call reads, each once; None for what was there before."""
        call = self.sequence.calls[place]
        return tuple(dict.fromkeys(self.writer.get(call.views[slot].buffer) for slot in call.reads))

    def followers(self, place: int) -> set[int]:
        """Who reads what a call writes."""
        call = self.sequence.calls[place]
        return {reader for slot in call.writes for reader in self.readers.get(call.views[slot].buffer, ())}

    def plain(self, place: int) -> bool:
        """Whether a call is read and is no contraction."""
        kernel = self.kernels[place]
        return kernel is not None and kernel.contraction is None

    def statistics(self) -> Iterator[tuple[int, ...]]:
        """Statistics of rows of intermediates, each with all that is made of it before the next contraction."""
        seen: set[int] = set()
        for place, kernel in enumerate(self.kernels):
            if kernel is None or not kernel.reductions or not self.plain(place) or place in seen:
                continue
            if None in self.sources(place):
                continue
            group, new = {place}, {place}
            while new:
                new = {f for one in new for f in self.followers(one) if self.plain(f)} - group
                group |= new
            seen |= group
            yield tuple(sorted(group))


def _read(kernel: Any) -> TileKernel | None:
    try:
        return read_kernel(Region((kernel,))) if kernel is not None else None
    except UnsupportedTile:
        return None


@functools.cache
def flux(preset: str) -> tuple[Wiring, Mapping[str, int]]:
    """The wiring of a step, and how often the whole model calls each kernel."""
    workload = spec_of("flux").capture(preset)
    (sequence,) = workload.sequences
    return Wiring(sequence), {call.region.id: call.calls for call in workload.calls}


def _small(target: Target) -> Iterator[Case]:
    for preset in FLUX:
        yield from small_parts(preset)


def small_parts(preset: str) -> Iterator[Case]:
    """The modulated norms, and the norms of heads with rotations."""
    wiring, counts = flux(preset)
    for places in wiring.statistics():
        if (norm := modulated_norm(wiring, places)) is not None:
            region, function = norm
            rows, width = function.takes[0].size
            name = f"flux {preset} norm {rows}x{width}"
            yield _case("small", preset, name, region, _calls(region, counts), function)
        elif (heads := Heads.of(wiring, places)) is not None:
            region, function = heads.rotations()
            name = f"flux {preset} rotations of {heads.words}"
            beside = [heads.cut(own=False)] if heads.beside else []
            yield _case("small", preset, name, region, _calls(region, counts), function, beside)


def _qkv(target: Target) -> Iterator[Case]:
    for preset in FLUX:
        yield from projections(preset)


def projections(preset: str) -> Iterator[Case]:
    """The projections of query, key and value with norms of heads and rotations."""
    wiring, counts = flux(preset)
    for places in wiring.statistics():
        if modulated_norm(wiring, places) is None and (heads := Heads.of(wiring, places)) is not None:
            region, function = heads.projections()
            name = f"flux {preset} projection of {heads.words}"
            cuts = [heads.cut(own=True), *([heads.cut(own=True, together=False)] if heads.beside else [])]
            yield _case("qkv", preset, name, region, _calls(region, counts), function, cuts)


def _calls(region: Region, counts: Mapping[str, int]) -> int:
    """How often a step calls a region: as often as the kernel in it that it calls least."""
    return min(counts[kernel.id] for kernel in region.kernels)


def modulated_norm(wiring: Wiring, places: tuple[int, ...]) -> tuple[Region, Function] | None:
    """A mean, a deviation and an elementwise kernel that scales and shifts by parts of one vector, the shift first."""
    kernels = [wiring.kernels[place] for place in places]
    if len(kernels) != 3 or [bool(k.reductions) for k in kernels if k is not None] != [True, True, False]:
        return None
    mean, _, last = kernels
    assert mean is not None and last is not None
    region = wiring.sequence.region(*places)
    numbers = region.args[-1]
    width = mean.reduce_extent
    rows = last.store.buffer.size // width
    known = {slot for slots in region.args[:-1] for slot in slots}
    vectors = [load for load in last.loads if numbers[load.buffer.slot] not in known]
    if len({load.buffer.slot for load in vectors}) != 1 or rows * width != last.store.buffer.size:
        return None
    slot = numbers[vectors[0].buffer.slot]
    offsets = sorted({_offset(load.address) for load in vectors})
    if len(offsets) != 2:
        return None
    x = next(b for b in buffers_of_kernels(Chain(region).asts[:1]) if b.is_input)
    start = min(_offset(load.address) for load in mean.loads)
    takes = (_plain(x.slot, rows, width, offset=start), *(_plain(slot, width, offset=offset) for offset in offsets))
    gives = _plain(numbers[last.store.buffer.slot], rows, width)
    return region, Function("modulated_norm", takes, (gives,), copied=True)


def _offset(address: Any) -> int:
    steps = affine(address) or {}
    return int(steps.get(None, 0))


@dataclass(frozen=True)
class Heads:
    """Norms of the heads of query and key, and their rotations: of one stream, or of two that are joined."""

    wiring: Wiring
    statistics: int
    query: int
    key: int
    made_by: tuple[int, ...]  # the projections, in the order in which they are joined
    beside: tuple[int, ...]  # what else is made of the projections alone: the joined value
    heads: int
    tokens: int
    width: int

    @staticmethod
    def of(wiring: Wiring, places: tuple[int, ...]) -> Heads | None:
        """Told by the kernels: one that sums heads of projections, and two that are made of it."""
        first, *others = places
        kernels = [wiring.kernels[place] for place in places]
        rotated = [k for k in kernels[1:] if k is not None]
        made_by = tuple(p for p in wiring.sources(first) if p is not None)
        if len(rotated) != 2 or any(k.reductions or len(k.extents) != 4 for k in rotated):
            return None
        if any(wiring.plain(place) for place in made_by):
            return None
        heads, tokens, pairs, two = rotated[0].extents
        query, key = sorted(others, key=lambda place: _column(wiring, place, made_by[0]))
        beside = set.intersection(*(wiring.followers(place) for place in made_by)) - set(places)
        alone = tuple(p for p in sorted(beside) if wiring.plain(p) and set(wiring.sources(p)) == set(made_by))
        return Heads(wiring, first, query, key, made_by, alone, heads, tokens, pairs * two)

    @property
    def words(self) -> str:
        """`1 stream of 4608`."""
        return f"{len(self.made_by)} stream{'s' * (len(self.made_by) > 1)} of {self.tokens}"

    @property
    def places(self) -> tuple[int, ...]:
        """All but the projections."""
        return tuple(sorted((self.statistics, self.query, self.key, *self.beside)))

    def cut(self, *, own: bool, together: bool = True) -> Cut:
        """The projections, where they are in it, are programs of their own; so is what is made of them alone, unless it
        stays `together` with the rotations."""
        places = tuple(sorted((*(self.made_by if own else ()), *self.places)))
        apart = {*self.made_by, *(() if own and together else self.beside)}
        rest = tuple(n for n, place in enumerate(places) if place not in apart)
        return (*((n,) for n, place in enumerate(places) if place in apart), rest)

    def rotations(self) -> tuple[Region, Function]:
        """Without the projections."""
        region = self.wiring.sequence.region(*self.places)
        at = _Numbers(self, self.places, region)
        takes = (*(at.made(place) for place in self.made_by), *at.scales_and_tables())
        name = "joined_rotations" if self.beside else "rotations"
        return region, Function(name, takes, at.stored(value=bool(self.beside)), copied=True)

    def projections(self) -> tuple[Region, Function]:
        """With the projections."""
        places = tuple(sorted((*self.made_by, *self.places)))
        region = self.wiring.sequence.region(*places)
        at = _Numbers(self, places, region)
        linears = [at.linear(place) for place in self.made_by]
        takes = (*(view for linear in linears for view in linear), *at.scales_and_tables())
        name = "joined_projections" if self.beside else "projected"
        return region, Function(name, takes, at.stored(value=True), tuple(weight for _, weight, _ in linears))


def _column(wiring: Wiring, place: int, made_by: int) -> int:
    """The first column of a projection that a call reads."""
    kernel, call = wiring.kernels[place], wiring.sequence.calls[place]
    assert kernel is not None
    own = [load for load in kernel.loads if wiring.writer.get(call.views[load.buffer.slot].buffer) == made_by]
    return min(_offset(load.address) for load in own)


@dataclass(frozen=True)
class _Numbers:
    """The buffers of a region of `Heads` by what they are."""

    of: Heads
    places: tuple[int, ...]
    region: Region

    def _args(self, place: int) -> tuple[int, ...]:
        return self.region.args[self.places.index(place)]

    def _number(self, place: int) -> int:
        """Of what a call of the region stores."""
        kernel = self.of.wiring.kernels[place]
        assert kernel is not None
        return self._args(place)[kernel.store.buffer.slot]

    def linear(self, place: int) -> tuple[View, View, View]:
        """What a projection takes: rows, weight, bias."""
        kernel = self.of.wiring.kernels[place]
        linear = linear_of(kernel) if kernel is not None else None
        assert isinstance(linear, Linear) and linear.bias is not None
        x, weight, bias = (
            replace(view, slot=self._args(place)[view.slot]) for view in (linear.a, linear.w, linear.bias)
        )
        return x, weight, bias

    def made(self, place: int) -> View:
        """What a projection outside of the region left."""
        (slot,) = self.of.wiring.sequence.calls[place].writes
        buffer = self.of.wiring.sequence.calls[place].views[slot]
        call = self.of.wiring.sequence.calls[self.of.statistics]
        number = self._args(self.of.statistics)[call.views.index(buffer)]
        columns = 3 * self.of.heads * self.of.width
        size = next(b.size for b in self._buffers() if b.slot == number)
        return _plain(number, size // columns, columns)

    def scales_and_tables(self) -> tuple[View, ...]:
        """The norms' scales, of each stream first that of the query, and the tables of the rotation."""
        of, pairs = self.of, self.of.width // 2
        sizes = {b.slot: b.size for b in self._buffers()}
        scales = [[n for n in self._args(place) if sizes[n] == of.width] for place in (of.query, of.key)]
        tables = self._args(of.query)
        cos, sin = (next(n for n in tables if sizes[n] == of.tokens * pairs * many) for many in (1, 2))
        found = [_plain(number, of.width) for stream in zip(*scales, strict=True) for number in stream]
        return (*found, _plain(cos, of.tokens, 1, pairs), _plain(sin, of.tokens, 1, pairs, 2))

    def stored(self, *, value: bool) -> tuple[View, ...]:
        """Query, key, and the value where it is asked for: joined, or where the only projection leaves it."""
        of, hidden = self.of, self.of.heads * self.of.width
        found = [_plain(self._number(place), of.heads, of.tokens, of.width) for place in (of.query, of.key)]
        if value and of.beside:
            found.append(_plain(self._number(of.beside[0]), of.tokens, hidden))
        elif value:
            made = self._number(of.made_by[0])
            found.append(View(made, (of.tokens, hidden), (3 * hidden, 1), 2 * hidden))
        return tuple(found)

    def _buffers(self) -> tuple[BufferInfo, ...]:
        return buffers_of_kernels(Chain(self.region).asts)


# ---- attention

CAUSAL = ((32, 4096, 64), (16, 4096, 128))  # heads, tokens, width
GROUPED = (32, 8, 4096, 128)  # heads, of them with keys of their own, tokens, width
DECODED = (32, 8, 64)  # heads, of them with keys of their own, width
KEYS = {"4k": 4096, "32k": 32_768}


def _attention(target: Target) -> Iterator[Case]:
    for preset in FLUX:
        yield from attentions_of_flux(preset)
    for heads, tokens, width in CAUSAL:
        region = causally_attended(heads, tokens, width)
        yield attention_case("causal", f"causal {heads}x{tokens}x{width}", region, "causal_attention")
    heads, of_keys, tokens, width = GROUPED
    region = causally_attended(heads, tokens, width, of_keys=of_keys)
    name = f"causal {heads}x{tokens}x{width}, {of_keys} heads of keys"
    yield attention_case("causal", name, region, "grouped_causal_attention")


def _decode(target: Target) -> Iterator[Case]:
    heads, of_keys, width = DECODED
    for group, keys in KEYS.items():
        for dtype in ("float16", "bfloat16"):
            name = f"{heads} heads of {width}, {of_keys} of keys, {keys} keys, {dtype}"
            region = decoded(heads, of_keys, keys, width, dtype)
            yield replace(attention_case(group, name, region, "decoding_attention"), section="decode")


def attentions_of_flux(preset: str) -> Iterator[Case]:
    """Flux's attention: of the double and of the single blocks, whose values lie otherwise in memory."""
    proposals = propose(spec_of("flux").capture(preset))
    for key, candidate in proposals.candidates.items():
        if candidate.form == Form.CHAINED:
            case = attention_case(preset, "", candidate.region, "attention_of_scaled", calls=int(proposals.calls[key]))
            assert isinstance(case.against, Function)
            (*_, value) = case.against.takes
            yield replace(case, name=f"flux {preset}, values {value.stride[1]} apart")


def causally_attended(heads: int, tokens: int, width: int, dtype: str = "bfloat16", *, of_keys: int = 0) -> Region:
    """Causal attention as tinygrad cuts it into kernels; with fewer heads `of_keys` some queries' heads share these."""
    from tinygrad import Tensor

    many = (heads, of_keys or heads, of_keys or heads)
    query, key, value = (Tensor.empty(1, count, tokens, width, dtype=getattr(dtypes, dtype)) for count in many)
    return _region_of(query.scaled_dot_product_attention(key, value, is_causal=True, enable_gqa=bool(of_keys)))


def decoded(heads: int, of_keys: int, keys: int, width: int, dtype: str = "bfloat16") -> Region:
    """Attention of one token as tinygrad cuts it into kernels."""
    from tinygrad import Tensor

    sizes = ((1, heads, 1, width), *((1, of_keys, keys, width) for _ in range(2)))
    query, key, value = (Tensor.empty(*size, dtype=getattr(dtypes, dtype)) for size in sizes)
    return _region_of(query.scaled_dot_product_attention(key, value, enable_gqa=True))


def attention_case(group: str, name: str, region: Region, function: str, *, calls: int = 1) -> Case:
    """A case of what is read as attention. Raises ValueError where it is not."""
    kernel = read_region(region)
    attention = kernel.attention
    if attention is None:
        raise ValueError(f"{name}: it is not read as attention")
    rest = tuple(r for r in kernel.outputs if r not in (*attention.rows, *attention.columns))
    over = attention.scores.reduce.src[1:]

    def part(address: Any, slot: int, *axes: Any) -> View:
        ranges, steps = (*rest, *axes), affine(address) or {}
        return View(slot, tuple(map(extent, ranges)), tuple(steps.get(r, 0) for r in ranges), steps.get(None, 0))

    def taken(side: Operand, *axes: Any) -> View:
        (factor,) = side.factors
        load = next(one for one in kernel.loads if one.node in factor.node.toposort())
        return part(load.address, load.buffer.slot, *axes)

    queries, keys = attention.scores.sides
    takes = (
        taken(queries, *attention.rows, *over),
        taken(keys, attention.keys, *over),
        taken(attention.values, attention.keys, *attention.columns),
    )
    store = kernel.stored[0].store
    gives = part(store.address, store.buffer.slot, *attention.rows, *attention.columns)
    return _case("attention", group, name, region, calls, Function(function, takes, (gives,)))


# ---- products of one vector


def _vectors(target: Target) -> Iterator[Case]:
    """Of the modulation each group that is proposed, of Llama the largest of each vector."""
    yield from vectors_of_workload("flux", FLUX[-1])
    for preset in DECODES:
        largest: dict[tuple[int, ...], Case] = {}
        for case in vectors_of_workload("llama", preset):
            key = read_region(case.region).extents
            largest[key] = max(case, largest.get(key, case), key=lambda one: one.bytes)
        yield from (case for case in largest.values() if case.bytes >= LEAST_BYTES)


def vectors_of_workload(name: str, preset: str) -> Iterator[Case]:
    """The groups of products that are proposed of a workload, with the sum of a matrix of as many rows."""
    proposals = propose(spec_of(name).capture(preset))
    for key, candidate in proposals.candidates.items():
        if candidate.form == Form.VECTOR:
            kernels = [read_kernel(Region((kernel,))) for kernel in candidate.region.kernels]
            rows, terms = [kernel.extents[0] for kernel in kernels], kernels[0].reduce_extent
            matrix = max((load.buffer for load in kernels[0].loads), key=lambda buffer: buffer.size)
            against = sums(sum(rows), terms, matrix.dtype.name)
            shapes = " and ".join(f"{rows.count(count)} x {count}" for count in dict.fromkeys(rows))
            words = f"{name} {preset}, {shapes} of {terms}"
            yield _case("vectors", name, words, candidate.region, int(proposals.calls[key]), against)


SECTIONS: dict[str, Callable[[Target], Iterator[Case]]] = {
    "norms": _norms,
    "qkv": _qkv,
    "small": _small,
    "attention": _attention,
    "decode": _decode,
    "vectors": _vectors,
}
"""Section -> its cases."""
