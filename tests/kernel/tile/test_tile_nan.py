"""What programs with a maximum in them make of NaN is what tinygrad's own kernels make of it, whatever the order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.kernel.kinds import ACTION_SPACE_VERSION, compile_region, space_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.measure.device_info import detect
from kcg.measure.inputs import RECIPE, WITH_NAN
from kcg.measure.verify import CheckedBench, Rounding, differing_in_nan
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.running import Case, compare
from tests.kernel.tile.test_tile_attention import TARGET, biased, causal, interpreted, parameters, plain
from tests.kernels import empty
from tests.slow import first


def of_rows(region: Region) -> TileParameters:
    return default_parameters(read_region(region), TARGET)


REGIONS: dict[str, tuple[Callable[[], Tensor], Callable[[Region], TileParameters]]] = {
    "attention": (lambda: plain("float32"), parameters),
    "causal": (lambda: causal("float32"), parameters),
    "with a bias": (lambda: biased("float32"), parameters),
    "softmax": (lambda: empty(24, 72).softmax(), of_rows),
    "log_softmax": (lambda: empty(24, 72).log_softmax(), of_rows),
}


@interpreted
@pytest.mark.parametrize("name", first(1, REGIONS))
def test_a_row_with_nan_is_nan_as_in_tinygrads_own_kernels(name: str, tmp_path: Path) -> None:
    make, chosen = REGIONS[name]
    region, (target, _) = region_of(make()), detect(os.environ["DEV"], ACTION_SPACE_VERSION)
    bench = CheckedBench(region, target)
    own = bench.launcher(compile_region(region, space_of(region, target).baseline(), target))
    program = generate(region, TARGET, chosen(region), interpreted=True)
    rounding = Rounding.of(bench.reference(1, RECIPE, ()).stores)
    (slot,) = bench.outputs
    cases, outputs = [], []
    for seed in bench.nan_seeds:
        bench.fill(seed, RECIPE + WITH_NAN)
        own()
        outputs.append(bench.read(slot))
        cases.append(Case(region, program, seed=seed, inputs=dict(bench.inputs)))
    wrong = compare(cases, tmp_path)
    for place, (case, output) in enumerate(zip(cases, outputs, strict=True)):
        found = np.load(tmp_path / f"case{place}.p{slot}.npy").view(output.dtype)
        differ = differing_in_nan(output, found, rounding)
        assert name == "causal" or not (wrong[place] or len(differ))
        assert not np.isnan(found[differ]).any(), "what a mask leaves out is not computed"
        bench.fill(case.seed, RECIPE + WITH_NAN)
        bench._write(bench._views[slot], found)
        assert bench._nan_differs({slot: output}, rounding, ()) == "", "which no comparison decides"
    shares = [float(np.isnan(output).mean()) for output in outputs]
    assert any(0 < share < 1 for share in shares), "some rows are numbers, and some are not"
