"""A run that may round float32 operands of products to tf32 says so, and no other one takes what it measured."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.errors import ResultError
from kcg.judge.step import perturbed
from kcg.judge.whole import rounding_of_products
from kcg.kernel.arithmetic import TF32_BITS
from kcg.kernel.tile.parameters import CONTRACTION, TileParameters
from kcg.kernel.tile.space import schedule_of
from kcg.measure.protocol import PROTOCOL
from kcg.optimize.run import with_what_was_allowed
from kcg.optimize.settings import Settings
from kcg.report.result import from_dict, read_result, to_dict, write_result
from kcg.types import CacheState, Measurement, Result, Status
from tests.optimize_run import begun
from tests.sample_result import sample_result

SCRIPT = Path(__file__).parents[1] / "scripts" / "norm_steps.py"
ROUNDS = schedule_of(TileParameters(CONTRACTION, ((0,), (1,)), (64, 64), reduce_tile=32, precision="tf32"))


def rounding_result() -> Result:
    first, *others = sample_result().regions
    rows = (replace(first, chosen=replace(first.chosen, schedule=ROUNDS)), *others)
    return replace(sample_result(), regions=rows, allow_tf32=True)


def test_a_result_says_what_was_allowed_and_has_nothing_else(tmp_path: Path) -> None:
    result = rounding_result()
    write_result(result, tmp_path / "RESULT.json")
    assert read_result(tmp_path / "RESULT.json") == result and not sample_result().allow_tf32
    with pytest.raises(ResultError, match="a schedule rounds to tf32, which was not allowed"):
        from_dict(to_dict(replace(result, allow_tf32=False)))


def test_a_run_that_goes_on_allows_what_was_allowed(tmp_path: Path) -> None:
    settings = Settings("flux", folder=tmp_path, resume=True)
    assert with_what_was_allowed(settings) == settings, "nothing is there"
    write_result(rounding_result(), tmp_path / "RESULT.json")
    assert with_what_was_allowed(settings).allow_tf32
    assert not with_what_was_allowed(replace(settings, resume=False)).allow_tf32
    (tmp_path / "RESULT.json").write_text("none")
    assert with_what_was_allowed(settings) == settings


def test_the_whole_may_differ_by_the_rounding_of_its_products() -> None:
    unit = 2.0 ** (1 - TF32_BITS)
    result, other = rounding_result(), sample_result()
    assert (rounding_of_products([other]), rounding_of_products([other, result])) == (0.0, unit)
    changed = perturbed({"x": Tensor.ones(8)}, seed=1, least=unit)["x"].numpy()
    np.testing.assert_allclose(np.abs(changed - 1), unit)


def test_a_run_in_which_it_is_not_allowed_takes_nothing_of_it_from_a_journal(tmp_path: Path) -> None:
    settings = Settings(str(SCRIPT), device=os.environ["DEV"], folder=tmp_path / "out")
    with begun(settings) as run:
        work, service = run.works[0], run.device.service
        row = Measurement(
            region_id=work.call.region.id,
            schedule=ROUNDS,
            target=service.target.fingerprint,
            toolchain=service.toolchain.tile_fingerprint,
            protocol=PROTOCOL,
            status=Status.OK,
            cache_state=CacheState.COLD,
            samples_s=(1e-6, 1e-6, 1e-6),
            binary_hash="f" * 64,
            early_stop=True,
            checked=True,
            run_id="earlier",
        )
        run.journal.record(row)
    for allowed in (False, True):
        with begun(replace(settings, resume=True, allow_tf32=allowed)) as again:
            assert (ROUNDS in again.works[0].seen_of("tile")) == allowed
