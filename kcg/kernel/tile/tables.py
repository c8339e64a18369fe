"""Tables that a program of packed products holds in shared memory, as float16.

They are copied once, before a program goes through its rows, and are used where every entry is such a number, which is
seen as they are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.packed import SMALL_TABLE
from kcg.kernel.tile.emit import TYPES, Block, Frame, Writer
from kcg.kernel.tile.tiles import power_of_two
from kcg.kernel.tile.unpack import buffer_of

HALF_BYTES = 2  # of a table's entry in shared memory
COPIED = 32  # entries that a thread copies at once
COPY_LAYOUT = "copied"
LANES = SMALL_TABLE  # of a warp of NVIDIA's


@dataclass(frozen=True)
class Copy:
    """How a table comes to shared memory: so many turns, of so many entries each."""

    turns: int
    at_once: int

    @classmethod
    def of(cls, entries: int, threads: int) -> Copy:
        at_once = min(power_of_two(entries), threads * COPIED)
        return cls(-(-entries // at_once), at_once)

    @property
    def padded(self) -> int:
        """Entries, with those behind the last one."""
        return self.turns * self.at_once

    @property
    def nbytes(self) -> int:
        return HALF_BYTES * self.padded


@dataclass(frozen=True)
class Tables:
    """Tables that a program has copied as float16: where each is, by its buffer, and which threads have seen an entry
    that is no such number."""

    places: Mapping[int, str]
    inexact: tuple[str, ...]


NO_TABLES = Tables({}, ())


def copy_tables(tables: Mapping[int, int], kernel: TileKernel, root: Frame, threads: int) -> Tables:
    """Copies those tables (buffer -> entries) that a kernel reads to shared memory, where what lies anywhere takes
    a third of the time that the L1 cache needs for them. Each is copied once: what is written later waits for it."""
    read = {load.buffer.slot for load in kernel.loads}
    copied = {slot: _copy_table(slot, count, root, threads) for slot, count in tables.items() if slot in read}
    return Tables({slot: table for slot, (table, _) in copied.items()}, tuple(wrong for _, wrong in copied.values()))


def _copy_table(slot: int, entries: int, root: Frame, threads: int) -> tuple[str, str]:
    """Copies one. Returns where it is, and which threads have seen an entry that float16 does not have."""
    lines, writer = root.lines, root.writer
    copy, buffer, layout = Copy.of(entries, threads), root.buffer(slot), ""
    if root.layout:
        layout = f", {COPY_LAYOUT}"
        writer.helpers[COPY_LAYOUT] = (
            f"{COPY_LAYOUT} = gl.constexpr(gl.BlockedLayout([4], [{LANES}], [{threads // LANES}], [0]))\n"
        )
    table = buffer
    if writer.ptx:
        table = lines.name(shared_bytes(writer, copy.nbytes, slot), "table")
        writer.helpers |= {"_put": _PUT, "_copied": COPIED_HELPER}
    inexact, at = writer.fresh("inexact"), lines.name(f"tl.arange(0, {copy.at_once}{layout})", "entries")
    lines.add(f"{inexact} = tl.zeros([{copy.at_once}], tl.int32{layout})")
    for turn in range(copy.turns):
        place = lines.name(f"{at} + {turn * copy.at_once}", "entries") if turn else at
        mask = f", mask={place} < {entries}, other=0" if copy.padded > entries else ""
        read = lines.name(f"tl.load({buffer} + {place}{mask})", "entries")
        held = root.cast(Block(read, TYPES[buffer_of(root, slot).dtype]), "float32")
        half = lines.name(f"{held.text}.to(tl.float16)", "half")
        lines.add(f"{inexact} = tl.where({half}.to(tl.float32) == {held.text}, {inexact}, 1)")
        if writer.ptx:
            lines.add(f"_put({table} + {HALF_BYTES} * {place}, {half}.to(tl.uint16, bitcast=True))")
    return (lines.name(f"_copied({table})", "table") if writer.ptx else table), inexact


def shared_bytes(writer: Writer, nbytes: int, number: int = 0) -> str:
    """The address of so many bytes of shared memory; of several the `number` tells texts apart, not addresses."""
    writer.helpers[f"_table_of_{nbytes}"] = _TABLE.format(nbytes=nbytes)
    return f"_table_of_{nbytes}({number})"


_TABLE = """
@triton.jit
def _table_of_{nbytes}(number):
    asm: tl.constexpr = "{{ .shared .align 16 .b8 entries[{nbytes}]; mov.u32 $0, entries; }}"
    return tl.inline_asm_elementwise(asm, "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1)
"""
"""The address of so many bytes of shared memory, which are of the program as long as it runs."""

_PUT = """
@triton.jit
def _put(places, halves):
    asm: tl.constexpr = "st.shared.v2.b32 [$1], {$5, $6}; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,r,r,r,r,r,r", [places, halves], dtype=tl.int8, is_pure=False, pack=4)
"""
"""Stores four neighbours at the address of the first."""

COPIED_HELPER = """
@triton.jit
def _copied(table):
    asm: tl.constexpr = "bar.sync 0; mov.u32 $0, $1;"
    return tl.inline_asm_elementwise(asm, "=r,r", [table], dtype=tl.int32, is_pure=False, pack=1)
"""
"""A table's address, once all threads have stored what they copy of it: who has it may read there."""
