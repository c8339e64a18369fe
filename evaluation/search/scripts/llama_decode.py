"""Tokens of a Llama 3.2 1B in float16, sixteen blocks with random weights, one after another.

python -m kcg.optimize evaluation/search/scripts/llama_decode.py --device CUDA --budget 60s
"""

from __future__ import annotations

import os

from tinygrad import Tensor, TinyJit, Variable, dtypes, nn

BLOCKS = int(os.getenv("BLOCKS", "16"))  # fewer to try it where there is no GPU
VOCABULARY = int(os.getenv("VOCABULARY", "128256"))
WIDTH, HIDDEN, HEADS, KEPT_HEADS, SIZE, CONTEXT, TOKENS = 2048, 8192, 32, 8, 64, 1024, 32


def linear(outputs: int, inputs: int) -> Tensor:
    return Tensor.normal(outputs, inputs, std=inputs**-0.5, dtype=dtypes.float16).realize()


def rotations() -> Tensor:
    """The cosines and sines of all places: 2, context, size / 2."""
    rates = 500000.0 ** -(Tensor.arange(0, SIZE, 2) / SIZE)
    angles = Tensor.arange(CONTEXT).reshape(-1, 1) * rates.reshape(1, -1)
    return angles.cos().stack(angles.sin()).contiguous().realize()


def rotated(x: Tensor, at: Tensor) -> Tensor:
    """Heads, size: the halves of each are turned by the angles of a place."""
    first, second = x.chunk(2, dim=-1)
    return (first * at[0] - second * at[1]).cat(second * at[0] + first * at[1], dim=-1)


class Block:
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query, self.out = linear(HEADS * SIZE, WIDTH), linear(WIDTH, HEADS * SIZE)
        self.key, self.value = linear(KEPT_HEADS * SIZE, WIDTH), linear(KEPT_HEADS * SIZE, WIDTH)
        self.gate, self.up, self.down = linear(HIDDEN, WIDTH), linear(HIDDEN, WIDTH), linear(WIDTH, HIDDEN)
        self.cache = Tensor.zeros(2, KEPT_HEADS, CONTEXT, SIZE, dtype=dtypes.float16).contiguous().realize()

    def __call__(self, x: Tensor, place: Variable, at: Tensor) -> Tensor:
        seen = self.norm1(x).half()
        query, key, value = (seen.linear(w.T).reshape(-1, SIZE) for w in (self.query, self.key, self.value))
        query, key = rotated(query.float(), at).half(), rotated(key.float(), at).half()
        self.cache[:, :, place : place + 1].assign(key.stack(value).unsqueeze(2)).realize()
        keys, values = (self.cache[i, :, : place + 1] for i in range(2))
        groups = query.reshape(KEPT_HEADS, HEADS // KEPT_HEADS, SIZE)
        x = x + groups.scaled_dot_product_attention(keys, values).reshape(1, -1).linear(self.out.T).float()
        seen = self.norm2(x).half()
        return x + (seen.linear(self.gate.T).silu() * seen.linear(self.up.T)).linear(self.down.T).float()


if __name__ == "__main__":
    Tensor.manual_seed(0)
    embedding, norm, table = linear(VOCABULARY, WIDTH), nn.RMSNorm(WIDTH), rotations()
    blocks = [Block() for _ in range(BLOCKS)]

    @TinyJit
    def next_token(token: Tensor, place: Variable) -> Tensor:
        x, at = embedding[token].float(), table[:, place]
        for block in blocks:
            x = block(x, place, at).contiguous()
        return norm(x).half().linear(embedding.T).argmax(axis=-1).cast(dtypes.int32).realize()

    place, token, said = Variable("place", 0, CONTEXT - 1), Tensor([1], dtype=dtypes.int32).realize(), []
    for at in range(TOKENS):
        token = next_token(token, place.bind(at)).clone().realize()
        said.append(token.item())
    print(said)
