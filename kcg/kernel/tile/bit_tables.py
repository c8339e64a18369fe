"""Tables of sums of four terms by four neighbouring bits, which a program of packed products makes in shared memory.

Each has 16 float32 sums of a vector's numbers, for every place that a program goes through. The entries of one place
lie in one bank, that of the lane which has the place: whatever bits lanes have, none waits for another. They are made
once, before a program goes through its rows; a sum is then a shift, a mask and the load of an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kcg.compat.tiny import UOp
from kcg.kernel.reading.accesses import BufferSlot, loads_of
from kcg.kernel.reading.bit_sums import FOUR, Bit, BitSums, Four
from kcg.kernel.reading.packed import SMALL_TABLE, Unpacked, without_constant
from kcg.kernel.tile.emit import Block, Frame
from kcg.kernel.tile.tables import COPIED_HELPER, shared_bytes
from kcg.kernel.tile.tiles import Axis, bind_axis
from kcg.kernel.tile.unpack import WITH, WideWords

LANES = SMALL_TABLE  # of a warp of NVIDIA's
ENTRIES = 1 << FOUR
ENTRY_BYTES = 4  # float32, whatever the vector is
ROW_BYTES = ENTRY_BYTES * LANES  # of one entry of all lanes
TABLE_BYTES = ENTRIES * ROW_BYTES
LOWEST = ROW_BYTES.bit_length() - 1  # bit of an address, of those that are an entry's number
ROWS_TOGETHER = 4  # of which sums over lanes are made together
LAYOUT = "made"
BYTES, PLACES = 0, 1  # axes of the blocks that tables are made of


@dataclass(frozen=True)
class Pass:
    """So many steps of a sum from a place on, for which there are tables at once, of so many places; `ragged` says that
    not all of them may exist."""

    first: str
    steps: int
    places: int
    ragged: bool


@dataclass(frozen=True)
class BitTables:
    """Where the tables of a pass are: in shared memory, or as blocks where there is none."""

    sums: BitSums
    of: Pass
    address: str = ""
    blocks: tuple[str, ...] = ()
    kept: str = ""  # where sums of rows are kept between passes
    is_first: bool = True
    is_last: bool = True


def bytes_of_tables(sums: BitSums, places: int) -> int:
    """Shared memory of the tables for so many places."""
    return places // LANES * sums.tables * TABLE_BYTES + TABLE_BYTES  # with what aligning them takes


def allocated(root: Frame, nbytes: int) -> str:
    """The address of so many bytes of shared memory."""
    address = root.writer.fresh("table")
    root.lines.add(f"{address} = {shared_bytes(root.writer, nbytes)}")  # by no name that is known: each is another
    return address


def allocated_for_tables(root: Frame, nbytes: int) -> str:
    """The address of tables in so many bytes: bits of an entry's number are 0 there. It is aligned as a program runs,
    since what a program declares is aligned from where its shared memory begins: after 1 KiB on sm_90."""
    address = allocated(root, nbytes)
    root.lines.add(f"{address} = ({address} + {TABLE_BYTES - 1}) & {-TABLE_BYTES}")
    return address


def waited(root: Frame, address: str) -> str:
    """The same address, when all threads are here."""
    found = root.writer.fresh("table")
    root.writer.helpers["_copied"] = COPIED_HELPER
    root.lines.add(f"{found} = _copied({address})")
    return found


def make_bit_tables(sums: BitSums, ranges: Sequence[UOp], of: Pass, root: Frame, warps: int, address: str) -> BitTables:
    """Writes what makes the tables for the places of a pass at an address."""
    lines, writer, places = root.lines, root.writer, of.places
    frame = Frame(lines, (sums.width, places), outer=root, words=("bytes", "entries"))
    of_bytes = min(warps, sums.width)
    warps_along = of_bytes, warps // of_bytes
    if root.layout:
        frame.layout = LAYOUT
        writer.helpers[LAYOUT] = f"{LAYOUT} = gl.constexpr({_layout(warps_along)})\n"
    bind_axis(frame, Axis(tuple(ranges), places), PLACES, of.first, ragged=of.ragged)
    if sums.inner is not None:
        bind_axis(frame, Axis((sums.inner,), sums.width), BYTES, "0")
    values = _Values(sums.unpacked, frame, warps_along)
    values.load(sums.fours)
    if not writer.ptx:
        writer.helpers |= {"_as_table": _table_helper(), "_entries_of": _ENTRIES_OF}
        shape = f"{sums.width}, {places}"
        blocks = [lines.name(f"_as_table({', '.join(values.sums(four))}, {shape})", "table") for four in sums.fours]
        return BitTables(sums, of, blocks=tuple(blocks))
    writer.helpers["_put_sums"] = _put_helper()
    own = lines.name(frame.along(lines.name(frame.elements(places, PLACES), "places"), PLACES), "places")
    at = lines.name(f"{address} + {_first_entry(own, sums)}", "at")
    if sums.width > 1:
        byte = lines.name(frame.along(lines.name(frame.elements(sums.width, BYTES), "bytes"), BYTES), "bytes")
        at = lines.name(f"{at} + {byte} * {len(sums.fours) * TABLE_BYTES}", "at")
    for number, four in enumerate(sums.fours):
        place = lines.name(f"{at} + {number * TABLE_BYTES}", "at") if number else at
        lines.add(f"_put_sums({place}, {', '.join(values.sums(four))})")
    return BitTables(sums, of, address=address)


def keep(frame: Frame, address: str, rows: str, value: Block) -> None:
    """Keeps sums of rows, by their numbers, for the next pass: each thread for itself."""
    frame.writer.helpers["_keep"] = _KEEP
    frame.lines.add(f"_keep({address} + {rows} * {ENTRY_BYTES}, {value.text})")


def kept_sums(frame: Frame, address: str, rows: str) -> str:
    """The sums of rows of the passes before."""
    frame.writer.helpers["_kept"] = _KEPT
    kept = frame.writer.fresh("kept")
    frame.lines.add(f"{kept} = _kept({address} + {rows} * {ENTRY_BYTES})")
    return kept


def over_lanes(frame: Frame, made: Block, rows: int) -> Block | None:
    """The sums over the lanes of a warp, each of which has the same rows and one place: all lanes have all of them
    then. Two rows take one shuffle, where lanes of one half go on with one of them and the others with the other. None
    where it is not written so."""
    if not frame.writer.ptx or rows != ROWS_TOGETHER:
        return None
    frame.writer.helpers["_over_lanes"] = _over_lanes_helper()
    return frame.new(f"_over_lanes({made.text})", "float32", made.axes, "total")


def _first_entry(places: str, sums: BitSums) -> str:
    """Where the first entry of places is, from the beginning of all tables on."""
    return f"{places} % {LANES} * {ENTRY_BYTES} + {places} // {LANES} * {sums.tables * TABLE_BYTES}"


def _layout(warps: tuple[int, int], neighbours: int = 0) -> str:
    """Where blocks of bytes and places lie; of what is loaded at once a thread has so many neighbours."""
    each, one = ([neighbours], [1]) if neighbours else ([], [])
    order = list(range(1 + len(one), -1, -1))
    return f"gl.BlockedLayout({[1, 1, *each]}, {[1, LANES, *one]}, {[*warps, *one]}, {order})"


class _Values(WideWords):
    """What bits of terms choose, and sums of it, written into a frame of bytes and places."""

    def __init__(self, unpacked: Unpacked, frame: Frame, warps: tuple[int, int]) -> None:
        super().__init__(unpacked, frame)
        self.warps = warps

    def load(self, fours: Sequence[Four]) -> None:
        """Reads what these are made of, neighbours together."""
        groups: dict[tuple[BufferSlot, UOp], dict[int, UOp]] = {}
        for load in loads_of(*(node for four in fours for bit in four.bits for node in bit.others)):
            if self.frame.home(load.node) is self.frame:
                constant, rest = without_constant(load.address)
                groups.setdefault((load.buffer, rest), {})[constant] = load.node
            else:
                self.frame.writer.accesses.setdefault(load.node, load)
        for (buffer, rest), members in groups.items():
            self._load_together(buffer, rest, members)

    def sums(self, four: Four) -> list[str]:
        """The 16 sums of four terms, by their bits."""
        pairs = [self._either(bit) for bit in four.bits]
        low, high = ([self._plus(a, b) for b in two for a in one] for one, two in (pairs[:2], pairs[2:]))
        return [self._plus(a, b).text for b in high for a in low]

    def _either(self, bit: Bit) -> tuple[Block, Block]:
        """A term where its bit is 0, and where it is 1."""
        product: Block | None = None
        for node in bit.others:
            block = self.frame.cast(self.frame.value(node), "float32")
            product = block if product is None else self._times(product, block)
        assert product is not None
        return self._by(product, bit.low), self._by(product, bit.high)

    def _by(self, block: Block, factor: float) -> Block:
        """A number times a constant: of infinite ones times 0 too."""
        return block if factor == 1 else self.frame.new(f"{block.text} * {factor!r}", "float32", block.axes)

    def _wide_layout(self, axes: frozenset[int], count: int) -> str:
        return _layout(self.warps, count)


class ByFours(WideWords):
    """Words of which four neighbouring bits say a sum."""

    def _first_entries(self, tables: BitTables, places: Block) -> Block:
        """Where entries of places begin, by their numbers among those of the tables."""
        if not self.frame.writer.ptx:
            return self.frame.new(f"{places.text} * {ENTRIES}", "int32", places.axes, "at")
        text = f"{tables.address} + {_first_entry(places.text, tables.sums)}"
        return self.frame.cast(self.frame.new(text, "int32", places.axes, "at"), "uint32")

    def _four(self, tables: BitTables, first: Block, four: Four, number: int) -> Block:
        """The sum of four terms: an entry of the table with a number."""
        frame, word = self.frame, self._as_32(four.word)
        axes, helpers = first.axes | self.words[four.word].axes, frame.writer.helpers
        if frame.writer.ptx:
            mask = ENTRIES - 1 << LOWEST
            helpers |= {f"_with_{mask}": WITH.format(mask=mask), f"_sum_{number}": _sum_helper(number)}
            at = frame.lines.name(f"_with_{mask}({first.text}, {self._shifted(word, LOWEST - four.shift)})", "at")
            return frame.new(f"_sum_{number}({at})", "float32", axes, "sum")
        bits = frame.lines.name(f"{self._shifted(word, -four.shift)} & {ENTRIES - 1}", "bits")
        byte, place = divmod(number, len(tables.sums.fours))
        at = frame.lines.name(f"{first.text} + {byte * tables.of.places * ENTRIES} + {bits}.to(tl.int32)", "at")
        sizes = [size if axis in axes else 1 for axis, size in enumerate(frame.sizes)]
        shape = ", ".join(map(str, sizes))
        return frame.new(f"_entries_of({tables.blocks[place]}, {at}, {shape})", "float32", axes, "sum")


# ---- what is written in assembly, and in its place


def _put_helper() -> str:
    """A function that stores 16 sums of places from an address on."""
    names = [f"s{number}" for number in range(ENTRIES)]
    stores = " ".join(f"st.shared.f32 [$1 + {n * ROW_BYTES}], ${n + 2};" for n in range(ENTRIES))
    return f"""
