"""`python -m package.inner.train args…`: says what it sees of itself, and has workers that return its own classes."""

import multiprocessing
import sys
from dataclasses import dataclass

from ..work import batches


@dataclass
class Batch:
    numbers: list[int]


def load(size: int) -> Batch:
    return Batch(list(range(size)))


if __name__ == "__main__":
    print(__name__, __package__, __spec__.name, *sys.argv)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(load, [2]))
    batches()
