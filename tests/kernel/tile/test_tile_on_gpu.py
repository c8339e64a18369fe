"""Tile programs on a GPU: repeated, concurrent and replayed launches are bitwise equal, and right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

from kcg.compat.device import prepare
from kcg.compat.tiny import dtypes
from kcg.handover.installing import install
from kcg.kernel.kinds import needs_stress, space_of
from kcg.kernel.program import Program
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.sequences import partition_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import (
    CONTRACTION,
    FLASH_ATTENTION,
    PIPELINED,
    POINTER,
    ROWS,
    SPECIALIZED,
    TMA,
    TileParameters,
)
from kcg.kernel.tile.pipelined import pipelined_axes
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.specialized import PROGRAM_ROWS, STEPS
from kcg.kernel.tile.views import AttentionView, MatmulView
from kcg.measure.device_info import detect
from kcg.measure.service import MeasureService, Request
from kcg.types import Region, Schedule, ScheduleKind, Status, Target
from tests.chains import region_of, sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import some

M, N, K = 1_600, 1_536, 512
"""13 × 12 tiles of 128 × 128, the last row of them half empty: with 132 multiprocessors the last wave has 24."""

ROWS_OF, WIDTH, HEADS, SIZE = 200, 512, 8, 64
"""Of a transformer's block."""

Function = Callable[..., Tensor]

PROGRAMS: dict[str, dict[str, Any]] = {
    "pointers": {},
    "tma": {"loads": TMA},
    "persistent": {"loads": TMA, "persistent": 1, "epilogue_parts": 2},
    "split": {"split": 4},
    "shared last wave": {"tail": 3},
    "shared last wave by tma": {"tail": 2, "loads": TMA, "epilogue_parts": 2},
    "shared last wave, whole tiles in turn": {"tail": 3, "loads": TMA, "persistent": 1, "epilogue_parts": 2},
    "two pieces": {"tile": (128, 192), "epilogue_parts": 2},
    "two pieces, shared last wave": {"tile": (128, 96), "tail": 2, "group": 4},
}


def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x @ w.T + b).gelu().contiguous()


def linear(device: str | None = None) -> Region:
    shapes = ((M, K), (N, K), (N,))
    return region_of(model(*(empty(*shape, dtype="bfloat16", device=device) for shape in shapes)))


def parameters(name: str, region: Region) -> TileParameters:
    contraction = read_kernel(region).contraction
    assert contraction is not None
    axes = tuple(side.ranges for side in contraction.sides)
    plain = TileParameters(CONTRACTION, axes, (128, 128), 64, loads=POINTER, num_warps=8, num_stages=3, group=8)
    return replace(plain, **PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_programs_of_this_kernel(name: str) -> None:
    region = linear()
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    source = generate_kernel(read_kernel(region), target, parameters(name, region))
    assert len(source.launches) == (2 if "split" in PROGRAMS[name] or "tail" in PROGRAMS[name] else 1)


def inputs(seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal(shape, np.float32) for shape in ((M, K), (N, K), (N,)))
    x, w, b = (Tensor(a, device="CUDA").cast(dtypes.bfloat16).contiguous().realize() for a in made)
    return [x, (w * 0.05).cast(dtypes.bfloat16).contiguous().realize(), b]


def wanted(x: Tensor, w: Tensor, b: Tensor) -> np.ndarray[Any, Any]:
    a, c, d = (t.float().numpy().astype(np.float64) for t in (x, w, b))
    y = a @ c.T + d
    return 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))


