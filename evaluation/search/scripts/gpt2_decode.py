"""Tokens of tinygrad's own GPT-2 in float16, with random weights, one after another.

TINYGRAD_SOURCE=FOLDER python -m kcg.optimize evaluation/search/scripts/gpt2_decode.py --device CUDA --budget 60s

FOLDER is a checkout of tinygrad at a9069c177a9da9cca18593edf55acd2e6073cca6: `examples` is no part of its package.
"""

from __future__ import annotations

import os
import sys

os.environ["HALF"] = "1"
sys.path.append(os.environ["TINYGRAD_SOURCE"])  # behind the package that is installed

from examples.gpt2 import MAX_CONTEXT, MODEL_PARAMS, VOCAB_SIZE, Transformer  # type: ignore[import-not-found]
from tinygrad import Tensor, Variable
from tinygrad.nn.state import get_state_dict

TOKENS = 32

if __name__ == "__main__":
    Tensor.manual_seed(0)
    model = Transformer(**MODEL_PARAMS["gpt2"])
    model.lm_head.weight = model.wte.weight
    for weight in (weights := get_state_dict(model)).values():
        weight.replace(weight.half())
    Tensor.realize(*weights.values())

    token, place, said = Variable("tokens", 0, VOCAB_SIZE - 1), Variable("start_pos", 1, MAX_CONTEXT - 1), [0]
    for at in range(1, TOKENS):
        said.append(model(token.bind(said[-1]), place.bind(at)).item())
    print(said)
