"""What `any_ending.py` imports: a local module of a user's project."""

from tinygrad import Tensor


def table(size: int) -> Tensor:
    return Tensor([[(i + j) % 5 for j in range(size)] for i in range(size)]).float()


def divided(number: int) -> float:
    return 1 / number  # here: below
