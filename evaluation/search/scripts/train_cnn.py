"""Training a small CNN with Adam and dropout on random pictures, twenty steps, then its accuracy.

python -m kcg.optimize evaluation/search/scripts/train_cnn.py --budget 60s
"""

from __future__ import annotations

import numpy as np
import tinygrad
from tinygrad import Tensor, TinyJit, nn

PICTURES, BATCH, STEPS = 1024, 64, 20


class Net:
    def __init__(self) -> None:
        self.narrow, self.wide = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
        self.norm = nn.BatchNorm(32)
        self.hidden, self.classes = nn.Linear(32 * 5 * 5, 64), nn.Linear(64, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.narrow(x).relu().max_pool2d()
        x = self.norm(self.wide(x)).relu().max_pool2d()
        return self.classes(self.hidden(x.flatten(1)).relu().dropout(0.25))


if __name__ == "__main__":
    Tensor.manual_seed(0)
    rng = np.random.default_rng(0)
    pictures = Tensor(rng.random((PICTURES, 1, 28, 28), dtype=np.float32))
    digits = Tensor(rng.integers(0, 10, PICTURES).astype(np.int32))
    net = Net()
    optimiser = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    @tinygrad.Context(TRAINING=1)
    def step() -> Tensor:
        chosen = Tensor.randint(BATCH, high=PICTURES)
        optimiser.zero_grad()
        loss = net(pictures[chosen]).sparse_categorical_crossentropy(digits[chosen]).backward()
        return loss.realize(*optimiser.schedule_step())

    @TinyJit
    def accuracy() -> Tensor:
        return (net(pictures[:256]).argmax(axis=1) == digits[:256]).mean().realize()

    losses = [step().item() for _ in range(STEPS)]
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, accuracy {accuracy().item():.3f}")