@triton.jit
def _put_sums(places, {", ".join(names)}):
    asm: tl.constexpr = "{stores} mov.b32 $0, 0;"
    given = [places, {", ".join(names)}]
    tl.inline_asm_elementwise(asm, "=r,r{",f" * ENTRIES}", given, dtype=tl.int32, is_pure=False, pack=1)
"""


_KEEP = """
@triton.jit
def _keep(at, sums):
    asm: tl.constexpr = "st.shared.f32 [$1 + 0], $2; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(asm, "=r,r,f", [at, sums], dtype=tl.int32, is_pure=False, pack=1)
"""
_KEPT = """
@triton.jit
def _kept(at):
    asm: tl.constexpr = "ld.shared.f32 $0, [$1 + 0];"
    return tl.inline_asm_elementwise(asm, "=f,r", [at], dtype=tl.float32, is_pure=False, pack=1)
"""


def _over_lanes_helper() -> str:
    """A function that sums four rows over the lanes of a warp: of 20 shuffles ten are left."""
    first, second, third, fourth, *own = (f"${number}" for number in range(2 * ROWS_TOGETHER))
    lines = [".reg .pred high, odd", ".reg .b32 lane, kept, sent, one, two", "mov.u32 lane, %laneid"]

    def halved(into: str, low: str, high: str, by: str, apart: int) -> None:
        """Lanes go on with one of two rows, which they get the other half of."""
        lines.append(f"selp.b32 sent, {low}, {high}, {by}")
        lines.append(f"selp.b32 kept, {high}, {low}, {by}")
        lines.append(f"shfl.sync.bfly.b32 sent, sent, {apart}, 31, 0xffffffff")
        lines.append(f"add.f32 {into}, kept, sent")

    for name, bit in (("high", 16), ("odd", 8)):
        lines += [f"and.b32 kept, lane, {bit}", f"setp.ne.u32 {name}, kept, 0"]
    halved("one", own[0], own[2], "high", 16)
    halved("two", own[1], own[3], "high", 16)
    halved("one", "one", "two", "odd", 8)
    for apart in (4, 2, 1):
        lines += [f"shfl.sync.bfly.b32 sent, one, {apart}, 31, 0xffffffff", "add.f32 one, one, sent"]
    for into, lane in ((first, 0), (second, 8), (third, 16), (fourth, 24)):
        lines.append(f"shfl.sync.idx.b32 {into}, one, {lane}, 31, 0xffffffff")
    return f"""
