"""A decode loop under TinyJit whose attention reads a cache up to a symbolic position.

`python decode_attention.py [POSITIONS]`.
"""

import sys

from tinygrad import Device, Tensor, TinyJit, Variable

CONTEXT, HEADS, KEY_HEADS, SIZE = 32, 4, 2, 8
positions = int(sys.argv[1]) if len(sys.argv) > 1 else 6


def given(*shape: int, step: int) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return Tensor([((step * i) % 23) / 23 - 0.5 for i in range(count)]).reshape(*shape).contiguous().realize()


queries, keys, values = (given(HEADS * SIZE, heads * SIZE, step=7 + heads) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
caches = [Tensor.zeros(KEY_HEADS, CONTEXT, SIZE).contiguous().realize() for _ in range(2)]


def cached(cache: Tensor, new: Tensor, start_pos: Variable) -> Tensor:
    """The cache up to a position, with what is new written there."""
    place = cache[:, start_pos : start_pos + 1].uop
    return Tensor(cache.uop.after(place.store(new.reshape(KEY_HEADS, 1, SIZE).contiguous().uop)))[:, : start_pos + 1]


def decode(x: Tensor, start_pos: Variable) -> Tensor:
    q = (x @ queries).contiguous().reshape(KEY_HEADS, HEADS // KEY_HEADS, SIZE)
    k, v = (cached(cache, x @ made, start_pos) for cache, made in zip(caches, (keys, values), strict=True))
    scores = ((q @ k.transpose(-2, -1)) * SIZE**-0.5).contiguous()
    return (scores.softmax(-1).contiguous() @ v).contiguous().reshape(1, HEADS * SIZE)


def main() -> None:
    step, position = TinyJit(lambda x, start_pos: decode(x, start_pos).realize()), Variable("start_pos", 1, CONTEXT - 1)
    x = given(1, HEADS * SIZE, step=5)
    for i in range(1, positions + 1):
        x = (step(x, position.bind(i)) * 1.5 + 0.1).contiguous().realize()
    if Device.DEFAULT != "NULL":  # which computes nothing
        print(f"out {x.sum().item():.3f}")


if __name__ == "__main__":
    main()
