"""What programs in Gluon have in common: there the program says where blocks lie and which warps do what.

A group is four warps, which send products to the tensor core together and hold their sums in registers, by a layout
that its instruction prescribes: a thread has neighbouring pairs of a row, and four threads have all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kcg.compat.tiny import DType
from kcg.kernel.ast import extent
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.descriptors import Boxes
from kcg.kernel.tile.emit import TYPES, Lines, Writer
from kcg.kernel.tile.ring import HERE, Ring
from kcg.kernel.tile.tiles import variable_name

GROUP_ROWS = 64  # of a block of a group: what one instruction of a tensor core takes
GROUP_WARPS = 4
GROUP_THREADS = 128
LOADING_REGISTERS = 24
REGISTERS = {2: 240, 3: 160}
"""Groups that compute -> registers of each of their threads: with those of the group that loads, all that there are."""
COMPUTE, LOAD = "compute", "load"
HEADER = """\
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)

fetch = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # as Triton 3.6 names it
send = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""


def in_gluon(text: str) -> str:
    """A module of functions in Triton's words as Gluon has them: the same, where layouts are said."""
    return HEADER + re.sub(r"\btl\.", "gl.", text.replace("@triton.jit", "@gluon.jit"))


def mma(columns: int) -> str:
    """The layout of a group's sums, of a block of so many columns."""
    return (
        f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[{GROUP_WARPS}, 1], instr_shape=[16, {columns}, 16])"
    )


def sums_layout(writer: Writer, columns: int) -> str:
    """The name of `mma`, among the module's."""
    name = f"of_{columns}"
    writer.helpers.setdefault(name, f"{name} = gl.constexpr({mma(columns)})\n")
    return name


def halves_layout(writer: Writer, columns: int) -> str:
    """The name of the layout of the even, and of the odd, columns of a group's sums: so many of each."""
    name = f"halves_of_{columns}"
    registers = [[8, 0], *([0, 1 << bit] for bit in range(2, columns.bit_length() - 1))]
    writer.helpers.setdefault(
        name,
        f"{name} = gl.constexpr(gl.DistributedLinearLayout({registers}, [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], "
        f"[[16, 0], [32, 0]], [], [{GROUP_ROWS}, {columns}]))\n",
    )
    return name


def shared_layout(sizes: Sequence[int], dtype: DType) -> str:
    """How a block lies in shared memory for TMA and tensor cores."""
    return f"gl.NVMMASharedLayout.get_default_for([{', '.join(map(str, sizes))}], gl.{TYPES[dtype]})"


def descriptor(boxes: Boxes, start: str, extents: Sequence[str], dtype: DType) -> str:
    """What makes the descriptor of blocks in memory, from their first element on; `extents` as `Boxes.extents`."""
    return descriptor_of(start, extents, [boxes.wide, 1], boxes.ordered(boxes.sizes), dtype)


def descriptor_of_all(boxes: Boxes, extents: Sequence[str], dtype: DType) -> str:
    """As `descriptor`, of the blocks at all places of the leading ranges, which are its first axes."""
    totals = [*(str(extent(r)) for r, _ in boxes.leading), *extents]
    strides = [*(step for _, step in boxes.leading), boxes.wide, 1]
    return descriptor_of(boxes.buffer, totals, strides, sizes_of_all(boxes), dtype)


def sizes_of_all(boxes: Boxes) -> tuple[int, ...]:
    """The sizes of a block of `descriptor_of_all`."""
    return *(1 for _ in boxes.leading), *boxes.ordered(boxes.sizes)


def descriptor_of(start: str, totals: Sequence[str], strides: Sequence[int], sizes: Sequence[int], dtype: DType) -> str:
    """What makes the descriptor of blocks of such sizes, of memory by its extents and the steps along them."""
    return (
        f"tma.make_tensor_descriptor({start}, shape=[{', '.join(totals)}], strides=[{', '.join(map(str, strides))}], "
        f"block_shape=[{', '.join(map(str, sizes))}], layout={shared_layout(sizes, dtype)})"
    )


def allocated(name: str, slots: int, sizes: Sequence[int], dtype: DType) -> str:
    """A statement: so many blocks of shared memory."""
    return (
        f"{name} = gl.allocate_shared_memory(gl.{TYPES[dtype]}, [{', '.join(map(str, (slots, *sizes)))}], "
        f"{shared_layout(sizes, dtype)})"
    )


def operand(boxes: Boxes, *, of_all: bool = False) -> Callable[[str, str], str]:
    """From a buffer's name and slot to a block with its axes in order; `of_all`: as `descriptor_of_all` has it."""
    turned = ".permute((1, 0))" if boxes.transposed else ""
    if of_all and boxes.leading:
        turned = f".reshape({boxes.ordered(boxes.sizes)})" + turned
    return lambda name, slot: f"{name}.index({slot}){turned}"


def arguments_of(kernel: TileKernel) -> tuple[str, ...]:
    """What every function is given: buffers and variables."""
    return (*(f"p{b.slot}" for b in kernel.buffers), *(variable_name(v) for v in kernel.variables))


def add_function(writer: Writer, name: str, given: Sequence[str], lines: Lines, *, group: bool = False) -> None:
    """A function of the module; that of a group is told which one it is."""
    names = [*given, *(["group: gl.constexpr"] if group else [])]
    text = f"@gluon.jit\ndef {name}({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in lines.text)
    writer.helpers[name] = f"\n{text}"


@dataclass(frozen=True)
class Partition:
    """Groups of warps that call a function with some arguments, each told which one it is; and how many registers each
    of their threads has."""

    function: str
    arguments: tuple[str, ...]
    registers: int
    groups: int = 0  # 0: one, that is told nothing

    @property
    def calls(self) -> list[str]:
        given = ", ".join(self.arguments)
        numbers = [f", {number}" for number in range(self.groups)] or [""]
        return [f"({self.function}, ({given}{number}))" for number in numbers]


def specialized(groups: int, computing: Sequence[str], loading: Sequence[str]) -> str:
    """A statement: so many groups that compute, and one that loads."""
    compute = Partition(COMPUTE, tuple(computing), REGISTERS[groups], groups)
    return partitioned(compute, Partition(LOAD, tuple(loading), LOADING_REGISTERS))


def partitioned(*partitions: Partition) -> str:
    """A statement: who does what. The first group, of the program's own warps, has the registers that others leave."""
    calls = [call for one in partitions for call in one.calls]
    _, *shares = [one.registers for one in partitions for _ in one.calls]
    return f"gl.warp_specialize([{', '.join(calls)}], {[GROUP_WARPS] * len(shares)}, {shares})"


def send_products(body: Lines, ring: Ring, totals: Sequence[str], one: str, others: Sequence[str], only: str) -> None:
    """One step of a group that multiplies: it waits for a slot, sends the products of a block with others to the tensor
    core, and gives back the slot before, `only` under a condition, once that one's products are done."""
    body.add(ring.await_full(HERE))
    for total, other in zip(totals, others, strict=True):
        body.add(f"{total} = warpgroup_mma({one}, {other}, {total}, is_async=True)")
    names = ", ".join(totals)
    body.add(f"{names} = warpgroup_mma_wait({len(totals)}, deps=[{names}])")
    body.add(ring.give_back(ring.last(), only=only))
    ring.advance(body)


def end_products(lines: Lines, ring: Ring, totals: Sequence[str]) -> None:
    """Waits for a group's last products, and gives back their slot."""
    names = ", ".join(totals)
    lines.add(f"{names} = warpgroup_mma_wait(0, deps=[{names}])")
    lines.add(ring.give_back(ring.last()))