@triton.jit
def _over_lanes(rows):
    asm: tl.constexpr = "{{ {"; ".join(lines)}; }}"
    return tl.inline_asm_elementwise(asm, "=f,=f,=f,=f,f,f,f,f", [rows], dtype=tl.float32, is_pure=True, pack=4)
"""


def _sum_helper(number: int) -> str:
    """A function that loads an entry of the table with a number. It is pure: the tables of each pass have an address of
    their own, known behind a barrier, and what was read of them is kept (`_keep`) before the next one."""
    return f"""
@triton.jit
def _sum_{number}(at):
    asm: tl.constexpr = "ld.shared.f32 $0, [$1 + {number * TABLE_BYTES}];"
    return tl.inline_asm_elementwise(asm, "=f,r", [at], dtype=tl.float32, is_pure=True, pack=1)
"""


def _table_helper() -> str:
    """A function that puts 16 sums of places beside each other."""
    names = [f"s{number}" for number in range(ENTRIES)]
    lines = [f"{name} = tl.broadcast_to({name}, [bytes, places])" for name in names]
    count = ENTRIES
    while count > 1:
        count //= 2
        lines += [f"s{number} = tl.join(s{number}, s{number + count})" for number in range(count)]
    body = "".join(f"    {line}\n" for line in lines)
    return f"""
@triton.jit
def _as_table({", ".join(names)}, bytes: tl.constexpr, places: tl.constexpr):
{body}    return s0.reshape([bytes * places * {ENTRIES}])
"""


_ENTRIES_OF = """
@triton.jit
def _entries_of(table, at, rows: tl.constexpr, places: tl.constexpr):
    at = tl.broadcast_to(at, [rows, places])
    return tl.gather(table, at.reshape([rows * places]), 0).reshape([rows, places])
"""
