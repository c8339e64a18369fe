"""A training loop as a user writes it: dropout, an optimiser with momentum, a jitted step over batches of chance.

`python train_loop.py [--steps N] [--batch N]`.
"""

import argparse

from tinygrad import Context, Tensor, TinyJit, nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--batch", type=int, default=8)
settings = parser.parse_args()

Tensor.manual_seed(1)
inputs = Tensor([[((7 * i + 3 * j) % 11) / 11 for j in range(12)] for i in range(40)]).realize()
labels = Tensor([i % 4 for i in range(40)]).realize()
layer = nn.Linear(12, 4, bias=False)
optimiser = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1, momentum=0.9)


@TinyJit
@Context(TRAINING=1)
def step() -> Tensor:
    optimiser.zero_grad()
    chosen = Tensor.randint(settings.batch, high=40)
    loss = layer(inputs[chosen].dropout(0.2)).sparse_categorical_crossentropy(labels[chosen]).backward()
    return loss.realize(*optimiser.schedule_step())


for _ in range(settings.steps):
    last = step().item()
print(f"loss {last:.3f}")
