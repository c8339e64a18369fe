"""Runs tile programs in Triton's interpreter: a process of its own, since one that interprets cannot compile.

`python interpreter_child.py` takes folders, a line each, and answers each with a line once its jobs are done. It reads
FOLDER/jobs.json and the arrays beside it, and writes each buffer after the program ran as FOLDER/<job>.<name>.npy, or
what the program raised as FOLDER/<job>.error.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

TYPES = {
    "*i1": "bool", "*i8": "int8", "*u8": "uint8", "*i16": "int16", "*u16": "uint16", "*i32": "int32", "*u32": "uint32",
    "*i64": "int64", "*u64": "uint64", "*fp16": "float16", "*bf16": "bfloat16", "*fp32": "float32",
    "*fp64": "float64", "*fp8e4nv": "float8_e4m3fn", "*fp8e5": "float8_e5m2",
}  # fmt: skip
"""A tensor's format by Triton's name of a pointer to it."""


class Memory:
    """A buffer as the interpreter takes it: as much of a tensor's interface as it asks for, without a second's import
    of PyTorch. Its storage is itself."""

    def __init__(self, data: np.ndarray, dtype: str) -> None:
        self.data, self.dtype = data, dtype

    def data_ptr(self) -> int:
        return int(self.data.ctypes.data)

    def untyped_storage(self) -> Memory:
        return self

    def cpu(self) -> Memory:
        return self

    def new_empty(self, _size: int, *, device: str) -> Memory:
        assert device == "cpu"
        return Memory(self.data, self.dtype)

    def set_(self, storage: Memory, *_layout: object) -> None:
        self.data = storage.data

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.data.shape

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def copy_(self, other: Memory) -> None:
        assert other.data_ptr() == self.data_ptr()


BLOCK = 16  # bytes that are read at once
APART = 1 << 16  # bytes before and after a buffer that are of no other: what just leaves one is in none


class Bounded:
    """The interpreter's memory: an access outside of the program's buffers is an error, not whatever lies there."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.buffers: list[tuple[int, int]] = []  # of each its address and its bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def load(self, places: np.ndarray, mask: np.ndarray, *how: Any) -> Any:
        self._check(places, mask, np.dtype(how[-1]).itemsize, whole=BLOCK)
        return self._memory.load(places, mask, *how)

    def store(self, places: np.ndarray, values: np.ndarray, mask: np.ndarray) -> Any:
        self._check(places, mask, values.dtype.itemsize)
        return self._memory.store(places, values, mask)

    def _check(self, places: np.ndarray, mask: np.ndarray, itemsize: int, *, whole: int = 1) -> None:
        """Of blocks of `whole` bytes the last one may be read to its end, which no page is between."""
        if not (used := places[np.broadcast_to(mask, places.shape).astype(bool, copy=False)]).size:
            return
        lowest, highest = int(used.min()), int(used.max())
        reach = [(first, first + -(-size // whole) * whole - itemsize) for first, size in self.buffers]
        if any(first <= lowest and highest <= last for first, last in reach):  # nearly always: all are of one buffer
            return
        left = np.ones(used.shape, bool)
        for first, last in reach:
            left &= ~((used >= np.uint64(first)) & (used <= np.uint64(max(last, 0))))
        if left.any():
            raise IndexError(f"{int(left.sum())} elements of a block are outside of the program's buffers")


def patched_once() -> None:
    """The interpreter puts its own functions into `triton.language` for each launch and each call of a function of a
    program, a quarter of its time. This process does nothing else, so they stay there."""
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    scope.restore = lambda: None
    interpreter._patch_lang = lambda function: scope


def kept_types() -> None:
    """What a block's type holds, and a value's shape as constants, are computed once of each, not for every value."""
    types: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[str, tuple[Any, Any]] = {}
    describe, begin = tl.block_type.__init__, tl.tensor.__init__

    def described(self: Any, element: Any, shape: Any) -> None:
        key = (element.name, *(getattr(size, "value", size) for size in shape))
        if (known := types.get(key)) is None:
            describe(self, element, shape)
            known = types[key] = {**vars(self)}
        vars(self).update(known, element_ty=element)

    def begun(self: Any, handle: Any, type: Any) -> None:
        if (known := shapes.get(type.name)) is None:
            begin(self, handle, type)
            known = shapes[type.name] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known

    tl.block_type.__init__, tl.tensor.__init__ = described, begun


def kept_formats() -> None:
    """NumPy's type of one of Triton's is looked up by its name: the interpreter makes a table of all for each value."""
    formats: dict[str, Any] = {}
    find = interpreter._get_np_dtype

    def found(dtype: Any) -> Any:
        if (known := formats.get(dtype.name)) is None:
            known = formats[dtype.name] = find(dtype)
        return known

    interpreter._get_np_dtype = found


def read_by_indents() -> None:
    """The interpreter asks twice for the lines of each function, and Python splits them into tokens to see where it
    ends. Functions of programs are not indented: each ends before the next line that is not, but for a bracket."""

    by_tokens = inspect.getblock

    def getblock(lines: list[str]) -> list[str]:
        begin = next((number for number, line in enumerate(lines) if line[:1] != "@"), 0)
        if not lines[begin].startswith("def "):
            return by_tokens(lines)
        later = range(begin + 1, len(lines))
        end = next((number for number in later if lines[number][:1] not in " )#\n"), len(lines))
        while not lines[end - 1].strip():
            end -= 1
        return lines[:end]

    inspect.getblock = getblock  # type: ignore[attr-defined]


def run(folder: Path, job: dict[str, Any], memory: Bounded) -> None:
    """One program: its buffers are read from files and written back."""
    name = job["name"]
    path = folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"job_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    buffers: dict[str, Memory] = {}
    for launch in job["launches"]:
        arguments = []
        for argument in launch["arguments"]:
            if argument["slot"] is None:
                arguments.append(job["variables"][argument["variable"]])
                continue
            key = "workspace" if argument["slot"] < 0 else f"p{argument['slot']}"
            if key not in buffers:
                bits = np.load(folder / f"{name}.{key}.npy")
                around = np.full(len(bits) + 2 * APART, 0xFF, np.uint8)  # NaN where a buffer has no more elements
                own = around[APART : APART + len(bits)]
                own[:] = bits
                buffers[key] = Memory(own, TYPES[argument["type"]])
            arguments.append(buffers[key])
        memory.buffers = [(buffer.data_ptr(), buffer.data.nbytes) for buffer in buffers.values()]
        getattr(module, launch["entry"])[(launch["grid"],)](*arguments)
    for key, buffer in buffers.items():
        np.save(folder / f"{name}.{key}.npy", buffer.data)


def main() -> None:
    sys.dont_write_bytecode = True  # programs are new files, read once
    np.seterr(all="ignore")
    memory = interpreter._interpreter = Bounded(interpreter._interpreter)
    patched_once()
    kept_types()
    kept_formats()
    read_by_indents()
    # it would compute whether integers overflow, a third of its time, for assertions that it then leaves out
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    for folder in map(Path, map(str.strip, sys.stdin)):
        for job in json.loads((folder / "jobs.json").read_text()):
            try:
                run(folder, job, memory)
            except Exception as error:
                (folder / f"{job['name']}.error").write_text(f"{type(error).__name__}: {error}")
        print(folder, flush=True)


if __name__ == "__main__":
    main()
