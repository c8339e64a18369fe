"""GGUF files: a writer of settings and of tensors that need not fit into memory."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kcg.workloads.packed_weights import FORMATS

ALIGNMENT = 32

GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q4_k": 12, "q5_k": 13, "q6_k": 14,
    "iq3_xxs": 18, "iq3_s": 21, "iq2_s": 22, "iq4_xs": 23, "mxfp4": 39, "q1_0": 41,
}  # fmt: skip
"""The formats that tinygrad 0.14.0 reads, by the number that a file has for them."""

Stored = tuple[tuple[int, ...], str, Iterable[np.ndarray]]
"""The shape of a tensor, its format, and its blocks in pieces, which are asked for when they are written."""


def write_gguf(path: Path, settings: Mapping[str, Any], tensors: Mapping[str, Stored]) -> None:
    """Write a file of version 3: settings, then tensors by name. Raises ValueError where pieces are too many or few."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(settings))]
    head += [_text(name) + _value(value) for name, value in settings.items()]
    at = 0
    for name, (shape, kind, _) in tensors.items():
        head.append(_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
        head.append(struct.pack("<IQ", GGML_TYPES[kind], at))
        at += _padded(FORMATS[kind].bytes_of(prod(shape)))
    with path.open("wb") as file:
        begin = b"".join(head)
        file.write(begin.ljust(_padded(len(begin)), b"\0"))
        for name, (shape, kind, pieces) in tensors.items():
            length = sum(file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8)) for piece in pieces)
            if length != (expected := FORMATS[kind].bytes_of(prod(shape))):
                raise ValueError(f"{name} has {length} bytes instead of {expected}")
            file.write(bytes(_padded(length) - length))


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value of a setting, behind its type."""
    if isinstance(value, list):
        kind = _value(value[0])[:4]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(value)) + b"".join(_value(one)[4:] for one in value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)
