"""Two layers of different widths that read the same rows, replayed under TinyJit: `python made_again.py`."""

from tinygrad import Tensor, TinyJit

ROWS, WIDTH = 32, 64
wide, narrow = (Tensor.full((WIDTH, columns), 0.5).contiguous().realize() for columns in (96, 48))


def layers(x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = (x * 2 + 1).contiguous()
    made = (hidden @ wide).contiguous(), (hidden @ narrow).contiguous()
    del hidden  # else it is alive in the first call, which is not captured
    Tensor.realize(*made)
    return made


step = TinyJit(layers)
values = Tensor([[float((7 * i + 3 * j) % 23) for j in range(WIDTH)] for i in range(ROWS)]).realize()
for _ in range(6):
    one, two = step((values + 0).contiguous().realize())
print(f"out {one.abs().sum().item():.1f} {two.abs().sum().item():.1f}")
