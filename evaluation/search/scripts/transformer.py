"""A transformer of four layers: the loss of random tokens, eight batches.

python -m kcg.optimize evaluation/search/scripts/transformer.py --budget 60s
"""

from __future__ import annotations

from tinygrad import Tensor, TinyJit, nn

LAYERS, HEADS, WIDTH, TOKENS, VOCABULARY = 4, 8, 256, 128, 2048


class Layer:
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        heads = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
        attended = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(self.up(self.norm2(x)).gelu())


class Transformer:
    def __init__(self) -> None:
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = [Layer() for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(Tensor.arange(tokens.shape[1]).reshape(1, -1))
        return self.head(self.norm(x.sequential(list(self.layers))))


if __name__ == "__main__":
    Tensor.manual_seed(0)
    model = Transformer()

    @TinyJit
    def loss(tokens: Tensor) -> Tensor:
        return model(tokens)[:, :-1].sparse_categorical_crossentropy(tokens[:, 1:]).realize()

    for _ in range(8):
        seen = loss(Tensor.randint(2, TOKENS, high=VOCABULARY).realize()).item()
    print(f"{seen:.3f}")
