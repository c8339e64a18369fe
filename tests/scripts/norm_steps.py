"""A layer norm of three kernels after another layer, replayed under TinyJit: `python norm_steps.py`."""

from tinygrad import Tensor, TinyJit

ROWS, WIDTH = 64, 256
scale = Tensor.full((WIDTH,), 1.5).contiguous().realize()


@TinyJit
def step(x: Tensor) -> Tensor:
    hidden = (x * 2 + 1).contiguous()
    return (hidden.layernorm().contiguous() * scale).contiguous().realize()


values = Tensor([[((7 * i + 3 * j) % 23) / 23 for j in range(WIDTH)] for i in range(ROWS)]).realize()
for _ in range(6):
    out = step((values + 0).contiguous().realize())
print(f"out {out.abs().sum().item():.1f}")
