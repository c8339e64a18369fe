"""The codec gives back the identical AST, the same identity everywhere, and refuses everything else with one error."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kcg.compat.tiny import AddrSpace, AxisType, KernelInfo, Ops, OptOps, ParamArg, TinyOpt, UOp, dtypes
from kcg.errors import CodecError
from kcg.kernel import codec
from kcg.kernel.codec import ast_of, decode, encode, kernel_of, load_kernel, normalise
from kcg.types import Kernel, canonical_json
from tests.kernels import TYPICAL, all_examples, example_asts, examples
from tests.slow import first

ASTS = example_asts()


@pytest.mark.parametrize("name", examples())
def test_round_trip_gives_the_identical_object(name: str) -> None:
    text = encode(ASTS[name])
    assert decode(text) is normalise(ASTS[name])
    assert encode(decode(text)) == text
    assert text == canonical_json(json.loads(text))


def test_typical_examples_cover_every_kind_of_value() -> None:
    nodes = {node for name in TYPICAL for node in normalise(ASTS[name]).toposort()}
    assert {n.arg[-1] for n in nodes if n.op is Ops.RANGE} == {AxisType.WEAK, AxisType.REDUCE, AxisType.DEVICE}
    floats = {repr(float(n.arg)) for n in nodes if n.op is Ops.CONST and isinstance(n.arg, float)}
    assert {"nan", "inf", "-inf"} <= floats
    assert any(n.op is Ops.CONST and n.is_invalid for n in nodes)
    assert any(n.op is Ops.PARAM and n.arg.addrspace is AddrSpace.ALU for n in nodes)
    assert {Ops.THREEFRY, Ops.BITCAST, Ops.RESHAPE, Ops.CDIV, Ops.FLOORMOD} <= {n.op for n in nodes}


def traits(ast: UOp) -> set[tuple[Any, ...]]:
    """What a kernel is made of: its operations, formats, conversions, reductions and kinds of axes."""
    found: set[tuple[Any, ...]] = set()
    for node in ast.toposort():
        about: tuple[Any, ...] = ()
        if node.op in (Ops.CAST, Ops.BITCAST):
            about = (node.src[0].dtype, node.dtype)
        elif node.op is Ops.PARAM:
            about = (node.dtype, node.arg.addrspace)
        elif node.op is Ops.REDUCE:
            about = (node.arg[0],)
        elif node.op is Ops.RANGE:
            about = (node.arg[-1], node.src[0].op)
        found.add((node.op, *about))
    return found


@pytest.mark.slow
def test_typical_examples_have_every_trait_of_them_all() -> None:
    assert set().union(*(traits(ASTS[name]) for name in TYPICAL)) == set().union(*map(traits, ASTS.values()))


def _constant_kernel(value: UOp, dtype: Any = dtypes.float32) -> UOp:
    buffer = UOp(Ops.PARAM, src=(UOp.const(4),), arg=ParamArg(0, dtype))
    rng = UOp.range(4, 0)
    return buffer.index(rng).store(value).end(rng).sink(arg=KernelInfo())


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, float("inf"), float("-inf"), float("nan"), 0.1, 3.4e38])
def test_floats_keep_their_bits(value: float) -> None:
    ast = _constant_kernel(UOp.const(value, dtypes.float32))
    (constant,) = (n for n in decode(encode(ast)).toposort() if n.op is Ops.CONST and n.dtype is dtypes.float32)
    assert constant.arg.bits == dtypes.float32.const(value).bits


def test_bools_integers_and_large_unsigned_constants_stay_apart() -> None:
    values = {
        "bool": (UOp.const(True), dtypes.bool),
        "one": (UOp.const(1, dtypes.uint64), dtypes.uint64),
        "large": (UOp.const((1 << 64) - 1, dtypes.uint64), dtypes.uint64),
    }
    texts = {name: encode(_constant_kernel(*value)) for name, value in values.items()}
    assert len(set(texts.values())) == 3
    for name, (value, _dtype) in values.items():
        assert value in decode(texts[name]).toposort()


@pytest.mark.parametrize("names", all_examples())
def test_identity_does_not_depend_on_the_device(names: tuple[str, ...]) -> None:
    other = example_asts("CUDA")
    assert any("CUDA" in str(n.arg.device) for n in other["matmul_f16"].toposort() if n.op is Ops.PARAM)
    for name in names:
        assert kernel_of(other[name]).id == kernel_of(ASTS[name]).id, name


def test_identity_does_not_depend_on_name_schedule_or_tags() -> None:
    ast = ASTS["matmul_f32"]
    opts = (TinyOpt(OptOps.UPCAST, 0, 4),)
    named = ast.replace(arg=KernelInfo(name="r_64", applied_opts=opts, opts_to_apply=opts, beam=2), tag=1)
    assert encode(named) == encode(ast)
    assert decode(encode(named)).arg == KernelInfo()
    assert normalise(normalise(ast)) is normalise(ast)


def test_different_kernels_have_different_identities() -> None:
    ids = {name: kernel_of(ast).id for name, ast in ASTS.items()}
    assert ids["matmul_f16"] != ids["matmul_f32"] != ids["matmul_bf16"]
    assert len(set(ids.values())) > 80


def test_known_identity() -> None:
    """Changes only with a new format or another tinygrad: stored data would have to be converted."""
    text = encode(_constant_kernel(UOp.const(-0.0, dtypes.float32)))
    assert text == (
        '{"format":1,"nodes":[["CONST","weakint",[],4],["PARAM","float32",[0],[0,"float32",null,null,null,"GLOBAL",null,'
        'false]],["RANGE","weakint",[0],[0,"WEAK"]],["INDEX","float32",[1,2],null],["CONST","float32",[],'
        '"8000000000000000"],["STORE","void",[3,4],null],["END","void",[5,2],null],["SINK","void",[6],null]]}'
    )


def test_kernel_and_ast_are_each_others_inverse() -> None:
    kernel = kernel_of(ASTS["softmax.1"])
    assert kernel.id == hashlib.sha256(kernel.ast_json.encode()).hexdigest()
    assert ast_of(kernel) is normalise(ASTS["softmax.1"])
    assert load_kernel(kernel.ast_json, expected_id=kernel.id) == kernel


def test_load_refuses_another_identity() -> None:
    texts = [kernel_of(ASTS[name]) for name in ("softmax.0", "softmax.1")]
    with pytest.raises(CodecError, match="identity is"):
        load_kernel(texts[0].ast_json, expected_id=texts[1].id)


def _matmul() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encode(ASTS["matmul_f32"]))
    return value


def _set(op: str, column: int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(ast: dict[str, Any]) -> None:
        next(row for row in ast["nodes"] if row[0] == op)[column] = value

    return change


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "custom code": (_set("MUL", 0, "CUSTOM"), "operation 'CUSTOM' is not allowed"),
    "inline code": (_set("MUL", 0, "CUSTOMI"), "operation 'CUSTOMI' is not allowed"),
    "source": (_set("SINK", 0, "SOURCE"), "not allowed"),
    "binary": (_set("SINK", 0, "BINARY"), "not allowed"),
    "instruction": (_set("MUL", 0, "INS"), "not allowed"),
    "program": (_set("SINK", 0, "PROGRAM"), "not allowed"),
    "custom function": (_set("SINK", 0, "CUSTOM_FUNCTION"), "not allowed"),
    "literal": (_set("MUL", 0, "PYLITERAL"), "not allowed"),
    "call": (_set("SINK", 0, "CALL"), "not allowed"),
    "copy": (_set("MUL", 0, "COPY"), "not allowed"),
    "no such operation": (_set("MUL", 0, "__class__"), "not allowed"),
    "no such type": (_set("MUL", 1, "float7"), "data type 'float7' is not allowed"),
    "attribute as a type": (_set("MUL", 1, "default_float"), "not allowed"),
    "wrong type": (_set("MUL", 1, "float16"), "MUL of these sources is weakint, not half"),
    "forward source": (_set("MUL", 2, [10_000, 0]), "index of an earlier node"),
    "negative source": (_set("MUL", 2, [-1, 0]), "index of an earlier node"),
    "bool as a source": (_set("MUL", 2, [True, False]), "index of an earlier node"),
    "too few sources": (_set("MUL", 2, [0]), "MUL must have 2 to 2 sources"),
    "argument where none is": (_set("MUL", 3, "x"), "takes no argument"),
    "code in the sink": (_set("SINK", 3, "__import__('os')"), "SINK takes no argument"),
    "optimised axis": (_set("RANGE", 3, [0, "LOCAL"]), "axis type 'LOCAL' is not allowed"),
    "float axis": (_set("RANGE", 3, [0.0, "WEAK"]), "numbers must be integers"),
    "local buffer": (_set("PARAM", 3, [0, "float32", None, None, None, "LOCAL", None, False]), "address space"),
    "huge slot": (_set("PARAM", 3, [1 << 40, "float32", None, None, None, "GLOBAL", None, False]), "slot"),
    "huge constant": (_set("CONST", 3, 1 << 80), "64 bits"),
    "huge extent": (_set("CONST", 3, 1 << 63), "2\\*\\*63"),
    "empty buffer": (_set("CONST", 3, 0), "size must be"),
    "float written as a number": (_set("CONST", 3, 1.5), "a constant must be"),
    "reduction": (_set("REDUCE", 3, ["XOR", 0]), "reduction 'XOR' is not allowed"),
    "no nodes": (lambda ast: ast["nodes"].clear(), "1 to 20000 nodes"),
    "no sink": (lambda ast: ast["nodes"].pop(), "one SINK"),
    "dead node": (lambda ast: ast["nodes"].insert(0, ["CONST", "weakint", [], 7]), "node"),
    "another format": (lambda ast: ast.update(format=2), "format 1"),
    "another key": (lambda ast: ast.update(more=1), "format, nodes"),
    "too many nodes": (lambda ast: ast["nodes"].extend([["CONST", "weakint", [], 7]] * 20_000), "1 to 20000 nodes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    change, message = REFUSED[name]
    ast = _matmul()
    change(ast)
    with pytest.raises(CodecError, match=message) as caught:
        decode(canonical_json(ast))
    assert "\n" not in str(caught.value)


NOT_AN_AST = (
    "",
    "null",
    "[]",
    "{}",
    "[" * 100_000,
    '{"format":1,"nodes":' + "[" * 5_000 + "]" * 5_000 + "}",
    "\ud800",
    '"\ud800"',
    '{"format":1,"nodes":[["CONST","weakfloat",[],NaN]]}',
    '{"format":1,"nodes":[["CONST","weakint",[],' + "9" * 5_000 + "]]}",
    " " * (codec.MAX_BYTES + 1),
    "é" * (codec.MAX_BYTES // 2 + 1),
)


@pytest.mark.parametrize("text", NOT_AN_AST, ids=range(len(NOT_AN_AST)))
def test_what_is_not_an_ast_is_refused(text: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode(text)
    assert "\n" not in str(caught.value)


def test_not_even_text() -> None:
    for value in (None, b"{}", 7, ["{}"]):
        with pytest.raises(CodecError, match="not text"):
            decode(value)  # type: ignore[arg-type]


def test_other_writings_of_the_same_ast_are_refused() -> None:
    ast = _matmul()
    with pytest.raises(CodecError, match="canonical"):
        decode(json.dumps(ast))
    with pytest.raises(CodecError, match="canonical"):
        decode(canonical_json(ast).replace('"format":1', '"format":1,"format":1'))


def test_variable_names_are_plain_words() -> None:
    """A variable's name is rendered into source code."""
    text = encode(ASTS["symbolic"])
    assert '"length"' in text
    for name in ("x;system(1)", "a b", "", "1a", "a" * 65, "é", "a\\n"):
        with pytest.raises(CodecError, match="variable's name"):
            decode(text.replace('"length"', f'"{name}"'))


