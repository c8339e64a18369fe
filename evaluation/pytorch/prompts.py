"""Products of a prompt's vectors with packed weights, beside kcg's own product of bfloat16 and the way over a scratch
buffer: rows of `evaluation.pytorch.decode --only prompts`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from evaluation.pytorch.timing import Call, chosen, in_turns
from evaluation.rows import Row, rounded
from kcg.kernel.codec import kernel_of
from kcg.kernel.program import Program
from kcg.kernel.reading.kernel import TileKernel, read_kernel
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.forms import REGISTRY, forms_of
from kcg.kernel.tile.legal import is_legal
from kcg.kernel.tile.parameters import POINTER, UNPACKING, TileParameters
from kcg.kernel.tile.prior import default_parameters, parameters_of
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.types import Region, Target
from kcg.workloads.packed_weights import FORMATS, PackedWeights, random_blocks

ROWS, INPUTS, VECTORS = 14336, 4096, 512
OF_CACHE = 4.2  # times the L2 cache that copies of the weights are together
TILES = ((64, 128), (128, 128), (128, 256), (256, 128))
WARPS, STEPS, STAGES, GROUPS = (4, 8), (64, 128), (2, 3), (1, 4)
MOST_DENSE = 24  # programs of the product of bfloat16
FAR_SLOWER = 3  # times as slow as the best, by expectation: no contender
FAR = 2e-2  # of the outputs' size: they are stored in 16 bits


def region_of(weights: Any, dtype: str) -> Region:
    """The product of the vectors with some weights, in 16 bits."""
    from tinygrad import Device, Tensor

    vectors = Tensor.empty(VECTORS, INPUTS, dtype=dtype, device=Device.DEFAULT)
    made = vectors.dot(weights.T, dtype="float32").cast(dtype)
    return Region((kernel_of(made.linear_with_vars()[0].src[-1].src[0]),))


def scratch_region(kind: str) -> Region:
    """The kernel that makes all weights of a format, in float16."""
    made = PackedWeights()("w", (ROWS, INPUTS), kind).contiguous()
    return Region((kernel_of(made.linear_with_vars()[0].src[-1].src[0]),))


def unpacking(region: Region, target: Target) -> list[TileParameters]:
    """Programs of different shapes."""
    kernel = read_kernel(region)
    first = default_parameters(kernel, target)
    sizes = itertools.product(TILES, WARPS, STEPS, STAGES, GROUPS)
    made = [
        first.changed(tile=tile, num_warps=warps, reduce_tile=step, num_stages=stages, loads=POINTER, group=group)
        for tile, warps, step, stages, group in sizes
    ]
    return [p for p in (first, *made, *_by_own_warps(kernel, target)) if is_legal(kernel, target, p)]


def _by_own_warps(kernel: TileKernel, target: Target) -> list[TileParameters]:
    """Programs of which some warps unpack and others multiply, where the kernel has any."""
    if all(form.name != UNPACKING for form in forms_of(kernel, target)):
        return []
    form = REGISTRY[UNPACKING]
    first = parameters_of(kernel, target, UNPACKING, form.axes(form.view(kernel))[0])
    sizes = itertools.product(form.fixed["tile"], form.fixed["num_stages"], GROUPS)
    return [first.changed(tile=tile, num_stages=stages, group=group) for tile, stages, group in sizes]


def cheapest(region: Region, target: Target, most: int) -> list[TileParameters]:
    """The prior's programs of each form, and those among the first one's neighbours that are expected to be fastest."""
    space = TileSpace(region, target, read_kernel(region))
    first = space.start()
    every = [first, *space.variants(first), *space.neighbours(first)]
    ordered = sorted(every, key=lambda one: space.cost(one).seconds)
    most_s = FAR_SLOWER * space.cost(ordered[0]).seconds
    found = [one for one in dict.fromkeys((*space.prior(), *ordered[:most])) if space.cost(one).seconds < most_s]
    return [space.parameters(one) for one in found]


def compiled(region: Region, target: Target, p: TileParameters) -> Program | None:
    """A program's machine code; None where it does not compile."""
    try:
        return compile_tile(region, schedule_of(p), target)
    except Exception:  # a program that fails is no contender
        return None


