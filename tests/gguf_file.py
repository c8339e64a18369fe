"""GGUF files of small language models with random weights, in every block format that tinygrad's loader reads.

The blocks are random bytes but for their scales, which are finite and give weights a standard deviation of
1/sqrt(fan_in): what such a model computes is as large as in a trained one. The vocabulary is the 256 bytes and the
special tokens of Llama 3's chats, so that every text has tokens and every token a text.

`python -m tests.gguf_file OUT.gguf --format Q4_K --architecture qwen3` writes one.
"""

from __future__ import annotations

import argparse
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 32
BEGIN, START, END, TURN = SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@dataclass(frozen=True)
class Blocks:
    """One block format: its number in GGUF, how many weights in how many bytes, and where a block says its scales."""

    number: int
    weights: int
    nbytes: int
    rms: float  # of weights of random bytes with a scale of 1
    halves: tuple[tuple[int, float], ...] = ((0, 1.0),)  # the byte at which a half begins, and how many scales it is

    def random(self, rows: int, width: int, generator: np.random.Generator) -> bytes:
        """Rows of so many weights whose mean is about 0 and whose standard deviation is about 1/sqrt(width)."""
        made = generator.integers(0, 256, (rows * width // self.weights, self.nbytes), np.uint8)
        scale = 1 / (self.rms * math.sqrt(width))
        if not self.halves:  # a power of two, half of 2**(byte - 127)
            made[:, 0] = 128 + round(math.log2(scale))
        for at, times in self.halves:
            made[:, at : at + 2] = np.frombuffer(np.float16(scale * times).tobytes(), np.uint8)
        return made.tobytes()


FORMATS = {
    "Q4_0": Blocks(2, 32, 18, 4.6),
    "Q4_1": Blocks(3, 32, 20, 4.6, ((0, 1.0), (2, -7.5))),
    "Q5_0": Blocks(6, 32, 22, 9.2),
    "Q5_1": Blocks(7, 32, 24, 9.2, ((0, 1.0), (2, -15.5))),
    "Q8_0": Blocks(8, 32, 34, 74.0),
    "Q4_K": Blocks(12, 256, 144, 258.0, ((0, 1.0), (2, 7.5))),
    "Q5_K": Blocks(13, 256, 176, 521.0, ((0, 1.0), (2, 15.5))),
    "Q6_K": Blocks(14, 256, 210, 1366.0, ((208, 1.0),)),
    "IQ3_XXS": Blocks(18, 256, 98, 143.0),
    "IQ3_S": Blocks(21, 256, 110, 139.0),
    "IQ2_S": Blocks(22, 256, 82, 57.0),
    "IQ4_XS": Blocks(23, 256, 136, 1258.0),
    "MXFP4": Blocks(39, 32, 17, 5.85, ()),
    "Q1_0": Blocks(41, 128, 18, 1.0),
}
"""By llama.cpp's names, all that tinygrad 0.14.0 reads."""


@dataclass(frozen=True)
class SmallModel:
    """What a file's model is like. A matrix whose rows are no whole number of blocks is stored as halves."""

    format: str = "Q4_K"  # of `FORMATS`, or F16
    architecture: str = "llama"  # or qwen3, whose queries and keys have norms
    blocks: int = 2
    width: int = 256
    hidden: int = 512
    heads: int = 4
    kv_heads: int = 2
    context: int = 256
    seed: int = 0

    def write(self, path: Path) -> Path:
        """Write the model into a file, which is given back."""
        write_gguf(path, self._settings(), self._tensors())
        return path

    def _settings(self) -> dict[str, Any]:
        own = {
            "context_length": self.context,
            "block_count": self.blocks,
            "embedding_length": self.width,
            "feed_forward_length": self.hidden,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.key_length": self.width // self.heads,
            "attention.value_length": self.width // self.heads,
            "rope.freq_base": 10000.0,
        }
        tokens = [*map(_shown, range(256)), *SPECIAL]
        return {
            "general.architecture": self.architecture,
            "general.name": f"random {self.architecture} {self.format}",
            **{f"{self.architecture}.{name}": value for name, value in own.items()},
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3] * len(SPECIAL),
            "tokenizer.ggml.bos_token_id": tokens.index(BEGIN),
            "tokenizer.ggml.eos_token_id": tokens.index(TURN),
        }

    def _tensors(self) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
        generator = np.random.default_rng(self.seed)
        blocks = FORMATS.get(self.format)
        made: dict[str, tuple[tuple[int, ...], int, bytes]] = {}

        def norm(name: str, width: int) -> None:
            values = generator.uniform(0.8, 1.2, width).astype(np.float32)
            made[f"{name}.weight"] = ((width,), 0, values.tobytes())

        def matrix(name: str, rows: int, width: int) -> None:
            if blocks is not None and width % blocks.weights == 0:
                made[f"{name}.weight"] = ((rows, width), blocks.number, blocks.random(rows, width, generator))
            else:
                values: NDArray[Any] = generator.normal(0, width**-0.5, (rows, width)).astype(np.float16)
                made[f"{name}.weight"] = ((rows, width), 1, values.tobytes())

        head = self.width // self.heads
        matrix("token_embd", 256 + len(SPECIAL), self.width)
        for place in range(self.blocks):
            norm(f"blk.{place}.attn_norm", self.width)
            norm(f"blk.{place}.ffn_norm", self.width)
            if self.architecture == "qwen3":
                norm(f"blk.{place}.attn_q_norm", head)
                norm(f"blk.{place}.attn_k_norm", head)
            matrix(f"blk.{place}.attn_q", self.width, self.width)
            matrix(f"blk.{place}.attn_k", head * self.kv_heads, self.width)
            matrix(f"blk.{place}.attn_v", head * self.kv_heads, self.width)
            matrix(f"blk.{place}.attn_output", self.width, self.width)
            matrix(f"blk.{place}.ffn_gate", self.hidden, self.width)
            matrix(f"blk.{place}.ffn_up", self.hidden, self.width)
            matrix(f"blk.{place}.ffn_down", self.width, self.hidden)
        norm("output_norm", self.width)
        matrix("output", 256 + len(SPECIAL), self.width)
        return made


def write_gguf(
    path: Path, settings: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], int, bytes]]
) -> None:
    """Write a file of version 3: settings, then tensors by name, each with its shape, its type's number and data."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(settings))]
    head += [_text(name) + _value(value) for name, value in settings.items()]
    at = 0
    for name, (shape, number, data) in tensors.items():
        head.append(_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
        head.append(struct.pack("<IQ", number, at))
        at += _padded(len(data))
    with path.open("wb") as file:
        begin = b"".join(head)
        file.write(begin.ljust(_padded(len(begin)), b"\0"))
        for _, _, data in tensors.values():
            file.write(data.ljust(_padded(len(data)), b"\0"))


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


def _shown(byte: int) -> str:
    """What stands for a byte in a vocabulary of byte pairs: itself if it is printed, else a character from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [one for one in range(256) if one not in printed]
    return chr(byte) if byte in printed else chr(256 + others.index(byte))


def main() -> None:
    """Write one file, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    for name, field in SmallModel.__dataclass_fields__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=field.default, type=type(field.default))
    given = vars(parser.parse_args())
    out = given.pop("out")
    print(SmallModel(**given).write(out))


if __name__ == "__main__":
    main()
