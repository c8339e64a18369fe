"""A matmul with relu and a softmax: four kernels of the size that a test can afford. It knows nothing of kcg."""

from tinygrad import Tensor


def table(rows: int, columns: int) -> Tensor:
    return Tensor([[((7 * i + 3 * j) % 11) / 11 - 0.4 for j in range(columns)] for i in range(rows)])


def output() -> Tensor:
    return (table(32, 48) @ table(48, 64)).relu().contiguous().softmax()


if __name__ == "__main__":
    print(f"{(output().numpy() ** 2).sum():.6f}")