def test_two_buffers_of_one_slot_are_refused() -> None:
    text = encode(ASTS["matmul_f32"])
    with pytest.raises(CodecError, match="same slot"):
        decode(text.replace('[2,"float32",null', '[1,"float32",null'))


def test_deep_graphs_do_not_overflow_the_stack() -> None:
    value = UOp.const(1.0, dtypes.float32)
    for i in range(5_000):
        value = value * UOp.const(float(i % 7), dtypes.float32)
    ast = _constant_kernel(value)
    assert decode(encode(ast)) is normalise(ast)


def test_encode_refuses_what_is_no_unoptimised_kernel() -> None:
    with pytest.raises(CodecError, match="SINK"):
        encode(ASTS["matmul_f32"].src[0])
    with pytest.raises(CodecError, match="CUSTOMI"):
        encode(_constant_kernel(UOp(Ops.CUSTOMI, dtypes.float32, (), "exit(1)")))
    (old,) = (r for r in ASTS["scalar"].toposort() if r.op is Ops.RANGE)
    with pytest.raises(CodecError, match="GLOBAL"):
        encode(ASTS["scalar"].substitute({old: old.replace(arg=(0, AxisType.GLOBAL))}))


def test_encode_refuses_images() -> None:
    shape = UOp(Ops.STACK, src=(UOp.const(2), UOp.const(2), UOp.const(4)))
    image = UOp(Ops.PARAM, src=(shape,), arg=ParamArg(1, dtypes.float32))
    with pytest.raises(CodecError, match="buffer's size"):
        encode(_constant_kernel(image.index(UOp.const(0), UOp.const(0), UOp.const(0))))