def twice(
    program: Program, region: Region, function: Function, one: Sequence[Tensor], other: Sequence[Tensor]
) -> list[np.ndarray[Any, Any]]:
    """What a step leaves of two independent calls of one program, which a graph may run at once: each has its own
    workspace. Repeated, captured and replayed it is bitwise the same."""
    target, _ = detect("CUDA", 1)

    def step(*tensors: Tensor) -> list[Tensor]:
        found = [function(*tensors[: len(one)]), function(*tensors[len(one) :])]
        Tensor.realize(*found)
        return found

    with install({region: program}, target) as report:
        eager = [t.numpy() for t in step(*one, *other)]
        again = [t.numpy() for t in step(*one, *other)]
        jitted = TinyJit(step)
        for _ in range(2):
            jitted(*one, *other)
    assert report.counts[region.id] >= 4, report
    first = [a.tobytes() for a in eager]
    assert [a.tobytes() for a in again] == first
    for _ in range(50):
        replayed = jitted(*one, *other)
        assert [t.numpy().tobytes() for t in replayed] == first
        jitted(*other, *one)  # whatever a workspace holds is another's
    return eager


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", PROGRAMS)
def test_launches_are_bitwise_equal(name: str) -> None:
    prepare("CUDA")
    target, _ = detect("CUDA", 1)
    region = linear("CUDA")
    program = compile_tile(region, schedule_of(parameters(name, region)), target)
    assert isinstance(program, Program)
    one, other = inputs(1), inputs(2)
    for found, tensors in zip(twice(program, region, model, one, other), (one, other), strict=True):
        right = wanted(*tensors)
        assert np.abs(found.astype(np.float64) - right).max() < 0.02 * max(1.0, np.abs(right).max())


# ---- the same of the other forms


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.scaled_dot_product_attention(key, value).contiguous()


def decoding(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query.scaled_dot_product_attention(key, value, enable_gqa=True).contiguous()


def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x.layernorm().cast("bfloat16") * (1 + scale) + shift).contiguous()


def summed(x: Tensor, w: Tensor, other_x: Tensor, other_w: Tensor) -> Tensor:
    """Two products, which are kernels of their own."""
    made = (x.matmul(w.T, dtype="float32")).contiguous()
    return (made + other_x.matmul(other_w.T, dtype="float32")).cast("bfloat16").contiguous()


def as_it_begins(kernel: TileKernel, target: Target) -> TileParameters:
    return default_parameters(kernel, target)


def of_form(form: str) -> Callable[[TileKernel, Target], TileParameters]:
    def choose(kernel: TileKernel, target: Target) -> TileParameters:
        if form == PIPELINED:
            return parameters_of(kernel, target, form, pipelined_axes(MatmulView.of(kernel))[0])
        return parameters_of(kernel, target, form, default_parameters(kernel, target).axes)

    return choose


def last_wave_shared(kernel: TileKernel, target: Target) -> TileParameters:
    """Tiles of the last wave by three programs each: partial sums in a workspace."""
    p = TileParameters(CONTRACTION, default_parameters(kernel, target).axes, (128, 128), 64, tail=3, group=8)
    return replace(p, num_warps=8, num_stages=3)


@dataclass(frozen=True)
class Form:
    """A program of a region, of operands in bfloat16."""

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    choose: Callable[[TileKernel, Target], TileParameters]
    form: str
    launches: int = 1
    kernels: int = 1  # at least

    def region(self, device: str | None = None) -> Region:
        return region_of(self.function(*self.operands(device)))

    def operands(self, device: str | None = None) -> list[Tensor]:
        return [empty(*shape, dtype="bfloat16", device=device) for shape in self.shapes]

    def program(self, region: Region, target: Target) -> Program:
        p = self.choose(read_region(region), target)
        made = compile_tile(region, schedule_of(p), target)
        assert isinstance(made, Program) and p.form == self.form and len(region.kernels) >= self.kernels
        assert len(made.launches) == self.launches
        return made

    def inputs(self, seed: int) -> list[Tensor]:
        rng = np.random.default_rng(seed)
        made = (rng.standard_normal(shape, np.float32) for shape in self.shapes)
        return [Tensor(a, device="CUDA").cast("bfloat16").contiguous().realize() for a in made]


