"""Workers that take and return objects of the script's own classes: `worker_classes.py pool|executor METHOD`."""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from tinygrad import Tensor


class Batch:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> object:
        return Batch, (self.number,)


class NotReady(Exception):
    pass


def load(batch: Batch) -> Batch:
    if batch.number < 0:
        raise NotReady(batch.number)
    return Batch(batch.number * 2)


if __name__ == "__main__":
    os.chdir("/")
    how, method = sys.argv[1:]
    context = multiprocessing.get_context(method)
    if how == "pool":
        with context.Pool(2) as pool:
            batches = pool.map(load, map(Batch, range(4)))
    else:
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            batches = list(executor.map(load, map(Batch, range(4))))
            assert type(executor.submit(load, Batch(-1)).exception()) is NotReady
    assert all(type(batch) is Batch for batch in batches)
    print(f"sum {Tensor([float(b.number) for b in batches]).clone().realize().sum().item():.1f}")