def test_volatile_and_alignment_belong_to_the_identity() -> None:
    (param,) = (n for n in ASTS["scalar"].toposort() if n.op is Ops.PARAM and n.arg.slot == 1)
    volatile = ASTS["scalar"].substitute({param: param.replace(arg=replace(param.arg, volatile=True))})
    assert encode(volatile) != encode(ASTS["scalar"])
    assert decode(encode(volatile)) is normalise(volatile)


# ***** fuzzing *****

_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, 1e308, "", "Invalid", "ADD", "SINK",
    "CUSTOM", "void", "weakint", "float32", "7ff8000000000001", "fff0000000000000", "GLOBAL", "ALU", [], {}, [[]], [0],
    ["ADD", 0], [0, "WEAK"], [0, "DEVICE"], [0, 1], "__class__", "\u0000", [None] * 8,
)  # fmt: skip


def _mutate_text(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    match rng.randrange(5):
        case 0:
            return text[:at] + chr(rng.randrange(1, 256)) + text[at + 1 :]
        case 1:
            return text[:at] + text[at + rng.randrange(1, 20) :]
        case 2:
            return text[:at]
        case 3:
            return text[:at] + text[at : at + 30] + text[at:]
        case _:
            return (
                text[:at] + rng.choice(("[" * 3_000, "9" * 30, "1e999", "-", "null", '"', "\\ud800", "]")) + text[at:]
            )


def _mutate_nodes(text: str, rng: random.Random, others: list[Any]) -> str:
    ast = json.loads(text)
    nodes = ast["nodes"]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        i = rng.randrange(len(nodes))
        row = nodes[i]
        match rng.randrange(9):
            case 0:
                nodes.insert(rng.randrange(len(nodes)), copy.deepcopy(row))
            case 1 if len(nodes) > 1:
                nodes.pop(i)
            case 2:
                row[0] = rng.choice([op.name for op in Ops])
            case 3:
                row[1] = rng.choice(codec._DTYPE_NAMES)
            case 4:
                row[2] = [rng.randrange(-1, len(nodes) + 1) for _ in range(rng.randrange(5))]
            case 5 if isinstance(row[2], list) and row[2]:
                row[2][rng.randrange(len(row[2]))] = rng.randrange(max(1, i))
            case 6 if isinstance(row[3], list) and row[3]:
                row[3][rng.randrange(len(row[3]))] = rng.choice(_ODD_VALUES)
            case 7:
                nodes[i] = copy.deepcopy(rng.choice(others))
            case _:
                row[rng.randrange(4)] = rng.choice(_ODD_VALUES)
        if not nodes:
            break
    return canonical_json(ast)


@pytest.mark.parametrize("seed", first(2, range(4)))
def test_mutated_texts_raise_only_codec_error(seed: int) -> None:
    rng = random.Random(seed)
    texts = [encode(ASTS[name]) for name in TYPICAL]
    rows = [row for text in texts for row in json.loads(text)["nodes"]]
    accepted = 0
    for i in range(1_500):
        text = rng.choice(texts)
        mutated = _mutate_text(text, rng) if i % 3 == 0 else _mutate_nodes(text, rng, rows)
        try:
            ast = decode(mutated)
        except CodecError as error:
            assert "\n" not in str(error) and str(error)
            continue
        accepted += 1
        assert encode(ast) == mutated
        assert ast_of(Kernel(mutated)) is ast
    assert accepted < 500
