"""One token at a time through a small language model's layer: products of a matrix and a vector, and a cache."""

from tinygrad import Tensor, TinyJit, nn

embed, query, out, head = nn.Embedding(4096, 512), nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 4096)
keys, values = Tensor.rand(1, 256, 512).realize(), Tensor.rand(1, 256, 512).realize()


@TinyJit
def decode(token: Tensor) -> Tensor:
    x = embed(token)
    x = x + out(query(x).scaled_dot_product_attention(keys, values))
    return head(x.layernorm()).argmax(-1).realize()


token = Tensor([[1]]).realize()
for _ in range(8):
    token = decode(token.contiguous().realize())
print(token.item())
