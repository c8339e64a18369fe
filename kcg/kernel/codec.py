"""A kernel's AST as JSON and back: the safe replacement of tinygrad's own `pyrender`, which executes code.

The text is `{"format":1,"nodes":[[op, dtype, [indices of sources], arg], ...]}` in topological order, the sink last,
as canonical JSON; its SHA-256 is the kernel's identity. Reading trusts nothing: operations, data types and the shape of
each argument come from fixed lists, sizes are capped, the graph must be well formed, and encoding it again must give
the same text. Safe to parse is not safe to run: a foreign AST may still read out of bounds.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kcg.compat.standalone import normalised
from kcg.compat.tiny import (
    AddrSpace,
    AxisType,
    Context,
    DType,
    GroupOp,
    Invalid,
    KernelInfo,
    Ops,
    ParamArg,
    UOp,
    dtypes,
    spec_tensor,
    type_verify,
)
from kcg.errors import CodecError
from kcg.types import Kernel, canonical_json

FORMAT = 1
MAX_BYTES = 8 << 20
MAX_NODES = 20_000
MAX_RANGES = 128  # the largest kernels seen have 9; tinygrad's own passes grow with ranges × nodes
MAX_SLOT = 4_095
MAX_SOURCES = 4_096
KEPT_CHARS = 1 << 16  # of the longest text whose AST is kept

_DTYPE_NAMES = (
    "void",
    "weakint",
    "weakfloat",
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "fp8e4m3",
    "fp8e5m2",
    "fp8e4m3fnuz",
    "fp8e5m2fnuz",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
_DTYPES: dict[str, DType] = {name: getattr(dtypes, name) for name in _DTYPE_NAMES}
_NAME_OF: dict[DType, str] = {dtype: name for name, dtype in _DTYPES.items()}
DTYPE_NAMES: dict[str, str] = {dtype.name: name for name, dtype in _DTYPES.items()}
"""tinygrad's own name of a data type, as code in C has it (`unsigned char`) -> the name that is stored (`uint8`)."""

_ARITY: dict[Ops, tuple[int, int]] = {
    **dict.fromkeys(GroupOp.Unary, (1, 1)),
    **dict.fromkeys(GroupOp.Binary, (2, 2)),
    **dict.fromkeys(GroupOp.Ternary, (3, 3)),
    Ops.CAST: (1, 1),
    Ops.BITCAST: (1, 1),
    Ops.CONST: (0, 0),
    Ops.PARAM: (1, 1),
    Ops.RANGE: (1, 1),
    Ops.RESHAPE: (2, 2),
    Ops.STACK: (0, 16),
    Ops.INDEX: (1, 17),  # one where a buffer of no dimensions is read, as where a scalar is summed over devices
    Ops.REDUCE: (2, MAX_RANGES),
    Ops.STORE: (2, 2),
    Ops.END: (2, MAX_RANGES),
    Ops.SINK: (1, MAX_SOURCES),
}
"""Every operation of an unoptimised kernel AST, with the least and the largest number of its sources."""

_OPS: dict[str, Ops] = {op.name: op for op in _ARITY}
_AXIS_TYPES = {  # what one thread holds, UPCAST and UNROLL, is only in kernels that a program writes itself
    axis.name: axis
    for axis in (
        AxisType.WEAK,
        AxisType.LOOP,
        AxisType.REDUCE,
        AxisType.UPCAST,
        AxisType.UNROLL,
        AxisType.DEVICE,
    )
}
_ADDR_SPACES = {space.name: space for space in (AddrSpace.GLOBAL, AddrSpace.ALU)}
_REDUCE_OPS = {op.name: op for op in GroupOp.Reduce}
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")  # it is rendered into source code
_FLOAT_BITS = re.compile(r"[0-9a-f]{16}")


