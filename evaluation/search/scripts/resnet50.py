"""tinygrad's own ResNet-50 in float16 on sixteen random pictures of 224 x 224, ten times, with random weights.

TINYGRAD_SOURCE=FOLDER python -m kcg.optimize evaluation/search/scripts/resnet50.py --device CUDA --budget 60s

FOLDER is a checkout of tinygrad at a9069c177a9da9cca18593edf55acd2e6073cca6: `extra` is no part of its package.
"""

from __future__ import annotations

import os
import sys

sys.path.append(os.environ["TINYGRAD_SOURCE"])  # behind the package that is installed

from extra.models.resnet import ResNet  # type: ignore[import-not-found]
from tinygrad import Tensor, TinyJit
from tinygrad.nn.state import get_state_dict

SIDE = int(os.getenv("SIDE", "224"))  # fewer pixels to try it where there is no GPU

if __name__ == "__main__":
    Tensor.manual_seed(0)
    model = ResNet(50, num_classes=1000)
    for name, weight in (weights := get_state_dict(model)).items():
        if not name.endswith("num_batches_tracked") and not name.startswith("fc"):  # the last product is of float32
            weight.replace(weight.half())
    Tensor.realize(*weights.values())

    @TinyJit
    def classes(pictures: Tensor) -> Tensor:
        return model(pictures).argmax(axis=1).realize()

    for _ in range(10):
        found = classes(Tensor.rand(16, 3, SIDE, SIDE).half().realize()).tolist()
    print(found)
