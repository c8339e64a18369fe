"""A program with workers of its own, as for loading data: one started afresh, which imports this file,
one forked by multiprocessing, one forked by hand, which fails,
and another Python."""

import multiprocessing
import os
import subprocess
import sys

from tinygrad import Tensor


def table(size: int) -> Tensor:
    return Tensor([[float(i * j % 7) for j in range(size)] for i in range(size)])


def work(size: int) -> int:
    return size * size


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print(pool.map(work, [3, 4]))
    forked = multiprocessing.get_context("fork").Process(target=work, args=(5,))
    forked.start()
    forked.join()
    if (child := os.fork()) == 0:
        raise SystemExit(7)
    subprocess.run([sys.executable, "-c", "print('another')"], check=True)
    subprocess.run(["true"], check=True)
    print(f"child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
    print(f"sum {table(6).clone().realize().sum().item():.1f}")
