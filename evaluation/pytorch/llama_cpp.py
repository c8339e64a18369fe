"""A token of a language model by llama.cpp: its own benchmark of a GGUF file with random weights.

    python -m evaluation.pytorch.llama_cpp qwen-8b-q4_k_m FILE.gguf

writes the file of a preset of the workload `llm`, with its sizes and the format of each tensor. Tensors whose blocks
have one format and one scale repeat one set of random blocks: gigabytes are written in seconds. There is no tokenizer.

`row` has `llama-bench` read it. From the preset's position on it takes so many tokens, each after the one before, and
waits for each; the noise and the argmax of kcg's token are no part of them.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from evaluation.gguf_file import Stored, write_gguf
from evaluation.rows import Row, rounded
from kcg.cli import run_script
from kcg.errors import UsageError
from kcg.workloads.family import generator
from kcg.workloads.llm import LlmConfig, llm_config, weights_bytes, weights_of
from kcg.workloads.packed_weights import FORMATS, random_blocks

SET = 1 << 18  # random blocks that tensors repeat
NORM_SPREAD = 0.1
TOKENS, TIMES = 64, 5
LAYERS = 99  # on the GPU: all
LIMIT_S = 420.0


def row(bench: Path, preset: str, limit_s: float = LIMIT_S) -> Row:
    """The tokens a second that the program `bench` counts of a preset.

    Raises UnknownName, and UsageError for a model that is neither Llama's nor Qwen3's.
    """
    config = llm_config(preset)
    with tempfile.TemporaryDirectory(prefix="kcg-gguf-") as folder:
        model = write_model(Path(folder) / f"{preset}.gguf", config)
        options = {
            "-m": model, "-ngl": LAYERS, "-fa": 1, "-p": 0, "-n": TOKENS, "-d": config.position, "-r": TIMES,
            "-o": "json",
        }  # fmt: skip
        command = [str(bench.absolute()), *(str(one) for option in options.items() for one in option)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return _failed(f"it did not end in {limit_s:.0f} s")
        except OSError as error:
            return _failed(f"{bench} does not run: {error.strerror}")
    if done.returncode:
        return _failed(_last(done.stderr) or f"it ended with {done.returncode}")
    try:
        (found,) = json.loads(done.stdout)
        if "CUDA" not in found["backends"].split(","):
            return _failed(f"{bench} is not built for CUDA, but for {found['backends']}")
        return {"preset": preset, "position": config.position, **_figures(found), "bytes": weights_bytes(config)}
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        return _failed(f"its answer is not understood: {error!r}")


def _figures(found: dict[str, Any]) -> Row:
    """What is kept of the benchmark's record of a test."""
    rate = float(found["avg_ts"])
    return {
        "tokens_per_s": rounded(rate), "tokens_per_s_deviation": rounded(float(found["stddev_ts"])),
        "token_s": rounded(1 / rate), "tokens": found["n_gen"], "times": TIMES,
        "llama_cpp": f"{found['build_commit']} ({found['build_number']})",
        "flash_attention": bool(found["flash_attn"]), "backends": found["backends"],
        "gpu": found["gpu_info"], "cache": f"{found['type_k']}, {found['type_v']}",
    }  # fmt: skip


def _failed(reason: str) -> Row:
    return {"status": "failed", "reason": reason}


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def write_model(path: Path, config: LlmConfig, *, seed: int = 0) -> Path:
    """Write a model with random weights into a file, which is given back. Raises UsageError as `row` does."""
    sets: dict[tuple[str, int], np.ndarray] = {}

    def pieces(name: str, shape: tuple[int, ...], kind: str) -> Iterator[np.ndarray]:
        left = prod(shape) // FORMATS[kind].weights
        if len(shape) == 1:
            yield random_blocks(kind, left, NORM_SPREAD, generator(seed, name), around=1.0)
            return
        if (key := (kind, shape[-1])) not in sets:
            sets[key] = random_blocks(kind, SET, shape[-1] ** -0.5, generator(seed, f"{kind} {shape[-1]}"))
        while left:
            yield sets[key][: (count := min(left, SET))]
            left -= count

    tensors: dict[str, Stored] = {
        name: (shape, kind, pieces(name, shape, kind)) for name, (shape, kind) in weights_of(config).items()
    }
    write_gguf(path, settings(config), tensors)
    return path


def settings(config: LlmConfig) -> dict[str, Any]:
    """What a file says of a model beside its tensors. Raises UsageError as `row` does."""
    architecture = {0: "llama", config.head_size: "qwen3"}.get(config.query_norm)
    if architecture is None or config.experts or config.interleaved == (architecture == "qwen3"):
        raise UsageError("only models of Llama's or Qwen3's layers are written for llama.cpp")
    own = {
        "context_length": config.context,
        "block_count": config.blocks,
        "embedding_length": config.width,
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.layer_norm_rms_epsilon": config.epsilon,
        "attention.key_length": config.head_size,
        "attention.value_length": config.head_size,
        "rope.dimension_count": config.head_size,
        "rope.freq_base": config.theta,
        "vocab_size": config.vocabulary,
    }
    return {
        "general.architecture": architecture,
        "general.name": f"random {architecture} {config.file}",
        **{f"{architecture}.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "no_vocab",
    }


def main(
    preset: Annotated[str, typer.Argument(help="of the workload llm")],
    out: Annotated[Path, typer.Argument(help="the file that is written")],
) -> None:
    """Write the file of a preset."""
    print(write_model(out, llm_config(preset)))


if __name__ == "__main__":
    run_script(main)
