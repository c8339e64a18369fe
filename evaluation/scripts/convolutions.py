"""Pictures classified by a small network of convolutions."""

from tinygrad import Tensor, TinyJit, nn

first, second, last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3), nn.Linear(32 * 36, 10)


@TinyJit
def classify(x: Tensor) -> Tensor:
    x = second(first(x).relu().max_pool2d()).relu().max_pool2d()
    return last(x.flatten(1)).softmax(-1).realize()


for _ in range(8):
    found = classify(Tensor.rand(8, 3, 32, 32).realize())
print(found.argmax(-1).tolist())
