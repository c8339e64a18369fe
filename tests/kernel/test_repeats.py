"""Blocks of a model are found by what repeats, and few of them stand for many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tinygrad import Tensor

from kcg.kernel.repeats import Run, blocks_of, blocks_of_workload, runs_of
from kcg.types import Sequence
from tests.captured import captured
from tests.chains import sequence_of
from tests.kernels import empty

ROWS, WIDTH = 16, 32


def layers(count: int) -> Sequence:
    """Matmul and ReLU, then a row maximum and its difference; every layer has weights of its own."""
    x: Tensor = empty(ROWS, WIDTH)
    for _ in range(count):
        x = (x @ empty(WIDTH, WIDTH)).relu().contiguous()
        x = (x - x.max(1, keepdim=True).contiguous()).contiguous()
    return sequence_of(x)


def test_a_run_is_found_with_its_period() -> None:
    sequence = layers(5)
    assert runs_of(sequence) == (Run(0, 3, 15),) and len(sequence.calls) == 15
    assert runs_of(layers(2)) == (), "two blocks have none in the middle"


def test_blocks_that_are_wired_otherwise_end_a_run() -> None:
    sequence = layers(8)
    seventh, before = sequence.calls[18], sequence.calls[3].views[0]
    views = tuple(view if slot in seventh.writes or slot == 2 else before for slot, view in enumerate(seventh.views))
    changed = (*sequence.calls[:18], replace(seventh, views=views), *sequence.calls[19:])
    assert runs_of(replace(sequence, calls=changed)) == (Run(0, 3, 18),), "the seventh layer reads the second's values"


def test_calls_of_several_blocks_are_decided_on_together() -> None:
    blocks = blocks_of(layers(5))
    assert blocks.key((3, 4)) == blocks.key((6, 7)) == blocks.key((9, 10))
    assert len({blocks.key(places) for places in ((0, 1), (3, 4), (12, 13), (3, 5), (2, 3))}) == 5
    assert blocks.key((2, 3)) == blocks.key((5, 6)) == blocks.key((11, 12)), "what spans two blocks, at every border"


def test_five_blocks_stand_for_forty() -> None:
    sequence = layers(5)
    calls = {call.kernel.id: 40 for call in sequence.calls if call.kernel}
    blocks = blocks_of(sequence, calls)
    assert blocks.blocks == (40.0,)
    for kernel, count in calls.items():
        places = [place for place, call in enumerate(sequence.calls) if call.kernel and call.kernel.id == kernel]
        assert sum(blocks.weight((place,)) for place in places) == count
    assert sum(blocks.weight((2 + 3 * i, 3 + 3 * i)) for i in range(4)) == 39


def test_calls_of_one_kernel_that_need_nothing_of_each_other_are_no_blocks() -> None:
    """As of a modulation: each of six stands for as many of 38, and so does each group of them."""
    x = empty(WIDTH)
    sequence = sequence_of(*((x @ empty(WIDTH, ROWS)).contiguous() for _ in range(6)))
    (kernel,) = {call.kernel.id for call in sequence.calls if call.kernel}
    blocks = blocks_of(sequence, {kernel: 38})
    assert blocks.runs == () and blocks.weight((0, 1, 2)) == blocks.weight((5,)) == 38 / 6
    assert blocks.key((0, 1)) != blocks.key((2, 3)), "what is decided of one group is not decided of another"


@pytest.mark.slow
def test_the_blocks_of_flux_are_those_of_the_whole_model() -> None:
    workload = captured("flux", "1024")
    (blocks,) = blocks_of_workload(workload)
    assert [(run.period, run.blocks) for run in blocks.runs[:2]] == [(29, 3), (15, 3)]
    assert blocks.blocks[:2] == (19.0, 38.0), "double and single blocks"
    for call in workload.calls:
        places = [p for p, c in enumerate(blocks.sequence.calls) if c.kernel == call.region.kernel]
        assert sum(blocks.weight((place,)) for place in places) == call.calls
