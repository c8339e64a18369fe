"""Digits classified by a small perceptron, a batch at a time."""

from tinygrad import Tensor, TinyJit, nn

layers = [nn.Linear(784, 512), Tensor.relu, nn.Linear(512, 512), Tensor.relu, nn.Linear(512, 10)]
classify = TinyJit(lambda x: x.sequential(layers).argmax(-1).realize())
for _ in range(8):
    found = classify(Tensor.rand(64, 784).realize())
print(found.tolist()[:4])
