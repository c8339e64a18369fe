"""A product and what its rows' maxima leave of it, added to a state in every step: `python product_steps.py`.

Its numbers are exact in float32, in whatever order they are added.
"""

from tinygrad import Tensor, TinyJit

SIZE, STEPS = 256, 7
weight = Tensor([[((5 * i + 3 * j) % 17) / 16 for j in range(SIZE)] for i in range(SIZE)]).realize()
state = Tensor.zeros(SIZE, SIZE).contiguous().realize()


@TinyJit
def step(x: Tensor) -> Tensor:
    product = (x @ weight).contiguous()
    below = (product - product.max(1, keepdim=True).contiguous()).contiguous()
    return state.assign(state + below).realize()


for number in range(STEPS):
    step(Tensor.full((SIZE, SIZE), number / 8).contiguous().realize())
print(f"sum {state.sum().item():.1f}")
