"""A small model that leaves its results in the way that it is told: `python left_over.py HOW [FILE]`.

To FILE it adds a line of the random numbers that it drew: every run is counted, and its seeds are seen.
"""

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
from tinygrad import Tensor, TinyJit

HOW = sys.argv[1]


def forward(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """One of its kernels takes a maximum over 16: see test_whole_model."""
    scores = (x @ first).contiguous()
    largest = scores.max(axis=1, keepdim=True).contiguous()
    return ((scores - largest).square().contiguous() @ second).contiguous()


def normal(rows: int, columns: int) -> Tensor:
    """By NumPy: to compile tinygrad's generator takes longer than all else here."""
    return Tensor(np.random.normal(size=(rows, columns)).astype(np.float32)).realize()  # noqa: NPY002


def model() -> tuple[Tensor, Tensor, Tensor]:
    return normal(8, 12), normal(12, 16), normal(16, 24)


def local() -> None:
    print(float(forward(*model()).numpy().sum()))


def exiting() -> None:
    out = forward(*model()).realize()
    sys.exit(0 * len(out.shape))


def jitted() -> None:
    step, inputs = TinyJit(lambda x, first, second: forward(x, first, second).realize()), model()
    for _ in range(3):
        step(*inputs)


def random_bytes() -> Tensor:
    drawn = np.frombuffer(os.urandom(12 * 8), np.uint8).reshape(8, 12).astype(np.float32)
    return Tensor(drawn).realize()


if len(sys.argv) > 2:
    with Path(sys.argv[2]).open("a") as reported:
        generators = [np.random.default_rng() for _ in range(2)]
        drawn = [random.random(), np.random.random(), Tensor.rand(1).item(), hash("seeded"), sys.stdin.read()]  # noqa: NPY002
        reported.write(f"{drawn + [generator.random() for generator in generators]}\n")
match HOW:
    case "local":
        local()
    case "jitted":
        jitted()
    case "alive":
        out = forward(*model()).realize()
    case "nothing":
        inputs = model()
        forward(*inputs).realize()
        del inputs
    case "random":
        out = forward(random_bytes(), *model()[1:]).realize()
    case "as many as lines":
        out = [forward(*model()).realize() for _ in Path(sys.argv[2]).read_text().splitlines()]
    case "checks-itself":
        x, first, second = model()
        out = forward(x, first, second).realize()
        scores = x.numpy() @ first.numpy()
        expected = np.square(scores - scores.max(1, keepdims=True)) @ second.numpy()
        assert np.allclose(out.numpy(), expected, rtol=1e-3), f"off by {abs(out.numpy() - expected).max()}"
    case "raises":
        out = forward(*model()).realize()
        raise RuntimeError(f"the loss is {time.time()}")
    case "exits":
        out = forward(*model()).realize()
        sys.exit(0)
    case "exits inside":
        exiting()
    case "leaves":
        out = forward(*model()).realize()
        os._exit(0)
    case "reads":
        out = forward(*model()).realize()
        print(sum(len(line) for line in sys.stdin))
    case "chaos":
        # a difference of one rounding unit grows in every round, until nothing of the value is left
        weights = (Tensor.randn(16, 16) * 4).realize()
        state = Tensor.randn(16, 16).realize()
        for _ in range(60):
            state = (state @ weights).sin().realize()
        assert state.max().item() < 1.1
    case "whole numbers":
        keys = Tensor.randint(64, 32, high=1000).realize()
        out = (keys.sum(0) % 7).realize()
    case "choices":
        # which of two equal sums is larger is for rounding to say
        values = Tensor.randn(256, 64).realize()
        halves = values.sum(1).reshape(256, 1).cat((values * 2).sum(1).reshape(256, 1) / 2, dim=1).realize()
        out = (halves[:, 0] > halves[:, 1]).realize()
        del halves, values
    case "waits":
        out = forward(*model()).realize()
        time.sleep(36_000)
