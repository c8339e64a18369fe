from tinygrad import Tensor, TinyJit, nn

qkv, out, up, down = nn.Linear(512, 1536), nn.Linear(512, 512), nn.Linear(512, 2048), nn.Linear(2048, 512)


@TinyJit
def block(x: Tensor) -> Tensor:
    q, k, v = qkv(x.layernorm()).chunk(3, dim=-1)
    x = x + out(q.scaled_dot_product_attention(k, v))
    return (x + down(up(x.layernorm()).gelu())).realize()


for _ in range(8):
    y = block(Tensor.rand(1, 256, 512).realize())
print(y.shape)
