"""From UOps to block expressions: every value of a kernel as a Triton expression over the axes of a tile.

A *frame* says where a range of the kernel comes from: a scalar of the program, or a vector along one axis of the tile.
Frames nest as loops do. A value is written once, in the outermost frame that knows all its ranges, so what does not
change in a loop stands before it. All blocks of one frame have the same rank, with extent 1 along axes that they do
not depend on; scalars have none, and Triton broadcasts both.

float16 and bfloat16 are computed as float32, which Triton's tensor cores and memory do not need: only stores, bit
casts and operands of `tl.dot` ask for the narrow value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcg.compat.tiny import DType, Ops, UOp, dtypes
from kcg.kernel.ast import affine, extent, is_invalid, is_symbolic
from kcg.kernel.reading.accesses import Access, Stored
from kcg.kernel.reading.factors import NARROW
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.online import is_running, scaled
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.naming import made
from kcg.kernel.tile.needed import needed_loads
from kcg.kernel.tile.parameters import TF32

INT32 = range(-(1 << 31), 1 << 31)

TYPES: dict[DType, str] = {
    dtypes.bool: "int1",
    dtypes.int8: "int8",
    dtypes.uint8: "uint8",
    dtypes.int16: "int16",
    dtypes.uint16: "uint16",
    dtypes.int32: "int32",
    dtypes.uint32: "uint32",
    dtypes.int64: "int64",
    dtypes.uint64: "uint64",
    dtypes.fp8e4m3: "float8e4nv",
    dtypes.fp8e5m2: "float8e5",
    dtypes.float16: "float16",
    dtypes.bfloat16: "bfloat16",
    dtypes.float32: "float32",
    dtypes.float64: "float64",
    dtypes.weakfloat: "float32",
}
"""Triton's name of a data type; `weakint` is 32 or 64 bits wide by its bounds."""

POINTERS = {
    "int1": "*i1", "int8": "*i8", "uint8": "*u8", "int16": "*i16", "uint16": "*u16", "int32": "*i32", "uint32": "*u32",
    "int64": "*i64", "uint64": "*u64", "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32",
    "float64": "*fp64", "float8e4nv": "*fp8e4nv", "float8e5": "*fp8e5",
}  # fmt: skip
"""A buffer's type in a signature, by its elements'."""

FP8 = ("float8e4nv", "float8e5")
"""Triton's names of floats of 8 bits."""

