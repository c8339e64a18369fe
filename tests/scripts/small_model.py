"""A matmul with relu, and rows that are made to sum to one: kernels that a test can afford. It knows nothing of kcg."""

from tinygrad import Tensor


def table(rows: int, columns: int) -> Tensor:
    return Tensor([[((7 * i + 3 * j) % 11) / 11 - 0.4 for j in range(columns)] for i in range(rows)])


def normalised(x: Tensor) -> Tensor:
    x = x.contiguous() + 1
    return x / x.sum(1, keepdim=True)


def output() -> Tensor:
    return normalised((table(32, 48) @ table(48, 64)).relu())


if __name__ == "__main__":
    print(f"{(output().numpy() ** 2).sum():.6f}")
