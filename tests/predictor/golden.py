"""What the shipped networks say of some recorded features, by PyTorch: what NumPy has to say too.

python -m tests.predictor.golden      # written anew, once networks are shipped that were trained anew
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kcg.files import sha256_of
from kcg.predictor.checkpoint import read
from kcg.predictor.choice import SHIPPED
from kcg.predictor.features import Array, Graphs

CHECKPOINT = SHIPPED / "cuda.safetensors"
FILE = Path(__file__).parent / "golden.npz"


def largest_error() -> float:
    """How far NumPy is from what PyTorch said, of each answer relative to its size where that is above 1."""
    from kcg.predictor.stacked import Stacked

    with np.load(FILE) as file:
        arrays = dict(file)
    assert str(arrays["checkpoint"]) == sha256_of(CHECKPOINT), "other networks are shipped: write the file anew"
    answers = Stacked(read(CHECKPOINT).nets)(Graphs.from_arrays(arrays), arrays["kernel_x"], arrays["target_x"])
    worst = 0.0
    for name in ("rank", "log_sigma", "failure", "hidden"):
        ours, theirs = getattr(answers, name), arrays[name]
        assert ours.shape == theirs.shape and theirs.std() > 0.1
        worst = max(worst, float((np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1.0)).max()))
    return worst


def main() -> None:
    """Write the file."""
    from kcg.predictor.features import joined, kernel_features, target_features
    from tests.predictor.test_stacked import TARGET, alone, elementwise, graphs_of, matmul

    regions = [matmul(), elementwise()]
    made = joined([graphs_of(region, 8) for region in regions])
    kernel_x = np.stack([kernel_features(region) for region in regions for _ in range(8)])
    target_x = np.stack([target_features(TARGET)] * len(made))
    each = alone(read(CHECKPOINT).nets, made, kernel_x, target_x)
    said: dict[str, Array] = {name: np.stack([one[name] for one in each]) for name in each[0]}
    arrays = {**made.as_arrays(), "kernel_x": kernel_x, "target_x": target_x, **said}
    np.savez_compressed(FILE, allow_pickle=False, checkpoint=np.array(sha256_of(CHECKPOINT)), **arrays)


if __name__ == "__main__":
    main()
