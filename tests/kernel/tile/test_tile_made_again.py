"""Programs that compute a call again: they read what its value is made of, and neither read nor store the value."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.regions import candidates_of
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.prior import default_parameters
from kcg.types import Region, Schedule, ScheduleKind
from tests.chains import sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, compare, random_program
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
with_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def layers(rows: int, terms: int, columns: tuple[int, int]) -> list[Region]:
    """Two layers that read the same scaled rows, each with the rows made again."""

    def outputs() -> list[Tensor]:
        x = (empty(rows, terms, dtype="bfloat16") * 2 + 1).contiguous()
        return [(x @ empty(many, terms, dtype="bfloat16").T).contiguous() for many in columns]

    found = [c.region for c in candidates_of(sequence_of(*outputs())) if c.again]
    assert len(found) == 2 and all(len(region.outputs) == 1 for region in found)
    return found


@with_triton
def test_they_are_right_and_do_not_touch_the_value(tmp_path: Path) -> None:
    cases = []
    for number, region in enumerate(layers(37, 45, (51, 24))):
        kernel, value = read_region(region), region.args[region.again[0]][0]
        assert value not in region.outputs
        cases += [Case(region, random_program(kernel, TARGET, Random(seed))) for seed in (number, number + 9)]
        launches = [launch for case in cases[-2:] for launch in case.program.launches]
        assert all(argument.slot != value for launch in launches for argument in launch.arguments)
    assert not any(compare(cases, tmp_path))


@pytest.mark.slow
@with_triton
def test_the_priors_choice_spills_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for region in layers(1024, 2048, (1024, 512)):
        chosen = default_parameters(read_region(region), TARGET)
        (launch,) = compile_tile(region, Schedule(ScheduleKind.TILE, chosen.to_json()), TARGET).launches
        report = dict(launch.compiled.report)
        assert report["wgmma"] and not report["spilled_bytes"], report