_INTEGERS = ("int1", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@dataclass(frozen=True)
class Block:
    """An expression: text that needs no brackets, its Triton type, and the axes of the tile that it extends along."""

    text: str
    type: str
    axes: frozenset[int] = frozenset()
    constant: Any = None  # the number, where it is a literal

    @property
    def is_float(self) -> bool:
        return self.type.startswith("float") or self.type == "bfloat16"


@dataclass(frozen=True)
class Flattened:
    """The ranges that one axis of a tile holds, the last one changing fastest, and the numbers of its elements."""

    ranges: tuple[UOp, ...]
    block: Block


def runs_of(ranges: Sequence[UOp], steps: Mapping[UOp | None, int]) -> list[tuple[int, int]]:
    """Places (first, last) of ranges through which an address steps as through one: all of them, in order."""
    found: list[tuple[int, int]] = []
    for place, axis in enumerate(ranges):
        step = steps.get(axis, 0)
        if found and step and steps.get(ranges[place - 1], 0) == step * extent(axis):
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found


@dataclass(frozen=True)
class Style:
    """How a form's programs read memory."""

    by_parts: bool = False  # each part of an affine address is added by itself, and what nothing needs is not loaded
    keeps_rows: bool = False  # a row is held whole and loaded once, as it is stored

    @property
    def widens(self) -> bool:
        """Whether loads of rows that begin anywhere are widened to blocks of 16 bytes."""
        return self.by_parts or self.keeps_rows


PLAIN = Style()


class Lines:
    """Statements of one body, and what is written in it already: equal expressions are one variable."""

    def __init__(self, writer: Writer, outer: Lines | None = None) -> None:
        self.writer, self.outer = writer, outer
        self.text: list[str] = []
        self.known: dict[str, str] = {}

    def add(self, statement: str) -> None:
        self.text.append(statement)

    def extend(self, header: str, body: Lines, about: str = "") -> None:
        """A compound statement: `header`, then the lines of `body` below it; what it is `about` as a comment."""
        if about:
            self.text.append(f"# {about}")
        self.text.append(header)
        self.text.extend("    " + line for line in body.text or ["pass"])

    def name(self, expression: str, hint: str = "v") -> str:
        """The variable that holds an expression, written here unless an outer body has it."""
        lines: Lines | None = self
        while lines is not None:
            if expression in lines.known:
                return lines.known[expression]
            lines = lines.outer
        variable = self.writer.fresh(hint)
        self.text.append(f"{variable} = {expression}")
        self.known[expression] = variable
        return variable


class Writer:
    """What all frames of one function share: names, helpers that the module needs, and how values are written."""

    def __init__(
        self,
        kernel: TileKernel,
        *,
        interpreted: bool = False,
        fast_math: bool = False,
        evictions: Mapping[UOp, str] | None = None,
        style: Style = PLAIN,
        ptx: bool = False,
    ) -> None:
        self.kernel = kernel
        self.accesses = {load.node: load for one in kernel.launched for load in one.loads}
        if style.by_parts:
            self.accesses |= needed_loads(kernel)
        self.evictions = evictions or {}
        self.interpreted = interpreted
        self.style = style
        self.ptx = ptx and not interpreted  # whether it may be written in NVIDIA's assembly
        # what is stored in 16 bits does not show the approximation's error
        self.fast_tanh = fast_math and all(s.store.buffer.dtype in NARROW for s in kernel.all_stored)
        self.helpers: dict[str, str] = {}
        self.store: Callable[[Frame, Stored, Block], None] | None = None  # how blocks are stored, if not by pointers
        # what was written that the launch or the judging of a program depends on
        self.has_descriptors = False  # of TMA
        self.rounds_to_tf32 = False
        self.exact_bytes = False  # bytes become floats by plain operations
        self._count = 0

    def precision(self, name: str) -> str:
        """How a product of float32 says its precision."""
        self.rounds_to_tf32 |= name == TF32
        return f', input_precision="{name}"'

    def fresh(self, hint: str) -> str:
        """A name that no other variable has, until all is written (`naming.readable`). A `p` and a number is an
        argument: a buffer's first element."""
        self._count += 1
        return made(hint, self._count)


@dataclass(frozen=True)
class Window:
    """A load of a row that begins anywhere, widened to whole blocks of 16 bytes: what is too much is masked later."""

    start: Block  # of the first block's element
    place: Block  # elements from there on
    mask: str  # whether a block has an element of the row; empty: all have


@dataclass(frozen=True)
class Chosen:
    """One of several buffers: the first whose condition (text) holds, else the last."""

    name: str  # the variable of its pointer
    slots: tuple[int, ...]
    conditions: tuple[str, ...]

    @classmethod
    def of(cls, lines: Lines, slots: tuple[int, ...], conditions: Sequence[str]) -> Chosen:
        """Writes the pointer of one of these buffers."""
        pointer = lines.name(choice(conditions, *(f"p{slot}" for slot in slots)), "pointer")
        return cls(pointer, slots, tuple(conditions))


def sliced(layout: str, axes: Sequence[int]) -> str:
    """The layout of blocks without some axes of those that lie by a layout."""
    for axis in reversed(axes):
        layout = f"gl.SliceLayout({axis}, {layout})"
    return layout


def choice(conditions: Sequence[str], *texts: str) -> str:
    """One of several expressions: the first whose condition holds, else the last. By a quotient and a remainder Triton
    3.6 no longer sees that a column is aligned."""
    *others, found = texts
    for condition, text in zip(reversed(conditions), reversed(others), strict=True):
        found = f"tl.where({condition}, {text}, {found})"
    return found


@dataclass
class Frame:
    """Where ranges come from, and the values written so far. `sizes` are the elements along each axis of a block."""

    lines: Lines
    sizes: tuple[int, ...]
    bound: dict[UOp, Block] = field(default_factory=dict)  # range or reduction -> its value
    masks: dict[int, str] = field(default_factory=dict)  # axis -> which of its elements exist, where not all do
    scalar_masks: dict[UOp, str] = field(default_factory=dict)  # symbolic range that is a scalar -> whether it exists
    flattened: dict[int, Flattened] = field(default_factory=dict)  # axis -> the ranges that it holds
    outer: Frame | None = None
    depth: int = 0  # reductions around it
    values: dict[UOp, Block] = field(default_factory=dict)
    windows: dict[UOp, Window] = field(default_factory=dict)  # load -> how it is widened
    reduce: Callable[[UOp, Frame], None] | None = None  # writes the loop that binds a reduction in this frame
    late: dict[UOp, Callable[[], None]] = field(default_factory=dict)  # load -> binds it, where it is used first
    pointers: dict[int, Chosen] = field(default_factory=dict)  # slot -> the buffer that is chosen in its place
    starts: dict[int, str] = field(default_factory=dict)  # axis -> its first element
    layout: str = ""  # how its blocks lie with the threads, where the program says so (Gluon)
    spread: frozenset[int] = frozenset()  # axes along which loads are written out, though they are the same for all
    words: tuple[str, ...] = ()  # what the elements along each axis are called

    @property
    def writer(self) -> Writer:
        return self.lines.writer

    def inner(self, lines: Lines) -> Frame:
        """The frame of a reduction inside this one, with the same blocks."""
        return Frame(
            lines, self.sizes, outer=self, depth=self.depth + 1, reduce=self.reduce, layout=self.layout,
            words=self.words,
        )  # fmt: skip

    @property
    def rank(self) -> int:
        """Axes of every block."""
        return len(self.sizes)

    def shape(self, axes: frozenset[int]) -> str:
        """The shape of a block that extends along some axes."""
        return f"[{', '.join(str(size if i in axes else 1) for i, size in enumerate(self.sizes))}]"

    def find(self, node: UOp) -> Block | None:
        """What a range or a reduction is bound to, here or outside."""
        frame: Frame | None = self
        while frame is not None:
            if node in frame.bound:
                return frame.bound[node]
            frame = frame.outer
        return None

    def chosen(self, slot: int) -> Chosen | None:
        """The buffer that is chosen in a buffer's place."""
        frame: Frame | None = self
        while frame is not None and slot not in frame.pointers:
            frame = frame.outer
        return None if frame is None else frame.pointers[slot]

    def buffer(self, slot: int) -> str:
        """The variable of a buffer's first element."""
        chosen = self.chosen(slot)
        return f"p{slot}" if chosen is None else chosen.name

    def laid(self, text: str) -> str:
        """A block as this frame's blocks lie, where the program says so."""
        return f"tl.convert_layout({text}, {self.layout})" if self.layout else text

    def laid_as(self, text: str) -> str:
        """A block that lies as this frame's blocks do already, though by another name of that layout."""
        return self.lines.name(self.laid(text)) if self.layout else text

    def home(self, node: UOp) -> Frame:
        """The outermost frame that knows all ranges of a value."""
        frame = self
        while frame.outer is not None and all(frame.outer.find(r) is not None for r in node.ranges):
            frame = frame.outer
        return frame

    def mask_of(self, axes: frozenset[int], ranges: Iterable[UOp]) -> list[str]:
        """Conditions under which the elements along these axes exist."""
        found = []
        frame: Frame | None = self
        wanted = set(ranges)
        while frame is not None:
            found += [m for axis, m in sorted(frame.masks.items()) if axis in axes and m not in found]
            found += [m for r, m in frame.scalar_masks.items() if r in wanted and m not in found]
            frame = frame.outer
        return found

    def elements(self, count: int, axis: int) -> str:
        """The expression of the vector 0, 1, ... of an axis."""
        others = [other for other in range(self.rank) if other != axis]
        return f"tl.arange(0, {count}{self.layout and f', {sliced(self.layout, others)}'})"

    def along(self, vector: str, axis: int) -> str:
        """A vector as a block that extends along one axis."""
        if self.rank <= 1:
            return vector
        return f"{vector}[{', '.join(':' if i == axis else 'None' for i in range(self.rank))}]"

    # ---- values

    def value(self, node: UOp) -> Block:
        """A value, float16 and bfloat16 as float32. Raises UnsupportedTile."""
        frame = self.home(node)
        if node not in frame.values:
            frame.values[node] = frame._write(node)
        return frame.values[node]

    def read(self, node: UOp) -> Block:
        """A load as it is in memory, written now: who asks for its value later finds it read."""
        return self.home(node)._load(node)

    def narrow(self, node: UOp, type_: str) -> Block:
        """A value in exactly this type, as a store or a tensor core takes it."""
        if node.op is Ops.INDEX or (node.op is Ops.CAST and node.src[0].op is Ops.INDEX):
            load = node if node.op is Ops.INDEX else node.src[0]
            if (
                self.home(load).find(load) is None
                and load not in self.home(load).late
                and TYPES.get(load.dtype) == type_
                and not self.writer.interpreted
            ):
                return self.home(load)._load(load)
        if node.op is Ops.CAST and type_ in FP8 and TYPES[node.dtype] == type_:
            node = node.src[0]  # rounded once
        return self.home(node).cast(self.value(node), type_)

    def new(self, expression: str, type_: str, axes: frozenset[int], hint: str = "v") -> Block:
        return Block(self.lines.name(expression, hint), type_, axes)

    def word(self, number: int) -> str:
        """What the elements along an axis are called."""
        return self.words[number] if number < len(self.words) else "i"

    def cast(self, block: Block, type_: str) -> Block:
        """A block in another type."""
        if block.type == type_:
            return block
        if block.constant is not None:
            return _literal(_python(block.constant, type_), type_)
        if type_ == "int1":
            return self.new(f"{block.text} != 0", type_, block.axes)
        if type_ in FP8:
            return self._to_fp8(self.cast(block, "float32"), type_)
        if self.writer.exact_bytes and block.type in ("int8", "uint8") and type_ == "float32":
            return self._of_byte(block)
        if block.is_float and type_ in ("int8", "int16", "uint8", "uint16"):
            block = self.new(f"{block.text}.to(tl.int32)", "int32", block.axes)  # there and further it wraps around
        return self.new(f"{block.text}.to(tl.{type_})", type_, block.axes)

    def _of_byte(self, block: Block) -> Block:
        """A byte as a float: it is put into the fraction of 2^23, and that taken away. Both are exact, and the
        instruction that converts has a quarter of their rate or less."""
        text, offset = block.text, float(1 << 23)
        if block.type == "int8":
            text, offset = f"({text}.to(tl.uint8, bitcast=True) ^ 128)", offset + 128
        bits = self.new(f"{text}.to(tl.uint32) | 0x4B000000", "uint32", block.axes, "bits")
        return self.new(f"{bits.text}.to(tl.float32, bitcast=True) - {offset!r}", "float32", block.axes)

    def _to_fp8(self, block: Block, type_: str) -> Block:
        """A float32 block as floats of 8 bits, rounded to nearest; what is beyond the largest becomes that, as in
        tinygrad's own kernels for CUDA (`cvt.rn.satfinite`). Triton's interpreter rounds otherwise: there it is written
        out."""
        if not self.writer.interpreted:
            return self.new(f"{block.text}.to(tl.{type_})", type_, block.axes)
        self.writer.helpers[f"_to_{type_}"] = _rounding_to_fp8(type_)
        return self.new(f"_to_{type_}({block.text})", type_, block.axes)

    def atom(self, block: Block) -> str:
        """A block that has methods: a literal as a tensor."""
        return block.text if block.constant is None else _full(block.constant, block.type)

    def _write(self, node: UOp) -> Block:
        if (known := self.find(node)) is not None:
            return known
        match node.op:
            case Ops.CONST:
                if is_invalid(node):
                    return _literal(0, "int32")
                return _literal(node.arg, compute_type(node))
            case Ops.INDEX if node in self.late:
                self.late[node]()
                return self.bound[node]
            case Ops.INDEX:
                return self.cast(self._load(node), compute_type(node))
            case Ops.REDUCE:
                if self.reduce is None:
                    raise UnsupportedTile("reduction beside the product")
                self.reduce(node, self)
                return self.bound[node]
            case Ops.CAST:
                return self._cast(node)
            case Ops.BITCAST:
                source = self.narrow(node.src[0], TYPES[node.src[0].dtype])
                block = self.new(
                    f"{self.atom(source)}.to(tl.{TYPES[node.dtype]}, bitcast=True)", TYPES[node.dtype], source.axes
                )
                return self.cast(block, compute_type(node))
            case Ops.WHERE:
                return self._where(node)
            case Ops.RANGE:
                raise UnsupportedTile("range that is not open", "a value outside the loop that it belongs to")
            case Ops.PARAM:
                raise UnsupportedTile("variable of no launch")
            case _:
                return self._alu(node)

    def _cast(self, node: UOp) -> Block:
        if _keeps_product(node, self.writer.kernel):
            a, b = (self.cast(self.value(s), "int32") for s in node.src[0].src)
            return self.cast(self.new(f"{_term(a)} * {_term(b)}", "int32", a.axes | b.axes), compute_type(node))
        source = self.value(node.src[0])
        if node.dtype in dtypes.fp8s:
            return self.cast(self.cast(source, TYPES[node.dtype]), "float32")
        return self.cast(source, compute_type(node))

    def _where(self, node: UOp) -> Block:
        condition, one, other = node.src
        if is_invalid(one) or is_invalid(other):
            return self.value(other if is_invalid(one) else one)
        type_ = compute_type(node)
        c = self.value(condition)
        a, b = (self.cast(self.value(s), type_) for s in (one, other))
        if c.constant is not None:
            return a if c.constant else b
        both = a.constant is not None and b.constant is not None
        a_text, b_text = (self.atom(x) if both else _term(x) for x in (a, b))
        return self.new(f"tl.where({c.text}, {a_text}, {b_text})", type_, c.axes | a.axes | b.axes)

    def _alu(self, node: UOp) -> Block:
        if (power := self._power_of_difference(node)) is not None:
            return power
        if (sigmoid := self._sigmoid(node)) is not None:
            return sigmoid
        if (negated := _negated(node)) is not None:
            return self._compare(*negated)
        if node.op in _COMPARE:
            return self._compare(node, _INFIX[node.op])
        sources = [self.value(s) for s in node.src]
        type_ = compute_type(node)
        if node.dtype is dtypes.weakint:
            type_ = _joined([type_, *_types(node, sources)])
        operands = [self.cast(s, type_) for s in sources]
        axes = frozenset[int]().union(*(s.axes for s in operands))
        expression = self._expression(node, operands, type_)
        if type_ == "int1" and len({o.axes for o in operands}) > 1:
            expression = self._condition(expression)
        block = self.new(expression, type_, axes)
        return self.cast(block, compute_type(node)) if node.dtype is dtypes.weakint else block

    def _compare(self, node: UOp, symbol: str) -> Block:
        sources = [self.value(s) for s in node.src]
        type_ = _joined(_types(node, sources))
        a, b = (self.cast(s, type_) for s in sources)
        if type_ == "int1":
            other = {"<": Ops.CMPLT, "!=": Ops.CMPNE, "==": Ops.CMPEQ}[symbol]
            text = f"{a.text} == 0" if b.constant is True and symbol == "!=" else ""
            text = text or _OF_BOOLS[other].format(x=self.atom(a), y=self.atom(b))
            return self.new(self._condition(text) if a.axes != b.axes else text, "int1", a.axes | b.axes)
        both = a.constant is not None and b.constant is not None
        x, y = (self.atom(o) if both else _term(o) for o in (a, b))
        text, axes = f"{x} {symbol} {y}", a.axes | b.axes
        return self.new(text if axes else self.scalar_condition(text), "int1", axes)

    def scalar_condition(self, comparison: str) -> str:
        """A comparison of scalars, which Triton's interpreter takes for a number of the operands' type."""
        return f"tl.full([], True, tl.int1) & ({comparison})" if self.writer.interpreted else comparison

    def _condition(self, expression: str) -> str:
        """A logical expression of a scalar and a block, which Triton's interpreter takes for an integer."""
        return f"({expression}) != 0" if self.writer.interpreted else expression

    def all_of(self, conditions: Sequence[str]) -> str:
        """The variable that holds whether all conditions hold."""
        if len(conditions) == 1:
            return conditions[0]
        return self.lines.name(self._condition(" & ".join(conditions)), "mask")

    def _expression(self, node: UOp, operands: list[Block], type_: str) -> str:
        first = operands[0]
        if all(o.constant is not None for o in operands):
            x, *rest = [self.atom(o) for o in operands]
        else:
            x, *rest = [_term(o) for o in operands]
        y = rest[0] if rest else ""
        if node.op is Ops.EXP2 and type_ == "float32":
            return self.exp2(x)
        if node.op in _FLOAT_FUNCTIONS:
            return _FLOAT_FUNCTIONS[node.op].format(x=x)
        if type_ == "int1" and node.op in _OF_BOOLS:
            if operands[-1].constant is True and node.op is Ops.XOR:
                return f"{x} == 0"
            return _OF_BOOLS[node.op].format(x=x, y=y)
        match node.op:
            case Ops.MAX:
                if not dtypes.is_float(node.dtype):
                    return f"tl.maximum({x}, {y})"
                # as tinygrad's CUDA and C: of NaN the first operand is left, where Triton's maximum leaves a number
                is_less = f"{x} < {y}" if any(o.axes for o in operands) else self.scalar_condition(f"{x} < {y}")
                return f"tl.where({is_less}, {y}, {x})"
            case Ops.NEG:
                return f"-{x}"
            case Ops.MULACC:
                return f"{x} * {y} + {rest[1]}"
            case Ops.TRUNC:
                return x if not first.is_float else f"tl.where({x} < 0, tl.ceil({x}), tl.floor({x}))"
            case Ops.FLOORDIV | Ops.FLOORMOD:
                return self._floor(node, x, y)
            case Ops.THREEFRY:
                self.writer.helpers["_threefry"] = _threefry()
                return f"_threefry({x}, {y})"
        if node.op not in _INFIX:
            raise UnsupportedTile(f"operation {node.op.name}")
        return f"{x} {_INFIX[node.op]} {y}"

    def _floor(self, node: UOp, x: str, y: str) -> str:
        """Division that rounds down; Triton's rounds towards 0, as in C."""
        quotient, rest = self.lines.name(f"{x} // {y}"), self.lines.name(f"{x} % {y}")
        a, b = node.src
        if a.vmin >= 0 and b.vmin > 0:
            return quotient if node.op is Ops.FLOORDIV else rest
        off = self.lines.name(f"({rest} != 0) & (({rest} < 0) != ({y} < 0))")
        if node.op is Ops.FLOORDIV:
            return f"tl.where({off}, {quotient} - 1, {quotient})"
        return f"tl.where({off}, {rest} + {y}, {rest})"

    def _sigmoid(self, node: UOp) -> Block | None:
        """1 / (1 + 2^u): as 0.5 - 0.5 tanh(u ln(2) / 2) by one special function, or by two that are right in the tail
        as well, without the care of a division for what lies beyond 2^126."""
        if (inner := power_of_sigmoid(node)) is None:
            return None
        if not self.writer.fast_tanh:
            u = self.value(inner)
            self.writer.helpers["_reciprocal"] = _RECIPROCAL if self.writer.ptx else _PLAIN_RECIPROCAL
            power = self.new(self.exp2(_term(u)), "float32", u.axes)
            return self.new(f"_reciprocal(1.0 + {power.text})", "float32", u.axes)
        factor = math.log(2) / 2
        if inner.op is Ops.MUL and inner.src[1].op is Ops.CONST:
            inner, factor = inner.src[0], factor * float(inner.src[1].arg)
        u = self.value(inner)
        x = self.new(f"{_term(u)} * {_number(factor)}", "float32", u.axes)
        self.writer.helpers["_tanh"] = _TANH if self.writer.ptx else _PLAIN_TANH
        return self.new(f"0.5 - 0.5 * _tanh({x.text})", "float32", u.axes)

    def _power_of_difference(self, node: UOp) -> Block | None:
        """2^((x + y) c), where y is of fewer elements, as 2^(x c + y c): one operation for each of x instead of two, or
        of three where x has a factor. So is a maximum so far (`online.py`), which is the same for all elements that a
        thread has of a row. Not where a comparison follows: x c may be too large for a float where (x + y) c is 0. Nor
        where x + y is closer than x c: of exact numbers near -200, as a softmax's may be, it is exact, and x c is off
        by so much that float32 shows it."""
        if node.op is not Ops.EXP2 or compute_type(node) != "float32" or node in self.writer.kernel.compared:
            return None
        total, factor = scaled(node.src[0])
        if factor == 1 or total.op is not Ops.ADD:
            return None
        one, other = sorted(total.src, key=lambda term: (is_running(term), -len(self.value(scaled(term)[0]).axes)))
        inner, own = scaled(one)
        if _is_exact(inner, own) and self.writer.kernel.stores_float32:
            return None
        x, y = self.value(inner), self.value(other)
        if x.type != "float32" or not (y.axes < x.axes or is_running(other)):
            return None
        shift = self.home(other).new(f"{_term(y)} * {_number(factor)}", "float32", y.axes)
        inside = self.new(f"{_term(x)} * {_number(own * factor)} + {shift.text}", "float32", x.axes)
        return self.new(self.exp2(inside.text), "float32", x.axes)

    def exp2(self, x: str) -> str:
        """2^x of a float32 expression."""
        if not self.writer.ptx:
            return f"tl.exp2({x})"
        self.writer.helpers["_exp2"] = _EXP2
        return f"_exp2({x})"

    # ---- memory

    def address(self, node: UOp) -> Block:
        """An address: its terms that do not change in a loop are added before it."""
        wide = "int32" if all(_fits(n) for n in node.toposort() if n.dtype is dtypes.weakint) else "int64"
        runs, terms = self._runs(node, affine(node) if wide == "int32" else None)
        sums: dict[int, Block] = {}
        frames: dict[int, Frame] = {}
        homes = [self.home(term) for term in terms]
        for frame, block in [*runs, *((home, home.value(term)) for home, term in zip(homes, terms, strict=True))]:
            where = id(frame)
            frames[where] = frame
            sums[where] = block if where not in sums else frame._sum(sums[where], block, wide)
        order = sorted(sums, key=lambda where: self._depth(frames[where]))
        total = sums[order[0]]
        for where in order[1:]:
            total = frames[where]._sum(total, sums[where], wide)
        return self.cast(total, _joined([total.type, wide])) if wide == "int64" else total

    def _runs(self, node: UOp, steps: Mapping[UOp | None, int] | None) -> tuple[list[tuple[Frame, Block]], list[UOp]]:
        """The terms of an address; those of ranges through which it steps as through one, as if they were one: Triton
        sees that elements lie side by side then."""
        runs, held = list[tuple[Frame, Block]](), set[UOp]()
        frame: Frame | None = self
        while frame is not None and steps is not None:
            for axis in frame.flattened.values():
                for first, last in runs_of(axis.ranges, steps):
                    if first < last and held.isdisjoint(axis.ranges[first : last + 1]):
                        runs.append((frame, frame._times(frame._run(axis, first, last), steps[axis.ranges[last]])))
                        held.update(axis.ranges[first : last + 1])
            frame = frame.outer
        if steps is not None and held:
            left = [(r, step) for r, step in steps.items() if r not in held and step]
            return runs, [UOp.const(s, dtypes.weakint) if r is None else r if s == 1 else r * s for r, s in left]
        terms: list[UOp] = []
        stack = [node]
        while stack:
            part = stack.pop()
            stack.extend(part.src[::-1]) if part.op is Ops.ADD else terms.append(part)
        return [], terms

    def _run(self, axis: Flattened, first: int, last: int) -> Block:
        """The number of an element along some ranges of an axis, as if they were one."""
        text = axis.block.text
        if (after := math.prod(map(extent, axis.ranges[last + 1 :]))) > 1:
            text = self.lines.name(f"{text} // {after}")
        if first:
            text = self.lines.name(f"{text} % {math.prod(map(extent, axis.ranges[first : last + 1]))}")
        return Block(text, axis.block.type, axis.block.axes)

    def _times(self, block: Block, step: int) -> Block:
        return block if step == 1 else self.new(f"{block.text} * {_number(step)}", block.type, block.axes, "offset")

    def _depth(self, frame: Frame) -> int:
        outer: Frame | None = self
        depth = 0
        while outer is not None and outer is not frame:
            outer, depth = outer.outer, depth + 1
        return -depth

    def _sum(self, a: Block, b: Block, type_: str) -> Block:
        if a.constant is not None and b.constant is not None:
            return _literal(a.constant + b.constant, type_)
        a, b = self.cast(a, type_), self.cast(b, type_)
        return self.new(f"{_term(a)} + {_term(b)}", type_, a.axes | b.axes, "offset")

    def pointer(self, access: Access) -> tuple[str, frozenset[int]]:
        """The pointer of a load or a store, and its axes.

        Of single elements and reductions each part of an affine address is added to the pointer by itself, what changes
        least first: the machine then adds small constants to one pointer instead of widening a sum of 32 bits for every
        load.
        """
        steps = affine(access.address) if self.writer.style.by_parts else None
        if steps is None:
            place = self.address(access.address)
            return f"{self.buffer(access.buffer.slot)} + {self._hinted(access, place)}", place.axes
        wide = "int32" if all(_fits(n) for n in access.address.toposort() if n.dtype is dtypes.weakint) else "int64"
        parts = self.parts(steps, wide) or [(self, _literal(0, wide))]
        pointer = self.buffer(access.buffer.slot)
        for frame, block in parts[:-1]:
            pointer = frame.lines.name(f"{pointer} + {_term(block)}", f"p{access.buffer.slot}_at")
        axes = frozenset[int]().union(*(block.axes for _, block in parts))
        return f"{pointer} + {_term(parts[-1][1])}", axes

    def parts(self, steps: Mapping[UOp | None, int], type_: str) -> list[tuple[Frame, Block]]:
        """The parts of an affine address, by frame and axes, outermost and fewest axes first. Neighbouring ranges of
        one axis that step as one are one: of all of them that is the axis itself, whose elements are consecutive."""
        left = {axis: step for axis, step in steps.items() if step}
        found: dict[tuple[int, frozenset[int]], tuple[Frame, Block]] = {}

        def add(frame: Frame, unit: Block, step: int) -> None:
            unit = frame.cast(unit, type_)
            if unit.constant is not None:
                block = _literal(unit.constant * step, type_)
            else:
                block = unit if step == 1 else frame.new(f"{unit.text} * {step}", type_, unit.axes, "offset")
            key = (self._depth(frame), block.axes)
            found[key] = (frame, frame._sum(found[key][1], block, type_) if key in found else block)

        frame: Frame | None = self
        while frame is not None:
            for flattened in frame.flattened.values():
                for first, last in runs_of(flattened.ranges, left):
                    if first < last:
                        add(frame, frame._run(flattened, first, last), left[flattened.ranges[last]])
                        for axis in flattened.ranges[first : last + 1]:
                            left.pop(axis)
            frame = frame.outer
        for axis, step in left.items():
            outermost = self.home(axis) if axis is not None else self.outermost()
            add(outermost, outermost.value(axis) if axis is not None else _literal(1, type_), step)
        return [found[key] for key in sorted(found, key=lambda key: (key[0], len(key[1]), sorted(key[1])))]

    def outermost(self) -> Frame:
        frame = self
        while frame.outer is not None:
            frame = frame.outer
        return frame

    def access(
        self, access: Access, gates: Iterable[UOp] = ()
    ) -> tuple[str, frozenset[int], list[str], frozenset[int]]:
        """Pointer and its axes, conditions and all axes of a load or a store."""
        pointer, of_pointer = self.pointer(access)
        conditions = self.mask_of(of_pointer, access.address.ranges)
        axes = of_pointer
        for gate in (*access.gates, *gates):
            block = self.value(gate)
            if block.constant is not None and block.constant:
                continue
            axes |= block.axes
            text = self.atom(block)
            if self.writer.interpreted and of_pointer and not block.axes:
                text = self.lines.name(self._condition(f"{text} & tl.full({self.shape(of_pointer)}, True, tl.int1)"))
            conditions.append(text)
        if axes != of_pointer:
            conditions += [m for m in self.mask_of(axes, ()) if m not in conditions]
        return pointer, of_pointer, conditions, axes

    def _hinted(self, access: Access, place: Block) -> str:
        """An address, with a hint along which axis neighbouring threads should go where Triton cannot tell.

        It sees elements side by side only where all ranges of an axis but the last have an even extent: of pictures of
        7 × 7 or read with a stride it sees none, and 3.6 lets threads go along the first axis. The hint says that pairs
        are side by side, which orders the threads; that the address is a multiple of nothing else keeps loads and
        stores as narrow as they would be.
        """
        flattened: dict[int, Flattened] = {}
        frame: Frame | None = self
        while frame is not None:
            flattened = {**frame.flattened, **flattened}
            frame = frame.outer
        axes = {n: flattened[n] for n in sorted(place.axes & flattened.keys())}
        axis = nearest_axis(access, axes)
        if axis is None and self.writer.style.keeps_rows and place.axes == frozenset({0, 1, 2}):
            return self._hinted_order(access, place, axes[2])
        if axis is None:
            return place.text
        ones, pairs = ["1"] * self.rank, ["2" if number == axis else "1" for number in range(self.rank)]
        return f"tl.max_contiguous(tl.multiple_of({place.text}, [{', '.join(ones)}]), [{', '.join(pairs)}])"

    def _hinted_order(self, access: Access, place: Block, along: Flattened) -> str:
        """An address of rows that share tables, with the hint that neighbouring threads go along the second axis after
        they went along the last one: of equal axes Triton 3.6 takes the first. Then a thread holds elements of several
        rows that share what it holds of a table."""
        steps = affine(access.address)
        if steps is None or runs_of(along.ranges, steps) != [(0, len(along.ranges) - 1)] or self.sizes[1] < 2:
            return place.text
        return (
            f"tl.max_contiguous({place.text}, [1, 2, {self.sizes[2]}])" if steps[along.ranges[-1]] == 1 else place.text
        )

    def _load(self, node: UOp) -> Block:
        access = self.writer.accesses[node]
        type_ = TYPES[node.dtype]
        policy = self.writer.evictions.get(node)
        how = f', eviction_policy="{policy}"' if policy else ""
        zero, hint = "0.0" if type_ in FP8 else "0", f"p{access.buffer.slot}_block"
        if (window := self.windows.get(node)) is not None:
            assert self.outer is not None
            slot = access.buffer.slot
            first = self.outer.lines.name(f"{self.buffer(slot)} + {_term(window.start)}", f"p{slot}_at")
            axes = window.start.axes | window.place.axes
            others = self.outer.mask_of(axes, access.address.ranges)
            conditions = [window.mask, *others] if window.mask else others
            mask = f", mask={self.all_of(conditions)}, other={zero}" if conditions else ""
            return self.new(f"tl.load({first} + {window.place.text}{mask}{how})", type_, axes, hint)
        pointer, of_pointer, conditions, axes = self.access(access)
        if of_pointer and (more := self.spread - of_pointer):
            of_pointer |= more
            axes |= more
            pointer = f"{pointer} + tl.zeros({self.shape(of_pointer)}, tl.int32)"
        if not conditions:
            return self.new(f"tl.load({pointer}{how})", type_, axes, hint)
        if axes != of_pointer:  # a mask may not extend a pointer: the pointer must have its shape
            pointer = f"{pointer} + tl.where({self.all_of(conditions)}, 0, 0)"
        return self.new(f"tl.load({pointer}, mask={self.all_of(conditions)}, other={zero}{how})", type_, axes, hint)


_TANH = """
@triton.jit
def _tanh(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
"""


_RECIPROCAL = """
@triton.jit
def _reciprocal(x):
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
"""
_PLAIN_RECIPROCAL = """
@triton.jit
def _reciprocal(x):
    return 1.0 / x
"""


_EXP2 = """
@triton.jit
def _exp2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
"""
"""Results below 2^-126 are 0: without `ftz` three more instructions scale what is that small."""


def _threefry() -> str:
    """Threefry 2x32 with its 20 rounds, as tinygrad takes it apart."""
    rows = [
        "@triton.jit",
        "def _threefry(x, key):",
        "    k0 = (key & 0xFFFFFFFF).to(tl.uint32)",
        "    k1 = (key >> 32).to(tl.uint32)",
        "    k2 = k0 ^ k1 ^ 0x1BD11BDA",
        "    a = (x & 0xFFFFFFFF).to(tl.uint32) + k0",
        "    b = (x >> 32).to(tl.uint32) + k1",
    ]
    for i in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            rows += ["    a = a + b", f"    b = a ^ ((b << {r}) | (b >> {32 - r}))"]
        rows += [f"    a = a + k{(i + 1) % 3}", f"    b = b + k{(i + 2) % 3} + {i + 1}"]
    rows.append("    return (b.to(tl.uint64) << 32) | a.to(tl.uint64)")
    return "\n" + "\n".join(rows) + "\n"


def _rounding_to_fp8(type_: str) -> str:
    """The conversion of float32 as `cvt.rn.satfinite` does it: to the nearest multiple of the last place, which is
    added to the number of the power of two. Adding and taking away 1.5 * 2^23 rounds to an integer, ties to even."""
    bits, largest, least = {"float8e4nv": (3, 448.0, 121), "float8e5": (2, 57344.0, 113)}[type_]
    return f"""
@triton.jit
def _to_{type_}(x):
    bits = x.to(tl.int32, bitcast=True)
    size = tl.where(x == x, tl.minimum(tl.abs(x), {largest}), 0.0)
    exponent = tl.maximum(size.to(tl.int32, bitcast=True) >> 23, {least})
    places = size * ((254 + {bits} - exponent) << 23).to(tl.float32, bitcast=True)
    code = ((exponent - {least}) << {bits}) + ((places + 12582912.0) - 12582912.0).to(tl.int32)
    code = tl.where(x == x, code, 127) | ((bits >> 24) & 128)
    return code.to(tl.uint8).to(tl.{type_}, bitcast=True)
"""


_PLAIN_TANH = """
@triton.jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
"""

_COMPARE = (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)
_INTEGER = (
    Ops.ADD, Ops.MUL, Ops.MAX, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.AND, Ops.OR, Ops.XOR, Ops.SHL,
    Ops.SHR, Ops.NEG, Ops.SUB, Ops.MULACC,
)  # fmt: skip
_UNROUNDED = (Ops.CONST, Ops.CAST, Ops.WHERE, Ops.MAX, Ops.NEG)
_INFIX = {
    Ops.ADD: "+",
    Ops.SUB: "-",
    Ops.MUL: "*",
    Ops.FDIV: "/",
    Ops.CDIV: "//",
    Ops.CMOD: "%",
    Ops.AND: "&",
    Ops.OR: "|",
    Ops.XOR: "^",
    Ops.SHL: "<<",
    Ops.SHR: ">>",
    Ops.CMPLT: "<",
    Ops.CMPNE: "!=",
    Ops.CMPEQ: "==",
}
_OF_BOOLS = {
    Ops.ADD: "{x} | {y}",
    Ops.MAX: "{x} | {y}",
    Ops.OR: "{x} | {y}",
    Ops.MUL: "{x} & {y}",
    Ops.AND: "{x} & {y}",
    Ops.XOR: "{x} ^ {y}",
    Ops.CMPNE: "{x} ^ {y}",
    Ops.CMPEQ: "({x} ^ {y}) == 0",
    Ops.CMPLT: "({x} == 0) & {y}",
}
_FLOAT_FUNCTIONS = {
    Ops.EXP2: "tl.exp2({x})",
    Ops.LOG2: "tl.log2({x})",
    Ops.SIN: "tl.sin({x})",
    Ops.SQRT: "tl.sqrt({x})",
    Ops.RECIPROCAL: "1.0 / {x}",
}


def power_of_sigmoid(node: UOp) -> UOp | None:
    """The u of a value 1 / (1 + 2^u); None of any other."""
    if node.op is not Ops.RECIPROCAL or node.dtype is dtypes.float64 or node.src[0].op is not Ops.ADD:
        return None
    for one, power in (node.src[0].src, node.src[0].src[::-1]):
        if one.op is Ops.CONST and not is_invalid(one) and float(one.arg) == 1 and power.op is Ops.EXP2:
            return power.src[0]
    return None


def keeps_tail(value: UOp) -> bool:
    """Whether a value is a product with a sigmoid, as silu and gelu are: where that is nearly 0 the value is judged by
    its own size, and an approximation that is exact to so many bits of 1 is wrong."""
    rest = [value]
    while rest:
        node = rest.pop()
        if power_of_sigmoid(node) is not None:
            return True
        if node.op in (Ops.CAST, Ops.MUL, Ops.WHERE):
            rest.extend(node.src)
    return False


def nearest_axis(access: Access, axes: Mapping[int, Flattened]) -> int | None:
    """Along which of several axes the elements of an access lie nearest to each other, where Triton cannot tell; None
    where it can, or where nobody can."""
    steps = affine(access.address)
    if steps is None or len(axes) < 2 or any(is_symbolic(r) for axis in axes.values() for r in axis.ranges):
        return None
    moving: dict[int, tuple[int, int]] = {}
    for number, axis in axes.items():
        first, last = runs_of(axis.ranges, steps)[-1]
        step, size = abs(steps.get(axis.ranges[-1], 0)), math.prod(map(extent, axis.ranges[first : last + 1]))
        if step == 1 and (first == 0 or size % 2 == 0):
            return None
        if step:
            moving[number] = (step, -size)
    return min(moving, key=moving.__getitem__, default=None)


def _types(node: UOp, sources: Sequence[Block]) -> list[str]:
    """The types of the operands that have one of their own."""
    found = [block.type for block, source in zip(sources, node.src, strict=True) if source.op is not Ops.CONST]
    return found or [sources[0].type]


def _negated(node: UOp) -> tuple[UOp, str] | None:
    """Of `not (a < b)` the comparison and the sign of its opposite, where NaN does not come between."""
    if node.op is not Ops.CMPNE or node.src[1].op is not Ops.CONST or node.src[1].arg is not True:
        return None
    inner = node.src[0]
    if inner.op not in _COMPARE or inner.src[0].dtype is dtypes.bool:
        return None
    if inner.op is Ops.CMPLT and any(dtypes.is_float(s.dtype) for s in inner.src):
        return None
    return inner, {Ops.CMPNE: "==", Ops.CMPEQ: "!=", Ops.CMPLT: ">="}[inner.op]


def _keeps_product(cast: UOp, kernel: TileKernel) -> bool:
    """Whether a cast takes a product of narrow integers before it wraps around: C multiplies them as 32 bits, and in
    tinygrad's own kernels for CUDA the product is narrowed only where it is a variable, since it is taken twice."""
    product = cast.src[0]
    if product.op is not Ops.MUL or not dtypes.is_int(product.dtype) or not dtypes.is_int(cast.dtype):
        return False
    if product.dtype.itemsize > 2 or cast.dtype.itemsize < 4:
        return False
    return bool(sum(node.src.count(product) for node in kernel.value.toposort()) == 1)


def compute_type(node: UOp) -> str:
    """The type in which a value is computed."""
    if node.dtype is dtypes.weakint:
        return "int32" if _fits(node) else "int64"
    if node.dtype in NARROW or node.dtype in dtypes.fp8s:
        return "float32"
    return TYPES[node.dtype]


def _fits(node: UOp) -> bool:
    return int(node.vmin) in INT32 and int(node.vmax) in INT32


def _joined(types: Iterable[str]) -> str:
    """The type that holds the values of all."""
    order = ["int1", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
    return max(types, key=order.index)


def _python(value: Any, type_: str) -> Any:
    if type_ == "int1":
        return bool(value)
    if type_ in _INTEGERS:
        bits = int(type_.lstrip("uint"))
        wrapped = int(value) % (1 << bits)
        return wrapped if type_.startswith("u") or wrapped < 1 << (bits - 1) else wrapped - (1 << bits)
    return float(value)


def _literal(value: Any, type_: str) -> Block:
    value = _python(value, type_)
    return Block(_number(value), type_, constant=value)


def _number(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if not (isinstance(value, int | float) and value < 0) else f"({value!r})"


def _is_exact(value: UOp, factor: float) -> bool:
    """Whether nothing of a value times a factor is rounded: of loads, as they are, and a power of two."""
    if abs(math.frexp(factor)[0]) != 0.5:
        return False
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if dtypes.is_float(node.dtype) and node.op not in (*_UNROUNDED, Ops.INDEX):
            return False
        waiting += () if node.op is Ops.INDEX else node.src
    return True


def _term(block: Block) -> str:
    """An operand beside a block: a literal stays one where Triton gives it the right type."""
    if block.constant is None or block.type in ("float32", "int32", "int1"):
        return block.text
    return _full(block.constant, block.type)


def _full(value: Any, type_: str) -> str:
    return f"tl.full([], {_number(value)}, tl.{type_})"
