"""A decode loop with a cache and a symbolic position under TinyJit: one kernel serves every position.

`python decode_loop.py [POSITIONS]`.
"""

import sys

from tinygrad import Device, Tensor, TinyJit, Variable

context, width = 32, 16
positions = int(sys.argv[1]) if len(sys.argv) > 1 else 12
cache = Tensor.zeros(context, width).contiguous().realize()
weight = Tensor([[((7 * i + 3 * j) % 11) / 11 - 0.4 for j in range(width)] for i in range(width)]).realize()


@TinyJit
def attend(x: Tensor, start_pos: Variable) -> Tensor:
    written = Tensor(cache.uop.after(cache[start_pos : start_pos + 1].uop.store((x @ weight).contiguous().uop)))
    keys = written[: start_pos + 1]
    scores = (x @ keys.T).contiguous().abs()
    return ((scores / scores.sum(-1, keepdim=True)) @ keys).realize()


position = Variable("start_pos", 1, context - 1)
for i in range(1, positions + 1):
    out = attend(Tensor.full((1, width), 0.1).contiguous().realize(), position.bind(i))
if Device.DEFAULT != "NULL":  # which computes nothing
    print(f"out {out.sum().item():.3f}")