def normalise(ast: UOp) -> UOp:
    """The same kernel without what does not belong to its identity.

    Device names, tags, the kernel's name, Opts, estimates and beam width are removed; device *ranges* stay. Idempotent.
    Raises CodecError where `ast` is not a SINK.
    """
    if not isinstance(ast, UOp) or ast.op is not Ops.SINK:
        raise CodecError(f"a kernel AST is a SINK, not {getattr(ast, 'op', type(ast).__name__)}")
    return normalised(ast)


def encode(ast: UOp) -> str:
    """The canonical JSON of a kernel's AST, normalised first.

    Raises CodecError where the AST holds what an unoptimised kernel does not (a custom kernel, an image, inline code).
    """
    ast = normalise(ast)
    text = _text_of(ast)
    if decode(text) is not ast:
        raise CodecError("the AST does not survive encoding and decoding")
    return text


def decode(text: str) -> UOp:
    """The AST of `text`: the identical (hash-consed) object of the normalised AST that was encoded.

    Raises only CodecError, with one line that says what is wrong and, where it is one node, which.
    """
    return _decoded(text) if isinstance(text, str) and len(text) <= KEPT_CHARS else _decode(text)


def _decode(text: str) -> UOp:
    nodes: list[UOp] = []
    try:
        for i, row in enumerate(_rows_of(text)):
            try:
                nodes.append(_node_of(row, nodes))
            except CodecError as error:
                raise CodecError(f"AST node {i}: {error}") from None
        ast = _checked(nodes)
        same = _text_of(ast) == text
    except CodecError:
        raise
    except Exception as error:  # tinygrad's constructors assert and raise anything on malformed graphs
        raise CodecError(f"the AST is malformed: {_one_line(error)}") from error
    if not same:
        raise CodecError("the AST is not in canonical form: encoding it again gives another text")
    return ast


def kernel_of(ast: UOp) -> Kernel:
    """The kernel of an AST, see `encode`."""
    return Kernel(encode(ast))


_decoded = lru_cache(128)(_decode)
"""Space, reference, compiler and code generator of a region read its kernels one after another."""


def ast_of(kernel: Kernel) -> UOp:
    """The AST of a kernel, see `decode`."""
    return decode(kernel.ast_json)


def load_kernel(text: str, *, expected_id: str) -> Kernel:
    """The kernel of a stored text, checked in full. Raises CodecError where its identity is not `expected_id`."""
    decode(text)
    kernel = Kernel(text)
    if kernel.id != expected_id:
        raise CodecError(f"the AST's identity is {kernel.id[:12]}, not {expected_id[:12]} as stored beside it")
    return kernel


# ***** writing *****


def _text_of(ast: UOp) -> str:
    index: dict[UOp, int] = {}
    rows: list[list[object]] = []
    for i, node in enumerate(ast.toposort()):
        index[node] = i
        if node.op.name not in _OPS:
            raise CodecError(f"operation {node.op.name} does not belong into an unoptimised kernel")
        if node.dtype not in _NAME_OF:
            raise CodecError(f"data type {node.dtype.name} does not belong into an unoptimised kernel")
        rows.append([node.op.name, _NAME_OF[node.dtype], [index[s] for s in node.src], _json_of_arg(node)])
    return canonical_json({"format": FORMAT, "nodes": rows})


def _json_of_arg(node: UOp) -> object:
    arg = node.arg
    match node.op:
        case Ops.CONST:
            if arg is Invalid:
                return "Invalid"
            return f"{struct.unpack('<Q', struct.pack('<d', arg))[0]:016x}" if isinstance(arg, float) else arg
        case Ops.CAST | Ops.BITCAST:
            return _NAME_OF.get(arg)
        case Ops.PARAM:
            limits = None if arg.vmin_vmax is None else list(arg.vmin_vmax)
            space = None if arg.addrspace is None else arg.addrspace.name
            return [arg.slot, _NAME_OF.get(arg.dtype), limits, arg.multiple_of, arg.name, space, arg.axis, arg.volatile]
        case Ops.RANGE:
            return [a.name if isinstance(a, AxisType) else a for a in arg]
        case Ops.REDUCE:
            return [arg[0].name, arg[1]]
        case Ops.SINK:
            return None  # normalised: KernelInfo()
    if arg is not None:
        raise CodecError(f"operation {node.op.name} takes no argument, but has {_one_line(arg)}")
    return None


