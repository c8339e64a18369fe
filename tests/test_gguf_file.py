"""The files that tests write are read by tinygrad as models whose weights are about 1/sqrt(fan_in), none infinite."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tinygrad.llm.gguf import gguf_load

from evaluation.gguf_file import GGML_TYPES
from kcg.compat.device import prepare
from tests.gguf_file import SmallModel
from tests.slow import some

TABLES = ("iq4_xs", "mxfp4")
"""Formats whose codes are bytes that index a table: such a kernel crashes if tinygrad's X86 assembler compiled it."""


@pytest.mark.parametrize("name", some([name for name in GGML_TYPES if name not in TABLES], ["q4_0"]))
def test_weights_are_finite_and_of_the_size_that_trained_ones_have(name: str, tmp_path: Path) -> None:
    prepare(os.environ["DEV"])
    model = SmallModel(format=name, architecture="qwen3", blocks=1, hidden=256, heads=2, kv_heads=1)
    settings, weights = gguf_load(model.write(tmp_path / "small.gguf"))
    assert settings["general.architecture"] == "qwen3" and len(settings["tokenizer.ggml.tokens"]) == 260
    values = weights["blk.0.ffn_up.weight"].numpy().astype(np.float64)
    assert values.shape == (256, 256) and np.isfinite(values).all()
    assert 0.7 < values.std() * 16 < 1.45 and abs(values.mean() * 16) < 0.15
    assert weights["blk.0.attn_q_norm.weight"].shape == (128,)