def prompt_row(kind: str, target: Target, pool: ProcessPoolExecutor) -> Row:
    """One format: the fastest program of the product, of that of bfloat16, and of the kernel that makes the weights."""
    import torch
    from tinygrad import Device, Tensor

    product = region_of(PackedWeights()("w", (ROWS, INPUTS), kind), "float16")
    dense = region_of(Tensor.empty(ROWS, INPUTS, dtype="bfloat16", device=Device.DEFAULT), "bfloat16")
    scratch = scratch_region(kind)
    nbytes = FORMATS[kind].bytes_of(ROWS * INPUTS)
    rng = np.random.default_rng(1)
    blocks = random_blocks(kind, ROWS * INPUTS // FORMATS[kind].weights, INPUTS**-0.5, rng).reshape(-1)
    copies = max(2, math.ceil(OF_CACHE * target.cache_bytes / nbytes))
    packed = [torch.from_numpy(blocks).cuda() for _ in range(copies)]
    vectors = torch.randn(VECTORS, INPUTS, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).half()
    wide = [torch.randn(ROWS, INPUTS, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    out = torch.zeros(VECTORS, ROWS, device="cuda", dtype=torch.float16)
    weights = torch.zeros(ROWS, INPUTS, device="cuda", dtype=torch.float16)

    def held(sizes: dict[int, Callable[[int], Any]], region: Region, number: int) -> list[Any]:
        return [sizes[one.size](number) for one in read_kernel(region).buffers]

    of_product = {nbytes: lambda n: packed[n], VECTORS * INPUTS: lambda _: vectors, VECTORS * ROWS: lambda _: out}
    of_dense = {**of_product, ROWS * INPUTS: lambda n: wide[n % 2], VECTORS * INPUTS: lambda _: vectors.bfloat16()}
    of_scratch = {nbytes: lambda n: packed[n], ROWS * INPUTS: lambda _: weights}
    found: dict[str, tuple[str, float, int]] = {}
    best: dict[str, Call] = {}
    for name, region, programs, sizes in (
        ("product", product, unpacking(product, target), of_product),
        ("dense", dense, cheapest(dense, target, MOST_DENSE), of_dense),
        ("scratch", scratch, cheapest(scratch, target, MOST_DENSE), of_scratch),
    ):
        calls = _calls(region, target, programs, pool, lambda n, s=sizes, r=region: held(s, r, n), copies)
        words, seconds = chosen(in_turns(calls, copies))
        found[name] = words, seconds, len(calls)
        best[name] = calls[words]
    best["scratch"](0)
    out.zero_()
    best["product"](0)
    wanted = vectors.float() @ weights.float().T
    far = float((out.float() - wanted).norm() / wanted.norm())
    if not far <= FAR:
        return {"status": "failed", "reason": f"off by {far:.2g} of the outputs' size"}
    product_s, dense_s, scratch_s = (found[name][1] for name in ("product", "dense", "scratch"))
    return {
        "rows": ROWS, "inputs": INPUTS, "vectors": VECTORS, "bytes": nbytes, "copies": copies, "error": rounded(far),
        "program": found["product"][0], "dense_program": found["dense"][0], "seconds": rounded(product_s),
        "dense_s": rounded(dense_s), "scratch_s": rounded(scratch_s), "vs_dense": rounded(dense_s / product_s),
        "vs_scratch": rounded((dense_s + scratch_s) / product_s), "contenders": [found[name][2] for name in found],
    }  # fmt: skip


def _calls(
    region: Region, target: Target, programs: Sequence[TileParameters], pool: ProcessPoolExecutor,
    buffers: Callable[[int], list[Any]], copies: int,
) -> dict[str, Call]:  # fmt: skip
    from evaluation.tiles.loading import Driver, Loaded

    made = list(pool.map(compiled, [region] * len(programs), [target] * len(programs), programs))
    driver, calls = Driver(), dict[str, Call]()
    for p, program in zip(programs, made, strict=True):
        if program is not None:
            of_copies = [Loaded(driver, program, buffers(number)) for number in range(copies)]
            name = f"{p.form} {p.tile} step {p.reduce_tile}, {p.num_warps} warps, {p.num_stages} stages, {p.loads}"
            calls[f"{name}, {len(calls)}"] = lambda number, held=of_copies: held[number]()
    return calls
