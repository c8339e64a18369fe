"""What programs of packed products write in NVIDIA's assembly, for Triton's interpreter, which knows none.

A program's text that is written for a GPU but for its layouts is run as it is: `run_assembly` stands for
`tl.inline_asm_elementwise`, and knows the instructions that such programs have. Shared memory is an array that begins
with what is no number, where an entry that nobody stored is read. All threads run together, so that a barrier does
nothing here; that there is one between the store of an entry and its load, and before it is stored again, is asserted.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

LANES = 32
SHARED = 1 << 17
BEGIN = 1 << 10
"""Where what a program declares begins: sm_90 keeps the first KiB for itself. Declarations are aligned from here on, so
that an alignment of 2 KiB says nothing of an address."""
NO_NUMBER = 0x7FC12345

memory = np.full(SHARED // 4, NO_NUMBER, np.uint32)
allocated = [BEGIN]
programs: list[Any] = [None]  # the one that runs
barriers = [0]  # that threads have passed
stored, loaded = (np.full(SHARED // 4, -1) for _ in range(2))
"""Behind how many barriers a table's entry was stored, and any word loaded. A table's entries are stored several at
once; a sum that a thread keeps for itself alone."""


def run_assembly(
    asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any = False, pack: Any = 1, **_: Any
) -> Any:
    """The results of instructions for each element of tensors."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    if programs[0] != (running := interpreter_builder.grid_idx):
        programs[0] = running
        begin()
    pack = getattr(pack, "value", pack)
    text, type_ = getattr(asm, "value", asm), getattr(dtype, "value", dtype)
    given = [a.handle.data if isinstance(a, tl.tensor) else np.array(getattr(a, "value", a)) for a in args]
    given = [np.asarray(one) for one in np.broadcast_arrays(*given)]
    shape = given[0].shape
    if pack > 1:  # a thread has so many rows that follow each other
        (rows,) = given
        assert len(shape) == 2 and shape[1] == LANES
        given = list(rows.reshape(-1, pack, LANES).swapaxes(0, 1))
    registers = {f"${number + pack}": as_bits(one) for number, one in enumerate(given)}
    registers["%laneid"] = np.arange(given[0].size, dtype=np.uint32) % LANES
    for_others = text.count("st.shared") > 1
    for line in filter(None, map(str.strip, text.strip(" {}").split(";"))):
        _run(line, registers, for_others)
    found = np.stack([registers[f"${number}"].reshape(given[0].shape) for number in range(pack)])
    found = found.swapaxes(0, 1).reshape(shape) if pack > 1 else found[0]
    kind = {tl.float32: np.float32, tl.int32: np.int32, tl.uint32: np.uint32}[type_]
    made = np.ascontiguousarray(found).view(kind).reshape(shape)
    return tl.tensor(TensorHandle(made, type_), tl.block_type(type_, list(shape)) if shape else type_)


def begin() -> None:
    """Another program begins, or another launch."""
    memory[:], allocated[0], barriers[0] = NO_NUMBER, BEGIN, 0
    stored[:], loaded[:] = -1, -1


def assembled(source: str) -> str:
    """A program's text with this in the place of assembly."""
    text = source.replace("tl.inline_asm_elementwise(", "run_assembly(")
    return f"from assembly_on_cpu import begin, run_assembly\nbegin()\n{text}"


def as_bits(values: np.ndarray) -> np.ndarray:
    """Words of 32 bits."""
    is_wide = values.dtype.itemsize != 4
    return np.ascontiguousarray(values.astype(np.uint32) if is_wide else values).reshape(-1).view(np.uint32)


def _run(line: str, registers: dict[str, np.ndarray], for_others: bool) -> None:
    name, _, rest = line.partition(" ")
    words = [word.strip() for word in rest.split(",")]

    def value(word: str) -> np.ndarray:
        return registers[word] if word in registers else np.array([int(word, 0)], np.uint32)

    def place(word: str) -> np.ndarray:
        register, _, offset = word.strip("[]").partition(" + ")
        at = registers[register].astype(np.int64) + int(offset or 0)
        assert (at % 4 == 0).all() and (at >= BEGIN).all() and (at < allocated[0]).all(), "outside of shared memory"
        return at // 4

    match name:
        case ".shared":
            found = re.fullmatch(r"\.align (\d+) \.b8 (\w+)\[(\d+)\]", rest)
            assert found is not None, line
            begin = BEGIN - (BEGIN - allocated[0] - 4) // int(found[1]) * int(found[1])
            allocated[0] = begin + int(found[3])
            registers[found[2]] = np.array([begin], np.uint32)
        case "mov.u32" | "mov.b32":
            size = max(len(one) for one in registers.values())
            registers[words[0]] = np.broadcast_to(value(words[1]), (size,)).copy()
        case "bar.sync":
            barriers[0] += 1
        case ".reg":
            pass
        case "and.b32":
            registers[words[0]] = value(words[1]) & value(words[2])
        case "add.f32":
            a, b = (value(word).view(np.float32) for word in words[1:])
            registers[words[0]] = (a + b).view(np.uint32)
        case "setp.ne.u32":
            registers[words[0]] = value(words[1]) != value(words[2])
        case "selp.b32":
            registers[words[0]] = np.where(value(words[3]), value(words[1]), value(words[2]))
        case "shfl.sync.bfly.b32" | "shfl.sync.idx.b32":
            assert words[3:] == ["31", "0xffffffff"], line
            lanes, number = np.arange(LANES), int(words[2])
            lanes = lanes ^ number if "bfly" in name else np.full(LANES, number)
            registers[words[0]] = value(words[1]).reshape(-1, LANES)[:, lanes].reshape(-1)
        case "lop3.b32":
            a, b, c = map(value, words[1:4])
            assert words[4] == "0xEA", line
            registers[words[0]] = (a & b) | c
        case "shf.r.clamp.b32":
            low, high, amount = (value(word).astype(np.uint64) for word in words[1:])
            registers[words[0]] = ((high << np.uint64(32) | low) >> np.minimum(amount, 32)).astype(np.uint32)
        case "st.shared.f32":
            at = place(words[0])
            if for_others:
                assert (loaded[at] < barriers[0]).all(), "stored while another thread may still load"
                stored[at] = barriers[0]
            memory[at] = value(words[1])
        case "ld.shared.f32":
            at = place(words[1])
            assert (stored[at] < barriers[0]).all(), "loaded while another thread may not have stored"
            loaded[at] = barriers[0]
            registers[words[0]] = memory[at]
        case _:
            raise AssertionError(line)