FORMS: dict[str, Form] = {
    "pipelined": Form(model, ((M, K), (N, K), (N,)), of_form(PIPELINED), PIPELINED),
    "specialized": Form(attention, ((3, 512, 128),) * 3, of_form(SPECIALIZED), SPECIALIZED, kernels=3),
    "keys split over programs": Form(
        decoding,
        ((1, 32, 1, 64), (1, 8, 4096, 64), (1, 8, 4096, 64)),
        as_it_begins,
        FLASH_ATTENTION,
        launches=2,
        kernels=3,
    ),
    "rows": Form(normed, ((ROWS_OF, WIDTH), (WIDTH,), (WIDTH,)), as_it_begins, ROWS, kernels=2),
    "a workspace of several kernels": Form(
        summed, ((M, K), (N, K), (M, 128), (N, 128)), last_wave_shared, CONTRACTION, launches=2, kernels=2
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", some(FORMS, {"keys split over programs", "rows"}))
def test_a_program_of_each_form_takes_both_calls_of_a_step(name: str) -> None:
    """What the same test on a GPU asks for: two places in the step, and a program of the form."""
    form, target = FORMS[name], replace(KNOWN_TARGETS["sm_90"], cores=132)
    region = form.region()
    program = form.program(region, target)
    assert bool(program.scratch) == (len(program.launches) > 1 or name in ("pipelined", "specialized"))
    step = sequence_of(form.function(*form.operands()), form.function(*form.operands()))
    assert len(partition_of(step).claim(region)) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", FORMS)
def test_launches_of_each_form_are_bitwise_equal(name: str) -> None:
    """And near what tinygrad's own schedules leave."""
    prepare("CUDA")
    form, (target, _) = FORMS[name], detect("CUDA", 1)
    region = form.region("CUDA")
    one, other = form.inputs(1), form.inputs(2)
    plain = [form.function(*tensors).float().numpy() for tensors in (one, other)]
    found = twice(form.program(region, target), region, form.function, one, other)
    for now, right in zip(found, plain, strict=True):
        difference = np.abs(np.asarray(now, np.float32) - right)
        assert np.isfinite(difference).all() and difference.max() < 0.05 * np.abs(right).max()
        assert difference.mean() < 0.02 * np.abs(right).mean()


# ---- several kernels as one

SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "x": ((ROWS_OF, WIDTH), "bfloat16"), "scale": ((WIDTH,), "bfloat16"), "shift": ((WIDTH,), "bfloat16"),
    "weight": ((3 * HEADS * SIZE, WIDTH), "bfloat16"), "bias": ((3 * HEADS * SIZE,), "bfloat16"),
    "cos": ((ROWS_OF, 1, SIZE // 2), "float32"), "sin": ((ROWS_OF, 1, SIZE // 2), "float32"),
    "query": ((SIZE,), "bfloat16"), "key": ((SIZE,), "bfloat16"),
}  # fmt: skip
"""What a step of a transformer's block takes."""


def project(x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value, heads first: the first two with a norm of each head and turned pairs."""
    weight, bias, cos, sin, *scales = others
    made = (x @ weight.T + bias).contiguous().reshape(ROWS_OF, 3, HEADS, SIZE)
    found = []
    for place, scale in enumerate(scales):
        part = made[:, place].float()
        part = part * (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * scale
        pairs = part.reshape(ROWS_OF, HEADS, SIZE // 2, 2)
        one, other = pairs[..., 0], pairs[..., 1]
        turned = Tensor.stack(one * cos - other * sin, one * sin + other * cos, dim=-1)
        found.append(turned.reshape(ROWS_OF, HEADS, SIZE).permute(1, 0, 2).cast("bfloat16").contiguous())
    return (*found, made[:, 2].permute(1, 0, 2).contiguous())


def block(*tensors: Tensor) -> tuple[Tensor, ...]:
    *left, value = project(normed(*tensors[:3]), *tensors[3:])
    return (*left, value.softmax(-1).contiguous())


def given(device: str | None, *names: str) -> list[Tensor]:
    return [empty(*SHAPES[name][0], dtype=SHAPES[name][1], device=device or "CPU") for name in names]


def parts_of_block(device: str | None = None) -> dict[str, Region]:
    """The regions of its parts: together all calls of the block."""
    x = empty(ROWS_OF, WIDTH, dtype="bfloat16", device=device or "CPU")
    value = empty(HEADS, ROWS_OF, SIZE, dtype="bfloat16", device=device or "CPU")
    return {
        "norm": region_of(normed(*given(device, "x", "scale", "shift"))),
        "project": region_of(*project(x, *given(device, *tuple(SHAPES)[3:]))),
        "softmax": region_of(value.softmax(-1).contiguous()),
    }


def test_the_parts_of_a_block_are_all_of_its_calls() -> None:
    sequence, claimed = sequence_of(*block(*given(None, *SHAPES))), list[int]()
    partition = partition_of(sequence)
    for region in parts_of_block().values():
        assert len(region.kernels) > 1
        ((places, _),) = partition.claim(region)
        claimed += places
    assert sorted(claimed) == list(range(len(sequence.calls)))


def fused(regions: dict[str, Region], target: Target) -> dict[Region, Program]:
    programs = {}
    for name, region in regions.items():
        parameters = default_parameters(read_region(region), target)
        assert parameters.form == (CONTRACTION if name == "project" else ROWS)
        program = compile_tile(region, schedule_of(parameters), target)
        assert isinstance(program, Program) and len(program.launches) == 1
        programs[region] = program
    return programs


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_the_parts_of_a_block_compile() -> None:
    assert len(fused(parts_of_block(), replace(KNOWN_TARGETS["sm_90"], cores=132))) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_a_block_of_fused_programs() -> None:
    """All of a step replaced: eagerly, captured and replayed it is bitwise equal, and near what it was before."""
    prepare("CUDA")
    target, _ = detect("CUDA", 1)
    rng = np.random.default_rng(1)
    tensors = []
    for name, (shape, dtype) in SHAPES.items():
        array = rng.standard_normal(shape, np.float32) * (0.05 if name == "weight" else 1)
        tensors.append(Tensor(array, device="CUDA").cast(dtype).contiguous().realize())

    def step(*tensors: Tensor) -> list[Tensor]:
        found = list(block(*tensors))
        Tensor.realize(*found)
        return found

    plain = [t.float().numpy() for t in step(*tensors)]
    programs = fused(parts_of_block("CUDA"), target)
    with install(programs, target) as report:
        eager = [t.numpy() for t in step(*tensors)]
        jitted = TinyJit(step)
        for _ in range(2):
            jitted(*tensors)
    assert all(report.counts[region.id] >= 2 for region in programs), report
    assert not report.left, report
    first = [a.tobytes() for a in eager]
    for _ in range(20):
        assert [t.numpy().tobytes() for t in jitted(*tensors)] == first
    for found, right in zip(eager, plain, strict=True):
        now = np.asarray(found, np.float32)
        assert now.shape == right.shape and np.isfinite(now).all()
        assert np.abs(now - right).max() < 0.05 * np.abs(right).max()
        assert np.abs(now - right).mean() < 0.02 * np.abs(right).mean()


# ---- contractions of one launch

STREAMS = (M, 200)
"""Rows: 13 × 12 tiles of 128 × 128 and 2 × 12. Of 132 persistent programs most have no tile of the second product."""


def joined(x: Tensor, w: Tensor, other_x: Tensor, other_w: Tensor) -> Tensor:
    return (x @ w.T).contiguous().cat((other_x @ other_w.T).contiguous()).contiguous()


def streams(device: str | None = None) -> Region:
    shapes = [shape for rows in STREAMS for shape in ((rows, K), (N, K))]
    return region_of(joined(*(empty(*shape, dtype="bfloat16", device=device or "CPU") for shape in shapes)))


def in_turn(region: Region, target: Target, loads: str) -> Program:
    """The region's program, whose programs take tiles of both products in turn."""
    p = replace(default_parameters(read_region(region), target), tile=(128, 128), epilogue_parts=1, num_warps=8)
    program = compile_tile(region, schedule_of(replace(p, num_stages=3, persistent=1, loads=loads)), target)
    assert isinstance(program, Program) and program.launches[0].compiled.global_size[0] == target.cores
    return program


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
def test_products_that_are_stored_beside_each_other_compile() -> None:
    region = streams()
    assert len(region.kernels) == 3 and len(read_region(region).grouped) == 1
    for loads in (POINTER, TMA):
        in_turn(region, replace(KNOWN_TARGETS["sm_90"], cores=132), loads)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("loads", [POINTER, TMA])
def test_persistent_programs_of_two_products(loads: str) -> None:
    prepare("CUDA")
    target, _ = detect("CUDA", 1)
    region = streams("CUDA")
    (x, w, _), (other_x, other_w, _) = inputs(1), inputs(2)
    tensors = (x, w, other_x[: STREAMS[1]].contiguous().realize(), other_w)
    plain = joined(*tensors).float().numpy()
    with install({region: in_turn(region, target, loads)}, target) as report:
        found = [joined(*tensors).numpy() for _ in range(20)]
    assert report.counts[region.id] == len(found), report
    assert len({a.tobytes() for a in found}) == 1
    assert np.abs(np.asarray(found[0], np.float32) - plain).max() < 0.02 * np.abs(plain).max()


# ---- attention by specialised warps


def heads(count: int, rows: int, size: int, dtype: str = "bfloat16") -> Tensor:
    return empty(count, rows, size, dtype=dtype)


def up_to(n: int, rows: int, keys: int, size: int, *, more: int | None = None, bound: float = 0.0) -> Tensor:
    """Attention of n heads, of which query q sees keys up to q + `more`: the last one sees all if that is not said."""
    more = keys - rows if more is None else more
    scores = (heads(n, rows, size) @ heads(n, keys, size).transpose(-1, -2)).float() * size**-0.5
    scores = (scores / bound).tanh() * bound if bound else scores
    mask = Tensor.arange(keys).reshape(1, keys) <= Tensor.arange(rows).reshape(rows, 1) + more
    weights = mask.where(scores, scores.full_like(0) - float("inf")).softmax(-1)
    return weights.cast("bfloat16") @ heads(n, keys, size)


def half(*shape: int) -> Tensor:
    return empty(*shape, dtype="bfloat16")


def within(rows: int, keys: int, *, before: int, behind: int) -> Tensor:
    """Which keys a query has: so many before its number, and so many behind it."""
    query, key = Tensor.arange(rows).reshape(rows, 1), Tensor.arange(keys).reshape(1, keys)
    return (key >= query - before) & (key <= query + behind)


def between(n: int, rows: int, keys: int, size: int, *, before: int, behind: int) -> Tensor:
    """Attention of the keys around each query's number."""
    mask = within(rows, keys, before=before, behind=behind)
    return heads(n, rows, size).scaled_dot_product_attention(heads(n, keys, size), heads(n, keys, size), attn_mask=mask)


ATTENTIONS: dict[str, Callable[[int], Tensor]] = {
    "whole blocks": lambda n: heads(n, 512, 128).scaled_dot_product_attention(heads(n, 512, 128), heads(n, 512, 128)),
    "heads of 64": lambda n: heads(n, 384, 64).scaled_dot_product_attention(heads(n, 640, 64), heads(n, 640, 64)),
    "odd rows": lambda n: heads(n, 200, 128).scaled_dot_product_attention(heads(n, 300, 128), heads(n, 300, 128)),
    "odd heads": lambda n: heads(n, 150, 80, "float16").scaled_dot_product_attention(
        heads(n, 333, 80, "float16"), heads(n, 333, 96, "float16")
    ),
    "causal": lambda n: heads(n, 384, 128).scaled_dot_product_attention(
        heads(n, 384, 128), heads(n, 384, 128), is_causal=True
    ),
    "heads that share keys": lambda n: empty(1, 2 * n, 384, 128, dtype="bfloat16").scaled_dot_product_attention(
        *(empty(1, n, 384, 128, dtype="bfloat16") for _ in range(2)), is_causal=True, enable_gqa=True
    ),
    "half a tile": lambda n: heads(n, 320, 128).scaled_dot_product_attention(heads(n, 320, 128), heads(n, 320, 128)),
    "causal heads of 64": lambda n: heads(n, 640, 64).scaled_dot_product_attention(
        heads(n, 640, 64), heads(n, 640, 64), is_causal=True
    ),
    "causal, odd rows": lambda n: heads(n, 330, 64).scaled_dot_product_attention(
        heads(n, 330, 64), heads(n, 330, 64), is_causal=True
    ),
    "causal, fewer queries than keys": lambda n: up_to(n, 300, 777, 64),
    "causal, more keys than are reached": lambda n: up_to(n, 256, 777, 128, more=0),
    "tiles across heads": lambda n: empty(1, 2 * n, 200, 64, dtype="bfloat16").scaled_dot_product_attention(
        *(empty(1, n, 200, 64, dtype="bfloat16") for _ in range(2)), is_causal=True, enable_gqa=True
    ),
    "a window": lambda n: between(n, 384, 384, 128, before=99, behind=0),
    "a window, less than a block": lambda n: between(n, 640, 640, 64, before=20, behind=0),
    "a window of many blocks": lambda n: between(n, 1024, 1024, 64, before=500, behind=0),
    "both sides, odd rows": lambda n: between(n, 330, 777, 64, before=200, behind=150),
    "from the query on": lambda n: between(n, 512, 640, 128, before=0, behind=640),
    "a window of heads that share keys": lambda n: empty(
        1, 2 * n, 200, 64, dtype="bfloat16"
    ).scaled_dot_product_attention(
        *(empty(1, n, 200, 64, dtype="bfloat16") for _ in range(2)),
        enable_gqa=True,
        attn_mask=within(200, 200, before=70, behind=0),
    ),
    "causal with a bound of scores": lambda n: up_to(n, 384, 384, 64, bound=3.0),
    "a bias": lambda n: heads(n, 256, 128).scaled_dot_product_attention(
        heads(n, 512, 128), heads(n, 512, 128), attn_mask=empty(256, 512, dtype="bfloat16")
    ),
}
"""Of so many heads of keys."""
HEADS_OF_EACH = 3


def attention_of(name: str, heads: int = HEADS_OF_EACH) -> Region:
    return region_of(ATTENTIONS[name](heads))


def specialized(name: str, target: Target) -> list[Schedule]:
    """The prior's program by specialised warps, and those with one parameter changed."""
    region = attention_of(name)
    space = space_of(region, target, ScheduleKind.TILE)

    def of_form(found: list[Schedule]) -> list[Schedule]:
        return [s for s in found if TileParameters.from_json(s.body).form == SPECIALIZED]

    first, *_ = of_form([space.start(), *space.neighbours(space.start())])  # of few queries the start has no such warps
    return [first, *of_form(space.neighbours(first))]


APART = {"whole blocks", "causal heads of 64", "a bias"}
"""Plain, masked, and with a second operand. The others combine these with other types, sizes of heads, rows that do not
divide, masks on both sides, tiles across heads, and functions of scores."""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", some(ATTENTIONS, {"causal heads of 64"}))
def test_attention_is_specialised_and_spills_nothing(name: str) -> None:
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    schedules = specialized(name, target)
    assert len(schedules) >= 3
    region = attention_of(name)
    for schedule in schedules[:1] if name != "whole blocks" else schedules:
        (rows,) = TileParameters.from_json(schedule.body).tile
        report = dict(compile_tile(region, schedule, target).launches[0].compiled.report)
        assert (report["warps"], report["wgmma"], report["spilled_bytes"]) == (4 + rows // 16, 1, 0)


@pytest.mark.parametrize(("name", "rows"), [("half a tile", 128), ("causal heads of 64", 192)])
def test_a_group_behind_the_last_query_stores_nothing(name: str, rows: int) -> None:
    """Of 320 queries the last tile of 128 has one group, of 640 the last tile of 192 too."""
    kernel = read_region(attention_of(name))
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    p = replace(parameters_of(kernel, target, SPECIALIZED, AttentionView.of(kernel).axes), tile=(rows,))
    (store,) = [line for line in generate_kernel(kernel, target, p).source.splitlines() if "gl.store(" in line]
    assert "mask=" in store


@pytest.mark.gpu
def test_attention_by_specialised_warps_is_right() -> None:
    with MeasureService("CUDA", run_id="test") as service:
        for name in ATTENTIONS:
            region = attention_of(name)
            requests = [Request(region, one) for one in specialized(name, service.target)]
            rows = [future.result() for future in service.measure(requests)]
            assert {row.status for row in rows} == {Status.OK}, (name, [row.reason for row in rows])


def with_tiles_in_turn(name: str, target: Target) -> tuple[Region, list[Schedule]]:
    """Of so many heads that a multiprocessor has three tiles or two, programs that take them in turn: of tiles with two
    groups of warps and, where there are registers for them, with three."""
    tiles = min(AttentionView.of(read_region(attention_of(name))).tiles(rows) for rows in PROGRAM_ROWS)
    region = attention_of(name, -(-5 * target.cores * HEADS_OF_EACH // (2 * tiles)))
    kernel = read_region(region)
    p = replace(parameters_of(kernel, target, SPECIALIZED, AttentionView.of(kernel).axes), persistent=1)
    found = [replace(p, tile=(rows,), reduce_tile=step) for rows in PROGRAM_ROWS for step in STEPS]
    return region, [schedule_of(one) for one in found if is_legal(kernel, target, one)]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize(
    "name",
    some(("whole blocks", "odd heads", "causal heads of 64", "tiles across heads", "a bias"), {"a bias"}),
)
def test_attention_with_tiles_in_turn_spills_nothing(name: str) -> None:
    """One program a multiprocessor, of 168 registers a thread, or 128."""
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    region, schedules = with_tiles_in_turn(name, target)
    assert len(schedules) >= 2
    for schedule in schedules if name == "whole blocks" else schedules[-1:]:
        (rows,) = TileParameters.from_json(schedule.body).tile
        (launch,) = compile_tile(region, schedule, target).launches
        report = dict(launch.compiled.report)
        assert (report["warps"], report["wgmma"], report["spilled_bytes"]) == (4 + rows // 16, 1, 0)
        assert report["registers"] == {128: 168, 192: 128}[rows] and launch.compiled.global_size[0] == target.cores
        assert needs_stress(region, schedule, target)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_with_tiles_in_turn_is_right(name: str) -> None:
    with MeasureService("CUDA", run_id="test") as service:
        region, schedules = with_tiles_in_turn(name, service.target)
        rows = [future.result() for future in service.measure([Request(region, one) for one in schedules])]
        assert {row.status for row in rows} == {Status.OK}, [row.reason for row in rows]


@pytest.mark.gpu
def test_attention_of_one_token_is_right() -> None:
    """With keys that are split, by the prior and by its neighbours."""
    with MeasureService("CUDA", run_id="test") as service:
        for keys in (4096, 5003):
            k, v = (empty(1, 8, keys, 64, dtype="bfloat16") for _ in range(2))
            region = region_of(
                empty(1, 32, 1, 64, dtype="bfloat16").scaled_dot_product_attention(k, v, enable_gqa=True)
            )
            space = space_of(region, service.target, ScheduleKind.TILE)
            found = [space.start(), *space.neighbours(space.start())]
            rows = [future.result() for future in service.measure([Request(region, one) for one in found])]
            assert {row.status for row in rows} == {Status.OK}, [row.reason for row in rows]


# ---- contractions by specialised warps


def matrix(rows: int, columns: int, dtype: str = "bfloat16") -> Tensor:
    return empty(rows, columns, dtype=dtype)


def product(rows: int, columns: int, terms: int, dtype: str = "bfloat16") -> Tensor:
    """Float32, with the second operand as a linear layer has it."""
    return matrix(rows, terms, dtype).matmul(matrix(columns, terms, dtype).transpose(), dtype="float32")


PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: product(1024, 1536, 512).cast("bfloat16"),
    "three groups": lambda: product(1152, 3072, 1024).cast("bfloat16"),
    "odd sizes": lambda: product(1000, 1096, 328, "float16").cast("float16"),
    "other operand": lambda: matrix(1024, 512).matmul(matrix(512, 1024), dtype="float32").cast("bfloat16"),
    "gelu": lambda: (product(1024, 1536, 512) + empty(1536, dtype="bfloat16").cast("float32")).gelu().cast("bfloat16"),
    "gate and residual": lambda: (
        matrix(1024, 1536).cast("float32") + empty(1, 1536, dtype="float32") * product(1024, 1536, 512)
    ).cast("bfloat16"),
    "float32": lambda: product(1024, 1536, 512) + matrix(1024, 1536).cast("float32"),
    "heads, half a tile": lambda: (
        product(1600, 1536, 512).cast("bfloat16").contiguous().reshape(1600, 12, 128).permute(1, 0, 2).contiguous()
    ),
}


def pipelined(name: str, target: Target) -> list[Schedule]:
    """The prior's program by specialised warps, and those with one parameter changed."""
    space = space_of(region_of(PRODUCTS[name]()), target, ScheduleKind.TILE)
    first = [s for s in (space.start(), *space.neighbours(space.start())) if is_pipelined(s)]
    return list(dict.fromkeys(s for s in (*first, *space.neighbours(first[0])) if is_pipelined(s)))


def is_pipelined(schedule: Schedule) -> bool:
    return TileParameters.from_json(schedule.body).form == PIPELINED


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("name", some(PRODUCTS, {"odd sizes"}))
def test_products_are_pipelined_and_spill_nothing(name: str) -> None:
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    schedules = pipelined(name, target)
    assert len(schedules) >= 4
    region = region_of(PRODUCTS[name]())
    of_each_tile = {tuple(TileParameters.from_json(s.body).tile): s for s in schedules[::-1]}
    assert len(of_each_tile) > 2  # what else can be changed changes no registers
    for schedule in schedules[:1] if name != "gate and residual" else of_each_tile.values():
        rows = TileParameters.from_json(schedule.body).tile[0]
        report = dict(compile_tile(region, schedule, target).launches[0].compiled.report)
        assert (report["warps"], report["wgmma"]) == (4 + rows // 16, 1)
        assert report["spilled_bytes"] <= 16


def test_the_last_wave_is_filled_by_three_groups() -> None:
    target = replace(KNOWN_TARGETS["sm_90"], cores=132)
    kernel = read_region(region_of(product(4608, 3072, 3072).cast("bfloat16")))
    best = parameters_of(kernel, target, PIPELINED, pipelined_axes(MatmulView.of(kernel))[0]).tile
    assert best == (192, 192), "3 waves of 132, where 128 x 256 leaves most of the fourth one empty"


@pytest.mark.gpu
def test_products_by_specialised_warps_are_right() -> None:
    with MeasureService("CUDA", run_id="test") as service:
        for name in PRODUCTS:
            region = region_of(PRODUCTS[name]())
            requests = [Request(region, one) for one in pipelined(name, service.target)]
            rows = [future.result() for future in service.measure(requests)]
            assert {row.status for row in rows} == {Status.OK}, (name, [row.reason for row in rows])
