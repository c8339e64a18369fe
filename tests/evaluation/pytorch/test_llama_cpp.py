"""What is asked of llama.cpp's benchmark, what is read from its answer, and the file that it reads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad.llm.gguf import gguf_load

from evaluation.gguf_file import write_gguf
from evaluation.pytorch import decode, llama_cpp
from evaluation.pytorch.decode import LLAMA_CPP, headline
from kcg.compat.device import prepare
from kcg.errors import UnknownName, UsageError
from kcg.workloads.llm import PRESETS, LlmConfig, llm_config, weights_bytes, weights_of

SMALL = LlmConfig(
    file="q4_k_m", blocks=2, width=256, hidden=512, heads=4, kv_heads=2, head_size=64, vocabulary=512, context=64,
    position=37, query_norm=64,
)  # fmt: skip
ANSWER = {
    "build_commit": "0123abc", "build_number": 12, "backends": "CUDA", "gpu_info": "NVIDIA H200", "flash_attn": 1,
    "n_gen": 64, "type_k": "f16", "type_v": "f16", "avg_ts": 250.0, "stddev_ts": 1.25,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset of a small model, and sets of blocks that are shorter than some of its tensors."""
    monkeypatch.setattr(llama_cpp, "SET", 100)
    monkeypatch.setitem(PRESETS, "small", SMALL)


def bench(folder: Path, code: str) -> Path:
    """A program in the place of llama.cpp's."""
    path = folder / "llama-bench"
    path.write_text(f"#!{sys.executable}\nimport json, sys, pathlib\nhere = pathlib.Path(__file__).parent\n{code}\n")
    path.chmod(0o755)
    return path


def test_the_benchmark_is_asked_for_tokens_at_the_presets_position(tmp_path: Path) -> None:
    code = f"""
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
given["begin"] = open(given["-m"], "rb").read(4).decode()
(here / "given.json").write_text(json.dumps(given))
print(json.dumps([{ANSWER!r}]))"""
    row = llama_cpp.row(bench(tmp_path, code), "small")
    given: dict[str, Any] = json.loads((tmp_path / "given.json").read_text())
    model = Path(given.pop("-m"))
    assert model.name == "small.gguf" and not model.exists()
    assert given == {
        "-ngl": "99", "-fa": "1", "-p": "0", "-n": "64", "-d": "37", "-r": "5", "-o": "json", "begin": "GGUF",
    }  # fmt: skip
    assert row == {
        "preset": "small", "position": 37, "tokens_per_s": 250.0, "tokens_per_s_deviation": 1.25, "token_s": 0.004,
        "tokens": 64, "times": 5, "llama_cpp": "0123abc (12)", "flash_attention": True,
        "backends": "CUDA", "gpu": "NVIDIA H200", "cache": "f16, f16", "bytes": weights_bytes(SMALL),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('starting\\nerror: failed to load model\\n')", "error: failed to load model"),
        ("sys.exit(3)", "it ended with 3"),
        ("print('no records')", "its answer is not understood"),
        ("print('[]')", "its answer is not understood"),
        ("print('[{}]')", "its answer is not understood"),
        (f"print({json.dumps([{**ANSWER, 'backends': 'CPU'}])!r})", "/bench is not built for CUDA, but for CPU"),
        ("import time; time.sleep(60)", "it did not end in 1 s"),
    ],
)
def test_a_benchmark_that_fails_gives_its_reason(code: str, reason: str, tmp_path: Path) -> None:
    path = bench(tmp_path, code)
    row = llama_cpp.row(path, "small", limit_s=1.0 if "time" in code else 60.0)
    said = row["reason"].replace(str(path), "/bench")
    assert row["status"] == "failed" and said.startswith(reason) and "\n" not in said


def test_no_benchmark_and_no_such_model(tmp_path: Path) -> None:
    row = llama_cpp.row(tmp_path / "none", "small")
    assert row["status"] == "failed" and row["reason"].endswith("does not run: No such file or directory")
    with pytest.raises(UnknownName):
        llama_cpp.row(tmp_path / "none", "large")
    with pytest.raises(UsageError, match="Qwen3"):
        llama_cpp.row(tmp_path / "none", "moe-1b-q4_k_m")
    with pytest.raises(UsageError, match="--llama-bench"):
        decode.main(only="llama.cpp")


def test_tinygrad_reads_the_file_back(tmp_path: Path) -> None:
    prepare(os.environ["DEV"])
    path = llama_cpp.write_model(tmp_path / "small.gguf", SMALL)
    settings, weights = gguf_load(path)
    assert settings["general.architecture"] == "qwen3" and settings["qwen3.vocab_size"] == 512
    assert (settings["qwen3.block_count"], settings["qwen3.attention.key_length"]) == (2, 64)
    assert settings["qwen3.rope.freq_base"] == SMALL.theta and settings["tokenizer.ggml.model"] == "no_vocab"
    assert {name: weight.shape for name, weight in weights.items()} == {
        name: shape for name, (shape, _) in weights_of(SMALL).items()
    }
    up = weights["blk.1.ffn_up.weight"].numpy().astype(np.float64)
    assert np.isfinite(up).all() and 0.7 < up.std() * 16 < 1.45 and abs(up.mean() * 16) < 0.15
    norm = weights["blk.1.attn_q_norm.weight"].numpy()
    assert abs(norm.mean() - 1) < 0.05 and not np.array_equal(norm, weights["blk.0.attn_q_norm.weight"].numpy())
    assert path.stat().st_size > weights_bytes(SMALL)


def test_the_model_of_the_row_is_written_as_qwen3s() -> None:
    found = llama_cpp.settings(llm_config(LLAMA_CPP.split()[-1]))
    assert found["general.architecture"] == "qwen3"
    assert (found["qwen3.block_count"], found["qwen3.feed_forward_length"], found["qwen3.vocab_size"]) == (
        36, 12288, 151936,
    )  # fmt: skip
    assert llama_cpp.settings(llm_config("llama-1b-q4_k_m"))["general.architecture"] == "llama"


def test_a_tensor_with_too_few_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 4 bytes instead of 8"):
        write_gguf(tmp_path / "short.gguf", {}, {"w": ((2,), "f32", [np.zeros(1, np.float32)])})


def test_the_headline_has_the_rate() -> None:
    assert headline({LLAMA_CPP: {"tokens_per_s": 200.0}}) == {"qwen_q4_llama_cpp_tokens_per_s": 200.0}
    assert headline({LLAMA_CPP: {"status": "failed", "reason": "error: failed to load model"}}) == {}
