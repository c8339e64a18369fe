"""What both programs of the package do."""

from tinygrad import Tensor


def batches() -> None:
    print(f"batches {(Tensor([1.0, 2.0, 3.0]).clone().realize() * 2).sum().item():.1f}")
