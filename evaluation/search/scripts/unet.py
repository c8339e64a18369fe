"""A small UNet that takes noise off pictures of 32 x 32, in eight steps.

python -m kcg.optimize evaluation/search/scripts/unet.py --budget 60s
"""

from __future__ import annotations

from itertools import pairwise

from tinygrad import Tensor, TinyJit, nn

WIDTHS = (32, 64, 128)


class Block:
    def __init__(self, inputs: int, outputs: int) -> None:
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(64, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.conv1(self.norm1(x).silu()) + self.time(time).reshape(1, -1, 1, 1)
        return self.conv2(self.norm2(out).silu()) + self.skip(x)


class UNet:
    def __init__(self) -> None:
        self.first, self.last = nn.Conv2d(3, WIDTHS[0], 3, padding=1), nn.Conv2d(WIDTHS[0], 3, 3, padding=1)
        self.down = [Block(narrow, wide) for narrow, wide in pairwise(WIDTHS)]
        self.middle = Block(WIDTHS[-1], WIDTHS[-1])
        self.up = [Block(2 * wide, narrow) for narrow, wide in pairwise(WIDTHS)]

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for block in self.down:
            kept.append(x := block(x, time))
            x = x.avg_pool2d()
        x = self.middle(x, time)
        for block, beside in zip(reversed(self.up), reversed(kept), strict=True):
            x = block(x.interpolate(beside.shape[2:], mode="nearest").cat(beside, dim=1), time)
        return self.last(x)


if __name__ == "__main__":
    Tensor.manual_seed(0)
    model = UNet()

    @TinyJit
    def step(x: Tensor, time: Tensor) -> Tensor:
        return (x - 0.1 * model(x, time)).realize()

    picture = Tensor.randn(2, 3, 32, 32).realize()
    for number in range(8):
        picture = step(picture.contiguous().realize(), Tensor.full((1, 64), number / 8).contiguous().realize())
    print(picture.std().item())