# ***** reading *****


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CodecError(message)


def _one_line(value: object) -> str:
    return (str(value) or type(value).__name__).splitlines()[0][:160]


def _no_constant(name: str) -> object:
    raise CodecError(f"the AST holds the bare number {name}")


def _rows_of(text: object) -> list[object]:
    if not isinstance(text, str):
        raise CodecError(f"the AST is {type(text).__name__}, not text")
    # characters first: a text too long is not even copied
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise CodecError(f"the AST is longer than {MAX_BYTES} bytes")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise CodecError("the AST is nested too deeply") from None
    except ValueError as error:
        raise CodecError(f"the AST is not JSON: {_one_line(error)}") from None
    _require(isinstance(value, dict) and set(value) == {"format", "nodes"}, "the AST is not {format, nodes}")
    _require(_is_int(value["format"], FORMAT, FORMAT), f"the AST is not of format {FORMAT}")
    rows = value["nodes"]
    _require(isinstance(rows, list) and 0 < len(rows) <= MAX_NODES, f"the AST must have 1 to {MAX_NODES} nodes")
    assert isinstance(rows, list)
    return rows


def _is_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_list(value: object, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _lookup(table: dict[str, Any], name: object, noun: str) -> Any:
    if not isinstance(name, str) or name not in table:
        raise CodecError(f"{noun} {_one_line(repr(name))} is not allowed")
    return table[name]


def _node_of(row: object, nodes: list[UOp]) -> UOp:
    """One row as a node on top of `nodes`, all its own rules checked."""
    if not isinstance(row, list) or len(row) != 4:
        raise CodecError("not [op, dtype, sources, arg]")
    op: Ops = _lookup(_OPS, row[0], "operation")
    dtype: DType = _lookup(_DTYPES, row[1], "data type")
    sources, raw = row[2], row[3]
    low, high = _ARITY[op]
    if not isinstance(sources, list) or not low <= len(sources) <= high:
        raise CodecError(f"{op.name} must have {low} to {high} sources")
    _require(all(_is_int(s, 0, len(nodes) - 1) for s in sources), "a source must be the index of an earlier node")
    src = tuple(nodes[s] for s in sources)
    if op in _ARG_READERS:
        arg = _ARG_READERS[op](raw, dtype)
    else:
        _require(raw is None, f"{op.name} takes no argument")
        arg = None
    _check_sources(op, src, arg)
    node = UOp(op, dtype if op is Ops.CONST else None, src, arg)
    _require(node.dtype is dtype, f"{op.name} of these sources is {node.dtype.name}, not {dtype.name}")
    return node


def _read_const(raw: object, dtype: DType) -> object:
    if raw == "Invalid":
        _require(dtype is dtypes.bool, "Invalid must be bool")
        return Invalid
    if type(raw) is bool:
        _require(dtype is dtypes.bool, f"a bool cannot be {dtype.name}")
        return raw
    if type(raw) is int:
        _require(dtypes.is_int(dtype), f"an integer cannot be {dtype.name}")
        _require(-(1 << 63) <= raw < 1 << 64, "an integer constant does not fit into 64 bits")
        return raw
    if not isinstance(raw, str) or not _FLOAT_BITS.fullmatch(raw):
        raise CodecError("a constant must be a bool, an integer, 16 hexadecimal digits or Invalid")
    _require(dtypes.is_float(dtype), f"a float cannot be {dtype.name}")
    value = dtype.const(struct.unpack("<d", bytes.fromhex(raw)[::-1])[0])
    _require(f"{value.bits:016x}" == raw, f"a constant is not a {dtype.name}")
    return value


def _read_dtype(raw: object, dtype: DType) -> DType:
    named: DType = _lookup(_DTYPES, raw, "data type")
    _require(named is dtype and dtype is not dtypes.void, "a cast's argument must be its data type")
    return named


def _read_param(raw: object, dtype: DType) -> ParamArg:
    if not isinstance(raw, list) or len(raw) != 8:
        raise CodecError("PARAM must have 8 arguments")
    slot, named, limits, multiple_of, name, space_name, axis, volatile = raw
    _require(_lookup(_DTYPES, named, "data type") is dtype and dtype is not dtypes.void, "PARAM has two data types")
    space = _lookup(_ADDR_SPACES, space_name, "address space")
    _require(type(volatile) is bool, "PARAM's volatile must be a bool")
    _require(axis is None or _is_int(axis, 0, 64), "PARAM's axis must be a small integer")
    _require(multiple_of is None or _is_int(multiple_of, 1, 1 << 62), "PARAM's multiple_of must be a positive integer")
    if space is AddrSpace.GLOBAL:
        _require(_is_int(slot, 0, MAX_SLOT), f"PARAM's slot must be 0 to {MAX_SLOT}")
        _require(limits is None and name is None, "a buffer has no range of values and no name")
        _require(dtype not in dtypes.weaks, "a buffer cannot be of a weak data type")
        return ParamArg(slot, dtype, None, multiple_of, None, space, axis, None, volatile)
    _require(_is_int(slot, -1, MAX_SLOT), f"PARAM's slot must be -1 to {MAX_SLOT}")
    _require(dtypes.is_int(dtype), "a variable must be an integer")
    _require(
        isinstance(name, str) and _VARIABLE_NAME.fullmatch(name) is not None, "a variable's name must be a plain word"
    )
    _require(
        _is_list(limits, 2) and all(_is_int(v, -(1 << 62), 1 << 62) for v in limits), "a variable must have limits"
    )
    _require(limits[0] <= limits[1], "a variable's limits are the wrong way round")
    return ParamArg(slot, dtype, (limits[0], limits[1]), multiple_of, name, space, axis, None, volatile)


def _read_range(raw: object, _dtype: DType) -> tuple[object, ...]:
    if not isinstance(raw, list) or not 2 <= len(raw) <= 8:
        raise CodecError("RANGE must have its numbers and an axis type")
    _require(all(_is_int(n, -(1 << 31), 1 << 31) for n in raw[:-1]), "RANGE's numbers must be integers")
    return (*raw[:-1], _lookup(_AXIS_TYPES, raw[-1], "axis type"))


def _read_reduce(raw: object, _dtype: DType) -> tuple[Ops, int]:
    if not isinstance(raw, list) or len(raw) != 2:
        raise CodecError("REDUCE must have its operation and 0")
    _require(_is_int(raw[1], 0, 0), "REDUCE over unnamed axes does not belong into a kernel")
    return (_lookup(_REDUCE_OPS, raw[0], "reduction"), 0)


def _read_sink(raw: object, _dtype: DType) -> KernelInfo:
    _require(raw is None, "SINK takes no argument")
    return KernelInfo()


_ARG_READERS: dict[Ops, Callable[[object, DType], Any]] = {
    Ops.CONST: _read_const,
    Ops.CAST: _read_dtype,
    Ops.BITCAST: _read_dtype,
    Ops.PARAM: _read_param,
    Ops.RANGE: _read_range,
    Ops.REDUCE: _read_reduce,
    Ops.SINK: _read_sink,
}


def _is_buffer(node: UOp) -> bool:
    return node.op is Ops.PARAM and node.arg.addrspace is AddrSpace.GLOBAL


def _is_number(node: UOp) -> bool:
    """Whether the node is one value, which arithmetic takes."""
    return node.dtype is not dtypes.void and node.op not in (Ops.RESHAPE, Ops.STACK) and not _is_buffer(node)


def _check_sources(op: Ops, src: tuple[UOp, ...], arg: Any) -> None:
    """What the sources of each operation may be."""
    match op:
        case Ops.PARAM if arg.addrspace is AddrSpace.GLOBAL:
            # one constant only: three dimensions would make it an image
            _require(src[0].op is Ops.CONST and dtypes.is_int(src[0].dtype), "a buffer's size must be a constant")
            _require(0 < src[0].arg < 1 << 63, "a buffer's size must be 1 to 2**63 - 1")
        case Ops.PARAM:
            _require(src[0].op is Ops.STACK and not src[0].src, "a variable must have no shape")
        case Ops.RANGE:
            _require(_is_number(src[0]) and dtypes.is_int(src[0].dtype), "a range's extent must be an integer")
            _require(0 < src[0].vmax < 1 << 63, "a range's extent must be 1 to 2**63 - 1")
        case Ops.STACK:
            _require(all(_is_number(s) and dtypes.is_int(s.dtype) for s in src), "a shape must be integers")
        case Ops.RESHAPE:
            _require(_is_buffer(src[0]) and src[1].op in (Ops.STACK, Ops.CONST), "only a buffer can have a shape")
            _require(all(s.op is Ops.CONST for s in src[1].src), "a buffer's shape must be constants")
        case Ops.INDEX:
            _require(_is_buffer(src[0]) or src[0].op is Ops.RESHAPE, "only a buffer can be indexed")
            for s in src[1:]:
                _require(_is_number(s) and (dtypes.is_int(s.dtype) or s.is_invalid), "an index must be an integer")
            _require(len(src) - 1 == len(src[0].shape), "a buffer must be indexed in all its dimensions")
        case Ops.REDUCE:
            _require(_is_number(src[0]), "REDUCE must have a value")
        case Ops.STORE:
            _require(src[0].op is Ops.INDEX, "STORE must have an INDEX")
            same = src[1].dtype is src[0].dtype or src[1].dtype in dtypes.weaks or src[1].is_invalid
            _require(_is_number(src[1]) and same, "STORE must have a value of its buffer's data type")
        case Ops.END:
            _require(src[0].op is Ops.STORE, "END must close a STORE")
        case Ops.SINK:
            _require(all(s.op in (Ops.END, Ops.STORE) for s in src), "SINK must hold stores")
        case Ops.CONST:
            pass
        case _:
            _require(all(_is_number(s) for s in src), f"{op.name} must have values")
    if op in (Ops.REDUCE, Ops.END):
        _require(all(s.op is Ops.RANGE for s in src[1:]), f"{op.name} must close ranges")
        _require(len(set(src[1:])) == len(src) - 1, f"{op.name} closes a range twice")


def _checked(nodes: list[UOp]) -> UOp:
    """The sink of a whole graph, after the rules that no single node shows."""
    ast = nodes[-1]
    _require(
        ast.op is Ops.SINK and sum(n.op is Ops.SINK for n in nodes) == 1, "the AST must have one SINK, the last node"
    )
    _require(sum(n.op is Ops.RANGE for n in nodes) <= MAX_RANGES, f"the AST has more than {MAX_RANGES} ranges")
    numbers = [n.arg[:-1] for n in nodes if n.op is Ops.RANGE]
    _require(len(set(numbers)) == len(numbers), "two ranges have the same numbers")
    buffers = [n.arg.slot for n in nodes if _is_buffer(n)]
    _require(len(set(buffers)) == len(buffers), "two buffers have the same slot")
    names = [n.arg.name for n in nodes if n.op is Ops.PARAM and not _is_buffer(n)]
    _require(len(set(names)) == len(names), "two variables have the same name")
    _require(all(r.arg[-1] is AxisType.DEVICE for r in ast.ranges), "a range is never closed")
    with Context(CHECK_OOB=0, SPEC=1):
        type_verify(ast, spec_tensor)
    return ast
