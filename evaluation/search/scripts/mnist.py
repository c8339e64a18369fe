"""Training on pictures like those of MNIST, random ones: a net of two convolutions and batch norms, twenty steps.

python -m kcg.optimize evaluation/search/scripts/mnist.py --budget 60s
"""

from __future__ import annotations

import tinygrad
from tinygrad import Tensor, TinyJit, nn

BATCH = 64


class Net:
    def __init__(self) -> None:
        self.layers = [
            nn.Conv2d(1, 32, 5),
            Tensor.relu,
            nn.Conv2d(32, 32, 5),
            Tensor.relu,
            nn.BatchNorm(32),
            Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3),
            Tensor.relu,
            nn.BatchNorm(64),
            Tensor.max_pool2d,
            lambda x: x.flatten(1),
            nn.Linear(1024, 10),
        ]

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


if __name__ == "__main__":
    Tensor.manual_seed(0)
    pictures, digits = Tensor.rand(1024, 1, 28, 28).realize(), Tensor.randint(1024, high=10).realize()
    model = Net()
    optimiser = nn.optim.SGD(nn.state.get_parameters(model), lr=1e-3, momentum=0.9)

    @TinyJit
    @tinygrad.Context(TRAINING=1)
    def step() -> Tensor:
        optimiser.zero_grad()
        chosen = Tensor.randint(BATCH, high=pictures.shape[0])
        loss = model(pictures[chosen]).sparse_categorical_crossentropy(digits[chosen]).backward()
        return loss.realize(*optimiser.schedule_step())

    for _ in range(20):
        seen = step().item()
    print(f"{seen:.4f}")
