"""What the installed predictor does where there is no PyTorch: `evaluation.first_minutes` runs this in an environment
with kcg alone.

    python -m evaluation.first_inference --part 1/2 --schedules 256

Prints one line of JSON: how many candidates were judged in how many seconds, of every so many-th kernel of a small
Flux, planned for an H200, and how far the networks are from what PyTorch said (`tests/predictor/golden.py`).
"""

from __future__ import annotations

import json
import random
import sys
from typing import Annotated

import typer

from evaluation.predictor.bench import measure
from kcg.campaign.settings import parse_shard
from kcg.cli import run_script
from kcg.compat.device import choose_device, prepare
from kcg.errors import KcgError
from kcg.kernel.targets import TARGETS
from kcg.predictor.choice import AUTO, choose_predictor
from kcg.predictor.learned import LearnedPredictor
from kcg.workloads.registry import spec_of

TARGET = TARGETS["sm_90"]


def main(
    part: Annotated[str, typer.Option(metavar="N/OF", help="of the kernels")] = "1/1",
    schedules: Annotated[int, typer.Option(help="candidates of each kernel, about", min=4)] = 256,
) -> None:
    """Measure and print."""
    from tests.predictor.golden import largest_error

    number, of = parse_shard(part)
    prepare(choose_device("CPU").dev)  # to schedule, any device does that opens here
    regions = {call.region.id: call.region for call in spec_of("flux").capture("mini").calls}
    predictor, rng = choose_predictor(AUTO, TARGET), random.Random(0)
    if not isinstance(predictor, LearnedPredictor):
        raise KcgError(f"{predictor.name} guides where the learned predictor should")
    judged, seconds = 0, 0.0
    for region in [region for _, region in sorted(regions.items())][number - 1 :: of]:
        rate, count = measure(predictor, region, TARGET, schedules, rng)
        if count >= schedules // 2:  # a batch of few is all overhead
            judged, seconds = judged + count, seconds + count / rate
    found = {"candidates": judged, "seconds": seconds, "error": largest_error(), "predictor": predictor.name}
    sys.stdout.write(json.dumps({**found, "torch": "torch" in sys.modules}) + "\n")


if __name__ == "__main__":
    run_script(main)
