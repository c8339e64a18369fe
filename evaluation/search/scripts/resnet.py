"""ResNet-18 on random pictures of 64 x 64: the classes of a batch, ten times.

python -m kcg.optimize evaluation/search/scripts/resnet.py --budget 60s
"""

from __future__ import annotations

from itertools import pairwise

from tinygrad import Tensor, TinyJit, nn

WIDTHS = (64, 128, 256, 512)


class Block:
    def __init__(self, inputs: int, outputs: int) -> None:
        stride = outputs // inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if stride > 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (out + (x if self.shortcut is None else self.shortcut(x))).relu()


class ResNet:
    def __init__(self) -> None:
        self.stem, self.norm = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm(64)
        self.blocks = [Block(64, 64), Block(64, 64)]
        for narrow, wide in pairwise(WIDTHS):
            self.blocks += [Block(narrow, wide), Block(wide, wide)]
        self.head = nn.Linear(512, 100)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu().max_pool2d((3, 3), stride=2, padding=1)
        return self.head(x.sequential(list(self.blocks)).mean((2, 3)))


if __name__ == "__main__":
    Tensor.manual_seed(0)
    model = ResNet()

    @TinyJit
    def classes(x: Tensor) -> Tensor:
        return model(x).argmax(axis=1).realize()

    for _ in range(10):
        found = classes(Tensor.rand(4, 3, 64, 64).realize()).tolist()
    print(found)
