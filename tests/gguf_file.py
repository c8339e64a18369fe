"""GGUF files of small language models with random weights, in every block format that tinygrad's loader reads.

Weights have a standard deviation of 1/sqrt(fan_in): what such a model computes is as large as in a trained one. The
vocabulary is the 256 bytes and the special tokens of Llama 3's chats, so that every text has tokens and every token a
text.

`python -m tests.gguf_file OUT.gguf --format q4_k --architecture qwen3` writes one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.gguf_file import Stored, write_gguf
from kcg.workloads.packed_weights import FORMATS, random_blocks

BEGIN, START, END, TURN = SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


@dataclass(frozen=True)
class SmallModel:
    """What a file's model is like. A matrix whose rows are no whole number of blocks is stored as halves."""

    format: str = "q4_k"  # of `evaluation.gguf_file.GGML_TYPES`
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

    def _tensors(self) -> dict[str, Stored]:
        generator = np.random.default_rng(self.seed)
        made: dict[str, Stored] = {}

        def norm(name: str, width: int) -> None:
            values = generator.uniform(0.8, 1.2, width).astype(np.float32)
            made[f"{name}.weight"] = ((width,), "f32", [values])

        def matrix(name: str, rows: int, width: int) -> None:
            kind = self.format if width % FORMATS[self.format].weights == 0 else "f16"
            blocks = random_blocks(kind, rows * width // FORMATS[kind].weights, width**-0.5, generator)
            made[f"{name}.weight"] = ((rows, width), kind, [blocks])

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
